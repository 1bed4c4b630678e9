"""The task of a broker that copies the committed logs to the store.

    backup = Shipper(store, logs, cluster, settings, ...)
    backup.start()
    backup.newest            # the newest manifest that was read or written, or None
    backup.contradiction     # None, or the sentence that proves a loss

One broker ships: that chosen by rendezvous hash. The others read the newest manifest, for their
deletions and to notice a lost log. Two that ship at once are harmless, because manifests are
numbered and written once; the loser begins again from the winner's.

The trap: a broker that was paused holds an old manifest, whose objects may be deleted. It cannot
write a manifest on top of that: the number is taken.

Source: docs/design/backup.md#states-of-a-shipping-broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from coordinator.controller.image import MetadataImage
from coordinator.controller.placement import unfenced_brokers
from coordinator.rendezvous import choose
from diskless.backup.bucket import Bucket, TakenError
from diskless.backup.cut import BackupLog, CutError, is_quiet, read_batches, take_ends
from diskless.backup.expiry import Expiry
from diskless.backup.manifest import (
    BackedUpLog,
    BackupError,
    Manifest,
    NewerFormatError,
    OldestCut,
)
from diskless.backup.packing import Packer
from diskless.cluster import ClusterMember
from diskless.lineage import has_conditional_writes
from diskless.stores.interface import ObjectStorage, StorageError
from raft.interfaces import ReplicatedLog
from records.errors import RecordError
from records.internal_topics import CLUSTER_METADATA, CONSUMER_OFFSETS, DISKLESS_METADATA
from records.types import Offset

log = logging.getLogger("diskless.backup")

MAX_RANGES: Final = 128  # of a log in one manifest
POLL_S: Final = 5.0  # between two looks for a request; after a failure as well
TIMEOUT_S: Final = 300.0  # of one attempt
CONFIRM_S: Final = 30.0
"""A lost log must be seen again after this time: a leader that was deposed and does not know it yet
may say too little, until it resigns because a majority does not fetch from it any more."""

LATE_INTERVALS: Final = 3  # without a success before the broker is degraded


class BackedUpCluster(ClusterMember, Protocol):
    """The part of a `diskless.cluster.Cluster` that backups need."""

    async def report_lost_records(
        self, topic: str, partition: int, end: int, epoch: int
    ) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupSettings:
    """The settings `esker.backup.*`: interval, retention and key prefix of backups."""

    is_enabled: bool
    prefix: str
    interval_s: float
    retention_s: float

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> BackupSettings:
        """Take the settings from a node's parsed settings by name."""
        return cls(
            is_enabled=values["esker.backup.enable"],
            prefix=values["esker.backup.key.prefix"],
            interval_s=values["esker.backup.interval.ms"] / 1_000,
            retention_s=values["esker.backup.retention.ms"] / 1_000,
        )


@dataclass(slots=True)
class BackupCounters:
    """Counts of a shipper's work, for metrics."""

    manifests: int = 0
    quiet: int = 0  # cuts that had nothing to write
    failed: int = 0
    bytes: int = 0
    deleted: int = 0  # objects that no restore needs any more


class Shipper:
    """Writes cuts while this broker is chosen. Belongs to the event loop."""

    def __init__(
        self,
        store: ObjectStorage,
        logs: Callable[[], Iterable[BackupLog]],
        cluster: BackedUpCluster,
        settings: BackupSettings,
        *,
        release: str,
        is_living: Callable[[], bool],
        clock: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        """Create a shipper that does nothing before `start`.

        Args:    logs: the open logs of the quorum on this broker.
                 is_living: whether this cluster is known not to be superseded.
                 clock: the loop's, in seconds.
        """
        self.counters = BackupCounters()
        self.settings = settings
        self.newest: Manifest | None = None
        self.contradiction: str | None = None
        self.fault: str | None = None  # of the last attempt
        self.succeeded_at: float | None = None  # by `clock`; None: never, while chosen
        self._chosen_at: float | None = None
        self._bucket = Bucket(store, settings.prefix, cluster.cluster_id)
        self._store = store
        self._logs = logs
        self._cluster = cluster
        self._release = release
        self._is_living = is_living
        self._clock = clock
        self._wall_ms = wall_ms
        self._expiry = Expiry(settings.retention_s, clock)
        self._is_probed = False
        self._is_begun = False  # since this broker was chosen: the newest manifest was read
        self._newest_number: int | None = None  # of all manifests, damaged ones included
        self._quiet_ends: dict[str, int] = {}  # nothing but quiet records below, above the cut
        self._suspected_at: float | None = None  # since when the logs contradict the backup
        self._lost: list[BackedUpLog] = []  # what the logs contradict
        self._due_at = 0.0
        self._task: asyncio.Task[None] | None = None

    # --- what others see ------------------------------------------------------------------------

    @property
    def is_chosen(self) -> bool:
        """Return whether this broker is the one that ships."""
        return backup_broker(self._cluster.image) == self._cluster.broker_id

    @property
    def age_s(self) -> float | None:
        """Return the seconds since the last success, or since this broker was chosen; else None."""
        if self._chosen_at is None:
            return None
        since = self._chosen_at if self.succeeded_at is None else self.succeeded_at
        return self._clock() - since

    @property
    def late_reason(self) -> str | None:
        """Return why the backup of the logs is late, or None if it is not."""
        age_s = self.age_s
        if age_s is None or age_s <= LATE_INTERVALS * self.settings.interval_s:
            return None
        reason = self.fault or "the first one is not finished"
        return f"the logs were not backed up for {age_s:.0f} s: {reason}"

    def is_released(self, log_name: str, applied_below: int) -> bool:
        """Return whether the oldest cut that can be restored has all records below an offset."""
        if self.newest is None or self.contradiction is not None:
            return False
        return applied_below <= self.newest.oldest.ends.get(log_name, 0)

    # --- the task -------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the task."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="backup")

    async def close(self) -> None:
        """Stop the task; a cut that is being written is given up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await (self.turn() if self.contradiction is None else self._report())
            await asyncio.sleep(min(POLL_S, self.settings.interval_s))

    async def turn(self) -> None:
        """Ship a cut if one is due or was asked for; without being chosen read the newest one."""
        now = self._clock()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                if not self.is_chosen:
                    self._chosen_at = self.succeeded_at = None
                    if now >= self._due_at:
                        await self._read_newest()
                        await self._compare(await self._take_ends())
                        self._due_at = now + self.settings.interval_s
                    return
                if self._chosen_at is None:
                    self._chosen_at, self._due_at, self._is_begun = now, now, False
                if not self._is_begun:
                    await self._begin()
                    self._is_begun = True
                is_requested = await self._bucket.is_requested(self._next_number)
                if is_requested or now >= self._due_at:
                    await self._ship(is_requested)
                    self._due_at = now + (0.0 if is_requested else self.settings.interval_s)
                    self.succeeded_at, self.fault = self._clock(), None
        except TakenError:
            log.info("action=backup reason=%r", "another broker ships, too")
            self._is_begun = False  # the winner's manifest is read in the next turn
        except (StorageError, BackupError, CutError, RecordError, OSError) as error:
            self._note_failure(str(error) or f"not finished within {TIMEOUT_S:.0f} s")

    def _note_failure(self, reason: str) -> None:
        self.counters.failed += 1
        if self.fault != reason:
            log.warning("action=backup error=%r", reason)
        self.fault = reason

    @property
    def _next_number(self) -> int:
        return 0 if self._newest_number is None else self._newest_number + 1

    async def _begin(self) -> None:
        """Check that the store can number manifests, and read the newest one."""
        if not self._is_probed:
            if not await has_conditional_writes(
                self._store, self.settings.prefix, self._cluster.cluster_id
            ):
                raise BackupError(
                    "the object store overwrites objects although it was told not to "
                    "(If-None-Match), so two brokers could spoil each other's backups: use another "
                    "store, or set esker.backup.enable=false"
                )
            self._is_probed = True
        await self._read_newest()
        if self.newest is not None and self._expiry.has_before(self.newest.oldest.number):
            await self._sweep(self.newest)  # a broker was killed before it did, or told to release

    async def _read_newest(self) -> None:
        """Read the newest sound manifest unless it is known; a damaged one's number stays taken.

        Raises:  NewerFormatError of a newer release's manifest; StorageError.
        """
        listed = await self._bucket.list_manifests()
        self._expiry.note(listed)
        if listed and self._newest_number == listed[-1].number and self.newest is not None:
            return
        self._newest_number = listed[-1].number if listed else None
        self.newest = None
        self._quiet_ends.clear()
        for one in reversed(listed):
            try:
                self.newest = await self._bucket.read_manifest(one)
                return
            except NewerFormatError:
                raise
            except BackupError as error:
                log.error("action=backup error=%r", str(error))

    # --- a cut ----------------------------------------------------------------------------------

    async def _take_ends(self) -> dict[str, int]:
        logs = list(self._logs())
        have = {one.name for one in logs}
        image = self._cluster.image
        expected = {f"{CLUSTER_METADATA}-0", f"{CONSUMER_OFFSETS}-0"} | {
            f"{DISKLESS_METADATA}-{number}" for number in range(image.coordinator_count)
        }
        if self.newest is not None:
            expected |= set(self.newest.ends)
        for name in sorted(expected - have):
            raise CutError(f"this broker has not opened {name} yet")
        return await take_ends(logs, self._clock)

    async def _compare(self, ends: Mapping[str, int]) -> None:
        """Look for committed records of the newest manifest that the logs have lost.

        Raises:  BackupError if there are any, and sets `contradiction` once that is sure.
        """
        self._lost, found = [], None
        for one in self._logs():
            backed_up = None if self.newest is None else self.newest.log(one.name)
            sentence = backed_up and _contradiction(one.log, ends[one.name], backed_up)
            if backed_up and sentence:
                self._lost.append(backed_up)
                found = found or sentence
        if found is None:
            self._suspected_at = None
            return
        now = self._clock()
        if self._suspected_at is None:
            self._suspected_at = now
        if now - self._suspected_at >= CONFIRM_S:
            self.contradiction = found
            log.error("action=backup contradiction=%r", found)
        raise BackupError(found)

    async def _report(self) -> None:
        """Tell the leader of each log that lost records; a leader that is elected later, too."""
        for one in self._lost:
            await self._cluster.report_lost_records(one.topic, one.partition, one.end, one.epoch)

    async def _ship(self, is_requested: bool) -> None:
        """Write a cut, unless only quiet records are new and none was asked for."""
        if not self._is_living():
            raise CutError("it is not known that this cluster was not restored elsewhere")
        began_ms = self._wall_ms()
        ends = await self._take_ends()
        await self._compare(ends)
        previous = self.newest
        if previous is not None and not is_requested and await self._is_quiet(previous, ends):
            self.counters.quiet += 1
            await self._expire_quietly(previous)
            return
        number = self._next_number
        logs = await self._write_logs(previous, number, ends)
        oldest = await self._oldest(number, ends)
        await self._write(
            Manifest(
                number=number,
                cluster_id=self._cluster.cluster_id,
                broker_id=self._cluster.broker_id,
                release=self._release,
                cut=number,
                began_ms=began_ms,
                oldest=oldest,
                logs=logs,
            )
        )

    async def _is_quiet(self, previous: Manifest, ends: Mapping[str, int]) -> bool:
        """Return whether only quiet records follow the newest cut."""
        for one in self._logs():
            backed_up = previous.log(one.name)
            if backed_up is None:
                return False
            start = max(backed_up.end, self._quiet_ends.get(one.name, 0))
            if start < one.log.start_offset:
                return False  # a checkpoint has replaced them
            for _, batch in read_batches(one.log, start, ends[one.name]):
                if not is_quiet(batch):
                    return False
            self._quiet_ends[one.name] = ends[one.name]
            await asyncio.sleep(0)
        return True

    async def _write(self, manifest: Manifest) -> None:
        """Write a manifest, then delete what it lets go."""
        before = self.newest
        await self._bucket.write_manifest(manifest)
        self.newest, self._newest_number = manifest, manifest.number
        self._quiet_ends.clear()
        self.counters.manifests += 1
        if before is not None and manifest.oldest.number > before.oldest.number:
            await self._sweep(manifest)

    async def _sweep(self, newest: Manifest) -> None:
        """Delete all that no restore needs from the oldest cut on."""
        oldest = await self._read_oldest(newest)
        self.counters.deleted += await self._bucket.sweep(oldest)
        self._expiry.forget_before(oldest.number)

    # --- expiry ---------------------------------------------------------------------------------

    async def _oldest(self, number: int, ends: Mapping[str, int]) -> OldestCut:
        """Return the oldest cut that manifest `number`, the next one, has to leave."""
        if self.newest is None:
            return OldestCut(number, ends)
        await self._list_if_due()
        listed = self._expiry.oldest()
        if listed is None or listed.number <= self.newest.oldest.number:
            return self.newest.oldest
        try:
            found = await self._bucket.read_manifest(listed)
        except BackupError as error:
            log.error("action=backup error=%r", str(error))
            return self.newest.oldest  # until the next cut is the oldest
        return OldestCut(found.number, found.ends)

    async def _list_if_due(self) -> None:
        if self._expiry.is_due():
            self._expiry.note(await self._bucket.list_manifests())

    async def _expire_quietly(self, previous: Manifest) -> None:
        """Let all older cuts go once the newest one has been kept for the retention.

        Why: in an idle cluster no later manifest would release the objects that they hold.
        """
        if previous.oldest.ends == previous.ends or previous.number != self._newest_number:
            return
        await self._list_if_due()
        if self._expiry.is_newest_only():
            await self._write(previous.as_only_cut())

    async def _read_oldest(self, manifest: Manifest) -> Manifest:
        if manifest.oldest.number == manifest.number:
            return manifest
        for listed in await self._bucket.list_manifests():
            if listed.number == manifest.oldest.number:
                return await self._bucket.read_manifest(listed)
        raise BackupError(f"manifest {manifest.oldest.number} is gone")

    # --- bytes of logs --------------------------------------------------------------------------

    async def _write_logs(
        self, previous: Manifest | None, number: int, ends: Mapping[str, int]
    ) -> tuple[BackedUpLog, ...]:
        """Write what the newest manifest lacks of each log, and return the logs of the next one."""
        packer = Packer(self._bucket, number)
        logs = []
        for one in sorted(self._logs(), key=lambda one: one.name):
            known = None if previous is None else previous.log(one.name)
            if known is None or _begins_anew(one.log, known):
                known = await self._begin_log(packer, one, known)
            end = max(ends[one.name], known.end)
            epoch = await packer.add(one, known.end, end)
            logs.append(replace(known, end=end, epoch=known.epoch if epoch is None else epoch))
        await packer.flush()
        self.counters.bytes += packer.bytes
        return tuple(
            replace(known, ranges=(*known.ranges, *packer.ranges[known.name])) for known in logs
        )

    async def _begin_log(
        self, packer: Packer, one: BackupLog, known: BackedUpLog | None
    ) -> BackedUpLog:
        """Return a log's entry as of the broker's newest checkpoint, or of its start, offset 0."""
        newest = one.log.snapshots.newest
        before = None if known is None else known.checkpoint
        if newest is None or (before is not None and (before.end, before.epoch) == newest):
            checkpoint = before
        else:
            checkpoint = await packer.add_checkpoint(one.name, one.log.snapshots, newest)
        return BackedUpLog(
            topic=one.topic,
            partition=one.partition,
            topic_id=one.topic_id,
            end=0 if checkpoint is None else checkpoint.end,
            epoch=0 if checkpoint is None else checkpoint.epoch,
            checkpoint=checkpoint,
        )


def backup_broker(image: MetadataImage) -> int | None:
    """Return the broker that ships the logs; None without any broker."""
    return choose(b"backup", [broker.broker_id for broker in unfenced_brokers(image)])


def _begins_anew(of: ReplicatedLog, known: BackedUpLog) -> bool:
    """Return whether a log's entry begins with a checkpoint again, or at the log's start."""
    return known.end < of.start_offset or len(known.ranges) >= MAX_RANGES


def _contradiction(of: ReplicatedLog, end: int, backed_up: BackedUpLog) -> str | None:
    """Return a sentence if a log lacks committed records that its backup has, or None."""
    remedy = (
        "the quorum has lost committed records: stop the cluster, and restore it from the backup"
    )
    if end < backed_up.end:
        return (
            f"{of.name} ends at {end}, and its backup at {backed_up.end}: {remedy} "
            "(esker restore plan --backup FILE)"
        )
    epoch = of.epoch_before(Offset(backed_up.end))
    if epoch is not None and epoch != backed_up.epoch and backed_up.end:
        return (
            f"{of.name} has epoch {epoch} before offset {backed_up.end}, and its backup "
            f"{backed_up.epoch}: {remedy} (esker restore plan --backup FILE)"
        )
    return None
