"""Brokers whose clocks disagree by an hour and a half: offsets, groups and sessions do not care."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import pytest

from tests.clients import scenarios_consume as consume
from tests.clients.client import How
from tests.clients.cluster import EskerCluster
from tests.clients.skewed_main import MINUTES
from tests.clients.world import World, check_sent, numbered
from tests.waiting import wait_until

SKEW_MINUTES: Final = 45  # one broker ahead, one behind; the quorum's clocks are right
PARTITIONS: Final = 32  # of 8, one broker leads all in one topic of 128: placement is by hashes
PROGRAM: Final = ("tests.clients.skewed_main",)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EskerCluster]:
    home = tmp_path_factory.mktemp("skew") / "cluster"
    level = ("--feature", "esker.version=1")  # from 2 on, clients are sent to other brokers
    with EskerCluster(
        home, quorum=(1,), program=PROGRAM, fresh=True, format_options=level
    ) as running:
        skews = dict(zip(running.broker_ids, (SKEW_MINUTES, -SKEW_MINUTES), strict=True))
        for node in running.ports:
            running.launch(node, environment={MINUTES: str(skews.get(node, 0))})
        running.wait_until_ready()
        yield running
        running.check_alive()


@pytest.fixture(scope="module")
def world(cluster: EskerCluster) -> World:
    return World(cluster.brokers)


def test_producers_and_consumer_groups_work_on_a_broker_with_a_skewed_clock(world: World) -> None:
    check_sent(world.other, world.topic(), numbered(30), How(idempotent=True))
    consume.group_of_two(world.other, world)
    consume.commit_and_resume(world.other, world)
    consume.from_a_time(world.other, world)


def test_log_append_times_of_records_are_times_of_the_batch_coordinators_clock(
    world: World,
) -> None:
    """LogAppendTime is the coordinator's, whichever broker took the record.

    Source: docs/design/broker.md#fetch.
    """
    topic = world.topic(PARTITIONS, {"message.timestamp.type": "LogAppendTime"})

    def by_leader() -> dict[int, int]:
        return {leader: partition for partition, leader in world.other.leaders(topic).items()}

    led = wait_until(lambda: found if len(found := by_leader()) == 2 else None, "both lead some")
    began_ms = time.time() * 1000
    for partition in led.values():
        world.other.send(topic, numbered(1), How(partition=partition))
        (record,) = world.other.read(topic, 1, partition=partition)
        assert abs(record.timestamp_ms - began_ms) < SKEW_MINUTES * 60_000 / 2, record
