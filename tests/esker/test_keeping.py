"""A state machine's host in a real event loop, with a thread of its own. DESIGN §6."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from esker.keeping import SnapshotKeeping
from raft.driver.keeping import Hosted, Taken
from raft.memory import MemoryLog, SilentTicket
from raft.segments.files import RealFileSystem
from snapshot.kv import KeyValueMachine
from tests.snapshot.machines import draft

NAME = "closing-0"


def hosted(directory: Path) -> Hosted:
    """A host of a log with some keys."""
    keeping = SnapshotKeeping(node_id=1)
    log = MemoryLog(NAME, snapshots=keeping.shelf(RealFileSystem(), directory))
    epoch = log.elect()
    pairs = [(b"key-%d" % i, b"value" * 100) for i in range(5_000)]
    log.propose(SilentTicket(), epoch, draft(*pairs))
    loop = asyncio.get_running_loop()
    node = SimpleNamespace(call_soon=loop.call_soon, call_later=loop.call_later, fail=_fail)
    return keeping.host(log, KeyValueMachine(), node, None)  # type: ignore[arg-type]


def _fail(error: BaseException) -> None:
    raise AssertionError("the node would end") from error


def threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if NAME in one.name]


@pytest.mark.parametrize("finish", [False, True])
def test_a_group_that_ends_leaves_no_thread_and_no_part(tmp_path: Path, *, finish: bool) -> None:
    """A node lives on when one of its groups ends: idle, or in the middle of a checkpoint."""

    async def live_and_end() -> None:
        host = hosted(tmp_path)
        taken: asyncio.Future[Taken] = asyncio.get_running_loop().create_future()
        host.take_now(taken.set_result)
        while not host.generating and not taken.done():
            await asyncio.sleep(0)
        while not threads():
            await asyncio.sleep(0)
        if finish:
            await taken
        host.close()
        told = await taken
        assert (told.error is None) == finish
        while threads():
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(live_and_end(), 20))
    names = [path.name for path in tmp_path.iterdir()]
    assert [name.endswith(".checkpoint") for name in names] == [True] * finish
