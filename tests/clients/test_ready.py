"""A broker process says within seconds that it is not ready, with the reason, for each fault.

Source: docs/design/health.md#fault-by-fault.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.clients.client import EARLIEST, Message
from tests.clients.cluster import EskerCluster
from tests.clients.confluent import Confluent
from tests.clients.skewed_main import MINUTES
from tests.ports import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.soak

BROKER: Final = 101
TOPIC: Final = "faulty"
AHEAD_MINUTES: Final = 120


@contextlib.contextmanager
def small_directory(path: Path, options: str) -> Iterator[None]:
    """Mount a small tmpfs, or skip the test where mounts are not permitted."""
    path.mkdir(parents=True)
    mount = ("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path))
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("NOT TESTED HERE, needs the right to mount")
    try:
        yield
    finally:
        subprocess.run(("umount", "-l", str(path)), check=True)


@contextlib.contextmanager
def one_broker(home: Path, **more: Any) -> Iterator[tuple[EskerCluster, str]]:
    """Prepare a quorum of one and a broker; yield them with the broker's health address."""
    place = f"127.0.0.1:{free_port()}"
    own = {BROKER: {"esker.metrics.listener": place}}
    with EskerCluster(home, brokers=1, quorum=(1,), settings_of=own, **more) as cluster:
        yield cluster, f"http://{place}/health/ready"


def answer(url: str) -> dict[str, Any]:
    """Return the answer of a health path, whatever its status is; empty if none listens."""
    try:
        with urlopen(url, timeout=5) as page:
            found: dict[str, Any] = json.load(page)
    except HTTPError as refused:
        with refused:
            found = json.load(refused)
    except OSError:
        return {}
    return found


def text_of(url: str) -> str:
    return json.dumps(answer(url))


def await_reason(url: str, reason: str, began: float) -> None:
    """Wait until the node is not ready for a reason, and print how long that took."""
    wait_until(lambda: reason in text_of(url), f"{url} names {reason!r}")
    print(f"{reason}: {time.monotonic() - began:.1f} s")


@pytest.mark.parametrize(
    ("options", "reason"),
    [("size=4m", "No space left"), ("size=64m,nr_inodes=60", "no inodes left")],
    ids=["no space", "no inodes"],
)
def test_a_broker_whose_object_directory_is_full_is_unready_and_sends_producers_an_error(
    tmp_path: Path, options: str, reason: str
) -> None:
    with (
        one_broker(tmp_path / "cluster") as (cluster, url),
        small_directory(cluster.store, options),
        Confluent(cluster.bootstrap) as client,
    ):
        cluster.start()
        client.create_topic(TOPIC, 1, {})
        client.send(TOPIC, [Message(b"before")])
        began = time.monotonic()
        with contextlib.suppress(OSError):
            for number in range(100):
                (cluster.store / f"filler-{number}").write_bytes(b"f" * (64 << 10))
        await_reason(url, reason, began)
        cluster.kill()


def test_a_broker_whose_objects_are_removed_is_unready_and_names_a_missing_object(
    tmp_path: Path,
) -> None:
    with (
        one_broker(tmp_path / "cluster") as (cluster, url),
        Confluent(cluster.bootstrap) as client,
    ):
        cluster.start()
        client.create_topic(TOPIC, 1, {})
        client.send(TOPIC, [Message(b"lost")])
        cluster.kill(BROKER)  # it has the object in its cache
        for found in cluster.store.iterdir():
            if found.is_dir():
                shutil.rmtree(found)
        cluster.launch(BROKER)
        cluster.wait_until_ready()
        began = time.monotonic()
        with client.follow(TOPIC, 0, EARLIEST) as reader, contextlib.suppress(Exception):
            reader.read(1, timeout_s=5)
        await_reason(url, "is referenced and not in the store", began)


def test_a_broker_whose_object_directory_is_moved_away_is_unready(tmp_path: Path) -> None:
    with one_broker(tmp_path / "cluster") as (cluster, url):
        cluster.start()
        began = time.monotonic()
        cluster.store.rename(tmp_path / "elsewhere")
        await_reason(url, "is away", began)


def test_a_broker_whose_wall_clock_is_two_hours_ahead_is_unready(tmp_path: Path) -> None:
    program = ("tests.clients.skewed_main",)
    with one_broker(tmp_path / "cluster", program=program, fresh=True) as (cluster, url):
        cluster.launch(1, environment={MINUTES: "0"})
        cluster.launch(BROKER, environment={MINUTES: str(AHEAD_MINUTES)})
        wait_until(lambda: bool(answer(url)), "the broker listens")
        cluster.wait_until_ready()
        await_reason(url, "s ahead of the controller's", time.monotonic())
