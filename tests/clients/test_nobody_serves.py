"""A moment in which no broker serves, and what librdkafka makes of it.

All brokers come back at once, or the last one leaves: for a moment every member is fenced, and one
that listens is asked for Metadata. An answer that names topics and no broker makes librdkafka (2.10
and later; seen with 2.16) take down every broker it knows, those of `bootstrap.servers` included.
Mostly it notices that all are down and begins anew. Where it does not (those that it had no reason
to connect to go silently, and may be the last to go) it asks nobody any more, ever: a producer's
messages time out, a synchronous commit never returns, however healthy the cluster is by then. So
where nobody serves, all members are named.

Which way it takes is a race of its threads: hence many clients, and many brokers they do not need.

Source: librdkafka's issue 5301, `rd_kafka_metadata_decommission_unavailable_brokers`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from coordinator.rendezvous import group_broker
from diskless.apis.cluster import ClusterApis
from diskless.broker import Broker
from records.rpc.brokers import BrokerHeartbeatRequest
from tests.diskless.broker_world import running_broker
from tests.diskless.cluster_world import WALL_MS, ClusterWorld
from tests.waiting import DEADLINE_S, wait_until_async

CLIENTS: Final = 6
OURS: Final = 100
OTHERS: Final = tuple(range(1, 31))  # nothing listens there, and clients have no reason to go there
NOWHERE: Final = ("127.0.0.1", 1)
RACK: Final = "here"
GROUPS: Final = [
    name for name in map(str, range(1_000)) if group_broker(name, (*OTHERS, OURS)) == OURS
][:CLIENTS]
WITHIN_S: Final = 25.0  # a client that does not come back is watched for so long


class FencedCluster:
    """One broker that has all there is to do, many others; all are fenced for a moment."""

    def __init__(
        self,
        world: ClusterWorld,
        broker: Broker,
        members: tuple[int, ...],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self._bootstrap = f"127.0.0.1:{broker.listeners['PLAIN'].port}"
        self._world = world
        self._members = members
        self._serves = asyncio.Event()
        self._serves.set()
        self._told: set[str] = set()  # clients, of brokers, while nobody serves
        self._told_of_topics: set[str] = set()
        ask_controller, metadata = world.cluster(OURS).ask_controller, ClusterApis.metadata

        async def asked_controller(request: Any, response: Any, client: Any = None) -> Any:
            if isinstance(request, BrokerHeartbeatRequest):
                await self._serves.wait()
            return await ask_controller(request, response, client)

        async def asked_metadata(apis: ClusterApis, request: Any, asker: Any, listener: str) -> Any:
            answer = await metadata(apis, request, asker, listener)
            if not self._serves.is_set():
                self._told.add(asker.client_id)
                if answer.topics:
                    self._told_of_topics.add(asker.client_id)
            return answer

        monkeypatch.setattr(world.cluster(OURS), "ask_controller", asked_controller)
        monkeypatch.setattr(ClusterApis, "metadata", asked_metadata)

    def settings(self, number: int, **more: Any) -> dict[str, Any]:
        """Of an eager client."""
        return {
            "bootstrap.servers": self._bootstrap,
            "client.id": f"{number},diskless_az={RACK}",
            "topic.metadata.refresh.interval.ms": 50,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 100,
            "retry.backoff.ms": 10,
            "log_level": 0,
        } | {name.replace("_", "."): value for name, value in more.items()}

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Nobody serves meanwhile."""
        self._serves.clear()
        for member in self._members:
            await self._world.fence(member)
        yield
        for member in self._members:
            await self._world.unfence(member)
        self._serves.set()

    async def pause(self) -> None:
        """Nobody serves until all clients have asked where their topic is, and were told."""
        async with self.paused():
            await wait_until_async(
                lambda: len(self._told_of_topics) >= CLIENTS, "all clients ask for their topic"
            )

    async def all_have_asked(self) -> None:
        """Until all clients have asked who is there, while nobody serves, and were told."""
        await wait_until_async(lambda: len(self._told) >= CLIENTS, "all clients ask who is there")


@asynccontextmanager
async def fenced_cluster(
    monkeypatch: pytest.MonkeyPatch, others: tuple[int, ...] = OTHERS
) -> AsyncIterator[FencedCluster]:
    values: dict[str, Any] = {"broker_rack": RACK, "group_initial_rebalance_delay_ms": 0}
    async with ClusterWorld(brokers=()) as world, running_broker(world, OURS, **values) as broker:
        for other in others:
            await world.register(other, listeners={"PLAIN": NOWHERE})
            await world.unfence(other)
        await world.create("t")
        yield FencedCluster(world, broker, (*others, OURS), monkeypatch)
        for other in others:
            await world.fence(other)  # or ours would wait for them when it leaves


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(2 * DEADLINE_S):
            await story()

    asyncio.run(bounded())


async def aside(works: Iterable[Callable[[], Any]]) -> list[Any]:
    """What blocks, in threads, which are left behind if they do not come back in time."""
    loop = asyncio.get_running_loop()

    def work_on(work: Callable[[], Any], done: asyncio.Future[Any]) -> None:
        value = work()
        loop.call_soon_threadsafe(lambda: None if done.done() else done.set_result(value))

    futures: list[asyncio.Future[Any]] = []
    for work in works:
        futures.append(loop.create_future())
        threading.Thread(target=work_on, args=(work, futures[-1]), daemon=True).start()
    async with asyncio.timeout(WITHIN_S):
        return await asyncio.gather(*futures)


def test_producers_produce_again_after_all_brokers_were_fenced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        async with fenced_cluster(monkeypatch) as cluster:
            within = {"message_timeout_ms": int(WITHIN_S * 1000) - 2_000}
            producers = [Producer(cluster.settings(at, **within)) for at in range(CLIENTS)]

            def send(producer: Producer) -> str:
                errors: list[Any] = []
                producer.produce(
                    "t", b"x", timestamp=WALL_MS, on_delivery=lambda error, _: errors.append(error)
                )
                producer.flush()
                return "taken" if errors == [None] else errors[0].name()

            for told in (False, True):
                if told:
                    await cluster.pause()
                outcomes = await aside([lambda one=one: send(one) for one in producers])  # type: ignore[misc]
                assert outcomes == ["taken"] * CLIENTS

    run(story)


def test_group_members_commit_offsets_again_after_all_brokers_were_fenced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        async with fenced_cluster(monkeypatch) as cluster:
            consumers = [
                Consumer(cluster.settings(at, group_id=group, enable_auto_commit=False))
                for at, group in enumerate(GROUPS)
            ]

            def join(consumer: Consumer) -> None:
                consumer.subscribe(["t"])
                while not consumer.assignment():
                    consumer.poll(0.05)

            def commit(consumer: Consumer) -> int:
                (place,) = consumer.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
                return place.offset

            await aside([lambda one=one: join(one) for one in consumers])  # type: ignore[misc]
            await cluster.pause()
            assert await aside([lambda one=one: commit(one) for one in consumers]) == [1] * CLIENTS  # type: ignore[misc]
            await aside([one.close for one in consumers])

    run(story)


def test_admin_clients_find_the_controller_while_every_broker_is_fenced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that is told of brokers, and of no controller, waits for minutes until it asks again."""

    async def story() -> None:
        async with fenced_cluster(monkeypatch, others=()) as cluster:

            def create(at: int) -> None:
                admin = AdminClient(
                    cluster.settings(at, topic_metadata_refresh_interval_ms=300_000)
                )
                (made,) = admin.create_topics([NewTopic(f"made-{at}", 1, 1)]).values()
                made.result(WITHIN_S)

            works = [lambda at=at: create(at) for at in range(CLIENTS)]
            async with cluster.paused():
                creating = asyncio.ensure_future(aside(works))
                await cluster.all_have_asked()
            await creating

    run(story)
