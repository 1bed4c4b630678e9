"""Tells a broker, by small objects in the store, whether its cluster is still the living one.

A restore makes a new cluster of the data of an old one, and the old one may still run somewhere.
Two clusters must not delete each other's objects, nor acknowledge records that the other will not
have. So each timeline of a cluster's lineage has a *claim*: an object named by the oldest cluster's
id and the timeline's number, which names the cluster that lives on this timeline. A claim is
written once, under If-None-Match, and never changed: of two restores one wins. A cluster is
the living one while its own claim is there and that of the next timeline is not.

The trap: a broker that has just read this may be paused for an hour, and then acknowledge or
delete. So each proof is valid for `esker.lineage.timeout.ms`, counted from *before* the read was
sent, by a clock that goes on while the machine sleeps. A restore waits twice as long after its
claim.

Source: docs/design/restore.md#the-old-cluster-stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Callable
from typing import Final

from coordinator.controller.image import MetadataImage
from diskless.stores.interface import (
    ByteRange,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStorage,
    StorageError,
)

log = logging.getLogger("diskless.lineage")

READS_PER_TIMEOUT: Final = 4
"""Proofs are renewed so often that two reads may fail before the first one expires."""

FAILING_S: Final = 1.0  # between two reads of a store that fails

NO_DIGEST: Final = "0" * 64
"""Stands in the claim of a cluster that no restore made."""


class SupersededError(Exception):
    """The cluster was restored under another id; its brokers must stop for good."""


def claim_key(prefix: str, lineage_id: str, timeline: int) -> str:
    """Return the key of a timeline's claim.

    >>> claim_key("esker", "Ck3xYz", 1)
    'esker/lineage/Ck3xYz/timeline-1'
    """
    name = f"lineage/{lineage_id}/timeline-{timeline}"
    return f"{prefix}/{name}" if prefix else name


def claim_content(cluster_id: str, digest: str = NO_DIGEST) -> bytes:
    """Return the content of a claim.

    Args:    digest: 64 hex digits that tell one plan of a restore from another.
    """
    return f"{cluster_id} {digest}\n".encode()


async def write_claim(
    store: ObjectStorage, key: str, cluster_id: str, digest: str = NO_DIGEST
) -> None:
    """Write a claim unless the same one is there.

    Raises:  ObjectExistsError if there is another one; StorageError.
    """
    content = claim_content(cluster_id, digest)
    await store.upload(key, [content], len(content))


async def read_claim(store: ObjectStorage, key: str, cluster_id_length: int) -> str | None:
    """Return the cluster id in a claim, or None if there is no such claim. Raises StorageError."""
    try:
        found = await store.fetch(key, ByteRange(0, cluster_id_length))
    except ObjectNotFoundError:
        return None
    return bytes(found).decode(errors="replace")


async def has_conditional_writes(store: ObjectStorage, prefix: str, name: str) -> bool:
    """Return whether the store refuses to overwrite an object, by trying it. Raises StorageError.

    Args:    name: of the probe object, such as a cluster id.
    """
    key = f"{prefix}/probe/{name}/claim" if prefix else f"probe/{name}/claim"
    try:
        await store.upload(key, [b"first"], 5)
        try:
            await store.upload(key, [b"other"], 5)
        except ObjectExistsError:
            return True
        return False
    finally:
        with contextlib.suppress(StorageError):
            await store.delete([key])


def plan_digest(parts: list[str]) -> str:
    """Return the digest of a plan of a restore."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def boot_time_s() -> float:
    """Return seconds of a clock that goes on while the machine sleeps, where there is one."""
    boot_time = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot_time is None else time.clock_gettime(boot_time)


class Lineage:
    """The proof that a broker's cluster is the living one. Belongs to the event loop."""

    def __init__(
        self,
        store: ObjectStorage,
        *,
        key_prefix: str,
        cluster_id: str,
        image: Callable[[], MetadataImage],
        timeout_s: float,
        on_superseded: Callable[[SupersededError], None] = lambda _: None,
        clock: Callable[[], float] = boot_time_s,
    ) -> None:
        """Create a lineage without a proof.

        Args:    image: gives the cluster's metadata, which names its ancestors.
                 timeout_s: for which a proof is valid.
                 on_superseded: called if another cluster lives on.
                 clock: seconds.
        """
        self.timeout_s = timeout_s
        self.fault: str | None = None  # why the last read was no proof
        self._store = store
        self._prefix = key_prefix
        self._cluster_id = cluster_id
        self._image = image
        self._on_superseded = on_superseded
        self._clock = clock
        self._proved_at: float | None = None
        self._has_written = False  # this process, the claim of a cluster that was never restored
        self._task: asyncio.Task[None] | None = None

    @property
    def is_proved(self) -> bool:
        """Return whether a valid proof says that this broker's cluster is the living one."""
        proved_at = self._proved_at
        return proved_at is not None and self._clock() - proved_at < self.timeout_s

    async def begin(self) -> None:
        """Write the claim of a cluster that was never restored, and read the first proof.

        A store that fails now is read again by the task that `start` begins.

        Raises:  SupersededError.
        """
        try:
            await self._write_and_prove()
        except StorageError as error:
            self._note_fault(str(error))

    async def prove(self) -> None:
        """Read the claims; afterwards `is_proved` is true for the timeout.

        Raises:  SupersededError if another cluster lives on; StorageError if nothing is proved.
        """
        began_at = self._clock()
        timeline = self._image().timeline_number
        for number in (timeline, timeline + 1):
            key = self._key(number)
            found = await read_claim(self._store, key, len(self._cluster_id))
            if number > timeline and found is None:
                continue
            if found is None:
                raise StorageError(key, "the claim of this cluster is missing")
            if found != self._cluster_id or number > timeline:
                self._proved_at = None
                raise SupersededError(
                    f"cluster {self._cluster_id} was restored as cluster {found}, which owns its "
                    "objects now: start the nodes of that cluster instead"
                )
        self._proved_at = began_at
        self.fault = None

    def start(self) -> None:
        """Start the task that renews the proof."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="lineage")

    async def _write_and_prove(self) -> None:
        """Write the claim of a cluster that was never restored, once, and read a proof.

        Why once: a claim that is missing later was deleted, and proves nothing.
        """
        if self._image().timeline is None and not self._has_written:
            await write_claim(self._store, self._key(0), self._cluster_id)
            self._has_written = True
        await self.prove()

    async def _run(self) -> None:
        while True:
            pause_s = self.timeout_s / READS_PER_TIMEOUT
            await asyncio.sleep(pause_s if self.fault is None else min(FAILING_S, pause_s))
            try:
                async with asyncio.timeout(self.timeout_s):
                    await self._write_and_prove()
            except SupersededError as error:
                log.error("action=stop reason=%r", str(error))
                self._on_superseded(error)
                return
            except (StorageError, TimeoutError) as error:
                self._note_fault(str(error) or "no answer in time")

    def _note_fault(self, reason: str) -> None:
        if self.fault is None:
            log.warning("action=prove error=%r", reason)
        self.fault = reason

    async def close(self) -> None:
        """Stop renewing the proof."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _key(self, timeline: int) -> str:
        ancestors = self._image().ancestors.clusters
        oldest = ancestors[0].cluster_id if ancestors else self._cluster_id
        return claim_key(self._prefix, oldest, timeline)
