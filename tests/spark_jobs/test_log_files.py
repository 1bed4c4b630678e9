"""Every committed record is read once, in whatever files; lost ranges are errors."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raft.segments.files import RealFileSystem
from raft.segments.segment import segment_name
from records.batch_writer import build_value_batch
from records.frame import encode_record
from records.key_value import KeyValueState
from records.metadata import FeatureLevelRecord, NoOpRecord
from records.schema import MetadataRecord
from records.types import Epoch, Offset, OffsetAndEpoch
from snapshot.errors import DamagedFileError
from snapshot.writer import CheckpointWriter
from spark_jobs.readers.log_files import LogFiles, LostRangeError, read_values
from spark_jobs.tables.arrow_batches import read_table
from tests.spark_jobs.logs import write_log

FILES = RealFileSystem()


def feature(level: int) -> FeatureLevelRecord:
    return FeatureLevelRecord(name="f", feature_level=level)


def batches(count: int, per_batch: int = 3) -> Iterator[list[MetadataRecord]]:
    for number in range(count):
        yield [feature(number * per_batch + i) for i in range(per_batch)]


def offsets(log: LogFiles, end_offset: int, **options: Any) -> list[int]:
    return [
        place.offset for span in log.spans(end_offset, **options) for place, _ in read_values(span)
    ]


@pytest.fixture
def log(tmp_path: Path) -> LogFiles:
    """30 records in batches of three and segments of two batches."""
    write_log(tmp_path / "log-0", batches(10), segment_batches=2)
    return LogFiles(tmp_path / "log-0")


def test_the_spark_log_reader_reads_all_segments_in_offset_order(log: LogFiles) -> None:
    assert log.segments() == [0, 6, 12, 18, 24]
    assert offsets(log, 30) == list(range(30))


@pytest.mark.parametrize("end_offset", [0, 1, 5, 6, 7, 29, 30])
def test_the_spark_log_reader_reads_no_record_at_or_above_the_requested_end_offset(
    log: LogFiles, end_offset: int
) -> None:
    assert offsets(log, end_offset) == list(range(end_offset))


@pytest.mark.parametrize("start_offset", [0, 1, 5, 6, 13, 29, 30])
def test_the_spark_log_reader_can_begin_at_any_offset(log: LogFiles, start_offset: int) -> None:
    assert offsets(log, 30, start_offset=start_offset) == list(range(start_offset, 30))


def test_the_spark_log_reader_splits_a_large_segment_into_adjacent_offset_ranges(
    tmp_path: Path,
) -> None:
    end_offset = write_log(tmp_path / "log-0", batches(500), index_interval_bytes=256)
    log = LogFiles(tmp_path / "log-0")
    spans = log.spans(end_offset, split_bytes=4_000)
    assert len(spans) > 5
    assert offsets(log, end_offset, split_bytes=4_000) == list(range(end_offset))
    assert offsets(log, 700, start_offset=400, split_bytes=1_000) == list(range(400, 700))


def test_a_pickled_offset_range_of_a_log_can_be_read_in_another_process(log: LogFiles) -> None:
    span = pickle.loads(pickle.dumps(log.spans(6)[0]))
    assert [place.offset for place, _ in read_values(span)] == list(range(6))


def test_the_spark_log_reader_does_not_read_a_batch_that_is_still_being_written(
    log: LogFiles,
) -> None:
    active = log.directory / segment_name(24)
    with active.open("ab") as file:
        file.write(build_value_batch(
            [encode_record(NoOpRecord())], base_offset=30, leader_epoch=1, timestamp=1
        )[:40])  # fmt: skip
    assert offsets(log, 30) == list(range(30))


def test_the_spark_log_reader_raises_an_error_for_damage_below_the_requested_end(
    log: LogFiles,
) -> None:
    path = log.directory / segment_name(6)
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedFileError, match=path.name):
        offsets(log, 30)
    assert offsets(log, 6) == list(range(6)), "and below it, none"


def test_reading_a_log_without_its_first_records_and_without_a_checkpoint_raises_an_error(
    log: LogFiles,
) -> None:
    (log.directory / segment_name(0)).unlink()
    with pytest.raises(LostRangeError, match=r"from 3 on are gone.*first offset is 6"):
        log.spans(30, start_offset=3)
    with pytest.raises(LostRangeError, match="no checkpoint"):
        log.spans(30)
    assert offsets(log, 30, start_offset=6) == list(range(6, 30))


def test_a_segment_deleted_between_planning_and_reading_a_span_raises_a_lost_range_error(
    log: LogFiles,
) -> None:
    spans = log.spans(30)
    (log.directory / segment_name(0)).unlink()
    with pytest.raises(LostRangeError, match="deleted meanwhile"):
        list(read_values(spans[0]))


def test_a_log_directory_that_a_worker_lacks_is_not_taken_for_deleted_offsets(
    log: LogFiles,
) -> None:
    spans = log.spans(30)
    log.directory.rename(log.directory.with_name("elsewhere"))
    with pytest.raises(FileNotFoundError, match="each Spark worker needs the log directory"):
        list(read_values(spans[0]))


def checkpoint(directory: Path, end_offset: int, key: bytes) -> None:
    snapshot_id = OffsetAndEpoch(Offset(end_offset), Epoch(1))
    with CheckpointWriter.create(FILES, directory, snapshot_id, last_timestamp=900) as writer:
        writer.append(KeyValueState(key=key, value=b"v"))
        writer.freeze()


def test_the_spark_log_reader_reads_a_log_without_its_first_records_from_a_checkpoint(
    log: LogFiles,
) -> None:
    (log.directory / segment_name(0)).unlink()
    checkpoint(log.directory, 12, b"old")
    checkpoint(log.directory, 18, b"new")
    first, *rest = log.spans(30)
    assert first.is_checkpoint
    assert first.end_offset == 12, "the one that has swallowed least"
    assert [place.offset for span in rest for place, _ in read_values(span)] == list(range(12, 30))
    (batch,) = read_table("key_value_state", first)
    (row,) = batch.to_pylist()
    assert (row["from_checkpoint"], row["log_offset"], row["key"]) == (True, 11, b"old")


def test_spark_reads_a_log_that_begins_at_offset_0_without_a_checkpoint(log: LogFiles) -> None:
    checkpoint(log.directory, 12, b"old")
    assert not any(span.is_checkpoint for span in log.spans(30))


def test_reading_a_log_from_a_checkpoint_requires_a_checkpoint_below_the_end_offset(
    log: LogFiles,
) -> None:
    (log.directory / segment_name(0)).unlink()
    (log.directory / segment_name(6)).unlink()
    checkpoint(log.directory, 12, b"old")
    with pytest.raises(LostRangeError, match="no checkpoint before it"):
        log.spans(11)
    assert log.spans(12)[0].end_offset == 12


def test_a_spark_table_contains_only_records_of_its_own_type(tmp_path: Path) -> None:
    mixed: list[list[MetadataRecord]] = [[feature(1), NoOpRecord()], [feature(2)]]
    write_log(tmp_path / "log-0", mixed)
    spans = LogFiles(tmp_path / "log-0").spans(3)
    rows = [
        row for span in spans for b in read_table("feature_level", span) for row in b.to_pylist()
    ]
    assert [(row["log_offset"], row["feature_level"]) for row in rows] == [(0, 1), (2, 2)]
    assert [row["log_timestamp_ms"] for row in rows] == [1_000, 1_001]


def test_the_spark_log_reader_reads_a_large_table_in_several_arrow_batches(log: LogFiles) -> None:
    sizes = [
        batch.num_rows
        for span in log.spans(6)
        for batch in read_table("feature_level", span, batch_rows=4)
    ]
    assert sizes == [4, 2]


@pytest.mark.parametrize(("lowest", "highest"), [(0, 29), (5, 5), (7, 12), (30, 40), (12, 3)])
def test_a_spark_task_reads_only_the_offsets_of_its_filtered_range(
    log: LogFiles, lowest: int, highest: int
) -> None:
    spans = [span.within(lowest, highest) for span in log.spans(30)]
    found = [place.offset for span in spans if span for place, _ in read_values(span)]
    assert found == [offset for offset in range(30) if lowest <= offset <= highest]


def test_a_lost_range_error_survives_pickling_with_its_offsets() -> None:
    error = LostRangeError("log-0", 5, 9, "it was cut")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.wanted, again.earliest) == (str(error), 5, 9)
