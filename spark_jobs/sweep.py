"""A sweep of a whole cluster: what retention would remove, and what that frees.

    plan = make_plan(ReplicaLogs(Path("/var/lib/esker"), {...}), now_ms=now)

The pieces of all coordinators' logs are worked on together, by whichever engine; between the passes
(`spark_jobs.retention`) a few numbers for each partition are in this process, and never all runs.

A replica that lags gives an older plan, and an older plan is a smaller one, never a wrong one.

Source: DESIGN §10.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from spark_jobs.digests import Digest
from spark_jobs.effects import PieceEffect, effect_of, summed
from spark_jobs.engines import Engine, LocalEngine
from spark_jobs.log_files import LostRangeError
from spark_jobs.logs import (
    CLUSTER_METADATA,
    DISKLESS_METADATA,
    Log,
    Logs,
    LogsError,
    ReplicaLogs,
    coordinators_of,
    logs_in,
)
from spark_jobs.plan_file import Effect, Plan, PlanRow
from spark_jobs.retention import Live, LiveRuns, Planner, Question, Starts, live_of, moved, runs_of
from spark_jobs.sidecars import Sidecars, Work
from spark_jobs.topics import topics_at

__all__ = ["READING_ERRORS", "ReplicaLogs", "logs_in", "make_plan"]

READING_ERRORS: Final = (LogsError, LostRangeError)
"""What reading logs may raise besides damage and what the disk says."""

PIECE_BYTES: Final = 64 * 1024 * 1024
"""Of log in one piece. Its digest is kept by its offsets, so this is not to be changed lightly."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Where a piece belongs: to which of the planners, and which of its digests."""

    planner: int
    number: int
    work: Work


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
    engine = engine or LocalEngine()
    kept = sidecars or Sidecars(None)
    read: dict[str, int] = {}

    def committed(name: str) -> tuple[Log, int]:
        log = logs.log(name)
        read[name] = log.end_offset()
        return log, read[name]

    progress("settings")
    topics = topics_at(*committed(CLUSTER_METADATA))
    coordinators = coordinators_of(logs)
    pieces: list[_Piece] = []
    for i, coordinator in enumerate(coordinators):
        name = f"{DISKLESS_METADATA}{coordinator}"
        log, end = committed(name)
        for number, span in enumerate(log.spans(end, split_bytes=PIECE_BYTES)):
            pieces.append(_Piece(i, number, Work(logs.cluster_id, name, span)))
    progress("digests")
    digests: list[list[Digest]] = [[] for _ in coordinators]
    for piece, digest in zip(
        pieces, engine.run(partial(_digest, kept), [piece.work for piece in pieces]), strict=True
    ):
        digests[piece.planner].append(digest)
    planners = [Planner(one, topics) for one in digests]
    progress("log starts")
    _begin(engine, kept, pieces, planners)
    progress("limits")
    rows = _rows(engine, kept, pieces, planners, coordinators, now_ms)
    progress("objects")
    effects = _effects(engine, kept, pieces, planners, rows)
    return Plan(
        logs.cluster_id,
        now_ms,
        read,
        [row for some in rows for row in some],
        dict(zip(coordinators, effects, strict=True)),
    )


def _begin(engine: Engine, kept: Sidecars, pieces: list[_Piece], planners: list[Planner]) -> None:
    asked = [dict(planner.beginnings()) for planner in planners]
    answers = _ask(engine, partial(_live, kept), pieces, asked)
    for planner, told in zip(planners, answers, strict=True):
        planner.begun(told)


def _rows(
    engine: Engine,
    kept: Sidecars,
    pieces: list[_Piece],
    planners: list[Planner],
    coordinators: list[int],
    now_ms: int,
) -> list[list[PlanRow]]:
    asked = [dict(planner.boundaries(now_ms)) for planner in planners]
    answers = _ask(engine, partial(_boundary, kept), pieces, asked)
    return [
        planner.plan(coordinator, told)
        for planner, coordinator, told in zip(planners, coordinators, answers, strict=True)
    ]


def _ask(
    engine: Engine, task: Any, pieces: list[_Piece], asked: list[dict[int, Question]]
) -> list[dict[int, Any]]:
    """Each planner's questions about its pieces, answered."""
    some = [piece for piece in pieces if piece.number in asked[piece.planner]]
    told = engine.run(task, [(one.work, asked[one.planner][one.number]) for one in some])
    answers: list[dict[int, Any]] = [{} for _ in asked]
    for piece, answer in zip(some, told, strict=True):
        answers[piece.planner][piece.number] = answer
    return answers


def _effects(
    engine: Engine,
    kept: Sidecars,
    pieces: list[_Piece],
    planners: list[Planner],
    rows: list[list[PlanRow]],
) -> list[Effect]:
    starts = [
        (planner.starts, moved(planner.starts, some))
        for planner, some in zip(planners, rows, strict=True)
    ]
    told = engine.run(
        partial(_effect, kept), [(piece.work, *starts[piece.planner]) for piece in pieces]
    )
    effects = []
    for i, planner in enumerate(planners):
        names = {topic_id: topic.name for topic_id, topic in planner.partitions.topics.items()}
        parts = (part for piece, part in zip(pieces, told, strict=True) if piece.planner == i)
        effects.append(summed(parts, names))
    return effects


# --- what runs on a piece, wherever it is ---------------------------------------------------------


def _digest(kept: Sidecars, work: Work) -> Digest:
    return kept.digest(work)


def _live(kept: Sidecars, asked: tuple[Work, Question]) -> Live:
    piece = kept.piece(asked[0])
    return live_of(piece.digest, piece.rows, asked[1])


def _boundary(kept: Sidecars, asked: tuple[Work, Question]) -> LiveRuns:
    piece = kept.piece(asked[0])
    return runs_of(piece.digest, piece.rows, asked[1])


def _effect(kept: Sidecars, asked: tuple[Work, Starts, Starts]) -> PieceEffect:
    return effect_of(kept.piece(asked[0]), asked[1], asked[2])
