"""FindBatches answers read into columns are what the message's own decoder reads.

Source: `records.rpc.batch_coordinator`.
"""

from __future__ import annotations

import contextlib
import pickle
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from records.codec import encode_message
from records.errors import RecordError
from records.rpc.batch_coordinator import AbortedTransaction, FindBatchesResponse
from spark_jobs.topics.broker_coordinates import found_in
from spark_jobs.topics.coordinates import FINAL, MARKER, FoundRun, Runs, TopicPartition, Wanted
from spark_jobs.topics.find_columns import FoundMarker, read_answer

Topic = FindBatchesResponse.Topic
Batch = Topic.Partition.Batch

longs = st.integers(-(1 << 63), (1 << 63) - 2)
keys = st.text(max_size=12) | st.sampled_from(["x" * 200, "é/7", "a/0/17"])
batches = st.builds(
    Batch,
    object_key=keys.filter(lambda key: "\0" not in key),
    byte_offset=longs,
    size=longs,
    base_offset=longs,
    last_offset=longs,
    log_append_timestamp=longs.filter(lambda time: time > -(1 << 63)),
    batch_max_timestamp=longs,
    message_timestamp_type=st.sampled_from([0, 1]),
    producer_id=longs,
    producer_epoch=st.integers(-1, 9),
    object_format=st.sampled_from([0, 1, 2]),
    record_count=st.integers(-1, 9),
    marker_outcome=st.sampled_from([-1, 0, 1]),
    coordinator_epoch=st.integers(-1, 9),
)
partitions = st.builds(
    Topic.Partition,
    partition_index=st.integers(0, 9),
    error_code=st.sampled_from([0, 1]),
    log_start_offset=longs,
    high_watermark=longs,
    last_stable_offset=st.sampled_from([-1, 5]),
    batches=st.lists(batches, max_size=6).map(tuple),
    aborted=st.lists(st.builds(AbortedTransaction, longs, longs), max_size=3).map(tuple),
)
responses = st.builds(
    FindBatchesResponse,
    responses=st.lists(
        st.builds(
            Topic, topic_id=st.uuids(), partitions=st.lists(partitions, max_size=2).map(tuple)
        ),
        max_size=3,
    ).map(tuple),
)


@given(responses)
def test_columns_are_what_the_messages_own_decoder_reads(response: FindBatchesResponse) -> None:
    found = iter(read_answer(encode_message(response, 0)))
    for topic in response.responses:
        for told in topic.partitions:
            one = next(found)
            assert one[:4] == (
                topic.topic_id, told.partition_index, told.error_code, told.log_start_offset
            )  # fmt: skip
            assert one.aborted == told.aborted
            stored = [batch for batch in told.batches if batch.object_format != MARKER]
            assert list(one.runs) == [
                FoundRun(
                    batch.object_key,
                    batch.byte_offset,
                    batch.size,
                    batch.base_offset,
                    batch.last_offset + 1,
                    batch.object_format == FINAL,
                    batch.log_append_timestamp
                    if batch.message_timestamp_type and batch.object_format != FINAL
                    else None,
                )
                for batch in stored
            ]
            assert list(one.markers) == [
                FoundMarker(
                    batch.base_offset,
                    batch.batch_max_timestamp,
                    batch.producer_id,
                    batch.producer_epoch,
                    batch.marker_outcome,
                    batch.coordinator_epoch,
                )
                for batch in told.batches
                if batch.object_format == MARKER
            ]
    assert next(found, None) is None


def test_damaged_answers_raise_nothing_but_record_errors() -> None:
    fields = {"log_append_timestamp": 1, "batch_max_timestamp": 2, "message_timestamp_type": 1}
    run = Batch(object_key="a/7", byte_offset=1, size=2, base_offset=3, last_offset=4, **fields)
    marker = Batch(
        object_key="", byte_offset=0, size=0, base_offset=5, last_offset=5, object_format=0,
        marker_outcome=1, coordinator_epoch=7, **fields,
    )  # fmt: skip
    partition = Topic.Partition(
        partition_index=1,
        log_start_offset=0,
        high_watermark=6,
        batches=(run, marker),
        aborted=(AbortedTransaction(7, 3),),
    )
    topic = Topic(topic_id=UUID(int=9), partitions=(partition,))
    body = encode_message(FindBatchesResponse(responses=(topic,)), 0)
    for size in range(len(body)):
        with pytest.raises(RecordError):
            read_answer(body[:size])
    for position in range(len(body)):
        for bit in range(8):
            damaged = bytearray(body)
            damaged[position] ^= 1 << bit
            with contextlib.suppress(RecordError):
                read_answer(damaged)


def test_a_range_ends_where_the_answer_or_the_range_does() -> None:
    fields = {"log_append_timestamp": 1, "batch_max_timestamp": 2, "message_timestamp_type": 0}
    runs = tuple(
        Batch(object_key="k", byte_offset=0, size=9, base_offset=at, last_offset=at + 9, **fields)
        for at in (0, 10, 20)
    )
    marker = Batch(
        object_key="", byte_offset=0, size=0, base_offset=30, last_offset=30, object_format=0,
        **fields,
    )  # fmt: skip
    partition = Topic.Partition(
        partition_index=0, log_start_offset=0, high_watermark=31, batches=(*runs, marker)
    )
    topic = Topic(topic_id=UUID(int=9), partitions=(partition,))
    (answer,) = read_answer(encode_message(FindBatchesResponse(responses=(topic,)), 0))
    for first, end, count, at in ((5, 31, 3, 31), (5, 25, 3, 25), (5, 20, 2, 20), (0, 10, 1, 10)):
        found = found_in(Wanted(TopicPartition("t", 0), first, end), answer)
        assert found is not None
        assert (len(found.runs), found.end_offset, found.markers) == (count, at, ())
    nothing = answer._replace(runs=answer.runs[:0], markers=())
    assert found_in(Wanted(TopicPartition("t", 0), 5, 31), nothing) is None


def test_runs_are_a_sequence_of_rows_that_survives_slices_and_pickling() -> None:
    rows = [
        FoundRun(f"key/{n}" * n, n, 10, 5 * n, 5 * n + 5, n % 2 == 0, n or None) for n in range(5)
    ]
    runs = Runs.of(rows)
    assert list(runs) == rows
    assert (runs[3], runs[-1]) == (rows[3], rows[-1])
    assert list(runs[1:3]) == rows[1:3]
    assert pickle.loads(pickle.dumps(runs[2:])) == Runs.of(rows[2:])
    assert list(Runs.of([])) == []
