"""A state machine's host in a real event loop, with a thread of its own.

Source: docs/design/snapshots.md#generation-never-blocks-commits.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from esker.server.snapshot_hosting import READERS_RETURN_MS, SnapshotKeeping
from raft.driver.snapshot_hosting import (
    HostedMachine,
    KeptCheckpoint,
    LogStartView,
    ReadingArchive,
    SnapshotOutcome,
)
from raft.segments.files import RealFileSystem
from records.types import Epoch, NodeId, Offset, OffsetAndEpoch
from snapshot.kv import KeyValueMachine
from snapshot.log_start import LogStartSettings
from tests.doubles.memory_log import MemoryLog, SilentTicket
from tests.snapshot.machines import draft
from tests.waiting import DEADLINE_S, wait_until_async

NAME = "closing-0"


def hosted(directory: Path) -> HostedMachine:
    """A host of a log with some keys."""
    keeping = SnapshotKeeping(node_id=1)
    log = MemoryLog(NAME, snapshots=keeping.store(RealFileSystem(), directory))
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
def test_a_raft_group_that_ends_leaves_no_snapshot_thread_and_no_partial_file(
    tmp_path: Path, *, finish: bool
) -> None:
    """A node lives on when one of its groups ends: idle, or in the middle of a checkpoint."""

    async def live_and_end() -> None:
        host = hosted(tmp_path)
        taken: asyncio.Future[SnapshotOutcome] = asyncio.get_running_loop().create_future()
        host.take_now(taken.set_result)
        await wait_until_async(lambda: host.generating or taken.done(), longest_pause_s=0)
        await wait_until_async(threads, "a thread writes", longest_pause_s=0)
        if finish:
            await taken
        host.close()
        told = await taken
        assert (told.error is None) == finish
        await wait_until_async(lambda: not threads(), "no thread is left", state=threads)

    asyncio.run(asyncio.wait_for(live_and_end(), DEADLINE_S))
    names = [path.name for path in tmp_path.iterdir()]
    assert [name.endswith(".checkpoint") for name in names] == [True] * finish


# --- archives hold the log start ------------------------------------------------------------------

BOUND = 1_000
LATER_MS = 10 * READERS_RETURN_MS


def log_start(*readers: ReadingArchive, now_ms: int = LATER_MS, bound: int = BOUND) -> int:
    """Where a leader since 0 lets a log begin, whose checkpoints end 1500, 1000 and 500 bytes
    before its end; its size alone would make it begin at the last.
    """
    settings = LogStartSettings(max_retention_bytes=0, archive_max_lag_bytes=bound)
    view = LogStartView(
        now_ms=now_ms,
        log_start_offset=Offset(0),
        log_bytes=2_000,
        checkpoints=[
            KeptCheckpoint(OffsetAndEpoch(Offset(offset), Epoch(1)), 10, 2_000 - 50 * offset, 0)
            for offset in (10, 20, 30)
        ],
        leading_since_ms=0,
        replicas=[],
        leader_log_start=None,
        readers=readers,
    )
    chosen = SnapshotKeeping(node_id=1, log_starts=settings).log_start(view)
    return 0 if chosen is None else chosen.offset


def archive(offset: int, *, ago_ms: int = 0) -> ReadingArchive:
    return ReadingArchive(NodeId(2_000_000_001), Offset(offset), LATER_MS - ago_ms)


@pytest.mark.parametrize(
    ("readers", "bound", "expected"),
    [
        ((), BOUND, 30),  # nobody: as it was
        ((archive(30),), BOUND, 30),
        ((archive(29),), BOUND, 20),
        ((archive(29),), 10_000, 20),
        ((archive(12),), BOUND, 10),
        ((archive(0),), BOUND, 10),  # past its bound the log start moves on
        ((archive(0),), 499, 30),
        ((archive(0),), 1_500, 0),
        ((archive(0, ago_ms=300_000),), 1_500, 0),
        ((archive(0, ago_ms=300_001),), 1_500, 30),  # it fetches no more: nobody waits
        ((archive(30), archive(15)), BOUND, 10),  # each for itself
        ((archive(0),), 0, 30),  # nothing is kept for archives
    ],
)
def test_a_running_archive_job_holds_the_log_start_back_up_to_a_maximum_lag(
    readers: tuple[ReadingArchive, ...], bound: int, expected: int
) -> None:
    """esker.archive.max.lag.bytes; neither age nor metadata.max.retention.bytes ends it."""
    assert log_start(*readers, bound=bound) == expected


@pytest.mark.parametrize(
    ("now_ms", "bound", "expected"),
    [
        (READERS_RETURN_MS - 1, 10_000, 0),
        (READERS_RETURN_MS - 1, BOUND, 10),
        (READERS_RETURN_MS - 1, 0, 30),  # there can be none
        (READERS_RETURN_MS, 10_000, 30),
    ],
)
def test_a_new_leader_does_not_move_its_log_start_before_archive_jobs_can_reconnect(
    now_ms: int, bound: int, expected: int
) -> None:
    assert log_start(now_ms=now_ms, bound=bound) == expected
