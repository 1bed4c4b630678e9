"""Compares replicas of one log: the same offsets and epochs, the same bytes.

Each replica's batches are added up in blocks of offsets, wherever its files are read. The sums of
two replicas are compared, and only a block that differs is read again, to name the batch.

Why whole batches: followers store a leader's batches as they came. So not only each record must
agree but every byte of every batch, and the borders between batches.

Source: invariants 2 and 3 (docs/design/invariants.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from crc32c import crc32c

from spark_jobs.audit.log import BatchSpan
from spark_jobs.audit.rules import Fault, Faults, rule
from spark_jobs.readers.logs import Span

BLOCK: Final = 1024
"""Number of offsets that are added up together."""


class StoredBatch(NamedTuple):
    """A batch as one replica stores it."""

    base_offset: int
    end_offset: int  # exclusive
    epoch: int
    crc: int  # of all its bytes


@dataclass(slots=True)
class BlockSums:
    """Sums of one replica's batches, by block of offsets."""

    blocks: dict[int, int] = field(default_factory=dict)

    def add(self, batch: StoredBatch) -> None:
        """Add a batch's hash to the sum of the block in which the batch begins."""
        block = batch.base_offset // BLOCK
        self.blocks[block] = (self.blocks.get(block, 0) + hash(batch)) % 2**64

    def merge(self, other: BlockSums) -> None:
        """Add the block sums of another span of the log."""
        for block, number in other.blocks.items():
            self.blocks[block] = (self.blocks.get(block, 0) + number) % 2**64


def sum_span(span: Span) -> BlockSums:
    """Sum the hashes of the batches in a span of the log, by block of offsets.

    Raises:  LostRangeError; RecordError; OSError.
    """
    sums = BlockSums()
    for batch in batches_in_span(span):
        sums.add(batch)
    return sums


def batches_in_span(span: Span) -> Iterator[StoredBatch]:
    """Yield the batches that begin in a span of the log."""
    assert isinstance(span, BatchSpan), f"it has no batches: {span}"
    for batch in span.batches():
        header = batch.header
        if span.start_offset <= header.base_offset < span.end_offset:
            yield StoredBatch(
                header.base_offset, header.end_offset, header.leader_epoch, crc32c(batch.view)
            )


def differing_blocks(ours: BlockSums, theirs: BlockSums) -> list[int]:
    """Return, in rising order, the blocks of offsets whose hash sums differ in two replicas."""
    blocks = ours.blocks.keys() | theirs.blocks.keys()
    return sorted(b for b in blocks if ours.blocks.get(b, 0) != theirs.blocks.get(b, 0))


def batches_in_block(spans: Sequence[Span], block: int) -> dict[int, StoredBatch]:
    """Return a replica's batches that begin in one block of offsets, by base offset."""
    narrowed = (span.within(block * BLOCK, (block + 1) * BLOCK - 1) for span in spans)
    found = (batch for span in narrowed if span is not None for batch in batches_in_span(span))
    return {batch.base_offset: batch for batch in found}


@rule("replicas-agree", "2, 3", "Replicas have the same bytes at the same offset and epoch.")
def replicas_agree(
    name: str, other: str, ours: Mapping[int, StoredBatch], theirs: Mapping[int, StoredBatch]
) -> Faults:
    for offset in sorted(ours.keys() | theirs.keys()):
        batch, other_batch = ours.get(offset), theirs.get(offset)
        if batch != other_batch:
            what = f"{name} has {_describe(batch)}, {other} {_describe(other_batch)}"
            yield Fault(offset, what, "batch")


def _describe(batch: StoredBatch | None) -> str:
    if batch is None:
        return "no batch that begins here"
    return f"epoch {batch.epoch} up to {batch.end_offset}, crc {batch.crc:#010x}"
