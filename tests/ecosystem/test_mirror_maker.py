"""MirrorMaker 2 between Apache Kafka and a cluster of ours, in both directions."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.clients.apache_kafka import apache_kafka
from tests.clients.client import Message
from tests.clients.world import World
from tests.ecosystem.java_program import JavaProgram, write_properties
from tests.interop.kafka_run import Kafka
from tests.waiting import wait_until

pytestmark = pytest.mark.java

MIRROR_MAKER: Final = "org.apache.kafka.connect.mirror.MirrorMaker"
RECORDS: Final = 50
TOPIC_SETTINGS: Final = {
    "cleanup.policy": "compact",
    "compression.type": "lz4",
    "compression.gzip.level": "5",
    "min.compaction.lag.ms": "1000",
    "delete.retention.ms": "3600000",
    "retention.ms": "86400000",
    "local.retention.ms": "-2",
    "segment.ms": "600000",
}
REPLICATION: Final = (
    "replication.factor", "checkpoints.topic.replication.factor",
    "heartbeats.topic.replication.factor", "offset-syncs.topic.replication.factor",
    "offset.storage.replication.factor", "status.storage.replication.factor",
    "config.storage.replication.factor",
)  # fmt: skip
INTERVALS: Final = (
    "emit.checkpoints.interval.seconds", "sync.group.offsets.interval.seconds",
    "refresh.topics.interval.seconds", "refresh.groups.interval.seconds",
    "sync.topic.configs.interval.seconds",
)  # fmt: skip


def settings(kafka: World, esker: World, topics: dict[str, str]) -> dict[str, str]:
    """MirrorMaker's settings, with the topics of each direction."""
    directions = {
        key: value
        for direction, topic in topics.items()
        for key, value in (
            (f"{direction}.enabled", "true"), (f"{direction}.topics", topic),
            (f"{direction}.sync.group.offsets.enabled", "true"),
        )
    }  # fmt: skip
    return {
        "clusters": "kafka, esker",
        "kafka.bootstrap.servers": kafka.bootstrap,
        "esker.bootstrap.servers": esker.bootstrap,
        "plugin.discovery": "service_load",
        **dict.fromkeys(REPLICATION, "1"),
        **dict.fromkeys(INTERVALS, "1"),
        **directions,
    }


def test_mirror_maker_copies_topics_settings_and_group_offsets_from_and_to_esker(
    programs: Kafka, world: World, tmp_path: Path
) -> None:
    # Keys of their own: on a slow machine the source is compacted before it is read.
    sent = [
        Message(f"value {number}".encode(), key=f"key {number}".encode())
        for number in range(RECORDS)
    ]
    with apache_kafka(programs, tmp_path / "kafka") as kafka:
        sides = {"kafka": (kafka, world), "esker": (world, kafka)}
        topics = {name: source.topic(1, TOPIC_SETTINGS) for name, (source, _) in sides.items()}
        for name, (source, _) in sides.items():
            source.other.send(topics[name], sent)
            with source.other.join("readers", topics[name]) as member:
                member.read(RECORDS)  # and commits when it leaves
        chosen = {"kafka->esker": topics["kafka"], "esker->kafka": topics["esker"]}
        path = write_properties(tmp_path / "mm2.properties", settings(kafka, world, chosen))
        with JavaProgram(programs, tmp_path, "mirror-maker", MIRROR_MAKER, str(path)) as maker:
            for name, (_, target) in sides.items():
                copy = f"{name}.{topics[name]}"

                def is_copied(copy: str = copy, target: World = target) -> bool:
                    maker.check_alive()
                    return copy in target.other.topics()

                wait_until(is_copied, f"MirrorMaker creates {copy}")
                read = target.other.read(copy, RECORDS)
                assert [(one.key, one.value) for one in read] == [
                    (one.key, one.value) for one in sent
                ]
                found = target.other.describe_topic(copy)
                assert {key: found[key] for key in TOPIC_SETTINGS} == TOPIC_SETTINGS
                wait_until(
                    lambda copy=copy, target=target: target.other.committed("readers", copy),  # type: ignore[misc]
                    f"MirrorMaker translates the group's offset into {copy}",
                )
