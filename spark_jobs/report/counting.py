"""Makes the second pass: counts bytes, sizes and latencies of what was written, and what of it is
still live.

Why nothing has to be joined: all batches of an object stand in one record, so a task that reads the
record knows all about the object as soon as it has the log starts. A checkpoint, which keeps runs
and objects apart, is read by one task too.

Live bytes are decided as a coordinator decides: by runs, batches that lie back to back in one
object. A whole run is live while its last offset is at or above its partition's log start.

Bytes of an object that belong to no batch, its footer, are called framing and belong to no topic. A
checkpoint does not say how many there are: there they are estimated from the footers' format.

Source: docs/design/batch-coordinator.md#runs, docs/design/batch-coordinator.md#deletion,
docs/design/pipeline.md#the-report; KIP-1163 (objects are shared).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from records.final_batches import MAX_RUN_BYTES
from spark_jobs.report.cube import Numbers, Work, band_starts, merge_rows, rows
from spark_jobs.report.first_pass import FirstPassResult
from spark_jobs.report.window import Window
from spark_jobs.tables.arrow_batches import read_table
from spark_jobs.tables.coordinator_log import STATE_KEYS, CoordinatorLog, fold
from spark_jobs.tables.partitions import KEYS as PARTITION_KEYS
from spark_jobs.tables.runs import (
    NO_OBJECT,
    RUN_COLUMNS,
    column,
    is_accepted,
    is_covered,
    join_runs,
    transactions_of,
)
from spark_jobs.tables.runs import batches as batches_of
from spark_jobs.tables.schemas import OBJECT_COMMIT

LIVE, PINNED, FREE = "live", "pinned", "free"
"""Objects with only live batches; with live and dead ones; with none, which wait for deletion."""

UNKNOWN: Final = ""
"""The topic of dead bytes that are known only from a checkpoint."""

FOOTER_BYTES: Final = 80
ENTRY_BYTES: Final = 48
"""Largest size of an object's footer with its trailer, and of a partition in it (`records.wal`)."""

SMALL_RUN_BYTES: Final = MAX_RUN_BYTES // 2
"""Smaller runs are merged by brokers (`diskless.compaction.planner`)."""

_HOUR: Final = 3_600_000
AGES: Final = (
    ("< 1 h", _HOUR), ("1–6 h", 6 * _HOUR), ("6–24 h", 24 * _HOUR), ("1–3 d", 72 * _HOUR),
    ("3–7 d", 168 * _HOUR), ("7–30 d", 720 * _HOUR), ("30–90 d", 2160 * _HOUR), ("> 90 d", None),
)  # fmt: skip
"""Age classes: name, and end (exclusive) in ms."""

_AGE_ENDS: Final = np.array([end for _, end in AGES if end is not None], np.int64)
STILL_THERE: Final = -1
DUPLICATE: Final = -1
"""The outcome of a duplicate; other outcomes are error codes, and 0 means stored."""


ReplacedRanges = Mapping[tuple[str, int], list[tuple[int, int]]]
"""Ranges of offsets whose runs were replaced, by topic id and partition; ends are exclusive."""


@dataclass(frozen=True, slots=True)
class Counting:
    """Counts one piece of a coordinator's log. A `Reduce`."""

    window: Window
    known: FirstPassResult
    now_ms: int  # that ages are counted from
    replaced: Mapping[int, ReplacedRanges] = field(default_factory=dict)  # by coordinator

    def __call__(self, work: Work) -> pa.Table:
        """Count the records in one span of a coordinator's log, and return the counts as rows."""
        parts = _checkpoint if work.span.is_checkpoint else _commits
        return merge_rows(parts(self, work))

    def removed_ms(self, log: int, object_ids: Numbers) -> Numbers:
        """Return the time bucket of each object's removal; STILL_THERE for objects not removed."""
        gone = self.known.removed.get(log, np.zeros((2, 0), np.int64))
        if not gone.shape[1]:
            return np.full(len(object_ids), STILL_THERE, np.int64)
        at = np.minimum(np.searchsorted(gone[0], object_ids), gone.shape[1] - 1)
        return np.where(gone[0][at] == object_ids, gone[1][at], STILL_THERE)

    def is_replaced(
        self, log: int, places: Sequence[tuple[str, int]], place: Numbers, base_offsets: Numbers
    ) -> npt.NDArray[np.bool_]:
        """Return a mask of the runs whose ranges of offsets were replaced by other runs.

        Args:    places: topic ids and partitions. place: of each run, into them, rising.
        """
        known = self.replaced.get(log, {})
        ranges = {i: known[name] for i, name in enumerate(places) if name in known}
        return is_covered(place, base_offsets, ranges)

    def log_starts(self, topics: list[str], partitions: Numbers, codes: Numbers) -> Numbers:
        """Return each partition's log start; `codes` index the partitions' topics in `topics`."""
        starts = self.known.log_starts
        places = zip(codes.tolist(), partitions.tolist(), strict=True)
        return np.array([starts.get((topics[code], index), 0) for code, index in places], np.int64)


def _pairs(first: Numbers, second: Numbers) -> tuple[Numbers, Numbers]:
    """Return the distinct pairs of two columns, and for each row the index of its pair."""
    pairs, inverse = np.unique(np.stack((first, second)), axis=1, return_inverse=True)
    return pairs, inverse.reshape(-1)


# --- what was written ---------------------------------------------------------------------------


def _commits(job: Counting, work: Work) -> Iterator[pa.Table]:
    for batch in read_table(OBJECT_COMMIT, work.span):  # whole records: no object is in two
        yield merge_rows(_count_batches(job, work.log, _Batches(batch)))


class _Batches:
    """The batches of some commits as columns, in the log's order."""

    def __init__(self, commits: pa.RecordBatch) -> None:
        topics = commits.column("topic_id").dictionary_encode()
        self.commits = commits
        self.topics: list[str] = topics.dictionary.to_pylist()
        self.topic: Numbers = topics.indices.to_numpy().astype(np.int64)  # into topics
        self.stored = is_accepted(commits)  # neither refused nor a duplicate

    def __getitem__(self, name: str) -> Numbers:
        return column(self.commits, name)


def _aggregate(
    measure: str,
    keys: dict[str, Numbers],
    values: dict[str, Numbers | None],
    topics: list[str] | None = None,
    *,
    label: str = "",
) -> pa.Table:
    """Aggregate value columns into one row for each key; a value None counts the key's rows.

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


def _count_batches(job: Counting, log: int, batches: _Batches) -> Iterator[pa.Table]:
    yield from _throughput(job, batches)
    yield from _transactions(job, batches)
    objects, first = np.unique(batches["object_id"], return_index=True)
    sizes, brokers = batches["size_bytes"][first], batches["broker_id"][first]
    committed = batches["committed_at_ms"][first]
    yield _aggregate(
        "broker",
        {"number": brokers, "time_ms": job.window.buckets(committed)},
        {"objects": None, "bytes": sizes},
    )
    yield _aggregate(
        "object_size", {"level": band_starts(sizes)}, {"objects": None, "bytes": sizes}
    )
    at = np.searchsorted(objects, batches["object_id"])
    yield _fan_in(batches, at, len(objects))
    runs = _runs_of(job, log, batches, objects)
    yield from _count_unused(
        job,
        log,
        _Objects(objects, sizes, committed),
        runs,
        np.bincount(at, weights=batches["byte_size"], minlength=len(objects)).astype(np.int64),
    )


def _throughput(job: Counting, batches: _Batches) -> Iterator[pa.Table]:
    """Count batches by outcome, topic, producer, partition and size, and their commit delays."""
    outcome = np.where(batches["duplicate"] != 0, DUPLICATE, batches["error_code"])
    yield _aggregate(
        "outcome", {"number": outcome}, {"batches": None, "bytes": batches["byte_size"]}
    )
    stored = batches.stored
    sizes, committed = batches["byte_size"][stored], batches["committed_at_ms"][stored]
    topic, bucket = batches.topic[stored], job.window.buckets(committed)
    written: dict[str, Numbers | None] = {
        "batches": None,
        "records": batches["record_count"][stored],
        "bytes": sizes,
    }
    yield _aggregate("topic", {"name": topic, "time_ms": bucket}, written, batches.topics)
    yield _aggregate(
        "producer", {"number": batches["producer_id"][stored], "time_ms": bucket}, written
    )
    yield _aggregate(
        "partition",
        {"name": topic, "number": batches["partition"][stored]},
        {**written, "lowest": committed, "highest": committed},
        batches.topics,
    )
    yield _aggregate("batch_size", {"level": band_starts(sizes)}, {"batches": None, "bytes": sizes})
    created = (batches["timestamp_type"][stored] == 0) & (batches["max_timestamp"][stored] >= 0)
    late = committed[created] - batches["max_timestamp"][stored][created]
    yield _aggregate(
        "latency", {"time_ms": bucket[created], "level": band_starts(late)}, {"batches": None}
    )


def _transactions(job: Counting, batches: _Batches) -> Iterator[pa.Table]:
    """Count transactional batches and the aborted ones, and note which transactions began.

    Of a producer in a partition only its last transaction of the piece can be open at the end.
    """
    producers, numbers = transactions_of(batches.commits)
    chosen = np.flatnonzero(batches.stored & (numbers >= 0))
    base = batches["base_offset"]
    ends = base + batches["record_count"]
    stored = batches.stored
    yield _aggregate(
        "end",
        {"name": batches.topic[stored], "number": batches["partition"][stored]},
        {"highest": ends[stored]},
        batches.topics,
    )
    if not len(chosen):
        return
    topic, partition = batches.topic[chosen], batches["partition"][chosen]
    producer, number, base = producers[chosen], numbers[chosen], base[chosen]
    sizes, committed = batches["byte_size"][chosen], batches["committed_at_ms"][chosen]
    keys, inverse = np.unique(np.stack((topic, partition, producer)), axis=1, return_inverse=True)
    inverse = inverse.reshape(-1)
    aborted, newest = np.zeros(len(chosen), np.bool_), np.full(keys.shape[1], -1)
    np.maximum.at(newest, inverse, number)
    for i, (code, index, producer_id) in enumerate(keys.T.tolist()):
        pairs = job.known.aborted.get((batches.topics[code], index, producer_id))
        if pairs is not None:
            mine = np.flatnonzero(inverse == i)
            at = np.searchsorted(pairs[0], base[mine], side="right") - 1
            aborted[mine] = (at >= 0) & (base[mine] < pairs[1][np.maximum(at, 0)])
    yield _aggregate(
        "transactional",
        {"name": topic},
        {"batches": None, "records": batches["record_count"][chosen], "bytes": sizes,
         "part_bytes": np.where(aborted, sizes, 0)},
        batches.topics,
    )  # fmt: skip
    last = number == newest[inverse]
    begun = {
        "name": topic[last], "number": partition[last], "level": producer[last],
        "time_ms": number[last],
    }  # fmt: skip
    values: dict[str, Numbers | None] = {"lowest": base[last]}
    yield _aggregate("begun", begun, values, batches.topics)
    yield _aggregate("begun_at", begun, {"lowest": committed[last]}, batches.topics)


def _fan_in(batches: _Batches, at: Numbers, objects: int) -> pa.Table:
    """Count objects by how many topics and how many partitions each object contains."""
    of_object, _ = _pairs(at, batches.topic)
    places = np.stack((at, batches.topic, batches["partition"]))
    partitions = np.unique(places, axis=1)[0]
    return _aggregate(
        "fan_in",
        {
            "number": band_starts(np.bincount(of_object[0], minlength=objects)),
            "level": band_starts(np.bincount(partitions, minlength=objects)),
        },
        {"objects": None},
    )


# --- live and dead bytes ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Objects:
    """Objects as columns, by rising id."""

    ids: Numbers
    sizes: Numbers
    committed_ms: Numbers


@dataclass(frozen=True, slots=True)
class _Runs:
    """Live and dead runs of objects, as columns."""

    topics: list[str]
    topic: Numbers  # into topics
    partition: Numbers
    place: Numbers  # into the objects
    sizes: Numbers
    live: npt.NDArray[np.bool_]


def _runs_of(job: Counting, log: int, batches: _Batches, objects: Numbers) -> _Runs:
    """Return the runs of batches in each object, and whether consumers can still read each run."""
    pairs, partition = _pairs(batches.topic, batches["partition"])
    stored, refused = batches.stored, ~batches.stored
    of_run, run = join_runs(
        partition[stored],
        batches_of(batches.commits)[:, stored],
        transactions_of(batches.commits)[:, stored],
    )
    partitions = np.concatenate((of_run, partition[refused]))
    live = run[1] >= job.log_starts(batches.topics, pairs[1], pairs[0])[of_run]
    places = [(batches.topics[code], index) for code, index in pairs.T.tolist()]
    live &= ~job.is_replaced(log, places, of_run, run[0])
    ids = np.concatenate((run[2], batches["object_id"][refused]))
    return _Runs(
        batches.topics,
        pairs[0][partitions],
        pairs[1][partitions],
        np.searchsorted(objects, ids),
        np.concatenate((run[4], batches["byte_size"][refused])),
        np.concatenate((live, np.zeros(int(refused.sum()), np.bool_))),
    )


def _count_unused(
    job: Counting, log: int, objects: _Objects, runs: _Runs, batch_bytes: Numbers
) -> Iterator[pa.Table]:
    """Count used and unused bytes of objects by object age, by partition and by pinning topic.

    Args:  batch_bytes: of each object, without its framing.
    """
    removed_ms = job.removed_ms(log, objects.ids)
    there = removed_ms == STILL_THERE
    yield _aggregate("removed_in", {"time_ms": removed_ms[~there]}, {"objects": None})
    used = _sums(runs.place[runs.live], runs.sizes[runs.live], len(there))
    dead = batch_bytes - used
    status = np.where(used == 0, FREE, np.where(dead == 0, LIVE, PINNED))
    age = np.searchsorted(_AGE_ENDS, job.now_ms - objects.committed_ms, side="right")
    for label in (LIVE, PINNED, FREE):
        of_label = there & (status == label)
        yield _aggregate(
            "rot",
            {"level": age[of_label]},
            {"objects": None, "bytes": batch_bytes[of_label], "part_bytes": used[of_label]},
            label=label,
        )
    framing = objects.sizes - batch_bytes
    yield rows("framing", 1, objects=int(there.sum()), bytes=int(framing[there].sum()))
    kept = there[runs.place]
    names = [*runs.topics, UNKNOWN]
    yield _aggregate(
        "held",
        {"name": runs.topic[kept], "number": runs.partition[kept]},
        {"bytes": runs.sizes[kept], "part_bytes": np.where(runs.live, runs.sizes, 0)[kept]},
        names,
    )
    yield _reads(runs, kept & runs.live)
    known = _sums(runs.place, runs.sizes, len(there))
    unknown = int((batch_bytes - known)[there].sum())
    if unknown:
        yield rows("held", 1, bytes=unknown)
    yield _pins(runs, there & (status == PINNED), dead)


def _reads(runs: _Runs, chosen: npt.NDArray[np.bool_]) -> pa.Table:
    """Count, for each topic, the live runs: a consumer needs a GET for each of them.

    `objects` and `part_bytes` count the small ones, which brokers merge.
    """
    sizes = runs.sizes[chosen]
    small = sizes < SMALL_RUN_BYTES
    return _aggregate(
        "run",
        {"name": runs.topic[chosen]},
        {
            "batches": None,
            "bytes": sizes,
            "objects": small.astype(np.int64),
            "part_bytes": np.where(small, sizes, 0),
        },
        runs.topics,
    )


def _sums(place: Numbers, sizes: Numbers, count: int) -> Numbers:
    sums = np.zeros(count, np.int64)
    np.add.at(sums, place, sizes)
    return sums


def _pins(runs: _Runs, pinned: npt.NDArray[np.bool_], dead: Numbers) -> pa.Table:
    """Count, for each topic, unused bytes of objects that stay because of its live batches.

    `bytes` counts all objects that the topic pins, `part_bytes` those that it alone pins.

    An object that several topics keep counts for each of them: it goes when the last lets go.
    """
    chosen = runs.live & pinned[runs.place]
    pairs, _ = _pairs(runs.topic[chosen], runs.place[chosen])
    topic, place = pairs
    alone = np.bincount(place, minlength=len(dead))[place] == 1
    return _aggregate(
        "pin",
        {"name": topic},
        {"objects": None, "bytes": dead[place], "part_bytes": np.where(alone, dead[place], 0)},
        runs.topics,
    )


# --- checkpoints --------------------------------------------------------------------------------


def _checkpoint(job: Counting, work: Work) -> Iterator[pa.Table]:
    log = CoordinatorLog()
    fold(work.span.values(), log.handlers(STATE_KEYS | PARTITION_KEYS))
    yield from _open_in_checkpoint(log)
    ids, sizes, _, committed, _, _ = log.object_columns()
    objects = _objects(np.stack((ids, sizes, committed)))
    log_ids, runs_here = log.run_columns()
    in_objects = runs_here[2] != NO_OBJECT
    log_ids, (base_offset, last_offset, object_id, _, byte_size, *_) = (
        log_ids[in_objects], runs_here[:, in_objects],
    )  # fmt: skip
    places = list(log.partitions.places.values())
    topics = list(dict.fromkeys(topic_id for topic_id, _ in places))
    number = {topic_id: i for i, topic_id in enumerate(topics)}
    topic = np.array([number[topic_id] for topic_id, _ in places], np.int64)
    partition = np.array([index for _, index in places], np.int64)
    at = {log_id: i for i, log_id in enumerate(log.partitions.places)}
    run = np.array([at[log_id] for log_id in log_ids.tolist()], np.int64)
    live = last_offset >= job.log_starts(topics, partition, topic)[run]
    order = np.argsort(run, kind="stable")
    live[order] &= ~job.is_replaced(work.log, places, run[order], base_offset[order])
    place = np.searchsorted(objects.ids, object_id)
    runs = _Runs(topics, topic[run], partition[run], place, byte_size, live)
    yield from _count_whole(job, work.log, objects, runs)


def _open_in_checkpoint(log: CoordinatorLog) -> Iterator[pa.Table]:
    """Note where partitions end, and which transactions are open, as of a checkpoint."""
    places = log.partitions.places
    logs = [log.partitions.topics[topic].partitions[index].high_watermark
            for topic, index in places.values()]  # fmt: skip
    topics, indexes = [place[0] for place in places.values()], [one[1] for one in places.values()]
    yield rows("end", len(logs), name=topics, number=indexes, highest=logs)
    for record in log.producers:
        topic, index = places[record.log_id]
        facts = zip(
            record.producer_ids, record.open_numbers, record.first_offsets, record.appended_at_ms,
            strict=False,
        )  # fmt: skip
        for producer, number, first, appended_at_ms in facts:
            if number >= 0:
                key = {"name": topic, "number": index, "level": producer, "time_ms": number}
                yield rows("begun", 1, **key, lowest=first)
                yield rows("begun_at", 1, **key, lowest=appended_at_ms)


def _objects(columns: Numbers) -> _Objects:
    return _Objects(*columns[:, np.argsort(columns[0], kind="stable")])


# --- rewritten objects --------------------------------------------------------------------------


def count_rewritten(job: Counting, log: int, found: CoordinatorLog) -> pa.Table:
    """Count used and unused bytes of rewritten objects, by the runs that were not replaced later.

    Args:    found: with all records of the log that say which runs were replaced.
    """
    objects = found.rewritten_objects
    facts = [(one, item.size_bytes, item.committed_at_ms) for one, item in objects.items()]
    known = _objects(np.array(facts, np.int64).reshape(-1, 3).T)
    places = list(found.rewritten)
    topics = list(dict.fromkeys(topic_id for topic_id, _ in places))
    topic = np.array([topics.index(topic_id) for topic_id, _ in places], np.int64)
    partition = np.array([index for _, index in places], np.int64)
    counts = [len(rows_of_place) for rows_of_place in found.rewritten.values()]
    run = np.repeat(np.arange(len(places)), np.array(counts, np.int64))
    columns = np.array([row for rows_of in found.rewritten.values() for row in rows_of], np.int64)
    _, last_offset, object_id, _, byte_size, *_ = columns.reshape(-1, len(RUN_COLUMNS)).T
    live = last_offset >= job.log_starts(topics, partition, topic)[run]
    place = np.searchsorted(known.ids, object_id)
    runs = _Runs(topics, topic[run], partition[run], place, byte_size, live)
    return merge_rows(_count_whole(job, log, known, runs))


def _count_whole(job: Counting, log: int, objects: _Objects, runs: _Runs) -> Iterator[pa.Table]:
    """Count used and unused bytes of objects, after subtracting the estimated size of footers."""
    count = len(objects.ids)
    partitions, _ = _pairs(runs.place, runs.topic << 32 | runs.partition)
    footers = FOOTER_BYTES + ENTRY_BYTES * np.bincount(partitions[0], minlength=count)
    unused = objects.sizes - _sums(runs.place[runs.live], runs.sizes[runs.live], count)
    batch_bytes = objects.sizes - np.minimum(unused, footers)
    yield from _count_unused(job, log, objects, runs, batch_bytes)
