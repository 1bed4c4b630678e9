"""docs/records.md lists what is declared, no more and no less, and its examples run."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from tests.records.catalogue import BEGIN, END, catalogue

PAGE = Path(__file__).parents[2] / "docs" / "records.md"


def test_the_records_page_lists_every_declared_record_and_message(
    request: pytest.FixtureRequest,
) -> None:
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    written, _, after = rest.partition(END)
    if request.config.getoption("--rewrite"):
        PAGE.write_text(f"{before}{BEGIN}\n\n{catalogue()}\n\n{END}{after}")
    else:
        assert written.strip() == catalogue(), "run it again with --rewrite, and look at the diff"


def test_the_examples_on_the_records_page_run_as_doctests() -> None:
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted > 0
    assert result.failed == 0
