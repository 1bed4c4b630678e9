"""Fixtures for the stores under test: a directory, memory, and two S3 servers.

moto's server keeps objects in memory and checks no signatures; what it does with conditions,
ranges, listings and bulk deletions is S3's. Ceph's radosgw is a real one, and is asked in the long
runs, where it is installed.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from diskless.stores import ObjectStorage
from diskless.stores.directory import DirectoryStorage
from diskless.stores.memory import MemoryStore
from diskless.stores.s3 import S3Config, S3Storage
from tests.diskless.stores.radosgw import MISSING, Radosgw, is_installed, radosgw
from tests.ports import free_port
from tests.waiting import wait_until

ROOT: Final = Path(__file__).parents[3]
MOTO: Final = "tests.diskless.stores.moto_server"

_buckets = count(1)


@contextmanager
def moto_server(*, overwrites: bool = False) -> Iterator[str]:
    """Run a moto server and yield its address; the environment has credentials for it.

    Args:    overwrites: it does not heed If-None-Match.
    """
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", MOTO, "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env=os.environ | {"ESKER_MOTO_OVERWRITES": str(int(overwrites))},
    )
    saved = {name: os.environ.get(name) for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    os.environ.update(dict.fromkeys(saved, "test"))
    try:
        _wait_for(port, server)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()
        for name, value in saved.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The address of a moto server of this test process."""
    with moto_server() as endpoint:
        yield endpoint


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    def listens() -> bool:
        assert server.poll() is None, "moto's server ended"
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True

    wait_until(listens, "moto's server listens", retry_on=(OSError,))


@pytest.fixture(scope="session")
def ceph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Radosgw]:
    """Ceph's gateway, if it is installed."""
    if not is_installed():
        pytest.skip(MISSING)
    with radosgw(tmp_path_factory.mktemp("ceph")) as server:
        yield server


@pytest.fixture
def ceph_config(ceph: Radosgw, monkeypatch: pytest.MonkeyPatch) -> S3Config:
    """A new bucket at Ceph's gateway, with its owner's credentials in the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ceph.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", ceph.secret_key)
    return new_bucket(ceph.endpoint)


@pytest.fixture
def s3_config(s3_endpoint: str) -> S3Config:
    """A new bucket of the moto server."""
    return new_bucket(s3_endpoint)


def new_bucket(s3_endpoint: str) -> S3Config:
    """Create a bucket with the credentials of the environment."""
    import boto3

    bucket = f"esker-{next(_buckets)}-{os.getpid()}"
    session = boto3.session.Session()  # boto3's own would remember the first credentials
    s3: Any = session.client("s3", endpoint_url=s3_endpoint, region_name="us-east-1")
    s3.create_bucket(Bucket=bucket)
    return S3Config(
        bucket=bucket,
        prefix="data",
        endpoint_url=s3_endpoint,
        region="us-east-1",
        path_style=True,
        attempts=2,
    )


@pytest.fixture(
    params=["directory", "s3", "memory", pytest.param("radosgw", marks=pytest.mark.soak)]
)
def open_store(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[[], ObjectStorage]]:
    """A function that opens the same store again on each call, as another process would."""
    opened: list[ObjectStorage] = []
    buckets = {"s3": "s3_config", "radosgw": "ceph_config"}
    bucket = buckets.get(request.param)
    config = None if bucket is None else request.getfixturevalue(bucket)

    memory = MemoryStore(lambda: time.time_ns() // 1_000_000)

    def open_it() -> ObjectStorage:
        if request.param == "memory":
            return memory
        opened.append(
            DirectoryStorage(tmp_path / "objects") if config is None else S3Storage(config)
        )
        return opened[-1]

    yield open_it
    for store in opened:
        asyncio.run(store.close())
