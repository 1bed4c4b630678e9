"""Declares the report's tables: their subjects, their columns, and the columns' meanings.

They are written beside the page as Parquet files; docs/report.md lists them, and a test compares.
Every figure of the page is drawn from these and from nothing else.

Source: docs/design/pipeline.md#the-report.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import pyarrow as pa


class Column(NamedTuple):
    """One column of a table. Times are ms since 1970, sizes bytes; types with a `?` allow null."""

    name: str
    kind: str
    meaning: str


class TableSpec(NamedTuple):
    """One table: its subject and its columns."""

    about: str
    columns: tuple[Column, ...]


_KINDS: Final = {
    "text": pa.string(),
    "number": pa.int64(),
    "real": pa.float64(),
    "flag": pa.bool_(),
    "numbers": pa.list_(pa.int64()),
}


def _table(about: str, *columns: str) -> TableSpec:
    parts = (text.split(" ", 2) for text in columns)
    return TableSpec(about, tuple(Column(name, kind, meaning) for name, kind, meaning in parts))


_WRITTEN: Final = (
    "batches number of stored batches",
    "records number of records in those batches",
    "bytes number of bytes of those batches",
)

TABLES: Final[Mapping[str, TableSpec]] = {
    "topics": _table(
        "Every topic: bytes written in the window, live and dead bytes, and bytes that it pins.",
        "topic_id text as Kafka writes it",
        "topic text its name, or its id if no name is known",
        "deleted flag true if it is in no cluster log any more",
        "partitions number of partitions, those of a deleted topic included",
        *_WRITTEN,
        "live_bytes number of stored bytes that can be read",
        "dead_bytes number of stored bytes that can no longer be read",
        "pinned_objects number of objects with dead bytes that its live bytes keep",
        "pinned_bytes number of dead bytes in those objects; each topic that pins them counts them",
        "pinned_alone_bytes number of those dead bytes in objects that no other topic pins",
        "retention_ms number? its setting; -1: unlimited; null: the topic is deleted",
        "retention_bytes number? its setting, for each partition; -1: unlimited",
    ),
    "topic_throughput": _table(
        "Bytes written to the largest topics, over time; all others together.",
        "topic text its name, or `others`",
        "time_ms number when the bucket begins",
        *_WRITTEN,
    ),
    "producer_throughput": _table(
        "Bytes written by the largest producers, over time; all others together.",
        "producer text its id, `not idempotent`, or `others`",
        "time_ms number when the bucket begins",
        *_WRITTEN,
    ),
    "partitions": _table(
        "Every partition, the most written first; a deleted topic's too while the logs name them.",
        "topic text its topic's name",
        "partition number its index",
        *_WRITTEN,
        "live_bytes number of stored bytes that can be read",
        "first_ms number? time of its first commit in the window",
        "last_ms number? time of its last commit in the window",
    ),
    "broker_objects": _table(
        "Objects that each broker committed, over time.",
        "broker_id number the broker",
        "time_ms number when the bucket begins",
        "objects number of objects it committed",
        "bytes number of bytes of those objects",
    ),
    "sizes": _table(
        "Batches and objects by size, in powers of two.",
        "what text `batch` or `object`",
        "at_least number lower end of the class (inclusive); it ends at the double",
        "count number of batches or objects in the class",
        "bytes number of bytes of those",
    ),
    "fan_in": _table(
        "Objects by the number of topics and partitions that have batches in them.",
        "topics number of topics in an object; above 63 the lower end of a band",
        "partitions number of partitions in an object; above 63 the lower end of a band",
        "objects number of such objects",
    ),
    "commit_latency": _table(
        "Time from a batch's newest record, by its producer's clock, to its commit.",
        "time_ms number? when the bucket begins; null: the whole window",
        "batches number of batches with a producer's time",
        "negative number of batches committed before their time: a producer's clock is ahead",
        "p50_ms real? median of the others",
        "p90_ms real? 90th percentile",
        "p99_ms real? 99th percentile",
        "p999_ms real? 99.9th percentile",
    ),
    "outcomes": _table(
        "Uploaded batches by the coordinator's decision.",
        "outcome text `stored`, `duplicate`, or Kafka's name of the error",
        "batches number of batches with this outcome",
        "bytes number of bytes of those batches",
    ),
    "object_ages": _table(
        "Objects in the store by age, with their live and dead bytes.",
        "age text time since the object's commit",
        "age_class number index of the age class, from 0",
        "status text `live`: all batches are live; `pinned`: some are; `free`: none, to be deleted",
        "objects number of objects of this age and status",
        "bytes number of bytes of their batches, live and dead",
        "live_bytes number of those bytes that can be read",
    ),
    "costs": _table(
        "The costs of a month, at the prices given.",
        "item text name of the item",
        "quantity real bytes stored, or requests in a month",
        "unit text `bytes` or `requests`",
        "amount real a month, in the currency of the prices",
    ),
    "what_if": _table(
        "Estimated uploads at other commit intervals, if producers went on as they did.",
        "commit_interval_ms number time that a broker gathers batches before it uploads",
        "current flag true for the interval in force",
        "puts_per_month real uploads in a month",
        "amount real cost of these uploads in a month",
        "object_bytes real mean size of an object",
    ),
    "brokers": _table(
        "Times in which each broker served, was leaving, or was fenced.",
        "broker_id number the broker",
        "state text `serving`, `leaving` or `fenced`",
        "from_ms number beginning of the state",
        "to_ms number? end of the state; null: it lasts",
    ),
    "leaders": _table(
        "Partitions that name each broker as their leader, at the end of the cluster's log.",
        "broker_id number the broker; -1: no leader",
        "partitions number of partitions that name it",
    ),
    "cluster_changes": _table(
        "Changes of leaders, ISRs, chunks and fences, over time.",
        "time_ms number when the bucket begins",
        "what text kind of change",
        "count number of changes",
    ),
    "epochs": _table(
        "Leader epochs of each log; each new epoch is an election.",
        "log text the log's name",
        "epoch number leader epoch",
        "records number of records written in the epoch",
        "first_ms number time of the first record",
        "last_ms number time of the last record",
    ),
    "chunks": _table(
        "Chunks of partitions that have more than one (KIP-1114).",
        "topic text its name",
        "partition number its index",
        "start_offset number inclusive",
        "end_offset number? inclusive; null: the active chunk",
        "replicas numbers ids of the brokers that hold it",
    ),
    "log_growth": _table(
        "Records of each type that were written to each log, over time.",
        "log text the log's name",
        "time_ms number when the bucket begins",
        "type text record type, named as the table of `esker_log`",
        "records number of records of that type",
        "bytes number of bytes of those records, without the log's framing",
    ),
    "objects_kept": _table(
        "Objects in the metadata, which checkpoints grow with.",
        "time_ms number when the bucket begins",
        "committed number of objects committed in the bucket",
        "removed number of objects removed in the bucket",
        "held number of objects at the bucket's end, counted back from the log's end",
    ),
    "checkpoints": _table(
        "Checkpoints that could be read.",
        "log text the log's name",
        "end_offset number end of the log that it replaces, exclusive",
        "epoch number leader epoch of the last record in it",
        "size_bytes number of bytes of the file, or of its records if the file is elsewhere",
        "time_ms number? when the file was written; null: unknown",
    ),
}  # fmt: skip


def schema(name: str) -> pa.Schema:
    """Return the Arrow schema of a table."""
    return pa.schema(
        [
            pa.field(
                column.name, _KINDS[column.kind.rstrip("?")], nullable=column.kind.endswith("?")
            )
            for column in TABLES[name].columns
        ]
    )


def documentation() -> str:
    """Return the description of all tables in Markdown, as docs/report.md contains it."""
    parts = []
    for name, spec in TABLES.items():
        parts += [
            f"### `{name}`",
            "",
            spec.about,
            "",
            "| column | type | meaning |",
            "|---|---|---|",
        ]
        parts += [
            f"| `{column.name}` | {column.kind} | {column.meaning} |" for column in spec.columns
        ]
        parts.append("")
    return "\n".join(parts)
