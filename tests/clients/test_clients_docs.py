"""docs/clients.md shows the table that is run, and names the versions that are pinned."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from raft.net.sasl import MECHANISMS
from raft.net.security import PLAINTEXT, PROTOCOLS
from tests.clients.table import CLIENTS, ROWS

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "clients.md"
BEGIN: Final = "<!-- table: pytest tests/clients/test_clients_docs.py --rewrite -->\n"
END: Final = "<!-- end -->"


def table() -> str:
    """Rows and clients; numbered reasons where a client cannot."""
    reasons: list[str] = []
    lines = [
        "| scenario | " + " | ".join(client.name for client in CLIENTS) + " |",
        "| --- |" + " --- |" * len(CLIENTS),
    ]
    for row in ROWS:
        cells = []
        for client in CLIENTS:
            reason = row.cannot.get(client.name)
            if reason is None:
                cells.append("yes")
                continue
            if reason not in reasons:
                reasons.append(reason)
            cells.append(f"- ({reasons.index(reason) + 1})")
        lines.append(f"| {row.name} | {' | '.join(cells)} |")
    notes = [f"({number}) {reason}." for number, reason in enumerate(reasons, 1)]
    return "\n".join(lines) + "\n\n" + "\n".join(notes) + "\n"


def test_the_clients_page_has_the_current_table_of_client_libraries_and_scenarios(
    request: pytest.FixtureRequest,
) -> None:
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    after = rest[rest.index(END) :]
    shown = before + BEGIN + table() + after
    if request.config.getoption("--rewrite"):
        PAGE.write_text(shown)
    assert PAGE.read_text() == shown, "pytest tests/clients/test_clients_docs.py --rewrite"


@pytest.mark.parametrize("package", ["confluent-kafka", "aiokafka", "kafka-python"])
def test_the_clients_page_names_the_pinned_client_versions(package: str) -> None:
    pinned = re.search(rf"^{package}==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert re.search(rf"^\| {package}.*\| {re.escape(pinned[1])}", PAGE.read_text(), re.MULTILINE)


def test_the_clients_page_names_each_way_to_authenticate_and_tests_that_are_there() -> None:
    section = PAGE.read_text().partition("\n## TLS and SASL\n")[2].partition("\n## ")[0]
    for word in {*PROTOCOLS, *MECHANISMS} - {PLAINTEXT}:
        assert re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", section), word
    files = set(re.findall(r"`(test_\w+\.py)`", section))
    assert files
    assert not [name for name in files if not (ROOT / "tests" / "clients" / name).is_file()]
