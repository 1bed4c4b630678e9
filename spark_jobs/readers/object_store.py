"""The object store as jobs see it: listed, looked at, read; written to for archives and reports.

    store = open_store("s3://bucket/prefix", StoreOptions(endpoint="http://127.0.0.1:9000"))
    for found in store.list("7f/"):
        ...

There is no way to delete here, on purpose: a job that finds what should go tells the coordinator,
and a broker deletes it. So a mistake in a job, or a stolen credential of one that only may list and
read, costs no data.

The surprise: a store is a value. Tasks run in other processes, so it is pickled on its way, and
connects where it arrives.

Source: docs/design/broker.md#object-stores, docs/design/pipeline.md#spark-deletes-nothing; the S3
API reference (ListObjectsV2, HeadObject, GetObject, PutObject).
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from records.object_keys import check_key

T = TypeVar("T")

S3: Final = "s3://"
LIST_PAGE: Final = 1_000  # keys of one answer, S3's limit
HIDDEN: Final = "."  # begins the name of a file that is no object: an upload under way
MAX_READ_BYTES: Final = 64 * 1024 * 1024
"""Of one read: a task holds one or two of them."""
READ_TIMEOUT_S: Final = 30.0
ATTEMPTS: Final = 5  # of one request, the first included
RETRY_PAUSE_S: Final = 0.05  # after the first cut body, twice that after the second; with jitter


class StoreError(Exception):
    """The store failed, or was not reached, or holds something else than was asked for."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}" if key else reason)
        self.key = key
        self.reason = reason

    def __reduce__(self) -> tuple[type[StoreError], tuple[str, str]]:
        """It is raised in tasks too, and pickled on its way back."""
        return StoreError, (self.key, self.reason)


class Found(NamedTuple):
    """What a listing, or a look, shows of an object."""

    key: str
    size_bytes: int
    modified_ms: int  # ms since 1970, by the store's clock


def of_store(uri: str, error: StoreError) -> str:
    """What went wrong, and in which store: an error of the store itself names it already."""
    of_itself = error.key and f"{uri}/".startswith(f"{error.key}/")
    return str(error) if of_itself else f"{uri}: {error}"


class ObjectStore(Protocol):
    """Objects below one place. Keys are relative to it. Can be pickled; used by many threads."""

    @property
    def uri(self) -> str:
        """Where it is, as it was opened."""
        ...

    def list(self, prefix: str = "") -> Iterator[Found]:
        """Every object whose key begins with `prefix`, by rising key.

        What comes before a StoreError is no whole listing, and must not be taken for one.

        Raises:  StoreError, while iterating.
        """
        ...

    def head(self, key: str) -> Found | None:
        """One object; None if there is none. Raises StoreError."""
        ...

    def read(self, key: str, start: int, size: int) -> bytes:
        """Exactly these bytes of an object.

        Args:    start: the first byte, from 0.
                 size: how many; at most MAX_READ_BYTES.
        Raises:  ValueError for a range that nobody may ask for; StoreError, also if the object, or
                 the range in it, is not there.
        """
        ...

    def write(self, key: str, data: bytes) -> None:
        """Let there be an object of these bytes, in place of one that may be there.

        It is there whole and durably when this returns, or not at all. For what jobs make: their
        archives and reports.

        Raises:  ValueError for a key that cannot be; StoreError.
        """
        ...

    def write_new(self, key: str, data: bytes) -> bool:
        """As `write`, unless there is an object already: then False, and it stays as it is.

        Of two that try at once, one succeeds.
        """
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How a bucket is reached. Credentials are found as AWS tools find them."""

    endpoint: str | None = None  # `http[s]://HOST:PORT`; None: Amazon's, by region
    region: str | None = None  # None: as the AWS configuration says
    path_style: bool | None = None  # None: if there is an endpoint, as servers of one's own need


def open_store(uri: str, options: StoreOptions = StoreOptions()) -> ObjectStore:
    """The store at a directory, or at `s3://BUCKET[/PREFIX]`.

    A directory need not exist to be written to.

    Raises:  ValueError for what is neither.

    >>> open_store("objects").uri
    'objects'
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


def _check_range(start: int, size: int) -> None:
    if start < 0 or not 0 <= size <= MAX_READ_BYTES:
        raise ValueError(f"no range to read: {size} bytes at {start}")


# --- a directory ----------------------------------------------------------------------------------


class DirectoryStore:
    """Objects as files below a directory; the key is the path."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def uri(self) -> str:
        """See ObjectStore."""
        return str(self._root)

    def list(self, prefix: str = "") -> Iterator[Found]:
        """See ObjectStore. A directory that is not there is an error: no listing is not empty."""
        try:
            yield from self._walk(self._root, prefix, "")
        except OSError as error:
            raise StoreError(self.uri, error.strerror or str(error)) from error

    def head(self, key: str) -> Found | None:
        """See ObjectStore."""
        check_key(key)
        try:
            found = (self._root / key).stat()
        except (FileNotFoundError, NotADirectoryError):
            self._check_there()
            return None
        except OSError as error:
            raise StoreError(key, error.strerror or str(error)) from error
        return _found(key, found) if stat.S_ISREG(found.st_mode) else None

    def read(self, key: str, start: int, size: int) -> bytes:
        """See ObjectStore."""
        check_key(key)
        _check_range(start, size)
        try:
            with (self._root / key).open("rb") as file:
                file.seek(start)
                data = file.read(size)
        except OSError as error:
            raise StoreError(key, error.strerror or str(error)) from error
        if len(data) != size:
            raise StoreError(key, f"{len(data)} bytes at {start}, {size} were asked for")
        return data

    def write(self, key: str, data: bytes) -> None:
        """See ObjectStore."""
        self._write(key, data, Path.replace)

    def write_new(self, key: str, data: bytes) -> bool:
        """See ObjectStore."""
        try:
            self._write(key, data, _link_once)
        except _TakenError:
            return False
        return True

    def _write(self, key: str, data: bytes, name: Callable[[Path, Path], object]) -> None:
        """The bytes below a name that is no object's; then they are given theirs."""
        check_key(key)
        path = self._root / key
        temporary = path.with_name(f"{HIDDEN}writing-{secrets.token_hex(8)}")
        try:
            _make_directory(path.parent)
            try:
                with temporary.open("xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                name(temporary, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    temporary.unlink()  # our own, that never had an object's name
                raise
            _fsync_directory(path.parent)
        except OSError as error:
            raise StoreError(key, error.strerror or str(error)) from error

    def close(self) -> None:
        """Nothing is kept open."""

    def _check_there(self) -> None:
        """A store that is not mounted has no object, and says so of none."""
        if not self._root.is_dir():
            raise StoreError(self.uri, "no such directory")

    def _walk(self, directory: Path, prefix: str, key: str) -> Iterator[Found]:
        """Objects below a directory by rising key; `key` is the directory's own, with its slash."""
        with os.scandir(directory) as entries:
            children = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        # As keys sort: a directory's name counts with the slash that follows it.
        for name, is_directory in sorted(children, key=lambda c: c[0] + "/" if c[1] else c[0]):
            child = f"{key}{name}/" if is_directory else f"{key}{name}"
            if is_directory:
                if child.startswith(prefix) or prefix.startswith(child):
                    yield from self._walk(directory / name, prefix, child)
            elif child.startswith(prefix) and not name.startswith(HIDDEN):
                with contextlib.suppress(FileNotFoundError):  # deleted while we looked
                    found = (directory / name).stat()
                    if stat.S_ISREG(found.st_mode):
                        yield _found(child, found)


def _found(key: str, status: os.stat_result) -> Found:
    return Found(key, status.st_size, status.st_mtime_ns // 1_000_000)


class _TakenError(Exception):
    """The name is taken."""


def _link_once(temporary: Path, path: Path) -> None:
    """Give the file a name that nothing has. Raises _TakenError."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise _TakenError from None
    temporary.unlink()


def _make_directory(path: Path) -> None:
    """With what it is in; each is sure to be there before anything in it is."""
    if not path.is_dir():
        _make_directory(path.parent)
        path.mkdir(exist_ok=True)
        _fsync_directory(path.parent)


def _fsync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- S3 -------------------------------------------------------------------------------------------


class S3Store:
    """Objects in a bucket, below a prefix, over one client of boto3 in each process."""

    def __init__(self, bucket: str, prefix: str, options: StoreOptions) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._options = options
        self._client: Any = None

    def __reduce__(self) -> tuple[type[S3Store], tuple[str, str, StoreOptions]]:
        """Without its client: connections do not travel."""
        return S3Store, (self._bucket, self._prefix.rstrip("/"), self._options)

    @property
    def uri(self) -> str:
        """See ObjectStore."""
        return f"{S3}{self._bucket}/{self._prefix}".rstrip("/")

    def list(self, prefix: str = "") -> Iterator[Found]:
        """See ObjectStore."""
        token: str | None = None
        while True:
            more = {} if token is None else {"ContinuationToken": token}
            where = {"Prefix": self._prefix + prefix, "MaxKeys": LIST_PAGE}
            page = self._ask(prefix, "list_objects_v2", **where, **more)
            for entry in page.get("Contents", ()):
                modified_ms = int(entry["LastModified"].timestamp() * 1_000)
                yield Found(entry["Key"][len(self._prefix) :], entry["Size"], modified_ms)
            if not page.get("IsTruncated"):
                return
            before, token = token, page.get("NextContinuationToken")
            if token is None or token == before:
                raise StoreError(prefix, "a listing that goes on, and does not say where")

    def head(self, key: str) -> Found | None:
        """See ObjectStore."""
        check_key(key)
        try:
            found = self._ask(key, "head_object", Key=self._prefix + key)
        except _NotThereError:
            self._check_there()  # a bucket that is not there says the same of every key
            return None
        return Found(key, found["ContentLength"], int(found["LastModified"].timestamp() * 1_000))

    def read(self, key: str, start: int, size: int) -> bytes:
        """See ObjectStore."""
        check_key(key)
        _check_range(start, size)
        if size == 0:  # HTTP has no empty ranges
            found = self.head(key)
            if found is None:
                raise StoreError(key, "no such object")
            return b""
        for attempt in range(1, ATTEMPTS):
            try:
                return self._read_once(key, start, size)
            except _CutBodyError:
                time.sleep(RETRY_PAUSE_S * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))
        return self._read_once(key, start, size)

    def _read_once(self, key: str, start: int, size: int) -> bytes:
        """One GET: boto3 repeats a request until its answer's headers are there, not the body."""
        wanted = f"{start}-{start + size - 1}"
        answer = self._ask(key, "get_object", Key=self._prefix + key, Range=f"bytes={wanted}")
        try:
            with contextlib.closing(answer["Body"]) as body:
                data: bytes = self._guarded(key, body.read)
        except StoreError as error:
            raise _CutBodyError(key, error.reason) from error
        if len(data) == size:
            return data
        reason = f"{len(data)} bytes at {start}, {size} were asked for"
        # A body without a length ends where its connection does: its range says what was meant.
        if len(data) < size and answer.get("ContentRange", "").startswith(f"bytes {wanted}/"):
            raise _CutBodyError(key, reason)
        raise StoreError(key, reason)

    def write(self, key: str, data: bytes) -> None:
        """See ObjectStore."""
        check_key(key)
        self._ask(key, "put_object", Key=self._prefix + key, Body=data)

    def write_new(self, key: str, data: bytes) -> bool:
        """See ObjectStore."""
        check_key(key)
        try:
            self._ask(key, "put_object", Key=self._prefix + key, Body=data, IfNoneMatch="*")
        except _AlreadyThereError:
            return False
        return True

    def close(self) -> None:
        """See ObjectStore."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _check_there(self) -> None:
        try:
            self._ask("", "head_bucket")
        except _NotThereError:
            raise StoreError(self.uri, "no such bucket") from None

    def _ask(self, key: str, method: str, **arguments: object) -> Any:
        if self._client is None:
            self._client = self._guarded(key, self._connect)
        call = getattr(self._client, method)
        return self._guarded(key, lambda: call(Bucket=self._bucket, **arguments))

    def _connect(self) -> Any:
        # Imported here: it takes a quarter of a second, and only who uses S3 needs it.
        import boto3
        from botocore.config import Config

        options = self._options
        path_style = options.path_style
        if path_style is None:
            path_style = options.endpoint is not None
        return boto3.session.Session().client(
            "s3",
            endpoint_url=options.endpoint,
            region_name=options.region,
            config=Config(
                connect_timeout=5.0,
                read_timeout=READ_TIMEOUT_S,
                retries={"total_max_attempts": ATTEMPTS, "mode": "standard"},
                s3={"addressing_style": "path" if path_style else "auto"},
                # Servers of one's own often do not know the newer checksums.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )

    def _guarded(self, key: str, work: Callable[[], T]) -> T:
        """Do it; what boto3 raises, in our words."""
        from botocore.exceptions import BotoCoreError, ClientError
        from urllib3.exceptions import HTTPError

        try:
            return work()
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if code in ("NoSuchKey", "404"):
                raise _NotThereError(key, "no such object") from None
            if code in ("PreconditionFailed", "412"):
                raise _AlreadyThereError(key, "there is one already") from None
            if code == "NoSuchBucket":
                raise StoreError(f"{S3}{self._bucket}", "no such bucket") from None
            raise StoreError(key or self.uri, str(error)) from error
        except HTTPError as error:  # boto3 lets these through while it reads an error's body
            raise _CutBodyError(key or self.uri, str(error)) from error
        except (BotoCoreError, OSError, ValueError) as error:
            raise StoreError(key or self.uri, str(error)) from error


class _CutBodyError(StoreError):
    """The body of an answer broke off; the next one may arrive whole."""


class _NotThereError(StoreError):
    """The server knows no such object, or no such bucket."""


class _AlreadyThereError(StoreError):
    """The server has such an object already."""
