"""Behaviour of single stores beyond the contract: crashes of directories, failing servers."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from pathlib import Path
from random import Random

import pytest

from diskless.stores import ByteRange, DeletionError, ObjectNotFoundError, StorageError
from diskless.stores.directory import ABANDONED_AFTER_S, DirectoryStorage
from diskless.stores.faults import Fault, FaultRule, FaultyStore
from diskless.stores.object_directory import UPLOADING
from diskless.stores.s3 import S3Config, S3Storage


async def _no_sleep(_: float) -> None:
    """Return at once, so that tests do not wait."""


def test_the_directory_store_lists_no_temporary_files_and_removes_old_temporary_files(
    tmp_path: Path,
) -> None:
    async def claim() -> None:
        store = DirectoryStorage(tmp_path)
        await store.upload("a/1", [b"x"], 1)
        young, old = tmp_path / "a" / f"{UPLOADING}1", tmp_path / "a" / f"{UPLOADING}2"
        for left in (young, old):
            left.write_bytes(b"half")
        long_ago = old.stat().st_mtime - ABANDONED_AFTER_S - 60
        os.utime(old, (long_ago, long_ago))
        assert [entry.key async for entry in store.list_objects("")] == ["a/1"]
        assert young.exists()
        assert not old.exists()
        await store.close()

    asyncio.run(claim())


def test_a_failed_upload_to_a_directory_store_leaves_no_file(tmp_path: Path) -> None:
    async def claim() -> None:
        (tmp_path / "a").write_bytes(b"a file where a directory should be")
        store = DirectoryStorage(tmp_path)
        with pytest.raises(StorageError):
            await store.upload("a/1", [b"x"], 1)
        assert [entry.key async for entry in store.list_objects("")] == ["a"]
        await store.close()

    asyncio.run(claim())


def test_object_stores_with_different_prefixes_in_one_bucket_share_no_objects(
    s3_config: S3Config,
) -> None:
    async def claim() -> None:
        one = S3Storage(s3_config)
        two = S3Storage(dataclasses.replace(s3_config, prefix="database"))  # begins alike
        await one.upload("a", [b"one"], 3)
        await two.upload("a", [b"two"], 3)
        assert bytes(await one.fetch("a", ByteRange(0, 3))) == b"one"
        assert [entry.key async for entry in two.list_objects("")] == ["a"]
        await two.delete(["a"])
        assert [entry.key async for entry in one.list_objects("")] == ["a"]
        with pytest.raises(ObjectNotFoundError):
            await two.fetch("a", ByteRange(0, 3))
        await one.close()
        await two.close()

    asyncio.run(claim())


def test_the_error_for_a_missing_bucket_names_the_bucket(s3_config: S3Config) -> None:
    async def claim() -> None:
        store = S3Storage(dataclasses.replace(s3_config, bucket="not-there"))
        for work in (store.upload("a", [b"x"], 1), store.fetch("a", ByteRange(0, 1))):
            with pytest.raises(StorageError, match="no such bucket") as found:
                await work
            assert not found.value.retriable
        with pytest.raises(DeletionError):
            await store.delete(["a"])
        await store.close()

    asyncio.run(claim())


def test_an_unreachable_s3_server_raises_a_retriable_error() -> None:
    async def claim() -> None:
        store = S3Storage(
            S3Config(
                bucket="esker", endpoint_url="http://127.0.0.1:9", region="x", attempts=1,
                path_style=True,
            )
        )  # fmt: skip
        with pytest.raises(StorageError) as found:
            await store.upload("a", [b"x"], 1)
        assert found.value.retriable
        await store.close()

    asyncio.run(claim())


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.THROTTLED, Fault.REFUSED])
def test_an_upload_with_an_injected_failure_writes_no_object(tmp_path: Path, fault: Fault) -> None:
    async def claim() -> None:
        inner = DirectoryStorage(tmp_path)
        store = FaultyStore(inner, Random(1), _no_sleep, [FaultRule(fault=fault)])
        with pytest.raises(StorageError) as found:
            await store.upload("a", [b"x"], 1)
        assert found.value.retriable is (fault is not Fault.REFUSED)
        assert [entry.key async for entry in inner.list_objects("")] == []
        assert store.struck == {("upload", fault): 1}
        await store.close()

    asyncio.run(claim())


def test_the_test_store_with_the_lost_response_fault_still_performs_the_operation(
    tmp_path: Path,
) -> None:
    async def claim() -> None:
        store = FaultyStore(
            DirectoryStorage(tmp_path), Random(1), _no_sleep, [FaultRule(fault=Fault.LOST_ANSWER)]
        )
        with pytest.raises(StorageError, match="timed out"):
            await store.upload("a", [b"x"], 1)
        store.rules = ()
        assert bytes(await store.fetch("a", ByteRange(0, 1))) == b"x"
        await store.upload("a", [b"x"], 1)  # and so is its repetition
        await store.close()

    asyncio.run(claim())


def test_the_error_of_a_partly_failed_bulk_deletion_names_the_remaining_keys(
    tmp_path: Path,
) -> None:
    async def claim() -> None:
        store = FaultyStore(DirectoryStorage(tmp_path), Random(1), _no_sleep)
        for name in "abcd":
            await store.upload(name, [b"x"], 1)
        store.rules = (FaultRule(fault=Fault.HALF, operations=frozenset({"delete", "list"})),)
        with pytest.raises(DeletionError) as found:
            await store.delete(list("abcd"))
        with pytest.raises(StorageError, match="broke off"):
            assert [entry.key async for entry in store.list_objects("")]
        store.rules = ()
        left = [entry.key async for entry in store.list_objects("")]
        assert left == sorted(found.value.failed) == ["a", "c"]
        await store.close()

    asyncio.run(claim())


def test_the_test_store_with_the_damage_fault_returns_a_read_with_one_flipped_bit(
    tmp_path: Path,
) -> None:
    async def claim() -> None:
        rule = FaultRule(fault=Fault.DAMAGED, operations=frozenset({"fetch"}))
        store = FaultyStore(DirectoryStorage(tmp_path), Random(1), _no_sleep, [rule])
        await store.upload("a", [bytes(100)], 100)
        spoiled = await store.fetch("a", ByteRange(0, 100))
        assert sum(byte.bit_count() for byte in spoiled) == 1
        await store.close()

    asyncio.run(claim())


@pytest.mark.soak
def test_a_request_with_a_wrong_s3_secret_raises_a_permanent_storage_error(
    ceph_config: S3Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def claim() -> None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another secret")
        store = S3Storage(ceph_config)
        with pytest.raises(StorageError, match="SignatureDoesNotMatch") as found:
            await store.upload("a", [b"x"], 1)
        assert not found.value.retriable
        await store.close()

    asyncio.run(claim())
