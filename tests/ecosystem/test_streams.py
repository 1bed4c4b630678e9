"""Kafka Streams with a state store, which a compacted topic, the changelog, restores."""

from __future__ import annotations

import shutil
import time
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
    began_ms = time.time_ns() // 1_000_000
    sent: list[str] = []
    updates: list[tuple[str, int, int]] = []  # word, its count, number of the life that sent it
    with world.other.follow(counts, 0, EARLIEST) as reader:

        def has_counted_all() -> bool:
            for message in reader.poll(0.2):
                assert message.key is not None
                assert message.value is not None
                life = message.timestamp_ms - began_ms
                updates.append((message.key.decode(), int(message.value), life))
            # At least once: a rebalance on a loaded machine counts uncommitted words again.
            latest = {word: count for word, count, _ in updates}
            return (
                all(latest.get(word, 0) >= count for word, count in Counter(sent).items())
                and world.other.committed(application, words) == {0: len(sent)}
                and has_committed_repartitioned_words()
            )

        def has_committed_repartitioned_words() -> bool:
            """Streams commits the words, and the words that it has sent to itself, separately."""
            (internal,) = (
                topic
                for topic in world.other.topics()
                if topic.startswith(application) and topic.endswith("-repartition")
            )
            end = world.stored(internal)[-1].end_offset
            return world.other.committed(application, internal) == {0: end}

        for life in range(2):
            old_updates = len(updates)
            now_ms = began_ms + life
            world.other.send(words, [Message(w.encode(), timestamp_ms=now_ms) for w in WORDS])
            sent += WORDS
            with JavaProgram(programs, tmp_path, f"life{life}", str(COUNT_WORDS), *arguments) as it:
                wait_until(
                    has_counted_all, "Streams has counted and committed all", state=updates.copy
                )
                it.kill()
            shutil.rmtree(tmp_path / "state")
            assert {sender for _, _, sender in updates[old_updates:]} == {life}, updates
