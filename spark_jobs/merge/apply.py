"""Applies a plan of merges: rewrites objects with an engine, and has coordinators replace the runs.

Merges are rewritten some at a time, under one lease of object ids, which is renewed while the
engine works. Then each object's ranges are handed to the coordinator, which replaces a range only
if its live runs are those that were rewritten. A line of the journal beside the plan says that a
merge is done, and what of it is left. After a crash the same command repeats the merges of one
window; their objects of the first attempt become orphans of the lease, which brokers delete.

A range is left if its partition's bytes cannot be read, or if the coordinator refuses it because
the partition has changed since the plan was made. The next plan has what is worth merging of it.

Source: docs/design/compaction.md#calls; docs/design/pipeline.md#applying-a-plan.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from coordinator.batch.interface import CallTarget
from coordinator.errors import CoordinatorError
from diskless.compaction.leases import RewriteLeases, RewriteRefusedError
from diskless.compaction.tasks import RewrittenRange, Source
from records.kafka_errors import ErrorCode
from records.rpc.objects import DescribeDisklessObjectRequest
from records.uuids import encode_uuid
from spark_jobs.merge.plan import MergePlan, PlannedMerge
from spark_jobs.merge.rewriting import RewriteTask, RewriteWork, Rewritten
from spark_jobs.plans.journal import whole_lines
from spark_jobs.readers.engines import Engine
from spark_jobs.readers.object_store import ObjectStore

T = TypeVar("T")

WINDOW: Final = 16
"""Merges that are rewritten under one lease: what a crash repeats at the most."""

RENEW_S: Final = 30.0
UNREADABLE: Final = 0
"""Stands for the error code of a range whose bytes could not be read."""


class WrongClusterError(Exception):
    """The plan's objects are not those of the cluster that it is applied to."""


class Left(NamedTuple):
    """A range of a plan that was not merged."""

    topic_id: str
    partition: int
    first_offset: int
    runs: int
    code: int  # the coordinator's error, or UNREADABLE
    reason: str | None = None  # why the bytes could not be read


@dataclass(slots=True)
class Outcome:
    """The results of applying a plan so far."""

    done: set[int] = field(default_factory=set)  # merges, by number
    old_runs: int = 0  # that were replaced
    new_runs: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    left: list[Left] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)  # merges to repeat, and why
    unanswered: str | None = None  # why applying stopped

    def add(self, entry: dict[str, Any]) -> None:
        """Add one finished merge, read from a line of the journal."""
        self.done.add(int(entry["merge"]))
        self.old_runs += int(entry["old_runs"])
        self.new_runs += int(entry["new_runs"])
        self.read_bytes += int(entry["read_bytes"])
        self.written_bytes += int(entry["written_bytes"])
        self.left += [Left(*left) for left in entry["left"]]


class Journal:
    """The finished merges of a plan, one line each, in a file beside the plan."""

    def __init__(self, path: Path, plan_id: str) -> None:
        self.path = path
        self._plan_id = plan_id

    def read(self) -> Outcome:
        """Return the journaled results of earlier executions, and cut off an incomplete last line.

        Raises:  OSError; ValueError if the journal is another plan's, or none.
        """
        outcome = Outcome()
        for line in whole_lines(self.path):
            try:
                entry = json.loads(line)
                plan_id = entry["plan_id"]
                outcome.add(entry)
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{self.path} is not a plan's journal ({error!r})") from None
            if plan_id != self._plan_id:
                raise ValueError(f"{self.path} is the journal of plan {plan_id}")
        return outcome

    def write(self, entry: dict[str, Any]) -> None:
        """Append one finished merge durably to the journal.

        Raises:  OSError.
        """
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"plan_id": self._plan_id, **entry}) + "\n")
            file.flush()
            os.fsync(file.fileno())


async def apply_merges(
    plan: MergePlan,
    journal: Journal,
    coordinator: Callable[[int], CallTarget],
    store: ObjectStore,
    engine: Engine,
    *,
    bytes_per_second: int = 0,
    window: int = WINDOW,
    progress: Callable[[int], None] = lambda _: None,
) -> Outcome:
    """Merge the objects of a plan that the journal lacks, and journal each finished merge.

    Args:    coordinator: of a partition of `__diskless-metadata`.
             bytes_per_second: that each task reads and writes; 0: no limit.
             window: merges that are rewritten under one lease.
             progress: called with the number of merges that were rewritten.
    Raises:  WrongClusterError before anything is written; OSError; ValueError if the journal is
             another plan's; what the engine raises.
    """
    outcome = journal.read()
    progress(len(outcome.done))
    task = RewriteTask(store, bytes_per_second)
    waiting = (merge for merge in plan.merges() if merge.number not in outcome.done)
    for number, merges in groupby(waiting, key=lambda merge: merge.coordinator):
        is_first = True
        while some := list(islice(merges, window)):
            try:
                if is_first:
                    await _require_cluster(coordinator(number), some[0])
                    is_first = False
                await _apply_window(
                    plan, journal, coordinator(number), task, engine, some, outcome, progress
                )
            except CoordinatorError as error:
                outcome.unanswered = f"coordinator {number}: {error.message}"
            except RewriteRefusedError as error:
                outcome.unanswered = f"coordinator {number}: {error}"
            if outcome.unanswered is not None:
                return outcome
    return outcome


async def _require_cluster(coordinator: CallTarget, merge: PlannedMerge) -> None:
    """Raise WrongClusterError if the plan's keys are not of the coordinator's cluster.

    Why: ids of one cluster's lease must not be used in keys of another cluster.
    """
    runs = (run for source in merge.sources for run in source.runs)
    key = next(run.object_key for run in runs if not run.is_marker)
    request = DescribeDisklessObjectRequest(coordinator_partition=merge.coordinator, object_key=key)
    answer = await coordinator.call(request)
    if answer.error_code and answer.applied_offset < 0:
        raise WrongClusterError(answer.error_message or key)


async def _apply_window(
    plan: MergePlan,
    journal: Journal,
    coordinator: CallTarget,
    task: RewriteTask,
    engine: Engine,
    merges: Sequence[PlannedMerge],
    outcome: Outcome,
    progress: Callable[[int], None],
) -> None:
    """Rewrite the objects of some merges under one lease, and replace their runs.

    Raises:  CoordinatorError, RewriteRefusedError without a lease; what the engine raises.
    """
    keys = plan.keys(merges[0].coordinator)
    leases = RewriteLeases(coordinator, keys, plan_id=plan.lease_owner, at_once=len(merges))
    try:
        ids = [await leases.next_id() for _ in merges]
        work = [
            RewriteWork(keys, object_id, merge.sources)
            for object_id, merge in zip(ids, merges, strict=True)
        ]
        renewing = asyncio.ensure_future(_renew(leases))
        try:
            results = await asyncio.to_thread(engine.run, task, work, progress)
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
        for merge, result in zip(merges, results, strict=True):
            await _replace(leases, merge, result, journal, outcome)
    finally:
        await leases.release()


async def _renew(leases: RewriteLeases) -> None:
    """Renew the lease of object ids until the task is cancelled."""
    while True:
        await asyncio.sleep(RENEW_S)
        with contextlib.suppress(CoordinatorError, RewriteRefusedError):  # the next try may succeed
            await leases.ensure()


async def _replace(
    leases: RewriteLeases,
    merge: PlannedMerge,
    result: Rewritten,
    journal: Journal,
    outcome: Outcome,
) -> None:
    """Replace the runs of a merged object, and journal the replaced and refused ranges."""
    if result.error is not None:
        outcome.failed[merge.number] = result.error
        return
    left = list(_unread(merge.sources, result))
    old_runs = new_runs = 0
    if result.written is not None:
        try:
            replaced = await leases.replace(result.written)
        except (CoordinatorError, RewriteRefusedError) as error:
            outcome.failed[merge.number] = str(error)
            return
        old_runs, new_runs = replaced.old_runs, replaced.new_runs
        left += _refused(replaced.refused)
        if any(code == ErrorCode.COORDINATOR_NOT_AVAILABLE for _, code in replaced.refused):
            outcome.unanswered = f"coordinator {merge.coordinator}: no answer to ReplaceRuns"
    entry = {
        "merge": merge.number,
        "old_runs": old_runs,
        "new_runs": new_runs,
        "read_bytes": result.read_bytes,
        "written_bytes": 0 if result.written is None else result.written.size_bytes,
        "left": left,
    }
    journal.write(entry)
    outcome.add(entry)


def _unread(sources: Sequence[Source], result: Rewritten) -> Iterable[Left]:
    """Yield each range of runs that stays unreplaced because its first run is unreadable."""
    for damage in result.damages:
        for source in sources:
            if (source.topic_id, source.partition) != (damage.topic_id, damage.partition):
                continue
            runs = [run for run in source.runs if run.base_offset >= damage.offset]
            if runs and runs[0].base_offset == damage.offset:
                topic_id = encode_uuid(damage.topic_id)
                yield Left(
                    topic_id, damage.partition, damage.offset, len(runs), UNREADABLE, damage.reason
                )


def _refused(refused: Iterable[tuple[RewrittenRange, int]]) -> Iterable[Left]:
    """Yield, for the journal, each range of runs that the coordinator refused to replace."""
    for each, code in refused:
        topic_id, first = encode_uuid(each.topic_id), each.old_runs[0].base_offset
        yield Left(topic_id, each.partition, first, len(each.old_runs), int(code))
