"""A stream returns each offset once, wherever it began, whatever happens to the log meanwhile."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'esker[spark]'")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from records.metadata import FeatureLevelRecord
from spark_jobs.readers.log_files import LostRangeError
from spark_jobs.readers.spans import epoch_before
from spark_jobs.source.log_source import EskerLog
from spark_jobs.source.option_error import OptionError
from spark_jobs.source.options import parse_options
from spark_jobs.source.stream import LogStreamReader, StreamError
from tests.spark_jobs.logs import CLUSTER_ID, mark_committed, write_checkpoint, write_log

LOG = "__diskless-metadata-0"
Place = dict[str, Any]


def make_log(log_dir: Path, batches: int, *, first: int = 0, epoch: int = 1) -> None:
    """Two records a batch, two batches a segment: level n at offset n."""
    records = [
        [FeatureLevelRecord(name="f", feature_level=2 * n + i) for i in range(2)]
        for n in range(first, batches)
    ]
    directory = log_dir / LOG
    shutil.rmtree(directory, ignore_errors=True)
    write_log(directory, records, segment_batches=2, start_offset=2 * first, epoch=epoch)


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Twenty records, of which seventeen are committed: only a test commits half a batch."""
    make_log(tmp_path, 10)
    mark_committed(tmp_path, {LOG: 17})
    return tmp_path


def reader(log_dir: Path, **more: Any) -> LogStreamReader:
    """Return a reader that was pickled, as Spark moves it to every process."""
    given = {"path": str(log_dir), "log": LOG, "table": "feature_level"}
    options = given | {name: str(value) for name, value in more.items()}
    return LogStreamReader(parse_options(options))


def journaled(place: Place) -> Place:
    found = json.loads(json.dumps(place))
    assert isinstance(found, dict)
    return found


def batch(log_dir: Path, start: Place, end: Place, **more: Any) -> list[int]:
    """Return the rows of one batch, read in other processes."""
    found = []
    for partition in reader(log_dir, **more).partitions(journaled(start), journaled(end)):
        there, part = pickle.loads(pickle.dumps((reader(log_dir, **more), partition)))
        found += [row["feature_level"] for b in there.read(part) for row in b.to_pylist()]
    return found


def run(log_dir: Path, start: Place, rows: int | None = None, **more: Any) -> tuple[Place, list]:
    """Return batches until there is nothing new."""
    limit = ReadAllAvailable() if rows is None else ReadMaxRows(rows)
    batches = []
    while True:
        end = journaled(reader(log_dir, **more).latestOffset(start, limit))
        if end == start:
            return start, batches
        batches.append(batch(log_dir, start, end, **more))
        start = end


def test_a_spark_stream_reads_each_existing_and_each_new_offset_once(log_dir: Path) -> None:
    start = reader(log_dir).initialOffset()
    assert start == {
        "clusterId": CLUSTER_ID, "log": LOG, "epoch": -1, "offset": 0, "fromCheckpoint": False
    }  # fmt: skip
    start, batches = run(log_dir, start, rows=5)
    assert batches == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11, 12, 13, 14], [15, 16]]
    assert start["epoch"] == 1
    mark_committed(log_dir, {LOG: 20})
    _, batches = run(log_dir, start)
    assert batches == [[17, 18, 19]]


def test_a_repeated_micro_batch_of_a_spark_stream_has_the_same_rows(log_dir: Path) -> None:
    start = reader(log_dir).initialOffset()
    end = reader(log_dir).latestOffset(start, ReadMaxRows(7))
    first = batch(log_dir, start, end)
    mark_committed(log_dir, {LOG: 20})
    assert batch(log_dir, start, end, splitBytes=1) == first == list(range(7))


@pytest.mark.parametrize(
    ("starting", "expected"),
    [("earliest", list(range(17))), ("latest", []), ("9", list(range(9, 17))), ("17", [])],
)
def test_a_spark_stream_begins_at_its_starting_offsets_option(
    log_dir: Path, starting: str, expected: list
) -> None:
    start = reader(log_dir, startingOffsets=starting).initialOffset()
    _, batches = run(log_dir, start)
    assert [row for rows in batches for row in rows] == expected


def test_a_spark_stream_begins_with_a_checkpoint_on_request_or_if_first_records_are_deleted(
    log_dir: Path,
) -> None:
    levels = [FeatureLevelRecord(name="f", feature_level=n) for n in (100, 101)]
    with pytest.raises(OptionError, match="has no checkpoint here"):
        reader(log_dir, startingOffsets="checkpoint").initialOffset()
    write_checkpoint(log_dir / LOG, (8, 1), levels)
    write_checkpoint(log_dir / LOG, (12, 1), levels[:1])
    write_checkpoint(log_dir / LOG, (18, 1), [])  # of what this replica does not know committed

    start = reader(log_dir, startingOffsets="checkpoint").initialOffset()
    assert (start["offset"], start["fromCheckpoint"]) == (12, True)
    _, batches = run(log_dir, start)
    assert batches == [[100], [12, 13, 14, 15, 16]]

    for base in (0, 4):
        (log_dir / LOG / f"{base:020d}.log").unlink()
    start = reader(log_dir).initialOffset()
    assert (start["offset"], start["fromCheckpoint"]) == (8, True)
    (end, batches) = run(log_dir, start, rows=5)
    assert batches == [[100, 101], [8, 9, 10, 11, 12], [13, 14, 15, 16]]
    assert end["offset"] == 17

    (log_dir / LOG / "00000000000000000008-0000000001.checkpoint").unlink()
    after = {**start, "fromCheckpoint": False}
    with pytest.raises(LostRangeError, match="the checkpoint at 8 was dropped meanwhile"):
        batch(log_dir, start, after)
    assert batch(log_dir, start, after, failOnDataLoss="false") == []


def test_a_spark_stream_whose_next_offsets_were_deleted_fails_unless_fail_on_data_loss_is_off(
    log_dir: Path,
) -> None:
    start = reader(log_dir).initialOffset()
    end = reader(log_dir).latestOffset(start, ReadMaxRows(3))
    later = reader(log_dir).latestOffset(end, ReadAllAvailable())
    for base in (0, 4):
        (log_dir / LOG / f"{base:020d}.log").unlink()
    with pytest.raises(LostRangeError, match=r"from 3 on are gone.* first offset is 8"):
        batch(log_dir, end, later)
    assert batch(log_dir, end, later, failOnDataLoss="false") == list(range(8, 17))


def test_a_spark_stream_stops_if_its_log_was_replaced_by_another_log_of_the_same_name(
    log_dir: Path,
) -> None:
    start = reader(log_dir).initialOffset()
    at = journaled(reader(log_dir).latestOffset(start, ReadMaxRows(6)))
    make_log(log_dir, 10, epoch=2)  # restored from somewhere
    later = reader(log_dir).latestOffset(at, ReadAllAvailable())
    with pytest.raises(StreamError, match="a record of epoch 1, now there is one of epoch 2"):
        batch(log_dir, at, later)
    mark_committed(log_dir, {LOG: 17}, cluster_id="anotherClustersIdentity")
    for ask in (
        lambda: reader(log_dir).latestOffset(at, ReadAllAvailable()),
        lambda: reader(log_dir).partitions(at, later),
    ):
        with pytest.raises(StreamError, match="use another checkpointLocation"):
            ask()
    with pytest.raises(StreamError, match="an offset of elsewhere-0"):
        reader(log_dir).latestOffset(
            {**at, "clusterId": "anotherClustersIdentity", "log": "elsewhere-0"}, ReadAllAvailable()
        )


def test_a_spark_stream_never_moves_back_to_the_lower_high_watermark_of_a_lagging_replica(
    log_dir: Path,
) -> None:
    start, _ = run(log_dir, reader(log_dir).initialOffset())
    mark_committed(log_dir, {LOG: 9})
    assert reader(log_dir).latestOffset(start, ReadAllAvailable()) == start
    assert reader(log_dir).partitions(start, start) == []


def test_a_spark_stream_with_trigger_available_now_reads_only_records_committed_at_its_start(
    log_dir: Path,
) -> None:
    one = reader(log_dir, maxOffsetsPerTrigger=10)
    one.prepareForTriggerAvailableNow()
    mark_committed(log_dir, {LOG: 20})
    limit = one.getDefaultReadLimit()
    assert limit == ReadMaxRows(10)
    start, offsets = one.initialOffset(), []
    while (end := one.latestOffset(start, limit)) != start:
        start = end
        offsets.append(end["offset"])
    assert offsets == [10, 17]
    assert one.reportLatestOffset() == {"log": LOG, "offset": 20}
    assert reader(log_dir).getDefaultReadLimit() == ReadAllAvailable()


def test_a_spark_stream_refuses_the_options_of_batch_reads(log_dir: Path) -> None:
    with pytest.raises(OptionError, match="no startOffset or endOffset"):
        reader(log_dir, endOffset=5)
    with pytest.raises(OptionError, match="is committed up to offset 17 only"):
        reader(log_dir, startingOffsets="18").initialOffset()
    source = EskerLog({"path": str(log_dir), "table": "record"})
    with pytest.raises(OptionError, match="a stream reads one log"):
        source.streamReader(source.schema()).initialOffset()


def test_a_spark_stream_finds_the_epoch_of_the_record_before_an_offset(log_dir: Path) -> None:
    from spark_jobs.readers.logs import ReplicaLogs

    log = ReplicaLogs(log_dir).log(LOG)
    assert [epoch_before(log, offset) for offset in (0, 1, 4, 17)] == [None, 1, 1, 1]
    (log_dir / LOG / f"{0:020d}.log").unlink()
    assert [epoch_before(log, offset) for offset in (4, 5)] == [None, 1]
