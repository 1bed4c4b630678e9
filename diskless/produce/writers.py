"""Keeps a broker's writers: one per coordinator partition, replaced with each broker epoch.

A lease of object ids names the broker and its epoch, and a commit needs an open lease. So a writer
ends with its epoch. When this broker registers again, or learns that it is fenced, the writers of
the old epoch stop at once. Batches that they have not submitted to a coordinator are never written
by them, and their producers get NOT_LEADER_OR_FOLLOWER. Commits that they have submitted without
an answer are repeated until the outcome is known, for only the coordinator knows it.

Old and new writers cannot conflict: the new epoch's first lease closes the old ones in the
coordinator's log, and the coordinator refuses an object of a closed lease.

Source: docs/design/batch-coordinator.md#object-leases,
docs/design/broker.md#errors-a-producer-sees.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random
from typing import Protocol

from diskless.produce.closing import BufferClosing, Reason
from diskless.produce.object_writer import (
    CommittingCoordinator,
    Identity,
    ObjectWriter,
    WriterCounters,
    WriterSettings,
)
from diskless.stores import ObjectStorage
from records.object_keys import ObjectKeys
from records.rpc.batch_coordinator import CommitBatchesResponse

log = logging.getLogger("diskless.produce.service")


class WrittenCluster(Protocol):
    """The part of a `diskless.cluster.Cluster` that writers need."""

    @property
    def cluster_id(self) -> str: ...

    @property
    def broker_id(self) -> int: ...

    def leader(self, coordinator: int) -> CommittingCoordinator: ...


class Writers:
    """Creates, fences and closes the writers of one broker. Belongs to the event loop."""

    def __init__(
        self,
        *,
        cluster: WrittenCluster,
        store: ObjectStorage,
        key_prefix: str,
        settings: WriterSettings,
        random: Random,
        on_fenced: Callable[[], None],
        on_written: Callable[[str, bytes], None] = lambda _key, _data: None,
        on_committed: Callable[[CommitBatchesResponse], None] = lambda _: None,
        received_at: Callable[[], float] = lambda: 0.0,
        is_living: Callable[[], bool] = lambda: True,
    ) -> None:
        """Create the writers of a broker, which write nothing before `begin`.

        Args:    key_prefix: esker.object.key.prefix.
                 on_fenced: called once an epoch, when a coordinator knows a newer one: this broker
                     must register again, and then `begin`.
                 on_written, on_committed: as for `ObjectWriter`.
                 received_at: as for `BufferClosing`.
                 is_living: whether records may be acknowledged (`diskless.lineage`).
        """
        self.counters = WriterCounters()
        self._cluster = cluster
        self._store = store
        self._key_prefix = key_prefix
        self._settings = settings
        self._random = random
        self._on_fenced = on_fenced
        self._on_written = on_written
        self._on_committed = on_committed
        self._is_living = is_living
        self._epoch: int | None = None
        self._writers: dict[int, ObjectWriter] = {}  # by coordinator partition
        self._retired: set[ObjectWriter] = set()  # of older epochs, still asking for outcomes
        self._closed = False
        self.closing = BufferClosing(
            settings.closing, buffers=self._writers_now, received_at=received_at
        )

    def _writers_now(self) -> list[ObjectWriter]:
        return list(self._writers.values())

    @property
    def epoch(self) -> int | None:
        """Return the broker epoch of the current writers, or None while nothing may be written."""
        return self._epoch

    @property
    def in_flight_bytes(self) -> int:
        """Return the bytes of batches that are being buffered, uploaded or committed."""
        return sum(writer.in_flight_bytes for writer in (*self._writers.values(), *self._retired))

    def change(self, settings: WriterSettings) -> None:
        """Change the settings of all current and future writers of this broker."""
        if settings == self._settings:
            return
        if settings.closing != self._settings.closing:
            self.closing.change(settings.closing)
        self._settings = settings
        for writer in self._writers.values():
            writer.change(settings)

    def begin(self, broker_epoch: int) -> None:
        """Fence all earlier writers, and start to write under this broker epoch."""
        assert self._epoch is None or broker_epoch > self._epoch, (
            f"epoch {broker_epoch} after {self._epoch}"
        )
        self.end()
        if not self._closed:
            self._epoch = broker_epoch

    def end(self) -> None:
        """Fence all writers, so that they write nothing more under their broker epoch."""
        self._epoch = None
        writers, self._writers = self._writers, {}
        for writer in writers.values():
            writer.fence()
            self._retired.add(writer)
        self._retired = {writer for writer in self._retired if writer.is_working}

    def writer(self, coordinator: int) -> ObjectWriter | None:
        """Return the writer of a batch coordinator, or None while this broker may not write."""
        if self._epoch is None or not self._is_living():
            return None
        writer = self._writers.get(coordinator)
        if writer is None:
            writer = self._writers[coordinator] = self._new_writer(coordinator, self._epoch)
        return writer

    def _new_writer(self, coordinator: int, epoch: int) -> ObjectWriter:
        return ObjectWriter(
            store=self._store,
            coordinator=self._cluster.leader(coordinator),
            keys=ObjectKeys(
                prefix=self._key_prefix,
                cluster_id=self._cluster.cluster_id,
                coordinator_partition=coordinator,
            ),
            identity=Identity(
                cluster_id=self._cluster.cluster_id,
                broker_id=self._cluster.broker_id,
                broker_epoch=epoch,
            ),
            settings=self._settings,
            random=self._random,
            on_fenced=lambda: self._on_epoch_fenced(epoch),
            on_written=self._on_written,
            on_committed=self._on_committed,
            is_living=self._is_living,
            counters=self.counters,
            closing=self.closing,
        )

    def _on_epoch_fenced(self, epoch: int) -> None:
        """Stop writing under this broker epoch, because a coordinator has seen a newer epoch."""
        if epoch != self._epoch:
            return  # an old writer; there is a newer epoch by now, or a registration under way
        log.warning("broker=%d epoch=%d action=fenced", self._cluster.broker_id, epoch)
        self.end()
        self._on_fenced()

    def flush(self) -> None:
        """Turn all buffered batches into objects at once, because the broker is stopping."""
        for writer in self._writers.values():
            writer.close_buffer(Reason.STOP)

    async def close(self, timeout_s: float) -> None:
        """Write buffered batches, wait for outcomes, and release the leases of object ids.

        Args:    timeout_s: after it, producers are told that an open outcome is unknown.
        """
        self._closed, self._epoch = True, None
        self.closing.stop()
        writers = [*self._writers.values(), *self._retired]
        self._writers, self._retired = {}, set()
        await asyncio.gather(*(writer.close(timeout_s) for writer in writers))
