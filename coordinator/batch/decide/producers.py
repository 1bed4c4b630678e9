"""Forgetting producers that have been silent for longer than `producer.id.expiration.ms`.

Time is the only reason: neither DeleteRecords nor retention touches producers. Each record carries
the largest producer id that was ever forgotten here, so a commit knows whether state of a producer
can have been forgotten, whatever the clocks say. The records that dismantle a deleted topic do not
raise it.

A log without that number, which older code began, gets it by a first record: the largest id that
is old enough to have been forgotten. That is the rule such logs had for each commit.

A producer with an open transaction is not forgotten: its partition's last stable offset waits for
the marker.

The trap is the clock: of the wall clock and steady time, the one that is behind counts. Otherwise a
wall clock that jumps a day ahead would forget every producer at once, and their retries would be
stored twice.

Source: docs/design/batch-coordinator.md#idempotence; Kafka's ProducerStateManager, which goes by
the clock as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from coordinator.batch.decide.base import Context, Decision
from coordinator.batch.reads import Candidates
from coordinator.batch.state import UNKNOWN_ID, LogId, Tables
from coordinator.batch.transactions import Transactional
from coordinator.features import may_write_format
from records.diskless import ProducersExpiredRecord
from records.kafka_errors import ErrorCode
from records.rpc.batch_coordinator import (
    DescribeDisklessProducersRequest,
    DescribeDisklessProducersResponse,
)

MAX_DESCRIBED_PARTITIONS: Final = 1_000
MAX_DESCRIBED: Final = 5_000
"""Producers in one description; the leader reads them in some tens of milliseconds."""


def decide_expired_producers(
    tables: Tables, candidates: Candidates, context: Context
) -> Decision[None]:
    """Delete the states of producers that have not appended within the expiration time."""
    before_ms = context.deletion_ms - context.settings.producer_expiration_ms
    keys = []
    for key in candidates.idle_producers(before_ms, context.settings.maintenance_limit):
        producer = tables.producers.get(key)
        if producer is None or producer[1] >= before_ms:
            continue
        if producer[3] is None or not producer[3].is_open:
            keys.append(key)
    log_ids, producer_ids = zip(*sorted(keys), strict=True) if keys else ((), ())
    largest = _largest_expired_id(tables, context, producer_ids)
    if not keys and largest == tables.counters.largest_expired_id:
        return Decision((), None)
    record = ProducersExpiredRecord(
        log_ids=log_ids, producer_ids=producer_ids, largest_expired_id=largest
    )
    return Decision((record,), None)


def _largest_expired_id(tables: Tables, context: Context, producer_ids: tuple[int, ...]) -> int:
    """Return the largest expired producer id, or UNKNOWN_ID if esker.version is still 1.

    The given producer ids count as expired.
    """
    known = tables.counters.largest_expired_id
    if known == UNKNOWN_ID:
        if not may_write_format(context.view.features(), 2):
            return UNKNOWN_ID
        before_ms = context.now_ms - context.settings.producer_expiration_ms
        known = context.view.last_producer_id_before(before_ms)
    return max(known, *producer_ids) if producer_ids else known


# --- describing ---------------------------------------------------------------------------------

_Topic = DescribeDisklessProducersResponse.Topic
_Partition = _Topic.Partition


def describe_producers(
    request: DescribeDisklessProducersRequest,
    tables: Tables,
    candidates: Candidates,
    context: Context,  # noqa: ARG001 (a leader's read)
) -> DescribeDisklessProducersResponse:
    """Describe the producers of the requested partitions, up to a total number of producers.

    Args:  tables: *applied* state, as are the candidates.
    """
    if sum(len(topic.partitions) for topic in request.topics) > MAX_DESCRIBED_PARTITIONS:
        message = f"a request may name at most {MAX_DESCRIBED_PARTITIONS} partitions"
        return DescribeDisklessProducersResponse(
            error_code=ErrorCode.INVALID_REQUEST, error_message=message
        )
    left, named_id = MAX_DESCRIBED, request.producer_id
    topics = []
    for named in request.topics:
        topic = tables.topics.get(named.topic_id)
        log_ids = () if topic is None or topic.deleted_at_ms >= 0 else topic.log_ids
        partitions = []
        for index in named.partitions:
            log_id = log_ids[index] if 0 <= index < len(log_ids) else -1
            if log_id < 0:
                unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                partitions.append(_Partition(partition_index=index, error_code=unknown))
                continue
            keys: Iterable[tuple[LogId, int]] = ((log_id, named_id),)
            if named_id < 0:
                keys = sorted(candidates.producers_of(log_id, left)) if left else ()
            producers = _described(keys, tables)
            left -= len(producers)
            partitions.append(_Partition(partition_index=index, producers=producers))
        topics.append(_Topic(topic_id=named.topic_id, partitions=tuple(partitions)))
    return DescribeDisklessProducersResponse(responses=tuple(topics))


def _described(
    keys: Iterable[tuple[LogId, int]], tables: Tables
) -> tuple[_Partition.Producer, ...]:
    """Return the descriptions of those of these producers that exist, with their transactions."""
    producers = []
    for key in keys:
        producer = tables.producers.get(key)
        if producer is not None:
            epoch, appended_at_ms, batches, transactional = producer
            of_transactions = transactional or Transactional()
            producers.append(
                _Partition.Producer(
                    producer_id=key[1],
                    producer_epoch=epoch,
                    last_sequence=batches[-1][1] if batches else -1,
                    appended_at_ms=appended_at_ms,
                    coordinator_epoch=of_transactions.coordinator_epoch,
                    current_txn_start_offset=of_transactions.first_offset,
                    open_number=of_transactions.open_number,
                )
            )
    return tuple(producers)
