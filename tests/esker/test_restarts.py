"""A cluster that comes back knows nothing for a while, and then it says nothing that is not so.

Real processes, killed and begun again in different orders, while raw clients ask both brokers for
what was there before.

Source: docs/design/broker.md#staleness-is-bounded; invariants 9 and 11 (docs/design/invariants.md).
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final

import pytest

from records.rpc.cluster import MetadataRequest, MetadataResponse
from tests.clients.cluster import EskerCluster
from tests.clients.confluent import Confluent
from tests.clients.wire import produce
from tests.esker.denials import ANYWHERE, Asking, Known, commit
from tests.raft.driver.client import Client as Wire
from tests.waiting import wait_until

BROKERS: Final = (101, 102)
QUORUM: Final = (1, 2, 3)
TOPICS: Final = 60
TOPIC: Final = "kept"
END_OFFSET, COMMITTED = 10, 7
ALONE_S: Final = 1.5  # brokers without a quorum, nodes without the others

Story = Callable[[EskerCluster], None]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EskerCluster]:
    with EskerCluster(tmp_path_factory.mktemp("restarts")) as running:
        running.start()
        yield running


@pytest.fixture(scope="module")
def known(cluster: EskerCluster) -> Known:
    """A topic that was deleted and made anew, among others, with records and a group's offset."""
    with Confluent(cluster.bootstrap) as client:
        for number in range(TOPICS):
            client.create_topic(f"other-{number}", 2, {})
        client.create_topic(TOPIC, 1, {})
        client.delete_topic(TOPIC)
        client.create_topic(TOPIC, 1, {})
    address = cluster.brokers[0]
    values = [b"%d" % number for number in range(END_OFFSET)]
    assert produce(address, TOPIC, values) == (0, 0)
    with Wire(*address) as wire:
        found = wire.ask(MetadataRequest(topics=None), MetadataResponse, 12)
    (topic_id,) = (topic.topic_id for topic in found.topics if topic.name == TOPIC)
    known = Known(TOPIC, topic_id, END_OFFSET, TOPICS + 1, "group", COMMITTED)

    def committed() -> bool:
        for place in cluster.brokers:
            with Wire(*place) as wire:
                if commit(wire, known) == 0:
                    return True
        return False

    wait_until(committed, "an offset is committed")
    return known


def brokers_come_first(cluster: EskerCluster) -> None:
    """All are killed; brokers begin, and then the quorum, one node after the other."""
    cluster.kill()
    cluster.launch(*BROKERS)
    for node in QUORUM:
        time.sleep(ALONE_S)
        cluster.launch(node)


def the_quorum_comes_first(cluster: EskerCluster) -> None:
    """All end in order; brokers begin when the quorum has one node."""
    cluster.stop(*BROKERS)
    cluster.stop(*QUORUM)
    cluster.launch(QUORUM[2])
    time.sleep(ALONE_S)
    cluster.launch(*BROKERS, QUORUM[0])
    time.sleep(ALONE_S)
    cluster.launch(QUORUM[1])


def brokers_begin_under_a_quorum_that_stands_still(cluster: EskerCluster) -> None:
    """One of them with an empty directory."""
    cluster.kill(*BROKERS)
    for node in QUORUM:
        cluster.signal(node, signal.SIGSTOP)
    cluster.wipe(BROKERS[1])
    cluster.launch(*BROKERS)
    time.sleep(2 * ALONE_S)
    for node in QUORUM:
        cluster.signal(node, signal.SIGCONT)


def the_quorum_is_killed_under_brokers(cluster: EskerCluster) -> None:
    cluster.kill(*QUORUM)
    for node in reversed(QUORUM):
        time.sleep(ALONE_S)
        cluster.launch(node)


@pytest.mark.parametrize(
    "happens",
    [
        brokers_come_first,
        pytest.param(the_quorum_comes_first, marks=pytest.mark.soak),
        pytest.param(brokers_begin_under_a_quorum_that_stands_still, marks=pytest.mark.soak),
        pytest.param(the_quorum_is_killed_under_brokers, marks=pytest.mark.soak),
    ],
)
def test_clients_never_get_unknown_topic_for_an_existing_topic_while_all_nodes_restart(
    cluster: EskerCluster, known: Known, happens: Story
) -> None:
    with ExitStack() as stack:
        asking = [stack.enter_context(Asking(place, known)) for place in cluster.brokers]
        happens(cluster)
        cluster.wait_until_ready()
        before = [one.told.copy() for one in asking]
        wait_until(
            lambda: all(
                len(one.told - past) >= ANYWHERE for one, past in zip(asking, before, strict=True)
            ),
            "both brokers tell all there is, again",
        )
        wait_until(lambda: all(map(cluster.listens, QUORUM)), "all nodes are back")
    for one in asking:
        assert not one.denied, f"denied though it is there: {dict(one.denied)}"
