"""The core's messages survive the wire, at every version; what is impossible does not pass."""

from __future__ import annotations

import struct
from dataclasses import replace
from uuid import UUID

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from raft.core import messages as core
from raft.core.voters import Endpoint, ReplicaKey
from raft.wire import fetch as wire_fetch
from raft.wire import responses as wire
from raft.wire.common import CORE_ERRORS
from raft.wire.fetch import FetchForm
from raft.wire.responses import Answering, BadRequestError, Group, GroupRef, UnexpectedAnswerError
from records.batch_writer import build_value_batch
from records.codec import decode_message, encode_message
from records.kafka_errors import ErrorCode
from records.rpc import API, fetch, quorum
from records.types import METADATA_TOPIC_ID, Epoch, NodeId, Offset, OffsetAndEpoch

GROUP = Group("__cluster_metadata", 0, METADATA_TOPIC_ID)
REF = GroupRef("__cluster_metadata", 0)
LEADER = Endpoint("CONTROLLER", "localhost", 9093)

nodes = st.integers(0, 2**31 - 1).map(NodeId)
epochs = st.integers(0, 2**31 - 1).map(Epoch)
offsets = st.integers(0, 2**63 - 1).map(Offset)
keys = st.builds(ReplicaKey, nodes, st.uuids())
clusters = st.none() | st.text(max_size=30)
errors = st.sampled_from(sorted(CORE_ERRORS))

requests = st.one_of(
    st.builds(
        core.VoteRequest, cluster_id=clusters, voter=st.none() | keys, candidate=keys,
        epoch=epochs, last_epoch=epochs, end_offset=offsets, pre_vote=st.booleans(),
    ),
    st.builds(
        core.BeginQuorumEpochRequest, cluster_id=clusters, voter=st.none() | keys,
        leader_id=nodes, epoch=epochs,
    ),
    st.builds(
        core.EndQuorumEpochRequest, cluster_id=clusters, leader_id=nodes, epoch=epochs,
        preferred_candidates=st.lists(keys, max_size=3).map(tuple),
    ),
    st.just(core.DescribeQuorumRequest()),
)  # fmt: skip
responses = st.one_of(
    st.builds(
        core.VoteResponse, error=errors, leader_id=st.none() | nodes, epoch=epochs,
        granted=st.booleans(),
    ),
    st.builds(
        core.BeginQuorumEpochResponse, error=errors, leader_id=st.none() | nodes, epoch=epochs
    ),
    st.builds(
        core.EndQuorumEpochResponse, error=errors, leader_id=st.none() | nodes, epoch=epochs
    ),
)  # fmt: skip


def over_the_wire(message, version: int):
    """Encode a message and decode it again."""
    return decode_message(type(message), encode_message(message, version), version)


def latest(message) -> int:
    return type(message).schema().versions.last


@given(requests)
def test_each_quorum_request_survives_encoding_and_decoding(request: core.Request) -> None:
    message = wire.write_request(GROUP, request, (LEADER,))
    assert wire.read_request(over_the_wire(message, latest(message))) == (REF, request)


@given(responses)
def test_each_quorum_response_survives_encoding_and_decoding(response: core.Response) -> None:
    message = wire.write_response(response, Answering(GROUP, LEADER))
    arrived = wire.read_response(over_the_wire(message, latest(message)))
    if response.error is ErrorCode.INCONSISTENT_CLUSTER_ID:  # of the whole answer: no more is said
        assert arrived.error is response.error
    else:
        assert arrived == response


@pytest.mark.parametrize("version", range(2))
def test_encoding_at_an_old_version_drops_only_the_fields_that_the_version_lacks(
    version: int,
) -> None:
    """Version 0 has no directory ids; versions before 2 have no pre-vote."""
    request = core.VoteRequest(
        cluster_id="c", voter=ReplicaKey(NodeId(2), UUID(int=2)),
        candidate=ReplicaKey(NodeId(1), UUID(int=1)),
        epoch=Epoch(3), last_epoch=Epoch(2), end_offset=Offset(10),
    )  # fmt: skip
    _, arrived = wire.read_request(over_the_wire(wire.write_request(GROUP, request), version))
    assert isinstance(arrived, core.VoteRequest)
    assert (arrived.candidate.id, arrived.epoch, arrived.end_offset) == (1, 3, 10)
    assert arrived.voter == (None if version == 0 else request.voter)


@given(
    st.builds(
        core.FetchRequest, cluster_id=clusters, replica=keys, epoch=epochs, fetch_offset=offsets,
        last_fetched_epoch=epochs, high_watermark=st.none() | offsets,
        max_wait_ms=st.integers(0, 2**31 - 1), max_bytes=st.integers(0, 2**31 - 1),
    ),
    st.integers(12, 18),
)  # fmt: skip
def test_a_replicas_fetch_survives_encoding_and_decoding_at_every_version(
    request: core.FetchRequest, version: int
) -> None:
    message = over_the_wire(wire_fetch.write_fetch(GROUP, request, version), version)
    ref, _ = wire_fetch.fetch_ref(message, version)
    assert ref == GroupRef(GROUP.topic_id if version >= 13 else GROUP.topic, 0)
    arrived = wire_fetch.read_fetch(message, version)
    assert (arrived.replica.id, arrived.fetch_offset) == (request.replica.id, request.fetch_offset)
    assert arrived.last_fetched_epoch == request.last_fetched_epoch
    if version >= 17:
        assert arrived.replica == request.replica
    if version >= 18:
        assert arrived == request
    else:
        assert arrived.high_watermark == core.MAX_OFFSET  # KIP-1166: never taken to be behind


def test_the_wire_decoder_joins_adjacent_fetched_batches_of_one_epoch_into_one_batch() -> None:
    records = b"".join(
        build_value_batch([b"x"], base_offset=offset, leader_epoch=epoch, timestamp=0)
        for offset, epoch in ((5, 1), (6, 1), (7, 2), (8, 2))
    )
    runs = wire_fetch.read_batches(records)
    assert [(run.base_offset, run.end_offset, run.epoch) for run in runs] == [(5, 7, 1), (7, 9, 2)]
    assert b"".join(bytes(run.data) for run in runs) == records
    gap = build_value_batch([b"x"], base_offset=20, leader_epoch=2, timestamp=0)
    assert [run.end_offset for run in wire_fetch.read_batches(records + gap)] == [7, 9, 21]


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_the_fetch_decoder_drops_an_invalid_batch_and_all_batches_after_it(damage: str) -> None:
    """KAFKA-18723: what is corrupt is fetched again, not appended."""
    batches = [
        build_value_batch([b"x" * 50], base_offset=offset, leader_epoch=1, timestamp=0)
        for offset in range(3)
    ]
    if damage == "flip":
        batches[1][80] ^= 1
    records = b"".join(batches)
    if damage == "cut":
        records = records[: len(batches[0]) + 70]
    (run,) = wire_fetch.read_batches(records)
    assert (run.base_offset, run.end_offset) == (0, 1)


@pytest.mark.parametrize(
    ("at", "field"),
    [
        (0, (-1).to_bytes(8, "big", signed=True)),  # base offset
        (0, (2**63 - 1).to_bytes(8, "big")),
        (12, (-1).to_bytes(4, "big", signed=True)),  # epoch
        (16, b"\x01"),  # magic
    ],
)
def test_the_fetch_decoder_drops_batches_with_invalid_offsets_or_epochs(
    at: int, field: bytes
) -> None:
    batch = build_value_batch([b"x"], base_offset=0, leader_epoch=1, timestamp=0)
    batch[at : at + len(field)] = field
    assert wire_fetch.read_batches(batch) == ()


@pytest.mark.parametrize("delta", [-1, 0])
def test_the_fetch_decoder_drops_a_batch_that_ends_before_its_base_offset(delta: int) -> None:
    """With a good checksum: a peer may send nonsense that is whole."""
    batch = build_value_batch([b"x"], base_offset=5, leader_epoch=1, timestamp=0)
    struct.pack_into(">i", batch, 23, delta)  # last offset delta
    struct.pack_into(">i", batch, 57, 0)  # record count
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    assert len(wire_fetch.read_batches(batch)) == (0 if delta < 0 else 1)


def test_the_wire_encoding_of_a_fetch_response_keeps_its_diverging_epoch_and_snapshot_id() -> None:
    to = Answering(GROUP, LEADER)
    form = FetchForm("", GROUP.topic_id)
    diverging = core.FetchResponse(
        leader_id=NodeId(1), epoch=Epoch(4), high_watermark=Offset(7), log_start_offset=Offset(0),
        diverging=core.EpochEnd(Epoch(2), Offset(5)),
    )  # fmt: skip
    message = over_the_wire(wire_fetch.write_fetch_response(diverging, to, form), 17)
    assert wire_fetch.read_fetch_response(message) == diverging
    snapshot = core.FetchResponse(
        leader_id=NodeId(1), epoch=Epoch(4), high_watermark=Offset(7), log_start_offset=Offset(7),
        snapshot_id=OffsetAndEpoch(Offset(7), Epoch(3)),
    )  # fmt: skip
    message = over_the_wire(wire_fetch.write_fetch_response(snapshot, to, form), 17)
    assert wire_fetch.read_fetch_response(message) == snapshot
    assert message.node_endpoints[0].host == "localhost"


def test_the_wire_decoder_refuses_a_quorum_request_that_names_two_raft_groups_or_none() -> None:
    topic = quorum.DescribeQuorumRequest.TopicData
    partition = topic.PartitionData(partition_index=0)
    one = topic(topic_name="a", partitions=(partition,))
    for topics in ((), (one, one), (topic(topic_name="a", partitions=(partition, partition)),)):
        with pytest.raises(BadRequestError):
            wire.read_request(quorum.DescribeQuorumRequest(topics=topics))


@pytest.mark.parametrize("field", ["replica_epoch", "replica_id", "last_offset"])
def test_the_wire_decoder_refuses_a_quorum_request_with_negative_numbers(field: str) -> None:
    topic = quorum.VoteRequest.TopicData
    numbers = {"replica_epoch": 1, "replica_id": 1, "last_offset_epoch": 1, "last_offset": 1}
    numbers[field] = -2
    vote = topic.PartitionData(partition_index=0, **numbers)
    with pytest.raises(BadRequestError):
        wire.read_request(quorum.VoteRequest(topics=(topic(topic_name="t", partitions=(vote,)),)))


@pytest.mark.parametrize("key", [52, 53, 54, 55])
def test_a_quorum_request_for_an_unknown_raft_group_gets_unknown_topic_or_partition(
    key: int,
) -> None:
    """The requester sees a failed request, which it will repeat."""
    request = {
        52: core.VoteRequest(
            cluster_id=None, voter=None, candidate=ReplicaKey(NodeId(1)), epoch=Epoch(1),
            last_epoch=Epoch(0), end_offset=Offset(0),
        ),
        53: core.BeginQuorumEpochRequest(
            cluster_id=None, voter=None, leader_id=NodeId(1), epoch=Epoch(1)
        ),
        54: core.EndQuorumEpochRequest(
            cluster_id=None, leader_id=NodeId(1), epoch=Epoch(1), preferred_candidates=()
        ),
        55: core.DescribeQuorumRequest(),
    }[key]  # fmt: skip
    message = wire.write_request(GROUP, request)
    answer = wire.unknown_group(message, REF)
    assert type(answer) is API[key].response
    with pytest.raises(UnexpectedAnswerError):
        wire.read_response(over_the_wire(answer, latest(answer)))


def test_a_node_refuses_a_fetch_for_an_unknown_topic_id_with_unknown_topic_id() -> None:
    ref = GroupRef(UUID(int=9), 0)
    answer = wire_fetch.refuse_fetch(ref, FetchForm("", UUID(int=9)))
    assert answer.responses[0].partitions[0].error_code == 100  # UNKNOWN_TOPIC_ID
    with pytest.raises(UnexpectedAnswerError):
        wire_fetch.read_fetch_response(over_the_wire(answer, 17))
    assert isinstance(answer, fetch.FetchResponse)


def test_a_replica_sends_its_recorded_committed_offset_in_a_tagged_field_that_kafka_ignores() -> (
    None
):
    request = core.FetchRequest(
        cluster_id=None, replica=ReplicaKey(NodeId(2), UUID(int=0)), epoch=Epoch(3),
        fetch_offset=Offset(500), last_fetched_epoch=Epoch(3), floor=Offset(490), max_bytes=1,
    )  # fmt: skip
    message = wire_fetch.write_fetch(GROUP, request, 12)
    tagged = bytes.fromhex(
        "01 e907 08"  # one tagged field, number 1001, of eight bytes
        "00000000000001ea"  # everything below 490 was known to be committed
    )
    data = encode_message(message, 12)
    assert data.count(tagged) == 1
    none_known = wire_fetch.write_fetch(GROUP, replace(request, floor=Offset(0)), 12)
    assert data.replace(tagged, b"\0") == encode_message(none_known, 12)
    assert wire_fetch.read_fetch(over_the_wire(message, 12), 12).floor == 490
    assert wire_fetch.read_fetch(over_the_wire(none_known, 12), 12).floor == 0


def test_a_voter_sends_its_wall_clock_in_a_tagged_field_that_kafka_ignores() -> None:
    request = core.FetchRequest(
        cluster_id=None, replica=ReplicaKey(NodeId(2), UUID(int=0)),
        epoch=Epoch(3), fetch_offset=Offset(500), last_fetched_epoch=Epoch(3), max_bytes=1,
    )  # fmt: skip
    plain = wire_fetch.write_fetch(GROUP, request, 12)
    message = wire_fetch.write_fetch(GROUP, request, 12, 7)
    tagged = bytes.fromhex(
        "01 e907 08"  # one tagged field, number 1001, of eight bytes
        "0000000000000007"  # ms since 1970
    )
    data = encode_message(message, 12)
    assert data.endswith(tagged)
    assert data.removesuffix(tagged) + b"\0" == encode_message(plain, 12)
    assert over_the_wire(message, 12).wall_clock_ms == 7
    assert wire_fetch.read_fetch(message, 12) == wire_fetch.read_fetch(plain, 12)


def test_an_archive_sends_its_durable_offset_in_a_tagged_field_that_kafka_ignores() -> None:
    request = core.FetchRequest(
        cluster_id=None, replica=ReplicaKey(NodeId(2_000_000_001), UUID(int=0)),
        epoch=Epoch(3), fetch_offset=Offset(500), last_fetched_epoch=Epoch(3), max_bytes=1,
    )  # fmt: skip
    plain = wire_fetch.write_fetch(GROUP, request, 12)
    (topic,) = plain.topics
    partition = msgspec.structs.replace(topic.partitions[0], archived_offset=7)
    topic = msgspec.structs.replace(topic, partitions=(partition,))
    message = msgspec.structs.replace(plain, topics=(topic,))
    tagged = bytes.fromhex(
        "01 e807 08"  # one tagged field, number 1000, of eight bytes
        "0000000000000007"  # the archive has everything below
    )
    data = encode_message(message, 12)
    assert data.count(tagged) == 1
    assert data.replace(tagged, b"\0") == encode_message(plain, 12)
    assert wire_fetch.archived_offset_of(over_the_wire(message, 12)) == 7
    assert wire_fetch.archived_offset_of(over_the_wire(plain, 12)) is None
    assert wire_fetch.read_fetch(message, 12) == wire_fetch.read_fetch(plain, 12)
