"""A sweep of a whole cluster: what retention would remove, and what that frees.

    plan = make_plan(ReplicaLogs(Path("/var/lib/esker"), {...}), now_ms=now)

The pieces of all coordinators' logs are worked on together, by whichever engine; between the passes
(`spark_jobs.retention.plan`) a few numbers for each partition are in this process, and never all
runs.

A replica that lags gives an older plan, and an older plan is a smaller one, never a wrong one.

Source: docs/design/pipeline.md#plans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

from spark_jobs.plans.retention_plan import Effect, Plan, PlanRow
from spark_jobs.readers.engines import Engine, LocalEngine
from spark_jobs.readers.logs import CLUSTER_METADATA, DISKLESS_METADATA, Log, Logs, coordinators_of
from spark_jobs.readers.spans import epoch_before
from spark_jobs.retention.digests import Digest
from spark_jobs.retention.effects import PieceEffect, effect_of, summed
from spark_jobs.retention.plan import (
    Crossed,
    Limits,
    Live,
    Planner,
    Question,
    Starts,
    crossed_in,
    live_of,
    moved,
)
from spark_jobs.retention.sidecars import Sidecars, Work
from spark_jobs.tables.topics import TopicSettings, topics_at

Progress = Callable[[str], None]

PIECE_BYTES: Final = 64 * 1024 * 1024
"""Of log in one piece. Digests are kept by their offsets: with another size they are made anew."""

PASSES: Final = 4
"""Over pieces; `progress` is told the name of each."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Where a piece belongs: to which of the coordinators, and which of its pieces it is."""

    coordinator: int  # by its place in the survey
    number: int
    work: Work


@dataclass(frozen=True, slots=True)
class Survey:
    """What there is to look at, and what it is looked at with."""

    cluster_id: str
    read: Mapping[str, int]  # log: its committed end, exclusive
    topics: Mapping[str, TopicSettings]
    coordinators: Sequence[int]
    pieces: Sequence[Piece]
    logs: Mapping[str, Log]  # of the coordinators


def survey(logs: Logs) -> Survey:
    """What can be read now.

    Raises:  LogsError; LostRangeError, DamagedFileError, RecordError; OSError.
    """
    read: dict[str, int] = {}

    def committed(name: str) -> tuple[Log, int]:
        log = logs.log(name)
        read[name] = log.end_offset()
        return log, read[name]

    topics = topics_at(*committed(CLUSTER_METADATA))
    coordinators = coordinators_of(logs)
    pieces, found = [], {}
    for i, coordinator in enumerate(coordinators):
        name = f"{DISKLESS_METADATA}{coordinator}"
        found[name], end = committed(name)
        for number, span in enumerate(found[name].spans(end, split_bytes=PIECE_BYTES)):
            pieces.append(Piece(i, number, Work(logs.cluster_id, name, span)))
    return Survey(logs.cluster_id, read, topics, coordinators, pieces, found)


def make_plan(
    logs: Logs,
    *,
    now_ms: int,
    engine: Engine | None = None,
    sidecars: Sidecars | None = None,
    progress: Progress = lambda _: None,
) -> Plan:
    """What retention would remove, as of what can be read.

    Args:    now_ms: ms since 1970, that ages are counted from.
             engine: who works on the pieces; None: this process.
             sidecars: where digests are kept; None: nowhere.
             progress: told what is done next.
    Raises:  LogsError; LostRangeError, DamagedFileError, RecordError; OSError.
    """
    found, kept = survey(logs), sidecars or Sidecars(None)
    return plan_of(found, now_ms, engine or LocalEngine(), kept, progress)


def plan_of(
    found: Survey,
    now_ms: int,
    engine: Engine,
    kept: Sidecars,
    progress: Progress = lambda _: None,
) -> Plan:
    """The same of what was surveyed."""
    progress("digests")
    for name, log in found.logs.items():
        epoch = cache(partial(epoch_before, log))  # of an archive it is some work
        if not kept.keep_to(found.cluster_id, name, found.read[name], epoch):
            kept = Sidecars(None)
    digests = _digests(engine, kept, found)
    planners = [Planner(one, found.topics) for one in digests]
    progress("log starts")
    asked = [dict(planner.beginnings()) for planner in planners]
    begun = _ask(engine, partial(_live, kept), found.pieces, asked)
    for planner, live in zip(planners, begun, strict=True):
        planner.begun(live)
    progress("limits")
    limits = [dict(planner.limits(now_ms)) for planner in planners]
    crossed = _ask(engine, partial(_crossed, kept), found.pieces, limits)
    rows = [
        planner.plan(coordinator, told)
        for planner, coordinator, told in zip(planners, found.coordinators, crossed, strict=True)
    ]
    progress("objects")
    effects = _effects(engine, kept, found.pieces, planners, rows)
    return Plan(
        found.cluster_id,
        now_ms,
        found.read,
        [row for some in rows for row in some],
        dict(zip(found.coordinators, effects, strict=True)),
    )


def _digests(engine: Engine, kept: Sidecars, found: Survey) -> list[list[Digest]]:
    """Of each coordinator's pieces. What is kept here is read here: it is a few KB each."""
    for piece in found.pieces:
        if piece.number == 0:
            kept.drop_before(piece.work)
    known = [kept.known_digest(piece.work) for piece in found.pieces]
    unknown = [piece.work for piece, one in zip(found.pieces, known, strict=True) if one is None]
    made = iter(engine.run(partial(_digest, kept), unknown))
    digests: list[list[Digest]] = [[] for _ in found.coordinators]
    for piece, one in zip(found.pieces, known, strict=True):
        digests[piece.coordinator].append(next(made) if one is None else one)
    return digests


def _ask(
    engine: Engine, task: Any, pieces: Sequence[Piece], asked: Sequence[Mapping[int, Any]]
) -> list[dict[int, Any]]:
    """Each planner's questions about its pieces, answered."""
    some = [piece for piece in pieces if piece.number in asked[piece.coordinator]]
    questions = [(one.work, asked[one.coordinator][one.number]) for one in some]
    told = engine.run(task, questions, light=True)
    answers: list[dict[int, Any]] = [{} for _ in asked]
    for piece, answer in zip(some, told, strict=True):
        answers[piece.coordinator][piece.number] = answer
    return answers


def _effects(
    engine: Engine,
    kept: Sidecars,
    pieces: Sequence[Piece],
    planners: list[Planner],
    rows: list[list[PlanRow]],
) -> list[Effect]:
    starts = [
        (planner.starts, moved(planner.starts, some))
        for planner, some in zip(planners, rows, strict=True)
    ]
    told = engine.run(
        partial(_effect, kept, starts),
        [(piece.work, piece.coordinator) for piece in pieces],
        light=True,
    )
    effects = []
    for i, planner in enumerate(planners):
        names = {topic_id: topic.name for topic_id, topic in planner.partitions.topics.items()}
        parts = (part for piece, part in zip(pieces, told, strict=True) if piece.coordinator == i)
        effects.append(summed(parts, names))
    return effects


# --- what runs on a piece, wherever it is ---------------------------------------------------------


def _digest(kept: Sidecars, work: Work) -> Digest:
    return kept.digest(work)


def _live(kept: Sidecars, asked: tuple[Work, Question]) -> Live:
    piece = kept.piece(asked[0])
    return live_of(piece.digest, piece.rows, asked[1])


def _crossed(kept: Sidecars, asked: tuple[Work, Limits]) -> Crossed:
    piece = kept.piece(asked[0])
    return crossed_in(piece.digest, piece.rows, asked[1])


def _effect(
    kept: Sidecars, starts: Sequence[tuple[Starts, Starts]], asked: tuple[Work, int]
) -> PieceEffect:
    """Log starts travel once, with the task, and not with every piece."""
    return effect_of(kept.piece(asked[0]), *starts[asked[1]])
