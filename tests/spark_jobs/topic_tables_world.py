"""A topic without a cluster: its records lie in a directory, its coordinates in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from records.batch_writer import build_batch
from spark_jobs.readers.engines import LocalEngine
from spark_jobs.topic_tables import directory as directory_module
from spark_jobs.topic_tables import job as job_module
from spark_jobs.topic_tables.catalogs import open_catalog
from spark_jobs.topic_tables.job import JobSettings, TopicJob
from spark_jobs.topic_tables.schemas import RawValues, Values
from spark_jobs.topics.coordinates import Bounds, Found, FoundRun, Runs, TopicPartition, Wanted

NOW_MS = 1_700_000_000_000
TOPIC = "orders"


class MemoryTopic:
    """The coordinates of one topic; all its records are committed at once."""

    def __init__(self, store: Path, partitions: int = 2) -> None:
        self.store = store
        store.mkdir(parents=True, exist_ok=True)
        self.runs: list[list[FoundRun]] = [[] for _ in range(partitions)]
        self.log_starts = [0] * partitions

    def write(self, partition: int, *values: bytes | None, time_ms: int = NOW_MS) -> None:
        """Write values as one batch in an object of its own."""
        runs = self.runs[partition]
        base = runs[-1].end_offset if runs else 0
        key = f"{partition}-{base}"
        records = [(b"k", value, time_ms + number, ()) for number, value in enumerate(values)]
        data = build_batch(records, base_offset=0, leader_epoch=0)
        (self.store / key).write_bytes(data)
        runs.append(
            FoundRun(key, 0, len(data), base, base + len(values), is_final=False, append_time=None)
        )

    # --- spark_jobs.topics.coordinates.Coordinates --------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def topics(self, names: Sequence[str] | None = None) -> Mapping[str, int]:
        return {TOPIC: len(self.runs)} if names is None or TOPIC in names else {}

    def bounds(
        self, partitions: Sequence[TopicPartition], *, committed: bool
    ) -> dict[TopicPartition, Bounds]:
        assert committed, "rows of aborted transactions are in no table"
        found = {}
        for place in partitions:
            runs, start = self.runs[place.partition], self.log_starts[place.partition]
            found[place] = Bounds(start, max(start, runs[-1].end_offset if runs else 0))
        return found

    def find(self, wanted: Sequence[Wanted], **_: Any) -> list[Found]:
        return [
            Found(
                one.partition,
                one.first_offset,
                one.end_offset,
                Runs.of(
                    run
                    for run in self.runs[one.partition.partition]
                    if run.end_offset > one.first_offset and run.base_offset < one.end_offset
                ),
                (),
            )
            for one in wanted
        ]


class TablesWorld:
    """A topic, a catalogue in a directory, and jobs between them."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = home
        self.topic = MemoryTopic(home / "store")
        self.catalog = open_catalog(str(home / "lake"), None, {})
        for module in (job_module, directory_module):
            monkeypatch.setattr(module, "open_coordinates", lambda _: self.topic)

    def job(self, values: Values | None = None, **settings: Any) -> TopicJob:
        """Return a job that was not started."""
        source = {"kafka.bootstrap.servers": "127.0.0.1:1", "store": str(self.topic.store)}
        made = JobSettings(source=source, namespace=("kafka",), **settings)
        return TopicJob(made, TOPIC, self.catalog, LocalEngine(), values or RawValues())

    def started(self, values: Values | None = None, **settings: Any) -> TopicJob:
        """Return a job that has taken its table over."""
        job = self.job(values, **settings)
        job.start()
        return job

    def rows(self, table: str = TOPIC) -> list[tuple[int, int, Any]]:
        """Return partition, offset and value of a table's rows, as PyIceberg alone reads them."""
        found = self.catalog.load_table(("kafka", table)).scan().to_arrow()
        names = ("partition", "offset", "value")
        if "value" not in found.column_names:
            return sorted((row["partition"], row["offset"], None) for row in found.to_pylist())
        return sorted((tuple(row[name] for name in names) for row in found.to_pylist()),
                      key=lambda row: row[:2])  # fmt: skip


@pytest.fixture
def tables_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TablesWorld:
    """A topic of two partitions, and an empty catalogue."""
    return TablesWorld(tmp_path, monkeypatch)


def data_files(world: TablesWorld) -> set[Path]:
    """Return the data files of the topic's table."""
    return set((world.home / "lake" / "kafka" / TOPIC / "data").rglob("*.parquet"))


def let_workers_write_elsewhere(world: TablesWorld, patch: pytest.MonkeyPatch) -> None:
    """Hide each data file from the driver, as if its worker had a directory of its own."""
    write = TopicJob._write

    def write_elsewhere(self: TopicJob, pieces: Any) -> Any:
        written = write(self, pieces)
        for path in data_files(world):
            path.unlink()
        return written

    patch.setattr(TopicJob, "_write", write_elsewhere)
