"""Plans retention for a whole cluster: the new log starts, and the bytes that they free.

    plan = make_plan(ReplicaLogs(Path("/var/lib/esker"), {...}), now_ms=now)

An engine works on the pieces of all coordinators' logs together; between the passes
(`spark_jobs.retention.plan`) this process holds a few numbers for each partition, and never all
runs.

Where runs were replaced, the digests of their pieces are corrected first
(`spark_jobs.retention.replaced`).

A lagging replica gives an older plan, and an older plan removes less, never something else.

Source: docs/design/pipeline.md#plans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Final

from spark_jobs.plans.retention_plan import Effect, Plan, PlanRow
from spark_jobs.readers.engines import Engine, LocalEngine
from spark_jobs.readers.logs import CLUSTER_METADATA, DISKLESS_METADATA, Log, Logs, coordinators_of
from spark_jobs.readers.spans import epoch_before
from spark_jobs.retention.digest_cache import DigestCache, Work
from spark_jobs.retention.digests import Digest
from spark_jobs.retention.digests import Piece as EffectPiece
from spark_jobs.retention.effects import PieceEffect, effect_of, sum_effects
from spark_jobs.retention.plan import (
    LimitRequest,
    LiveRequest,
    LiveRuns,
    Planner,
    RemovedRuns,
    Starts,
    apply_rows,
    plan_within,
    sum_live_runs,
)
from spark_jobs.retention.replaced import (
    CorrectedSpan,
    corrections,
    replacements_of,
    rewritten_piece,
)
from spark_jobs.tables.topics import TopicSettings, topics_at

Progress = Callable[[str], None]

PIECE_BYTES: Final = 64 * 1024 * 1024
"""Size of a piece of log. Digests are cached by offsets: another size would make them anew."""

PASSES: Final = 4
"""Number of passes over the pieces; `progress` is called with the name of each."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a coordinator's log."""

    coordinator: int  # by its place in the survey
    number: int
    work: Work


@dataclass(frozen=True, slots=True)
class Survey:
    """The logs, topics and pieces that a plan is made from."""

    cluster_id: str
    read: Mapping[str, int]  # log: its committed end, exclusive
    topics: Mapping[str, TopicSettings]
    coordinators: Sequence[int]
    pieces: Sequence[Piece]
    logs: Mapping[str, Log]  # of the coordinators


def survey(logs: Logs) -> Survey:
    """Find the logs' committed ends and the topics, and divide coordinators' logs into spans.

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
    digest_cache: DigestCache | None = None,
    progress: Progress = lambda _: None,
) -> Plan:
    """Plan retention for all coordinators' logs up to their committed ends.

    Args:    now_ms: ms since 1970, that ages are counted from.
             engine: works on the pieces; None: this process.
             digest_cache: caches digests; None: no cache.
             progress: called with the name of each pass as it begins.
    Raises:  LogsError; LostRangeError, DamagedFileError, RecordError; OSError.
    """
    found, kept = survey(logs), digest_cache or DigestCache(None)
    return plan_survey(found, now_ms, engine or LocalEngine(), kept, progress)


def plan_survey(
    found: Survey,
    now_ms: int,
    engine: Engine,
    kept: DigestCache,
    progress: Progress = lambda _: None,
) -> Plan:
    """Make a retention plan from the result of `survey`."""
    progress("digests")
    for name, log in found.logs.items():
        epoch = cache(partial(epoch_before, log))  # of an archive it is some work
        if not kept.keep_to(found.cluster_id, name, found.read[name], epoch):
            kept = DigestCache(None)
    digests = _digests(engine, kept, found)
    found, digests, new = _correct_replaced(engine, kept, found, digests)
    planners = [Planner(digests_of_log, found.topics) for digests_of_log in digests]
    progress("log starts")
    live_requests = [dict(planner.live_requests()) for planner in planners]
    live_runs = _run_on_pieces(engine, partial(_sum_live_runs, kept), found.pieces, live_requests)
    for planner, live in zip(planners, live_runs, strict=True):
        planner.apply_live(live)
    progress("limits")
    limit_requests = [dict(planner.limit_requests(now_ms)) for planner in planners]
    crossed = _run_on_pieces(engine, partial(_plan_within, kept), found.pieces, limit_requests)
    rows = [
        planner.plan(coordinator, answers)
        for planner, coordinator, answers in zip(planners, found.coordinators, crossed, strict=True)
    ]
    progress("objects")
    effects = _effects(engine, kept, found.pieces, new, planners, rows)
    return Plan(
        found.cluster_id,
        now_ms,
        found.read,
        [row for rows_of_log in rows for row in rows_of_log],
        dict(zip(found.coordinators, effects, strict=True)),
    )


def _digests(engine: Engine, kept: DigestCache, found: Survey) -> list[list[Digest]]:
    """Return the digests of the spans of each coordinator's log, cached or computed."""
    for piece in found.pieces:
        if piece.number == 0:
            kept.drop_before(piece.work)
    known = [kept.known_digest(piece.work) for piece in found.pieces]
    unknown = [
        piece.work for piece, digest in zip(found.pieces, known, strict=True) if digest is None
    ]
    made = iter(engine.run(partial(_digest, kept), unknown))
    digests: list[list[Digest]] = [[] for _ in found.coordinators]
    for piece, digest in zip(found.pieces, known, strict=True):
        digests[piece.coordinator].append(next(made) if digest is None else digest)
    return digests


def _correct_replaced(
    engine: Engine, kept: DigestCache, found: Survey, digests: list[list[Digest]]
) -> tuple[Survey, list[list[Digest]], dict[int, EffectPiece]]:
    """Correct the pieces of which runs were replaced.

    Returns: the survey with corrected pieces, their digests, and the new runs of each coordinator.
    """
    pieces, new, changed = list(found.pieces), {}, []
    for i, of_log in enumerate(digests):
        log = replacements_of(of_log)
        if log is None:
            continue
        new[i] = rewritten_piece(log)
        needed = corrections(log, of_log)
        for at, piece in enumerate(pieces):
            if piece.coordinator == i and piece.number in needed:
                span = CorrectedSpan(piece.work.span, needed[piece.number])
                pieces[at] = replace(piece, work=piece.work._replace(span=span))
                changed.append(pieces[at])
    merged = [list(of_log) for of_log in digests]
    made = engine.run(partial(_digest, kept), [piece.work for piece in changed], light=True)
    for piece, digest in zip(changed, made, strict=True):
        merged[piece.coordinator][piece.number] = digest
    return replace(found, pieces=pieces), merged, new


def _run_on_pieces(
    engine: Engine, task: Any, pieces: Sequence[Piece], requests: Sequence[Mapping[int, Any]]
) -> list[dict[int, Any]]:
    """Run a task on each requested span; return the results by coordinator and span number."""
    wanted = [piece for piece in pieces if piece.number in requests[piece.coordinator]]
    work = [
        (piece_ref.work, requests[piece_ref.coordinator][piece_ref.number]) for piece_ref in wanted
    ]
    results = engine.run(task, work, light=True)
    answers: list[dict[int, Any]] = [{} for _ in requests]
    for piece, answer in zip(wanted, results, strict=True):
        answers[piece.coordinator][piece.number] = answer
    return answers


def _effects(
    engine: Engine,
    kept: DigestCache,
    pieces: Sequence[Piece],
    new: Mapping[int, EffectPiece],
    planners: list[Planner],
    rows: list[list[PlanRow]],
) -> list[Effect]:
    starts = [
        (planner.starts, apply_rows(planner.starts, rows_of_log))
        for planner, rows_of_log in zip(planners, rows, strict=True)
    ]
    results = engine.run(
        partial(_effect_of_piece, kept, starts),
        [(_without_added(piece.work), piece.coordinator) for piece in pieces],
        light=True,
    )
    effects = []
    for i, planner in enumerate(planners):
        names = {topic_id: topic.name for topic_id, topic in planner.partitions.topics.items()}
        parts = [
            part for piece, part in zip(pieces, results, strict=True) if piece.coordinator == i
        ]
        if i in new:
            parts.append(effect_of(new[i], *starts[i]))
        effects.append(sum_effects(parts, names))
    return effects


def _without_added(work: Work) -> Work:
    """Return the work without the new runs of a corrected piece: they are in a piece by themselves.

    Why: effects are by object, and the runs of a rewritten object end in many pieces.
    """
    span = work.span
    return work._replace(span=span.without_added()) if isinstance(span, CorrectedSpan) else work


# --- tasks ----------------------------------------------------------------------------------------


def _digest(kept: DigestCache, work: Work) -> Digest:
    return kept.digest(work)


def _sum_live_runs(kept: DigestCache, request: tuple[Work, LiveRequest]) -> LiveRuns:
    piece = kept.piece(request[0])
    return sum_live_runs(piece.digest, piece.rows, request[1])


def _plan_within(kept: DigestCache, request: tuple[Work, LimitRequest]) -> RemovedRuns:
    piece = kept.piece(request[0])
    return plan_within(piece.digest, piece.rows, request[1])


def _effect_of_piece(
    kept: DigestCache, starts: Sequence[tuple[Starts, Starts]], request: tuple[Work, int]
) -> PieceEffect:
    """Compute the bytes that new log starts free in the objects of one span of the log.

    Log starts travel once with the task, and not with every piece.
    """
    return effect_of(kept.piece(request[0]), *starts[request[1]])
