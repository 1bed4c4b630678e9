"""Who looks after topics and garbage while brokers upload, and reads what they have committed."""

from __future__ import annotations

import asyncio
import time
from itertools import count
from random import Random
from typing import Final

from coordinator.batch.client import CoordinatorClient
from coordinator.errors import OutcomeUnknownError
from records.kafka_errors import ErrorCode
from records.object_keys import ObjectKeys
from records.rpc.batch_coordinator import (
    DeleteDisklessRecordsRequest,
    FindBatchesRequest,
    ListDisklessOffsetsRequest,
)
from records.rpc.objects import (
    DeleteFilesRequest,
    GetFilesToDeleteRequest,
)
from records.rpc.topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from tests.nemesis.batch_history import (
    TOPIC_IS_GONE,
    EndRead,
    Partition,
    Place,
    Run,
    WrongHistoryError,
)
from tests.nemesis.brokers import CALL_MS, PARTITIONS, UNKNOWN_OUTCOME, Shared
from tests.waiting import Deadline

TOPICS: Final = 5
LATEST: Final = -1
EARLIEST: Final = -2
HIGH_WATERMARK: Final = -1


class Caretaker:
    """Creates and deletes topics, moves log starts, reads, and collects garbage."""

    def __init__(self, shared: Shared, random: Random) -> None:
        self._shared = shared
        self._random = random
        self._client = shared.client()
        self._names = count()

    async def work(self) -> None:
        try:
            while len(self._shared.topics) < TOPICS and not self._shared.stop.is_set():
                await self._create_topic()  # there are no brokers for them at first
                await asyncio.sleep(0.01)
            actions = (
                (0.1, self._change_topics),
                (0.4, self._delete_records),
                (0.6, self._delete_files),
                (0.8, self._read_end),
                (1.0, self._find),
            )
            while not self._shared.stop.is_set():
                chance = self._random.random()
                await next(action for bound, action in actions if chance < bound)()
                await asyncio.sleep(self._random.random() * 0.05)
        finally:
            await self._client.close()

    # --- topics, through the controller -------------------------------------------------------

    async def _change_topics(self) -> None:
        if len(self._shared.topics) < TOPICS or self._random.random() < 0.5:
            await self._create_topic()
        else:
            await self._delete_topic()

    async def _create_topic(self) -> None:
        """Every third has a bound. One of which nobody knows that it was created is never used."""
        number = next(self._names)
        retention_bytes = self._random.randrange(10_000, 30_000) if number % 3 == 0 else -1
        asked = CreateTopicsRequest.CreatableTopic
        config = asked.CreatableTopicConfig(name="retention.bytes", value=str(retention_bytes))
        topic = asked(
            name=f"topic-{number}", num_partitions=PARTITIONS, replication_factor=-1,
            assignments=(), configs=(config,),
        )  # fmt: skip
        answer = await self._shared.ask_controller(
            CreateTopicsRequest(topics=(topic,), timeout_ms=CALL_MS), CreateTopicsResponse
        )
        (result,) = answer.topics
        if not result.error_code:
            if retention_bytes > 0:
                self._shared.history.retention_bytes[result.topic_id] = retention_bytes
            self._shared.topics[result.topic_id] = topic.name
            self._shared.history.happened["topic created"] += 1

    async def _delete_topic(self) -> None:
        """Brokers hear of it later than the coordinator."""
        topic_id = self._random.choice(list(self._shared.topics))
        self._shared.history.deleted_topics.add(topic_id)
        state = DeleteTopicsRequest.DeleteTopicState(topic_id=topic_id)
        request = DeleteTopicsRequest(topics=(state,), timeout_ms=CALL_MS)
        answer = await self._shared.ask_controller(request, DeleteTopicsResponse)
        while answer.responses[0].error_code in UNKNOWN_OUTCOME:
            answer = await self._shared.ask_controller(request, DeleteTopicsResponse)
        if answer.responses[0].error_code not in (0, *TOPIC_IS_GONE):
            raise WrongHistoryError(f"{topic_id} not deleted: {answer}")
        await asyncio.sleep(0.2)
        del self._shared.topics[topic_id]
        self._shared.history.happened["topic deleted"] += 1

    # --- log starts and garbage ---------------------------------------------------------------

    async def _delete_records(self) -> None:
        shared, place = self._shared, self._shared.some_place(self._random)
        if place is None:
            return
        history, end_offset = shared.history, shared.ends[place]
        begun = history.log_starts.get(place, 0)
        offset = self._random.randint(begun, end_offset)
        if self._random.random() < 0.1:
            offset = HIGH_WATERMARK
        topic = DeleteDisklessRecordsRequest.Topic
        partition = topic.Partition(partition_index=place[1], offset=offset)
        request = DeleteDisklessRecordsRequest(
            topics=(topic(topic_id=place[0], partitions=(partition,)),)
        )
        try:
            answer = await self._client.call(request)
        except OutcomeUnknownError:
            if offset != HIGH_WATERMARK:
                raise  # only this may not be asked again
            history.doubtful.add(place)
            history.happened["deletion in doubt"] += 1
            return
        result = answer.responses[0].partitions[0]
        exact = offset != HIGH_WATERMARK and history.is_exact(place)
        lowest = end_offset if offset == HIGH_WATERMARK else offset
        low_watermark = result.low_watermark
        if result.error_code or low_watermark < lowest or (exact and low_watermark > lowest):
            raise WrongHistoryError(f"{place} up to {offset} of {end_offset}: {result}")
        history.log_starts[place] = low_watermark
        shared.ends[place] = max(low_watermark, end_offset)
        history.happened["log start moved"] += 1

    async def _delete_files(self) -> None:
        files = await self._client.call(
            GetFilesToDeleteRequest(coordinator_partition=0, max_files=20)
        )
        if files.error_code:
            raise WrongHistoryError(f"{files}")
        keys = tuple(file.object_key for file in files.files)
        if keys:
            answer = await self._client.call(
                DeleteFilesRequest(coordinator_partition=0, object_keys=keys)
            )
            gone = [key for key, error in zip(keys, answer.key_error_codes, strict=True)
                    if not error]  # fmt: skip
            self._shared.history.deleted_objects.update(map(self._shared.keys.object_id, gone))
            self._shared.history.happened["object deleted"] += len(gone)

    # --- reads --------------------------------------------------------------------------------

    async def _read_end(self) -> None:
        place = self._shared.some_place(self._random)
        if place is None:
            return
        topic = ListDisklessOffsetsRequest.Topic
        partition = topic.Partition(partition_index=place[1], timestamp=LATEST)
        request = ListDisklessOffsetsRequest(
            topics=(topic(topic_id=place[0], partitions=(partition,)),)
        )
        invoked = time.monotonic_ns()
        answer = await self._client.call(request)
        result = answer.responses[0].partitions[0]
        if result.error_code:
            raise WrongHistoryError(f"{place}: {result}")
        read = EndRead(invoked, time.monotonic_ns(), place, result.offset)
        self._shared.history.reads.append(read)

    async def _find(self) -> None:
        place = self._shared.some_place(self._random)
        if place is None:
            return
        offset = self._random.randint(
            self._shared.history.log_starts.get(place, 0), self._shared.ends[place]
        )
        found = await find(self._client, self._shared.keys, place, offset)
        if isinstance(found, Partition):
            self._shared.history.seen += [(place, run) for run in found.runs]


async def find(
    client: CoordinatorClient, keys: ObjectKeys, place: Place, offset: int, max_bytes: int = 50_000
) -> Partition | int:
    """What FindBatches says from an offset on; or its error."""
    topic = FindBatchesRequest.Topic
    partition = topic.Partition(partition_index=place[1], offset=offset, max_bytes=max_bytes)
    answer = await client.call(
        FindBatchesRequest(
            topics=(topic(topic_id=place[0], partitions=(partition,)),), max_bytes=2**30
        )
    )
    found = answer.responses[0].partitions[0]
    if found.error_code:
        return int(found.error_code)
    runs = tuple(
        Run(run.base_offset, run.last_offset, keys.object_id(run.object_key), run.size)
        for run in found.batches
    )
    return Partition(found.log_start_offset, found.high_watermark, runs)


async def find_all(client: CoordinatorClient, keys: ObjectKeys, place: Place) -> Partition | int:
    """A whole partition, asked for a chunk at a time; or an error.

    Retention may move the log start past the chunk that is asked for: then all is asked for again.
    """
    found = await _find_from(client, keys, place, 0)
    deadline = Deadline(f"{place} is read while retention moves its log start")
    while found == ErrorCode.OFFSET_OUT_OF_RANGE:
        await asyncio.sleep(deadline.pause_s())
        topic = ListDisklessOffsetsRequest.Topic
        partition = topic.Partition(partition_index=place[1], timestamp=EARLIEST)
        answer = await client.call(
            ListDisklessOffsetsRequest(topics=(topic(topic_id=place[0], partitions=(partition,)),))
        )
        result = answer.responses[0].partitions[0]
        if result.error_code:
            return int(result.error_code)
        found = await _find_from(client, keys, place, result.offset)
    return found


async def _find_from(
    client: CoordinatorClient, keys: ObjectKeys, place: Place, offset: int
) -> Partition | int:
    runs: list[Run] = []
    chunk = await find(client, keys, place, offset)
    while isinstance(chunk, Partition):
        runs += chunk.runs
        offset = runs[-1].last_offset + 1 if runs else offset
        if offset >= chunk.high_watermark or not chunk.runs:
            return chunk._replace(runs=tuple(runs))
        chunk = await find(client, keys, place, offset)
    return chunk
