"""The interface of an object store: the operations that a broker needs, and how they fail.

An object's key stands for one byte string for ever: it is uploaded once, whole, never changed, and
read by ranges. So a store needs four operations, and the difficulty is in their failures. An upload
whose answer was lost may have happened; a key that is taken may be taken by an earlier attempt of
the same upload. `upload` therefore resolves that itself where the store can tell (If-None-Match,
and a comparison with the stored object), and reports the result by the type of its error.

Source: KIP-1163, Public Interfaces (ObjectStorage); docs/design/broker.md#object-stores.
`list_objects` is ours: audits and orphan sweeps compare the bucket with the log.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

from records.compression import Buffer
from records.object_keys import check_key


class ByteRange(NamedTuple):
    """Part of an object: `size` bytes from `offset` on. Source: KIP-1163, ByteRange."""

    offset: int
    size: int


class StoredObject(NamedTuple):
    """An object in a listing."""

    key: str
    size_bytes: int
    modified_ms: int  # ms since 1970, by the store's clock


class StoreSettingError(Exception):
    """A store cannot be opened as it is configured. The message names the setting."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key
        self.reason = reason


class StorageError(Exception):
    """The store failed, or could not be reached. An upload may or may not have happened."""

    def __init__(self, key: str, reason: str, *, retriable: bool = True) -> None:
        super().__init__(f"{key}: {reason}" if key else reason)
        self.key = key
        self.reason = reason
        self.retriable = retriable  # throttling, a timeout or a server's error, which may pass

    def __reduce__(self) -> tuple[partial[StorageError], tuple[str, str]]:
        """Pickle the error as a StorageError, so that another process can raise it again."""
        return partial(StorageError, retriable=self.retriable), (self.key, self.reason)


class ObjectNotFoundError(StorageError):
    """There is no such object."""

    def __init__(self, key: str) -> None:
        super().__init__(key, "no such object", retriable=False)


class ObjectExistsError(StorageError):
    """The key is taken by other bytes: an id was used twice. Nothing was overwritten."""

    def __init__(self, key: str) -> None:
        super().__init__(key, "exists and holds other bytes", retriable=False)


class RangeError(StorageError):
    """The object does not have the requested bytes."""

    def __init__(self, key: str, byte_range: ByteRange, size_bytes: int | None = None) -> None:
        known = "" if size_bytes is None else f" of {size_bytes} bytes"
        reason = f"no {byte_range.size} bytes at {byte_range.offset} in an object{known}"
        super().__init__(key, reason, retriable=False)


class DeletionError(StorageError):
    """Some objects could not be deleted; the others are gone."""

    def __init__(self, failed: dict[str, str], *, retriable: bool = True) -> None:
        key, reason = next(iter(failed.items()))
        rest = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        super().__init__(key, f"not deleted: {reason}{rest}", retriable=retriable)
        self.failed = failed  # key: what the store said


class ObjectStorage(Protocol):
    """An object store for use on the event loop. Keys are relative to the configured bucket."""

    async def upload(self, key: str, parts: Sequence[Buffer], size_bytes: int) -> None:
        """Store an object durably; on return the whole object is readable everywhere.

        Args:    parts: its bytes, in order. Uploading the same bytes again is no error.
                 size_bytes: their total size.
        Raises:  ValueError for a wrong size or an invalid key, before anything is stored;
                 ObjectExistsError; StorageError.
        """

    async def fetch(self, key: str, byte_range: ByteRange) -> Buffer:
        """Return exactly the bytes of this range of the object.

        Raises:  ValueError for a negative range; ObjectNotFoundError, RangeError, StorageError.
        """

    async def delete(self, keys: Collection[str]) -> None:
        """Delete objects; an object that does not exist counts as deleted.

        Raises:  DeletionError naming those that may still be there.
        """

    def list_objects(self, prefix: str) -> AsyncIterator[StoredObject]:
        """Yield every object whose key begins with `prefix`, by rising key.

        Raises:  StorageError while iterating: the objects before it are not the whole listing.
        """

    async def close(self) -> None:
        """Stop the store's threads and close its connections."""


@runtime_checkable
class BeginningStore(Protocol):
    """A store that checks, before a broker serves from it, that it is the cluster's store."""

    async def begin(self, *, is_empty: bool) -> None:
        """Start the store; `is_empty` tells the store that the cluster has no objects yet.

        Raises:  StoreSettingError if this cannot be the cluster's store; StorageError.
        """


def check_range(byte_range: ByteRange) -> None:
    """Raise ValueError if the offset or the size of a byte range is negative."""
    if byte_range.offset < 0 or byte_range.size < 0:
        raise ValueError(f"negative {byte_range}")


def check_upload(key: str, parts: Sequence[Buffer], size_bytes: int) -> None:
    """Raise ValueError if the key is invalid or the parts do not add up to `size_bytes`."""
    check_key(key)
    actual = sum(len(part) for part in parts)
    if actual != size_bytes:
        raise ValueError(f"{key}: {actual} bytes to upload, {size_bytes} were announced")
