"""A store that is slow, down, forgetful or full below brokers that clients use.

Producers hear the errors of docs/design/broker.md#errors-a-producer-sees and lose nothing that was
acknowledged; consumers wait, and never see wrong bytes.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer

from diskless.stores.faults import Fault
from records.kafka_errors import ErrorCode
from tests.clients.bad_stores import CLASS_NAME, DELAYED, delayed, spoiled
from tests.clients.client import (
    EARLIEST,
    Client,
    How,
    Refused,
)
from tests.clients.cluster import EskerCluster
from tests.clients.kafka_python import KafkaPython
from tests.clients.wire import fetch, produce
from tests.clients.world import World, check_sent, numbered, values
from tests.nemesis.disks import Disks, NoMounts
from tests.waiting import Deadline, wait_until

UPLOAD_TIMEOUT_MS: Final = 1_000
SETTINGS: Final = {
    "diskless.storage.class.name": CLASS_NAME,
    "esker.append.upload.timeout.ms": str(UPLOAD_TIMEOUT_MS),
    "esker.fetch.cache.max.bytes": "0",  # every Fetch asks the store
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "200",
}
MANY: Final = 40
DOWN_S: Final = 2.5  # longer than an upload is tried, shorter than clients are patient
SOAK_DOWN_S: Final = 10.0
MEBIBYTE: Final = 1024 * 1024
PEAK_MIB: Final = 150
"""Above an idle broker's. Requests under way are 32 MiB; besides there are the sockets' buffers and
the copies that uploads are made of. Without a bound it would be all 150 MB, several times over."""

DISK_BYTES: Final = 8 * 1024 * 1024


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EskerCluster]:
    home = tmp_path_factory.mktemp("bad") / "cluster"
    with EskerCluster(home, quorum=(1,), settings=SETTINGS) as running:
        running.start()
        yield running
        running.check_alive()


@pytest.fixture(scope="module")
def world(cluster: EskerCluster) -> World:
    return World(cluster.brokers)


def at_each_broker(
    cluster: EskerCluster, topic: str, expected: list[bytes | None], first: int = 0
) -> None:
    """Every broker has just these values, at gapless offsets."""
    for broker in cluster.brokers:
        got: list[tuple[int, bytes]] = []
        deadline = Deadline(f"{broker} has {len(expected)} records")
        while len(got) < len(expected):
            found = fetch(broker, topic, first + len(got))
            assert found.error_code == ErrorCode.NONE, found
            got += found.values  # none, if it has not heard yet that they are committed
            time.sleep(deadline.pause_s(f"{len(got)} records"))
        assert got == [(first + at, value) for at, value in enumerate(expected)]


def test_records_in_a_slow_object_store_are_neither_lost_nor_duplicated(
    world: World, cluster: EskerCluster
) -> None:
    topic = world.topic()
    with spoiled(cluster.store, Fault.SLOW, "upload", "fetch", delay_s=0.2):
        check_sent(world.other, topic, numbered(MANY), How(idempotent=True))


def test_records_of_an_upload_whose_response_was_lost_are_stored_once(
    world: World, cluster: EskerCluster
) -> None:
    topic = world.topic()
    with spoiled(cluster.store, Fault.LOST_ANSWER, "upload", probability=0.5):
        for part in range(5):
            world.other.send(topic, numbered(MANY, f"part-{part}"), How(idempotent=True))
    sent = [one.value for part in range(5) for one in numbered(MANY, f"part-{part}")]
    at_each_broker(cluster, topic, sent)


def given_up(cluster: EskerCluster) -> int:
    """How many uploads the first broker has given up."""
    return len(re.findall(r"object=\d+ error=", cluster.output(cluster.broker_ids[0])))


def test_a_broker_whose_upload_failed_returns_an_error_to_the_producer(
    world: World, cluster: EskerCluster
) -> None:
    """KAFKA_STORAGE_ERROR once it is given up; REQUEST_TIMED_OUT if it asked to hear earlier."""
    topic, broker = world.topic(), cluster.brokers[0]
    with spoiled(cluster.store, Fault.REFUSED, "upload"):
        assert produce(broker, topic, [b"refused"])[0] == ErrorCode.KAFKA_STORAGE_ERROR
    with spoiled(cluster.store, Fault.ERROR, "upload"):
        assert produce(broker, topic, [b"failed"])[0] == ErrorCode.KAFKA_STORAGE_ERROR
        before = given_up(cluster)
        assert (
            produce(broker, topic, [b"impatient"], timeout_ms=200)[0] == ErrorCode.REQUEST_TIMED_OUT
        )
        wait_until(lambda: given_up(cluster) > before, "it is not written after all")
    assert produce(broker, topic, [b"stored"]) == (ErrorCode.NONE, 0)
    at_each_broker(cluster, topic, [b"stored"])


def down(world: World, cluster: EskerCluster, client: Client, seconds: float) -> None:
    """Producers that go on sending while the store is down get all through, once and in order."""
    topic = world.topic()
    check_sent(client, topic, numbered(MANY, "before"))
    failed: list[BaseException] = []

    def send() -> None:
        try:
            client.send(topic, numbered(MANY, "during"), How(idempotent=True))
        except BaseException as error:
            failed.append(error)

    with spoiled(cluster.store, Fault.THROTTLED, "upload", "fetch"):
        thread = threading.Thread(target=send)
        thread.start()
        try:
            found = fetch(cluster.brokers[0], topic, 0)
            assert not found.values, "from a store that is down"
            assert found.error_code == ErrorCode.KAFKA_STORAGE_ERROR, found
            time.sleep(seconds)  # the fault's length
        finally:
            if failed:
                thread.join()
    thread.join()
    assert not failed, failed
    sent = [one.value for one in (*numbered(MANY, "before"), *numbered(MANY, "during"))]
    assert values(client.read(topic, 2 * MANY)) == sent
    at_each_broker(cluster, topic, sent)


def test_producers_and_consumers_recover_from_a_store_outage(
    world: World, cluster: EskerCluster
) -> None:
    down(world, cluster, world.other, DOWN_S)


@pytest.mark.soak
@pytest.mark.parametrize("make", [None, KafkaPython], ids=["confluent-kafka", "kafka-python"])
def test_producers_and_consumers_recover_from_a_long_store_outage(
    world: World, cluster: EskerCluster, make: Callable[[str], Client] | None
) -> None:
    with make(world.bootstrap) if make else world.other as client:
        down(world, cluster, client, SOAK_DOWN_S)


def test_damaged_bytes_from_a_store_never_reach_a_consumer(
    world: World, cluster: EskerCluster
) -> None:
    topic = world.topic()
    sent = numbered(MANY)
    world.other.send(topic, sent)
    with spoiled(cluster.store, Fault.DAMAGED, "fetch"):
        for broker in cluster.brokers:
            found = fetch(broker, topic, 0)
            assert not found.values
            assert found.error_code in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.CORRUPT_MESSAGE), (
                found
            )
    at_each_broker(cluster, topic, [one.value for one in sent])


def test_a_consumer_retries_while_the_store_returns_damaged_bytes(
    world: World, cluster: EskerCluster
) -> None:
    """Half of the reads fail or are damaged: librdkafka reports it, and gets there all the same."""
    topic = world.topic()
    sent = numbered(MANY)
    world.other.send(topic, sent)
    for fault in (Fault.ERROR, Fault.DAMAGED):
        got: list[bytes | None] = []
        with (
            spoiled(cluster.store, fault, "fetch", probability=0.5),
            world.other.follow(topic, 0, EARLIEST) as reader,
        ):
            while len(got) < MANY:
                try:
                    got += values(reader.read(MANY - len(got)))
                except Refused as refused:
                    if refused.code != ErrorCode.CORRUPT_MESSAGE:
                        raise
        assert got == [one.value for one in sent]


def test_a_broker_killed_during_an_upload_loses_no_acknowledged_record(
    world: World, cluster: EskerCluster
) -> None:
    """What it had taken and not acknowledged is sent again, to another: it is there once."""
    topic = world.topic()
    world.other.send(topic, numbered(1, "first"))
    victim = world.other.leaders(topic)[0]
    victim_process = cluster.processes[victim].pid
    cluster.store.with_name(DELAYED).unlink(missing_ok=True)
    told: list[object] = []

    def send() -> None:
        try:
            told.append(world.other.send(topic, numbered(MANY), How(idempotent=True)))
        except BaseException as error:
            told.append(error)

    with spoiled(cluster.store, Fault.SLOW, "upload", delay_s=0.6):
        thread = threading.Thread(target=send)
        thread.start()
        wait_until(lambda: victim_process in delayed(cluster.store), "its upload is under way")
        cluster.kill(victim)
    thread.join()
    assert told == [[(0, offset) for offset in range(1, MANY + 1)]]
    cluster.launch(victim)
    cluster.wait_until_ready()
    sent = [*numbered(1, "first"), *numbered(MANY)]
    at_each_broker(cluster, topic, [one.value for one in sent])


@pytest.mark.soak
def test_the_broker_throttles_producers_that_are_faster_than_its_object_store(
    tmp_path: Path,
) -> None:
    """Their sockets are not read: memory stays bounded, nothing fails, and others are served."""
    settings = {
        "diskless.storage.class.name": CLASS_NAME,
        "esker.append.max.in.flight.bytes": str(32 * MEBIBYTE),
        "diskless.append.buffer.max.bytes": str(4 * MEBIBYTE),
        "esker.fetch.cache.max.bytes": "0",
    }
    with EskerCluster(tmp_path / "cluster", brokers=1, quorum=(1,), settings=settings) as cluster:
        cluster.start()
        world = World(cluster.brokers)
        topic, errors = world.topic(8), list[object]()
        pid = cluster.processes[cluster.broker_ids[0]].pid
        before = _peak_mib(pid)
        producers = [
            Producer({"bootstrap.servers": world.bootstrap, "queue.buffering.max.kbytes": 200_000})
            for _ in range(6)
        ]
        with spoiled(cluster.store, Fault.SLOW, "upload", delay_s=1.0):
            for _ in range(2_500):
                for producer in producers:
                    producer.produce(
                        topic, os.urandom(10_000),
                        on_delivery=lambda error, _: errors.append(error) if error else None,
                    )  # fmt: skip
            slowest_s = 0.0
            while any(len(producer) for producer in producers):
                for producer in producers:
                    producer.poll(0.05)
                asked = time.monotonic()
                world.other.leaders(topic)
                slowest_s = max(slowest_s, time.monotonic() - asked)
        assert not errors
        print(f"{before} MiB before, {_peak_mib(pid)} MiB at most; Metadata {slowest_s:.3f} s")
        assert _peak_mib(pid) - before < PEAK_MIB
        assert slowest_s < 1.0


def _peak_mib(pid: int) -> int:
    """The most memory that a process has had."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) // 1024


def test_a_producer_gets_a_storage_error_while_the_disk_of_the_directory_store_is_full(
    tmp_path: Path,
) -> None:
    """Producers hear KAFKA_STORAGE_ERROR while it is full, and are served when it is not."""
    try:
        disks = Disks(tmp_path / "disks")
    except NoMounts as error:
        pytest.skip(f"NOT TESTED HERE, needs mkfs.ext4 and the right to mount: {error}")
    try:
        with EskerCluster(
            tmp_path / "cluster", brokers=1, quorum=(1,),
            settings={"esker.append.upload.timeout.ms": str(UPLOAD_TIMEOUT_MS)},
        ) as cluster:  # fmt: skip
            disks.make_small(cluster.store, DISK_BYTES)
            cluster.start()
            world = World(cluster.brokers)
            topic, broker = world.topic(), cluster.brokers[0]
            sent: list[bytes | None] = [b"%d" % at + b"x" * 500_000 for at in range(4)]
            for value in sent:
                assert produce(broker, topic, [value or b""])[0] == ErrorCode.NONE
            filler = cluster.store / "filler"
            _fill(filler)
            assert produce(broker, topic, [b"y" * 500_000])[0] == ErrorCode.KAFKA_STORAGE_ERROR
            at_each_broker(cluster, topic, sent)
            filler.unlink()
            assert produce(broker, topic, [b"after"]) == (ErrorCode.NONE, len(sent))
            at_each_broker(cluster, topic, [*sent, b"after"])
            cluster.stop(*cluster.broker_ids)
    finally:
        disks.close()


def _fill(path: Path) -> None:
    """Until nothing more fits."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        with contextlib.suppress(OSError):
            while os.write(file, b"f" * 4096):
                pass
    finally:
        os.close(file)
