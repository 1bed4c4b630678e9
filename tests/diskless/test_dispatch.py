"""Announcing, routing and refusing requests at a client listener. KIP-35, KIP-511, KIP-584.

What is not there yet is refused at once, and never announced.

Source: docs/design/broker.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from struct import pack
from typing import Any

import pytest
from msgspec import structs

from diskless.dispatch import MAX_CLIENT_KINDS, OTHERS, Dispatcher
from diskless.produce.in_flight import InFlight
from diskless.produce.service import ProduceService
from raft.net import BadHeaderError, RequestKind, request_header
from raft.net.handlers import Served
from raft.net.routes import MAX_QUESTION_BYTES, first_flexible
from records.codec import decode_message, encode_message
from records.rpc import API
from records.rpc.base import Request
from records.rpc.cluster import ApiVersionsRequest, ApiVersionsResponse
from records.rpc.produce import ProduceRequest, ProduceResponse
from tests.diskless.broker_world import ask_at, running_broker
from tests.diskless.calling import Caller
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.produce_world import never_early
from tests.diskless.virtual_time import run
from tests.versions.shapes import at_version, bare

NOT_SERVED = {
    4: "LeaderAndIsr",
    34: "AlterReplicaLogDirs",
    68: "ConsumerGroupHeartbeat",
    69: "ConsumerGroupDescribe",
    76: "ShareGroupHeartbeat",
    78: "ShareFetch",
}
"""What a Kafka broker of today may announce, and this one does not."""

CLIENTS = {
    "librdkafka 2.16": {18: 3, 3: 13, 22: 4, 0: 10, 10: 2, 11: 5, 14: 3, 12: 3, 9: 9, 2: 7, 1: 16},
    "librdkafka 2.0": {18: 3, 3: 4, 0: 7, 10: 2, 11: 5, 14: 3, 12: 3, 9: 7, 2: 2, 1: 11, 13: 1},
    "aiokafka 0.14": {18: 0, 3: 5, 22: 0, 0: 7, 10: 1, 11: 5, 14: 3, 12: 1, 9: 3, 2: 3, 1: 11},
    "kafka-python 3.0": {18: 4, 3: 13, 22: 4, 0: 9, 10: 6, 11: 7, 14: 5, 12: 4, 9: 8, 2: 11, 1: 12},
    "kafkajs 2.2": {18: 2, 3: 6, 22: 1, 0: 7, 10: 2, 11: 5, 14: 3, 9: 4, 2: 3, 1: 11},
    "platformatic 2.12": {18: 3, 3: 12, 22: 5, 0: 11, 10: 6, 11: 9, 14: 5, 12: 4, 2: 9},
}
"""The versions that clients were seen to choose: api key -> version."""


def frame_of(request: Request, version: int, client_id: str | None = "me") -> bytes:
    key = request.schema().key
    assert key is not None
    kind = RequestKind.of(key, version, first_flexible(key))
    return request_header(kind, 7, client_id) + encode_message(request, version)


class Front:
    """A dispatcher that serves Produce and ApiVersions only."""

    def __init__(self, world: ClusterWorld, **more: Any) -> None:
        cluster = world.cluster(1)
        service = ProduceService(
            cluster,
            writer=lambda _: None,
            now_ms=world.wall_ms,
            in_flight=InFlight(1 << 30),
            closing=never_early(),
        )
        self.produced = service.counters
        handlers = {0: Served(0, 13, service.serve)}
        self.dispatcher = Dispatcher(
            handlers, cluster=cluster, listener_name="PLAIN", large=(0,), **more
        )
        self.caller = Caller()

    async def send(self, frame: bytes) -> bytes:
        answer = await self.caller.answer(self.dispatcher.handle(self.caller, frame))  # type: ignore[arg-type]
        assert answer is not None
        return answer

    async def versions(
        self, version: int, software: tuple[str, str] = ("app", "1.0")
    ) -> ApiVersionsResponse:
        request = ApiVersionsRequest()
        if version >= 3:
            request = ApiVersionsRequest(
                client_software_name=software[0], client_software_version=software[1]
            )
        return decode_message(
            ApiVersionsResponse, (await self.send(frame_of(request, version)))[4:], version
        )


def with_front(story: Callable[[Front], Any], **more: Any) -> None:
    async def main() -> None:
        async with ClusterWorld() as world:
            await story(Front(world, **more))

    run(main)


# --- ApiVersions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(5))
def test_api_versions_announces_exactly_the_served_requests(version: int) -> None:
    async def story(front: Front) -> None:
        answer = await front.versions(version)
        assert answer.error_code == 0
        announced = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
        assert announced == {0: (0, 13), 18: (0, 4)}
        assert announced == {key: s[:2] for key, s in front.dispatcher.served.items()}

    with_front(story)


@pytest.mark.parametrize("version", [5, 9, 32_767])
def test_a_broker_answers_an_api_versions_request_of_an_unknown_version_in_version_0(
    version: int,
) -> None:
    """KIP-511: the answer is error 35 in version 0, and the client retries with one of those."""

    async def story(front: Front) -> None:
        future = bytes.fromhex("0012") + pack(">hi", version, 7) + b"\x00\x02me" + b"\x00who knows"
        answer = await front.send(future)
        told = decode_message(ApiVersionsResponse, answer[4:], 0)
        assert (answer[:4], told.error_code) == (b"\0\0\0\x07", 35)
        assert (18, 0, 4) in [
            (one.api_key, one.min_version, one.max_version) for one in told.api_keys
        ]

    with_front(story)


def test_api_versions_announces_kraft_version_only_from_request_version_4_on() -> None:
    async def story(front: Front) -> None:
        for version, names in ((2, []), (3, ["metadata.version"]), (4, ["kraft.version"])):
            answer = await front.versions(version)
            assert set(names) <= {one.name for one in answer.supported_features}
        assert {one.name for one in (await front.versions(3)).supported_features} == {
            "metadata.version"
        }
        finalized = (await front.versions(4)).finalized_features
        assert [(one.name, one.max_version_level) for one in finalized] == [
            ("esker.version", 1),  # implied: the log names no level
            ("metadata.version", 27),
        ]
        assert (await front.versions(4)).finalized_features_epoch >= 0
        assert (await front.versions(2)).finalized_features_epoch == -1

    with_front(story, features={"metadata.version": (15, 27), "kraft.version": (0, 0)})


def test_a_broker_counts_requests_by_client_software_and_logs_each_software_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "diskless.dispatch")

    async def story(front: Front) -> None:
        for _ in range(3):
            await front.versions(3, ("librdkafka", "2.16.0"))
        await front.versions(0)
        assert front.dispatcher.clients == {("librdkafka", "2.16.0"): 3}
        assert [record.getMessage() for record in caplog.records] == [
            "listener=PLAIN peer=10.0.0.7:4711 client_id='me' software=librdkafka version=2.16.0"
        ]
        for number in range(MAX_CLIENT_KINDS + 20):
            await front.versions(3, ("app", str(number)))
        assert len(front.dispatcher.clients) == MAX_CLIENT_KINDS + 1
        assert front.dispatcher.clients[OTHERS] == 21
        assert len(caplog.records) == MAX_CLIENT_KINDS + 1

    with_front(story)


@pytest.mark.parametrize(
    "software", [("", "1"), ("a", ""), ("-a", "1"), ("a b", "1"), ("a", "1\n2"), ("x" * 300, "1")]
)
def test_a_broker_refuses_an_api_versions_request_with_a_malformed_client_software_name(
    software: tuple[str, str],
) -> None:
    """KIP-511: INVALID_REQUEST; such a name would end up in log lines and metrics."""

    async def story(front: Front) -> None:
        answer = await front.versions(3, software)
        assert (answer.error_code, answer.api_keys) == (42, ())
        assert not front.dispatcher.clients

    with_front(story)


# --- Produce before record batches ----------------------------------------------------------------


def old_produce(version: int, acks: int = 1, topics: int = 2) -> bytes:
    """Two topics; the first has partitions 5 and 6."""
    header = pack(">hhi", 0, version, 7) + b"\x00\x02me"
    partition = pack(">ii", 5, 3) + b"abc" + pack(">ii", 6, 0)
    first = b"\x00\x01t" + pack(">i", 2) + partition
    return header + pack(">hii", acks, 1_000, topics) + first + b"\x00\x01u" + pack(">i", 0)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_broker_refuses_a_produce_request_before_version_3_in_that_versions_format(
    version: int,
) -> None:
    """Announced only so that librdkafka compresses. KAFKA-18659."""

    async def story(front: Front) -> None:
        answer = await front.send(old_produce(version))
        time = pack(">q", -1) if version == 2 else b""
        partitions = b"".join(pack(">ihq", index, 35, -1) + time for index in (5, 6))
        throttled = pack(">i", 0) if version else b""
        assert answer == (
            pack(">i", 7)
            + pack(">i", 2)
            + (b"\x00\x01t" + pack(">i", 2) + partitions)
            + (b"\x00\x01u" + pack(">i", 0))
            + throttled
        )
        assert front.produced.requests == 0

    with_front(story)


def test_the_refusal_of_a_version_2_produce_request_has_the_bytes_of_a_version_3_response() -> None:
    """Responses without errors by record are the same bytes in versions 2 and 3."""

    async def story(front: Front) -> None:
        answer = await front.send(old_produce(2))
        topic = ProduceResponse.TopicProduceResponse
        partition = topic.PartitionProduceResponse
        expected = ProduceResponse(
            responses=(
                topic(
                    name="t",
                    partition_responses=tuple(
                        partition(index=index, error_code=35, base_offset=-1) for index in (5, 6)
                    ),
                ),
                topic(name="u", partition_responses=()),
            )
        )
        assert answer[4:] == encode_message(expected, 3)

    with_front(story)


def broken_produces() -> Iterator[bytes]:
    whole = old_produce(1)
    yield from (whole[:end] for end in range(12, len(whole)))
    yield old_produce(1, topics=2**31 - 1)
    yield old_produce(1, topics=-1)
    yield old_produce(1, acks=0)


@pytest.mark.parametrize("frame", list(broken_produces()))
def test_a_produce_request_of_a_version_without_a_response_format_closes_its_connection(
    frame: bytes,
) -> None:
    """Malformed requests, wrong counts, and acks=0, which has no response."""

    async def story(front: Front) -> None:
        with pytest.raises(BadHeaderError):
            await front.send(frame)

    with_front(story)


@pytest.mark.parametrize("version", [3, 9, 13])
def test_a_broker_serves_a_produce_request_from_version_3_on(version: int) -> None:
    async def story(front: Front) -> None:
        request = ProduceRequest(acks=1, timeout_ms=1, topic_data=())
        await front.send(frame_of(request, version))
        assert front.produced.requests == 1
        assert front.dispatcher.requests == {0: 1}

    with_front(story)


# --- what is turned away --------------------------------------------------------------------------


@pytest.mark.parametrize("key", [5, 33, 71, 999, -1, 32_767])
def test_a_broker_closes_a_connection_with_an_unknown_api_key_and_logs_it(
    key: int,
) -> None:
    async def story(front: Front) -> None:
        frame = pack(">hhi", key, 1, 7) + b"\x00\x03its" + b"\x00\x00"
        with pytest.raises(BadHeaderError) as refused:
            await front.send(frame)
        assert f"api key {key}, version 1" in str(refused.value)
        assert "'its'" in str(refused.value)

    with_front(story)


@pytest.mark.parametrize(("version"), [14, 32_767])
def test_a_broker_closes_a_connection_with_an_unknown_api_version_and_logs_it(
    version: int,
) -> None:
    async def story(front: Front) -> None:
        frame = pack(">hhi", 0, version, 7) + b"\x00\x03its" + b"\x00\x00"
        with pytest.raises(BadHeaderError, match=rf"key 0 has no version {version} .*'its'"):
            await front.send(frame)

    with_front(story)


def test_a_brokers_log_line_about_a_client_has_a_bounded_length() -> None:
    async def story(front: Front) -> None:
        name = "n" * 30_000
        for frame in (
            pack(">hhih", 71, 0, 7, 30_000) + name.encode(),
            pack(">hhih", 0, 99, 7, 30_000) + name.encode() + b"\x00",
        ):
            with pytest.raises(BadHeaderError) as refused:
                await front.send(frame)
            assert len(str(refused.value)) < 300

    with_front(story)


def test_a_broker_refuses_a_request_of_more_than_a_megabyte_before_decoding() -> None:
    """Decoded, an array of structures takes thirty times its bytes. Produce bounds itself."""

    async def story(front: Front) -> None:
        name = ("a" * 200, "1")
        request = ApiVersionsRequest(client_software_name=name[0], client_software_version=name[1])
        small = frame_of(request, 3)
        await front.send(small)
        with pytest.raises(BadHeaderError, match="the limit is 1048576"):
            await front.send(small + bytes(MAX_QUESTION_BYTES))

    with_front(story)


def test_a_produce_request_of_many_megabytes_reaches_its_handler() -> None:
    async def story(front: Front) -> None:
        frame = frame_of(ProduceRequest(acks=1, timeout_ms=1, topic_data=()), 9)
        await front.send(frame + bytes(2 * MAX_QUESTION_BYTES))
        assert front.produced.bytes_in > 2 * MAX_QUESTION_BYTES

    with_front(story)


# --- the whole broker -----------------------------------------------------------------------------


def announced() -> dict[int, tuple[int, int]]:
    async def main() -> dict[int, tuple[int, int]]:
        async with ClusterWorld(brokers=()) as world, running_broker(world) as broker:
            port = broker.listeners["PLAIN"].port
            answer = await ask_at(port, ApiVersionsRequest(), ApiVersionsResponse, 0)
            return {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}

    return asyncio.run(main())


def test_the_broker_announces_every_version_that_tested_clients_choose_on_kafka() -> None:
    versions = announced()
    for client, chosen in CLIENTS.items():
        for key, version in chosen.items():
            assert key in versions, f"{client} needs {API[key].request.__name__}"
            lowest, highest = versions[key]
            assert lowest <= version <= highest, f"{client}: {key} v{version} of {versions[key]}"


def test_api_versions_does_not_announce_unsupported_requests() -> None:
    """ApiVersions lists none of the unsupported keys."""
    assert not set(announced()) & set(NOT_SERVED)


def test_a_broker_answers_every_request_of_a_client_that_asks_for_no_api_versions() -> None:
    """As some clients send requests: a new connection, and no ApiVersions first."""
    timeouts = ("timeout_ms", "rebalance_timeout_ms", "session_timeout_ms", "max_wait_ms")

    async def story() -> None:
        async with ClusterWorld(brokers=()) as world, running_broker(world) as broker:
            port = broker.listeners["PLAIN"].port
            served = broker.services.handlers("PLAIN")
            assert {33, 35, 43, 45, 46, 47, 61, 66, 71, 74} <= served.keys()
            for key, handler in served.items():
                request = bare(API[key].request)
                # Produce 0 to 2 are refused by their number, and have no message here.
                lowest = max(handler.lowest, API[key].request.schema().versions.first)
                short = {name: 1 for name in timeouts if hasattr(request, name)}
                for version in {lowest, handler.highest}:
                    asked = at_version(structs.replace(request, **short), version)
                    if isinstance(asked, ProduceRequest):
                        asked = structs.replace(asked, acks=1)  # 0 is not answered
                    assert await ask_at(port, asked, API[key].response, version), f"{asked}"

    asyncio.run(story())
