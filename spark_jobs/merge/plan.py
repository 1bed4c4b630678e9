"""Plans merges of a cluster's objects from its logs, and writes and reads the plan's file.

    write_plan(logs, path, settings, now_ms=now)
    for merge in MergePlan(path).merges(): ...

The planner is the brokers' (`diskless.compaction.planner`), with the same rules; only the runs come
from the coordinators' logs instead of a broker's replica. A row of the file is a source:
consecutive runs of one partition. A merge is the rows with its number, which stand together.

A marker of a transaction is a run without an object. It goes where the run before it goes, and a
plan has its control batch. Runs above the last stable offset are left: the coordinator would refuse
them.

A plan may be old: the coordinator replaces a range only if its live runs are those of the plan.

Source: docs/design/compaction.md#brokers-rewrite-in-a-child-process;
docs/design/pipeline.md#plans.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid5

import numpy as np

from diskless.compaction.planner import (
    MERGE_DEFAULTS,
    SMALL_RUN_BYTES,
    Merge,
    MergeSettings,
    PartitionRuns,
    expires_before,
    plan_merges,
)
from diskless.compaction.tasks import Source
from diskless.fetch.runs_reader import Run
from records.marker_batches import marker_batch
from records.object_keys import Ancestor, Ancestors, ObjectKeys
from records.uuids import decode_uuid, encode_uuid
from records.wal import APPENDED, FINAL, MARKER
from spark_jobs.plans.sealed_file import Rows, SealedFile, writing
from spark_jobs.readers.logs import CLUSTER_METADATA, DISKLESS_METADATA, Logs, coordinators_of
from spark_jobs.tables.ancestors import ancestors_of
from spark_jobs.tables.log_state import LogState, state_at
from spark_jobs.tables.runs import NO_OBJECT, Mask, Numbers
from spark_jobs.tables.topics import TopicSettings, topics_at

PLAN: Final = "esker-merge-plan"

MAX_RUNS: Final = 500_000
"""Runs of one coordinator that a plan looks at, those of the oldest objects: half a kilobyte each
while it is made. What is left is for the next plan."""

SPARSE_BYTES: Final = 1 << 20
"""Smaller objects are not rewritten for their dead bytes: a footer may be more than the rest."""

_PLAN_IDS: Final = UUID("5e7f35b1-0b4c-4d0c-9d57-7b8a7d6f3c11")
_COLUMNS: Final = (
    "object_ids", "byte_offsets", "sizes", "last_offsets", "timestamp_types", "append_times",
    "object_formats", "max_timestamps",
)  # fmt: skip
_CONTROLS: Final = "controls"
"""Column of a row that has markers: the control batch of each run as base64, "" of others."""


class PlanSettings(NamedTuple):
    """Bounds of a plan, and where objects are."""

    prefix: str  # of keys; without slashes at its ends
    object_bytes: int  # source bytes of a merged object
    max_bytes: int | None = None  # source bytes of the whole plan
    merging: MergeSettings = MERGE_DEFAULTS  # as the brokers have them


class PlannedMerge(NamedTuple):
    """Sources of one merged object, as a plan's file has them."""

    number: int
    coordinator: int
    sources: tuple[Source, ...]

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the merge's source runs."""
        return sum(run.size_bytes for source in self.sources for run in source.runs)


class MergePlan:
    """A plan in a file, which is verified when it is opened."""

    def __init__(self, path: Path) -> None:
        """Open the file of a plan of merges, and verify the file.

        Raises:  SealError; OSError.
        """
        self.file = SealedFile(path, PLAN)
        header = self.file.header
        self.cluster_id: str = header["cluster_id"]
        self.prefix: str = header["prefix"]
        self.now_ms: int = header["now_ms"]
        self.object_bytes: int = header["object_bytes"]
        self.ancestors = Ancestors(
            tuple(Ancestor(one, tuple(below)) for one, below in header.get("ancestors", ()))
        )

    @property
    def plan_id(self) -> str:
        """Return the id of the plan, which is equal for equal contents."""
        return self.file.file_id

    @property
    def lease_owner(self) -> UUID:
        """Return the id under which coordinators grant the plan's leases."""
        return uuid5(_PLAN_IDS, self.plan_id)

    @property
    def merge_count(self) -> int:
        """Return the number of merged objects that the plan writes."""
        return int(self.file.end["merges"])

    def keys(self, coordinator: int) -> ObjectKeys:
        """Return the converter between one coordinator's object ids and their keys in the store."""
        return ObjectKeys(
            prefix=self.prefix,
            cluster_id=self.cluster_id,
            coordinator_partition=coordinator,
            ancestors=self.ancestors,
        )

    def merges(self) -> Iterator[PlannedMerge]:
        """Yield the plan's merges, grouped by coordinator.

        Raises:  OSError.
        """
        by_number = groupby(self.file.rows(), key=lambda row: (row["merge"], row["coordinator"]))
        for (number, coordinator), rows in by_number:
            keys = self.keys(coordinator)
            yield PlannedMerge(number, coordinator, tuple(_source(row, keys) for row in rows))


def write_plan(
    logs: Logs,
    path: Path,
    settings: PlanSettings,
    *,
    now_ms: int,
    progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Plan the merges of all coordinators' objects, and write the plan's file.

    Args:    now_ms: ms since 1970, that ages are counted from.
             progress: called after each coordinator's log.
    Raises:  LogsError; LostRangeError, DamagedFileError, RecordError; OSError.
    """
    log = logs.log(CLUSTER_METADATA)
    read = {CLUSTER_METADATA: log.end_offset()}
    topics = topics_at(log, read[CLUSTER_METADATA])
    ancestors = ancestors_of(logs)
    header = {
        "cluster_id": logs.cluster_id,
        "prefix": settings.prefix,
        "now_ms": now_ms,
        "object_bytes": settings.object_bytes,
        **settings.merging._asdict(),
    }
    if ancestors.clusters:
        header["ancestors"] = [[one, list(below)] for one, below in ancestors.clusters]
    with writing(path, PLAN, header) as rows:
        totals = _Totals(settings.max_bytes)
        for coordinator in coordinators_of(logs):
            name = f"{DISKLESS_METADATA}{coordinator}"
            state = state_at(logs.log(name))
            read[name] = state.offset
            keys = ObjectKeys(
                prefix=settings.prefix, cluster_id=logs.cluster_id,
                coordinator_partition=coordinator, ancestors=ancestors,
            )  # fmt: skip
            _plan_coordinator(state, topics, keys, settings, now_ms, totals, rows)
            progress(1)
        rows.end |= totals.counts | {"logs": read}


class _Totals:
    """Counts of what a plan merges and leaves."""

    def __init__(self, max_bytes: int | None) -> None:
        self._max_bytes = max_bytes
        self.counts = {
            "merges": 0, "runs": 0, "saved_runs": 0, "bytes": 0, "live_runs": 0, "live_bytes": 0,
            "left_merges": 0, "left_bytes": 0, "unseen_runs": 0,
        }  # fmt: skip

    def takes(self, merge: Merge) -> bool:
        """Count a merge as planned and return True, unless the plan would exceed its byte limit."""
        counts, limit = self.counts, self._max_bytes
        if limit is not None and counts["merges"] and counts["bytes"] + merge.size_bytes > limit:
            counts["left_merges"] += 1
            counts["left_bytes"] += merge.size_bytes
            return False
        counts["merges"] += 1
        counts["runs"] += sum(len(source.runs) for source in merge.sources)
        counts["saved_runs"] += merge.saved_runs
        counts["bytes"] += merge.size_bytes
        return True


def _plan_coordinator(
    state: LogState,
    topics: Mapping[str, TopicSettings],
    keys: ObjectKeys,
    settings: PlanSettings,
    now_ms: int,
    totals: _Totals,
    rows: Rows,
) -> None:
    """Plan the merges of one coordinator's objects, the most profitable merge first."""
    sparse = _sparse_objects(state)
    chosen, unseen = _choose_runs(state, sparse)
    totals.counts["unseen_runs"] += unseen
    totals.counts["live_runs"] += state.runs.num_rows
    totals.counts["live_bytes"] += int(_numbers(state, "byte_size").sum())
    merges = plan_merges(
        _partitions(state, chosen, topics, keys, now_ms),
        object_id=keys.object_id,
        sparse={keys.key(object_id) for object_id in sparse.tolist()},
        object_bytes=settings.object_bytes,
        now_ms=now_ms,
        settings=settings.merging,
    )
    for merge in merges:
        number = totals.counts["merges"]
        if totals.takes(merge):
            for source in merge.sources:
                topic = topics[encode_uuid(source.topic_id)].name
                rows.add(_row(number, keys, topic, source))


def _numbers(state: LogState, column: str) -> Numbers:
    values: Numbers = state.runs.column(column).to_numpy().astype(np.int64)
    return values


def _sparse_objects(state: LogState) -> Numbers:
    """Return the ids of large objects of which some, but less than half, of the bytes are used."""
    size = state.objects.column("size_bytes").to_numpy()
    used = state.objects.column("used_bytes").to_numpy()
    is_sparse = (size >= SPARSE_BYTES) & (used > 0) & (2 * used < size)
    found: Numbers = state.objects.column("object_id").to_numpy()[is_sparse]
    return found


def _choose_runs(state: LogState, sparse: Numbers) -> tuple[Mask, int]:
    """Return a mask of at most MAX_RUNS runs to consider for merging, and the number left out."""
    objects, kinds = _numbers(state, "object_id"), _numbers(state, "object_format")
    is_marker = kinds == MARKER
    before = np.maximum.accumulate(np.where(is_marker, 0, np.arange(len(kinds))))
    objects, kinds = objects[before], kinds[before]  # a marker goes where the run before it goes
    is_small = (kinds == FINAL) & (_numbers(state, "byte_size")[before] < SMALL_RUN_BYTES)
    chosen = (kinds == APPENDED) | is_small | ((kinds == FINAL) & np.isin(objects, sparse))
    stable = np.repeat(state.last_stable_offsets(), np.diff(state.run_bounds))
    chosen &= _numbers(state, "last_offset") < stable
    count = int(chosen.sum())
    if count > MAX_RUNS:
        newest = np.partition(objects[chosen], MAX_RUNS)[MAX_RUNS]
        chosen &= objects < newest
    return chosen, count - int(chosen.sum())


def _partitions(
    state: LogState,
    chosen: Mask,
    topics: Mapping[str, TopicSettings],
    keys: ObjectKeys,
    now_ms: int,
) -> Iterator[PartitionRuns]:
    """Yield the chosen runs of each partition, divided wherever their offsets have a gap."""
    names = zip(
        state.partitions.column("topic_id").to_pylist(),
        state.partitions.column("partition").to_pylist(),
        state.partitions.column("deleted_at_ms").to_pylist(),
        strict=True,
    )
    bounds = state.run_bounds.tolist()
    for (topic_id, index, deleted_at_ms), begin, end in zip(
        names, bounds, bounds[1:], strict=False
    ):
        topic = topics.get(topic_id)
        if topic is None or deleted_at_ms is not None or not chosen[begin:end].any():
            continue
        expires_before_ms = expires_before(topic.retention_ms, now_ms)
        runs: list[Run] = []
        for run in _runs(state, begin, end, chosen[begin:end], keys):
            if runs and run.base_offset != runs[-1].last_offset + 1:
                yield PartitionRuns(decode_uuid(topic_id), index, runs, expires_before_ms)
                runs = []
            runs.append(run)
        yield PartitionRuns(decode_uuid(topic_id), index, runs, expires_before_ms)


def _runs(state: LogState, begin: int, end: int, chosen: Mask, keys: ObjectKeys) -> Iterator[Run]:
    names = (
        "object_id", "byte_offset", "byte_size", "base_offset", "last_offset", "timestamp_type",
        "appended_at_ms", "object_format", "max_timestamp", "marker_producer_id", "marker_epoch",
        "marker_outcome", "marker_coordinator_epoch",
    )  # fmt: skip
    rows = state.runs.slice(begin, end - begin)
    columns = [rows.column(name).to_numpy()[chosen].tolist() for name in names]
    for object_id, *numbers, producer_id, epoch, outcome, coordinator_epoch in zip(
        *columns, strict=True
    ):
        if object_id != NO_OBJECT:
            yield Run(keys.key(object_id), *numbers)
            continue
        _, _, base_offset, last_offset, kind, appended_at_ms, _, timestamp = numbers
        control = marker_batch(
            base_offset=base_offset, timestamp=timestamp, producer_id=producer_id,
            producer_epoch=epoch, outcome=outcome, coordinator_epoch=coordinator_epoch,
        )  # fmt: skip
        yield Run(
            "", 0, len(control), base_offset, last_offset, kind, appended_at_ms, MARKER, timestamp,
            control,
        )  # fmt: skip


# --- rows -----------------------------------------------------------------------------------------


def _row(number: int, keys: ObjectKeys, topic: str, source: Source) -> dict[str, Any]:
    """Return a merge's source runs of one partition as a row of the plan's file."""
    columns = zip(
        *(
            (
                NO_OBJECT if run.is_marker else keys.object_id(run.object_key),
                run.byte_offset, run.size_bytes, run.last_offset, run.timestamp_type,
                run.append_time, run.object_format, run.max_timestamp,
            )
            for run in source.runs
        ),
        strict=True,
    )  # fmt: skip
    return {
        "merge": number,
        "coordinator": keys.coordinator_partition,
        "topic": topic,
        "topic_id": encode_uuid(source.topic_id),
        "partition": source.partition,
        "first_offset": source.runs[0].base_offset,
        **dict(zip(_COLUMNS, map(list, columns), strict=True)),
        **_controls(source),
    }


def _controls(source: Source) -> dict[str, list[str]]:
    """Return the control batches of a row's markers as a further column, if there are any."""
    if not any(run.is_marker for run in source.runs):
        return {}
    return {_CONTROLS: [base64.b64encode(run.control).decode() for run in source.runs]}


def _source(row: Mapping[str, Any], keys: ObjectKeys) -> Source:
    runs, base_offset = [], row["first_offset"]
    controls = row.get(_CONTROLS) or [""] * len(row["object_ids"])
    for object_id, byte_offset, size, last_offset, *kinds, control in zip(
        *(row[name] for name in _COLUMNS), controls, strict=True
    ):
        key = "" if object_id == NO_OBJECT else keys.key(object_id)
        place = key, byte_offset, size, base_offset, last_offset, *kinds
        runs.append(Run(*place)._replace(control=base64.b64decode(control)))
        base_offset = last_offset + 1
    return Source(decode_uuid(row["topic_id"]), row["partition"], tuple(runs))
