"""One broker of several that a supervisor started: `python -m esker.server.broker_process ID`.

Its settings come over standard input, because they may hold secrets: one line of JSON, with the
numbers of the open files that it inherits. Then nothing comes any more, and the end of that pipe is
the end of the supervisor. The id on its command line is for people who list processes.

Source: docs/design/processes.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from typing import Final

from esker.server.ending import run_to_end
from esker.server.parent_watch import begin_watching_parent
from esker.server.process import Supervision, run_until_signalled
from esker.settings.config import NodeSettings, parse_config
from raft.net.logs import begin_logging

ALONE_S: Final = 45.0  # to drain, once the supervisor is gone
ALIVE: Final = "alive"
ALIVE_EVERY_S: Final = 1.0


def main() -> None:
    """Run the broker that standard input describes; exit with 1 if it failed."""
    handed = json.loads(sys.stdin.buffer.readline())
    begin_watching_parent(ALONE_S)
    settings = parse_config(handed["properties"])
    values = settings.values
    begin_logging(values["esker.log.format"], values["esker.log.level"], settings.node_id)
    supervision = Supervision(
        sockets={
            name: tuple(socket.socket(fileno=number) for number in numbers)
            for name, numbers in handed["sockets"].items()
        },
        report=_Reports(handed["reports"]).report,
    )
    words = run_to_end(_run(settings, supervision), settings.log_dir, votes=False)
    if words is not None:
        print(f"esker: broker {settings.node_id}: {words}", file=sys.stderr)
        sys.exit(1)


async def _run(settings: NodeSettings, supervision: Supervision) -> None:
    """Run the broker, and report a sign of life each second from its event loop."""

    async def live() -> None:
        while True:
            supervision.report(ALIVE)
            await asyncio.sleep(ALIVE_EVERY_S)

    living = asyncio.ensure_future(live())
    try:
        await run_until_signalled(settings, supervision)
    finally:
        living.cancel()


class _Reports:
    """The pipe to the supervisor."""

    def __init__(self, number: int) -> None:
        self._number = number
        os.set_blocking(number, False)
        os.set_inheritable(number, False)

    def report(self, line: str) -> None:
        """Send one line; a supervisor that is gone, or does not read, gets none."""
        with contextlib.suppress(OSError):
            os.write(self._number, line.encode() + b"\n")


if __name__ == "__main__":
    main()
