"""The overviews of a coordinator: of its topics, of one object, and of all.

KIP-1163's tool prints four figures of a topic: its offsets, the bytes it stores, the bytes of the
objects it is part of, and the bytes of those it was part of and has nothing left in. A fifth says
why a bucket is larger than its topics: dead bytes, of objects that the topic keeps alive, which no
live run uses.

Objects are shared, so figures of several topics do not add up: an object counts, whole, for each.

Source: KIP-1163, Command line tools.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, Protocol
from uuid import UUID

from coordinator.batch.runs import NOT_MARKED, StoredObject
from coordinator.batch.state import LogId, SmallTable, Table, Topic
from records.kafka_errors import ErrorCode
from records.object_keys import ForeignKeyError, ObjectKeys
from records.rpc.objects import (
    DescribeDisklessObjectRequest,
    DescribeDisklessObjectResponse,
    DescribeDisklessTopicsRequest,
    DescribeDisklessTopicsResponse,
)
from records.rpc.rewriting import (
    ListDisklessObjectsRequest,
    ListDisklessObjectsResponse,
    ObjectUse,
)
from records.types import ZERO_UUID

TopicAnswer = DescribeDisklessTopicsResponse.Topic
Owner = DescribeDisklessObjectResponse.Owner


class Described(Protocol):
    """An applied state as of one moment. A database is read off the event loop."""

    @property
    def applied_offset(self) -> int:
        """Return the offset after the last record that this state has applied."""

    @property
    def topics(self) -> SmallTable[UUID, Topic]:
        """Return the table of topics by topic id, including the tombstones of deleted topics."""

    @property
    def logs(self) -> Table[LogId, tuple[int, int]]:
        """Return the table of each partition's log start and high watermark, by log id."""

    def run_totals(self, log_id: LogId) -> tuple[int, int]:
        """Return the number and total bytes of a partition's undeleted runs of batches."""

    def objects_with_runs_of(self, log_ids: Sequence[LogId]) -> Iterable[int]:
        """Return the ids of objects with an undeleted run of batches of these partitions.

        An id may occur more than once.
        """

    def stored_objects(self, from_object_id: int = 0) -> Iterable[tuple[int, StoredObject]]:
        """Return the objects of the state from an object id on, with their ids, by rising id."""

    def stored_object(self, object_id: int) -> StoredObject | None:
        """Return an object of the state by its object id, or None if there is no such object."""

    def run_totals_in_object(self, log_id: LogId, object_id: int) -> tuple[int, int]:
        """Return the number and total bytes of a partition's undeleted runs in one object."""


def describe_topics(
    request: DescribeDisklessTopicsRequest, state: Described
) -> DescribeDisklessTopicsResponse:
    """Describe topics in the order of the request, or all undeleted topics sorted by name.

    Without objects it looks at topics and partitions only, however many objects there are.

    Of all, two may have one name: a topic that its controller has deleted and made anew, and has
    not told us of the first half yet.
    """
    living = [
        (topic.name, topic_id, topic)
        for topic_id, topic in state.topics.items()
        if topic.deleted_at_ms < 0
    ]
    chosen: list[tuple[str, UUID | None, Topic | None]]
    if request.topic_names is None:
        chosen = [*sorted(living, key=lambda one: (one[0], one[1].int))]
    else:
        by_name = {name: (topic_id, topic) for name, topic_id, topic in living}
        chosen = [(name, *by_name.get(name, (None, None))) for name in request.topic_names]
    live = {
        topic_id.bytes: set(state.objects_with_runs_of(_logs(topic)))
        for _, topic_id, topic in chosen
        if topic_id is not None and topic is not None and request.include_objects
    }
    sums = {topic_id: [0, 0, 0] for topic_id in live}  # of live objects, of past ones, dead
    for object_id, stored in state.stored_objects() if sums else ():
        for raw_id in stored.topics:
            if raw_id not in sums:
                continue
            if object_id in live[raw_id]:
                sums[raw_id][0] += stored.size_bytes
                sums[raw_id][2] += stored.size_bytes - stored.used_bytes
            else:
                sums[raw_id][1] += stored.size_bytes
    topics = []
    for name, topic_id, topic in chosen:
        if topic_id is None or topic is None:
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            topics.append(TopicAnswer(topic_id=ZERO_UUID, topic_name=name, error_code=unknown))
            continue
        object_bytes, past_object_bytes, dead_bytes = sums.get(topic_id.bytes, (0, 0, 0))
        topics.append(
            TopicAnswer(
                topic_id=topic_id,
                topic_name=name,
                object_bytes=object_bytes,
                past_object_bytes=past_object_bytes,
                dead_bytes=dead_bytes,
                partitions=tuple(_partitions(topic, state)),
            )
        )
    return DescribeDisklessTopicsResponse(applied_offset=state.applied_offset, topics=tuple(topics))


def describe_object(
    request: DescribeDisklessObjectRequest, state: Described, keys: ObjectKeys
) -> DescribeDisklessObjectResponse:
    """Describe an object: its sizes, and the partitions with undeleted batches in the object."""
    try:
        object_id = keys.object_id(request.object_key)
    except ForeignKeyError as error:
        return DescribeDisklessObjectResponse(
            error_code=ErrorCode.INVALID_REQUEST, error_message=str(error)
        )
    stored = state.stored_object(object_id)
    if stored is None:
        return DescribeDisklessObjectResponse(
            error_code=ErrorCode.INVALID_REQUEST,
            error_message=f"object {object_id} is not committed, or is removed already",
            applied_offset=state.applied_offset,
        )
    return DescribeDisklessObjectResponse(
        applied_offset=state.applied_offset,
        object_id=object_id,
        object_format=stored.object_format,
        size_bytes=stored.size_bytes,
        used_bytes=stored.used_bytes,
        broker_id=stored.broker_id,
        committed_at_ms=stored.committed_at_ms,
        marked_at_ms=max(stored.marked_at_ms, NOT_MARKED),
        owners=tuple(_owners(object_id, stored, state)),
    )


MAX_LISTED: Final = 10_000
"""Objects in one answer to ListDisklessObjects."""


def list_objects(
    request: ListDisklessObjectsRequest, state: Described
) -> ListDisklessObjectsResponse:
    """List objects by rising id, optionally only objects partly deleted before a given time."""
    if not 1 <= request.max_objects <= MAX_LISTED:
        message = f"{request.max_objects} objects, ask for 1 to {MAX_LISTED}"
        return ListDisklessObjectsResponse(
            error_code=ErrorCode.INVALID_REQUEST, error_message=message
        )
    before_ms = request.deleted_before_ms
    found = (
        (object_id, stored)
        for object_id, stored in state.stored_objects(request.from_object_id)
        if before_ms < 0 or _holds_deleted(stored, before_ms)
    )
    listed = list(islice(found, request.max_objects + 1))
    more = listed[request.max_objects :]
    return ListDisklessObjectsResponse(
        applied_offset=state.applied_offset,
        next_object_id=more[0][0] if more else -1,
        objects=tuple(
            ObjectUse(
                object_id,
                stored.size_bytes,
                stored.used_bytes,
                stored.object_format,
                stored.broker_id,
                stored.committed_at_ms,
                stored.marked_at_ms,
                stored.first_deletion_ms,
            )
            for object_id, stored in listed[: request.max_objects]
        ),
    )


def _holds_deleted(stored: StoredObject, before_ms: int) -> bool:
    """Return whether an object still in use lost its first run of batches before `before_ms`."""
    is_used = stored.marked_at_ms == NOT_MARKED and stored.used_bytes > 0
    return is_used and 0 <= stored.first_deletion_ms < before_ms


def _logs(topic: Topic) -> list[LogId]:
    return [log_id for log_id in topic.log_ids if log_id >= 0]


def _partitions(topic: Topic, state: Described) -> Iterable[TopicAnswer.Partition]:
    for partition, log_id in enumerate(topic.log_ids):
        log = state.logs.get(log_id)
        if log is None:
            continue
        run_count, stored_bytes = state.run_totals(log_id)
        yield TopicAnswer.Partition(
            partition_index=partition,
            log_start_offset=log[0],
            high_watermark=log[1],
            run_count=run_count,
            stored_bytes=stored_bytes,
        )


def _owners(object_id: int, stored: StoredObject, state: Described) -> Iterable[Owner]:
    for topic_id in (UUID(bytes=raw) for raw in stored.topics):
        topic = state.topics.get(topic_id)
        if topic is None:
            continue
        for partition, log_id in enumerate(topic.log_ids):
            run_count, used_bytes = (
                (0, 0) if log_id < 0 else state.run_totals_in_object(log_id, object_id)
            )
            if run_count:
                yield Owner(
                    topic_id=topic_id,
                    topic_name=topic.name,
                    partition_index=partition,
                    run_count=run_count,
                    used_bytes=used_bytes,
                )
