"""Forgetting producers that have been silent for longer than `producer.id.expiration.ms`.

Time is the only reason: neither DeleteRecords nor retention touches producers. So the age of a
producer id says whether state of it can ever have been forgotten, and a commit relies on that.

The trap is the clock: of the wall clock and the steady one, the one that is behind counts.
Otherwise a wall clock that jumps a day ahead would forget every producer at once, and their retries
would be stored twice.

Source: docs/design/batch-coordinator.md#idempotence; Kafka's ProducerStateManager, which goes by
the clock as well.
"""

from __future__ import annotations

from coordinator.batch.decide.base import Context, Decision
from coordinator.batch.reads import Candidates
from coordinator.batch.state import Tables
from records.diskless import ProducersExpiredRecord


def decide_expired_producers(
    tables: Tables, candidates: Candidates, context: Context
) -> Decision[None]:
    """Forget idle producers that have not appended in pending state either."""
    before_ms = min(context.now_ms, context.steady_ms) - context.settings.producer_expiration_ms
    keys = []
    for key in candidates.idle_producers(before_ms, context.settings.maintenance_limit):
        producer = tables.producers.get(key)
        if producer is not None and producer[1] < before_ms:
            keys.append(key)
    if not keys:
        return Decision((), None)
    log_ids, producer_ids = zip(*sorted(keys), strict=True)
    return Decision((ProducersExpiredRecord(log_ids=log_ids, producer_ids=producer_ids),), None)
