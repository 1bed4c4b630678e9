"""What long-running commands share: a counter for who watches, and clean ends.

A counter goes to standard error, only if that is a terminal and standard output is not one (it
would be torn apart by the records). Ctrl-C ends a command as it does `cat`: quietly, with 130. A
reader that goes away (`| head`) ends it with 141, and neither is a traceback.
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
    """Run to the end, to Ctrl-C, or until standard output's reader has gone."""
    try:
        run(main)
        sys.stdout.flush()
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # Python flushes once more at exit; there must be something to flush into.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(BROKEN_PIPE) from None


def still_trying(why: str) -> None:
    """Say on standard error what a command waits for: it would else just stand there."""
    typer.echo(f"esker: still trying: {why}", err=True)


def stop_if_unread() -> None:
    """Raise BrokenPipeError if standard output's reader has gone: nothing may be written for long.

    `esker consume | head -n 1` would else wait for a record that nobody reads.
    """
    try:
        output = sys.stdout.fileno()
    except (OSError, ValueError):  # it is no file
        return
    gone = select.poll()
    gone.register(output, 0)
    if any(event & select.POLLERR for _, event in gone.poll(0)):
        raise BrokenPipeError


@contextmanager
def counting(word: str, counts: Callable[[], tuple[int, int]]) -> Iterator[None]:
    """Show records and bytes so far, while on a terminal. Inside a running loop.

    Args:    word: what happened to them; counts: records and bytes.
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
