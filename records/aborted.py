"""Tells which batches of a partition belong to aborted transactions, batch by rising offset.

    aborted = AbortedBatches([(producer_id, first_offset), ...])
    aborted.covers(header)

Consumers with `isolation.level=read_committed` do the same with the list of a Fetch response. The
list must have every aborted transaction that ends at or above the first batch asked about, and no
other one; all markers of these transactions must still be among the batches.

The trap: a producer has one open transaction at a time, so its next marker ends the entry that it
has begun. A marker without an entry ends a committed transaction, or one without batches here.

Source: KIP-98; Kafka's CleanedTransactionMetadata; docs/design/compaction.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from records.batch import Batch, BatchHeader
from records.cleaning import empty_batch


class AbortedBatches:
    """Aborted transactions whose markers lie ahead. Headers must come by rising offset."""

    def __init__(self, entries: Iterable[tuple[int, int]]) -> None:
        """Begin before the first batch.

        Args:    entries: (producer id, first offset) of each aborted transaction, in any order.
        """
        self._firsts: dict[int, list[int]] = {}
        for producer_id, first_offset in sorted(entries, key=lambda each: -each[1]):
            self._firsts.setdefault(producer_id, []).append(first_offset)

    @property
    def is_empty(self) -> bool:
        """Return whether none of these producers has aborted a transaction."""
        return not self._firsts

    def ended_by(self, header: BatchHeader) -> int | None:
        """Return the first offset of the aborted transaction that a marker ends, if it is one."""
        firsts = self._firsts.get(header.producer_id)
        return firsts[-1] if firsts and firsts[-1] <= header.base_offset else None

    def covers(self, header: BatchHeader) -> bool:
        """Return whether a batch of data was aborted; note the markers among the batches."""
        firsts = self._firsts.get(header.producer_id)
        if not firsts or firsts[-1] > header.base_offset:
            return False
        if header.is_control:
            firsts.pop()
            return False
        return header.is_transactional


class TransactionReader:
    """Reads a partition's batches for compaction, which must come by rising offset.

    It empties batches of aborted transactions, and finds the markers of transactions of which no
    batch is left: these may go once their delete horizon has passed. A batch that is kept empty
    counts, as in Kafka.
    """

    def __init__(self, aborted: Iterable[tuple[int, int]], *, from_log_start: bool) -> None:
        """Begin before the first batch.

        Args:    aborted: as of `AbortedBatches`.
                 from_log_start: whether no batch lies before the first one. If some do, the first
                 marker of each producer may end one of them, and is kept.
        """
        self._aborted = AbortedBatches(aborted)
        self._with_batches: set[int] = set()
        self._known: set[int] | None = None if from_log_start else set()
        self.unused_markers: dict[int, tuple[int, int] | None] = {}
        """By base offset: the aborted transaction (producer id, first offset) that the marker
        ends, or None."""

    def read(self, batches: Sequence[Batch]) -> list[Batch]:
        """Return batches of which those of aborted transactions have no records.

        Why: an aborted record must not count as the newest of its key.
        """
        return [self._read(batch) for batch in batches]

    def _read(self, batch: Batch) -> Batch:
        header = batch.header
        if header.is_control:
            self._note_marker(header)
            return batch
        if header.is_transactional:
            self._with_batches.add(header.producer_id)
        return empty_batch(header) if self._aborted.covers(header) else batch

    def _note_marker(self, header: BatchHeader) -> None:
        producer_id, first_offset = header.producer_id, self._aborted.ended_by(header)
        self._aborted.covers(header)
        is_known = self._known is None or producer_id in self._known
        if self._known is not None:
            self._known.add(producer_id)
        if producer_id in self._with_batches:
            self._with_batches.remove(producer_id)
        elif is_known:
            entry = None if first_offset is None else (producer_id, first_offset)
            self.unused_markers[header.base_offset] = entry
