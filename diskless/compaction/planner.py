"""Chooses the runs of batches that are worth rewriting, from the runs that partitions have.

Merging, the most profitable first, by runs saved for a byte that is read:

0. Before all others, *overdue* runs: those in objects with deleted bytes that must be gone soon,
   and a run whose first records were deleted.
1. *Appended* runs, which lie in the objects of many partitions. All partitions' runs in an interval
   of object ids are merged together, so that the objects are read whole and then are unused.
2. *Small* runs of objects that were merged before, once a partition has enough of them.
3. Runs in *sparse* objects, whose used bytes are below half.

Runs that retention takes soon are left to it, except overdue ones. Runs younger than `min_age_ms`
are left, because readers have their objects in memory.

Compaction, the greatest share of dirty bytes first, and before all others those that
`max.compaction.lag.ms` forces: the rules are Kafka's. A round that was left is resumed if its bound
is still the end of a run.

Nothing here reads a clock or calls anything: brokers and Spark plan with the same functions.

Source: docs/design/compaction.md; Kafka's LogCleanerManager.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from diskless.compaction.tasks import MAX_OLD_RUNS, Source
from diskless.fetch.runs_reader import Run
from records.final_batches import MAX_RUN_BYTES

SMALL_RUN_BYTES: Final = MAX_RUN_BYTES // 2

RETENTION_MARGIN: Final = 20
"""Runs that retention takes within this part of its time are left to it."""


class PartitionRuns(NamedTuple):
    """The live runs of a partition, by rising offset, and when retention takes them."""

    topic_id: UUID
    partition: int
    runs: Sequence[Run]
    expires_before_ms: int | None = None  # runs with an older newest record are taken soon
    deleted_before: int = 0  # offset; bytes of older records in the first run are overdue


class MergeSettings(NamedTuple):
    """The settings that decide when runs are merged."""

    min_age_ms: int = 60_000  # of a run, since its append time
    max_wait_ms: int = 600_000  # appended runs wait so long for others to fill an object
    min_saved_runs: int = 16  # by an object that is not full; and small runs that are merged


MERGE_DEFAULTS: Final = MergeSettings()


def expires_before(retention_ms: int, now_ms: int) -> int | None:
    """Return the timestamp below which retention soon deletes records; None without a limit.

    Args:    retention_ms: -1: no limit.
    """
    if retention_ms < 0:
        return None
    return now_ms - retention_ms + retention_ms // RETENTION_MARGIN


class Merge(NamedTuple):
    """Sources of one merged object."""

    sources: tuple[Source, ...]
    size_bytes: int
    saved_runs: int
    is_overdue: bool = False  # for the sake of deleted bytes that must be gone

    @property
    def profit(self) -> float:
        """Return the number of runs that the merge saves per byte that it reads."""
        return self.saved_runs / max(1, self.size_bytes)


class Cleaning(NamedTuple):
    """A partition's compaction progress in the coordinator's state."""

    log_start_offset: int
    last_stable_offset: int
    cleaned_until: int
    bound: int  # of the newest round; -1: there was none
    rewritten_until: int


class CompactionSettings(NamedTuple):
    """The settings of a topic that decide when it is compacted, by Kafka's names."""

    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    min_cleanable_dirty_ratio: float


class Compaction(NamedTuple):
    """A round that is due, or how dirty a partition is if it is not."""

    source: Source  # from the log start to the bound
    bound: int  # exclusive
    first_dirty: int
    rewritten_until: int
    dirty_ratio: float
    is_due: bool
    is_forced: bool  # by max.compaction.lag.ms

    @property
    def urgency(self) -> tuple[bool, float]:
        """Return a sort key: the partition with the greatest key is to be compacted first."""
        return self.is_forced, self.dirty_ratio


# --- merging ------------------------------------------------------------------------------------


def plan_merges(
    partitions: Iterable[PartitionRuns],
    *,
    object_id: Callable[[str], int],
    sparse: Collection[str] = (),
    overdue: Collection[str] = (),
    object_bytes: int,
    now_ms: int,
    settings: MergeSettings = MERGE_DEFAULTS,
) -> list[Merge]:
    """Plan merges of runs of batches that save enough runs, the most profitable merge first.

    Each run is in at most one merge.

    Args:    object_id: of an object's key.
             sparse: keys of objects whose runs are to be rewritten.
             overdue: the same, before all others, and also for runs that retention takes soon.
             object_bytes: source bytes of a merged object.
             settings: the age, waiting time and saved runs of a merge.
    """
    appended: list[_Chosen] = []
    others: list[Source] = []
    urgent: list[Source] = []
    for each in partitions:
        young_ms = now_ms - settings.min_age_ms
        kinds: list[int] = []
        for run in each.runs:
            if run.is_marker:  # goes where the run before it goes
                kinds.append(kinds[-1] if kinds else _LEFT)
            else:
                kinds.append(_kind(run, each, sparse, overdue, young_ms))
        for kind, first, end in _stretches(kinds):
            runs = each.runs[first:end]
            if kind == _APPENDED:
                appended.append(_Chosen(each, runs))
            elif kind == _OVERDUE:
                urgent += _slices(each, runs)
            elif kind == _SPARSE or _is_enough(runs, settings.min_saved_runs):
                others += _slices(each, runs)
    merges = _merge_appended(appended, object_id, object_bytes, now_ms, settings)
    merges += [_merge(sources) for sources in _pack(others, object_bytes)]
    merges += [_merge(sources)._replace(is_overdue=True) for sources in _pack(urgent, object_bytes)]
    return sorted(merges, key=lambda merge: (merge.is_overdue, merge.profit), reverse=True)


class _Chosen(NamedTuple):
    """Consecutive runs of a partition."""

    partition: PartitionRuns
    runs: Sequence[Run]


_LEFT, _APPENDED, _SMALL, _SPARSE, _OVERDUE = range(5)


def _kind(
    run: Run,
    partition: PartitionRuns,
    sparse: Collection[str],
    overdue: Collection[str],
    young_ms: int,
) -> int:
    """Return the reason to rewrite a run of batches, or `_LEFT` if the run stays as it is."""
    if run.object_key in overdue or run.base_offset < partition.deleted_before:
        return _OVERDUE
    newest = run.max_timestamp if run.max_timestamp >= 0 else run.append_time
    expires = partition.expires_before_ms
    if expires is not None and newest < expires:
        return _LEFT
    if run.object_key in sparse:
        return _SPARSE
    if run.append_time > young_ms:
        return _LEFT
    if not run.is_final:
        return _APPENDED
    return _SMALL if run.size_bytes < SMALL_RUN_BYTES else _LEFT


def _stretches(kinds: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (kind, first index, end index) of each stretch of equal kinds other than `_LEFT`."""
    first = 0
    for end in range(1, len(kinds) + 1):
        if end == len(kinds) or kinds[end] != kinds[first]:
            if kinds[first] != _LEFT:
                yield kinds[first], first, end
            first = end


def _is_enough(runs: Sequence[Run], count: int) -> bool:
    """Return whether `runs`, at least two, are `count` many or have MAX_RUN_BYTES in all."""
    if len(runs) < 2:
        return False
    return len(runs) >= count or sum(run.size_bytes for run in runs) >= MAX_RUN_BYTES


def _slices(partition: PartitionRuns, runs: Sequence[Run]) -> Iterator[Source]:
    for first in range(0, len(runs), MAX_OLD_RUNS):
        yield Source(
            partition.topic_id,
            partition.partition,
            tuple(runs[first : first + MAX_OLD_RUNS]),
            partition.deleted_before,
        )


def _merge_appended(
    chosen: Sequence[_Chosen],
    object_id: Callable[[str], int],
    object_bytes: int,
    now_ms: int,
    settings: MergeSettings,
) -> list[Merge]:
    """Plan one merge for each interval of object ids whose small runs fill an object.

    The last interval need not be full, if its oldest run has waited for long.
    """
    sizes: dict[int, int] = {}
    ids: dict[str, int] = {}
    for _, runs in chosen:
        for run in runs:
            if run.is_marker:
                continue
            key = ids.setdefault(run.object_key, object_id(run.object_key))
            sizes[key] = sizes.get(key, 0) + run.size_bytes
    ends: list[int] = []  # the last object id of each interval
    filled = 0
    for key in sorted(sizes):
        filled += sizes[key]
        if filled >= object_bytes:
            ends.append(key)
            filled = 0
    intervals: list[list[Source]] = [[] for _ in range(len(ends) + 1)]
    for partition, runs in chosen:
        newest, first = -1, 0
        places = []
        for run in runs:
            newest = max(newest, ids.get(run.object_key, -1))
            places.append(bisect_left(ends, newest))
        for end in range(1, len(runs) + 1):
            if end == len(runs) or places[end] != places[first]:
                intervals[places[first]] += _slices(partition, runs[first:end])
                first = end
    merges = [_merge(sources) for sources in intervals if sources]
    if intervals[-1]:
        last = merges.pop()
        oldest = min(run.append_time for source in last.sources for run in source.runs)
        has_waited = oldest <= now_ms - settings.max_wait_ms
        if last.saved_runs >= settings.min_saved_runs and has_waited:
            merges.append(last)
    return merges


def _pack(sources: Sequence[Source], object_bytes: int) -> Iterator[list[Source]]:
    """Group the runs of neighbouring partitions so that each group fills an object."""
    group: list[Source] = []
    filled = 0
    for source in sorted(sources, key=lambda source: (source.topic_id.bytes, source.partition)):
        if filled >= object_bytes:
            yield group
            group, filled = [], 0
        group.append(source)
        filled += sum(run.size_bytes for run in source.runs)
    if group:
        yield group


def _merge(sources: Sequence[Source]) -> Merge:
    size_bytes = saved = 0
    for source in sources:
        of_source = sum(run.size_bytes for run in source.runs)
        size_bytes += of_source
        saved += len(source.runs) - -(-of_source // MAX_RUN_BYTES)
    return Merge(tuple(sources), size_bytes, max(0, saved))


# --- compaction ---------------------------------------------------------------------------------


def plan_compaction(
    partition: PartitionRuns, cleaning: Cleaning, settings: CompactionSettings, *, now_ms: int
) -> Compaction | None:
    """Plan the compaction to begin or resume in a partition; return None without dirty runs."""
    runs = _cleanable(partition.runs, cleaning, settings, now_ms)
    if not runs:
        return None
    bound = runs[-1].last_offset + 1
    first_dirty = max(cleaning.cleaned_until, cleaning.log_start_offset)
    left = cleaning.bound if cleaning.rewritten_until < cleaning.bound <= bound else None
    resumes = left is not None and any(run.last_offset + 1 == left for run in runs)
    if resumes and left is not None:
        bound = left
        runs = [run for run in runs if run.last_offset < bound]
    dirty = [run for run in runs if run.last_offset >= first_dirty]
    if not dirty and not resumes:
        return None
    total_bytes = sum(run.size_bytes for run in runs)
    ratio = sum(run.size_bytes for run in dirty) / max(1, total_bytes)
    oldest = min((_newest_record(run) for run in dirty), default=now_ms)
    forced = bool(dirty) and oldest < now_ms - settings.max_compaction_lag_ms
    return Compaction(
        Source(partition.topic_id, partition.partition, tuple(runs)),
        bound,
        first_dirty,
        cleaning.rewritten_until if resumes else cleaning.log_start_offset,
        ratio,
        resumes or forced or ratio > settings.min_cleanable_dirty_ratio,
        forced,
    )


def _cleanable(
    runs: Sequence[Run], cleaning: Cleaning, settings: CompactionSettings, now_ms: int
) -> list[Run]:
    """Return a partition's first runs that are below the last stable offset and past their lag.

    A run at or above the last stable offset, or a dirty run with records younger than
    min.compaction.lag.ms, ends the result.
    """
    found = []
    for run in runs:
        if run.last_offset >= cleaning.last_stable_offset:
            break
        is_dirty = run.last_offset >= cleaning.cleaned_until
        lag_ms = settings.min_compaction_lag_ms
        if is_dirty and lag_ms > 0 and _newest_record(run) > now_ms - lag_ms:
            break
        found.append(run)
    return found


def _newest_record(run: Run) -> int:
    return run.max_timestamp if run.max_timestamp >= 0 else run.append_time
