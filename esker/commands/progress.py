"""Counters and clean exits, shared by the long-running commands.

The counter is printed to standard error, only if that is a terminal and standard output is not
(records would break up the counter). Ctrl-C ends a command quietly with exit code 130, as it ends
`cat`; a closed pipe (`| head`) ends it with 141. Neither prints a traceback.
"""

from __future__ import annotations

import asyncio
import os
import select
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final

import typer

from raft.net.runner import run

INTERRUPTED: Final = 130  # as a shell counts a process that died of SIGINT
BROKEN_PIPE: Final = 141  # and of SIGPIPE
_TICK_S: Final = 0.2


def interruptible(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine; exit with 130 on Ctrl-C and with 141 when the output pipe is closed."""
    try:
        run(main)
        sys.stdout.flush()
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # Python flushes standard output again at exit, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(BROKEN_PIPE) from None


def still_trying(why: str) -> None:
    """Print on standard error the reason for a retry, so that the command does not seem to hang."""
    typer.echo(f"esker: still trying: {why}", err=True)


def stop_if_unread() -> None:
    """Raise BrokenPipeError if standard output is a pipe whose reading end is closed.

    Otherwise `esker consume | head -n 1` would wait for a next record before it noticed.
    """
    try:
        output = sys.stdout.fileno()
    except (OSError, ValueError):  # not a file
        return
    poll = select.poll()
    poll.register(output, 0)
    if any(event & select.POLLERR for _, event in poll.poll(0)):
        raise BrokenPipeError


@contextmanager
def counting(word: str, counts: Callable[[], tuple[int, int]]) -> Iterator[None]:
    """Show a counter of records and bytes on a terminal while an event loop runs.

    Args:    word: "read" or "written"; counts: returns the records and bytes so far.
    """
    if not sys.stderr.isatty() or (word == "read" and sys.stdout.isatty()):
        yield
        return
    from rich.console import Console
    from rich.status import Status

    started = time.monotonic()

    def text() -> str:
        records, size_bytes = counts()
        rate = size_bytes / 1e6 / max(1e-3, time.monotonic() - started)
        return f"{records:,} records {word}, {size_bytes / 1e6:,.1f} MB, {rate:,.1f} MB/s"

    async def update(status: Status) -> None:
        while True:
            status.update(text())
            await asyncio.sleep(_TICK_S)

    console = Console(stderr=True)
    with console.status(text()) as status:
        ticking = asyncio.get_running_loop().create_task(update(status))
        try:
            yield
        finally:
            ticking.cancel()
    console.print(text(), highlight=False)
