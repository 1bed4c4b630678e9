"""The object store as jobs use it: listing, looking at objects, ranged reads; writes for archives.

    store = open_store("s3://bucket/prefix", StoreOptions(endpoint="http://127.0.0.1:9000"))
    for stored in store.list("7f/"):
        ...

The S3 client and the directory are the broker's (`diskless.stores`), with the same retries. There
is no way to delete here, on purpose: a job that finds what should go tells the coordinator, and a
broker deletes it. So a mistake in a job, or a stolen credential that may only list and read, costs
no data.

The trap: a store is a value. Tasks run in other processes, so it is pickled on its way, and
connects where it arrives.

Source: docs/design/broker.md#object-stores, docs/design/pipeline.md#spark-deletes-nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

from diskless.stores.interface import (
    ByteRange,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    StoredObject,
)
from diskless.stores.object_directory import ObjectDirectory
from diskless.stores.s3_client import S3, S3Client, S3Config

T = TypeVar("T")

MAX_READ_BYTES: Final = 64 * 1024 * 1024
"""Largest single read: a task holds one or two of them in memory."""


def describe_failure(uri: str, error: StorageError) -> str:
    """Describe a storage error in a text that names the store exactly once."""
    names_store = error.key and f"{uri}/".startswith(f"{error.key}/")
    return str(error) if names_store else f"{uri}: {error}"


class ObjectStore(Protocol):
    """Objects below one directory or prefix.

    Keys are relative to it. A store can be pickled, and used by many threads.
    """

    @property
    def uri(self) -> str:
        """Return the store's address in the form that `open_store` takes."""
        ...

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """Yield every object whose key begins with `prefix`, by rising key.

        Raises:  StorageError while iterating: the objects before it are not a whole listing.
        """
        ...

    def head(self, key: str) -> StoredObject | None:
        """Return an object's key, size and modification time, or None if no such object exists.

        Raises:  StorageError.
        """
        ...

    def read(self, key: str, start: int, size: int) -> bytes:
        """Return `size` bytes of an object from byte `start` on.

        Args:    start: the first byte, from 0.
                 size: number of bytes; at most MAX_READ_BYTES.
        Raises:  ValueError for an impossible range; StorageError, also if the object, or the range
                 in it, does not exist.
        """
        ...

    def write(self, key: str, data: bytes) -> None:
        """Store an object under a key, replacing any object of the same key.

        The object is there whole and durably when this returns, or not at all. Jobs write their
        archives and reports with it.

        Raises:  ValueError for an invalid key; StorageError.
        """
        ...

    def write_new(self, key: str, data: bytes) -> bool:
        """Store an object if its key is free; otherwise change nothing and return False.

        Of two concurrent calls one succeeds. Raises as `write`.
        """
        ...

    def close(self) -> None:
        """Close the connections to the object store."""
        ...


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The address and region of a bucket. Credentials are found as AWS tools find them."""

    endpoint: str | None = None  # `http[s]://HOST:PORT`; None: Amazon's, by region
    region: str | None = None  # None: as the AWS configuration says
    path_style: bool | None = None  # None: if there is an endpoint, as self-hosted servers need


def open_store(uri: str, options: StoreOptions = StoreOptions()) -> ObjectStore:
    """Open the store in a directory, or at `s3://BUCKET[/PREFIX]`.

    Writing creates a missing directory. Nothing is read or contacted yet.

    Raises:  ValueError for any other address.

    >>> open_store("/objects").uri
    '/objects'
    >>> open_store("s3:///x")
    Traceback (most recent call last):
    ValueError: 's3:///x' is not s3://BUCKET[/PREFIX]
    """
    if uri.startswith(S3):
        bucket, _, prefix = uri.removeprefix(S3).partition("/")
        if not bucket:
            raise ValueError(f"{uri!r} is not s3://BUCKET[/PREFIX]")
        return S3Store(bucket, prefix.strip("/"), options)
    if not uri or "://" in uri:
        raise ValueError(f"{uri!r} is neither a directory nor s3://BUCKET[/PREFIX]")
    return DirectoryStore(Path(uri))


# --- a directory ----------------------------------------------------------------------------------


class DirectoryStore:
    """Objects as files below a directory; the key is the path.

    Its path is made absolute, because a Spark worker has a working directory of its own.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._objects = ObjectDirectory(self._root, creates_root=True)

    def __reduce__(self) -> tuple[type[DirectoryStore], tuple[Path]]:
        """Pickle the directory store as its path."""
        return DirectoryStore, (self._root,)

    @property
    def uri(self) -> str:
        """Return the path of the store's directory as its address."""
        return str(self._root)

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """Yield every object whose key begins with `prefix`; raise if the directory is missing."""
        try:
            yield from self._objects.list(prefix)
        except OSError as error:
            raise StorageError(self.uri, error.strerror or str(error)) from error

    def head(self, key: str) -> StoredObject | None:
        """Return an object's key, size and modification time, or None if its file is missing."""
        stored = self._guard(key, lambda: self._objects.head(key))
        if stored is None and not self._root.is_dir():
            raise StorageError(self.uri, "no such directory")  # not mounted
        return stored

    def read(self, key: str, start: int, size: int) -> bytes:
        """Return `size` bytes of an object's file from byte `start` on."""
        _check_range(start, size)
        return self._guard(key, lambda: self._objects.get(key, ByteRange(start, size)))

    def write(self, key: str, data: bytes) -> None:
        """Write an object as a file, replacing any object of the same key."""
        self._guard(key, lambda: self._objects.put(key, data))

    def write_new(self, key: str, data: bytes) -> bool:
        """Write an object as a new file, or return False if its key is taken."""
        try:
            self._guard(key, lambda: self._objects.put_new(key, data))
        except ObjectExistsError:
            return False
        return True

    def close(self) -> None:
        """Do nothing, because a directory store keeps no file open."""

    def _guard(self, key: str, work: Callable[[], T]) -> T:
        """Run a file operation on a key, and turn an OSError into a StorageError."""
        try:
            return work()
        except FileExistsError:
            raise ObjectExistsError(key) from None
        except OSError as error:
            raise StorageError(key, error.strerror or str(error)) from error


# --- S3 -------------------------------------------------------------------------------------------


class S3Store:
    """Objects in a bucket, below a prefix, with one client in each process."""

    def __init__(self, bucket: str, prefix: str, options: StoreOptions) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._options = options
        self._client: S3Client | None = None

    def __reduce__(self) -> tuple[type[S3Store], tuple[str, str, StoreOptions]]:
        """Pickle the store without its client, whose connections cannot be pickled."""
        return S3Store, (self._bucket, self._prefix, self._options)

    @property
    def uri(self) -> str:
        """Return the bucket and prefix as an `s3://` address."""
        return f"{S3}{self._bucket}/{self._prefix}".rstrip("/")

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """Yield every object of the bucket whose key begins with `prefix`, page by page."""
        for page in self._connected().list_pages(prefix):
            yield from page

    def head(self, key: str) -> StoredObject | None:
        """Return an object's key, size and modification time, or None if the bucket lacks it."""
        try:
            return self._connected().head(key)[0]
        except ObjectNotFoundError:
            self._connected().check_bucket()  # a missing bucket looks like a missing key
            return None

    def read(self, key: str, start: int, size: int) -> bytes:
        """Return `size` bytes of an object in the bucket from byte `start` on."""
        _check_range(start, size)
        return self._connected().get(key, ByteRange(start, size))

    def write(self, key: str, data: bytes) -> None:
        """Put an object into the bucket, replacing any object of the same key."""
        self._connected().put(key, data)

    def write_new(self, key: str, data: bytes) -> bool:
        """Put a new object into the bucket, or return False if its key is taken."""
        try:
            self._connected().put_new(key, data)
        except ObjectExistsError:
            return False
        return True

    def close(self) -> None:
        """Close this process's S3 client, if the client was created."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connected(self) -> S3Client:
        """Return this process's S3 client, which is created on first use."""
        if self._client is None:
            options = self._options
            path_style = options.path_style
            self._client = S3Client(
                S3Config(
                    bucket=self._bucket,
                    prefix=self._prefix,
                    endpoint_url=options.endpoint,
                    region=options.region,
                    path_style=options.endpoint is not None if path_style is None else path_style,
                )
            )
        return self._client


def _check_range(start: int, size: int) -> None:
    """Raise ValueError if a range is negative or too large for one read."""
    if start < 0 or not 0 <= size <= MAX_READ_BYTES:
        raise ValueError(f"no range to read: {size} bytes at {start}; at most {MAX_READ_BYTES}")
