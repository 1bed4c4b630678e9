"""A cut body is a retriable storage error, and is requested again.

boto3 repeats a request until the headers of an answer are there; the body is its caller's affair.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Final

import pytest

from diskless.stores import ByteRange, RangeError, StorageError
from diskless.stores.s3 import S3Config, S3Storage
from spark_jobs.readers.object_store import S3Store, StoreOptions, open_store
from tests.diskless.stores.cutting_server import BODY, CuttingServer, Spoil, cutting_server

ATTEMPTS: Final = 3
READ_TIMEOUT_S: Final = 0.3
RANGE: Final = ByteRange(16, 4_000)
WANTED: Final = BODY[16 : 16 + 4_000]
IN_THE_BODY: Final = [spoil for spoil in Spoil if spoil is not Spoil.RESET_EARLY]


@pytest.fixture(scope="module")
def only_server() -> Iterator[CuttingServer]:
    credentials = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    with pytest.MonkeyPatch.context() as patch, cutting_server() as server:
        for name in credentials:
            patch.setenv(name, "test")
        yield server


@pytest.fixture
def server(only_server: CuttingServer) -> CuttingServer:
    only_server.spoils, only_server.requests = [], 0
    return only_server


@pytest.fixture(scope="module")
def broker_store(only_server: CuttingServer) -> Iterator[S3Storage]:
    config = S3Config(
        bucket="b", endpoint_url=only_server.endpoint, region="us-east-1", path_style=True,
        read_timeout_s=READ_TIMEOUT_S, attempts=ATTEMPTS,
    )  # fmt: skip
    store = S3Storage(config)
    yield store
    asyncio.run(store.close())


@pytest.fixture(scope="module")
def job_store(only_server: CuttingServer) -> Iterator[S3Store]:
    with pytest.MonkeyPatch.context() as patch:
        shorter = partial(S3Config, read_timeout_s=READ_TIMEOUT_S, attempts=ATTEMPTS)
        patch.setattr("spark_jobs.readers.object_store.S3Config", shorter)
        store = open_store("s3://b", StoreOptions(only_server.endpoint, "us-east-1"))
        assert isinstance(store, S3Store)
        yield store
        store.close()


def fetch(store: S3Storage, byte_range: ByteRange) -> bytes:
    async def one() -> bytes:
        return bytes(await store.fetch("k", byte_range))

    return asyncio.run(one())


@pytest.mark.parametrize("spoil", list(Spoil))
def test_a_broker_repeats_a_read_after_one_truncated_response(
    server: CuttingServer, broker_store: S3Storage, spoil: Spoil
) -> None:
    server.spoils = [spoil]
    assert fetch(broker_store, RANGE) == WANTED
    assert server.requests == 2


@pytest.mark.parametrize("spoil", IN_THE_BODY)
def test_a_broker_raises_a_retriable_error_after_repeated_truncated_responses(
    server: CuttingServer, broker_store: S3Storage, spoil: Spoil
) -> None:
    server.spoils = [spoil] * 99
    with pytest.raises(StorageError) as found:
        fetch(broker_store, RANGE)
    assert found.value.retriable
    assert not isinstance(found.value, RangeError)
    assert found.value.key == "k"
    assert server.requests == ATTEMPTS


def test_a_broker_store_does_not_retry_a_read_beyond_an_objects_end(
    server: CuttingServer, broker_store: S3Storage
) -> None:
    with pytest.raises(RangeError):
        fetch(broker_store, ByteRange(16, len(BODY)))
    assert server.requests == 1


@pytest.mark.parametrize("spoil", list(Spoil))
def test_a_job_repeats_a_read_after_one_truncated_response(
    server: CuttingServer, job_store: S3Store, spoil: Spoil
) -> None:
    server.spoils = [spoil]
    assert job_store.read("k", *RANGE) == WANTED
    assert server.requests == 2


@pytest.mark.parametrize("spoil", IN_THE_BODY)
def test_a_job_raises_a_storage_error_after_repeated_truncated_responses(
    server: CuttingServer, job_store: S3Store, spoil: Spoil
) -> None:
    server.spoils = [spoil] * 99
    with pytest.raises(StorageError) as found:
        job_store.read("k", *RANGE)
    assert found.value.key == "k"
    # A reset may overtake the headers: then boto3 repeats that request by itself.
    assert server.requests >= ATTEMPTS
