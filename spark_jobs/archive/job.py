"""Archives the committed records of all logs, each exactly once.

    done = archive(logs, store, engine=LocalArchiveEngine())

A pass goes through the logs one by one. It first writes a *plan* of ranges, then the ranges' files,
then, in order, their manifests. After a crash anywhere, the next pass finds the plan and does the
rest of it: the same ranges, and so the same files. Nothing is lost, because a range counts only
once its manifest exists; nothing is archived twice, because a range's files are named after it.

The trap: a plan may become impossible, because the log's head was deleted meanwhile. Then a
checkpoint replaces the missing offsets, its manifest lists them, the result reports them, and the
archive continues from there.

Source: docs/design/pipeline.md#the-archive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final
from uuid import uuid4

from diskless.stores.interface import StorageError
from spark_jobs.archive.engines import ArchiveEngine
from spark_jobs.archive.range_writer import Task, write_range
from spark_jobs.readers.archive_layout import (
    ABOUT_KEY,
    AVRO,
    CHECKPOINT,
    LOG,
    About,
    ArchiveError,
    Counted,
    Manifest,
    Range,
    chain,
    plan_from_json,
    plan_key,
    plan_to_json,
)
from spark_jobs.readers.archived_logs import list_ranges, read_about, read_manifest, read_object
from spark_jobs.readers.log_files import LostRangeError
from spark_jobs.readers.logs import Log, Logs, Span
from spark_jobs.readers.object_store import ObjectStore, describe_failure
from spark_jobs.readers.spans import epoch_before

RANGE_BYTES: Final = 16 * 1024 * 1024
"""Approximate size of a range's log. A task holds a range's files in memory."""


class ForeignArchiveError(ArchiveError):
    """The archive belongs to another cluster, or to another history of this one."""


class TablesError(ArchiveError):
    """The archive has its tables in another format."""


@dataclass(slots=True)
class LogPass:
    """The result of a pass over one log."""

    log: str
    start_offset: int  # where the archive ended before
    end_offset: int  # and after
    log_end_offset: int  # what was committed when the pass began
    records: int = 0
    batches: int = 0
    ranges: int = 0
    bytes: int = 0
    last_epoch: int | None = None  # of the last record before the end; None: nothing was done
    lost: list[tuple[int, int]] = field(default_factory=list)
    counts: dict[tuple[int, int, str | None, bool], Counted] = field(default_factory=dict)

    def add(self, manifest: Manifest) -> None:
        """Add the counts of one archived range to the totals of this pass."""
        self.end_offset = manifest.range.end_offset
        self.last_epoch = manifest.last_epoch
        self.records += manifest.records
        self.batches += manifest.batches
        self.ranges += 1
        self.bytes += sum(file.bytes for file in manifest.files)
        if manifest.range.is_lost:
            self.lost.append((manifest.range.start_offset, manifest.range.end_offset))
        for counted in manifest.counts:
            kind = counted[:4]
            before = self.counts.get(kind, Counted(*kind, 0, 0))
            self.counts[kind] = Counted(
                *kind,
                before.records + counted.records,
                before.kept_as_bytes + counted.kept_as_bytes,
            )

    @property
    def kept_as_bytes(self) -> list[Counted]:
        """Return the record counts of each type and version that was archived undecoded."""
        return [counted for counted in self.counts.values() if counted.kept_as_bytes]


Progress = Callable[[Range], None]


def open_archive(store: ObjectStore, cluster_id: str, tables: str | None = None) -> About:
    """Open the archive in a store for this cluster's logs, or create an empty archive there.

    Args:    tables: AVRO or PARQUET; None: as the archive has it, AVRO in a new one.
    Raises:  ForeignArchiveError; TablesError; ArchiveError.
    """
    about = read_about(store)
    if about is None:
        about = About(cluster_id, uuid4(), tables or AVRO)
        try:
            if not store.write_new(ABOUT_KEY, about.to_json()):
                about = read_about(store) or about
        except StorageError as error:
            raise ArchiveError(describe_failure(store.uri, error)) from None
    if about.cluster_id != cluster_id:
        raise ForeignArchiveError(
            f"{store.uri} is the archive of cluster {about.cluster_id}, these are the logs of "
            f"{cluster_id}: give another --out"
        )
    if tables is not None and tables != about.tables:
        raise TablesError(
            f"{store.uri} has its tables as {about.tables}, not {tables}: give another --out"
        )
    return about


def require_shared_store(store: ObjectStore, about: About, engine: ArchiveEngine) -> None:
    """Raise ArchiveError unless a task sees the archive that this process has opened.

    One task is asked, so a worker of another machine may still see another directory:
    `archive_log` looks for the files of each range.
    """
    try:
        (seen,) = engine.run(read_about, [store])
    except ArchiveError as error:
        raise ArchiveError(f"a task cannot read the archive: {error}; {_SHARED_PLACE}") from None
    if seen != about:
        raise ArchiveError(
            f"{store.uri}: a task does not see the archive's {ABOUT_KEY}, which was written from "
            f"here: {_SHARED_PLACE}"
        )


def archive(
    logs: Logs,
    store: ObjectStore,
    *,
    about: About,
    engine: ArchiveEngine,
    progress: Progress = lambda _: None,
    range_bytes: int = RANGE_BYTES,
) -> list[LogPass]:
    """Archive the committed records of all logs that the archive does not have yet.

    Args:    about: from `open_archive`. progress: called with each archived range.
    Raises:  as `archive_log`.
    """
    chains = {name: chain(found) for name, found in list_ranges(store).items()}
    return [
        archive_log(
            logs,
            store,
            name,
            chains.get(name, []),
            about=about,
            engine=engine,
            progress=progress,
            range_bytes=range_bytes,
        )
        for name in logs.names()
    ]


def archive_log(
    logs: Logs,
    store: ObjectStore,
    name: str,
    links: Sequence[Range],
    *,
    about: About,
    engine: ArchiveEngine,
    progress: Progress,
    range_bytes: int,
) -> LogPass:
    """Archive the committed records of one log that the archive does not have yet.

    Raises:  ArchiveError; LostRangeError if there is no checkpoint either; what reading raises.
    """
    log = logs.log(name)
    end_offset = log.end_offset()
    at = links[-1].end_offset if links else 0
    if 0 < at < end_offset:
        _check_history(store, log, links[-1])
    done = LogPass(name, at, at, end_offset)
    replans = 0
    while True:
        work = _Work(store, log, name, done.end_offset, end_offset, about, range_bytes)
        try:
            tasks = work.unfinished_tasks()
            if not tasks and done.end_offset < end_offset:
                tasks = work.make_plan()
            if not tasks:
                return done
            for manifest in engine.run(partial(write_range, store), tasks):
                _require_files(store, manifest)
                store.write_new(manifest.range.manifest_key, manifest.to_json())
                done.add(manifest)
                progress(manifest.range)
        except LostRangeError:
            replans += 1
            if replans > _MAX_REPLANS:
                raise
            end_offset = done.log_end_offset = log.end_offset()  # the cut may lie beyond it
            replace(work, end_offset=end_offset).replan()
        except StorageError as error:
            raise ArchiveError(describe_failure(store.uri, error)) from None


def _check_history(store: ObjectStore, log: Log, last: Range) -> None:
    """Raise ForeignArchiveError unless the log continues the archived history."""
    archived, found = read_manifest(store, last).last_epoch, epoch_before(log, last.end_offset)
    if found is not None and found != archived:
        raise ForeignArchiveError(
            f"{last.log}: before offset {last.end_offset} {store.uri} has a record of epoch "
            f"{archived}, and the log has one of epoch {found}: this is another log, restored or "
            "made anew; give another --out"
        )


def _require_files(store: ObjectStore, manifest: Manifest) -> None:
    """Raise ArchiveError unless this process sees all files that a task wrote for a range.

    A worker on another machine may have written them into a directory of its own.
    """
    for file in manifest.files:
        found = store.head(file.key)
        if found is None or found.size_bytes != file.bytes:
            raise ArchiveError(
                f"{store.uri}: a task wrote {file.key} of {file.bytes} bytes, which cannot be seen "
                f"from here: {_SHARED_PLACE}; the range does not count as archived"
            )


_SHARED_PLACE: Final = (
    "give an --out that all Spark workers share, a bucket or one mounted directory"
)

_MAX_REPLANS: Final = 5
"""Largest number of new plans in a pass, one for each time that the log's head is deleted."""


# --- plans ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Work:
    """The work of a pass on one log, from `at` on."""

    store: ObjectStore
    log: Log
    name: str
    at: int
    end_offset: int  # what is committed
    about: About
    range_bytes: int

    def unfinished_tasks(self) -> list[Task]:
        """Return a task for each archive range that was planned but is not archived yet."""
        key = self._newest_plan()
        data = None if key is None else read_object(self.store, key)
        if key is None or data is None:
            return []
        left = [planned for planned in plan_from_json(data, key) if planned.start_offset >= self.at]
        if not left or left[0].start_offset != self.at:
            return []
        return [self._task(planned) for planned in left if planned.end_offset <= self.end_offset]

    def make_plan(self) -> list[Task]:
        """Write a plan of this log's next archive ranges, and return a task for each range.

        If another job has written that plan, returns the tasks of the other job's ranges.
        """
        spans = self._spans(self.end_offset, start_offset=self.at)
        ranges = [
            Range(self.name, planned.start_offset, planned.end_offset, LOG) for planned in spans
        ]
        if not self.store.write_new(plan_key(self.name, self.at), plan_to_json(ranges)):
            return self.unfinished_tasks()
        return [
            Task(self.about.cluster_id, planned, (span,), self.about.tables)
            for planned, span in zip(ranges, spans, strict=True)
        ]

    def replan(self) -> None:
        """Plan the ranges anew from a checkpoint, because the log's first records were deleted."""
        spans = self._spans(self.end_offset)
        if not spans or not spans[0].is_checkpoint or spans[0].end_offset <= self.at:
            return  # the offsets exist after all, or nothing does: the next attempt decides
        ranges = [Range(self.name, self.at, spans[0].end_offset, CHECKPOINT)]
        ranges += [Range(self.name, span.start_offset, span.end_offset, LOG) for span in spans[1:]]
        self.store.write(plan_key(self.name, self.at), plan_to_json(ranges))

    def _newest_plan(self) -> str | None:
        """Return the key of the last plan that begins at or before the next offset to archive."""
        last = plan_key(self.name, self.at)
        keys = (found.key for found in self.store.list(f"plan/{self.name}/"))
        return max((key for key in keys if key <= last), default=None)

    def _task(self, planned: Range) -> Task:
        """Build the task that archives a planned range of offsets."""
        if planned.is_checkpoint:
            spans = list(self._spans(planned.end_offset)[:1])
            if not spans or not spans[0].is_checkpoint or spans[0].end_offset != planned.end_offset:
                raise LostRangeError(
                    planned.log, planned.start_offset, None, "its checkpoint was dropped"
                )
        else:
            found = self._spans(planned.end_offset, start_offset=planned.start_offset)
            spans = [
                within
                for span in found
                if (within := span.within(planned.start_offset, planned.end_offset - 1)) is not None
            ]
        return Task(self.about.cluster_id, planned, tuple(spans), self.about.tables)

    def _spans(self, end_offset: int, *, start_offset: int | None = None) -> Sequence[Span]:
        return self.log.spans(end_offset, start_offset=start_offset, split_bytes=self.range_bytes)
