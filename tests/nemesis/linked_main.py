"""`esker start` for a node that dials every other node through a proxy of its own.

ESKER_TEST_LINKS tells, for each port that a node listens on, the port of the proxy. So it does not
matter from whom a node has learned an address. ESKER_TEST_CLOCK_MINUTES is as in
`tests.clients.skewed_main`; a process that has one must import everything anew.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Final

import uvloop

from tests.clients.skewed_main import MINUTES, skew

LINKS: Final = "ESKER_TEST_LINKS"


class LinkedLoop(uvloop.Loop):
    """An event loop whose connections to known ports lead through proxies."""

    ports: dict[int, int]

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Any, host: str, port: int, **options: Any
    ) -> Any:
        port = self.ports.get(port, port)
        return await super().create_connection(protocol_factory, host, port, **options)


if __name__ == "__main__":
    LinkedLoop.ports = {int(a): b for a, b in json.loads(os.environ[LINKS]).items()}
    uvloop.new_event_loop = LinkedLoop
    if MINUTES in os.environ:
        skew(float(os.environ[MINUTES]))
    from esker.cli import main

    sys.argv[1:1] = ["start"]
    sys.exit(main())
