"""The overview of topics and objects: shared objects, dead bytes, and what was and is no more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from coordinator.batch.describe import describe_object, describe_topics
from coordinator.batch.sqlite import database
from coordinator.batch.sqlite.described import described
from coordinator.batch.sqlite.store import Store
from records.diskless import (
    DisklessPartitionsRecord,
    DisklessTopicTombstoneRecord,
    LeaseGrantedRecord,
    LogStartOffsetsRecord,
    ObjectCommitRecord,
)
from records.object_keys import ObjectKeys
from records.rpc.objects import (
    DescribeDisklessObjectRequest,
    DescribeDisklessObjectResponse,
    DescribeDisklessTopicsRequest,
    DescribeDisklessTopicsResponse,
)

FOO, BAR = UUID(int=1), UUID(int=2)
KEYS = ObjectKeys(prefix="p", cluster_id="abc", coordinator_partition=0)
NOW = 1_700_000_000_000


def commit(
    object_id: int, size: int, batches: list[tuple[UUID, int, int, int, int]]
) -> ObjectCommitRecord:
    """Batches as (topic, partition, base offset or -1 if refused, byte offset, bytes); 10 each."""
    topics = tuple(dict.fromkeys(batch[0] for batch in batches))
    ones = (0,) * len(batches)
    return ObjectCommitRecord(
        object_id=object_id, object_format=1, size_bytes=size, broker_id=1, broker_epoch=1,
        lease_id=0, committed_at_ms=NOW + object_id, topic_ids=topics,
        topic_indexes=tuple(topics.index(batch[0]) for batch in batches),
        partitions=tuple(batch[1] for batch in batches),
        batch_counts=(1,) * len(batches),
        byte_offsets=tuple(batch[3] for batch in batches),
        byte_sizes=tuple(batch[4] for batch in batches),
        base_offsets=tuple(batch[2] for batch in batches),
        record_counts=(10,) * len(batches),
        max_timestamps=ones, timestamp_types=ones, producer_ids=(-1,) * len(batches),
        producer_epochs=(-1,) * len(batches), base_sequences=(-1,) * len(batches),
        error_codes=tuple(45 if batch[2] < 0 else 0 for batch in batches), duplicates=(),
    )  # fmt: skip


def log_start(partition: int, offset: int) -> LogStartOffsetsRecord:
    return LogStartOffsetsRecord(
        topic_ids=(FOO,), topic_indexes=(0,), partitions=(partition,),
        log_start_offsets=(offset,), reason=0,
    )  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Object 0 is shared by foo-0, foo-1 and bar-0 and has a refused batch; object 1 is foo-0's."""
    path = tmp_path / "state.db"
    store = Store(path, database.create(path))
    for first, (topic_id, name, count) in enumerate([(FOO, "foo", 2), (BAR, "bar", 1)]):
        store.apply(
            DisklessPartitionsRecord(
                topic_id=topic_id, topic_name=name, first_partition=0, partition_count=count,
                first_log_id=2 * first, controller_epoch=1,
            )
        )  # fmt: skip
    store.apply(
        LeaseGrantedRecord(
            lease_id=0, broker_id=1, broker_epoch=1, first_object_id=0, object_count=9,
            granted_at_ms=NOW, closed_lease_ids=(),
        )
    )  # fmt: skip
    shared = [(FOO, 0, 0, 0, 100), (FOO, 1, 0, 100, 100), (BAR, 0, 0, 200, 50)]
    store.apply(commit(0, 300, shared))
    store.apply(commit(1, 250, [(FOO, 0, 10, 0, 200), (FOO, 1, -1, 200, 50)]))
    store.flush()
    yield store
    store.close()


def topics(store: Store, *names: str) -> dict[str, DescribeDisklessTopicsResponse.Topic]:
    store.flush()
    request = DescribeDisklessTopicsRequest(coordinator_partition=0, topic_names=names or None)
    found = described(store.path, lambda moment: describe_topics(request, moment))
    return {one.topic_name: one for one in found.topics}


def object_0(store: Store, key: str = KEYS.key(0)) -> DescribeDisklessObjectResponse:
    store.flush()
    request = DescribeDisklessObjectRequest(coordinator_partition=0, object_key=key)
    return described(store.path, lambda moment: describe_object(request, moment, KEYS))


def sums(topic: DescribeDisklessTopicsResponse.Topic) -> tuple[int, int, int]:
    return topic.object_bytes, topic.past_object_bytes, topic.dead_bytes


def test_an_object_with_batches_of_several_topics_counts_fully_in_the_description_of_each_topic(
    store: Store,
) -> None:
    found = topics(store)
    assert sums(found["foo"]) == (550, 0, 50 + 50)  # 50 bytes of each object are nobody's
    assert sums(found["bar"]) == (300, 0, 50)
    first, second = found["foo"].partitions
    assert (first.high_watermark, first.run_count, first.stored_bytes) == (20, 2, 300)
    assert (second.high_watermark, second.run_count, second.stored_bytes) == (10, 1, 100)


def test_a_topic_description_that_excludes_objects_reads_no_object_rows(store: Store) -> None:
    """A request for the partitions alone does not pay for a million objects."""

    class Blind:
        applied_offset = 7
        topics, logs, run_totals = store.topics, store.logs, store.run_totals

    request = DescribeDisklessTopicsRequest(coordinator_partition=0, include_objects=False)
    found = describe_topics(request, Blind())  # type: ignore[arg-type]
    assert [sums(topic) for topic in found.topics] == [(0, 0, 0)] * 2
    assert [
        (topic.topic_name, [(one.partition_index, one.high_watermark) for one in topic.partitions])
        for topic in found.topics
    ] == [("bar", [(0, 10)]), ("foo", [(0, 20), (1, 10)])]


def test_a_topics_described_bytes_include_unreferenced_objects_until_they_are_deleted(
    store: Store,
) -> None:
    store.apply(log_start(0, 10))
    assert sums(topics(store)["foo"]) == (550, 0, 150 + 50)
    store.apply(log_start(1, 10))
    found = topics(store)
    assert sums(found["foo"]) == (250, 300, 50)
    assert sums(found["bar"]) == (300, 0, 250), "bar keeps 250 dead bytes alive"
    assert found["foo"].partitions[0].log_start_offset == 10


def test_an_object_description_lists_the_partitions_with_undeleted_batches(store: Store) -> None:
    found = object_0(store)
    assert (found.object_id, found.size_bytes, found.used_bytes) == (0, 300, 250)
    assert (found.broker_id, found.object_format, found.committed_at_ms) == (1, 1, NOW)
    owners = [(one.topic_name, one.partition_index, one.used_bytes) for one in found.owners]
    assert owners == [("foo", 0, 100), ("foo", 1, 100), ("bar", 0, 50)]
    store.apply(log_start(0, 20))
    owners = [(one.topic_name, one.partition_index) for one in object_0(store).owners]
    assert owners == [("foo", 1), ("bar", 0)]


def test_describe_topics_returns_topics_in_request_order_with_errors_for_unknown_names(
    store: Store,
) -> None:
    store.apply(DisklessTopicTombstoneRecord(topic_id=BAR, controller_epoch=1, deleted_at_ms=NOW))
    found = topics(store, "nope", "foo", "bar")
    assert list(found) == ["nope", "foo", "bar"]
    assert [topic.error_code for topic in found.values()] == [3, 0, 3]
    assert list(topics(store)) == ["foo"], "a deleted topic is not listed"


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("elsewhere/00/abc/0/0", "not a key of this coordinator"),
        (KEYS.key(5), "object 5 is not committed, or is removed already"),
    ],
)
def test_describing_an_unknown_object_key_returns_an_error_with_the_reason(
    store: Store, key: str, why: str
) -> None:
    found = object_0(store, key)
    assert found.error_code == 42
    assert why in (found.error_message or "")
