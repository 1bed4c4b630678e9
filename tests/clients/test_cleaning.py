"""Objects that nothing refers to are deleted, all of them; what is referred to stays (invariant 7).

Through real clients and a real directory: topics are deleted, records are, and a broker is killed
while it uploads, so that there are objects that nobody ever committed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from diskless.stores.faults import Fault
from tests.clients.bad_stores import CLASS_NAME, spoiled
from tests.clients.client import How, Message
from tests.clients.cluster import EskerCluster
from tests.clients.world import World, numbered, values
from tests.waiting import wait_until

SETTINGS: Final = {
    "diskless.storage.class.name": CLASS_NAME,
    "diskless.file.delete.delay.ms": "2000",
    "esker.file.delete.interval.ms": "200",
    "esker.append.upload.timeout.ms": "1000",
    "esker.object.lease.timeout.ms": "3000",  # a broker that is not heard of again lost its lease
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "200",
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EskerCluster]:
    with EskerCluster(tmp_path / "cluster", quorum=(1,), settings=SETTINGS) as running:
        running.start()
        yield running
        running.check_alive()


def objects(cluster: EskerCluster) -> set[Path]:
    """Whole objects of batches: neither temporary files nor the probes of idle brokers."""
    return {
        path
        for path in cluster.store.rglob("*")
        if path.is_file()
        and not path.name.startswith(".")
        and not path.is_relative_to(cluster.store / "probe")
        and not path.is_relative_to(cluster.store / "lineage")
    }


def test_brokers_delete_unreferenced_objects_and_keep_referenced_objects(
    cluster: EskerCluster,
) -> None:
    world = World(cluster.brokers)
    gone, cut, kept = world.topic(), world.topic(), world.topic()
    for part in range(5):
        for topic in (gone, cut, kept):
            world.other.send(topic, numbered(10, f"{topic}-{part}"))
    before = objects(cluster)
    orphans = die_while_uploading(cluster, world, gone) - before
    assert orphans, "an object that nobody committed"
    world.other.delete_topic(gone)
    world.other.delete_records(cut, 0, 50)
    wait_until(lambda: len(objects(cluster)) <= 5, "only what is referred to is left")
    assert not orphans & objects(cluster), "what was never committed is gone, too"
    assert objects(cluster) <= before
    sent = [one.value for part in range(5) for one in numbered(10, f"{kept}-{part}")]
    assert values(world.other.read(kept, 50)) == sent
    world.other.delete_topic(kept)
    wait_until(lambda: not objects(cluster), "nothing is left")


def die_while_uploading(cluster: EskerCluster, world: World, topic: str) -> set[Path]:
    """Kill both brokers once their objects are whole and not yet committed; what is there then."""
    before = objects(cluster)
    stop = threading.Event()

    def send() -> None:
        while not stop.is_set():
            world.other.send(topic, [Message(b"late")], How(idempotent=True))

    # Uploaded, and the answer held back: so the commit has not been asked for.
    thread = threading.Thread(target=send)
    with spoiled(cluster.store, Fault.LOST_ANSWER, "upload"):
        thread.start()
        wait_until(lambda: objects(cluster) > before, "an upload is done")
        cluster.kill(*cluster.broker_ids)
    found = objects(cluster)
    cluster.launch(*cluster.broker_ids)
    cluster.wait_until_ready()
    stop.set()
    thread.join()
    return found
