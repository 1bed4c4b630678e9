"""S3, and what speaks its protocol, through boto3.

boto3 blocks, so requests run in threads, as many as there are connections kept open. It retries by
itself, with jitter, what may pass: throttling, time-outs, a server's errors.

The surprise is what a retry can find. A PUT whose answer was lost did store the object, and its
repetition is refused by If-None-Match with 412: refused by ourselves. So a refusal is looked into:
the same size and the same MD5 (the ETag of an object stored by one PUT) is our own success,
anything else a name used twice.

boto3's retries end once the headers of an answer have arrived. A body that then breaks off, by a
closed or reset connection or by silence, is this module's to notice and to request again.

Credentials come the AWS way (environment, ~/.aws, instance roles). Not every server that calls
itself S3 heeds If-None-Match; one that does not only loses us the detection of a name used twice.

Source: KIP-1163, ObjectStorage; the S3 API reference (PutObject, conditional writes; GetObject;
DeleteObjects; ListObjectsV2); docs/design/batch-coordinator.md#keys,
docs/design/broker.md#object-stores.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final, Self, TypeVar

from diskless.stores.interface import (
    ByteRange,
    DeletionError,
    ObjectExistsError,
    ObjectNotFoundError,
    RangeError,
    StorageError,
    StoredObject,
    StoreSettingError,
    check_range,
    check_upload,
)
from records.compression import Buffer
from records.object_keys import check_key

T = TypeVar("T")

DELETE_MANY: Final = 1_000  # keys of one DeleteObjects, S3's limit
RETRY_PAUSE_S: Final = 0.05  # after the first cut body, twice that after the second; with jitter
_PASSING: Final = frozenset(
    {
        "InternalError",
        "OperationAborted",
        "RequestTimeout",
        "RequestTimeoutException",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
    }
)


class _CutBodyError(StorageError):
    """The body of an answer broke off; the next one may arrive whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Config:
    """Where the bucket is. Times in seconds."""

    bucket: str
    prefix: str = ""  # put before every key, with a slash; "" is the bucket's top
    endpoint_url: str | None = None  # None: Amazon's, by region
    region: str | None = None  # None: as the AWS configuration says
    path_style: bool = False  # http://host/bucket/key, as most servers of one's own need
    connections: int = 16
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 30.0
    attempts: int = 5  # of one request, the first included


class S3Storage:
    """Objects in one bucket."""

    def __init__(self, config: S3Config) -> None:
        """A client; nothing is asked of the server yet.

        Raises:  StorageError for settings that boto3 refuses.
        """
        # Imported here: it takes a quarter of a second, and only who uses S3 needs it.
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
        from urllib3.exceptions import HTTPError

        self._bucket = config.bucket
        self._prefix = f"{config.prefix.strip('/')}/" if config.prefix.strip("/") else ""
        self._refused, self._unreachable = ClientError, BotoCoreError
        self._transport = HTTPError  # boto3 lets these through while it reads an error's body
        self._attempts = config.attempts
        try:
            self._s3: Any = boto3.session.Session().client(
                "s3",
                endpoint_url=config.endpoint_url,
                region_name=config.region,
                config=Config(
                    connect_timeout=config.connect_timeout_s,
                    read_timeout=config.read_timeout_s,
                    max_pool_connections=config.connections,
                    retries={"total_max_attempts": config.attempts, "mode": "standard"},
                    s3={"addressing_style": "path" if config.path_style else "auto"},
                    # Servers of one's own often do not know the newer checksums.
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                ),
            )
        except (BotoCoreError, ValueError) as error:
            raise StorageError(config.bucket, str(error), retriable=False) from error
        self._threads = ThreadPoolExecutor(config.connections, thread_name_prefix="s3")

    @classmethod
    def configured(cls, values: Mapping[str, Any]) -> Self:
        """See `diskless.stores.opening`. Keys have their prefix already, so none is added here."""
        bucket = values.get("esker.storage.s3.bucket")
        if not bucket:
            raise StoreSettingError("esker.storage.s3.bucket", "must be set: the bucket's name")
        config = S3Config(
            bucket=bucket,
            endpoint_url=values.get("esker.storage.s3.endpoint") or None,
            region=values.get("esker.storage.s3.region") or None,
            path_style=bool(values.get("esker.storage.s3.path.style")),
        )
        try:
            return cls(config)
        except StorageError as error:
            raise StoreSettingError("esker.storage.s3.bucket", str(error)) from error

    # --- an ObjectStorage -----------------------------------------------------------------------

    async def upload(self, key: str, parts: Sequence[Buffer], size_bytes: int) -> None:
        check_upload(key, parts, size_bytes)
        await self._in_thread(lambda: self._put(key, b"".join(parts)))

    async def fetch(self, key: str, byte_range: ByteRange) -> Buffer:
        check_key(key)
        check_range(byte_range)
        return await self._in_thread(lambda: self._get(key, byte_range))

    async def delete(self, keys: Collection[str]) -> None:
        for key in keys:
            check_key(key)
        waiting = iter(keys)
        failed: dict[str, str] = {}
        while some := list(islice(waiting, DELETE_MANY)):
            failed.update(await self._in_thread(partial(self._delete, some)))
        if failed:
            raise DeletionError(failed)

    async def list_objects(self, prefix: str) -> AsyncIterator[StoredObject]:
        token: str | None = None
        while True:
            page, token = await self._in_thread(partial(self._list, prefix, token))
            for entry in page:
                yield entry
            if token is None:
                return

    async def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._s3.close()

    # --- in a thread ----------------------------------------------------------------------------

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _put(self, key: str, body: bytes) -> None:
        try:
            self._s3.put_object(
                Bucket=self._bucket,
                Key=self._prefix + key,
                Body=body,
                ContentLength=len(body),
                IfNoneMatch="*",
            )
        except self._refused as error:
            if _code(error) not in ("PreconditionFailed", "ConditionalRequestConflict"):
                raise self._error(key, error) from error
            if not self._holds(key, body):
                raise ObjectExistsError(key) from None
        except self._unreachable as error:
            raise StorageError(key, str(error)) from error

    def _holds(self, key: str, body: bytes) -> bool:
        """Is the object there made of these bytes?"""
        try:
            found = self._s3.head_object(Bucket=self._bucket, Key=self._prefix + key)
        except (self._refused, self._unreachable) as error:
            raise self._error(key, error) from error
        if found["ContentLength"] != len(body):
            return False
        if found["ETag"].strip('"') == hashlib.md5(body, usedforsecurity=False).hexdigest():
            return True
        # Encrypted by a key of its own, an object has an ETag that is no MD5: compare the bytes.
        return bool(self._get(key, ByteRange(0, len(body))) == body)

    def _get(self, key: str, byte_range: ByteRange) -> bytes:
        size = byte_range.size
        if size == 0:  # HTTP has no empty ranges; still, who asks learns whether it exists
            self._check_end(key, byte_range)
            return b""
        for attempt in range(1, self._attempts):
            try:
                return self._get_once(key, byte_range)
            except _CutBodyError:
                time.sleep(RETRY_PAUSE_S * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))
        return self._get_once(key, byte_range)

    def _get_once(self, key: str, byte_range: ByteRange) -> bytes:
        offset, size = byte_range
        wanted = f"{offset}-{offset + size - 1}"
        try:
            answer = self._s3.get_object(
                Bucket=self._bucket, Key=self._prefix + key, Range=f"bytes={wanted}"
            )
        except self._refused as error:
            if _code(error) == "InvalidRange":
                raise RangeError(key, byte_range) from None
            raise self._error(key, error) from error
        except self._unreachable as error:
            raise StorageError(key, str(error)) from error
        except self._transport as error:
            raise _CutBodyError(key, str(error)) from error
        try:
            # Not `with answer["Body"]`: that is the stream below, whose errors nobody translates.
            with closing(answer["Body"]) as body:
                data: bytes = body.read()
        except (self._unreachable, self._transport, OSError) as error:
            raise _CutBodyError(key, str(error)) from error
        if len(data) == size:
            return data
        # A body without a length ends where its connection does: its range says what was meant.
        if len(data) < size and answer.get("ContentRange", "").startswith(f"bytes {wanted}/"):
            raise _CutBodyError(key, f"the body broke off after {len(data)} of {size} bytes")
        raise RangeError(key, byte_range)

    def _check_end(self, key: str, byte_range: ByteRange) -> None:
        try:
            found = self._s3.head_object(Bucket=self._bucket, Key=self._prefix + key)
        except (self._refused, self._unreachable) as error:
            raise self._error(key, error) from error
        if byte_range.offset > found["ContentLength"]:
            raise RangeError(key, byte_range, found["ContentLength"])

    def _delete(self, keys: list[str]) -> dict[str, str]:
        """Those that may still be there, and why."""
        named = {self._prefix + key: key for key in keys}
        try:
            answer = self._s3.delete_objects(
                Bucket=self._bucket,
                Delete={"Objects": [{"Key": name} for name in named], "Quiet": True},
            )
        except (self._refused, self._unreachable) as error:
            return dict.fromkeys(keys, str(error))
        return {
            named[failure["Key"]]: f"{failure.get('Code')}: {failure.get('Message')}"
            for failure in answer.get("Errors", ())
            if failure.get("Code") != "NoSuchKey"
        }

    def _list(self, prefix: str, token: str | None) -> tuple[list[StoredObject], str | None]:
        more = {} if token is None else {"ContinuationToken": token}
        try:
            answer = self._s3.list_objects_v2(
                Bucket=self._bucket, Prefix=self._prefix + prefix, **more
            )
        except (self._refused, self._unreachable) as error:
            raise self._error(prefix, error) from error
        page = [
            StoredObject(
                key=entry["Key"][len(self._prefix) :],
                size_bytes=entry["Size"],
                modified_ms=int(entry["LastModified"].timestamp() * 1_000),
            )
            for entry in answer.get("Contents", ())
        ]
        return page, answer.get("NextContinuationToken") if answer.get("IsTruncated") else None

    def _error(self, key: str, error: Exception) -> StorageError:
        if not isinstance(error, self._refused):
            return StorageError(key, str(error))
        code = _code(error)
        if code in ("NoSuchKey", "404"):
            return ObjectNotFoundError(key)
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
        retriable = code in _PASSING or status >= 500 or status == 429
        return StorageError(key, str(error), retriable=retriable)


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
