"""Options that tests of several rooms share, and what they all start from."""

from __future__ import annotations

import signal

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write transcripts anew instead of comparing them"
    )


def pytest_configure() -> None:
    """Ctrl-C reaches what tests start.

    A shell that starts something in the background has it ignore SIGINT, and so do its children.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
