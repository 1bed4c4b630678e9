"""Makes the first pass over every log: collects what decides whether bytes are live or dead.

It finds the start of each partition's log, removed partitions and objects, and topic names. Because
it passes every record anyway, it also counts records and bytes of each type over time, and by
leader epoch. Commits, the bulk of a log, are only counted here, not decoded. Markers say which
batches were aborted: the second pass must know them, too.

Why order does not matter: log starts only rise, removed things stay removed, and a topic's id is
never reused; so pieces of a log can be read apart, and the highest log start is right.

Source: docs/design/batch-coordinator.md#retention, docs/design/batch-coordinator.md#deletion;
KIP-1164.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from records.diskless import (
    DisklessPartitionsRecord,
    DisklessPartitionsRemovedRecord,
    DisklessTopicState,
    LogStartOffsetsRecord,
    ObjectsRemovedRecord,
    TransactionMarkersRecord,
)
from records.frame import METADATA_RECORDS, decode_record, read_frame
from records.uuids import encode_uuid
from spark_jobs.readers.log_position import LogPosition
from spark_jobs.report.cube import CUBE, Numbers, Work, rows
from spark_jobs.report.window import Window
from spark_jobs.tables.schemas import table_name

GONE: Final = np.iinfo(np.int64).max
"""The log start of a partition that was removed: above every offset."""

_READ: Final = {
    record.schema().key
    for record in (
        DisklessPartitionsRecord, DisklessPartitionsRemovedRecord, DisklessTopicState,
        LogStartOffsetsRecord, ObjectsRemovedRecord, TransactionMarkersRecord,
    )
}  # fmt: skip

_ABORTED: Final = 0
"""The outcome of a marker that aborts."""


@dataclass(frozen=True, slots=True)
class FirstPass:
    """Counts one piece of a log. A `Reduce`."""

    window: Window

    def __call__(self, work: Work) -> pa.Table:
        """Count the records of one span of a log in the first pass, and return the counts as rows.

        The measures are `log_start`, `topic`, `removed`, `log`, `epoch`, `marker`, `ended`,
        `aborted` and `end`.
        """
        counts = _PieceCounts(work.log)
        for position, value in work.span.values():
            key, _, _ = read_frame(value)
            counts.count(position, key, len(value), self.window)
            if key in _READ:
                counts.apply(position, decode_record(value), self.window)
        return counts.table()


@dataclass(slots=True)
class _PieceCounts:
    """Counts of one piece, from the first pass."""

    log: int
    types: Counter[tuple[int, bool, int]] = field(default_factory=Counter)
    sizes: Counter[tuple[int, bool, int]] = field(default_factory=Counter)
    epochs: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # records, first, last ms
    starts: dict[tuple[str, int], int] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    removed: dict[int, int] = field(default_factory=dict)  # object: when, its bucket
    markers: Counter[tuple[str, int]] = field(default_factory=Counter)  # by topic and outcome
    ended: dict[tuple[str, int, int], int] = field(default_factory=dict)  # highest number that has
    aborted: list[tuple[str, int, int, int, int]] = field(default_factory=list)
    """Topic, partition, producer id, first offset, offset of the marker."""
    ends: dict[tuple[str, int], int] = field(default_factory=dict)  # behind the last marker

    def count(self, position: LogPosition, key: int, size: int, window: Window) -> None:
        """Count a record by its type and leader epoch."""
        bucket = 0 if position.from_checkpoint else window.bucket(position.timestamp_ms)
        kind = key, position.from_checkpoint, bucket
        self.types[kind] += 1
        self.sizes[kind] += size
        if not position.from_checkpoint:
            at = position.timestamp_ms
            records, first, last = self.epochs.get(position.epoch, (0, at, at))
            self.epochs[position.epoch] = records + 1, min(first, at), max(last, at)

    def apply(self, position: LogPosition, record: Any, window: Window) -> None:
        """Collect the log starts, topic names and removed objects of a record."""
        match record:
            case LogStartOffsetsRecord():
                topics = [encode_uuid(one) for one in record.topic_ids]
                columns = (record.topic_indexes, record.partitions, record.log_start_offsets)
                for topic, partition, start in zip(*columns, strict=True):
                    self.start(topics[topic], partition, start)
            case DisklessTopicState():
                topic_id = encode_uuid(record.topic_id)
                self.names[topic_id] = record.topic_name
                for index, start in enumerate(record.log_start_offsets, record.first_partition):
                    self.start(topic_id, index, start)
            case DisklessPartitionsRemovedRecord():
                for partition in record.partitions:
                    self.start(encode_uuid(record.topic_id), partition, GONE)
            case DisklessPartitionsRecord():
                topic_id, first = encode_uuid(record.topic_id), record.first_partition
                self.names[topic_id] = record.topic_name
                for partition in range(first, first + record.partition_count):
                    self.start(topic_id, partition, 0)
            case ObjectsRemovedRecord():
                bucket = window.bucket(position.timestamp_ms)
                self.removed.update(dict.fromkeys(record.object_ids, bucket))
            case TransactionMarkersRecord():
                self.add_markers(record)

    def add_markers(self, record: TransactionMarkersRecord) -> None:
        """Collect the markers that took an offset; others end nothing."""
        topics = [encode_uuid(one) for one in record.topic_ids]
        for index, partition, offset, producer, number, outcome, first in zip(
            record.topic_indexes, record.partitions, record.offsets, record.producer_ids,
            record.transaction_numbers, record.outcomes, record.first_offsets, strict=True,
        ):  # fmt: skip
            if offset < 0:
                continue
            place, key = (topics[index], partition), (topics[index], partition, producer)
            self.markers[place[0], outcome] += 1
            self.ended[key] = max(self.ended.get(key, -1), number)
            self.ends[place] = max(self.ends.get(place, 0), offset + 1)
            if outcome == _ABORTED and first >= 0:
                self.aborted.append((*key, first, offset))

    def start(self, topic_id: str, partition: int, start: int) -> None:
        place = topic_id, partition
        self.starts[place] = max(self.starts.get(place, 0), start)

    def table(self) -> pa.Table:
        kinds, epochs, starts = list(self.types), list(self.epochs), list(self.starts)
        return pa.concat_tables(
            [
                rows(
                    "log",
                    len(kinds),
                    number=self.log,
                    name=[_type_name(key) for key, _, _ in kinds],
                    label=["checkpoint" if stands else "log" for _, stands, _ in kinds],
                    time_ms=[bucket for _, _, bucket in kinds],
                    records=[self.types[kind] for kind in kinds],
                    bytes=[self.sizes[kind] for kind in kinds],
                ),
                rows(
                    "epoch",
                    len(epochs),
                    number=self.log,
                    level=epochs,
                    records=[self.epochs[epoch][0] for epoch in epochs],
                    lowest=[self.epochs[epoch][1] for epoch in epochs],
                    highest=[self.epochs[epoch][2] for epoch in epochs],
                ),
                rows(
                    "log_start",
                    len(starts),
                    name=[topic_id for topic_id, _ in starts],
                    number=[partition for _, partition in starts],
                    highest=[self.starts[place] for place in starts],
                ),
                rows(
                    "topic",
                    len(self.names),
                    name=list(self.names),
                    label=list(self.names.values()),
                ),
                rows(
                    "removed",
                    len(self.removed),
                    number=self.log,
                    level=list(self.removed),
                    time_ms=list(self.removed.values()),
                ),
                *self.transaction_tables(),
            ]
        )

    def transaction_tables(self) -> list[pa.Table]:
        if not self.markers:
            return []
        topics, partitions, producers, first, last = zip(*self.aborted, strict=True) if (
            self.aborted
        ) else ((),) * 5  # fmt: skip
        return [
            rows(
                "marker",
                len(self.markers),
                name=[topic for topic, _ in self.markers],
                number=[outcome for _, outcome in self.markers],
                batches=list(self.markers.values()),
            ),
            rows(
                "ended",
                len(self.ended),
                name=[topic for topic, _, _ in self.ended],
                number=[partition for _, partition, _ in self.ended],
                level=[producer for _, _, producer in self.ended],
                highest=list(self.ended.values()),
            ),
            rows(
                "aborted",
                len(first),
                name=topics,
                number=partitions,
                level=producers,
                time_ms=first,
                highest=last,
            ),
            rows(
                "end",
                len(self.ends),
                name=[topic for topic, _ in self.ends],
                number=[partition for _, partition in self.ends],
                highest=list(self.ends.values()),
            ),
        ]


def _type_name(key: int) -> str:
    known = METADATA_RECORDS.get(key)
    return f"type {key}" if known is None else table_name(known)


@dataclass(frozen=True, slots=True)
class FirstPassResult:
    """The part of the first pass that the second one needs: small, and sent to every task."""

    log_starts: dict[tuple[str, int], int]  # by topic id and partition
    removed: dict[int, Numbers]  # by coordinator: ids of objects that are gone, rising; and when
    aborted: dict[tuple[str, int, int], Numbers] = field(default_factory=dict)
    """First and last offsets of aborted transactions, rising, by topic, partition and producer."""


def first_pass_result(first: pa.Table) -> FirstPassResult:
    """Compute the arguments of the report's second pass from the rows of the first pass."""
    starts = first.filter(pc.equal(first["measure"], "log_start"))
    columns = [starts[name].to_pylist() for name in ("name", "number", "highest")]
    removed = first.filter(pc.equal(first["measure"], "removed"))
    logs = removed["number"].to_numpy()
    gone = np.stack([removed[name].to_numpy().astype(np.int64) for name in ("level", "time_ms")])
    return FirstPassResult(
        {(topic, partition): start for topic, partition, start in zip(*columns, strict=True)},
        {int(log): _by_id(gone[:, logs == log]) for log in np.unique(logs)},
        _aborted(first),
    )


def _aborted(first: pa.Table) -> dict[tuple[str, int, int], Numbers]:
    found = first.filter(pc.equal(first["measure"], "aborted"))
    columns = [found[name].to_pylist() for name in ("name", "number", "level", "time_ms",
                                                    "highest")]  # fmt: skip
    ranges: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
    for topic, partition, producer, begin, end in zip(*columns, strict=True):
        ranges.setdefault((topic, partition, producer), []).append((begin, end))
    return {key: np.array(sorted(pairs), np.int64).T for key, pairs in ranges.items()}


def _by_id(gone: Numbers) -> Numbers:
    return gone[:, np.argsort(gone[0], kind="stable")]


def names_of(first: pa.Table) -> dict[str, str]:
    """Return the topic names by id in the coordinators' logs, including deleted topics."""
    found = first.filter(pc.equal(first["measure"], "topic"))
    return dict(zip(found["name"].to_pylist(), found["label"].to_pylist(), strict=True))


assert {"name", "label", "number", "time_ms", "level"} < set(CUBE.names)
