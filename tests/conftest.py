"""Options that tests of several rooms share."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write transcripts anew instead of comparing them"
    )
