"""The append buffer compared with a list as the model.

Source: docs/design/broker.md#produce.
"""

from __future__ import annotations

from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from diskless.produce.buffer import MAX_BUFFERED_BATCHES, AppendBuffer, AppendResult, ClosedBuffer
from records.wal import build_object, read_footer, verify_partition
from tests.diskless.produce_world import Sent, a_batch

TOPICS = (UUID(int=3), UUID(int=1), UUID(int=2))
BATCHES = st.lists(
    st.tuples(st.sampled_from(TOPICS), st.integers(0, 2), st.integers(1, 3), st.integers(1, 300)),
    max_size=30,
)


def closed_buffers(
    batches: list[tuple[UUID, int, int, int]], max_bytes: int
) -> tuple[list[Sent], list[ClosedBuffer]]:
    """Add all batches to one buffer; return the closed buffers in order."""
    buffer, sent, closed = AppendBuffer(max_bytes), [], []
    for number, (topic_id, partition, records, size) in enumerate(batches):
        one = Sent(number, (topic_id, partition), a_batch(number, records, size))
        sent.append(one)
        if not buffer.fits(one.accepted):
            closed.append(buffer.close())
        buffer.add(topic_id, partition, one.accepted, append_time=False, waiter=one)
        if buffer.is_full:
            closed.append(buffer.close())
    if buffer.batch_count:
        closed.append(buffer.close())
    return sent, closed


@given(batches=BATCHES, max_bytes=st.sampled_from([1, 200, 1_000, 10**6]))
@settings(max_examples=60, deadline=None)
def test_a_commit_request_has_the_position_of_each_buffered_batch_in_the_object(
    batches: list[tuple[UUID, int, int, int]], max_bytes: int
) -> None:
    sent, closed = closed_buffers(batches, max_bytes)
    assert sum(buffer.batch_count for buffer in closed) == len(sent)
    left = list(sent)
    for buffer in closed:
        parts, size_bytes = build_object(
            buffer.content, cluster_id="c", object_id=7, broker_id=1, broker_epoch=2
        )
        data = b"".join(parts)
        assert len(data) == size_bytes
        request = buffer.commit_request(
            broker_id=1, broker_epoch=2, lease_id=3, object_id=7, object_size=size_bytes,
            coordinator_partition=0,
        )  # fmt: skip
        found = [
            ((topic.topic_id, partition.partition_index), row)
            for topic in request.topics
            for partition in topic.partitions
            for row in partition.batches
        ]
        assert len({topic.topic_id for topic in request.topics}) == len(request.topics)
        results = [AppendResult(0, None, at) for at in range(len(found))]
        buffer.settle_each(results)
        mine, left = left[: buffer.batch_count], left[buffer.batch_count :]
        assert buffer.data_bytes <= max_bytes or len(mine) == 1, "more than fits"
        for one in mine:
            (result,) = one.results
            where, row = found[result.base_offset]
            assert where == one.where
            assert data[row.byte_offset : row.byte_offset + row.size] == one.accepted.batch.view
        for where in {where for where, _ in found}:
            own = [one.results[0].base_offset for one in mine if one.where == where]
            assert own == sorted(own), "a partition's batches are not in the order they came"
        for part in read_footer(data).partitions:
            verify_partition(part, data[part.byte_offset : part.byte_offset + part.size_bytes])
    assert not left


def test_a_produce_buffer_is_full_at_the_number_of_batches_that_a_commit_may_have() -> None:
    accepted = a_batch(1, 1, 1)
    buffer = AppendBuffer(10**9)
    for _ in range(MAX_BUFFERED_BATCHES):
        assert buffer.fits(accepted)
        sent = Sent(0, (TOPICS[0], 0), accepted)
        buffer.add(TOPICS[0], 0, accepted, append_time=False, waiter=sent)
    assert buffer.is_full
    assert not buffer.fits(accepted)
