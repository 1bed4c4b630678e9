"""Rules that a coordinator's checkpoint must satisfy by itself, and against the log before it.

Source: invariants 4, 5, 7 and 8 (docs/design/invariants.md); KIP-630.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Final, TypeVar

from spark_jobs.audit.answers import comparable_answers
from spark_jobs.audit.checkpoints import CoordinatorFacts, Object
from spark_jobs.audit.objects import Digest
from spark_jobs.audit.rows import TopicPartition
from spark_jobs.audit.rules import Fault, Faults, rule, rules_of

K = TypeVar("K")
V = TypeVar("V")

MAX_VALUE_CHARACTERS: Final = 500
"""Characters of one value in a violation: a lease may have thousands of ranges."""

NO_RUNS: Final = Digest(0, 0, 0)


# --- is it sound --------------------------------------------------------------------------------


@rule("checkpoint-used-bytes", "8", "Used bytes of an object are the sum of its live runs.")
def checkpoint_used_bytes(checkpoint: CoordinatorFacts) -> Faults:
    for object_id, item in checkpoint.objects.items():
        used = checkpoint.live.used.get(object_id, 0)
        if item.used_bytes != used:
            what = f"{item.used_bytes} bytes used, its live runs have {used}"
            yield Fault(checkpoint.offset, what, "ObjectsState", object_id)


@rule(
    "checkpoint-runs-contiguous",
    "5",
    "Live runs cover the log from its start to its end, without gaps.",
)
def checkpoint_runs_contiguous(checkpoint: CoordinatorFacts) -> Faults:
    for place, partition in checkpoint.partitions.items():
        name = f"{place[0]}-{place[1]}"
        if partition.log_start > partition.high_watermark:
            continue  # checkpoint-log-starts reports it
        stretches = checkpoint.stretches.get(place, [])
        for before, after in pairwise(stretches):
            if after.base_offset != before.end_offset:
                what = f"{name}: a run at {after.base_offset} after one to {before.end_offset}"
                yield Fault(checkpoint.offset, what, "RunsState")
        begins, ends = partition.log_start, partition.log_start
        if stretches:
            begins, ends = stretches[0].base_offset, stretches[-1].end_offset
            if stretches[0].first_last_offset < partition.log_start:
                begins = -1  # its first run is dead
        if not 0 <= begins <= partition.log_start or ends != partition.high_watermark:
            what = f"{name}: runs from {begins} to {ends}, the log has {partition[1:]}"
            yield Fault(checkpoint.offset, what, "RunsState")


@rule("checkpoint-log-starts", "8", "No log start offset is above its high watermark.")
def checkpoint_log_starts(checkpoint: CoordinatorFacts) -> Faults:
    for place, partition in checkpoint.partitions.items():
        if not 0 <= partition.log_start <= partition.high_watermark:
            what = f"{place[0]}-{place[1]}: log start {partition[1]}, high watermark {partition[2]}"
            yield Fault(checkpoint.offset, what, "DisklessTopicState")


@rule("checkpoint-objects-known", "7", "Runs lie inside objects that the checkpoint lists.")
def checkpoint_objects_known(checkpoint: CoordinatorFacts) -> Faults:
    for object_id in checkpoint.live.used:
        if object_id not in checkpoint.objects:
            yield Fault(
                checkpoint.offset,
                "it has runs, but the checkpoint does not list it",
                "RunsState",
                object_id,
            )
    for object_id, what in checkpoint.outside:
        yield Fault(checkpoint.offset, what, "RunsState", object_id)


@rule("checkpoint-marked-unused", "7", "No marked object is in use.")
def checkpoint_marked_unused(checkpoint: CoordinatorFacts) -> Faults:
    for object_id, item in checkpoint.objects.items():
        if item.marked_at_ms >= 0 and item.used_bytes > 0:
            what = f"marked, and {item.used_bytes} bytes are used"
            yield Fault(checkpoint.offset, what, "ObjectsState", object_id)


@rule(
    "checkpoint-aborted-marked", "13",
    "An aborted transaction ends at a marker that aborts it, or in a rewritten run.",
)  # fmt: skip
def checkpoint_aborted_marked(checkpoint: CoordinatorFacts) -> Faults:
    for place, what in checkpoint.uncovered:
        yield Fault(checkpoint.offset, f"{place[0]}-{place[1]}: {what}", "AbortedState")


@rule(
    "checkpoint-open-between", "13",
    "An open transaction begins where a run begins, so that the last stable offset cuts no run.",
)  # fmt: skip
def checkpoint_open_between(checkpoint: CoordinatorFacts) -> Faults:
    for place, what in checkpoint.inside:
        yield Fault(checkpoint.offset, f"{place[0]}-{place[1]}: {what}", "ProducersState")


STANDALONE_RULES: Final = tuple(rules_of(__name__))
"""Rules that a checkpoint must satisfy by itself."""


# --- is it what the log says --------------------------------------------------------------------


@rule("checkpoint-topics-replay", "4", "A checkpoint's topics and partitions are the log's.")
def checkpoint_topics_replay(checkpoint: CoordinatorFacts, log: CoordinatorFacts) -> Faults:
    yield from _compare(checkpoint, checkpoint.topics, log.topics, "DisklessTopicState", "topic")
    yield from _compare(
        checkpoint,
        checkpoint.partitions,
        log.partitions,
        "DisklessTopicState",
        "partition",
        _of_place,
    )


@rule("checkpoint-runs-replay", "4", "A checkpoint's live runs are the log's.")
def checkpoint_runs_replay(checkpoint: CoordinatorFacts, log: CoordinatorFacts) -> Faults:
    ours, theirs = checkpoint.live.partitions, log.live.partitions
    for place in sorted(ours.keys() | theirs.keys()):
        digest, replayed = ours.get(place, NO_RUNS), theirs.get(place, NO_RUNS)
        if digest != replayed:
            what = f"{digest.runs} runs of {digest.bytes} bytes"
            what += f", by the log {replayed.runs} of {replayed.bytes}"
            if digest[:2] == replayed[:2]:
                what += ", other ones"
            yield Fault(checkpoint.offset, f"{place[0]}-{place[1]}: {what}", "RunsState")


@rule("checkpoint-objects-replay", "4", "A checkpoint's objects are the log's.")
def checkpoint_objects_replay(checkpoint: CoordinatorFacts, log: CoordinatorFacts) -> Faults:
    ours, theirs = _objects(checkpoint), _objects(log)
    yield from _compare(checkpoint, ours, theirs, "ObjectsState", "object")


@rule("checkpoint-producers-replay", "4", "A checkpoint's producers are the log's.")
def checkpoint_producers_replay(checkpoint: CoordinatorFacts, log: CoordinatorFacts) -> Faults:
    ours, theirs = _producers(checkpoint), _producers(log)
    yield from _compare(checkpoint, ours, theirs, "ProducersState", "producer", _of_producer)


@rule("checkpoint-leases-replay", "4", "A checkpoint's leases are the log's.")
def checkpoint_leases_replay(checkpoint: CoordinatorFacts, log: CoordinatorFacts) -> Faults:
    yield from _compare(checkpoint, checkpoint.leases, log.leases, "LeaseState", "lease")


@rule("checkpoint-counters-replay", "4", "A checkpoint's counters are the log's.")
def checkpoint_counters_replay(checkpoint: CoordinatorFacts, log: CoordinatorFacts) -> Faults:
    if checkpoint.counters != log.counters:
        says = f"the checkpoint says {_plain(checkpoint.counters)}, the log {_plain(log.counters)}"
        yield Fault(checkpoint.offset, says, "CoordinatorState")


@rule("checkpoint-cleaning-replay", "4", "How far partitions are cleaned is as the log says.")
def checkpoint_cleaning_replay(checkpoint: CoordinatorFacts, log: CoordinatorFacts) -> Faults:
    ours, theirs = checkpoint.cleanings, log.cleanings
    yield from _compare(checkpoint, ours, theirs, "CleaningState", "partition", _of_place)


@rule("checkpoint-answers-replay", "4, 6", "A checkpoint's kept answers are the log's.")
def checkpoint_answers_replay(checkpoint: CoordinatorFacts, log: CoordinatorFacts) -> Faults:
    ours, theirs = comparable_answers(checkpoint.kept), comparable_answers(log.kept)
    yield from _compare(checkpoint, ours, theirs, "KeptAnswerState", "kept")


@rule("checkpoint-aborted-replay", "4, 13", "A checkpoint's aborted transactions are the log's.")
def checkpoint_aborted_replay(checkpoint: CoordinatorFacts, log: CoordinatorFacts) -> Faults:
    ours, theirs = checkpoint.aborted, log.aborted
    yield from _compare(checkpoint, ours, theirs, "AbortedState", "partition", _of_place)


REPLAY_RULES: Final = tuple(rules_of(__name__)[len(STANDALONE_RULES) :])
"""Rules that compare a checkpoint with the log before it."""


@rule("checkpoint-readable", "4", "A checkpoint is whole, and its checksums are right.")
def checkpoint_readable(offset: int, why: str) -> Faults:
    yield Fault(offset, why)


def _objects(facts: CoordinatorFacts) -> dict[int, Object]:
    """Return the objects with used bytes set to 0, so that used bytes are not compared."""
    return {object_id: item._replace(used_bytes=0) for object_id, item in facts.objects.items()}


def _producers(facts: CoordinatorFacts) -> dict[tuple[TopicPartition, int], Any]:
    """Return the producers' states without log offsets, which no checkpoint stores."""
    return {
        key: (
            producer.epoch,
            producer.appended_at_ms,
            tuple(batch[:3] for batch in producer.batches),
            producer.transactions,
        )
        for key, producer in facts.producers.items()
    }


def _of_place(place: TopicPartition) -> str:
    return f"{place[0]}-{place[1]}"


def _of_producer(key: tuple[TopicPartition, int]) -> str:
    return f"{key[1]} of {_of_place(key[0])}"


def _compare(
    checkpoint: CoordinatorFacts,
    ours: Mapping[K, V],
    theirs: Mapping[K, V],
    record: str,
    kind: str,
    name: Callable[[Any], str] = str,
) -> Faults:
    for key in ours.keys() | theirs.keys():
        value, replayed = ours.get(key), theirs.get(key)
        if value != replayed:
            says = f"the checkpoint says {_plain(value)}, the log {_plain(replayed)}"
            object_id = key if kind == "object" and isinstance(key, int) else None
            yield Fault(checkpoint.offset, f"{kind} {name(key)}: {says}", record, object_id)


def _plain(value: object) -> str:
    if value is None:
        return "there is none"
    fields = getattr(value, "_asdict", None)
    text = str(value)
    if fields is not None:
        text = ", ".join(f"{name}={field}" for name, field in fields().items())
    return text if len(text) <= MAX_VALUE_CHARACTERS else f"{text[:MAX_VALUE_CHARACTERS]}..."
