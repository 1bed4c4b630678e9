"""Compares open transactions of partitions with the transaction log.

The transaction log decides how a transaction ends, delivers markers until each partition has one,
and only then notes the end. So a transaction that ended there some minutes ago and is still open in
a partition hangs: no marker comes for it any more.

The trap is time. The logs are read one after the other, and a node may know less of one than of the
other; so the transaction log is read first, and an end counts only after a grace.

Source: docs/design/transactions.md#states; invariant 13 (docs/design/invariants.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from records.frame import decode_record, read_frame
from records.transactions import (
    TransactionalIdRemovedRecord,
    TransactionPartitionsRecord,
    TransactionStateRecord,
)
from spark_jobs.audit.commits import COMMIT
from spark_jobs.audit.rules import Fault, Faults, rule
from spark_jobs.audit.transactions import GRACE_MS, Open, ProducerKey
from spark_jobs.readers.logs import Log, Span

TRANSACTION_LOG: Final = "__transaction_state-0"

ONGOING: Final = 1
UNFINISHED: Final = frozenset({ONGOING, 2, 3})
"""States in which markers are still to come: Ongoing, PrepareCommit, PrepareAbort."""

_KEYS: Final = {
    record.schema().key
    for record in (
        TransactionStateRecord, TransactionPartitionsRecord, TransactionalIdRemovedRecord,
    )
}  # fmt: skip


class IdState(NamedTuple):
    """The newest transaction of a transactional id."""

    transactional_id: str
    producer_id: int
    number: int
    state: int
    updated_at_ms: int


def newest_transactions(log: Log) -> dict[int, IdState]:
    """Return the newest transaction of each producer id that the transaction log knows.

    Raises:  LogsError, LostRangeError; RecordError; OSError.
    """
    return fold_spans(log.spans(log.end_offset()))


def fold_spans(spans: Iterable[Span]) -> dict[int, IdState]:
    """Apply the records of the transaction log, and return the newest transactions by producer."""
    ids: dict[str, IdState] = {}
    for span in spans:
        for _, value in span.values():
            if read_frame(value)[0] not in _KEYS:
                continue
            match decode_record(value):
                case TransactionStateRecord() as set_to:
                    ids[set_to.transactional_id] = IdState(
                        set_to.transactional_id, set_to.producer_id, set_to.transaction_number,
                        set_to.state, set_to.updated_at_ms,
                    )  # fmt: skip
                case TransactionPartitionsRecord(transactional_id=name) as added if name in ids:
                    ids[name] = ids[name]._replace(
                        number=added.transaction_number, state=ONGOING,
                        updated_at_ms=added.added_at_ms,
                    )  # fmt: skip
                case TransactionalIdRemovedRecord(transactional_id=name):
                    ids.pop(name, None)
    return {state.producer_id: state for state in ids.values()}


@rule(
    "open-not-ended", "13",
    "No transaction is open in a partition five minutes after it ended in the transaction log.",
)  # fmt: skip
def open_not_ended(
    opened: Mapping[ProducerKey, Open], known: Mapping[int, IdState], now_ms: int
) -> Faults:
    for ((topic_id, index), producer_id), one in opened.items():
        name = f"{topic_id}-{index}: producer {producer_id}, number {one.number}"
        name += f", is open from offset {one.first_offset} on"
        state = known.get(producer_id)
        if state is None:
            if one.since_ms + GRACE_MS < now_ms:
                yield Fault(None, f"{name}, and the transaction log has no such producer", COMMIT)
            continue
        if state.number < one.number:
            if one.since_ms + GRACE_MS < now_ms:
                what = f"the transaction log knows numbers up to {state.number} of the producer"
                yield Fault(None, f"{name}, and {what}", COMMIT)
            continue
        is_over = state.number > one.number or state.state not in UNFINISHED
        if is_over and state.updated_at_ms + GRACE_MS < now_ms:
            what = f"transactional id {state.transactional_id!r} is at number {state.number}"
            yield Fault(None, f"{name}, and {what}, state {state.state}", COMMIT)
