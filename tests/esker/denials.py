"""Everything that a client may ask of what is there, asked of one broker, again and again.

    with Asking(address, known) as asking:
        ... whatever happens to the cluster ...
    assert not asking.denied and asking.told

A broker that does not know yet may say so, in a word that clients retry, or close the connection.
What it may not say is what would make a consumer begin elsewhere: that there is no such topic,
offset or group, or that a partition ends before it does. Requests are raw, one at a time, since
libraries hide what they retry.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final, NamedTuple, Self
from uuid import UUID

from records.rpc.cluster import MetadataRequest, MetadataResponse
from records.rpc.fetch import FetchRequest, FetchResponse
from records.rpc.groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from records.rpc.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from records.rpc.partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from records.types import ZERO_UUID
from tests.raft.driver.client import Client as Wire

OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC, UNKNOWN_TOPIC_ID, GROUP_ID_NOT_FOUND = 1, 3, 100, 69
DENIALS: Final = frozenset(
    {OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC, UNKNOWN_TOPIC_ID, GROUP_ID_NOT_FOUND}
)
PATIENCE_S: Final = 40.0  # for one answer
AGAIN_S: Final = 0.01  # after a connection was refused, or ended

ANYWHERE: Final = 16
"""Kinds of answers that any broker has; two more has whoever acts for the group."""

Said = tuple[str, int, bool]
"""What was asked, the error, and whether the rest of the answer is so."""


class Known(NamedTuple):
    """What is true all the time."""

    topic: str
    topic_id: UUID
    end_offset: int  # of its partition 0, which begins at 0
    topics: int  # that there are, at least
    group: str
    committed: int  # of partition 0


class Asking:
    """See the module. Asks in a thread from its beginning to its end."""

    def __init__(self, address: tuple[str, int], known: Known) -> None:
        self.denied: Counter[tuple[str, int]] = Counter()  # by what was asked, and the error
        self.told: Counter[str] = Counter()  # what was answered, and is so
        self._address = address
        self._known = known
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._ask_on, name=f"asking {address}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join(PATIENCE_S + 5)
        assert not self._thread.is_alive() or error, "a question was not answered in its time"

    def _ask_on(self) -> None:
        while not self._is_over.is_set():
            try:
                with Wire(*self._address, timeout_s=PATIENCE_S) as wire:
                    while not self._is_over.is_set():
                        for ask in QUESTIONS:
                            self._take(ask(wire, self._known))
            except (OSError, struct.error):
                time.sleep(AGAIN_S)

    def _take(self, answers: Iterator[Said]) -> None:
        for what, error, is_so in answers:
            if error in DENIALS or (not error and not is_so):
                self.denied[what, error] += 1
            elif not error:
                self.told[what] += 1


def metadata(wire: Wire, known: Known) -> Iterator[Said]:
    named = MetadataRequest.MetadataRequestTopic
    for version, topic in (
        (9, named(name=known.topic)),
        (12, named(name=None, topic_id=known.topic_id)),
    ):
        request = MetadataRequest(topics=(topic,), allow_auto_topic_creation=False)
        (found,) = wire.ask(request, MetadataResponse, version).topics
        yield f"Metadata v{version}", found.error_code, bool(found.partitions)
    everything = wire.ask(MetadataRequest(topics=None), MetadataResponse, 9)
    yield "Metadata of all", 0, len(everything.topics) >= known.topics
    asked = DescribeTopicPartitionsRequest.TopicRequest(name=known.topic)
    paged = DescribeTopicPartitionsRequest(topics=(asked,), response_partition_limit=10)
    (one,) = wire.ask(paged, DescribeTopicPartitionsResponse, 0).topics
    yield "DescribeTopicPartitions", one.error_code, bool(one.partitions)


def fetch(wire: Wire, known: Known) -> Iterator[Said]:
    named = FetchRequest.FetchTopic
    for version in (11, 13):
        for offset in (0, known.end_offset):
            topic = named(
                topic=known.topic if version < 13 else "",
                topic_id=known.topic_id,
                partitions=(
                    named.FetchPartition(
                        partition=0, fetch_offset=offset, partition_max_bytes=1 << 20
                    ),
                ),
            )
            request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=(topic,))
            (found,) = wire.ask(request, FetchResponse, version).responses[0].partitions
            is_so = found.high_watermark >= known.end_offset and (offset > 0 or found.records)
            yield f"Fetch v{version} at {offset}", found.error_code, bool(is_so)


def list_offsets(wire: Wire, known: Known) -> Iterator[Said]:
    named = ListOffsetsRequest.ListOffsetsTopic
    for timestamp, offset in ((-1, known.end_offset), (-2, 0), (1_000, 0)):
        partition = named.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        request = ListOffsetsRequest(
            replica_id=-1,
            topics=(named(name=known.topic, partitions=(partition,)),),
            timeout_ms=2_000,
        )
        (found,) = wire.ask(request, ListOffsetsResponse, 10).topics[0].partitions
        yield f"ListOffsets of {timestamp}", found.error_code, found.offset == offset
    asked = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    epoch = OffsetForLeaderEpochRequest(
        topics=(
            asked(
                topic=known.topic,
                partitions=(asked.OffsetForLeaderPartition(partition=0, leader_epoch=0),),
            ),
        )
    )
    (end,) = wire.ask(epoch, OffsetForLeaderEpochResponse, 4).topics[0].partitions
    yield "OffsetForLeaderEpoch", end.error_code, end.end_offset == known.end_offset


def group(wire: Wire, known: Known) -> Iterator[Said]:
    asked = OffsetFetchRequest.OffsetFetchRequestGroup
    for version in (8, 10):
        by_id = version >= 10
        topic = asked.OffsetFetchRequestTopics(
            name="" if by_id else known.topic,
            topic_id=known.topic_id if by_id else ZERO_UUID,
            partition_indexes=(0,),
        )
        for what, topics in (("one", (topic,)), ("all", None)):
            request = OffsetFetchRequest(groups=(asked(group_id=known.group, topics=topics),))
            (found,) = wire.ask(request, OffsetFetchResponse, version).groups
            offsets = [
                (p.error_code, p.committed_offset) for t in found.topics for p in t.partitions
            ]
            is_so = offsets == [(0, known.committed)]
            yield f"OffsetFetch v{version} of {what}", found.error_code, is_so
    described = DescribeGroupsRequest(groups=(known.group,))
    (one,) = wire.ask(described, DescribeGroupsResponse, 6).groups
    yield "DescribeGroups", one.error_code, one.group_state == "Empty"
    yield "OffsetCommit", commit(wire, known), True


def commit(wire: Wire, known: Known) -> int:
    """The group's offset, as somebody who is no member commits it; the error."""
    topic = OffsetCommitRequest.OffsetCommitRequestTopic
    partition = topic.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=known.committed, committed_metadata=""
    )
    request = OffsetCommitRequest(
        group_id=known.group,
        member_id="",
        topics=(topic(name=known.topic, partitions=(partition,)),),
    )
    (found,) = wire.ask(request, OffsetCommitResponse, 8).topics[0].partitions
    return int(found.error_code)


QUESTIONS: Final[tuple[Callable[[Wire, Known], Iterator[Said]], ...]] = (
    metadata,
    fetch,
    list_offsets,
    group,
)
