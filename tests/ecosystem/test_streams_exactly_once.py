"""Kafka Streams with `exactly_once_v2`: each count is written once, whatever is killed.

The output of a word's count is 1, 2, 3 and so on. A word that is counted twice, an update that is
written twice or lost, and one of an aborted transaction all show as another sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.clients.client import EARLIEST, Message
from tests.clients.cluster import EskerCluster
from tests.clients.world import World
from tests.ecosystem.java_program import JavaProgram
from tests.ecosystem.test_streams import COUNT_WORDS
from tests.interop.kafka_run import Kafka
from tests.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.soak]

SETTINGS: Final = {
    "broker.session.timeout.ms": "3000",  # how long a killed broker is waited for
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
WORDS: Final = ("ebb", "flow", "tide", "surge")
TOTAL: Final = 2_000
LIVES: Final = 4


@pytest.fixture(params=[1, 2], ids=["TV1", "TV2"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EskerCluster]:
    """Three quorum nodes and two brokers with this level of transaction.version."""
    with EskerCluster(tmp_path / "nodes", settings=SETTINGS) as running:
        running.start()
        running.finalize_transactions(request.param)
        yield running


def test_kafka_streams_counts_each_word_exactly_once_while_it_and_nodes_are_killed(
    programs: Kafka, cluster: EskerCluster, tmp_path: Path
) -> None:
    world, seed = World(cluster.brokers), Random().getrandbits(32)
    print(f"seed {seed}")
    random = Random(seed)
    words, counts, application = world.topic(), world.topic(), world.name("count")
    state, guarantee = str(tmp_path / "state"), "exactly_once_v2"
    arguments = (cluster.bootstrap, application, words, counts, state, guarantee)
    sent = [random.choice(WORDS) for _ in range(TOTAL)]
    updates: list[tuple[str, int]] = []
    with world.other.follow(counts, 0, EARLIEST, committed_only=True) as reader:

        def has_read(count: int) -> bool:
            for message in reader.poll(0.2):
                assert message.key is not None
                assert message.value is not None
                updates.append((message.key.decode(), int(message.value)))
            return len(updates) >= count

        for life in range(LIVES):
            part = sent[life * TOTAL // LIVES : (life + 1) * TOTAL // LIVES]
            half = len(updates) + len(part) // 2
            with JavaProgram(programs, tmp_path, f"life{life}", str(COUNT_WORDS), *arguments) as it:
                world.other.send(words, [Message(word.encode()) for word in part])
                victim = random.choice(cluster.broker_ids if life % 2 else cluster.quorum_ids)
                wait_until(partial(has_read, half), f"life {life} counts", deadline_s=120)
                cluster.kill(victim)
                cluster.launch(victim)
                if life == LIVES - 1:
                    wait_until(lambda: has_read(TOTAL), "all words are counted", deadline_s=120)
                it.kill()
            cluster.wait_until_ready()
        has_read(TOTAL + 1)  # what would be too much
    for word in WORDS:
        found = [count for name, count in updates if name == word]
        assert found == list(range(1, sent.count(word) + 1)), word
