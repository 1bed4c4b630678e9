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
    "batches number number of stored batches",
    "records number number of records in the stored batches",
    "bytes number number of bytes of the stored batches",
)

TABLES: Final[Mapping[str, TableSpec]] = {
    "topics": _table(
        "Every topic: bytes written in the window, live and dead bytes, and bytes that it pins.",
        "topic_id text id of the topic, as Kafka writes it",
        "topic text name of the topic, or its id if no name is known",
        "deleted flag true if the topic is no longer in the cluster's log",
        "partitions number number of partitions, also of a deleted topic",
        *_WRITTEN,
        "live_bytes number number of stored bytes that can be read",
        "dead_bytes number number of stored bytes that can no longer be read",
        "pinned_objects number number of objects with dead bytes that the topic's live bytes keep",
        "pinned_bytes number number of dead bytes in these objects; a shared one counts each time",
        "pinned_alone_bytes number number of dead bytes in objects that no other topic pins",
        "retention_ms number? retention.ms of the topic; -1: unlimited; null: the topic is deleted",
        "retention_bytes number? retention.bytes of each partition; -1: unlimited",
    ),
    "topic_throughput": _table(
        "Bytes written to the largest topics over time, and to all other topics together.",
        "topic text name of the topic, or `others`",
        "time_ms number time at which the bucket begins",
        *_WRITTEN,
    ),
    "producer_throughput": _table(
        "Bytes written by the largest producers over time, and by all other producers together.",
        "producer text id of the producer, `not idempotent`, or `others`",
        "time_ms number time at which the bucket begins",
        *_WRITTEN,
    ),
    "partitions": _table(
        "Every partition, the most written first; also a deleted topic's while the logs name it.",
        "topic text name of the topic",
        "partition number index of the partition",
        *_WRITTEN,
        "live_bytes number number of stored bytes that can be read",
        "first_ms number? time of the partition's first commit in the window",
        "last_ms number? time of the partition's last commit in the window",
    ),
    "transactions": _table(
        "Topics with transactions: how they ended, what was aborted, and what is open at the end.",
        "topic text name of the topic",
        "commits number number of markers that commit, each in one partition",
        "aborts number number of markers that abort, each in one partition",
        "batches number number of stored batches of transactions",
        "records number number of records in these batches",
        "bytes number number of bytes of these batches",
        "aborted_bytes number number of these bytes that belong to aborted transactions",
        "open number number of transactions that are open, in each partition that they are open in",
        "oldest_open_ms number? time of the first batch of the oldest open one; null: none is open",
        "stable_lag number largest number of offsets of a partition above its last stable offset",
    ),
    "broker_objects": _table(
        "Objects that each broker committed, over time.",
        "broker_id number id of the broker",
        "time_ms number time at which the bucket begins",
        "objects number number of objects that the broker committed",
        "bytes number number of bytes of these objects",
    ),
    "sizes": _table(
        "Batches and objects by size, in powers of two.",
        "what text kind of the counted things: `batch` or `object`",
        "at_least number lower end of the size class, inclusive; the class ends at its double",
        "count number number of batches or objects in the class",
        "bytes number number of bytes of these batches or objects",
    ),
    "fan_in": _table(
        "Objects by the number of topics and partitions that have batches in them.",
        "topics number number of topics in an object; above 63 the lower end of a band",
        "partitions number number of partitions in an object; above 63 the lower end of a band",
        "objects number number of objects with these numbers",
    ),
    "commit_latency": _table(
        "Time from a batch's newest record, by its producer's clock, to its commit.",
        "time_ms number? time at which the bucket begins; null: the whole window",
        "batches number number of batches with a producer's time",
        "negative number number of batches committed before their time (producer clock ahead)",
        "backdated number number of batches ten minutes older than their commit, or more",
        "p50_ms real? median latency of the other batches, in ms",
        "p90_ms real? 90th percentile of the latency, in ms",
        "p99_ms real? 99th percentile of the latency, in ms",
        "p999_ms real? 99.9th percentile of the latency, in ms",
    ),
    "outcomes": _table(
        "Uploaded batches by the coordinator's decision.",
        "outcome text decision: `stored`, `duplicate`, or Kafka's name of the error",
        "batches number number of batches with this outcome",
        "bytes number number of bytes of these batches",
    ),
    "object_ages": _table(
        "Objects in the store by age, with their live and dead bytes.",
        "age text time since the object's commit",
        "age_class number index of the age class, from 0",
        "status text `live`: all batches live; `pinned`: some batches live; `free`: no batch live",
        "objects number number of objects of this age and status",
        "bytes number number of bytes of their batches, live and dead",
        "live_bytes number number of these bytes that can be read",
    ),
    "costs": _table(
        "Costs of a month by item, at the given prices.",
        "item text name of the cost item",
        "quantity real number of bytes stored, or of requests in a month",
        "unit text `bytes` or `requests`",
        "amount real cost of a month, in the currency of the prices",
    ),
    "topic_costs": _table(
        "Costs of a month by topic, at the given prices, the most expensive first.",
        "topic text name of the topic",
        "live_amount real cost of the topic's live bytes",
        "dead_amount real cost of its dead bytes that objects still hold",
        "upload_amount real cost of uploads, divided among topics by the bytes that they wrote",
        "amount real sum of the three",
    ),
    "what_if": _table(
        "Estimated uploads at other commit intervals, if producers went on as they did.",
        "commit_interval_ms number time that a broker gathers batches before it uploads",
        "current flag true for the interval in force",
        "puts_per_month real number of uploads in a month",
        "amount real cost of these uploads in a month",
        "object_bytes real mean size of an object, in bytes",
    ),
    "reads": _table(
        "Live runs by topic: a consumer needs a GET for each, and small ones wait to be merged.",
        "topic text name of the topic",
        "runs number number of live runs: GETs of one consumer that reads all of the topic",
        "bytes number number of bytes of these runs",
        "small_runs number number of these runs that are below 2 MiB, which brokers merge",
        "small_bytes number number of bytes of the small runs",
        "merged_runs number number of runs there would be if all small ones were merged",
        "gets_per_mib real number of GETs for each MiB of live bytes",
        "amount real cost of these GETs, for one consumer that reads all of the topic",
    ),
    "forecast": _table(
        "Stored bytes and costs some days ahead, if writing and topics' settings stay as they are.",
        "days number number of days after the report",
        "live_bytes number number of stored bytes that can be read",
        "dead_bytes number number of stored bytes that can no longer be read",
        "amount real cost of a month at that time",
    ),
    "history": _table(
        "Earlier reports in the same directory, oldest first, and this one.",
        "as_of_ms number time of the report",
        "live_bytes number number of stored bytes that can be read",
        "dead_bytes number number of stored bytes that can no longer be read",
        "objects number number of objects in the store",
        "runs number number of live runs",
        "written_per_day real number of bytes written in a day, by the window's rate",
        "amount real cost of a month",
        "currency text currency of the cost",
    ),
    "brokers": _table(
        "Intervals in which each broker served, was leaving, or was fenced.",
        "broker_id number id of the broker",
        "state text `serving`, `leaving` or `fenced`",
        "from_ms number time at which the state begins",
        "to_ms number? time at which the state ends; null: the state lasts",
    ),
    "leaders": _table(
        "Partitions that name each broker as their leader, at the end of the cluster's log.",
        "broker_id number id of the broker; -1: no leader",
        "partitions number number of partitions that name the broker",
    ),
    "cluster_changes": _table(
        "Changes of leaders, ISRs, chunks and fences, over time.",
        "time_ms number time at which the bucket begins",
        "what text kind of change",
        "count number number of changes of this kind",
    ),
    "epochs": _table(
        "Leader epochs of each log; each new epoch is an election.",
        "log text name of the log",
        "epoch number number of the leader epoch",
        "records number number of records written in the epoch",
        "first_ms number time of the first record of the epoch",
        "last_ms number time of the last record of the epoch",
    ),
    "chunks": _table(
        "Chunks of partitions that have more than one (KIP-1114).",
        "topic text name of the topic",
        "partition number index of the partition",
        "start_offset number first offset of the chunk, inclusive",
        "end_offset number? last offset of the chunk, inclusive; null: the active chunk",
        "replicas numbers ids of the brokers that hold the chunk",
    ),
    "log_growth": _table(
        "Records of each type that were written to each log, over time.",
        "log text name of the log",
        "time_ms number time at which the bucket begins",
        "type text record type, named as the table of `esker_log`",
        "records number number of records of that type",
        "bytes number number of bytes of these records, without the log's framing",
    ),
    "objects_kept": _table(
        "Objects in the metadata, which checkpoints grow with.",
        "time_ms number time at which the bucket begins",
        "committed number number of objects committed in the bucket",
        "removed number number of objects removed in the bucket",
        "held number number of objects at the bucket's end, counted back from the log's end",
    ),
    "checkpoints": _table(
        "Checkpoints that could be read.",
        "log text name of the log",
        "end_offset number end offset of the log that the checkpoint replaces, exclusive",
        "epoch number leader epoch of the last record in the checkpoint",
        "size_bytes number size of the file, or of its records if the file is elsewhere",
        "time_ms number? time at which the file was written; null: unknown",
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
