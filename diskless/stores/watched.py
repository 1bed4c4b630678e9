"""Notes whether an object store takes objects, and probes it while nothing is written.

    store = WatchedStore(store, probe_key("esker", cluster_id, broker_id), clock=loop.time)
    await store.probe()           # before the broker registers
    store.start()
    store.fault                   # None, or the reason why nothing can be written now

Each successful upload proves that the store works. Without a proof for some seconds, and at once
after a failed upload, the store is probed: a small object with a key of its own is written, read
and deleted. An upload that failed counts by itself for a while, because a nearly full disk may take
a probe and no object.

The trap: a probe that stayed in the store would prove nothing the next time, because a key that
exists is not written again.

Source: docs/design/health.md#the-store-is-probed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Final

from diskless.stores.interface import (
    ByteRange,
    ObjectExistsError,
    ObjectStorage,
    StorageError,
    StoredObject,
)
from records.compression import Buffer

log = logging.getLogger("diskless.stores")

IDLE_S: Final = 4.0  # from the last proof to the next probe
PROBE_TIMEOUT_S: Final = 4.0
FAILING_S: Final = 1.0  # between two probes of a store that fails
FAILED_UPLOAD_S: Final = 10.0  # a failed upload counts, unless one succeeds
CHECK_S: Final = 0.5  # between two looks at whether a probe is due
MAX_REASON: Final = 200  # characters

PROBE: Final = b"esker probe\n".ljust(64 * 1024, b".")


def probe_key(prefix: str, cluster_id: str, broker_id: int) -> str:
    """Return the key of a broker's probe object, which differs from the key of every object id.

    >>> probe_key("esker", "Ck3xYz", 101)
    'esker/probe/Ck3xYz/101'
    """
    name = f"probe/{cluster_id}/{broker_id}"
    return f"{prefix}/{name}" if prefix else name


class WatchedStore:
    """An object store that knows whether it works. Belongs to the event loop."""

    def __init__(self, store: ObjectStorage, key: str, *, clock: Callable[[], float]) -> None:
        """Watch the uploads to this object store, and probe the store under `key`.

        Args:    clock: seconds of a clock that does not go backwards.
        """
        self.probes = 0  # for metrics
        self.probes_failed = 0
        self._store = store
        self._key = key
        self._clock = clock
        self._proved_at = -IDLE_S  # when the last operation that succeeded began
        self._probed_at = -IDLE_S
        self._probe_fault: str | None = None
        self._upload_fault: tuple[float, str] | None = None  # when, and the reason
        self._task: asyncio.Task[None] | None = None

    @property
    def fault(self) -> str | None:
        """Return the reason why uploads to the object store fail, or None without a fault."""
        if self._upload_fault is not None:
            failed_at, reason = self._upload_fault
            if self._clock() - failed_at <= FAILED_UPLOAD_S:
                return reason
        return self._probe_fault

    # --- probing --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the background task that probes the object store at intervals."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="store-probe")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            if self._is_due():
                await self.probe()

    def _is_due(self) -> bool:
        now_s = self._clock()
        if self._probe_fault is not None or self._upload_fault is not None:
            return now_s - self._probed_at >= FAILING_S
        return now_s - self._proved_at >= IDLE_S

    async def probe(self) -> None:
        """Write, read and delete a probe object, and record whether all succeeded in time."""
        began_at = self._probed_at = self._clock()
        self.probes += 1
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                await self._store.upload(self._key, [PROBE], len(PROBE))
                found = await self._store.fetch(self._key, ByteRange(0, len(PROBE)))
                await self._store.delete([self._key])
            if bytes(found) != PROBE:
                raise StorageError(self._key, "the store returned other bytes than were written")
        except TimeoutError:
            self._note_probe_failed(f"no answer to a probe within {PROBE_TIMEOUT_S:.0f} s")
        except StorageError as error:
            self._note_probe_failed(str(error))
        except Exception as error:  # a store of somebody else's: a fault, and not the broker's end
            log.exception("action=probe")
            self._note_probe_failed(f"{type(error).__name__}: {error}")
        else:
            self._proved_at = began_at
            self._probe_fault = None
            if (
                self._upload_fault is not None
                and began_at - self._upload_fault[0] > FAILED_UPLOAD_S
            ):
                self._upload_fault = None

    def _note_probe_failed(self, reason: str) -> None:
        self.probes_failed += 1
        self._probe_fault = reason[:MAX_REASON]

    # --- an ObjectStorage -----------------------------------------------------------------------

    async def upload(self, key: str, parts: Sequence[Buffer], size_bytes: int) -> None:
        """Upload an object, and record whether the upload succeeded for `fault` to report."""
        began_at = self._clock()
        try:
            await self._store.upload(key, parts, size_bytes)
        except ObjectExistsError:
            raise  # the store works: an id was used twice
        except StorageError as error:
            self._upload_fault = (self._clock(), str(error)[:MAX_REASON])
            raise
        self._proved_at = max(self._proved_at, began_at)
        self._probe_fault = self._upload_fault = None

    async def fetch(self, key: str, byte_range: ByteRange) -> Buffer:
        return await self._store.fetch(key, byte_range)

    async def delete(self, keys: Collection[str]) -> None:
        await self._store.delete(keys)

    def list_objects(self, prefix: str) -> AsyncIterator[StoredObject]:
        return self._store.list_objects(prefix)

    async def close(self) -> None:
        """Stop the probes and close the object store."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._store.close()
