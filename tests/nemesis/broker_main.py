"""A broker with a mistake in it, to be found out by a run.

Started instead of `esker start`; the mistake is named in the environment. Production code knows
nothing of this.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any, Final

from diskless.produce import buffer
from diskless.produce.buffer import AppendBuffer, AppendResult
from esker.cli import main

SPOILED: Final = "ESKER_TEST_SPOILED_BROKER"


class _Deaf:
    """Was told already."""

    def appended(self, result: AppendResult) -> None:
        pass


def _acknowledge_first() -> None:
    """Producers hear that all is well as soon as their batch is buffered."""
    add = AppendBuffer.add

    def spoiled(self: AppendBuffer, *place: Any, waiter: Any, **rest: Any) -> None:
        asyncio.get_running_loop().call_soon(waiter.appended, AppendResult(0))
        add(self, *place, waiter=_Deaf(), **rest)

    AppendBuffer.add = spoiled  # type: ignore[assignment, method-assign]


def _forget_producers() -> None:
    """Commits do not say whose batches they are: one that is sent again is stored again."""
    row = buffer._row
    nobody = {
        "producer_id": -1, "producer_epoch": -1, "base_sequence": -1, "last_sequence": -1
    }  # fmt: skip
    buffer._row = lambda *words: row(*words)._replace(**nobody)  # type: ignore[attr-defined]


if __name__ == "__main__":
    match os.environ.get(SPOILED, ""):
        case "acknowledges first":
            _acknowledge_first()
        case "forgets producers":
            _forget_producers()
        case other:
            assert not other, other
    sys.argv[1:1] = ["start"]
    sys.exit(main())
