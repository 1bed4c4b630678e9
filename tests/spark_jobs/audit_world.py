"""Builds logs, checkpoints and objects for tests of the audit, small enough to break one record at
a time.

A test changes one record of a list, and demands that exactly one rule reports it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from coordinator.batch.memory import InMemoryState
from raft.segments.files import RealFileSystem
from raft.segments.segment import segment_name
from records.batch import ControlType, iter_batches
from records.batch_writer import build_control_batch, build_value_batch
from records.control import LeaderChangeMessage
from records.frame import decode_record, encode_control_record, encode_record
from records.schema import MetadataRecord
from records.types import Epoch, OffsetAndEpoch
from snapshot.writer import CheckpointWriter
from spark_jobs.audit.job import LOGS_ONLY, audit
from spark_jobs.audit.one_log import AuditRequest, Report
from spark_jobs.readers.engines import LocalEngine
from spark_jobs.readers.log_files import LogFiles
from spark_jobs.readers.logs import CommittedFiles, LogsError
from tests.coordinator.batch.actors import (
    OTHER_TOPIC,
    TOPIC,
    Broker,
    batch,
    create,
    delete,
    delete_records,
    groups,
    release,
)
from tests.coordinator.batch.rewriter_actor import Range, Rewriter
from tests.coordinator.batch.subjects import SETTINGS, MemoryWorld

CLUSTER_ID = "testcluster"
COORDINATOR = "__diskless-metadata-0"
THIRD_TOPIC = UUID(int=79)


@dataclass(frozen=True)
class DirectoryLogs:
    """Logs in directories, committed to the end of their files or to a given offset."""

    directories: Mapping[str, Path]
    ends: Mapping[str, int] = field(default_factory=dict)
    cluster_id: str = CLUSTER_ID

    def names(self) -> list[str]:
        return sorted(self.directories)

    def log(self, name: str) -> CommittedFiles:
        if name not in self.directories:
            raise LogsError(f"no {name}")
        files = LogFiles(self.directories[name])
        end = self.ends.get(name)
        return CommittedFiles(files, files.end_offset if end is None else lambda: end)


def write_checkpoint(directory: Path, offset: int, values: Sequence[bytes]) -> None:
    """Write a checkpoint of everything below `offset`."""
    files, snapshot_id = RealFileSystem(), OffsetAndEpoch(offset, Epoch(1))  # type: ignore[arg-type]
    with CheckpointWriter.create(files, directory, snapshot_id, last_timestamp=0) as writer:
        writer.append_values(values)
        writer.freeze()


def audit_directory(
    directory: Path, name: str = COORDINATOR, audit_request: AuditRequest = LOGS_ONLY
) -> Report:
    """Audit one log in this process."""
    return audit(DirectoryLogs({name: directory}), LocalEngine(), audit_request)


def broken_rules(report: Report) -> dict[str, int]:
    """Count the violations of each broken rule."""
    return dict(report.findings.counts)


def describe_findings(report: Report) -> str:
    """List the first violations, for an assertion's message."""
    kept = report.findings.kept
    return "\n".join(str(one) for name in kept for one in kept[name][:3])


# --- a history with every kind of record ----------------------------------------------------------


@dataclass(frozen=True)
class Unknown:
    """A record of an unknown type, with its frame."""

    value: bytes


@dataclass(frozen=True)
class Entry:
    """A batch of a log: one record, or a LeaderChange."""

    value: MetadataRecord | Unknown | int  # a leader's id
    epoch: int = 1
    gap: int = 0  # offsets left out before it


def write_segments(directory: Path, batches: bytes, per_segment: int | None) -> None:
    """Write a log's batches to segment files, `per_segment` batches in each, or all in one."""
    cut = list(iter_batches(batches))
    step = per_segment or max(len(cut), 1)
    for at in range(0, len(cut), step):
        name = segment_name(cut[at].header.base_offset)
        (directory / name).write_bytes(b"".join(one.view for one in cut[at : at + step]))


def write_entries(directory: Path, entries: Sequence[Entry], per_segment: int | None = None) -> int:
    """Write entries as a log and return its end offset."""
    directory.mkdir(parents=True, exist_ok=True)
    offset, parts = 0, []
    for entry in entries:
        offset += entry.gap
        if isinstance(entry.value, int):
            message = LeaderChangeMessage(leader_id=entry.value, voters=(), granting_voters=())
            _, value = encode_control_record(message)
            parts.append(
                build_control_batch(
                    [(ControlType.LEADER_CHANGE, value)],
                    base_offset=offset,
                    leader_epoch=entry.epoch,
                    timestamp=offset,
                )
            )
        else:
            value = (
                entry.value.value
                if isinstance(entry.value, Unknown)
                else encode_record(entry.value)
            )
            parts.append(
                build_value_batch(
                    [value], base_offset=offset, leader_epoch=entry.epoch, timestamp=offset
                )
            )
        offset += 1
    write_segments(directory, b"".join(parts), per_segment)
    return offset


def checkpoint_at(entries: Sequence[Entry], offset: int) -> list[MetadataRecord]:
    """Return the records of a coordinator's checkpoint after the first `offset` entries."""
    state = InMemoryState()
    for at, entry in enumerate(entries[:offset]):
        if not isinstance(entry.value, int | Unknown):
            state.apply(at, entry.value)
    return [decode_record(value) for value in state.checkpoint()]


def a_history() -> list[Entry]:
    """Return a coordinator's log with all outcomes of commits and all fates of objects."""
    records = asyncio.run(_live())
    middle = len(records) // 2
    return [
        Entry(1, 1),
        *(Entry(record, 1) for record in records[:middle]),
        Entry(2, 2),
        *(Entry(record, 2) for record in records[middle:]),
    ]


async def _live() -> list[MetadataRecord]:
    world = MemoryWorld(SETTINGS)
    await create(world, TOPIC, 2)
    await create(world, OTHER_TOPIC, 1, name="payments")
    one, two = Broker(world, 1), Broker(world, 2)
    await one.acquire(20)
    await two.acquire(20)
    await one.commit(topics=groups(batch(0, 3)) + groups(batch(100, 2), topic=OTHER_TOPIC))
    producer = [batch(0, 2, producer=7), batch(100, 3, producer=7, first=2)]
    await two.commit(topics=groups(*producer, partition=1))
    again = [producer[0], batch(100, 1, producer=7, first=5)]
    await one.commit(topics=groups(*again, partition=1))
    await one.commit(batch(0, 4), batch(100, 1), batch(300, 1))
    await two.commit(batch(0, 1, producer=9, epoch=1))
    await two.commit(batch(0, 1, producer=9, epoch=0), batch(100, 2))
    assert await delete_records(world, 3) == (0, 3)
    assert await delete_records(world, 2, OTHER_TOPIC) == (0, 2)
    await world.advance(1)  # the first object is marked
    await one.commit(batch(0, 2))
    await world.advance(SETTINGS.file_delete_delay_ms)
    assert await one.deleted(*await one.files()) == [0]
    assert await one.is_safe(one.next_id)
    one.next_id += 1
    await one.commit(topics=groups(batch(0, 1, producer=7, first=6), partition=1))
    restarted = Broker(world, 2, 2)
    await restarted.acquire(20)
    await restarted.commit(topics=groups(batch(0, 5), topic=OTHER_TOPIC))
    await one.release()
    await one.acquire(20)
    await one.commit(batch(0, 1), batch(100, 1))
    await create(world, THIRD_TOPIC, 2, name="moved", epoch=2)
    await release(world, 1, topic=THIRD_TOPIC, epoch=2)
    assert await delete(world, OTHER_TOPIC, epoch=3) == 0
    for _ in range(4):
        await world.advance(SETTINGS.answer_retention_ms)
        await one.deleted(*await one.files())
    await world.advance(SETTINGS.producer_expiration_ms)
    await world.advance(SETTINGS.tombstone_retention_ms)
    await one.acquire(20)
    await one.commit(topics=groups(batch(0, 2, producer=7, epoch=1), partition=1))
    await one.commit(batch(0, 1), topics=groups(batch(0, 1)))
    return [record for _, record in world.coordinator.log]


def a_rewritten_history() -> list[Entry]:
    """Return a coordinator's log in which runs are merged, compacted and replaced once more."""
    return [Entry(1), *(Entry(record) for record in asyncio.run(_live_rewritten()))]


async def _live_rewritten() -> list[MetadataRecord]:
    world = MemoryWorld(SETTINGS)
    world.view.raise_level(3)
    await create(world, TOPIC, 2)
    one, rewriter = Broker(world, 1), Rewriter(world)
    await one.acquire(20)
    for _ in range(4):
        await one.commit(batch(0, 3))
    await rewriter.acquire()
    merged = await rewriter.replace(Range(0, 6))
    rewriter.next_object()
    compacted = await rewriter.replace(Range(0, 6, bound=12, removed=1, parts=2))
    above = await rewriter.replace(Range(9, 12, bound=12, removed=1), closes=True)
    assert not any(row.error_code for row in (*merged, *compacted, *above))
    await one.commit(batch(0, 1))
    return [record for _, record in world.coordinator.log]
