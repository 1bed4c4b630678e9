"""An object store in a dictionary, for simulations, which allow no threads and no disk."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence

from diskless.stores.interface import (
    ByteRange,
    ObjectExistsError,
    ObjectNotFoundError,
    RangeError,
    StoredObject,
    check_range,
    check_upload,
)
from records.compression import Buffer
from records.object_keys import check_key


class MemoryStore:
    """Objects of one process, gone with it."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """Create an empty store; `now_ms` gives the time of listed objects, in ms since 1970."""
        self.objects: dict[str, tuple[bytes, int]] = {}  # bytes, and when they were stored
        self._now_ms = now_ms

    async def upload(self, key: str, parts: Sequence[Buffer], size_bytes: int) -> None:
        check_upload(key, parts, size_bytes)
        data = b"".join(parts)
        known = self.objects.setdefault(key, (data, self._now_ms()))
        if known[0] != data:
            raise ObjectExistsError(key)

    async def fetch(self, key: str, byte_range: ByteRange) -> Buffer:
        check_key(key)
        check_range(byte_range)
        if key not in self.objects:
            raise ObjectNotFoundError(key)
        data = self.objects[key][0]
        end = byte_range.offset + byte_range.size
        if end > len(data):
            raise RangeError(key, byte_range, len(data))
        return data[byte_range.offset : end]

    async def delete(self, keys: Collection[str]) -> None:
        for key in keys:
            check_key(key)
        for key in keys:
            self.objects.pop(key, None)

    async def list_objects(self, prefix: str) -> AsyncIterator[StoredObject]:
        for key in sorted(self.objects):
            if key.startswith(prefix) and key in self.objects:  # it may have been deleted meanwhile
                data, modified_ms = self.objects[key]
                yield StoredObject(key, len(data), modified_ms)

    async def close(self) -> None:
        """Do nothing, because this store has no threads or connections."""
