"""A broker with real sockets holds its clients to their quotas, and only those that have some."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from coordinator.controller.guarding import replace
from coordinator.controller.image import MetadataImage
from coordinator.controller.quotas import CONNECTION_CREATION_RATE
from coordinator.persistent_map import Map
from diskless.broker import Broker
from diskless.quotas.connections import ConnectionQuotas
from diskless.quotas.rates import Windows
from diskless.quotas.throttling import throttle_time_of, with_throttle_time
from raft.net import API_VERSIONS_KEY, Reason, parse_request_header
from raft.net.handlers import payload
from raft.net.header import RequestKind, request_header
from raft.net.routes import first_flexible
from records.codec import decode_message, encode_message
from records.metadata import ClientQuotaRecord
from records.rpc import API
from records.rpc.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from records.rpc.fetch import FetchResponse
from records.rpc.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from records.rpc.produce import ProduceRequest, ProduceResponse
from records.rpc.security import AlterClientQuotasResponse, SaslHandshakeResponse
from records.schema import zero
from tests.coordinator.controller.test_quotas import by_entity
from tests.diskless.broker_world import running_broker
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.records_world import batch, fetching
from tests.interop.quota_table import APP, Entity, alter
from tests.raft.driver.client import Client
from tests.waiting import DEADLINE_S, wait_until_async

VERSIONS = ApiVersionsRequest(client_software_name="t", client_software_version="1")


def run(tell: Callable[[ClusterWorld, Broker], Awaitable[None]], **values: Any) -> None:
    async def story() -> None:
        async with ClusterWorld(brokers=()) as world, running_broker(world, **values) as broker:
            await world.create("t")
            await tell(world, broker)

    asyncio.run(story())


async def set_quota(world: ClusterWorld, entity: Entity, **quotas: float | None) -> None:
    answer = await world.ask(alter((entity, tuple(quotas.items()))), AlterClientQuotasResponse)
    assert not answer.entries[0].error_code, answer


def produce(size: int, acks: int = -1) -> ProduceRequest:
    sent = ProduceRequest.TopicProduceData
    data = sent.PartitionProduceData(index=0, records=batch(1, now_ms=1, size=size))
    topic = sent(name="t", partition_data=(data,))
    return ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=(topic,))


class Connection:
    """A connection whose requests are sent before the answers to earlier ones are read."""

    def __init__(self, broker: Broker, client_id: str) -> None:
        port = broker.listeners["PLAIN"].port
        self.client = Client("127.0.0.1", port, timeout_s=DEADLINE_S, client_id=client_id)

    async def ask(self, request: Any, response: Any, version: int) -> Any:
        return await asyncio.to_thread(self.client.ask, request, response, version)

    async def produce(self, size: int) -> int:
        answer = await self.ask(produce(size), ProduceResponse, 12)
        assert not answer.responses[0].partition_responses[0].error_code, answer
        return int(answer.throttle_time_ms)

    async def versions_s(self) -> float:
        began = time.monotonic()
        await self.ask(VERSIONS, ApiVersionsResponse, 4)
        return time.monotonic() - began


def test_only_the_throttled_connection_is_muted() -> None:
    async def tell(world: ClusterWorld, broker: Broker) -> None:
        await set_quota(world, APP, producer_byte_rate=1_000.0)
        app, other, same = (Connection(broker, name) for name in ("app", "other", "app"))
        assert await app.produce(10_500) > 500
        muting = broker.services.throttling.muting
        assert len(muting) == 1
        assert await other.produce(100_000) == 0
        assert await same.versions_s() < 0.5, "muted is the connection, not the client id"
        assert await app.versions_s() > 0.3
        assert len(muting) == 0
        assert broker.services.throttling.throttled == {"Produce": 1}
        assert broker.services.throttling.throttle_ms["Produce"] > 500

    run(tell)


def test_a_producer_that_wants_no_answers_is_muted_too() -> None:
    async def tell(world: ClusterWorld, broker: Broker) -> None:
        await set_quota(world, APP, producer_byte_rate=1_000.0)
        app = Connection(broker, "app")
        kind = RequestKind.of(0, 12, 9)
        frame = request_header(kind, 0, "app") + encode_message(produce(10_500, acks=0), 12)
        app.client.socket.sendall(len(frame).to_bytes(4, "big") + frame)
        assert await app.versions_s() > 0.3

    run(tell)


def test_a_connection_muted_for_longer_than_it_may_be_idle_is_closed() -> None:
    async def tell(world: ClusterWorld, broker: Broker) -> None:
        await set_quota(world, APP, producer_byte_rate=1.0)
        app = Connection(broker, "app")
        assert await app.produce(10_000) > 1_000_000
        await wait_until_async(lambda: not broker.listeners["PLAIN"].connections, "closed")
        assert len(broker.services.throttling.muting) == 0

    run(tell, **{"connections.max.idle.ms": 100})


def test_a_client_that_leaves_leaves_no_timer_behind() -> None:
    async def tell(world: ClusterWorld, broker: Broker) -> None:
        await set_quota(world, APP, producer_byte_rate=1.0)
        app = Connection(broker, "app")
        assert await app.produce(10_000) > 1_000_000
        (connection,) = broker.listeners["PLAIN"].connections
        connection.close()
        assert len(broker.services.throttling.muting) == 0

    run(tell)


def test_quotas_begin_and_end_with_their_records_and_cost_nothing_without() -> None:
    async def tell(world: ClusterWorld, broker: Broker) -> None:
        routes = broker.dispatchers["PLAIN"].routes
        app = Connection(broker, "app")
        assert routes.around is None
        await set_quota(world, APP, producer_byte_rate=1_000.0)
        assert routes.around is not None
        assert await app.produce(10_100) > 0
        await set_quota(world, APP, producer_byte_rate=None)
        assert routes.around is None
        assert await app.produce(50_000) == 0

    run(tell)


def test_a_replica_that_begins_anew_keeps_the_quotas_until_it_has_caught_up() -> None:
    async def tell(world: ClusterWorld, broker: Broker) -> None:
        await set_quota(world, APP, producer_byte_rate=1_000.0)
        cluster, throttling = world.cluster(1), broker.services.throttling
        age_ms, cluster.image_age_ms = cluster.image_age_ms, lambda: None  # type: ignore[method-assign]
        throttling._on_image(MetadataImage())
        assert broker.dispatchers["PLAIN"].routes.around is not None
        cluster.image_age_ms = age_ms  # type: ignore[method-assign]
        await set_quota(world, APP, producer_byte_rate=None)
        await wait_until_async(
            lambda: broker.dispatchers["PLAIN"].routes.around is None, "the quotas are gone"
        )
        assert isinstance(cluster.image.security.quotas, Map)

    run(tell)


def test_an_answer_whose_version_has_no_throttle_time_stays_as_it_is() -> None:
    handshake = encode_message(SaslHandshakeResponse(mechanisms=()), 1)
    frame = request_header(RequestKind.of(17, 1, None), 5, "app")
    header = parse_request_header(memoryview(frame), {17: None})
    assert with_throttle_time(header, handshake, 7) is handshake
    frame = request_header(RequestKind.of(0, 2, 9), 5, "app")
    header = parse_request_header(memoryview(frame), {0: 9})
    assert with_throttle_time(header, b"of an old version", 7) == b"of an old version"


@pytest.mark.parametrize("key", sorted(API))
def test_the_throttle_time_of_each_api_is_set_in_each_version(key: int) -> None:
    response: Any = API[key].response
    fields = response.schema().fields
    empty = response(**{field.name: zero(field.type) for field in fields if field.required})
    for version in range(response.schema().versions.first, response.schema().versions.last + 1):
        kind = RequestKind.of(key, version, first_flexible(key))
        header = parse_request_header(
            memoryview(request_header(kind, 5, "app")), {key: first_flexible(key)}
        )
        sent = b"".join(payload(header, empty))
        changed = b"".join(parts_of(with_throttle_time(header, sent, 4_711)))
        assert changed[:4] == sent[:4]
        head = 5 if header.flexible and key != API_VERSIONS_KEY else 4
        decoded = decode_message(response, changed[head:], version)
        if any(field.name == "throttle_time_ms" for field in fields):
            has_field = decode_message(response, sent[head:], version) != decoded
            assert throttle_time_of(header, changed) == (4_711 if has_field else 0)
        else:
            assert changed == sent


def parts_of(answer: Any) -> tuple[Any, ...]:
    return tuple(answer) if isinstance(answer, tuple | list) else (answer,)


# --- request time -------------------------------------------------------------------------------


def test_a_throttled_client_that_sends_ahead_is_not_served_ahead() -> None:
    """Answers at once are served in one turn of the loop, unless one of them mutes."""

    async def tell(world: ClusterWorld, broker: Broker) -> None:
        await set_quota(world, APP, request_percentage=1e-6)
        app = Connection(broker, "app")
        kind = RequestKind.of(18, 4, 3)
        frame = request_header(kind, 5, "app") + encode_message(VERSIONS, 4)
        app.client.socket.sendall((len(frame).to_bytes(4, "big") + frame) * 3)
        began = time.monotonic()
        for late_s in (0.0, 0.8, 1.6):
            await asyncio.to_thread(app.client.receive_frame)
            assert time.monotonic() - began >= late_s
        assert broker.services.throttling.throttled == {"Request": 3}

    run(tell)


def test_answers_that_are_awaited_tell_the_throttle_time_too() -> None:
    async def tell(world: ClusterWorld, broker: Broker) -> None:
        await set_quota(world, APP, request_percentage=1e-6)
        app = Connection(broker, "app")
        metadata = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        answer = await app.ask(metadata, MetadataResponse, 9)
        assert answer.throttle_time_ms == 1_000
        assert [topic.name for topic in answer.topics if not topic.is_internal] == ["t"]
        assert await app.produce(100) == 1_000
        throttling = broker.services.throttling
        (quotas,) = throttling.clients._clients.values()
        assert quotas is not None
        assert quotas.request is not None
        assert quotas.request.rate.per_second(throttling.now_ms()) > 0.001  # percent

    run(tell)


def test_requests_of_groups_tell_the_throttle_time_however_they_are_answered() -> None:
    """TxnOffsetCommit is answered by a coroutine, JoinGroup by a future, Heartbeat at once."""

    async def tell(world: ClusterWorld, broker: Broker) -> None:
        await set_quota(world, APP, request_percentage=1e-6)
        commit = TxnOffsetCommitRequest(
            transactional_id="t", group_id="g", producer_id=1, producer_epoch=0, topics=()
        )
        answer = await Connection(broker, "app").ask(commit, TxnOffsetCommitResponse, 3)
        assert answer.throttle_time_ms == 1_000
        beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        answer = await Connection(broker, "app").ask(beat, HeartbeatResponse, 4)
        assert answer.throttle_time_ms == 1_000
        listed = await Connection(broker, "app").ask(ListGroupsRequest(), ListGroupsResponse, 4)
        assert listed.throttle_time_ms == 1_000

    run(tell)


def test_a_fetch_that_takes_too_much_time_is_throttled_without_records() -> None:
    async def tell(world: ClusterWorld, broker: Broker) -> None:
        app = Connection(broker, "app")
        assert await app.produce(100) == 0
        await set_quota(world, APP, request_percentage=1e-6, consumer_byte_rate=1e6)
        request = fetching("t", [(0, 0)])
        answer = await app.ask(request, FetchResponse, 12)
        assert (answer.throttle_time_ms, answer.responses) == (1_000, ())
        await set_quota(world, APP, request_percentage=None)
        answer = await app.ask(request, FetchResponse, 12)
        assert (answer.throttle_time_ms, len(answer.responses)) == (0, 1)

    run(tell)


def test_a_fetch_asks_for_no_more_than_its_quota_ever_allows() -> None:
    async def tell(world: ClusterWorld, broker: Broker) -> None:
        app = Connection(broker, "app")
        for _ in range(4):
            await app.produce(1_000)
        await set_quota(world, APP, consumer_byte_rate=200.0)  # 2,000 bytes in ten seconds
        request = replace(fetching("t", [(0, 0)]), min_bytes=100_000, max_wait_ms=30_000)
        answer = await app.ask(request, FetchResponse, 12)
        assert answer.throttle_time_ms == 0, "and it does not wait for bytes it cannot get"
        assert 1_000 < len(answer.responses[0].partitions[0].records or b"") < 2_000

    run(tell)


# --- connections --------------------------------------------------------------------------------


def test_an_address_that_connects_too_often_is_held_and_closed() -> None:
    async def tell(world: ClusterWorld, broker: Broker) -> None:
        for entity in ((("ip", None),), (("ip", "::ffff:127.0.0.1"),)):
            await set_quota(world, entity, connection_creation_rate=1.0)
            served = held_s = 0.0
            while not held_s:
                late = Connection(broker, "app")
                began = time.monotonic()
                try:
                    await late.versions_s()
                    served += 1
                except ConnectionError:
                    held_s = time.monotonic() - began
                late.client.close()
            assert 10 <= served <= 12
            assert 0.05 < held_s < 2
            assert broker.listeners["PLAIN"].ended[Reason.THROTTLED] == 1
            await set_quota(world, entity, connection_creation_rate=None)
            assert broker.services.throttling.connections.hold_ms("127.0.0.1:1") == 0
            broker.listeners["PLAIN"].ended.clear()
        assert broker.services.throttling.connections.held == 2
        assert broker.dispatchers["PLAIN"].routes.around is None, "requests pay nothing for it"

    run(tell)


def test_an_addresss_own_quota_goes_before_the_default_in_any_notation() -> None:
    now_ms = 0
    quotas = ConnectionQuotas(Windows(2, 1_000), lambda: now_ms, max_addresses=5)
    quotas.take(
        by_entity(
            record_of((("ip", None),), 1.0),
            record_of((("ip", "0:0:0:0:0:0:0:1"),), 100.0),
            record_of((("ip", "10.0.0.7"),), 3.0),
        )
    )
    for _ in range(50):
        assert quotas.hold_ms("::1:4711") == 0
    assert [quotas.hold_ms("::ffff:10.0.0.7:1") for _ in range(4)] == [0, 0, 0, 333]
    assert [quotas.hold_ms("10.0.0.8:1") for _ in range(2)] == [0, 1_000]
    now_ms = 3_000
    assert quotas.hold_ms("10.0.0.8:1") == 0, "a refused connection does not count"
    for number in range(100):
        quotas.hold_ms(f"10.0.1.{number}:1")
        assert len(quotas) <= 5
    quotas.take({})
    assert quotas.hold_ms("10.0.0.8:1") == 0
    assert len(quotas) == 0


def record_of(entity: Entity, value: float) -> ClientQuotaRecord:
    part = ClientQuotaRecord.EntityData
    return ClientQuotaRecord(
        entity=tuple(part(entity_type=kind, entity_name=name) for kind, name in entity),
        key=CONNECTION_CREATION_RATE,
        value=value,
        remove=False,
    )
