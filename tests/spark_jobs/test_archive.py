"""Tests that an archive returns the archived log byte for byte, and reports what it lost.

Source: docs/design/pipeline.md#the-archive; invariant 2 (docs/design/invariants.md).
"""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import tempfile
from functools import partial
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from records.batch import iter_batches
from records.batch_writer import build_value_batch
from records.errors import RecordError
from records.frame import decode_record, encode_record
from spark_jobs.archive.check import check_archive
from spark_jobs.archive.engines import LocalArchiveEngine
from spark_jobs.archive.job import archive, open_archive, require_shared_store
from spark_jobs.archive.range_writer import write_range
from spark_jobs.readers.archive_layout import (
    ABOUT_KEY,
    AVRO,
    CHECKPOINT,
    PARQUET,
    About,
    ArchiveError,
    Range,
)
from spark_jobs.readers.archived_logs import ArchivedLogs, list_ranges, read_manifest
from spark_jobs.readers.avro_files import AvroWriter, read_avro
from spark_jobs.readers.envelope import SCHEMA, batches_of, rows_of
from spark_jobs.readers.log_files import LostRangeError
from spark_jobs.readers.object_store import ObjectStore, open_store
from spark_jobs.tables.arrow_batches import read_table
from spark_jobs.tables.schemas import RECORD, RECORD_OF, schema_of
from tests.examples import seeds
from tests.records.strategies import CASES, messages
from tests.spark_jobs.archive_world import (
    CLUSTER_ID,
    LOG,
    RANGE_BYTES,
    DyingStore,
    FileLogs,
    KilledError,
    logs,
    odd_batches,
    one_pass,
    raw,
    store,
    values,
)

__all__ = ["logs", "store"]  # fixtures


# --- what comes back ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", seeds(8))
def test_a_batch_rebuilt_from_archived_rows_equals_the_original_byte_for_byte(seed: int) -> None:
    """Batches are compressed, keyed, transactional or control, with headers and odd frames."""
    data = b"".join(odd_batches(seed, 80))
    batches = list(iter_batches(data))
    writer = AvroWriter(SCHEMA, {"of": "a test"})
    carried_whole = 0
    for batch in batches:
        rows = rows_of(batch)
        assert [row["offset"] for row in rows] == list(
            range(batch.header.base_offset, batch.header.end_offset)
        )
        carried_whole += len(rows[0]["batch"] or b"") > 61
        writer.write(rows)
    again = list(batches_of(read_avro(writer.finish())))
    assert [bytes(batch.view) for batch in again] == [bytes(batch.view) for batch in batches]
    assert 0 < carried_whole < len(batches)


def test_an_archive_contains_the_log_byte_for_byte(logs: FileLogs, store: ObjectStore) -> None:
    done = one_pass(logs, store)
    assert done.end_offset == logs.end_offset
    assert done.ranges > 5
    assert raw(store) == logs.raw()
    archived = ArchivedLogs(store)
    assert (archived.cluster_id, archived.names()) == (CLUSTER_ID, [LOG])
    assert archived.log(LOG).end_offset() == logs.end_offset
    assert values(archived.log(LOG), logs.end_offset) == values(logs.log(LOG), logs.end_offset)


def test_records_read_from_an_archive_equal_the_logs_records(
    tmp_path: Path, store: ObjectStore
) -> None:
    """Reading starts and ends at any offset; tasks are pickled together with their store."""
    logs = FileLogs(tmp_path / "node")
    logs.append(odd_batches(seed=5, count=60, framed=True))
    one_pass(logs, store)
    archived = ArchivedLogs(store).log(LOG)
    for start, end in [(None, logs.end_offset), (0, 40), (17, 90), (101, 102)]:
        rows = []
        for spans in (
            logs.log(LOG).spans(end, start_offset=start),
            pickle.loads(pickle.dumps(archived.spans(end, start_offset=start))),
        ):
            batches = [one for span in spans for one in read_table(RECORD, span)]
            rows.append([row for batch in batches for row in batch.to_pylist()])
        assert rows[0] == rows[1]
        assert 0 < len(rows[0]) <= end


def test_reading_an_offset_range_of_an_archive_opens_only_files_with_offsets_of_the_range(
    logs: FileLogs, store: ObjectStore
) -> None:
    one_pass(logs, store)
    (span,) = ArchivedLogs(store).log(LOG).spans(logs.end_offset)
    part = span.within(50, 60)
    assert part is not None
    assert [place.offset for place, _ in part.values()] == [
        place.offset for place, _ in span.values() if 50 <= place.offset <= 60
    ]
    assert len(part.ranges) < len(span.ranges)
    assert span.within(logs.end_offset, logs.end_offset + 5) is None


def test_an_archive_plans_one_span_for_small_files_and_separate_spans_for_large_files(
    logs: FileLogs, store: ObjectStore
) -> None:
    done = one_pass(logs, store)
    log = ArchivedLogs(store).log(LOG)
    assert len(log.spans(logs.end_offset)) == 1
    apart = log.spans(logs.end_offset, split_bytes=1)
    assert len(apart) == done.ranges
    assert all(one.end_offset == two.start_offset for one, two in pairwise(apart))


def test_processes_with_different_hash_seeds_write_the_same_avro_bytes() -> None:
    """Each process has its own hash seed, and so its own order of sets."""
    program = (
        "from spark_jobs.readers.avro_files import AvroWriter; import hashlib;"
        "from spark_jobs.archive.avro_schemas import avro_schemas;"
        "print(hashlib.sha256(b''.join(AvroWriter(one, {'a': 'b', 'c': 'd'}).finish()"
        " for one in avro_schemas().values())).hexdigest())"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2)
    }
    assert len(said) == 1


# --- pass after pass ------------------------------------------------------------------------------


def test_a_second_archive_pass_writes_only_new_records_and_a_third_writes_no_file(
    logs: FileLogs, store: ObjectStore
) -> None:
    first = one_pass(logs, store)
    assert one_pass(logs, store).records == 0
    logs.append(odd_batches(6, 5, first_offset=logs.end_offset, epoch=2))
    second = one_pass(logs, store)
    assert (second.start_offset, second.end_offset) == (first.end_offset, logs.end_offset)
    assert raw(store) == logs.raw()
    assert not check_archive(store, engine=LocalArchiveEngine()).faults


def test_an_archive_pass_does_not_read_uncommitted_records(
    logs: FileLogs, store: ObjectStore
) -> None:
    whole, logs.end_offset = logs.end_offset, 60
    assert one_pass(logs, store).end_offset == 60
    logs.end_offset = whole
    one_pass(logs, store)
    assert raw(store) == logs.raw()


def test_an_archive_pass_from_a_lagging_replica_adds_no_record_above_its_committed_end(
    logs: FileLogs, store: ObjectStore
) -> None:
    """It does not finish a plan beyond its committed offsets either."""
    whole = logs.end_offset
    dying = DyingStore(store, 4, after=True)  # archive.json, the plan, two files
    with pytest.raises(KilledError):
        one_pass(logs, dying)  # type: ignore[arg-type]
    logs.end_offset = 30
    assert one_pass(logs, store).end_offset <= 30
    logs.end_offset = whole
    assert one_pass(logs, store).end_offset == whole
    assert raw(store) == logs.raw()


@pytest.mark.parametrize("after", [False, True])
def test_an_archive_job_killed_at_any_write_neither_loses_nor_repeats_records(
    tmp_path: Path, *, after: bool
) -> None:
    """The log grows meanwhile, so a new plan would have other ranges. The data directory holds
    exactly the files that manifests name, so that readers by pattern see each record once.
    """
    batches = odd_batches(seed=5, count=20)
    died = 0
    for writes in range(1_000):
        directory = tmp_path / f"archive-{after}-{writes}"
        directory.mkdir()
        store = open_store(str(directory))
        grown = FileLogs(tmp_path / f"node-{after}-{writes}")
        grown.append(batches[:17])
        try:
            one_pass(grown, DyingStore(store, writes, after=after))  # type: ignore[arg-type]
        except KilledError:
            died += 1
        grown.append(batches[17:])
        done = one_pass(grown, store)
        assert done.end_offset == grown.end_offset
        assert raw(store) == grown.raw(), f"killed at write {writes}"
        found = check_archive(store, engine=LocalArchiveEngine())
        assert not found.faults, f"killed at write {writes}"
        assert not found.strangers, f"killed at write {writes}"
        if writes > died:
            break
    assert died > 10


def test_concurrent_archive_jobs_write_the_same_files(logs: FileLogs, store: ObjectStore) -> None:
    """The first job writes the plan, and the other one follows it."""
    other = FileLogs(logs.directory, logs.end_offset)
    about = open_archive(store, CLUSTER_ID)

    class Interrupted(LocalArchiveEngine):
        """Runs a whole pass of the other job between any two ranges."""

        def run(self, work, items):  # type: ignore[no-untyped-def]
            for item in items:
                archive(other, store, about=about, engine=LocalArchiveEngine(), range_bytes=700)
                yield work(item)

    archive(logs, store, about=about, engine=Interrupted(), range_bytes=RANGE_BYTES)
    assert raw(store) == logs.raw()
    found = check_archive(store, engine=LocalArchiveEngine())
    assert (found.faults, found.strangers) == ([], [])


def test_no_range_counts_as_archived_if_a_worker_wrote_its_files_where_the_driver_cannot_see_them(
    logs: FileLogs, store: ObjectStore, tmp_path: Path
) -> None:
    own = open_store(str(tmp_path / "worker"))

    class Elsewhere(LocalArchiveEngine):
        """Writes the files of each range into a directory of the worker's own."""

        def run(self, work, items):  # type: ignore[no-untyped-def]
            assert work.func is write_range
            return super().run(partial(write_range, own), items)

    about = open_archive(store, CLUSTER_ID)
    with pytest.raises(ArchiveError, match="that all Spark workers share"):
        archive(logs, store, about=about, engine=Elsewhere(), range_bytes=RANGE_BYTES)
    assert not list_ranges(store)
    archive(logs, store, about=about, engine=LocalArchiveEngine(), range_bytes=RANGE_BYTES)
    assert raw(store) == logs.raw()


@pytest.mark.parametrize("other", [None, About("another cluster", UUID(int=1), AVRO)])
def test_an_archive_is_refused_if_a_worker_does_not_see_it(
    store: ObjectStore, tmp_path: Path, other: About | None
) -> None:
    own = open_store(str(tmp_path / "worker"))
    if other is not None:
        own.write_new(ABOUT_KEY, other.to_json())

    class Elsewhere(LocalArchiveEngine):
        """Reads a directory of the worker's own."""

        def run(self, work, items):  # type: ignore[no-untyped-def]
            return super().run(work, [own for _ in items])

    about = open_archive(store, CLUSTER_ID)
    require_shared_store(store, about, LocalArchiveEngine())
    with pytest.raises(ArchiveError, match="that all Spark workers share"):
        require_shared_store(store, about, Elsewhere())


# --- a head that was cut --------------------------------------------------------------------------


@pytest.fixture
def cut(tmp_path: Path) -> tuple[FileLogs, bytes]:
    """Return a log that begins at 100 with a checkpoint, and the checkpoint's bytes."""
    logs = FileLogs(tmp_path / "node")
    logs.append(odd_batches(7, 25))
    while logs.end_offset < 100:
        logs.append(odd_batches(8, 1, first_offset=logs.end_offset))
    at = logs.end_offset
    logs.append(odd_batches(9, 20, first_offset=at, epoch=3), roll=True)
    snapshot_id = logs.checkpoint(at, 2, ["x", "y"])
    return logs, (
        logs.directory / LOG / f"{at:020d}-{snapshot_id.epoch:010d}.checkpoint"
    ).read_bytes()


def test_the_archive_of_a_log_without_its_first_records_begins_with_a_checkpoint(
    cut: tuple[FileLogs, bytes], store: ObjectStore
) -> None:
    logs, checkpoint = cut
    logs.cut_to(100)
    done = one_pass(logs, store)
    assert done.lost == []  # it never had what was before
    assert raw(store) == checkpoint + logs.raw()
    assert values(ArchivedLogs(store).log(LOG), logs.end_offset) == values(
        logs.log(LOG), logs.end_offset
    )
    with pytest.raises(LostRangeError) as lost:
        ArchivedLogs(store).log(LOG).spans(50)
    assert lost.value.earliest == 100
    assert not check_archive(store, engine=LocalArchiveEngine()).faults


def test_an_archive_pass_reports_lost_offsets_and_continues_from_a_checkpoint(
    cut: tuple[FileLogs, bytes], store: ObjectStore
) -> None:
    logs, checkpoint = cut
    before = logs.raw()
    ends = [batch.header.end_offset for batch in iter_batches(before)]
    whole, logs.end_offset = logs.end_offset, max(end for end in ends if end <= 60)
    archived = one_pass(logs, store).end_offset
    logs.end_offset = whole
    logs.cut_to(100)
    done = one_pass(logs, store)
    assert done.lost == [(archived, 100)]
    manifest = read_manifest(store, Range(LOG, archived, 100, CHECKPOINT))
    assert json.loads(manifest.to_json())["lost_offsets"] == [archived, 100]

    log = ArchivedLogs(store).log(LOG)
    assert raw(store) == checkpoint + logs.raw()
    early = b"".join(bytes(one.view) for span in log.spans(archived) for one in span.batches())
    assert before.startswith(early)
    assert len(early) > 1_000
    for end, start in [(archived + 1, None), (99, None), (101, 0), (100, archived)]:
        with pytest.raises(LostRangeError):
            log.spans(end, start_offset=start)
    assert [span.is_checkpoint for span in log.spans(100)] == [True]
    assert not log.spans(whole, start_offset=100)[0].is_checkpoint
    found = check_archive(store, engine=LocalArchiveEngine())
    assert [(one.start_offset, one.end_offset) for one in found.lost] == [(archived, 100)]
    assert found.faults == []


def test_the_archive_job_plans_again_if_the_logs_first_records_are_deleted_before_reading(
    cut: tuple[FileLogs, bytes], store: ObjectStore
) -> None:
    logs, checkpoint = cut
    about = open_archive(store, CLUSTER_ID)

    class Late(LocalArchiveEngine):
        """Deletes the segments after two ranges."""

        def run(self, work, items):  # type: ignore[no-untyped-def]
            for number, item in enumerate(items):
                if number == 2:
                    logs.cut_to(100)
                yield work(item)

    (done,) = archive(logs, store, about=about, engine=Late(), range_bytes=RANGE_BYTES)
    assert [end for _, end in done.lost] == [100]
    assert done.end_offset == logs.end_offset
    assert raw(store) == checkpoint + logs.raw()
    assert not check_archive(store, engine=LocalArchiveEngine()).faults


def test_archiving_fails_if_the_log_start_is_cut_and_no_checkpoint_exists(
    cut: tuple[FileLogs, bytes], store: ObjectStore
) -> None:
    logs, _ = cut
    logs.cut_to(100)
    for path in (logs.directory / LOG).glob("*.checkpoint"):
        path.unlink()
    with pytest.raises(LostRangeError, match="no checkpoint"):
        one_pass(logs, store)


# --- what this code does not know -----------------------------------------------------------------


@pytest.mark.parametrize("tables", [AVRO, PARQUET])
def test_the_archive_counts_undecodable_records_and_stores_their_bytes(
    logs: FileLogs, store: ObjectStore, tables: str
) -> None:
    done = one_pass(logs, store, tables)
    good = {"topic": [], "feature_level": []}  # type: dict[str, list[int]]
    bad = 0
    for place, value in values(logs.log(LOG), logs.end_offset):
        try:
            name = type(decode_record(value)).__name__
        except RecordError:
            bad += 1
            continue
        table = {"TopicRecord": "topic", "FeatureLevelRecord": "feature_level"}.get(name)
        if table is not None:
            good[table].append(place.offset)  # type: ignore[attr-defined]
    assert sum(one.kept_as_bytes for one in done.kept_as_bytes) == bad > 5
    assert {one.type for one in done.kept_as_bytes} >= {9_999, 2, -1}
    for table, offsets in good.items():
        rows = table_rows(store, table, tables)
        assert [row["log_offset"] for row in rows] == offsets
        assert set(rows[0]) == set(schema_of(table).names)


def table_rows(store: ObjectStore, table: str, suffix: str) -> list[dict[str, object]]:
    """Return a table's rows from all its files, by file name."""
    rows = []
    for found in store.list(f"data/{LOG}/{table}/"):
        assert found.key.endswith(f".{suffix}")
        data = store.read(found.key, 0, found.size_bytes)
        rows += read_avro(data) if suffix == AVRO else pq.read_table(io.BytesIO(data)).to_pylist()
    return rows


RECORDS = [case for case in CASES if case[0] in RECORD_OF.values()]


@given(data=st.data())
@settings(  # an example has every type; a smaller one would not be found in minutes
    max_examples=2, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate)
)
def test_archived_tables_of_every_record_version_equal_the_data_sources_tables(
    data: st.DataObject,
) -> None:
    """Records have nested structures, arrays of two, null and absent fields, and unknown tags."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        values = [
            encode_record(data.draw(messages(cls, version)), version) for cls, version in RECORDS
        ]
        logs = FileLogs(directory / "node")
        logs.append([build_value_batch(values, base_offset=0, leader_epoch=1, timestamp=5)])
        (directory / "archive").mkdir()
        store = open_store(str(directory / "archive"))
        done = one_pass(logs, store)
        kept = {one.type for one in done.kept_as_bytes}
        for table, record in RECORD_OF.items():
            try:
                spans = logs.log(LOG).spans(logs.end_offset)
                batches = [one for span in spans for one in read_table(table, span)]
            except RecordError:  # columns of a commit that are not equally long
                assert record.schema().key in kept
                continue
            rows = [row for batch in batches for row in batch.to_pylist()]
            assert table_rows(store, table, AVRO) == rows


def test_archived_parquet_tables_equal_archived_avro_tables(tmp_path: Path, logs: FileLogs) -> None:
    rows = []
    for suffix in (AVRO, PARQUET):
        (tmp_path / suffix).mkdir()
        store = open_store(str(tmp_path / suffix))
        one_pass(logs, store, suffix)
        rows.append(table_rows(store, "topic", suffix))
        assert not check_archive(store, engine=LocalArchiveEngine()).faults
    assert rows[0] == rows[1]
    assert len(rows[0]) > 20
