"""The report's tables: what each is about, its columns, and what they mean.

They stand beside the page as Parquet, for whoever wants to go on counting; docs/report.md lists
them, and a test compares. Every figure of the page is drawn from these and from nothing else.

Source: docs/design/pipeline.md#the-report.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import pyarrow as pa


class Column(NamedTuple):
    """One column. Times are ms since 1970, sizes bytes; of types with a `?` null is allowed."""

    name: str
    kind: str
    meaning: str


class TableSpec(NamedTuple):
    """One table."""

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
    "batches number that were stored",
    "records number in them",
    "bytes number of them",
)

TABLES: Final[Mapping[str, TableSpec]] = {
    "topics": _table(
        "Every topic: what was written in the window, what is left, and what it keeps from going.",
        "topic_id text as Kafka writes it",
        "topic text its name; its id where no name is known",
        "deleted flag it is in no cluster log any more",
        "partitions number that there are, or were when they were written to",
        *_WRITTEN,
        "live_bytes number that can be read",
        "dead_bytes number that can't, in objects that are there still",
        "pinned_objects number with dead bytes, that its live bytes keep",
        "pinned_bytes number the dead bytes of those; counted for each topic that keeps the object",
        "pinned_alone_bytes number of those, in objects that no other topic keeps",
        "retention_ms number? its setting; -1: for ever; null: the topic is deleted",
        "retention_bytes number? its setting, of each partition; -1: no limit",
    ),
    "topic_throughput": _table(
        "What was written to the largest topics, over time; all others together.",
        "topic text its name, or `others`",
        "time_ms number when the bucket begins",
        *_WRITTEN,
    ),
    "producer_throughput": _table(
        "What the largest producers wrote, over time; all others together.",
        "producer text its id, `not idempotent`, or `others`",
        "time_ms number when the bucket begins",
        *_WRITTEN,
    ),
    "partitions": _table(
        "Every partition, the most written first; those of deleted topics while they are told of.",
        "topic text its topic's name",
        "partition number its index",
        *_WRITTEN,
        "live_bytes number that can be read",
        "first_ms number? of its first commit in the window",
        "last_ms number? and of its last",
    ),
    "broker_objects": _table(
        "Objects that each broker committed, over time.",
        "broker_id number the broker",
        "time_ms number when the bucket begins",
        "objects number committed",
        "bytes number of them",
    ),
    "sizes": _table(
        "How large batches and objects are, by powers of two.",
        "what text `batch` or `object`",
        "at_least number this class begins here (inclusive) and ends at the double",
        "count number how many",
        "bytes number of them",
    ),
    "fan_in": _table(
        "How many topics and partitions have batches in one object.",
        "topics number in an object; above 63 the lower end of a band",
        "partitions number in an object; the same",
        "objects number that are so",
    ),
    "commit_latency": _table(
        "From a batch's newest record, by its producer's clock, to its commit.",
        "time_ms number? when the bucket begins; null: of the whole window",
        "batches number with a producer's time",
        "negative number committed before their time: a clock that is ahead",
        "p50_ms real? half of the others were as fast or faster",
        "p90_ms real? nine of ten",
        "p99_ms real? of a hundred all but one",
        "p999_ms real? of a thousand all but one",
    ),
    "outcomes": _table(
        "What became of batches that were uploaded.",
        "outcome text `stored`, `duplicate`, or Kafka's name of the error",
        "batches number that it happened to",
        "bytes number of them",
    ),
    "object_ages": _table(
        "Objects in the store by age, and how much of them is still used.",
        "age text how long ago it was committed",
        "age_class number the ages in order, from 0",
        "status text `live`: all its batches are; `pinned`: some; `free`: none, it waits to go",
        "objects number of this age and status",
        "bytes number of their batches, live and dead",
        "live_bytes number of these, that can be read",
    ),
    "costs": _table(
        "What a month costs, at the prices given.",
        "item text what is paid for",
        "quantity real bytes kept, or requests in a month",
        "unit text `bytes` or `requests`",
        "amount real a month, in the currency of the prices",
    ),
    "what_if": _table(
        "What another commit interval would change, if producers went on as they did.",
        "commit_interval_ms number how long a broker gathers before it uploads",
        "current flag this is the interval in force",
        "puts_per_month real objects uploaded",
        "amount real a month, for these uploads",
        "object_bytes real the mean size of an object",
    ),
    "brokers": _table(
        "When each broker served and when it was fenced.",
        "broker_id number the broker",
        "state text `serving`, `leaving` or `fenced`",
        "from_ms number since when",
        "to_ms number? until when; null: still",
    ),
    "leaders": _table(
        "How many partitions name each broker as their leader in the cluster log, at its end.",
        "broker_id number the broker; -1: no leader",
        "partitions number that name it",
    ),
    "cluster_changes": _table(
        "How often leaders, ISRs, chunks and fences changed, over time.",
        "time_ms number when the bucket begins",
        "what text the change",
        "count number how often",
    ),
    "epochs": _table(
        "Under which leader epochs each log grew: a new one is an election.",
        "log text the log's name",
        "epoch number the leader's",
        "records number written in it",
        "first_ms number the first record's time",
        "last_ms number the last one's",
    ),
    "chunks": _table(
        "Chunks of partitions that have more than one (KIP-1114).",
        "topic text its name",
        "partition number its index",
        "start_offset number inclusive",
        "end_offset number? inclusive; null: it grows",
        "replicas numbers the brokers that hold it",
    ),
    "log_growth": _table(
        "Records of each type that were written to each log, over time.",
        "log text the log's name",
        "time_ms number when the bucket begins",
        "type text the record's, as a table of `esker_log` is called",
        "records number of that type",
        "bytes number of them, without the log's own framing",
    ),
    "objects_kept": _table(
        "How many objects the metadata holds: what makes a checkpoint grow.",
        "time_ms number when the bucket begins",
        "committed number in this bucket",
        "removed number in this bucket",
        "held number at its end, counted back from what there is now",
    ),
    "checkpoints": _table(
        "Checkpoints that were there to be read.",
        "log text the log's name",
        "end_offset number what it stands for, exclusive",
        "epoch number its leader's",
        "size_bytes number of the file, or of its records if the file is not here",
        "time_ms number? when the file was written; null: not known",
    ),
}  # fmt: skip


def schema(name: str) -> pa.Schema:
    """The columns of a table, as Arrow has them."""
    return pa.schema(
        [
            pa.field(one.name, _KINDS[one.kind.rstrip("?")], nullable=one.kind.endswith("?"))
            for one in TABLES[name].columns
        ]
    )


def documentation() -> str:
    """The tables as docs/report.md lists them."""
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
        parts += [f"| `{one.name}` | {one.kind} | {one.meaning} |" for one in spec.columns]
        parts.append("")
    return "\n".join(parts)
