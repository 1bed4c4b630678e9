"""A store by the name of its class. Source: KIP-1163, diskless.storage.class.name."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diskless.stores import ByteRange, StoreSettingError
from diskless.stores.interface import ObjectExistsError
from diskless.stores.memory import MemoryStore
from diskless.stores.opening import open_store
from diskless.stores.s3 import S3Config
from diskless.stores.s3_client import S3Client

DIRECTORY = "diskless.stores.directory.DirectoryStorage"
S3 = "diskless.stores.s3.S3Storage"


class OwnStorage(MemoryStore):
    """A custom storage class."""

    @classmethod
    def configured(cls, values: Mapping[str, Any]) -> OwnStorage:
        return cls(lambda: values["own"])


def test_a_custom_storage_class_is_found_by_its_import_path() -> None:
    name = f"{__name__}.OwnStorage"
    assert isinstance(open_store({"diskless.storage.class.name": name, "own": 1}), OwnStorage)


def test_the_directory_storage_class_opens_the_directory_named_in_the_settings(
    tmp_path: Path,
) -> None:
    async def claim() -> None:
        store = open_store(
            {
                "diskless.storage.class.name": DIRECTORY,
                "esker.storage.directory.path": str(tmp_path / "objects"),
            }
        )
        await store.upload("a", [b"x"], 1)
        assert (tmp_path / "objects" / "a").read_bytes() == b"x"
        await store.close()

    asyncio.run(claim())


def test_the_s3_storage_class_opens_the_bucket_named_in_the_settings(s3_config: S3Config) -> None:
    async def claim() -> None:
        store = open_store(
            {
                "diskless.storage.class.name": S3,
                "esker.storage.s3.bucket": s3_config.bucket,
                "esker.storage.s3.endpoint": s3_config.endpoint_url,
                "esker.storage.s3.region": s3_config.region,
                "esker.storage.s3.path.style": True,
            }
        )
        await store.upload("a", [b"x"], 1)
        assert bytes(await store.fetch("a", ByteRange(0, 1))) == b"x"
        await store.close()

    asyncio.run(claim())


def test_new_objects_are_encrypted_as_the_settings_ask_the_s3_server(s3_config: S3Config) -> None:
    async def put(key: str, **encryption: str) -> dict[str, Any]:
        settings = {
            "diskless.storage.class.name": S3,
            "esker.storage.s3.bucket": s3_config.bucket,
            "esker.storage.s3.endpoint": s3_config.endpoint_url,
            "esker.storage.s3.region": s3_config.region,
            "esker.storage.s3.path.style": True,
            **{f"esker.storage.s3.{n.replace('_', '.')}": value for n, value in encryption.items()},
        }
        store = open_store(settings)
        await store.upload(key, [b"secret"], 6)
        await store.upload(key, [b"secret"], 6)  # a retry finds its own object
        with pytest.raises(ObjectExistsError):
            await store.upload(key, [b"others"], 6)
        await store.close()
        found: dict[str, Any] = S3Client(replace(s3_config, prefix="")).request(key, "head_object")
        return found

    assert asyncio.run(put("a", encryption="AES256"))["ServerSideEncryption"] == "AES256"
    key_id = "arn:aws:kms:us-east-1:1:key/2"
    found = asyncio.run(put("b", encryption="aws:kms", encryption_kms_key_id=key_id))
    assert (found["ServerSideEncryption"], found["SSEKMSKeyId"]) == ("aws:kms", key_id)


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"diskless.storage.class.name": "no.such.Class"}, "diskless.storage.class.name"),
        ({"diskless.storage.class.name": "Class"}, "diskless.storage.class.name"),
        ({"diskless.storage.class.name": "os.path"}, "diskless.storage.class.name"),
        ({"diskless.storage.class.name": DIRECTORY}, "esker.storage.directory.path"),
        ({"diskless.storage.class.name": S3}, "esker.storage.s3.bucket"),
        (
            {
                "diskless.storage.class.name": DIRECTORY,
                "esker.storage.directory.path": "/dev/null/objects",
            },
            "esker.storage.directory.path",
        ),
        (
            {
                "diskless.storage.class.name": S3,
                "esker.storage.s3.bucket": "b",
                "esker.storage.s3.encryption": "AES256",
                "esker.storage.s3.encryption.kms.key.id": "k",
            },
            "esker.storage.s3.encryption.kms.key.id",
        ),
        (
            {
                "diskless.storage.class.name": S3,
                "esker.storage.s3.bucket": "b",
                "esker.storage.s3.endpoint": "no address",
            },
            "esker.storage.s3.bucket",
        ),
    ],
)
def test_the_error_for_an_unusable_store_setting_names_the_setting(
    values: dict[str, Any], key: str
) -> None:
    with pytest.raises(StoreSettingError) as found:
        open_store(values)
    assert found.value.key == key
