"""An object store as slow as a real one: a directory, and a time drawn for each operation.

`diskless.storage.class.name=bench.simulated_store.SimulatedStorage`. Times are log-normal, which is
what object stores' latencies look like; median and 99th percentile are those that KIP-1163 counts
with. Deletions and listings take no time: nobody waits for them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from random import Random
from typing import Any, Final, Self

from diskless.stores import ByteRange, ObjectStorage, StoredObject
from diskless.stores.directory import DirectoryStorage
from records.compression import Buffer

P50_S: Final = 0.100
P99_S: Final = 0.400
SEED: Final = 7
_SIGMA: Final = math.log(P99_S / P50_S) / 2.3263  # the normal distribution's 99th percentile


class SimulatedStorage:
    """See the module."""

    def __init__(self, store: ObjectStorage) -> None:
        self._store = store
        self._random = Random(SEED)

    @classmethod
    def configured(cls, values: Mapping[str, Any]) -> Self:
        """Create the simulated store over the directory that the settings name."""
        return cls(DirectoryStorage.configured(values))

    async def _wait(self) -> None:
        await asyncio.sleep(self._random.lognormvariate(math.log(P50_S), _SIGMA))

    async def upload(self, key: str, parts: Sequence[Buffer], size_bytes: int) -> None:
        await asyncio.gather(self._wait(), self._store.upload(key, parts, size_bytes))

    async def fetch(self, key: str, byte_range: ByteRange) -> Buffer:
        _, data = await asyncio.gather(self._wait(), self._store.fetch(key, byte_range))
        return data

    async def delete(self, keys: Collection[str]) -> None:
        await self._store.delete(keys)

    def list_objects(self, prefix: str) -> AsyncIterator[StoredObject]:
        return self._store.list_objects(prefix)

    async def close(self) -> None:
        await self._store.close()
