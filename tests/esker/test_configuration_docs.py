"""docs/configuration.md is made from the settings a node knows: `pytest --rewrite` writes it."""

import re
from pathlib import Path

from coordinator.controller.config_defs import NO_EFFECT, TOPIC_CONFIGS
from esker.settings import SECTIONS, Section
from esker.settings.config import parse_config
from esker.settings.properties import parse_properties

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"

HEAD = """# Configuration

A node is configured by one properties file: `esker start FILE`. Names are Kafka's wherever Kafka or
a KIP has one; our own begin with `esker.`. A key that is not in this table, or a value that cannot
be, is refused at start by an error that names the key. Settings of Kafka that mean nothing here are
listed once when the node starts; those whose absence would break a promise (security, ZooKeeper),
and values from config providers, `${...}`, are refused. The file is read as Java reads it: of a key
that stands there more than once the last value holds, and the node warns of it.

Keys of every role are accepted whichever role a node has, as Kafka does, so that a file may be
shared; a key of another role is checked, and changes nothing.
"""

TABLE = """
| key | default | what it is |
| --- | --- | --- |
"""

TOPICS = """
## Topics

A topic's settings are given when it is created (`esker topics create --config NAME=VALUE`) and
changed by `esker configs alter topics`. A topic without its own value has the
cluster's default (`esker configs alter brokers ""`, under the name in
the third column), else the one below. Names, bounds and answers to wrong values are Kafka's.

| setting | default | cluster-wide default | what it is |
| --- | --- | --- | --- |
"""

FOOT = """
A node of a quorum of three, complete:

```properties
process.roles=controller
node.id=1
controller.quorum.voters=1@10.0.0.1:9093,2@10.0.0.2:9093,3@10.0.0.3:9093
listeners=CONTROLLER://10.0.0.1:9093
esker.insecure.controller.listener=true
log.dirs=/var/lib/esker
```

A broker of the same cluster, whose objects lie in a bucket:

```properties
process.roles=broker
node.id=101
controller.quorum.voters=1@10.0.0.1:9093,2@10.0.0.2:9093,3@10.0.0.3:9093
listeners=PLAINTEXT://0.0.0.0:9092
advertised.listeners=PLAINTEXT://broker-101.example:9092
log.dirs=/var/lib/esker
diskless.storage.class.name=diskless.stores.s3.S3Storage
esker.storage.s3.bucket=our-bucket
broker.rack=eu-1a
```

Both in one process, with objects in a directory:

```properties
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:9093
listeners=CONTROLLER://127.0.0.1:9093,PLAINTEXT://127.0.0.1:9092
log.dirs=/var/lib/esker
esker.storage.directory.path=/var/lib/esker-objects
```

[operations.md](operations.md) says how they are started.
"""


def shown_section(section: Section) -> str:
    rows = (
        f"| `{setting.key}` | {setting.default_text} | {setting.help} |\n"
        for setting in section.settings
    )
    return f"\n## {section.title}\n" + TABLE + "".join(rows)


def shown_topic_settings() -> str:
    in_order = sorted(
        TOPIC_CONFIGS.items(), key=lambda item: (item[1].about.startswith(NO_EFFECT), item[0])
    )
    return TOPICS + "".join(
        f"| `{name}` | {definition.default or 'empty'} "
        f"| {f'`{definition.broker_name}`' if definition.broker_name else 'none'} "
        f"| {definition.about} |\n"
        for name, definition in in_order
    )


def page() -> str:
    sections = "".join(shown_section(section) for section in SECTIONS if section.settings)
    return HEAD + sections + shown_topic_settings() + "\n## Examples\n" + FOOT


def test_the_examples_of_the_configuration_page_are_valid():
    texts = re.findall(r"```properties\n(.*?)```", page(), re.DOTALL)
    roles = [parse_config(parse_properties(text, source="page")).roles for text in texts]
    assert roles == [{"controller"}, {"broker"}, {"broker", "controller"}]


def test_the_configuration_page_lists_every_setting(request):
    if request.config.getoption("--rewrite"):
        PAGE.write_text(page())
    assert PAGE.read_text() == page(), "docs/configuration.md is stale: pytest --rewrite"
