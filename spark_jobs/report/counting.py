"""The second look: how much was written, by whom, how big, how late; and what of it is still used.

The surprise is that nothing has to be join_runs. All batches of an object stand in one record, so
whoever reads that record knows all about the object, as soon as it is told where logs start; and a
checkpoint, which keeps runs and objects apart, is one piece of work too.

What is live is decided as a coordinator does: by runs, batches that lie back to back in one object.
A run is live, whole, while its last offset is at or above its partition's log start.

Bytes of an object that belong to no batch, its footer, are called framing and are nobody's. A
checkpoint does not say how many those are: there it is estimated, from how footers are written.

Source: docs/design/batch-coordinator.md#runs, docs/design/batch-coordinator.md#deletion,
docs/design/pipeline.md#the-report; KIP-1163 (objects are shared).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_jobs.report.cube import Numbers, Work, banded, merged, rows
from spark_jobs.report.first_pass import Known
from spark_jobs.report.window import Window
from spark_jobs.tables.arrow_batches import read_table
from spark_jobs.tables.coordinator_log import RUNS_KEYS, CoordinatorLog, fold
from spark_jobs.tables.partitions import KEYS as PARTITION_KEYS
from spark_jobs.tables.runs import batches as batches_of
from spark_jobs.tables.runs import column, is_accepted, join_runs
from spark_jobs.tables.schemas import OBJECT_COMMIT

LIVE, PINNED, FREE = "live", "pinned", "free"
"""An object all of whose batches are live; some; none, so that it waits for its deletion."""

UNKNOWN: Final = ""
"""Whose dead bytes are, that only a checkpoint tells of."""

FOOTER_BYTES: Final = 80
ENTRY_BYTES: Final = 48
"""Of an object's footer with its trailer, and of each partition in it, at most (`records.wal`)."""

_HOUR: Final = 3_600_000
AGES: Final = (
    ("< 1 h", _HOUR), ("1–6 h", 6 * _HOUR), ("6–24 h", 24 * _HOUR), ("1–3 d", 72 * _HOUR),
    ("3–7 d", 168 * _HOUR), ("7–30 d", 720 * _HOUR), ("30–90 d", 2160 * _HOUR), ("> 90 d", None),
)  # fmt: skip
"""Classes of age: what each is called, and where it ends (exclusive), in ms."""

_AGE_ENDS: Final = np.array([end for _, end in AGES if end is not None], np.int64)
STILL_THERE: Final = -1
DUPLICATE: Final = -1
"""An outcome beside the error codes: 0 was stored."""


@dataclass(frozen=True, slots=True)
class Counting:
    """Counts one piece. A `Reduce`."""

    window: Window
    known: Known
    now_ms: int  # that ages are counted from

    def __call__(self, work: Work) -> pa.Table:
        """The piece's rows, of all measures of this module."""
        parts = _checkpoint if work.span.is_checkpoint else _commits
        return merged(parts(self, work))

    def removed_ms(self, log: int, object_ids: Numbers) -> Numbers:
        """When each of these objects went, its bucket; STILL_THERE: it is there."""
        gone = self.known.removed.get(log, np.zeros((2, 0), np.int64))
        if not gone.shape[1]:
            return np.full(len(object_ids), STILL_THERE, np.int64)
        at = np.minimum(np.searchsorted(gone[0], object_ids), gone.shape[1] - 1)
        return np.where(gone[0][at] == object_ids, gone[1][at], STILL_THERE)

    def log_starts(self, topics: list[str], partitions: Numbers, codes: Numbers) -> Numbers:
        """Of each of these partitions, whose topic is topics[code]."""
        starts = self.known.log_starts
        places = zip(codes.tolist(), partitions.tolist(), strict=True)
        return np.array([starts.get((topics[code], index), 0) for code, index in places], np.int64)


def _pairs(first: Numbers, second: Numbers) -> tuple[Numbers, Numbers]:
    """The different pairs, and which of them each row has."""
    pairs, inverse = np.unique(np.stack((first, second)), axis=1, return_inverse=True)
    return pairs, inverse.reshape(-1)


# --- what was written ---------------------------------------------------------------------------


def _commits(job: Counting, work: Work) -> Iterator[pa.Table]:
    for batch in read_table(OBJECT_COMMIT, work.span):  # whole records: no object is in two
        yield merged(_of_batches(job, work.log, _Batches(batch)))


class _Batches:
    """Columns of some commits' batches, in the log's order."""

    def __init__(self, commits: pa.RecordBatch) -> None:
        topics = commits.column("topic_id").dictionary_encode()
        self.commits = commits
        self.topics: list[str] = topics.dictionary.to_pylist()
        self.topic: Numbers = topics.indices.to_numpy().astype(np.int64)  # into topics
        self.stored = is_accepted(commits)  # neither refused nor a duplicate

    def __getitem__(self, name: str) -> Numbers:
        return column(self.commits, name)


def _counted(
    measure: str,
    keys: dict[str, Numbers],
    values: dict[str, Numbers | None],
    topics: list[str] | None = None,
    *,
    label: str = "",
) -> pa.Table:
    """Rows of a measure, one for each different key; a value None counts rows.

    If there are topics, the key `name` holds numbers of them.
    """
    count = len(next(iter(keys.values())))
    columns = {
        name: np.ones(count, np.int64) if one is None else one for name, one in values.items()
    }
    table = pa.table(keys | columns)
    how = [(name, {"lowest": "min", "highest": "max"}.get(name, "sum")) for name in values]
    found = table.group_by(list(keys), use_threads=False).aggregate(how)
    named: dict[str, Any] = {key: found[key].combine_chunks() for key in keys}
    named |= {name: found[f"{name}_{one}"].combine_chunks() for name, one in how}
    if topics is not None:
        named["name"] = pa.array(topics, pa.string()).take(named["name"])
    return rows(measure, found.num_rows, label=label, **named)


def _of_batches(job: Counting, log: int, batches: _Batches) -> Iterator[pa.Table]:
    yield from _throughput(job, batches)
    objects, first = np.unique(batches["object_id"], return_index=True)
    sizes, brokers = batches["size_bytes"][first], batches["broker_id"][first]
    committed = batches["committed_at_ms"][first]
    yield _counted(
        "broker",
        {"number": brokers, "time_ms": job.window.buckets(committed)},
        {"objects": None, "bytes": sizes},
    )
    yield _counted("object_size", {"level": banded(sizes)}, {"objects": None, "bytes": sizes})
    at = np.searchsorted(objects, batches["object_id"])
    yield _fan_in(batches, at, len(objects))
    runs = _runs_of(job, batches, objects)
    yield from _rot(
        job,
        log,
        _Objects(objects, sizes, committed),
        runs,
        np.bincount(at, weights=batches["byte_size"], minlength=len(objects)).astype(np.int64),
    )


def _throughput(job: Counting, batches: _Batches) -> Iterator[pa.Table]:
    """Who wrote how much, and how late it was committed."""
    outcome = np.where(batches["duplicate"] != 0, DUPLICATE, batches["error_code"])
    yield _counted("outcome", {"number": outcome}, {"batches": None, "bytes": batches["byte_size"]})
    stored = batches.stored
    sizes, committed = batches["byte_size"][stored], batches["committed_at_ms"][stored]
    topic, bucket = batches.topic[stored], job.window.buckets(committed)
    written: dict[str, Numbers | None] = {
        "batches": None,
        "records": batches["record_count"][stored],
        "bytes": sizes,
    }
    yield _counted("topic", {"name": topic, "time_ms": bucket}, written, batches.topics)
    yield _counted(
        "producer", {"number": batches["producer_id"][stored], "time_ms": bucket}, written
    )
    yield _counted(
        "partition",
        {"name": topic, "number": batches["partition"][stored]},
        {**written, "lowest": committed, "highest": committed},
        batches.topics,
    )
    yield _counted("batch_size", {"level": banded(sizes)}, {"batches": None, "bytes": sizes})
    created = (batches["timestamp_type"][stored] == 0) & (batches["max_timestamp"][stored] >= 0)
    late = committed[created] - batches["max_timestamp"][stored][created]
    yield _counted(
        "latency", {"time_ms": bucket[created], "level": banded(late)}, {"batches": None}
    )


def _fan_in(batches: _Batches, at: Numbers, objects: int) -> pa.Table:
    """Objects by how many topics and partitions have batches in them."""
    of_object, _ = _pairs(at, batches.topic)
    places = np.stack((at, batches.topic, batches["partition"]))
    partitions = np.unique(places, axis=1)[0]
    return _counted(
        "fan_in",
        {
            "number": banded(np.bincount(of_object[0], minlength=objects)),
            "level": banded(np.bincount(partitions, minlength=objects)),
        },
        {"objects": None},
    )


# --- what is left of it -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Objects:
    """Columns, by rising id."""

    ids: Numbers
    sizes: Numbers
    committed_ms: Numbers


@dataclass(frozen=True, slots=True)
class _Runs:
    """Columns of what objects consist of, live or dead."""

    topics: list[str]
    topic: Numbers  # into topics
    partition: Numbers
    place: Numbers  # into the objects
    sizes: Numbers
    live: npt.NDArray[np.bool_]


def _runs_of(job: Counting, batches: _Batches, objects: Numbers) -> _Runs:
    """Live and dead runs; refused batches and duplicates are dead from the start."""
    pairs, partition = _pairs(batches.topic, batches["partition"])
    stored, refused = batches.stored, ~batches.stored
    of_run, run = join_runs(partition[stored], batches_of(batches.commits)[:, stored])
    partitions = np.concatenate((of_run, partition[refused]))
    live = run[1] >= job.log_starts(batches.topics, pairs[1], pairs[0])[of_run]
    ids = np.concatenate((run[2], batches["object_id"][refused]))
    return _Runs(
        batches.topics,
        pairs[0][partitions],
        pairs[1][partitions],
        np.searchsorted(objects, ids),
        np.concatenate((run[4], batches["byte_size"][refused])),
        np.concatenate((live, np.zeros(int(refused.sum()), np.bool_))),
    )


def _rot(
    job: Counting, log: int, objects: _Objects, runs: _Runs, batch_bytes: Numbers
) -> Iterator[pa.Table]:
    """Of objects that are there still: used and unused bytes, by age, by topic, and who pins them.

    Args:  batch_bytes: of each object, without its framing.
    """
    removed_ms = job.removed_ms(log, objects.ids)
    there = removed_ms == STILL_THERE
    yield _counted("removed_in", {"time_ms": removed_ms[~there]}, {"objects": None})
    used = _sums(runs.place[runs.live], runs.sizes[runs.live], len(there))
    dead = batch_bytes - used
    status = np.where(used == 0, FREE, np.where(dead == 0, LIVE, PINNED))
    age = np.searchsorted(_AGE_ENDS, job.now_ms - objects.committed_ms, side="right")
    for label in (LIVE, PINNED, FREE):
        of_label = there & (status == label)
        yield _counted(
            "rot",
            {"level": age[of_label]},
            {"objects": None, "bytes": batch_bytes[of_label], "part_bytes": used[of_label]},
            label=label,
        )
    framing = objects.sizes - batch_bytes
    yield rows("framing", 1, objects=int(there.sum()), bytes=int(framing[there].sum()))
    kept = there[runs.place]
    names = [*runs.topics, UNKNOWN]
    yield _counted(
        "held",
        {"name": runs.topic[kept], "number": runs.partition[kept]},
        {"bytes": runs.sizes[kept], "part_bytes": np.where(runs.live, runs.sizes, 0)[kept]},
        names,
    )
    known = _sums(runs.place, runs.sizes, len(there))
    unknown = int((batch_bytes - known)[there].sum())
    if unknown:
        yield rows("held", 1, bytes=unknown)
    yield _pins(runs, there & (status == PINNED), dead)


def _sums(place: Numbers, sizes: Numbers, count: int) -> Numbers:
    sums = np.zeros(count, np.int64)
    np.add.at(sums, place, sizes)
    return sums


def _pins(runs: _Runs, pinned: npt.NDArray[np.bool_], dead: Numbers) -> pa.Table:
    """Each topic's share of the dead bytes that stay: of all objects that it keeps (`bytes`), and
    of those that it alone keeps (`part_bytes`, for want of a better column).

    An object that several topics keep counts for each of them: it goes when the last lets go.
    """
    chosen = runs.live & pinned[runs.place]
    pairs, _ = _pairs(runs.topic[chosen], runs.place[chosen])
    topic, place = pairs
    alone = np.bincount(place, minlength=len(dead))[place] == 1
    return _counted(
        "pin",
        {"name": topic},
        {"objects": None, "bytes": dead[place], "part_bytes": np.where(alone, dead[place], 0)},
        runs.topics,
    )


# --- checkpoints --------------------------------------------------------------------------------


def _checkpoint(job: Counting, work: Work) -> Iterator[pa.Table]:
    log = CoordinatorLog()
    fold(work.span.values(), log.handlers(RUNS_KEYS | PARTITION_KEYS))
    ids, sizes, _, committed, _, _ = log.object_columns()
    objects = _objects(np.stack((ids, sizes, committed)))
    log_ids, (_, last_offset, object_id, _, byte_size, *_) = log.run_columns()
    places = list(log.partitions.places.values())
    topics = list(dict.fromkeys(topic_id for topic_id, _ in places))
    number = {topic_id: i for i, topic_id in enumerate(topics)}
    topic = np.array([number[topic_id] for topic_id, _ in places], np.int64)
    partition = np.array([index for _, index in places], np.int64)
    at = {log_id: i for i, log_id in enumerate(log.partitions.places)}
    run = np.array([at[log_id] for log_id in log_ids.tolist()], np.int64)
    live = last_offset >= job.log_starts(topics, partition, topic)[run]
    place = np.searchsorted(objects.ids, object_id)
    runs = _Runs(topics, topic[run], partition[run], place, byte_size, live)
    partitions, _ = _pairs(place, run)
    count = len(objects.ids)
    footers = FOOTER_BYTES + ENTRY_BYTES * np.bincount(partitions[0], minlength=count)
    unused = objects.sizes - _sums(place[live], byte_size[live], count)
    yield from _rot(job, work.log, objects, runs, objects.sizes - np.minimum(unused, footers))


def _objects(columns: Numbers) -> _Objects:
    return _Objects(*columns[:, np.argsort(columns[0], kind="stable")])
