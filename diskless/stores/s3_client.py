"""The S3 client that brokers and Spark jobs share: blocking calls, each with the same retries.

boto3 retries by itself, with jitter, what may pass: throttling, time-outs, a server's errors. Its
retries end once the headers of an answer have arrived. A body that then breaks off, by a closed or
reset connection or by silence, is this module's to notice and to request again.

Nothing here deletes an object: only the broker's storage (`diskless.stores.s3`) does, and jobs may
not import that.

Credentials come the AWS way (environment, ~/.aws, instance roles).

Source: the S3 API reference (PutObject, conditional writes; GetObject; HeadObject; ListObjectsV2);
docs/design/broker.md#object-stores.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from diskless.stores.interface import (
    ByteRange,
    ObjectExistsError,
    ObjectNotFoundError,
    RangeError,
    StorageError,
    StoredObject,
    check_range,
)
from records.object_keys import check_key

S3: Final = "s3://"
LIST_PAGE: Final = 1_000  # keys of one answer, S3's limit
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
    """The bucket's address and the client's limits. Times in seconds."""

    bucket: str
    prefix: str = ""  # put before every key, with a slash; "" is the bucket's top
    endpoint_url: str | None = None  # None: Amazon's, by region
    region: str | None = None  # None: as the AWS configuration says
    path_style: bool = False  # http://host/bucket/key, as most self-hosted servers need
    encryption: str = ""  # x-amz-server-side-encryption of new objects; "": as the bucket says
    kms_key_id: str = ""  # of the key in AWS KMS; "": the account's own
    connections: int = 16
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 30.0
    attempts: int = 5  # of one request, the first included


class S3Client:
    """Reads, lists and writes objects of one bucket below one prefix. May be used by many threads.

    Every method may raise StorageError; `retriable` says whether the failure may pass.
    """

    def __init__(self, config: S3Config) -> None:
        """Create the boto3 client without contacting the server.

        Raises:  StorageError for settings that boto3 refuses.
        """
        # Imported here: it takes a quarter of a second, and is needed only with S3.
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
        from urllib3.exceptions import HTTPError

        self._bucket = config.bucket
        self._prefix = f"{config.prefix.strip('/')}/" if config.prefix.strip("/") else ""
        self._attempts = config.attempts
        self._encryption = {
            name: value
            for name, value in (
                ("ServerSideEncryption", config.encryption), ("SSEKMSKeyId", config.kms_key_id),
            )
            if value
        }  # fmt: skip
        self._refused, self._unreachable = ClientError, BotoCoreError
        self._transport = HTTPError  # boto3 lets these through while it reads an error's body
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
                    # Self-hosted servers often do not know the newer checksums.
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                ),
            )
        except (BotoCoreError, OSError, ValueError) as error:
            raise StorageError(self.uri, str(error), retriable=False) from error

    @property
    def uri(self) -> str:
        """Return the bucket and prefix as `s3://BUCKET[/PREFIX]`."""
        return f"{S3}{self._bucket}/{self._prefix}".rstrip("/")

    def full_key(self, key: str) -> str:
        """Return an object's full key in the bucket, prefix included."""
        return self._prefix + key

    def close(self) -> None:
        """Close the client's connections to the server."""
        self._s3.close()

    def put(self, key: str, body: bytes) -> None:
        """Store an object, replacing an object of the same key."""
        check_key(key)
        self._put(key, body)

    def put_new(self, key: str, body: bytes) -> None:
        """Store an object if its key is unused; of two concurrent calls, one succeeds.

        Not every server that speaks S3 heeds If-None-Match; one that does not replaces the object.

        Raises:  ObjectExistsError, also if an earlier attempt of this call stored it.
        """
        check_key(key)
        self._put(key, body, IfNoneMatch="*")

    def _put(self, key: str, body: bytes, **more: str) -> None:
        more |= self._encryption
        self.request(key, "put_object", Body=body, ContentLength=len(body), **more)

    def head(self, key: str) -> tuple[StoredObject, str]:
        """Return an object's size, time and ETag.

        Raises:  ObjectNotFoundError.
        """
        check_key(key)
        found = self.request(key, "head_object")
        modified_ms = int(found["LastModified"].timestamp() * 1_000)
        etag: str = found.get("ETag", "").strip('"')
        return StoredObject(key, found["ContentLength"], modified_ms), etag

    def check_bucket(self) -> None:
        """Raise StorageError if the bucket does not exist.

        Other calls would report every key as missing.
        """
        try:
            self.request("", "head_bucket")
        except ObjectNotFoundError:
            raise StorageError(self.uri, "no such bucket", retriable=False) from None

    def get(self, key: str, byte_range: ByteRange) -> bytes:
        """Return exactly the bytes of this range of the object.

        Raises:  ValueError for a negative range; ObjectNotFoundError, RangeError, StorageError.
        """
        check_key(key)
        check_range(byte_range)
        if byte_range.size == 0:  # HTTP has no empty ranges
            size_bytes = self.head(key)[0].size_bytes
            if byte_range.offset > size_bytes:
                raise RangeError(key, byte_range, size_bytes)
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
            answer = self.request(key, "get_object", Range=f"bytes={wanted}")
        except _InvalidRangeError:
            raise RangeError(key, byte_range) from None
        try:
            # Not `with answer["Body"]`: that enters the raw stream, whose errors are not boto3's.
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

    def list_pages(self, prefix: str) -> Iterator[list[StoredObject]]:
        """Yield pages of up to 1000 objects whose keys begin with `prefix`, by rising key.

        Raises:  StorageError while iterating: the pages before it are not a whole listing.
        """
        where = {"Prefix": self._prefix + prefix, "MaxKeys": LIST_PAGE}
        token: str | None = None
        while True:
            more = {} if token is None else {"ContinuationToken": token}
            answer = self.request(prefix, "list_objects_v2", **where, **more)
            yield [
                StoredObject(
                    key=entry["Key"][len(self._prefix) :],
                    size_bytes=entry["Size"],
                    modified_ms=int(entry["LastModified"].timestamp() * 1_000),
                )
                for entry in answer.get("Contents", ())
            ]
            if not answer.get("IsTruncated"):
                return
            before, token = token, answer.get("NextContinuationToken")
            if token is None or token == before:
                raise StorageError(prefix, "a truncated listing does not say where it continues")

    def request(self, key: str, method: str, **arguments: Any) -> Any:
        """Call a boto3 method for this bucket, and translate boto3's errors.

        Args:    key: what the request is about, for the error; sent as `Key` by methods that name
                 one object.
        """
        if method.endswith("_object"):
            arguments["Key"] = self._prefix + key
        call: Callable[..., Any] = getattr(self._s3, method)
        try:
            return call(Bucket=self._bucket, **arguments)
        except self._refused as error:
            raise self._refusal(key, error) from error
        except self._transport as error:
            raise _CutBodyError(key or self.uri, str(error)) from error
        except (self._unreachable, OSError, ValueError) as error:
            raise StorageError(key or self.uri, str(error)) from error

    def _refusal(self, key: str, error: Any) -> StorageError:
        """Translate the server's error response into a StorageError."""
        code = str(error.response.get("Error", {}).get("Code", ""))
        if code in ("NoSuchKey", "404"):
            return ObjectNotFoundError(key)
        if code in ("PreconditionFailed", "ConditionalRequestConflict", "412"):
            return ObjectExistsError(key)
        if code == "InvalidRange":
            return _InvalidRangeError(key, str(error), retriable=False)
        if code == "NoSuchBucket":
            return StorageError(f"{S3}{self._bucket}", "no such bucket", retriable=False)
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
        retriable = code in _PASSING or status >= 500 or status == 429
        return StorageError(key or self.uri, str(error), retriable=retriable)


class _InvalidRangeError(StorageError):
    """The object ends before the requested range begins."""
