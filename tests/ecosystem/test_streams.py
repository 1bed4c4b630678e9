"""Kafka Streams with a state store, which a compacted topic, the changelog, restores."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.clients.client import EARLIEST, Message
from tests.clients.cluster import EskerCluster
from tests.clients.world import World
from tests.ecosystem.java_program import JavaProgram
from tests.interop.kafka_run import Kafka
from tests.waiting import wait_until

pytestmark = pytest.mark.java

COUNT_WORDS: Final = Path(__file__).with_name("CountWords.java")
WORDS: Final = ("ebb", "flow", "ebb", "tide", "ebb", "flow")


def test_a_kafka_streams_application_restores_a_lost_state_store_from_its_changelog_topic(
    programs: Kafka, cluster: EskerCluster, world: World, tmp_path: Path
) -> None:
    words, counts, application = world.topic(), world.topic(), world.name("count")
    arguments = (cluster.bootstrap, application, words, counts, str(tmp_path / "state"))
    sent: list[str] = []
    latest: dict[str, int] = {}
    with world.other.follow(counts, 0, EARLIEST) as reader:

        def has_counted_all() -> bool:
            for message in reader.poll(0.2):
                assert message.key is not None
                assert message.value is not None
                latest[message.key.decode()] = int(message.value)
            return latest == Counter(sent) and world.other.committed(application, words) == {
                0: len(sent)
            }

        for life in ("first", "second"):
            world.other.send(words, [Message(word.encode()) for word in WORDS])
            sent += WORDS
            with JavaProgram(programs, tmp_path, life, str(COUNT_WORDS), *arguments) as streams:
                wait_until(
                    has_counted_all, "Streams has counted and committed all", state=latest.copy
                )
                streams.kill()
            shutil.rmtree(tmp_path / "state")
