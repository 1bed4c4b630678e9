"""Coordinators that are wrong in one way each about transactions: what the tests must notice.

Source: docs/design/transactions-batches.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest.mock import patch

from coordinator.batch import applying, memory, reads, runs
from coordinator.batch.decide import commit, markers, rewriting
from coordinator.batch.decide.commit import _Commit
from coordinator.batch.transactions import Transactional
from records.diskless import LogStartOffsetsRecord, TransactionMarkersRecord
from records.kafka_errors import ErrorCode

TABLE: Final[dict[Any, Any]] = applying._APPLY  # type: ignore[assignment]
MUTANTS: Final[dict[str, Callable[[], Any]]] = {}


def mutant(make: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    """Register a mutant under its name."""
    MUTANTS[make.__name__] = contextmanager(make)
    return make


@mutant
def the_number_of_a_batch_is_ignored() -> Iterator[None]:
    """A batch of an ended transaction, or of another one, is accepted."""
    with patch.object(Transactional, "accepts", lambda *_: True):
        yield


@mutant
def an_ended_number_is_accepted_again() -> Iterator[None]:
    """Only another open number is refused."""
    accepts = lambda self, number: self.open_number in (-1, number)  # noqa: E731
    with patch.object(Transactional, "accepts", accepts):
        yield


@mutant
def another_open_number_is_accepted() -> Iterator[None]:
    """Only an ended number is refused."""
    with patch.object(Transactional, "accepts", lambda self, number: number > self.ended_number):
        yield


@mutant
def duplicates_are_answered_after_the_number() -> Iterator[None]:
    """A repeated batch of an ended transaction is refused."""
    judge = _Commit._judge_batch

    def strict(self: Any, state: Any, proof: Any, *of_batch: Any) -> Any:
        refused = None if state is None else commit._judge_number(state[3], proof)
        return refused or judge(self, state, proof, *of_batch)

    with patch.object(_Commit, "_judge_batch", strict):
        yield


@mutant
def a_producer_without_batches_begins_anywhere() -> Iterator[None]:
    """A row that only a marker made says nothing about the sequence."""
    judge = _Commit._judge_batch

    def lenient(self: Any, state: Any, proof: Any, *of_batch: Any) -> Any:
        refused = judge(self, state, proof, *of_batch)
        accepts = (
            refused is not None and refused.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        )
        return None if accepts and state is not None and not state[2] else refused

    with patch.object(_Commit, "_judge_batch", lenient):
        yield


@mutant
def the_age_of_the_producer_id_alone_is_judged() -> Iterator[None]:
    """A young epoch, or one of version 2, begins anywhere."""
    with patch.object(_Commit, "_epoch_can_have_expired", lambda *_: True):
        yield


@mutant
def every_marker_clears_the_kept_batches() -> Iterator[None]:
    """The sequence begins at 0 after each transaction."""
    apply = TABLE[TransactionMarkersRecord]

    def clearing(tables: Any, record: Any) -> None:
        apply(tables, record)
        for key, (epoch, at_ms, _, row) in list(tables.producers.items()):
            if key[1] in record.producer_ids:
                tables.producers[key] = (epoch, at_ms, (), row)

    with patch.dict(TABLE, {TransactionMarkersRecord: clearing}):
        yield


@mutant
def no_marker_clears_the_kept_batches() -> Iterator[None]:
    """A new epoch of a marker keeps the batches of the old one."""
    apply = TABLE[TransactionMarkersRecord]

    def keeping(tables: Any, record: Any) -> None:
        before = dict(tables.producers.items())
        apply(tables, record)
        for key, (epoch, at_ms, _, row) in list(tables.producers.items()):
            if key in before:
                tables.producers[key] = (epoch, at_ms, before[key][2], row)

    with patch.dict(TABLE, {TransactionMarkersRecord: keeping}):
        yield


@mutant
def a_marker_is_not_idempotent() -> Iterator[None]:
    """A repeated marker takes another offset."""
    judge = markers._Writer.judge

    def repeating(self: Any, marker: Any) -> Any:
        tables = self._tables
        try:
            self._tables = _WithoutProducers(tables)
            return judge(self, marker)
        finally:
            self._tables = tables

    with patch.object(markers._Writer, "judge", repeating):
        yield


class _WithoutProducers:
    """Tables that have lost the producers' rows."""

    def __init__(self, tables: Any) -> None:
        self._tables = tables
        self.producers: dict[Any, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tables, name)


@mutant
def a_higher_marker_ends_a_lower_number() -> Iterator[None]:
    """Any marker ends the transaction that is open."""

    def end(row: Transactional | None, number: int, coordinator_epoch: int) -> Transactional:
        before = row or Transactional()
        return Transactional(-1, -1, max(before.ended_number, number), coordinator_epoch)

    with patch.object(applying, "ended", end):
        yield


@mutant
def a_marker_without_data_raises_no_number() -> Iterator[None]:
    """A marker for a partition without a batch leaves no row."""
    apply = TABLE[TransactionMarkersRecord]

    def forgetting(tables: Any, record: Any) -> None:
        apply(tables, record)
        for key, producer in list(tables.producers.items()):
            if not producer[2]:
                tables.producers.pop(key, None)

    with patch.dict(TABLE, {TransactionMarkersRecord: forgetting}):
        yield


@mutant
def an_open_transaction_expires() -> Iterator[None]:
    """Time alone decides which producers are forgotten."""
    closed = property(lambda _: False)
    with patch.object(Transactional, "is_open", closed):
        yield


@mutant
def runs_mix_transactions() -> Iterator[None]:
    """Batches that touch are one run, whichever transaction they belong to."""
    with patch.object(runs, "_transactions_of", lambda _: None):
        yield


@mutant
def the_last_stable_offset_is_the_high_watermark() -> Iterator[None]:
    """Readers of committed records see open transactions."""
    with ExitStack() as stack:
        for module in (reads, rewriting):
            stack.enter_context(patch.object(module, "last_stable_offset", lambda log, _: log[1]))
        yield


@mutant
def the_last_stable_offset_ignores_the_log_start() -> Iterator[None]:
    """An open transaction names its first offset though that is deleted."""

    def first_open(log: Any, transactions: Any) -> int:
        return int(transactions[0][0] if transactions else log[1])

    with ExitStack() as stack:
        for module in (reads, rewriting, markers):
            stack.enter_context(patch.object(module, "last_stable_offset", first_open))
        yield


@mutant
def the_log_start_ends_open_transactions() -> Iterator[None]:
    """A transaction whose first record is deleted holds nothing back."""
    move = TABLE[LogStartOffsetsRecord]

    def forgetting(tables: Any, record: Any) -> None:
        move(tables, record)
        for topic_index, partition in zip(record.topic_indexes, record.partitions, strict=True):
            log_id = tables.topics.get(record.topic_ids[topic_index]).log_ids[partition]
            log_start, _ = tables.logs.get(log_id)
            found = tables.open_transactions.get(log_id) or ()
            tables.open_transactions[log_id] = tuple(one for one in found if one[0] >= log_start)

    with patch.dict(TABLE, {LogStartOffsetsRecord: forgetting}):
        yield


@mutant
def the_aborted_list_is_dropped_with_the_marker() -> Iterator[None]:
    """An aborted transaction is forgotten as soon as it has ended."""
    with patch.object(memory, "aborted_of", lambda _: iter(())):
        yield


@mutant
def aborted_entries_go_with_their_first_offset() -> Iterator[None]:
    """The log start ends an entry whose marker is still to be read."""
    end = memory.InMemoryState._end_aborted

    def early(self: Any, log_id: int, named: Any = ()) -> None:
        log_start = self.logs[log_id][0]
        gone = {(e.producer_id, e.first_offset) for e in self.aborted.get(log_id, [])}
        end(self, log_id, [*named, *(one for one in gone if one[1] < log_start)])

    with patch.object(memory.InMemoryState, "_end_aborted", early):
        yield
