"""Each offset is written once, whenever a stream crashes and however often it runs a batch."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'esker[spark]'")

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from spark_jobs.source import sink
from spark_jobs.source.sink import OffsetFiles, OffsetFileWriter, SinkError, Written


class Killed(BaseException):
    """Stands for a crash."""


def rows(first: int, end: int) -> list[pa.RecordBatch]:
    """Return batches as tasks get them."""
    whole = pa.RecordBatch.from_pydict({"log_offset": list(range(first, end))})
    return [whole.slice(0, 3), whole.slice(3), whole.slice(0, 0)]


def run(directory: Path, batch: int, *ranges: tuple[int, int]) -> None:
    """Run a batch of several tasks, as Spark does."""
    writer = OffsetFileWriter(directory)
    messages = [pickle.loads(pickle.dumps(writer)).write(iter(rows(*one))) for one in ranges]
    writer.commit(pickle.loads(pickle.dumps([*messages, None])), batch)


def offsets(directory: Path) -> list[int]:
    """Return the offsets in the listed files."""
    return [
        value
        for path in sorted(directory.glob("*.parquet"))
        for value in pq.read_table(path)["log_offset"].to_pylist()
    ]


def test_the_spark_sink_names_files_by_their_first_and_last_offsets(tmp_path: Path) -> None:
    run(tmp_path, 0, (0, 5), (5, 9))
    run(tmp_path, 1)
    run(tmp_path, 2, (12, 20))
    assert [path.name for path in sorted(tmp_path.glob("*.parquet"))] == [
        "00000000000000000000-00000000000000000005.parquet",
        "00000000000000000005-00000000000000000009.parquet",
        "00000000000000000012-00000000000000000020.parquet",
    ]
    assert offsets(tmp_path) == [*range(9), *range(12, 20)]
    assert not list((tmp_path / "_parts").iterdir())


def test_a_repeated_micro_batch_does_not_change_the_files_of_the_spark_sink(
    tmp_path: Path,
) -> None:
    run(tmp_path, 0, (0, 5), (5, 9))
    before = {path: path.stat().st_ino for path in tmp_path.glob("*.parquet")}
    run(tmp_path, 0, (0, 2), (2, 9))  # cut up otherwise
    assert {path: path.stat().st_ino for path in tmp_path.glob("*.parquet")} == before
    assert not list((tmp_path / "_parts").iterdir())


def test_the_spark_sink_writes_each_offset_once_despite_a_crash_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each rename and each flush of a commit, in turn."""
    rename, flush = sink._rename, sink._make_durable
    moments = 0
    for moment in range(1_000):
        directory = tmp_path / str(moment)
        run(directory, 0, (0, 4))
        left = moment

        def step() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed

        def renamed(source: Path, target: Path) -> None:
            step()
            rename(source, target)

        def flushed(path: Path) -> None:
            step()
            flush(path)

        monkeypatch.setattr(sink, "_rename", renamed)
        monkeypatch.setattr(sink, "_make_durable", flushed)
        try:
            run(directory, 1, (4, 8), (8, 9))
            died = False
        except Killed:
            died = True
        monkeypatch.setattr(sink, "_rename", rename)
        monkeypatch.setattr(sink, "_make_durable", flush)
        run(directory, 1, (4, 6), (6, 9))  # Spark runs it again, if it does not know better
        run(directory, 2, (9, 12))
        assert offsets(directory) == list(range(12)), f"died at moment {moment}"
        moments = moment
        if not died:
            break
    assert moments > 10


def test_the_spark_sink_refuses_a_new_stream_in_the_directory_of_another_stream(
    tmp_path: Path,
) -> None:
    run(tmp_path, 0, (0, 5))
    run(tmp_path, 1, (5, 9))
    for batch, range_, said in (
        (0, (0, 9), "another stream's"),
        (0, (9, 12), "another stream's"),
        (3, (9, 12), "goes up to batch 1"),
        (2, (8, 12), "offsets up to 9 are written"),
    ):
        with pytest.raises(SinkError, match=said):
            run(tmp_path, batch, range_)
    assert offsets(tmp_path) == list(range(9))


def test_the_spark_sink_refuses_rows_whose_offsets_are_out_of_order(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="in the log's order, and once"):
        run(tmp_path, 0, (0, 5), (3, 9))
    assert offsets(tmp_path) == []


def test_a_failed_micro_batch_leaves_no_file_in_the_directory_of_the_spark_sink(
    tmp_path: Path,
) -> None:
    writer = OffsetFileWriter(tmp_path)
    written = writer.write(iter(rows(0, 5)))
    writer.abort([written, None], 0)

    def broken() -> object:
        yield from rows(0, 5)
        raise Killed

    with pytest.raises(Killed):
        writer.write(broken())  # type: ignore[arg-type]
    assert not list((tmp_path / "_parts").iterdir())
    assert writer.write(iter([])) == Written()


def test_the_spark_sink_refuses_a_missing_path_or_offset_column_before_the_stream_starts(
    tmp_path: Path,
) -> None:
    schema = StructType().add("log_offset", "long")
    with pytest.raises(SinkError, match="give a directory"):
        OffsetFiles({}).streamWriter(schema, overwrite=False)
    with pytest.raises(SinkError, match="no column log_offset"):
        OffsetFiles({"path": str(tmp_path)}).streamWriter(StructType(), overwrite=False)
    run(tmp_path, 0, (0, 5))
    (page,) = (tmp_path / "_batches").glob("*.json")
    page.write_text('{"files": [{"name": "../x", "part": "y"}]}')
    with pytest.raises(SinkError, match="is not a batch's manifest"):
        run(tmp_path, 1, (5, 9))
