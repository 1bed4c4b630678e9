"""Delivers the outcomes of transactions, from the transaction log's leader to all that took part.

A transaction in a Prepare state has a marker for each of its partitions. A partition's marker goes
to the batch coordinator where the leader's image of the cluster places the partition, or to the
group log for `__consumer_offsets`. Each destination gets one request at a time, with the markers of
many transactions; what is not done is sent again after a pause, for ever: markers are idempotent by
the transaction's number. When all of a transaction's markers are done, `complete` is called.

The trap: a partition that the image does not have is either deleted or too new for the image. Only
an image at or past the transaction's `metadata_offset`, which had the topic, tells them apart.

No clock and no asyncio here.

Source: docs/design/transactions.md#endings; docs/design/transactions-batches.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from coordinator.transactions.state import State, TopicPartition, Transaction
from records.internal_topics import CONSUMER_OFFSETS
from records.kafka_errors import ErrorCode
from records.rpc import transaction_markers as rpc

log: Final = logging.getLogger("coordinator.transactions")

GROUP_LOG: Final = -1
"""The destination of markers for offsets of groups; others are batch coordinators' partitions."""

MAX_ROWS: Final = 200
"""Markers in one request: a batch coordinator decides and applies them in one turn, while the
commits of producers wait (`python -m bench.bench_markers`)."""

FIRST_PAUSE_MS: Final = 50
LAST_PAUSE_MS: Final = 1_000

_DONE: Final = frozenset({ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID})
"""Codes of a marker that need not be sent again; the second: the coordinator deleted the topic."""


class Row(NamedTuple):
    """The marker of one transaction for one partition."""

    transactional_id: str
    number: int
    producer_id: int
    producer_epoch: int
    is_committed: bool
    topic_id: UUID
    partition: int


Answered = Callable[[Sequence[int] | None], None]
"""Called with an error code for each row of a request, or None if there was no answer."""


class Places(Protocol):
    """The leader's image of the cluster, as far as markers need it."""

    def coordinator(self, topic_id: UUID, partition: int) -> int | None:
        """Return the batch coordinator of a partition, or None if the image lacks the partition."""

    def offset(self) -> int:
        """Return the offset up to which (exclusive) the cluster image has the log's records."""


@dataclass(slots=True)
class _Ending:
    """A transaction whose markers are being delivered."""

    remaining: set[TopicPartition]


@dataclass(slots=True)
class _Destination:
    """The rows that wait for one destination."""

    rows: list[Row] = field(default_factory=list)
    is_busy: bool = False  # a request is under way, or a pause
    pause_ms: int = FIRST_PAUSE_MS


@dataclass(slots=True)
class MarkerCounters:
    """Counts of markers, for metrics."""

    sent: int = 0  # rows
    repeated: int = 0
    refused: int = 0  # rows with a code that a repetition will not change


class MarkerDelivery:
    """Delivers markers while this node leads the transaction log."""

    def __init__(
        self,
        places: Places,
        *,
        send: Callable[[int, Sequence[Row], Answered], None],
        call_later: Callable[[int, Callable[[], None]], object],
        complete: Callable[[str, int], None],
    ) -> None:
        """Create a delivery of transaction markers with no marker to deliver.

        Args:  send: sends rows to a destination once, and calls back with the outcome.
               call_later: calls a function after a delay in ms.
               complete: called with the id and number of a transaction whose markers are all done.
        """
        self.counters = MarkerCounters()
        self._places = places
        self._send = send
        self._call_later = call_later
        self._complete = complete
        self._endings: dict[tuple[str, int], _Ending] = {}
        self._destinations: dict[int, _Destination] = {}
        self._lost: list[tuple[Row, int]] = []  # rows without a place, and their metadata offset
        self._round = 0  # rises when the delivery ends; late answers are dropped

    @property
    def transactions(self) -> int:
        """Return the number of transactions with undelivered markers."""
        return len(self._endings)

    def end(self) -> None:
        """Drop all markers, because this node does not lead any more."""
        self._round += 1
        self._endings.clear()
        self._destinations.clear()
        self._lost.clear()

    def add(self, transactional_id: str, transaction: Transaction) -> None:
        """Begin to deliver the markers of a transaction in a Prepare state."""
        key = (transactional_id, transaction.number)
        if key in self._endings:
            return
        self._endings[key] = _Ending(set(transaction.partitions))
        if not transaction.partitions:
            self._finish(key)
        for (topic_id, partition), name in transaction.partitions.items():
            row = Row(
                transactional_id,
                transaction.number,
                transaction.producer_id,
                transaction.producer_epoch,
                transaction.state is State.PREPARE_COMMIT,
                topic_id,
                partition,
            )
            if name == CONSUMER_OFFSETS:
                self._queue(GROUP_LOG, row)
            else:
                self._place(row, transaction.metadata_offset)

    def complete_later(self, transactional_id: str, number: int) -> None:
        """Call `complete` again after a pause, because the log refused the Complete record."""
        at = self._round
        self._call_later(
            LAST_PAUSE_MS,
            lambda: self._complete(transactional_id, number) if at == self._round else None,
        )

    def places_changed(self) -> None:
        """Look up the markers' destinations again, because the cluster image has changed."""
        lost, self._lost = self._lost, []
        for row, metadata_offset in lost:
            self._place(row, metadata_offset)

    def _place(self, row: Row, metadata_offset: int) -> None:
        found = self._places.coordinator(row.topic_id, row.partition)
        if found is not None:
            self._queue(found, row)
        elif self._places.offset() >= metadata_offset:
            self._done(row)  # the image is past one that had the topic: it is deleted
        else:
            self._lost.append((row, metadata_offset))

    def _queue(self, destination: int, row: Row) -> None:
        self._destinations.setdefault(destination, _Destination()).rows.append(row)
        self._next(destination)

    def _next(self, destination: int) -> None:
        """Send waiting markers to a destination without a request in flight, in a later turn.

        Source: rows of one turn go in one request.
        """
        found = self._destinations[destination]
        if found.is_busy or not found.rows:
            return
        found.is_busy = True
        at = self._round
        self._call_later(0, lambda: self._send_rows(destination) if at == self._round else None)

    def _send_rows(self, destination: int) -> None:
        found = self._destinations[destination]
        rows, found.rows = found.rows[:MAX_ROWS], found.rows[MAX_ROWS:]
        self.counters.sent += len(rows)
        at = self._round

        def answered(codes: Sequence[int] | None) -> None:
            if at == self._round:
                self._on_answer(destination, rows, codes)

        self._send(destination, rows, answered)

    def _on_answer(
        self, destination: int, rows: Sequence[Row], codes: Sequence[int] | None
    ) -> None:
        """Record the written markers, and send the others again to their current destinations."""
        found = self._destinations[destination]
        again = list(rows)
        if codes is not None and len(codes) == len(rows):
            again = [row for row, code in zip(rows, codes, strict=True) if code not in _DONE]
            self._note_refusals(codes)
            for row, code in zip(rows, codes, strict=True):
                if code in _DONE:
                    self._done(row)
        if not again:
            found.is_busy, found.pause_ms = False, FIRST_PAUSE_MS
            self._next(destination)
            return
        self.counters.repeated += len(again)
        pause_ms, found.pause_ms = found.pause_ms, min(2 * found.pause_ms, LAST_PAUSE_MS)
        at = self._round
        self._call_later(
            pause_ms, lambda: self._repeat(destination, again) if at == self._round else None
        )

    def _note_refusals(self, codes: Iterable[int]) -> None:
        """Count and log error codes that repetition is unlikely to change; markers are repeated."""
        refused = [
            code
            for code in codes
            if code in (ErrorCode.INVALID_REQUEST, ErrorCode.OFFSET_OUT_OF_RANGE)
        ]
        if refused:
            self.counters.refused += len(refused)
            log.error("action=write_markers refused=%d code=%d", len(refused), refused[0])

    def _repeat(self, destination: int, rows: Sequence[Row]) -> None:
        """Queue markers again after a pause, for the current destinations of their partitions."""
        self._destinations[destination].is_busy = False
        for row in rows:
            if destination == GROUP_LOG:
                self._queue(GROUP_LOG, row)
                continue
            found = self._places.coordinator(row.topic_id, row.partition)
            if found is None:  # the image had it when the row was first placed: it is deleted
                self._done(row)
            else:
                self._queue(found, row)
        self._next(destination)

    def _done(self, row: Row) -> None:
        key = (row.transactional_id, row.number)
        ending = self._endings.get(key)
        if ending is None:
            return
        ending.remaining.discard((row.topic_id, row.partition))
        if not ending.remaining:
            self._finish(key)

    def _finish(self, key: tuple[str, int]) -> None:
        del self._endings[key]
        self._complete(*key)


def coordinator_request(
    destination: int, rows: Sequence[Row], coordinator_epoch: int
) -> rpc.WriteTransactionMarkersRequest:
    """Build the request that delivers markers to a batch coordinator."""
    topics = {topic_id: at for at, topic_id in enumerate(dict.fromkeys(r.topic_id for r in rows))}
    return rpc.WriteTransactionMarkersRequest(
        coordinator_partition=destination,
        topic_ids=tuple(topics),
        markers=tuple(
            rpc.TransactionMarker(
                topics[row.topic_id],
                row.partition,
                row.producer_id,
                row.producer_epoch,
                row.number,
                int(row.is_committed),
                coordinator_epoch,
            )
            for row in rows
        ),
    )
