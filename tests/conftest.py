"""Options that tests of several rooms share, and what the processes they start inherit."""

from __future__ import annotations

import signal

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write transcripts anew instead of comparing them"
    )


def pytest_configure() -> None:
    """A shell starts what it runs in the background with Ctrl-C ignored, and children inherit it:
    commands that tests interrupt would go on for ever."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
