"""S3, and what speaks its protocol, as the broker's object store.

The requests block (`diskless.stores.s3_client`), so they run in threads, as many as there are
connections kept open.

The trap is what a retry can find. A PUT whose answer was lost did store the object, and its
repetition is refused by If-None-Match with 412: refused by ourselves. So a refusal is looked into:
the same size and the same MD5 (the ETag of an object stored by one PUT) is our own success,
anything else a name used twice.

Not every server that calls itself S3 heeds If-None-Match; one that does not only loses us the
detection of a name used twice.

Source: KIP-1163, ObjectStorage; the S3 API reference (DeleteObjects);
docs/design/batch-coordinator.md#keys, docs/design/broker.md#object-stores.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any, Final, Self, TypeVar

from diskless.stores.interface import (
    ByteRange,
    DeletionError,
    ObjectExistsError,
    StorageError,
    StoredObject,
    StoreSettingError,
    check_range,
    check_upload,
)
from diskless.stores.s3_client import S3Client, S3Config
from records.compression import Buffer
from records.object_keys import check_key

__all__ = ["S3Config", "S3Storage"]

T = TypeVar("T")

ENCRYPTION: Final = "esker.storage.s3.encryption"
KMS_KEY_ID: Final = "esker.storage.s3.encryption.kms.key.id"

DELETE_MANY: Final = 1_000  # keys of one DeleteObjects, S3's limit
QUIET: Final = {"Quiet": True}  # DeleteObjects then answers with failures only


class S3Storage:
    """Objects in one bucket."""

    def __init__(self, config: S3Config) -> None:
        """Create the S3 client without contacting the server.

        Raises:  StorageError for settings that boto3 refuses.
        """
        self._client = S3Client(config)
        self._threads = ThreadPoolExecutor(config.connections, thread_name_prefix="s3")

    @classmethod
    def configured(cls, values: Mapping[str, Any]) -> Self:
        """Open the bucket that these settings describe.

        Keys have their prefix already, so none is added here.
        """
        bucket = values.get("esker.storage.s3.bucket")
        if not bucket:
            raise StoreSettingError("esker.storage.s3.bucket", "must be set: the bucket's name")
        encryption, kms_key_id = (values.get(key) or "" for key in (ENCRYPTION, KMS_KEY_ID))
        if kms_key_id and not encryption.startswith("aws:kms"):
            raise StoreSettingError(KMS_KEY_ID, f"needs {ENCRYPTION}=aws:kms")
        config = S3Config(
            bucket=bucket,
            endpoint_url=values.get("esker.storage.s3.endpoint") or None,
            region=values.get("esker.storage.s3.region") or None,
            path_style=bool(values.get("esker.storage.s3.path.style")),
            encryption=encryption,
            kms_key_id=kms_key_id,
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
        return await self._in_thread(lambda: self._client.get(key, byte_range))

    async def delete(self, keys: Collection[str]) -> None:
        for key in keys:
            check_key(key)
        waiting = iter(keys)
        failed: dict[str, str] = {}
        while batch := list(islice(waiting, DELETE_MANY)):
            failed.update(await self._in_thread(partial(self._delete, batch)))
        if failed:
            raise DeletionError(failed)

    async def list_objects(self, prefix: str) -> AsyncIterator[StoredObject]:
        pages = self._client.list_pages(prefix)
        while (page := await self._in_thread(lambda: next(pages, None))) is not None:
            for entry in page:
                yield entry

    async def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._client.close()

    # --- in a thread ----------------------------------------------------------------------------

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _put(self, key: str, body: bytes) -> None:
        try:
            self._client.put_new(key, body)
        except ObjectExistsError:
            if not self._holds(key, body):
                raise

    def _holds(self, key: str, body: bytes) -> bool:
        """Return whether the object with this key consists of these bytes."""
        found, etag = self._client.head(key)
        if found.size_bytes != len(body):
            return False
        if etag == hashlib.md5(body, usedforsecurity=False).hexdigest():
            return True
        # Encrypted by a key of its own, an object has an ETag that is no MD5: compare the bytes.
        return self._client.get(key, ByteRange(0, len(body))) == body

    def _delete(self, keys: list[str]) -> dict[str, str]:
        """Delete objects, and return the keys of failed deletions with the server's reason."""
        names = {self._client.full_key(key): key for key in keys}
        try:
            answer = self._client.request(
                "", "delete_objects", Delete={"Objects": [{"Key": name} for name in names]} | QUIET
            )
        except StorageError as error:
            return dict.fromkeys(keys, error.reason)
        return {
            names[failure["Key"]]: f"{failure.get('Code')}: {failure.get('Message')}"
            for failure in answer.get("Errors", ())
            if failure.get("Code") != "NoSuchKey"
        }
