"""Deletes objects that nothing references: marked objects and orphans, after the delay.

The coordinator lists them, from committed state only; a broker deletes them from the store in bulk
and reports it; then the coordinator forgets them. For each coordinator partition one broker does
this, chosen by rendezvous hash of the unfenced ones, so that all agree without a message.

The broker stores no progress, so a crash between any two steps is harmless. An object that is
deleted and not yet forgotten is listed again, deleted again (a missing object counts as deleted),
and then forgotten. Two brokers that both delete are harmless for the same reason.

The trap: the store is never listed, and only objects that the coordinator named are deleted. A key
of another cluster or coordinator is refused: in a shared bucket it would be another owner's data.

Source: docs/design/batch-coordinator.md#deletion, docs/design/batch-coordinator.md#object-leases;
KIP-1164, getFilesToDelete and deleteFiles.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

from coordinator.batch.interface import CallTarget
from coordinator.controller.image import MetadataImage
from coordinator.controller.placement import unfenced_brokers
from coordinator.errors import CoordinatorError
from coordinator.rendezvous import choose
from diskless.lineage import SupersededError
from diskless.stores import DeletionError, ObjectStorage, StorageError
from records.kafka_errors import error_name
from records.object_keys import ForeignKeyError, ObjectKeys
from records.rpc import objects as rpc

log = logging.getLogger("diskless.object_deletion")

BULK: Final = 1_000  # keys of one deletion: S3's limit
MAX_LISTED: Final = 10_000  # the most that a coordinator lists
MAX_PAUSE_S: Final = 300.0


class CleanedCluster(Protocol):
    """The part of a `diskless.cluster.Cluster` that deletion needs."""

    @property
    def cluster_id(self) -> str: ...

    @property
    def broker_id(self) -> int: ...

    @property
    def image(self) -> MetadataImage: ...

    def leader(self, coordinator: int) -> CallTarget: ...


class Proof(Protocol):
    """The part of a `diskless.lineage.Lineage` that deletion needs."""

    timeout_s: float

    async def prove(self) -> None: ...


class Hold(Protocol):
    """The part of a `diskless.backup.hold.DeletionHold` that deletion needs."""

    async def note(self, coordinator: int) -> None: ...

    def is_held(self, coordinator: int, object_id: int) -> bool: ...


@dataclass(slots=True)
class CleaningCounters:
    """Counts of a cleaner's passes and deletions, for metrics."""

    passes: int = 0
    deleted: int = 0  # objects that are gone from the store and forgotten
    failed: int = 0  # deletions that the store refused; each is retried
    interrupted: int = 0  # passes that ended early: no coordinator, or the store is down
    foreign: int = 0  # keys that are not this cluster's; never deleted
    listed: int = 0  # by the last pass, and not held
    held: int = 0  # by the last pass: a backup that can be restored may need them


class _RefusedError(Exception):
    """The coordinator answered with an error code, so the pass ends."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{error_name(code)}: {message}")


def cleaning_broker(coordinator: int, image: MetadataImage) -> int | None:
    """Return the broker that deletes a batch coordinator's objects; None without any broker."""
    name = b"cleaning-" + coordinator.to_bytes(4, "big")
    return choose(name, [broker.broker_id for broker in unfenced_brokers(image)])


class Cleaner:
    """Deletes unreferenced objects in repeated passes. Belongs to the event loop."""

    def __init__(
        self,
        cluster: CleanedCluster,
        store: ObjectStorage,
        *,
        key_prefix: str,
        random: Random,
        interval_s: float,
        forget: Callable[[str], None] = lambda _: None,
        lineage: Proof | None = None,
        hold: Hold | None = None,
    ) -> None:
        """Create a cleaner that deletes objects periodically after `start`.

        Args:  key_prefix: esker.object.key.prefix.
               interval_s: between two passes; longer after a failure, and jittered.
               forget: called with each deleted key, so that a cache can drop it.
               lineage: proves before each deletion that this cluster owns the objects; None: it
                   does.
               hold: tells which objects a backup may need; None: no backups.
        """
        self.counters = CleaningCounters()
        self._cluster = cluster
        self._store = store
        self._key_prefix = key_prefix
        self._random = random
        self._interval_s = interval_s
        self._forget = forget
        self._lineage = lineage
        self._hold = hold
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the cleaner; its first pass follows after one interval."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="cleaner")

    async def close(self) -> None:
        """Cancel the current cleaning pass and stop the cleaner."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        pause_s = self._interval_s
        while True:
            await asyncio.sleep(pause_s * (0.75 + self._random.random() / 2))
            went_well = await self.clean()
            longest_s = max(MAX_PAUSE_S, self._interval_s)
            pause_s = self._interval_s if went_well else min(longest_s, 2 * pause_s)

    async def clean(self) -> bool:
        """Delete the unreferenced objects of each batch coordinator assigned to this broker.

        Returns:  False after a failure.
        """
        image = self._cluster.image
        ours = [
            coordinator
            for coordinator in range(image.coordinator_count)
            if cleaning_broker(coordinator, image) == self._cluster.broker_id
        ]
        self.counters.passes += bool(ours)
        self.counters.listed = self.counters.held = 0
        results = [await self._clean(coordinator) for coordinator in ours]
        return all(results)

    async def _clean(self, coordinator: int) -> bool:
        """Try once to delete each object that a batch coordinator has marked for deletion."""
        leader = self._cluster.leader(coordinator)
        tried: set[str] = set()  # keys that failed in this pass
        held: set[str] = set()
        try:
            if self._hold is not None:
                await self._hold.note(coordinator)
            most = BULK
            while True:
                answer = await leader.call(
                    rpc.GetFilesToDeleteRequest(coordinator_partition=coordinator, max_files=most)
                )
                if answer.error_code:
                    raise _RefusedError(answer.error_code, answer.error_message or "no list")
                keys = self._keys_to_delete(coordinator, answer, tried, held)
                self.counters.listed += len(keys)
                if not keys:
                    if most < MAX_LISTED and len(answer.files) == most:
                        most = MAX_LISTED  # others may stand behind those that are held
                        continue
                    self.counters.held += len(held)
                    return not tried
                failed = await self._delete(keys)
                tried.update(failed)
                await self._report(leader, coordinator, [key for key in keys if key not in failed])
                most = min(MAX_LISTED, BULK + len(tried) + len(held))
        except (CoordinatorError, _RefusedError, StorageError) as error:
            self.counters.interrupted += 1
            log.warning("coordinator=%d action=clean error=%r", coordinator, str(error))
            return False

    def _keys_to_delete(
        self,
        coordinator: int,
        answer: rpc.GetFilesToDeleteResponse,
        tried: set[str],
        held: set[str],
    ) -> list[str]:
        """Return up to `BULK` listed keys of this cluster whose deletion was not tried yet.

        Keys that a backup holds are added to `held` instead.
        """
        own = ObjectKeys(
            prefix=self._key_prefix,
            cluster_id=self._cluster.cluster_id,
            coordinator_partition=coordinator,
            ancestors=self._cluster.image.ancestors,
        )
        keys = []
        for file in answer.files:
            if file.object_key in tried or file.object_key in held:
                continue
            try:
                object_id = own.object_id(file.object_key)
            except ForeignKeyError as error:
                self.counters.foreign += 1
                tried.add(file.object_key)
                log.error("coordinator=%d action=clean error=%r", coordinator, str(error))
                continue
            if self._hold is not None and self._hold.is_held(coordinator, object_id):
                held.add(file.object_key)
                continue
            keys.append(file.object_key)
        return keys[:BULK]

    async def _delete(self, keys: list[str]) -> set[str]:
        """Delete objects, and return the keys of failed deletions.

        Raises StorageError if all failed.
        """
        try:
            await self._delete_in_time(keys)
        except DeletionError as error:
            failed = set(error.failed)
            self.counters.failed += len(failed)
            log.warning("action=clean failed=%d error=%r", len(failed), str(error))
            if failed.issuperset(keys):
                raise
            return failed
        return set()

    async def _delete_in_time(self, keys: list[str]) -> None:
        """Delete objects while a new proof says that this cluster is the living one.

        Why a new one: a pass over many keys takes long. Raises StorageError without a proof.
        """
        if self._lineage is None:
            await self._store.delete(keys)
            return
        try:
            async with asyncio.timeout(self._lineage.timeout_s):
                await self._lineage.prove()
                await self._store.delete(keys)
        except SupersededError as error:
            raise StorageError("", str(error), retriable=False) from None
        except TimeoutError:
            raise StorageError("", "the deletion took longer than a proof is valid") from None

    async def _report(self, leader: CallTarget, coordinator: int, keys: list[str]) -> None:
        """Report deleted objects to the coordinator, which then deletes their metadata."""
        for key in keys:
            self._forget(key)
        if not keys:
            return
        answer = await leader.call(
            rpc.DeleteFilesRequest(coordinator_partition=coordinator, object_keys=tuple(keys))
        )
        if answer.error_code:
            raise _RefusedError(answer.error_code, answer.error_message or "refused")
        self.counters.deleted += sum(1 for code in answer.key_error_codes if not code)
