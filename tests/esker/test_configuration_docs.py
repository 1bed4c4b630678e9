"""docs/configuration.md is made from the settings a node knows: `pytest --rewrite` writes it."""

from pathlib import Path

from esker.settings import SECTIONS, Section

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"

HEAD = """# Configuration

A node is configured by one properties file: `esker start FILE`. Names are Kafka's wherever Kafka or
a KIP has one; our own begin with `esker.`. A key that is not in this table, or a value that cannot
be, is refused at start by an error that names the key.

Keys of every role are accepted whichever role a node has, as Kafka does, so that a file may be
shared; a key of another role is checked, and changes nothing.
"""

TABLE = """
| key | default | what it is |
| --- | --- | --- |
"""

FOOT = """
A node of a quorum of three, complete:

```properties
process.roles=controller
node.id=1
controller.quorum.voters=1@10.0.0.1:9093,2@10.0.0.2:9093,3@10.0.0.3:9093
listeners=CONTROLLER://10.0.0.1:9093
log.dirs=/var/lib/esker
```
"""


def shown_section(section: Section) -> str:
    rows = (
        f"| `{setting.key}` | {setting.default_text} | {setting.help} |\n"
        for setting in section.settings
    )
    return f"\n## {section.title}\n" + TABLE + "".join(rows)


def page() -> str:
    sections = "".join(shown_section(section) for section in SECTIONS if section.settings)
    return HEAD + sections + "\n## Examples\n" + FOOT


def test_the_page_shows_every_setting_as_it_is(request):
    if request.config.getoption("--rewrite"):
        PAGE.write_text(page())
    assert PAGE.read_text() == page(), "docs/configuration.md is stale: pytest --rewrite"
