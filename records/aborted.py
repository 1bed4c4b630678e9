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

from collections.abc import Iterable

from records.batch import BatchHeader


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

    def covers(self, header: BatchHeader) -> bool:
        """Return whether a batch of data was aborted; note the markers among the batches."""
        firsts = self._firsts.get(header.producer_id)
        if not firsts or firsts[-1] > header.base_offset:
            return False
        if header.is_control:
            firsts.pop()
            return False
        return header.is_transactional
