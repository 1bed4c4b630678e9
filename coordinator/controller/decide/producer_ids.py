"""Allocates producer ids in blocks.

The end of a block shows which ids are allocated, its time shows since when: a batch coordinator
must know whether a producer without state is new, or so old that its state may have expired
(docs/design/batch-coordinator.md#idempotence). The time is a tagged field that Java skips.

Source: KIP-730.
"""

from __future__ import annotations

from typing import Final

from coordinator.controller.decide.context import Context, Decision
from records.kafka_errors import ErrorCode
from records.metadata import ProducerIdsRecord
from records.rpc.brokers import AllocateProducerIdsRequest, AllocateProducerIdsResponse

LAST_PRODUCER_ID: Final = 2**63 - 1


def allocate_producer_ids(request: AllocateProducerIdsRequest, context: Context) -> Decision:
    """Allocate the next block of producer ids to a broker under its current epoch."""
    broker = context.image.brokers.get(request.broker_id)
    if broker is None:
        return _refuse(ErrorCode.BROKER_ID_NOT_REGISTERED)
    if broker.broker_epoch != request.broker_epoch:
        return _refuse(ErrorCode.STALE_BROKER_EPOCH)
    start = context.image.next_producer_id
    length = context.limits.producer_id_block
    if start > LAST_PRODUCER_ID - length:
        return _refuse(ErrorCode.POLICY_VIOLATION)
    record = ProducerIdsRecord(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        next_producer_id=start + length,
        block_time_ms=max(context.now_ms, _last_time(context)),
    )
    response = AllocateProducerIdsResponse(producer_id_start=start, producer_id_len=length)
    return Decision((record,), response)


def _last_time(context: Context) -> int:
    """Return the time of the last allocated block of producer ids, in ms since 1970.

    A leader whose clock is behind must not date blocks earlier.
    """
    blocks = context.image.producer_ids
    return blocks[-1].block_time_ms if blocks else 0


def _refuse(code: ErrorCode) -> Decision:
    return Decision(
        (), AllocateProducerIdsResponse(error_code=code, producer_id_start=0, producer_id_len=0)
    )
