"""Forgetting producers that have been silent for longer than `producer.id.expiration.ms`.

Time is the only reason: neither DeleteRecords nor retention touches producers. Each record carries
the largest producer id that was ever forgotten here, so a commit knows whether state of a producer
can have been forgotten, whatever the clocks say. The records that dismantle a deleted topic do not
raise it.

A log without that number, which older code began, gets it by a first record: the largest id that
is old enough to have been forgotten. That is the rule such logs had for each commit.

The trap is the clock: of the wall clock and the steady one, the one that is behind counts.
Otherwise a wall clock that jumps a day ahead would forget every producer at once, and their retries
would be stored twice.

Source: docs/design/batch-coordinator.md#idempotence; Kafka's ProducerStateManager, which goes by
the clock as well.
"""

from __future__ import annotations

from coordinator.batch.decide.base import Context, Decision
from coordinator.batch.reads import Candidates
from coordinator.batch.state import UNKNOWN_ID, Tables
from coordinator.features import may_write_format
from records.diskless import ProducersExpiredRecord


def decide_expired_producers(
    tables: Tables, candidates: Candidates, context: Context
) -> Decision[None]:
    """Delete the states of producers that have not appended within the expiration time."""
    before_ms = min(context.now_ms, context.steady_ms) - context.settings.producer_expiration_ms
    keys = []
    for key in candidates.idle_producers(before_ms, context.settings.maintenance_limit):
        producer = tables.producers.get(key)
        if producer is not None and producer[1] < before_ms:
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
    """Return the largest producer id that has expired, or UNKNOWN_ID below esker.version 2.

    The given producer ids count as expired.
    """
    known = tables.counters.largest_expired_id
    if known == UNKNOWN_ID:
        if not may_write_format(context.view.features(), 2):
            return UNKNOWN_ID
        before_ms = context.now_ms - context.settings.producer_expiration_ms
        known = context.view.last_producer_id_before(before_ms)
    return max(known, *producer_ids) if producer_ids else known
