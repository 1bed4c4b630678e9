"""Plans and runs the rewriting of objects on one broker, in passes.

    rewriting = Rewriting(cluster, worker, settings, wall_ms=..., random=...)
    rewriting.begin(broker_epoch)
    rewriting.start()

Each batch coordinator's merges have one owner among the unfenced brokers, and each partition's
compaction has one, both by rendezvous hash: so two brokers seldom do the same work. If they do, the
coordinator refuses the second replacement, because the runs that it names are gone. Nothing is kept
between passes that matters: the coordinator's state says what is merged and how far a partition is
cleaned.

No broker has to do this: a cluster with `esker.compaction.enable=false` everywhere only grows.

The trap: a policy that flips while a job runs. Before each replacement of a compaction the topic's
present policy is looked at, and the task ends if it has no `compact` any more.

Source: docs/design/compaction.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Any, Final, NamedTuple
from uuid import UUID

from coordinator.controller.config_defs import COMPACT, DELETE
from coordinator.controller.decide.configs import cleanup_policies, topic_value
from coordinator.controller.image import MetadataImage, TopicImage
from coordinator.controller.placement import unfenced_brokers
from coordinator.errors import CoordinatorError
from coordinator.features import may_write_format
from coordinator.rendezvous import choose
from diskless.compaction.leases import RewriteLeases, RewriteRefusedError
from diskless.compaction.planner import (
    Compaction,
    CompactionSettings,
    MergeSettings,
    PartitionRuns,
    expires_before,
    plan_compaction,
    plan_merges,
)
from diskless.compaction.queries import MAX_RUNS, CoordinatorQueries, Partition, RewritingCluster
from diskless.compaction.tasks import (
    SALT_BYTES,
    CompactionTask,
    Report,
    RewriterSettings,
    RewrittenObject,
    Source,
)
from diskless.compaction.worker import Callbacks, Task, TaskFailedError, Worker
from diskless.fetch.runs_reader import Run
from records.object_keys import ObjectKeys

log = logging.getLogger("diskless.compaction.service")

MERGE: Final = "merge"
COMPACTION: Final = "compaction"

LEVEL: Final = 3
"""The level of esker.version from which runs may be replaced."""

NOT_MARKED: Final = -1
TASKS_OF_A_PASS: Final = 64
FAILURES: Final = (CoordinatorError, RewriteRefusedError, TaskFailedError)
DAMAGE_RETRY_S: Final = 600.0
"""A damaged run is read again so much later: stores and networks fail for a time, too."""


class RewritingSettings(NamedTuple):
    """The settings of a broker's rewriting."""

    is_enabled: bool
    interval_s: float
    object_bytes: int
    map_bytes: int
    physical_max_ms: int  # -1: deleted bytes have no deadline
    key_prefix: str
    merging: MergeSettings = MergeSettings()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> RewritingSettings:
        """Build the settings of rewriting from a mapping of setting names to parsed values."""
        return cls(
            is_enabled=values["esker.compaction.enable"],
            interval_s=values["esker.compaction.interval.ms"] / 1_000,
            object_bytes=values["esker.compaction.object.bytes"],
            map_bytes=values["log.cleaner.dedupe.buffer.size"],
            physical_max_ms=values["esker.delete.physical.max.ms"],
            key_prefix=values["esker.object.key.prefix"],
            merging=MergeSettings(
                min_age_ms=values["esker.compaction.min.age.ms"],
                max_wait_ms=values["esker.compaction.max.wait.ms"],
                min_saved_runs=values["esker.compaction.min.saved.runs"],
            ),
        )


@dataclass(slots=True)
class KindCounters:
    """Counts of one kind of task, for metrics."""

    tasks: int = 0
    failures: int = 0
    old_runs: int = 0  # that were replaced
    new_runs: int = 0
    refused_ranges: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    last_success: float | None = None  # loop time of the last task, or pass without one


@dataclass(slots=True)
class RewritingCounters:
    """Counts of a broker's rewriting, for metrics."""

    passes: int = 0
    damaged_runs: int = 0
    removed_records: int = 0
    backlog_bytes: int = 0  # of planned merges and due compactions in the last pass
    backlog_runs: int = 0
    overdue_objects: int = 0  # in the last pass: in use, with deleted bytes that must be gone
    overdue_age_ms: int = 0  # of the oldest deletion in them
    overdue_runs: int = 0  # that were replaced for the sake of such bytes
    kinds: dict[str, KindCounters] = field(
        default_factory=lambda: {MERGE: KindCounters(), COMPACTION: KindCounters()}
    )


class _FirstRun(NamedTuple):
    """A partition's first run in the last pass."""

    base_offset: int
    cut_since: float | None  # loop time since when the log start is inside of it; None: it is not


def merging_broker(coordinator: int, image: MetadataImage) -> int | None:
    """Return the broker that merges a batch coordinator's objects; None without any broker."""
    name = b"merging-" + coordinator.to_bytes(4, "big")
    return choose(name, [broker.broker_id for broker in unfenced_brokers(image)])


def compacting_broker(topic_id: UUID, partition: int, image: MetadataImage) -> int | None:
    """Return the broker that compacts a partition; None without any broker."""
    name = b"compacting-" + topic_id.bytes + partition.to_bytes(4, "big")
    return choose(name, [broker.broker_id for broker in unfenced_brokers(image)])


class Rewriting:
    """Merges and compacts in repeated passes. Belongs to the event loop."""

    def __init__(
        self,
        cluster: RewritingCluster,
        worker: Worker,
        settings: RewritingSettings,
        *,
        wall_ms: Callable[[], int],
        random: Random,
    ) -> None:
        """Create the service that merges and compacts in periodic passes after `start`."""
        self.counters = RewritingCounters()
        self._cluster = cluster
        self._queries = CoordinatorQueries(cluster)
        self._worker = worker
        self._settings = settings
        self._wall_ms = wall_ms
        self._random = random
        self._epoch: int | None = None
        self._leases: dict[int, RewriteLeases] = {}
        self._damages: dict[tuple[UUID, int], dict[tuple[int, str], float]] = {}
        """Of each partition: damaged runs by offset and object, and when to read them again."""
        self._firsts: dict[int, dict[tuple[UUID, int], _FirstRun]] = {}
        """First runs, by coordinator, if this broker merges and deleted bytes have a deadline."""
        self._next: dict[int, int] = {}  # of each coordinator: the partition to begin with
        self._task: asyncio.Task[None] | None = None

    def begin(self, epoch: int) -> None:
        """Begin to merge and compact under this broker epoch."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._leases.clear()
            self._firsts.clear()

    def end(self) -> None:
        """Begin no more tasks, because the broker's epoch has ended."""
        self._epoch = None

    def start(self) -> None:
        """Start periodic passes, if enabled; the first pass begins after about one interval."""
        if self._settings.is_enabled:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="rewriting")

    async def close(self) -> None:
        """Cancel the current task, stop the worker, and release the leases of object ids."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._worker.close()
        for leases in self._leases.values():
            await leases.release()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._settings.interval_s * (0.75 + self._random.random() / 2))
            try:
                await self.run_pass()
            except Exception:  # the next pass reads everything anew
                log.exception("action=pass")

    async def run_pass(self) -> None:
        """Run one pass, which merges and compacts the partitions assigned to this broker."""
        if self._epoch is None or not may_write_format(self._cluster.image.features, LEVEL):
            return
        self.counters.passes += 1
        self.counters.backlog_bytes = self.counters.backlog_runs = 0
        self.counters.overdue_objects = self.counters.overdue_age_ms = 0
        for coordinator in range(self._cluster.image.coordinator_count):
            try:
                await self._merge(coordinator)
                await self._compact(coordinator)
            except FAILURES as error:
                log.warning("coordinator=%d action=pass error=%r", coordinator, str(error))

    # --- merging --------------------------------------------------------------------------------

    async def _merge(self, coordinator: int) -> None:
        """Merge runs of batches of one coordinator's partitions, the most profitable first."""
        if merging_broker(coordinator, self._cluster.image) != self._cluster.broker_id:
            self._firsts.pop(coordinator, None)
            return
        keys = self._keys(coordinator)
        partitions = [each async for each in self._partitions_with_runs(coordinator)]
        if not partitions:
            return
        await self._leases_of(coordinator).ensure()
        sparse, overdue = await self._sparse_objects(coordinator, keys)
        merges = plan_merges(
            partitions,
            object_id=keys.object_id,
            sparse=sparse,
            overdue=overdue,
            object_bytes=self._settings.object_bytes,
            now_ms=self._wall_ms(),
            settings=self._settings.merging,
        )
        self.counters.backlog_bytes += sum(merge.size_bytes for merge in merges)
        self.counters.backlog_runs += sum(merge.saved_runs for merge in merges)
        counts = self.counters.kinds[MERGE]
        for merge in merges[:TASKS_OF_A_PASS]:
            before = counts.old_runs
            await self._execute(MERGE, coordinator, merge.sources)
            if merge.is_overdue:
                self.counters.overdue_runs += counts.old_runs - before
        if not merges:
            self._note_success(MERGE)

    async def _partitions_with_runs(self, coordinator: int) -> AsyncIterator[PartitionRuns]:
        """Yield partitions of a coordinator with their runs, until there are `MAX_RUNS` runs."""
        image = self._cluster.image
        partitions = _partitions_of(image, coordinator)
        first = self._next.get(coordinator, 0) % max(1, len(partitions))
        seen = 0
        for number, partition in enumerate(partitions[first:] + partitions[:first]):
            if seen >= MAX_RUNS:
                self._next[coordinator] = first + number
                return
            runs = await self._queries.runs(coordinator, partition)
            seen += len(runs)
            expires_before_ms = _expiry(image, partition.topic, self._wall_ms())
            deleted_before = self._deleted_before(coordinator, partition, runs)
            for sound in _split_at(runs, self._live_damages(partition.name, runs)):
                yield PartitionRuns(*partition.name, sound, expires_before_ms, deleted_before)

    def _live_damages(self, name: tuple[UUID, int], runs: list[Run]) -> set[tuple[int, str]]:
        """Return a partition's known damaged runs whose next read is not due yet.

        Forgets those that are not live any more.
        """
        known = self._damages.pop(name, None)
        if known is None:
            return set()
        there = {(run.base_offset, run.object_key) for run in runs}
        live = {damaged: retry_at for damaged, retry_at in known.items() if damaged in there}
        if live:
            self._damages[name] = live
        now = asyncio.get_running_loop().time()
        return {damaged for damaged, retry_at in live.items() if now < retry_at}

    def _deleted_before(self, coordinator: int, partition: Partition, runs: Sequence[Run]) -> int:
        """Return the log start if deleted bytes below it are overdue for removal, else 0.

        A first run that this broker has not seen before has a log start that may be old.
        """
        replica = self._cluster.replica(coordinator)
        ends = None if replica is None else replica.ends(*partition.name)
        if self._settings.physical_max_ms < 0 or ends is None or not runs:
            return 0
        firsts = self._firsts.setdefault(coordinator, {})
        first, known = runs[0], firsts.get(partition.name)
        if not first.base_offset < ends[0] <= first.last_offset:
            firsts[partition.name] = _FirstRun(first.base_offset, None)
            return 0
        now = asyncio.get_running_loop().time()
        since = -inf if known is None else known.cut_since
        if since is None or (known is not None and known.base_offset != first.base_offset):
            since = now
        firsts[partition.name] = _FirstRun(first.base_offset, since)
        return ends[0] if now - since >= self._settings.physical_max_ms / 2_000 else 0

    async def _sparse_objects(
        self, coordinator: int, keys: ObjectKeys
    ) -> tuple[set[str], set[str]]:
        """Return the keys of objects under half used, and of objects with overdue deleted bytes."""
        sparse: set[str] = set()
        overdue: set[str] = set()
        now_ms, max_ms = self._wall_ms(), self._settings.physical_max_ms
        for row in await self._queries.objects(coordinator):
            # Only where a run has died: of a tiny object the footer alone is more than half.
            has_died = row.marked_at_ms == NOT_MARKED and row.first_deletion_ms >= 0
            if not has_died or not row.used_bytes:
                continue
            if 2 * row.used_bytes < row.size_bytes:
                sparse.add(keys.key(row.object_id))
            # Half of the time is left for rewriting, the deletion's delay, and failed attempts.
            age_ms = now_ms - row.first_deletion_ms
            if 0 <= max_ms < 2 * age_ms:
                overdue.add(keys.key(row.object_id))
                self.counters.overdue_objects += 1
                self.counters.overdue_age_ms = max(self.counters.overdue_age_ms, age_ms)
        return sparse, overdue

    # --- compaction -----------------------------------------------------------------------------

    async def _compact(self, coordinator: int) -> None:
        """Compact the due partitions of one batch coordinator, the most urgent partition first."""
        image = self._cluster.image
        owned = [
            partition
            for partition in _partitions_of(image, coordinator)
            if COMPACT in cleanup_policies(image, partition.topic.name)
            and compacting_broker(*partition.name, image) == self._cluster.broker_id
        ]
        due: list[tuple[Partition, Compaction]] = []
        for partition in owned:
            choice = await self._choose(coordinator, partition)
            if choice is not None and choice.is_due:
                due.append((partition, choice))
        due.sort(key=lambda each: each[1].urgency, reverse=True)
        for _, choice in due:
            self.counters.backlog_bytes += sum(run.size_bytes for run in choice.source.runs)
            self.counters.backlog_runs += len(choice.source.runs)
        for partition, choice in due[:TASKS_OF_A_PASS]:
            await self._leases_of(coordinator).ensure()
            task = await self._task_of(coordinator, partition, choice)
            await self._execute(COMPACTION, coordinator, task)
        if not due:
            self._note_success(COMPACTION)

    async def _choose(self, coordinator: int, partition: Partition) -> Compaction | None:
        """Plan a partition's next compaction; return None if none is due or a run is damaged."""
        runs = await self._queries.runs(coordinator, partition)
        cleaning = await self._queries.cleaning(coordinator, partition) if runs else None
        if cleaning is None:
            return None
        image = self._cluster.image
        topic_id, index = partition.name
        choice = plan_compaction(
            PartitionRuns(topic_id, index, runs),
            cleaning,
            compaction_settings(image, partition.topic),
            now_ms=self._wall_ms(),
        )
        if self._live_damages(partition.name, runs):
            return None  # retention or DeleteRecords takes the damaged run one day
        return choice

    async def _task_of(
        self, coordinator: int, partition: Partition, choice: Compaction
    ) -> CompactionTask:
        last_sequences = await self._queries.last_sequences(coordinator, partition)
        image = self._cluster.image
        runs = choice.source.runs
        aborted = {}
        for first in (0, choice.first_dirty, choice.rewritten_until):  # where reading may begin
            base = next((run.base_offset for run in runs if run.last_offset >= first), None)
            if base is not None and base not in aborted:
                aborted[base] = await self._queries.aborted(
                    coordinator, partition, base, choice.bound
                )
        return CompactionTask(
            source=choice.source,
            bound=choice.bound,
            first_dirty=choice.first_dirty,
            rewritten_until=choice.rewritten_until,
            delete_retention_ms=_number(image, partition.topic, "delete.retention.ms"),
            now_ms=self._wall_ms(),
            last_sequences=last_sequences,
            salt=self._random.randbytes(SALT_BYTES),
            aborted=aborted if any(aborted.values()) else {},
        )

    # --- tasks ----------------------------------------------------------------------------------

    async def _execute(self, kind: str, coordinator: int, task: Task) -> None:
        """Run a merge or compaction task and count the results; log a failed task.

        An object that replaced nothing is an orphan once its lease has ended, so a task that failed
        or was abandoned ends the lease: otherwise each pass would renew it.
        """
        counters = self.counters.kinds[kind]
        epoch = self._epoch
        if epoch is None:
            return
        leases = self._leases_of(coordinator)

        async def replace(written: RewrittenObject) -> bool:
            if isinstance(task, CompactionTask) and not self._is_compacted(task.source):
                log.info("action=%s topic_id=%s reason=policy", kind, task.source.topic_id)
                return False
            replaced = await leases.replace(written)
            counters.old_runs += replaced.old_runs
            counters.new_runs += replaced.new_runs
            counters.refused_ranges += len(replaced.refused)
            for each, code in replaced.refused:
                log.info(
                    "action=%s topic_id=%s partition=%d first_offset=%d refused=%d",
                    kind, each.topic_id, each.partition, each.old_runs[0].base_offset, code,
                )  # fmt: skip
            return not replaced.refused and self._epoch == epoch

        settings = RewriterSettings(
            self._keys(coordinator),
            self._cluster.broker_id,
            epoch,
            self._settings.object_bytes,
            self._settings.map_bytes,
        )
        counters.tasks += 1
        try:
            report = await self._worker.run(task, settings, Callbacks(leases.next_id, replace))
        except FAILURES as error:
            counters.failures += 1
            log.warning("action=%s error=%r", kind, str(error))
            await leases.release()
            return
        if report.is_abandoned:
            await leases.release()
        self._note(kind, report)

    def _note(self, kind: str, report: Report) -> None:
        """Add the results of a task to the counters, and record its damaged runs."""
        counters = self.counters.kinds[kind]
        counters.read_bytes += report.read_bytes
        counters.written_bytes += report.written_bytes
        self.counters.removed_records += report.removed_records
        for damage in report.damages:
            known = self._damages.setdefault((damage.topic_id, damage.partition), {})
            is_known = (damage.offset, damage.object_key) in known
            retry_at = asyncio.get_running_loop().time() + DAMAGE_RETRY_S
            known[damage.offset, damage.object_key] = retry_at
            if not is_known:
                self.counters.damaged_runs += 1
                log.error(
                    "action=%s topic_id=%s partition=%d offset=%d damage=%r",
                    kind, damage.topic_id, damage.partition, damage.offset, damage.reason,
                )  # fmt: skip
        if not report.is_abandoned:
            self._note_success(kind)

    def _note_success(self, kind: str) -> None:
        self.counters.kinds[kind].last_success = asyncio.get_running_loop().time()

    def success_ages_s(self) -> dict[str, float]:
        """Return the seconds since each kind of task succeeded last; infinite before the first."""
        now = asyncio.get_running_loop().time()
        times = {kind: counts.last_success for kind, counts in self.counters.kinds.items()}
        return {kind: inf if time is None else now - time for kind, time in times.items()}

    def _is_compacted(self, source: Source) -> bool:
        image = self._cluster.image
        topic = image.topics.get(source.topic_id)
        return topic is not None and COMPACT in cleanup_policies(image, topic.name)

    def _keys(self, coordinator: int) -> ObjectKeys:
        return ObjectKeys(
            prefix=self._settings.key_prefix,
            cluster_id=self._cluster.cluster_id,
            coordinator_partition=coordinator,
            ancestors=self._cluster.image.ancestors,
        )

    def _leases_of(self, coordinator: int) -> RewriteLeases:
        assert self._epoch is not None, "a lease without a broker epoch"
        leases = self._leases.get(coordinator)
        if leases is None:
            leases = self._leases[coordinator] = RewriteLeases(
                self._cluster.leader(coordinator),
                self._keys(coordinator),
                broker_id=self._cluster.broker_id,
                broker_epoch=self._epoch,
            )
        return leases


def compaction_settings(image: MetadataImage, topic: TopicImage) -> CompactionSettings:
    """Return a topic's compaction lags and dirty ratio from the cluster image."""
    return CompactionSettings(
        _number(image, topic, "min.compaction.lag.ms"),
        _number(image, topic, "max.compaction.lag.ms"),
        float(topic_value(image, topic.name, "min.cleanable.dirty.ratio")),
    )


def _split_at(runs: list[Run], damaged: set[tuple[int, str]]) -> Iterator[list[Run]]:
    """Yield the runs of a partition before, between and behind its damaged runs."""
    first = 0
    for end, run in enumerate(runs):
        if damaged and (run.base_offset, run.object_key) in damaged:
            if end > first:
                yield runs[first:end]
            first = end + 1
    if len(runs) > first:
        yield runs[first:]


def _number(image: MetadataImage, topic: TopicImage, name: str) -> int:
    return int(topic_value(image, topic.name, name))


def _expiry(image: MetadataImage, topic: TopicImage, now_ms: int) -> int | None:
    """Return the timestamp (ms) below which retention soon deletes records of a topic, or None."""
    if DELETE not in cleanup_policies(image, topic.name):
        return None
    return expires_before(_number(image, topic, "retention.ms"), now_ms)


def _partitions_of(image: MetadataImage, coordinator: int) -> list[Partition]:
    """Return the partitions of a batch coordinator, sorted by topic id and index."""
    return [
        Partition(topic, index)
        for topic in sorted(image.topics.values(), key=lambda topic: topic.topic_id.bytes)
        if not topic.is_internal
        for index in sorted(topic.partitions)
        if topic.coordinator(index) == coordinator
    ]
