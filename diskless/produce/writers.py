"""The writers of a broker: one for each coordinator partition, anew for each broker epoch.

A lease of object ids names the broker and its epoch, and a commit needs an open lease. So a writer
lives as long as its epoch. When this broker registers anew, or hears that it has been fenced, the
writers of the old epoch end at once: what they had not sent to a coordinator is never written by
them, and their producers are told NOT_LEADER_OR_FOLLOWER; what they had sent and heard no answer of
is asked about until the answer is known, for only the coordinator knows it.

Old and new writers cannot get in each other's way: the new epoch's first lease closes the old ones,
in the coordinator's own log, and an object of a closed lease is refused.

Source: docs/design/batch-coordinator.md#object-leases,
docs/design/broker.md#errors-a-producer-sees.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random
from typing import Protocol

from diskless.produce.object_writer import (
    CommittingCoordinator,
    Identity,
    ObjectWriter,
    WriterCounters,
    WriterSettings,
)
from diskless.stores import ObjectStorage
from records.object_keys import ObjectKeys

log = logging.getLogger("diskless.produce.service")


class WrittenCluster(Protocol):
    """The part of a `diskless.cluster.Cluster` that writing needs."""

    @property
    def cluster_id(self) -> str: ...

    @property
    def broker_id(self) -> int: ...

    def leader(self, coordinator: int) -> CommittingCoordinator: ...


class Writers:
    """Belongs to the event loop."""

    def __init__(
        self,
        *,
        cluster: WrittenCluster,
        store: ObjectStorage,
        keys: Callable[[int], ObjectKeys],
        settings: WriterSettings,
        random: Random,
        on_fenced: Callable[[], None],
        written: Callable[[str, bytes], None] = lambda _key, _data: None,
    ) -> None:
        """No epoch yet, so nothing can be written.

        Args:    keys: of a coordinator partition's objects.
                 on_fenced: called once an epoch, when a coordinator knows a newer one: this broker
                 must register anew, and then `begin`.
                 written: given each object that was committed, its key and bytes.
        """
        self.counters = WriterCounters()
        self._cluster = cluster
        self._store = store
        self._keys = keys
        self._settings = settings
        self._random = random
        self._on_fenced = on_fenced
        self._written = written
        self._epoch: int | None = None
        self._writers: dict[int, ObjectWriter] = {}  # by coordinator partition
        self._retired: set[ObjectWriter] = set()  # of older epochs, still asking for outcomes
        self._closed = False

    @property
    def epoch(self) -> int | None:
        """The broker epoch that is written under; None while nothing may be written."""
        return self._epoch

    @property
    def in_flight_bytes(self) -> int:
        """Of batches that are buffered, uploaded or committed just now."""
        return sum(writer.in_flight_bytes for writer in (*self._writers.values(), *self._retired))

    def begin(self, broker_epoch: int) -> None:
        """This broker is registered under an epoch, and writes under it from now on."""
        assert self._epoch is None or broker_epoch > self._epoch, (
            f"epoch {broker_epoch} after {self._epoch}"
        )
        self.end()
        if not self._closed:
            self._epoch = broker_epoch

    def end(self) -> None:
        """The epoch is over: nothing more is written under it."""
        self._epoch = None
        writers, self._writers = self._writers, {}
        for writer in writers.values():
            writer.fence()
            self._retired.add(writer)
        self._retired = {writer for writer in self._retired if writer.working}

    def writer(self, coordinator: int) -> ObjectWriter | None:
        """The writer of a coordinator partition; None while this broker may not write."""
        if self._epoch is None:
            return None
        writer = self._writers.get(coordinator)
        if writer is None:
            writer = self._writers[coordinator] = self._made(coordinator, self._epoch)
        return writer

    def _made(self, coordinator: int, epoch: int) -> ObjectWriter:
        return ObjectWriter(
            store=self._store,
            coordinator=self._cluster.leader(coordinator),
            keys=self._keys(coordinator),
            identity=Identity(
                cluster_id=self._cluster.cluster_id,
                broker_id=self._cluster.broker_id,
                broker_epoch=epoch,
            ),
            settings=self._settings,
            random=self._random,
            on_fenced=lambda: self._fenced(epoch),
            written=self._written,
            counters=self.counters,
        )

    def _fenced(self, epoch: int) -> None:
        """A coordinator knows a newer epoch than this one."""
        if epoch != self._epoch:
            return  # an old writer; by now there is a newer epoch, or one is being asked for
        log.warning("broker=%d epoch=%d action=fenced", self._cluster.broker_id, epoch)
        self.end()
        self._on_fenced()

    def flush(self) -> None:
        """What is buffered becomes objects now: this broker is stopping, and its clients wait."""
        for writer in self._writers.values():
            writer.close_buffer()

    async def close(self, timeout_s: float) -> None:
        """Write what is buffered, wait for outcomes, give the leases back; take nothing more.

        Args:    timeout_s: after it, what is not known is told to be unknown.
        """
        self._closed, self._epoch = True, None
        writers = [*self._writers.values(), *self._retired]
        self._writers, self._retired = {}, set()
        await asyncio.gather(*(writer.close(timeout_s) for writer in writers))
