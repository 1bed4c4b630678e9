"""State computed by columns equals the state that a coordinator has, record by record.

The lives are those of `tests.coordinator.batch.test_quorum_versus_memory`: leases, retries,
duplicates,
deletions, moves, restarts. At the end of each the log it left is read here, once from its beginning
and once from a checkpoint on.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis.stateful import precondition, rule

from coordinator.batch.memory import InMemoryState
from coordinator.batch.runs import MARKER, NOT_MARKED, REWRITTEN, Run, StoredObject
from coordinator.batch.transactions import Aborted, Marker, Transactional, last_stable_offset
from raft.segments.files import RealFileSystem
from raft.segments.segment import segment_name
from records.diskless import (
    DisklessPartitionsRecord,
    LeaseGrantedRecord,
    LogStartOffsetsRecord,
    ObjectCommitRecord,
    ObjectsMarkedRecord,
    ObjectsRemovedRecord,
    OrphansFoundRecord,
    ProducersExpiredRecord,
)
from records.types import Epoch, OffsetAndEpoch
from records.uuids import decode_uuid
from snapshot.writer import CheckpointWriter
from spark_jobs.readers.log_files import LogFiles
from spark_jobs.readers.logs import LogsError
from spark_jobs.tables.coordinator_log import CHANGE_KEYS, CoordinatorLog, fold
from spark_jobs.tables.log_state import LogState, StateGoneError, state_at, state_of_piece
from tests.coordinator.batch.test_quorum_versus_memory import QuorumVersusMemory
from tests.lives import live_until_seen
from tests.spark_jobs.logs import write_log
from tests.spark_jobs.plans import Cut

seen: Counter[str] = Counter()


def as_rows(state: LogState) -> dict[str, Any]:
    """Return the state in the form of the coordinator's tables."""
    logs: dict[Any, Any] = {}
    for row in state.partitions.to_pylist():
        place = decode_uuid(row["topic_id"]), row["partition"]
        logs[place] = row["log_start_offset"], row["high_watermark"]
    runs: dict[Any, list[Run]] = {}
    for row in state.runs.to_pylist():
        place = decode_uuid(row.pop("topic_id")), row.pop("partition")
        marker = Marker(*(row.pop(name) for name in MARKER_COLUMNS))
        is_marker = row["object_format"] == MARKER
        runs.setdefault(place, []).append(Run(**row, marker=marker if is_marker else None))
    objects = {
        row["object_id"]: StoredObject(
            row["size_bytes"], row["used_bytes"], row["object_format"], row["broker_id"],
            row["committed_at_ms"], -1 if row["marked_at_ms"] is None else row["marked_at_ms"],
            tuple(decode_uuid(topic_id).bytes for topic_id in row["topic_ids"]),
        )
        for row in state.objects.to_pylist()
    }  # fmt: skip
    topics = {
        decode_uuid(row["topic_id"]): (row["topic"], row["partition_count"], row["deleted_at_ms"])
        for row in state.topics.to_pylist()
    }
    transactional = {}
    for row in state.transactions.to_pylist():
        key = decode_uuid(row.pop("topic_id")), row.pop("partition"), row.pop("producer_id")
        facts = (-1 if value is None else value for value in row.values())
        transactional[key] = Transactional(*facts)
    aborted: dict[Any, list[Aborted]] = {}
    for row in state.aborted.to_pylist():
        place = decode_uuid(row.pop("topic_id")), row.pop("partition")
        aborted.setdefault(place, []).append(Aborted(**row))
    producers = {}
    for row in state.producers.to_pylist():
        kept = zip(*(row[name] for name in KEPT_COLUMNS), strict=True)
        key = decode_uuid(row["topic_id"]), row["partition"], row["producer_id"]
        facts = transactional.pop(key, None)
        producers[key] = row["producer_epoch"], row["appended_at_ms"], tuple(kept), facts
    assert not transactional, "transactions of producers that are not there"
    stable = dict(zip(logs, state.last_stable_offsets().tolist(), strict=True))
    return {
        "topics": topics, "logs": logs, "runs": runs, "objects": objects, "producers": producers,
        "aborted": aborted, "stable": stable,
    }  # fmt: skip


MARKER_COLUMNS = (
    "marker_producer_id", "marker_epoch", "marker_outcome", "marker_coordinator_epoch",
)  # fmt: skip
KEPT_COLUMNS = "base_sequences", "last_sequences", "base_offsets", "append_times"


def expected(state: InMemoryState) -> dict[str, Any]:
    places = {
        log_id: (topic_id, partition)
        for topic_id, topic in state.topics.items()
        for partition, log_id in enumerate(topic.log_ids)
        if log_id >= 0
    }
    return {
        "topics": {
            topic_id: (
                topic.name,
                sum(log_id >= 0 for log_id in topic.log_ids),
                None if topic.deleted_at_ms < 0 else topic.deleted_at_ms,
            )
            for topic_id, topic in state.topics.items()
        },
        "logs": {place: state.logs[log_id] for log_id, place in places.items()},
        "runs": {places[log_id]: runs for log_id, runs in state.runs.items()},
        "objects": {
            object_id: stored._replace(
                marked_at_ms=max(stored.marked_at_ms, NOT_MARKED), first_deletion_ms=-1
            )
            for object_id, stored in state.objects.items()
        },
        "producers": {
            (*places[log_id], producer_id): producer
            for (log_id, producer_id), producer in state.producers.items()
            if log_id in places
        },
        "aborted": {places[log_id]: entries for log_id, entries in state.aborted.items()},
        "stable": {
            place: last_stable_offset(state.logs[log_id], state.open_transactions.get(log_id))
            for log_id, place in places.items()
        },
    }


class Lives(QuorumVersusMemory):
    """Random histories of a coordinator, whose logs are compared with its state."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: tuple[int, list[bytes]] | None = None

    @precondition(lambda self: self.taken is None)
    @rule()
    def take_a_checkpoint(self) -> None:
        self.catch_up()
        if self.oracle.applied_offset:
            self.taken = self.oracle.applied_offset, self.oracle.checkpoint()

    def teardown(self) -> None:
        self.catch_up()
        with tempfile.TemporaryDirectory(prefix="esker-spark-") as name:
            self.look(Path(name))
        super().teardown()

    def look(self, directory: Path) -> None:
        log, end = self.world.log, self.oracle.applied_offset
        database = InMemoryState.load(self.world.values(), end)
        assert expected(database) == expected(self.oracle)
        (directory / segment_name(0)).write_bytes(log.read(log.start_offset, 1 << 30))
        found = as_rows(state_at(LogFiles(directory), end))
        assert found == expected(database)
        seen.update({what: len(rows) for what, rows in found.items()})
        seen["rewritten"] += sum(
            run.object_format == REWRITTEN for runs in found["runs"].values() for run in runs
        )
        seen["deleted topics"] += sum(one[2] is not None for one in found["topics"].values())
        seen["marked"] += sum(one.marked_at_ms >= 0 for one in found["objects"].values())
        seen["log starts"] += sum(log_start > 0 for log_start, _ in found["logs"].values())
        if self.taken is not None and self.taken[0] < end:
            before = InMemoryState.load(self.taken[1], self.taken[0])
            assert as_rows(state_at(LogFiles(directory), self.taken[0])) == expected(before)
            self.from_checkpoint(directory, *self.taken)
            assert as_rows(state_at(LogFiles(directory), end)) == expected(database)
            self.pieces_are_the_whole(LogFiles(directory), end)
            seen["from a checkpoint"] += 1

    def pieces_are_the_whole(self, log: LogFiles, end: int) -> None:
        """With all changes known, each piece has its own live runs and objects."""
        spans = Cut(log, end, Random(end)).spans(end)
        changes = CoordinatorLog()
        for span in spans:
            fold(span.values(), changes.handlers(CHANGE_KEYS))
        pieces = [
            state_of_piece(span, changes, is_first=not number) for number, span in enumerate(spans)
        ]
        whole = state_at(log, end)
        for name, key in (("runs", ["topic_id", "partition", "base_offset"]), ("objects", None)):
            tables = [getattr(piece, name) for piece in pieces]
            by = [(one, "ascending") for one in key or ["object_id"]]
            found = pa.concat_tables(tables).sort_by(by)
            assert found.equals(getattr(whole, name).sort_by(by).combine_chunks()), name
        seen["pieces"] += len(pieces)

    def from_checkpoint(self, directory: Path, offset: int, values: list[bytes]) -> None:
        """Compare a log that begins where the checkpoint ends, or with the batch around that."""
        whole = directory / segment_name(0)
        tail = self.world.log.read(offset, 1 << 30)
        (directory / segment_name(offset)).write_bytes(tail)
        whole.unlink()
        snapshot_id = OffsetAndEpoch(offset, Epoch(1))
        files = RealFileSystem()
        with CheckpointWriter.create(files, directory, snapshot_id, last_timestamp=0) as writer:
            writer.append_values(values)
            writer.freeze()


def test_the_state_computed_from_columns_equals_the_coordinators_state() -> None:
    wanted = (
        "logs", "runs", "objects", "marked", "log starts", "from a checkpoint", "producers",
        "topics", "deleted topics", "rewritten",
    )  # fmt: skip
    live_until_seen(Lives, seen, wanted, lives=25, steps=50)


def test_the_state_computed_from_an_empty_coordinator_log_is_empty(tmp_path: Path) -> None:
    (tmp_path / segment_name(0)).touch()
    state = state_at(LogFiles(tmp_path), 0)
    assert (state.partitions.num_rows, state.runs.num_rows, state.objects.num_rows) == (0, 0, 0)


def partitions(topic_id: Any, count: int, first: int = 0) -> DisklessPartitionsRecord:
    return DisklessPartitionsRecord(
        topic_id=topic_id, topic_name="t", first_partition=first, partition_count=count,
        first_log_id=first, controller_epoch=1,
    )  # fmt: skip


def appended(
    offset: int, sequence: int, *, producer: int = 7, epoch: int = 0
) -> ObjectCommitRecord:
    """One batch of two records."""
    return ObjectCommitRecord(
        object_id=100 + offset, object_format=1, size_bytes=50, broker_id=1, broker_epoch=1,
        lease_id=1, committed_at_ms=offset, topic_ids=(TOPIC,), topic_indexes=(0,),
        partitions=(0,), batch_counts=(1,), byte_offsets=(0,), byte_sizes=(50,),
        base_offsets=(offset,), record_counts=(2,), max_timestamps=(9,), timestamp_types=(0,),
        producer_ids=(producer,), producer_epochs=(epoch,), base_sequences=(sequence,),
        error_codes=(), duplicates=(),
    )  # fmt: skip


TOPIC = UUID(int=77)


def kept(log: LogFiles) -> list[Any]:
    state = state_at(log)
    return [
        (row["producer_id"], row["producer_epoch"], row["base_sequences"], row["base_offsets"])
        for row in state.producers.to_pylist()
    ]


def test_the_state_keeps_the_last_five_batches_of_a_producers_last_epoch(tmp_path: Path) -> None:
    """Sequences go on with 0 after the greatest.

    Source: docs/design/batch-coordinator.md#idempotence.
    """
    records = [appended(2 * i, 2 * i) for i in range(7)]
    write_log(tmp_path / "one-0", [[partitions(TOPIC, 1)], records])
    assert kept(LogFiles(tmp_path / "one-0")) == [(7, 0, [4, 6, 8, 10, 12], [4, 6, 8, 10, 12])]
    again = [*records, appended(14, 0, epoch=1), appended(16, 2, epoch=1)]
    write_log(tmp_path / "two-0", [[partitions(TOPIC, 1)], again])
    assert kept(LogFiles(tmp_path / "two-0")) == [(7, 1, [0, 2], [14, 16])]
    write_log(tmp_path / "three-0", [[partitions(TOPIC, 1)], [appended(0, 2**31 - 1)]])
    state = state_at(LogFiles(tmp_path / "three-0"))
    assert state.producers.column("last_sequences").to_pylist() == [[0]]


def test_the_state_computed_from_a_log_has_no_batches_from_before_a_producers_expiry(
    tmp_path: Path,
) -> None:
    forgotten = ProducersExpiredRecord(log_ids=(0,), producer_ids=(7,))
    before = [[partitions(TOPIC, 1)], [appended(0, 0), appended(2, 0, producer=8)], [forgotten]]
    write_log(tmp_path / "gone-0", before)
    assert kept(LogFiles(tmp_path / "gone-0")) == [(8, 0, [0], [2])]
    write_log(tmp_path / "back-0", [*before, [appended(4, 0)]])
    assert kept(LogFiles(tmp_path / "back-0")) == [(7, 0, [0], [4]), (8, 0, [0], [2])]


def test_the_state_of_a_topic_with_many_partitions_is_complete_after_a_checkpoint_load(
    tmp_path: Path,
) -> None:
    """A checkpoint cuts it into records of a thousand."""
    state = InMemoryState()
    state.apply(0, partitions(TOPIC, 2_500))
    offset = OffsetAndEpoch(1, Epoch(1))
    with CheckpointWriter.create(RealFileSystem(), tmp_path, offset, last_timestamp=0) as writer:
        writer.append_values(state.checkpoint())
        writer.freeze()
    (tmp_path / segment_name(1)).touch()
    found = state_at(LogFiles(tmp_path), 1)
    assert (found.partitions.num_rows, found.partitions["log_id"][2_499].as_py()) == (2_500, 2_499)


def test_the_state_computed_at_a_timestamp_ends_before_the_first_later_record(
    tmp_path: Path,
) -> None:
    batches = [[partitions(TOPIC, 1)], *([appended(2 * i, 2 * i)] for i in range(4))]
    write_log(tmp_path / "log-0", batches)  # a second apart from 1,000 on
    log = LogFiles(tmp_path / "log-0")
    for timestamp_ms, offset in ((1_003, 4), (1_002, 3), (999, 0), (9_999, 5)):
        found = state_at(log, timestamp_ms=timestamp_ms)
        assert (found.offset, found.runs.num_rows) == (offset, max(0, offset - 1))
        assert found.runs.equals(state_at(log, offset).runs)


def test_the_error_for_a_state_at_a_deleted_offset_names_the_earliest_available_offset(
    tmp_path: Path,
) -> None:
    state = InMemoryState()
    for offset, record in enumerate((partitions(TOPIC, 1), partitions(TOPIC, 1, first=1))):
        state.apply(offset, record)
    directory = tmp_path / "log-0"
    write_log(directory, [[partitions(TOPIC, 1, first=2)]], start_offset=2)
    snapshot_id = OffsetAndEpoch(2, Epoch(1))
    files = RealFileSystem()
    with CheckpointWriter.create(files, directory, snapshot_id, last_timestamp=500) as writer:
        writer.append_values(state.checkpoint())
        writer.freeze()
    log = LogFiles(directory)
    assert (state_at(log).partitions.num_rows, state_at(log, 2).partitions.num_rows) == (3, 2)
    with pytest.raises(StateGoneError, match=r"offset 1 .* at offset 2"):
        state_at(log, 1)
    with pytest.raises(StateGoneError, match=r"time 499 .* at offset 2"):
        state_at(log, timestamp_ms=499)
    assert state_at(log, timestamp_ms=500).offset == 2
    with pytest.raises(LogsError, match="no offset 4: the committed part ends at 3"):
        state_at(log, 4)


def test_an_orphan_from_a_listing_is_an_object_of_the_state_until_it_is_removed(
    tmp_path: Path,
) -> None:
    records = [
        OrphansFoundRecord(object_ids=(5, 7), marked_at_ms=10),
        OrphansFoundRecord(object_ids=(5,), marked_at_ms=20),
        ObjectsRemovedRecord(object_ids=(5,)),
        OrphansFoundRecord(object_ids=(5, 6), marked_at_ms=30),
    ]
    state = InMemoryState()
    for offset, record in enumerate(records):
        state.apply(offset, record)
    write_log(tmp_path / "log-0", [records])
    found = as_rows(state_at(LogFiles(tmp_path / "log-0")))
    assert found["objects"] == expected(state)["objects"]
    assert {one: stored.marked_at_ms for one, stored in state.objects.items()} == {
        5: 30, 6: 30, 7: 10,
    }  # fmt: skip


def test_the_state_computed_from_a_log_lacks_objects_that_were_removed_after_its_checkpoint(
    tmp_path: Path,
) -> None:
    state = InMemoryState()
    lease = LeaseGrantedRecord(
        lease_id=1, broker_id=1, broker_epoch=1, first_object_id=100, object_count=10,
        granted_at_ms=0, closed_lease_ids=(),
    )  # fmt: skip
    for offset, record in enumerate((partitions(TOPIC, 1), lease, appended(0, 0))):
        state.apply(offset, record)
    tail = [
        LogStartOffsetsRecord(
            topic_ids=(TOPIC,), topic_indexes=(0,), partitions=(0,), log_start_offsets=(2,),
            reason=1,
        ),
        ObjectsMarkedRecord(object_ids=(100,), marked_at_ms=5),
        ObjectsRemovedRecord(object_ids=(100,)),
        appended(2, 2),
    ]  # fmt: skip
    write_log(tmp_path / "log-0", [tail], start_offset=3)
    offset, files = OffsetAndEpoch(3, Epoch(1)), RealFileSystem()
    with CheckpointWriter.create(files, tmp_path / "log-0", offset, last_timestamp=0) as writer:
        writer.append_values(state.checkpoint())
        writer.freeze()
    for number, record in enumerate(tail):
        state.apply(3 + number, record)
    assert as_rows(state_at(LogFiles(tmp_path / "log-0"))) == expected(state)
