"""Reads partitions from given offsets on, from the brokers that lead them.

A broker is asked for all of its partitions at once and may hold the question while there is nothing
new. Answers may begin before the offset asked for, since a batch comes whole, and may end inside a
batch: what is before is skipped, what is cut off is asked for again.

Source: KIP-74 (the first batch comes whole), KIP-392 (reading from another broker is not asked
for); upstream's Fetcher.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final, NamedTuple

from esker.client.client import EARLIEST, ClientError, KafkaClient
from raft.net.errors import NetError
from records.batch import Record, iter_batches, iter_records
from records.errors import RecordError
from records.kafka_errors import ErrorCode, error_name
from records.rpc.fetch import FetchRequest, FetchResponse

FETCH_VERSION: Final = 12  # the last that names topics
MAX_WAIT_MS: Final = 500
MAX_BYTES: Final = 16 * 1024 * 1024
PARTITION_BYTES: Final = 2 * 1024 * 1024
PAUSE_S: Final = 0.1


_Data = FetchResponse.FetchableTopicResponse.PartitionData


class Found(NamedTuple):
    """A record, and the partition it is in."""

    partition: int
    record: Record


class Reader:
    """Reads partitions of one topic. `positions` holds the offset to read next, by partition."""

    def __init__(self, client: KafkaClient, topic: str, positions: dict[int, int]) -> None:
        self.positions = dict(positions)
        self._client = client
        self._topic = topic
        self._leaders: dict[int, int] = {}

    async def poll(self) -> AsyncIterator[list[Found]]:
        """Fetch from all partition leaders in rounds; yield each round's records, possibly none.

        `positions` has moved past a list's records once the next one is asked for.
        Raises ClientError, and what the iteration is cancelled with.
        """
        while True:
            self._leaders = self._leaders or await self._client.leaders(self._topic)
            by_node: dict[int, list[int]] = {}
            for partition in self.positions:
                if partition not in self._leaders:  # the topic was made anew, smaller
                    raise ClientError(f"{self._topic} has no partition {partition} any more")
                by_node.setdefault(self._leaders[partition], []).append(partition)
            if not by_node:
                await asyncio.sleep(PAUSE_S)
                yield []
                continue
            answers = await asyncio.gather(
                *(self._fetch(node, partitions) for node, partitions in by_node.items())
            )
            found = [one for answer in answers for one in await self._records(answer)]
            yield found
            for one in found:
                if one.partition in self.positions:
                    self.positions[one.partition] = one.record.offset + 1

    async def _fetch(self, node: int, partitions: Iterable[int]) -> tuple[_Data, ...]:
        """Fetch these partitions from a broker; return an empty tuple for an unreachable broker."""
        wanted = FetchRequest.FetchTopic
        asked = tuple(
            wanted.FetchPartition(
                partition=partition,
                fetch_offset=self.positions[partition],
                partition_max_bytes=PARTITION_BYTES,
            )
            for partition in partitions
        )
        request = FetchRequest(
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=MAX_BYTES,
            topics=(wanted(topic=self._topic, partitions=asked),),
        )
        try:
            answer = await self._client.ask(
                node, request, FetchResponse, most=FETCH_VERSION, purpose="fetch"
            )
        except NetError:
            return await self._look_again()
        if answer.error_code:
            raise ClientError(f"{self._topic}: {error_name(answer.error_code)}", answer.error_code)
        return tuple(one for topic in answer.responses for one in topic.partitions)

    async def _look_again(self) -> tuple[_Data, ...]:
        await asyncio.sleep(PAUSE_S)
        self._leaders = await self._client.leaders(self._topic)
        return ()

    async def _records(self, answer: tuple[_Data, ...]) -> list[Found]:
        found: list[Found] = []
        for data in answer:
            partition = data.partition_index
            position = self.positions.get(partition)
            if position is None:
                continue
            if data.error_code:
                await self._settle(data)
                continue
            try:
                for batch in iter_batches(data.records or b"", allow_partial_tail=True):
                    records = () if batch.header.is_control else iter_records(batch)
                    new = [Found(partition, one) for one in records if one.offset >= position]
                    found += new
                    if not new:  # a control batch, or one whose records compaction removed
                        end_offset = batch.header.end_offset
                        self.positions[partition] = max(position, end_offset)
            except RecordError as error:
                raise ClientError(f"{self._topic}-{partition}: {error}") from error
        return found

    async def _settle(self, data: _Data) -> None:
        """Prepare the next Fetch after a partition's error, or raise an error that is permanent."""
        partition = data.partition_index
        name = f"{self._topic}-{partition}"
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            position = self.positions[partition]
            first = (await self._client.offsets(self._topic, {partition: EARLIEST}))[partition]
            if position > first:
                raise ClientError(f"{name}: offset {position} is beyond its end")
            self.positions[partition] = first  # what was there is deleted by now
            return
        failure = ClientError(f"{name}: {error_name(data.error_code)}", data.error_code)
        if not failure.passing:
            raise failure
        await self._look_again()
