"""Tests the audit of objects: missing, short, foreign and damaged ones are reported with the
offsets that they cost.

Source: docs/design/broker.md#wal-segment-objects; invariants 5 and 7 (docs/design/invariants.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import msgpack
import pytest
from crc32c import crc32c
from msgspec.structs import replace

from diskless.stores.interface import StorageError
from records.batch import parse_header
from records.batch_writer import build_value_batch
from records.cleaning import empty_batch
from records.diskless import LogStartOffsetsRecord, ObjectCommitRecord, ObjectsMarkedRecord
from records.frame import encode_record
from records.rpc.batch_coordinator import CommitBatch
from records.wal import MAGIC, TRAILER, PartitionBatches, build_object
from spark_jobs.audit.job import audit
from spark_jobs.audit.ledger import Incarnation, Ledger, Replacement, RewrittenObject
from spark_jobs.audit.objects import rewritten_runs
from spark_jobs.audit.one_log import AuditRequest
from spark_jobs.audit.store import Depth, bad_run, is_sampled
from spark_jobs.readers.engines import LocalEngine
from spark_jobs.readers.logs import CommittedFiles
from spark_jobs.readers.object_store import DirectoryStore, StoreOptions, open_store
from tests.coordinator.batch.actors import (
    OTHER_TOPIC,
    TOPIC,
    Broker,
    create,
    delete_records,
    groups,
)
from tests.coordinator.batch.subjects import KEYS, SETTINGS, MemoryWorld
from tests.diskless.stores.conftest import new_bucket, s3_endpoint
from tests.spark_jobs.audit_world import (
    CLUSTER_ID,
    COORDINATOR,
    DirectoryLogs,
    Entry,
    audit_directory,
    broken_rules,
    checkpoint_at,
    describe_findings,
    write_checkpoint,
    write_entries,
)

__all__ = ["s3_endpoint"]

Objects = dict[int, bytes]

COUNT: Final = 20


def values(count: int) -> bytes:
    return bytes(build_value_batch([b"x" * 20] * count, base_offset=0, leader_epoch=0, timestamp=7))


def records_in(batch: bytes) -> int:
    return parse_header(batch).record_count


@cache
def the_world() -> tuple[tuple[Entry, ...], dict[int, bytes]]:
    """Return the objects of two partitions and the log that committed them; the first object is
    unused.
    """
    objects: dict[int, bytes] = {}

    async def live() -> list[Entry]:
        world = MemoryWorld(SETTINGS)
        await create(world, TOPIC, 1)
        await create(world, OTHER_TOPIC, 1, name="payments")
        broker = Broker(world, 1)
        await broker.acquire(100)
        for number in range(COUNT):
            parts = {TOPIC: [values(3), values(2)], OTHER_TOPIC: [values(1 + number)]}
            objects[number] = an_object(number, parts)
            topics: tuple[Any, ...] = ()
            at = 0
            for topic, batches in parts.items():
                broken_rules = []
                for one in batches:
                    count = records_in(one)
                    broken_rules.append(
                        CommitBatch(at, len(one), 0, count - 1, 7, 0, -1, -1, -1, -1)
                    )
                    at += len(one)
                topics += groups(*broken_rules, topic=topic)
            await broker.commit(topics=topics, size=len(objects[number]))
        await delete_records(world, 5)
        await delete_records(world, 1, OTHER_TOPIC)
        await world.advance(1)
        return [Entry(1), *(Entry(record) for _, record in world.coordinator.log)]

    return tuple(asyncio.run(live())), objects


def an_object(
    object_id: int, parts: dict[UUID, list[bytes]], *, cluster_id: str = CLUSTER_ID, epoch: int = 1
) -> bytes:
    content = [
        PartitionBatches(topic, 0, batches, sum(map(records_in, batches)))
        for topic, batches in parts.items()
    ]
    found, _ = build_object(
        content, cluster_id=cluster_id, object_id=object_id, broker_id=1, broker_epoch=epoch
    )
    return b"".join(bytes(part) for part in found)


def put(store: Path, objects: Objects) -> Path:
    for object_id, data in objects.items():
        path = store / KEYS.key(object_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return store


def audit_request(store: Path, depth: Depth = Depth.FULL) -> AuditRequest:
    return AuditRequest(DirectoryStore(store), KEYS.prefix, depth)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


PARTS: Final = {TOPIC: [values(3), values(2)], OTHER_TOPIC: [values(5)]}  # of object 4


def lying() -> bytes:
    """Return an object whose footer names another partition than was committed."""
    return an_object(4, {TOPIC: PARTS[TOPIC], UUID(int=99): PARTS[OTHER_TOPIC]})


def malformed(data: bytes) -> bytes:
    """Return the object with a footer of the same size that no reader expects."""
    footer_bytes = TRAILER.unpack(data[-TRAILER.size :])[0]
    footer = next(
        footer
        for size in range(footer_bytes)
        if len(footer := msgpack.packb([1, "c", 4, 1, 1, [["x" * size]]])) == footer_bytes
    )
    trailer = TRAILER.pack(footer_bytes, crc32c(footer), len(data), MAGIC)
    return data[: -TRAILER.size - footer_bytes] + footer + trailer


WRONG: Final[dict[str, tuple[Callable[[bytes], bytes | None], str]]] = {
    "gone": (lambda _: None, "object-exists"),
    "cut short": (lambda data: data[:-1], "object-whole"),
    "a byte of a batch": (lambda data: flipped(data, 70), "bytes-sound"),
    "a byte of the footer": (lambda data: flipped(data, len(data) - 40), "footer-agrees"),
    "a footer that is none": (malformed, "footer-agrees"),
    "another partition's": (lambda _: lying(), "footer-agrees"),
    "of another cluster": (
        lambda _: an_object(4, PARTS, cluster_id="otherclustr"),
        "footer-agrees",
    ),
    "of another object": (lambda _: an_object(7, PARTS), "footer-agrees"),
    "of another broker epoch": (lambda _: an_object(4, PARTS, epoch=2), "footer-agrees"),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("from_checkpoint", [False, True])
def test_each_fault_in_a_stored_object_breaks_its_audit_rule(
    what: str, from_checkpoint: bool, tmp_path: Path
) -> None:
    entries, objects = the_world()
    change, rule = WRONG[what]
    assert an_object(4, PARTS) == objects[4]
    changed = change(objects[4])
    broken = {number: data for number, data in objects.items() if number != 4}
    if changed is not None:
        broken[4] = changed
    store = put(tmp_path / "store", broken)
    log = tmp_path / "log"
    end = write_entries(log, entries)
    if from_checkpoint:
        written = [encode_record(record) for record in checkpoint_at(entries, end)]
        for path in log.iterdir():
            path.unlink()
        write_checkpoint(log, end, written)
        (log / f"{end:020d}.log").touch()
    report = audit_directory(log, audit_request=audit_request(store))
    if from_checkpoint and what == "of another broker epoch":  # which runs do not say
        assert not broken_rules(report), describe_findings(report)
        return
    assert set(broken_rules(report)) == {rule}, describe_findings(report)
    first = report.findings.first(rule)
    assert (first.object_id, KEYS.key(4) in first.what) == (4, True)
    assert report.findings.loses_data == (rule != "footer-agrees")
    if rule in ("object-exists", "object-whole", "bytes-sound"):
        assert "offsets 20 to" in first.what, "the message names the lost offsets"


def test_an_audit_of_undamaged_objects_finds_no_violation_at_any_depth(tmp_path: Path) -> None:
    entries, objects = the_world()
    write_entries(tmp_path / "log", entries)
    store = put(tmp_path / "store", objects)
    (store / KEYS.key(0)).unlink()  # marked: a broker may have deleted it already
    read = []
    for depth in (Depth.NONE, Depth.SAMPLE, Depth.FULL):
        report = audit_directory(tmp_path / "log", audit_request=audit_request(store, depth))
        assert not broken_rules(report), describe_findings(report)
        assert report.logs[0].objects == COUNT - 1
        read.append(report.logs[0].objects_read)
    sampled = sum(is_sampled(number) for number in range(1, COUNT - 1))
    assert read == [0, sampled + 1, COUNT - 1], "the newest is in every sample"


def test_the_audit_accepts_a_missing_object_that_was_deleted_during_the_audit(
    tmp_path: Path,
) -> None:
    """Retention marks and deletes the object right after the audit has read the log's end."""
    entries, objects = the_world()
    marked = ObjectsMarkedRecord(object_ids=(5,), marked_at_ms=1)
    end = write_entries(tmp_path / "log", [*entries, Entry(marked)]) - 1
    store = put(tmp_path / "store", {n: data for n, data in objects.items() if n not in (0, 5)})
    report = audit(
        DirectoryLogs({COORDINATOR: tmp_path / "log"}, {COORDINATOR: end}),
        LocalEngine(),
        audit_request(store),
    )
    assert broken_rules(report) == {"object-exists": 1}

    class Growing(DirectoryLogs):
        def log(self, name: str) -> CommittedFiles:
            ends = iter([end])
            files = super().log(name).files
            return CommittedFiles(files, lambda: next(ends, end + 1))

    report = audit(Growing({COORDINATOR: tmp_path / "log"}), LocalEngine(), audit_request(store))
    assert not broken_rules(report), describe_findings(report)
    assert report.logs[0].end_offset == end


def test_the_audit_reports_a_missing_object_in_a_bucket(tmp_path: Path, s3_endpoint: str) -> None:
    """Objects are read by range, and one is missing."""
    entries, objects = the_world()
    write_entries(tmp_path / "log", entries)
    config = new_bucket(s3_endpoint)
    store = open_store(f"s3://{config.bucket}", StoreOptions(config.endpoint_url, config.region))
    for number in set(objects) - {0, 11}:
        store.write(KEYS.key(number), objects[number])
    report = audit_directory(
        tmp_path / "log", audit_request=AuditRequest(store, KEYS.prefix, Depth.FULL)
    )
    store.close()
    assert broken_rules(report) == {"object-exists": 1}, describe_findings(report)
    assert report.findings.first("object-exists").object_id == 11
    assert report.logs[0].objects_read == COUNT - 2


def test_the_audit_treats_a_missing_store_as_an_error_instead_of_data_loss(tmp_path: Path) -> None:
    entries, _ = the_world()
    write_entries(tmp_path / "log", entries)
    with pytest.raises(StorageError, match="no such directory"):
        audit_directory(tmp_path / "log", audit_request=audit_request(tmp_path / "store"))


def test_the_audit_reports_a_stored_batch_of_another_length_than_committed_as_a_violation(
    tmp_path: Path,
) -> None:
    """The object and its footer are intact; the commit gives a batch one byte less."""
    entries, objects = the_world()
    life: list[Any] = list(entries)
    index = next(i for i, e in enumerate(life) if isinstance(e.value, ObjectCommitRecord))
    record: Any = life[index].value
    sizes = (record.byte_sizes[0] - 1, *record.byte_sizes[1:])
    life[index] = Entry(replace(record, byte_sizes=sizes))
    del life[next(i for i, e in enumerate(life) if isinstance(e.value, ObjectsMarkedRecord))]
    life = [e for e in life if not isinstance(e.value, LogStartOffsetsRecord)]
    write_entries(tmp_path / "log", life)
    report = audit_directory(
        tmp_path / "log", audit_request=audit_request(put(tmp_path / "store", objects))
    )
    assert set(broken_rules(report)) == {"bytes-sound"}, describe_findings(report)


@pytest.mark.parametrize(("last", "is_sound"), [(4, True), (5, False)])
def test_an_empty_batch_stands_for_deleted_records_only_in_a_run_below_the_log_start(
    last: int, is_sound: bool
) -> None:
    """The log starts at 5 when the run is written, and the run claims one record an offset."""
    batch = parse_header(
        build_value_batch([b"v"] * (last + 1), base_offset=0, leader_epoch=-1, timestamp=0)
    )
    data = bytes(empty_batch(batch).view)
    ledger = Ledger()
    ledger.places["t", 0] = [Incarnation(0, 0, [(1, 5)])]
    ledger.rewritten[9] = RewrittenObject(61, 1, 1, 2, 0)
    new = ((last, last + 1, 0, len(data), 0, 0, 0),)
    ledger.replaced["t", 0] = [Replacement(2, 9, 0, last + 1, 1, 0, -1, 0, new)]
    assert (bad_run(data, rewritten_runs(ledger), 0) is None) == is_sound
