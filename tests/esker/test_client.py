"""Our own Kafka client, where brokers fail it: what is written twice, missed, or given up.

A scripted cluster stands in for real ones (tests/esker/test_bootstrap_server.py and
tests/interop/test_kafka_our_client.py have those). KIP-98, KIP-62, KIP-480.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2
from kafka.protocol.consumer import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from esker.client import producer as producing
from esker.client.client import EARLIEST, ClientError, KafkaClient
from esker.client.consumer import Found, Reader
from esker.client.group_member import (
    Member,
    RebalanceNeededError,
    deal_by_range,
)
from esker.client.producer import Line, Producer, murmur2, partition_of
from esker.settings.values import Endpoint
from raft.net.errors import NetError, Reason, RequestTimeoutError
from raft.net.runner import run
from records.batch import iter_batches, iter_records
from records.batch_writer import build_batch
from records.cleaning import empty_batch
from records.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from records.rpc.cluster import MetadataResponse
from records.rpc.descriptions import DescribeBrokersRequest
from records.rpc.fetch import FetchRequest, FetchResponse
from records.rpc.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from records.rpc.partitions import InitProducerIdResponse
from records.rpc.produce import ProduceRequest, ProduceResponse

LOST = NetError(Reason.RESET, "broker 1: the connection broke")


class Scripted(KafkaClient):
    """A cluster of one topic; `answer` says what comes back, or raises it."""

    def __init__(self, answer: Callable[[Any], Any], *, partitions: int = 1) -> None:
        super().__init__([Endpoint("nowhere", 1)], timeout_ms=2_000)
        self.answer = answer
        self.asked: list[Any] = []
        self.first = 0  # the offset that EARLIEST gives
        self.coordinator = 1  # any other node is dead
        self._partitions = partitions

    async def ask(self, node: Any, request: Any, response: Any, **_: Any) -> Any:  # noqa: ARG002
        self.asked.append(request)
        if node != self.coordinator:
            raise LOST
        return self.answer(request)

    async def ask_any(self, request: Any, response: Any, **_: Any) -> Any:
        if response is InitProducerIdResponse:
            return InitProducerIdResponse(error_code=0, producer_id=7, producer_epoch=0)
        return await self.ask(1, request, response)

    async def leaders(self, topic: str, *, create: bool = False) -> dict[int, int]:  # noqa: ARG002
        return dict.fromkeys(range(self._partitions), 1)

    async def offsets(self, topic: str, timestamps: dict[int, int]) -> dict[int, int]:  # noqa: ARG002
        assert set(timestamps.values()) == {EARLIEST}
        return dict.fromkeys(timestamps, self.first)

    async def group_coordinator(self, group: str) -> int:  # noqa: ARG002
        return self.coordinator


class WithoutQuorum(KafkaClient):
    """A broker that answers from its image alone, of this age; it is silent or refuses else."""

    def __init__(self, age_ms: int, *, code: int | None = None) -> None:
        super().__init__([Endpoint("broker", 9092)], timeout_ms=1)
        self._age_ms = age_ms
        self._code = code
        self._connections[Endpoint("broker", 9092), ""] = None  # type: ignore[assignment]

    async def ask(self, node: Any, request: Any, response: Any, **_: Any) -> Any:
        if isinstance(request, DescribeBrokersRequest):
            return response(image_age_ms=self._age_ms)
        if self._code is None:
            raise RequestTimeoutError(Reason.TIMEOUT, f"{node}: no answer in time")
        raise ClientError(f"refused with {self._code}", self._code)


@pytest.mark.parametrize("code", [None, 14])
def test_the_error_for_a_timeout_names_the_quorum_if_brokers_know_no_quorum_leader(
    code: int | None,
) -> None:
    for age_ms, blamed in ((12_345, "quorum for 12 s"), (3_999, None), (-1, None)):
        client = WithoutQuorum(age_ms, code=code)
        with pytest.raises(ClientError) as caught:
            run(client.patiently(partial(client.metadata, None)))
        assert ("no broker answers" in str(caught.value)) == (code is None and blamed is None)
        assert ("majority of its voters" in str(caught.value)) == (blamed is not None)
        assert (blamed or "") in str(caught.value)
        assert ("refused with 14" in str(caught.value)) == (code == 14)


def test_the_client_reports_an_unavailable_quorum_while_a_request_still_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("esker.client.client.SAY_AFTER_S", 0.0)

    async def main() -> None:
        client = WithoutQuorum(12_345)
        reported = asyncio.get_running_loop().create_future()
        client.on_wait = reported.set_result
        assert "quorum for 12 s" in await client.patiently(lambda: reported)

    run(main())


# --- producing ----------------------------------------------------------------------------------


class Log:
    """One partition's log that knows producers as a broker does; `fails` says what goes wrong."""

    def __init__(self, *fails: object) -> None:
        self.values: list[bytes] = []
        self._fails = list(fails)
        self._next_sequence = 0

    def __call__(self, request: ProduceRequest) -> ProduceResponse:
        failure = self._fails.pop(0) if self._fails else None
        if isinstance(failure, int):
            return self._said(failure)
        if failure == "lost before":
            raise LOST
        data = request.topic_data[0].partition_data[0].records
        assert data is not None
        (batch,) = iter_batches(data)
        if batch.header.base_sequence not in (-1, self._next_sequence):
            known = batch.header.base_sequence < self._next_sequence
            return self._said(46 if known else 45)
        self._next_sequence = batch.header.base_sequence + batch.header.record_count
        self.values += [bytes(record.value or b"") for record in iter_records(batch)]
        if failure == "lost after":
            raise LOST
        return self._said(7 if failure == "timed out after" else 0)

    @staticmethod
    def _said(code: int) -> ProduceResponse:
        topic = ProduceResponse.TopicProduceResponse
        partition = topic.PartitionProduceResponse(index=0, error_code=code, base_offset=0)
        return ProduceResponse(responses=(topic(name="t", partition_responses=(partition,)),))


def lines(*numbers: int) -> list[Line]:
    return [Line(None, str(number).encode(), 0) for number in numbers]


def written(log: Log, *rounds: list[Line], acks: int = -1) -> Producer:
    async def main() -> Producer:
        producer = Producer(Scripted(log), "t", acks=acks)
        await producer.begin()
        for some in rounds:
            await producer.send(some)
        return producer

    return run(main())


def test_a_producer_writes_batches_once_and_in_order_despite_retries() -> None:
    log = Log("lost before", 6, "lost after", 19, 7, "lost after")
    producer = written(log, lines(1, 2), lines(3), lines(4, 5, 6))
    assert log.values == [b"1", b"2", b"3", b"4", b"5", b"6"]
    assert producer.records == 6


@pytest.mark.parametrize("failure", ["lost after", "timed out after"])
def test_a_producer_with_acks_below_all_reports_a_lost_response_without_a_retry(
    failure: str,
) -> None:
    log = Log(failure)
    with pytest.raises(ClientError, match="may be written or not"):
        written(log, lines(1), acks=1)
    assert log.values == [b"1"]


def test_eskers_producer_does_not_retry_a_permanent_error() -> None:
    log = Log(10)
    with pytest.raises(ClientError, match="MESSAGE_TOO_LARGE"):
        written(log, lines(1))
    assert log.values == []


def test_eskers_producer_limits_batch_sizes_and_rotates_partitions_for_lines_without_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producing, "BATCH_BYTES", 100)
    seen: dict[int, list[int]] = {}

    def answer(request: ProduceRequest) -> ProduceResponse:
        data = request.topic_data[0].partition_data[0]
        (batch,) = iter_batches(data.records or b"")
        records = list(iter_records(batch))
        assert sum(len(r.value or b"") + producing.RECORD_OVERHEAD_BYTES for r in records) <= 100
        seen.setdefault(data.index, []).extend(int(bytes(r.value or b"")) for r in records)
        return Log._said(0)

    async def main() -> None:
        producer = Producer(Scripted(answer, partitions=3), "t", acks=1)
        await producer.begin()
        await producer.send(lines(*range(60)))

    run(main())
    assert sorted(number for some in seen.values() for number in some) == list(range(60))
    assert all(some == sorted(some) for some in seen.values())
    assert len(seen) == 3


@given(st.binary(max_size=40))
def test_the_producers_hash_of_a_key_equals_kafkas_murmur2_hash(key: bytes) -> None:
    assert murmur2(key) == kafka_python_murmur2(key) % 2**32
    assert 0 <= partition_of(key, 7) < 7


# --- consuming ----------------------------------------------------------------------------------


def fetched(data: bytes = b"", *, code: int = 0, high_watermark: int = 100) -> FetchResponse:
    topic = FetchResponse.FetchableTopicResponse
    partition = topic.PartitionData(
        partition_index=0,
        error_code=code,
        high_watermark=high_watermark,
        aborted_transactions=None,
        records=data,
    )
    return FetchResponse(responses=(topic(topic="t", partitions=(partition,)),))


def batch(first: int, count: int) -> bytes:
    records = [(None, str(first + n).encode(), 0, ()) for n in range(count)]
    return bytes(build_batch(records, base_offset=first, leader_epoch=0))


def read(client: Scripted, position: int, polls: int) -> tuple[list[Found], Reader]:
    async def main() -> tuple[list[Found], Reader]:
        reader = Reader(client, "t", {0: position})
        found: list[Found] = []
        async for some in reader.poll():
            found += some
            polls_left[0] -= 1
            if not polls_left[0]:
                break
        return found, reader

    polls_left = [polls]
    return run(main())


def asked_offsets(client: Scripted) -> list[int]:
    return [
        one.topics[0].partitions[0].fetch_offset
        for one in client.asked
        if isinstance(one, FetchRequest)
    ]


def test_the_consumer_returns_each_record_once_from_overlapping_or_truncated_batches() -> None:
    answers = iter([fetched(batch(0, 5) + batch(5, 5)[:-3]), fetched(batch(5, 5)), fetched()])
    client = Scripted(lambda _: next(answers))
    found, _ = read(client, 3, 3)
    assert [int(bytes(one.record.value or b"")) for one in found] == list(range(3, 10))
    assert asked_offsets(client) == [3, 5, 10]


def test_the_consumer_skips_deleted_offsets_and_refuses_offsets_past_the_end() -> None:
    answers = iter([fetched(code=1), fetched(batch(7, 1)), fetched()])
    client = Scripted(lambda _: next(answers))
    client.first = 7
    found, _ = read(client, 2, 2)
    assert [one.record.offset for one in found] == [7]
    gone = Scripted(lambda _: fetched(code=1))
    with pytest.raises(ClientError, match="offset 99 is beyond its end"):
        read(gone, 99, 1)


def test_the_consumer_passes_the_offsets_of_records_that_compaction_removed_from_the_end() -> None:
    """The last batch of a compacted range stays, without records if need be."""
    whole, other = (next(iter_batches(batch(first, 5))) for first in (0, 5))
    ended = bytes(empty_batch(other.header).view)
    answers = iter([fetched(bytes(whole.view) + ended), fetched(ended), fetched()])
    client = Scripted(lambda _: next(answers))
    found, _ = read(client, 2, 3)
    assert [one.record.offset for one in found] == [2, 3, 4]
    assert asked_offsets(client) == [2, 5, 10]


def test_the_consumer_retries_a_failed_request_but_not_a_refused_request() -> None:
    answers = iter([LOST, fetched(code=6), fetched(code=56), fetched(batch(0, 1))])

    def answer(_: Any) -> FetchResponse:
        one = next(answers)
        if isinstance(one, NetError):
            raise one
        return one

    found, _ = read(Scripted(answer), 0, 4)
    assert [one.record.offset for one in found] == [0]
    with pytest.raises(ClientError, match="TOPIC_AUTHORIZATION_FAILED"):
        read(Scripted(lambda _: fetched(code=29)), 0, 1)


def test_eskers_consumer_reports_damaged_records_in_one_sentence() -> None:
    data = bytearray(batch(0, 3))
    data[-1] ^= 1
    with pytest.raises(ClientError, match=r"t-0: batch at position 0"):
        read(Scripted(lambda _: fetched(bytes(data))), 0, 1)


# --- groups -------------------------------------------------------------------------------------


class Coordinator:
    """Joins and syncs as a coordinator does for a member alone; `fails` come first."""

    def __init__(self, **fails: list[Any]) -> None:
        self.fails = fails
        self.members: list[str] = []

    def __call__(self, request: Any) -> Any:
        failure = (self.fails.get(type(request).__name__) or [None]).pop(0)
        if isinstance(failure, NetError):
            raise failure
        code = failure or 0
        match request:
            case JoinGroupRequest():
                if not request.member_id and not code:
                    code = 79
                member = request.member_id or f"member-{len(self.members)}"
                self.members.append(member)
                one = JoinGroupResponse.JoinGroupResponseMember
                return JoinGroupResponse(
                    error_code=code,
                    generation_id=len(self.members),
                    protocol_name="range",
                    leader=member,
                    member_id=member,
                    members=(one(member_id=member, metadata=encode_subscription(["t"])),),
                )
            case SyncGroupRequest():
                assignment = request.assignments[0].assignment if request.assignments else b""
                return SyncGroupResponse(error_code=code, assignment=assignment)
            case HeartbeatRequest():
                return HeartbeatResponse(error_code=code)
        raise AssertionError(request)


def joined(coordinator: Coordinator) -> tuple[Member, tuple[int, ...]]:
    async def main() -> tuple[Member, tuple[int, ...]]:
        member = Member(Scripted(coordinator, partitions=3), "g", "t")
        return member, await member.join()

    return run(main())


def test_a_client_that_joins_a_group_despite_failed_requests_gets_its_partitions() -> None:
    coordinator = Coordinator(
        JoinGroupRequest=[LOST, 15, 16, None, 27, 25], SyncGroupRequest=[27, LOST, 14]
    )
    _, partitions = joined(coordinator)
    assert partitions == (0, 1, 2)
    assert coordinator.members[-1] != coordinator.members[0], "an unknown member comes as another"


def test_the_client_retries_a_group_heartbeat_at_a_new_coordinator_and_reports_rebalances() -> None:
    coordinator = Coordinator(HeartbeatRequest=[LOST, 16, None, None, 27])

    async def main() -> None:
        client = Scripted(coordinator)
        member = Member(client, "g", "t")
        await member.join()
        joins = len(coordinator.members)
        await member.heartbeat()  # lost, then refused, then heard
        client.coordinator = 2
        await member.heartbeat()
        assert len(coordinator.members) == joins, "a coordinator that moves costs no rebalance"
        with pytest.raises(RebalanceNeededError):
            await member.heartbeat()

    run(main())


def test_eskers_client_reports_an_invalid_group_id_in_one_sentence() -> None:
    with pytest.raises(ClientError, match="group g: INVALID_GROUP_ID"):
        joined(Coordinator(JoinGroupRequest=[24]))


names = st.text("abc-_", min_size=1, max_size=5)


@given(st.lists(names, unique=True, max_size=5))
def test_encoded_subscriptions_equal_those_of_kafka_python(topics: list[str]) -> None:
    theirs = ConsumerProtocolSubscription(topics=topics, user_data=None).encode(version=0)
    assert encode_subscription(topics) == bytes(theirs)
    for version in range(4):
        newer = ConsumerProtocolSubscription(topics=topics, user_data=b"x").encode(version=version)
        assert decode_subscription(newer) == tuple(topics)


@given(st.dictionaries(names, st.lists(st.integers(0, 9), unique=True, min_size=1), max_size=4))
def test_encoded_assignments_equal_those_of_kafka_python(places: dict[str, list[int]]) -> None:
    flat = [(topic, one) for topic, partitions in places.items() for one in partitions]
    ours = ConsumerProtocolAssignment.decode(encode_assignment(flat), version=0)
    assert [(one.topic, one.partition) for one in ours.partitions()] == flat
    assert decode_assignment(encode_assignment(flat)) == tuple(flat)


@given(st.binary(max_size=60))
def test_random_bytes_decode_as_a_group_assignment_or_subscription_without_an_error(
    data: bytes,
) -> None:
    assert isinstance(decode_assignment(data), tuple)
    assert isinstance(decode_subscription(data), tuple)


@given(
    st.dictionaries(names, st.sets(st.sampled_from("xyz")), min_size=1, max_size=5),
    st.dictionaries(st.sampled_from("xyz"), st.integers(0, 9)),
)
def test_eskers_group_client_assigns_every_partition_to_one_subscribed_member(
    wants: dict[str, set[str]], counts: dict[str, int]
) -> None:
    wanted = {topic for topics in wants.values() for topic in topics}
    dealt = deal_by_range(wants, counts)
    assert set(dealt) == set(wants)
    places = [place for some in dealt.values() for place in some]
    expected = {(topic, n) for topic in wanted & set(counts) for n in range(counts[topic])}
    assert len(places) == len(expected)
    assert set(places) == expected
    for member, some in dealt.items():
        assert all(topic in wants[member] for topic, _ in some)


# --- the client itself --------------------------------------------------------------------------


def test_eskers_client_fails_at_once_if_no_bootstrap_server_accepts_connections() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        started = loop.time()
        async with KafkaClient([Endpoint("127.0.0.1", 1)], timeout_ms=30_000) as client:
            with pytest.raises(ClientError, match="is one running there"):
                await client.leaders("t")
        return loop.time() - started

    assert run(main()) < 5


def test_the_client_waits_until_a_topic_has_leaders() -> None:
    topic = MetadataResponse.MetadataResponseTopic
    partition = topic.MetadataResponsePartition
    codes = iter([5, 6, 0])

    def answer(_: Any) -> MetadataResponse:
        one = partition(
            error_code=next(codes), partition_index=0, leader_id=1, replica_nodes=(), isr_nodes=()
        )
        return MetadataResponse(brokers=(), topics=(topic(name="t", partitions=(one,)),))

    async def main() -> dict[int, int]:
        client = Scripted(answer)
        return await KafkaClient.leaders(client, "t")

    assert run(main()) == {0: 1}


def test_the_client_reports_each_reason_for_a_long_wait_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("esker.client.client.SAY_AFTER_S", 0.0)
    codes = iter([5, 5, 6, 0])

    async def attempt() -> int:
        if code := next(codes):
            raise ClientError(f"code {code}", code)
        return 7

    async def main() -> tuple[int, list[str]]:
        client = KafkaClient([Endpoint("nowhere", 1)])
        told: list[str] = []
        client.on_wait = told.append
        return await client.patiently(attempt), told

    assert run(main()) == (7, ["code 5", "code 6"])


def test_eskers_client_refuses_an_unknown_topic_and_suggests_the_likely_name() -> None:
    topic = MetadataResponse.MetadataResponseTopic

    def answer(asked: Any) -> MetadataResponse:
        if asked.topics is None:
            return MetadataResponse(brokers=(), topics=(topic(name="orders", partitions=()),))
        return MetadataResponse(
            brokers=(), topics=(topic(error_code=3, name="ordrs", partitions=()),)
        )

    async def main() -> str:
        with pytest.raises(ClientError) as error:
            await KafkaClient.leaders(Scripted(answer), "ordrs")
        return str(error.value)

    told = run(main())
    assert told.startswith("no such topic: ordrs; there is orders, or `esker topics create")
    assert "--bootstrap-server nowhere:1" in told
