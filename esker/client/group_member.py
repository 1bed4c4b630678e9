"""One member of a consumer group, by the classic protocol.

Members join; the coordinator makes one of them their leader, which alone knows the partitions and
deals them out; all are then told theirs. Whoever comes or goes starts that again, and the others
learn of it from the answer to their next heartbeat. What was read is committed before a partition
may go to someone else: at least once, as Kafka's own console consumer.

The assignor is `range`, which every client has, so a group may be mixed.

Source: KIP-62, KIP-394 (a member id first), KIP-345; upstream's RangeAssignor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping
from typing import Final, TypeVar

from coordinator.controller.client import error_codes
from esker.client.client import ClientError, KafkaClient
from raft.net.errors import NetError
from records.compression import Buffer
from records.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from records.kafka_errors import ErrorCode, error_name
from records.rpc.base import Request, Response
from records.rpc.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

R = TypeVar("R", bound=Response)

RANGE: Final = "range"
SESSION_MS: Final = 30_000
HEARTBEAT_S: Final = 3.0
PURPOSE: Final = "group"  # a connection of its own: a join waits for all the others
NAMED_VERSION: Final = 9  # the last of OffsetCommit and OffsetFetch that names topics

_ANEW: Final = frozenset(
    {ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS}
)
"""Illegal generation, unknown member, rebalance in progress: join again."""


class RebalanceNeededError(Exception):
    """The group has begun another generation: join again."""


class Member:
    """A member of `group` that reads one topic."""

    def __init__(self, client: KafkaClient, group: str, topic: str) -> None:
        self.generation = -1
        self._client = client
        self._group = group
        self._topic = topic
        self._member_id = ""
        self._coordinator = -1

    async def join(self) -> tuple[int, ...]:
        """Join the consumer group's next generation, and return this member's assigned partitions.

        Raises ClientError.
        """

        while True:
            try:
                return await self._join_once()
            except RebalanceNeededError:
                continue

    async def heartbeat(self) -> None:
        """Send a heartbeat to the group coordinator. Raises RebalanceNeededError, ClientError."""
        request = HeartbeatRequest(
            group_id=self._group, generation_id=self.generation, member_id=self._member_id
        )
        await self._ask(request, HeartbeatResponse)

    async def committed(self, partitions: Iterable[int]) -> dict[int, int]:
        """Return the consumer group's committed offset of each partition that has one.

        Raises ClientError.
        """
        return await committed_offsets(self._client, self._group, self._topic, partitions)

    async def commit(self, offsets: Mapping[int, int]) -> None:
        """Commit the offset of the next record that the consumer group is to read, per partition.

        Raises RebalanceNeededError, ClientError.
        """
        if not offsets:
            return
        request = commit_request(
            self._group,
            {(self._topic, partition): offset for partition, offset in offsets.items()},
            generation=self.generation,
            member_id=self._member_id,
        )
        await self._ask(request, OffsetCommitResponse, most=NAMED_VERSION)

    async def leave(self) -> None:
        """Send a LeaveGroup request for this member; ignore a failure of the request."""
        if not self._member_id or self._coordinator < 0:
            return
        who = LeaveGroupRequest.MemberIdentity(member_id=self._member_id)
        request = LeaveGroupRequest(group_id=self._group, members=(who,))
        with contextlib.suppress(ClientError, RebalanceNeededError, NetError):
            await self._client.ask(self._coordinator, request, LeaveGroupResponse, purpose=PURPOSE)
        self._member_id = ""

    # --- inside

    async def _ask(self, request: Request, response: type[R], *, most: int | None = None) -> R:
        """Send a request to the consumer group's current coordinator, with retries.

        Raises:  RebalanceNeededError; ClientError for an error that does not pass.
        """

        async def attempt() -> R:
            if self._coordinator < 0:
                self._coordinator = await self._client.group_coordinator(self._group)
            try:
                answer = await self._client.ask(
                    self._coordinator, request, response, most=most, purpose=PURPOSE
                )
            except NetError:
                self._coordinator = -1
                raise
            for code in sorted(error_codes(answer) - {0, ErrorCode.MEMBER_ID_REQUIRED}):
                if code in _ANEW:
                    if code == ErrorCode.UNKNOWN_MEMBER_ID:
                        self._member_id = ""
                    raise RebalanceNeededError
                self._coordinator = -1
                raise ClientError(f"group {self._group}: {error_name(code)}", code)
            return answer

        return await self._client.patiently(attempt)

    async def _join_once(self) -> tuple[int, ...]:
        answer = await self._ask(self._join_request(), JoinGroupResponse)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = answer.member_id
            answer = await self._ask(self._join_request(), JoinGroupResponse)
        self._member_id, self.generation = answer.member_id, answer.generation_id
        dealt: dict[str, tuple[tuple[str, int], ...]] = {}
        if answer.leader == answer.member_id:
            dealt = await self._deal({one.member_id: one.metadata for one in answer.members})
        to = SyncGroupRequest.SyncGroupRequestAssignment
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=self.generation,
            member_id=self._member_id,
            protocol_type="consumer",
            protocol_name=answer.protocol_name,
            assignments=tuple(
                to(member_id=member, assignment=encode_assignment(places))
                for member, places in dealt.items()
            ),
        )
        told = await self._ask(request, SyncGroupResponse)
        ours = decode_assignment(told.assignment)
        return tuple(partition for topic, partition in ours if topic == self._topic)

    def _join_request(self) -> JoinGroupRequest:
        protocol = JoinGroupRequest.JoinGroupRequestProtocol
        return JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
            member_id=self._member_id,
            protocol_type="consumer",
            protocols=(protocol(name=RANGE, metadata=encode_subscription((self._topic,))),),
        )

    async def _deal(self, members: Mapping[str, Buffer]) -> dict[str, tuple[tuple[str, int], ...]]:
        """Assign the subscribed topics' partitions to members, as the consumer group's leader."""
        wants = {member: decode_subscription(data) for member, data in members.items()}
        counts = {}
        for topic in sorted({topic for topics in wants.values() for topic in topics}):
            try:
                counts[topic] = len(await self._client.leaders(topic))
            except ClientError:
                if topic == self._topic:
                    raise
        return deal_by_range(wants, counts)


def commit_request(
    group: str,
    offsets: Mapping[tuple[str, int], int],
    *,
    generation: int = -1,
    member_id: str = "",
) -> OffsetCommitRequest:
    """Build an OffsetCommit request for a member, or for a consumer group without members."""
    by_topic: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in offsets.items():
        by_topic.setdefault(topic, {})[partition] = offset
    named = OffsetCommitRequest.OffsetCommitRequestTopic
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=tuple(
            named(
                name=topic,
                partitions=tuple(
                    named.OffsetCommitRequestPartition(
                        partition_index=partition,
                        committed_offset=offset,
                        committed_metadata="",
                    )
                    for partition, offset in of_topic.items()
                ),
            )
            for topic, of_topic in by_topic.items()
        ),
    )


async def committed_offsets(
    client: KafkaClient, group: str, topic: str, partitions: Iterable[int]
) -> dict[int, int]:
    """Return a consumer group's committed offsets of a topic by partition. Raises ClientError."""
    found = await all_committed_offsets(client, group, {topic: tuple(partitions)})
    return {partition: offset for (_, partition), offset in found.items()}


async def all_committed_offsets(
    client: KafkaClient, group: str, topics: Mapping[str, tuple[int, ...]] | None
) -> dict[tuple[str, int], int]:
    """Return a consumer group's committed offsets in `topics`; None means all topics.

    Raises ClientError.
    """
    asked = OffsetFetchRequest.OffsetFetchRequestGroup
    named = None
    if topics is not None:
        named = tuple(
            asked.OffsetFetchRequestTopics(name=name, partition_indexes=some)
            for name, some in topics.items()
        )
    request = OffsetFetchRequest(groups=(asked(group_id=group, topics=named),))

    async def attempt() -> dict[tuple[str, int], int]:
        coordinator = await client.group_coordinator(group)
        answer = await client.ask(coordinator, request, OffsetFetchResponse, most=NAMED_VERSION)
        for code in sorted(error_codes(answer) - {0}):
            raise ClientError(f"group {group}: {error_name(code)}", code)
        found = {}
        for topic in answer.groups[0].topics:
            for one in topic.partitions:
                if one.committed_offset >= 0:
                    found[topic.name, one.partition_index] = one.committed_offset
        return found

    return await client.patiently(attempt)


def deal_by_range(
    wants: Mapping[str, Collection[str]], counts: Mapping[str, int]
) -> dict[str, tuple[tuple[str, int], ...]]:
    """Assign each topic's partitions in ranges that differ by at most one partition.

    >>> deal_by_range({"a": ["t"], "b": ["t"]}, {"t": 3})
    {'a': (('t', 0), ('t', 1)), 'b': (('t', 2),)}
    """
    dealt: dict[str, list[tuple[str, int]]] = {member: [] for member in sorted(wants)}
    for topic, count in sorted(counts.items()):
        readers = sorted(member for member, topics in wants.items() if topic in topics)
        if not readers:
            continue
        each, more = divmod(count, len(readers))
        begin = 0
        for place, member in enumerate(readers):
            size = each + (place < more)
            dealt[member] += [(topic, partition) for partition in range(begin, begin + size)]
            begin += size
    return {member: tuple(places) for member, places in dealt.items()}
