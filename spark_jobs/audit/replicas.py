"""Replicas of one log against each other: the same offsets and epochs, the same bytes.

Each replica's batches are added up in blocks of offsets, wherever its files are read; the sums of
two replicas are compared, and only a block that differs is read again, to name the batch.

The surprise: followers store a leader's batches as they came. So what must agree is not only each
record but every byte of every batch, its borders too.

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
"""Offsets that are added up together."""


class Stored(NamedTuple):
    """A batch as one replica has it."""

    base_offset: int
    end_offset: int  # exclusive
    epoch: int
    crc: int  # of all its bytes


@dataclass(slots=True)
class Sums:
    """Of one replica's batches, by block."""

    blocks: dict[int, int] = field(default_factory=dict)

    def add(self, one: Stored) -> None:
        """A batch counts where it begins."""
        block = one.base_offset // BLOCK
        self.blocks[block] = (self.blocks.get(block, 0) + hash(one)) % 2**64

    def merge(self, other: Sums) -> None:
        """With another span's."""
        for block, number in other.blocks.items():
            self.blocks[block] = (self.blocks.get(block, 0) + number) % 2**64


def sums_of(span: Span) -> Sums:
    """One span's. Raises LostRangeError; RecordError; OSError."""
    sums = Sums()
    for one in stored_in(span):
        sums.add(one)
    return sums


def stored_in(span: Span) -> Iterator[Stored]:
    """The batches that begin in a span."""
    assert isinstance(span, BatchSpan), f"it has no batches: {span}"
    for batch in span.batches():
        header = batch.header
        if span.start_offset <= header.base_offset < span.end_offset:
            yield Stored(
                header.base_offset, header.end_offset, header.leader_epoch, crc32c(batch.view)
            )


def differing(ours: Sums, theirs: Sums) -> list[int]:
    """The blocks that are not the same, rising."""
    blocks = ours.blocks.keys() | theirs.blocks.keys()
    return sorted(b for b in blocks if ours.blocks.get(b, 0) != theirs.blocks.get(b, 0))


def batches_of(spans: Sequence[Span], block: int) -> dict[int, Stored]:
    """What a replica has in one block, by base offset."""
    narrowed = (span.within(block * BLOCK, (block + 1) * BLOCK - 1) for span in spans)
    found = (one for span in narrowed if span is not None for one in stored_in(span))
    return {one.base_offset: one for one in found}


@rule("replicas-agree", "2, 3", "Replicas have the same bytes at the same offset and epoch.")
def replicas_agree(
    name: str, other: str, ours: Mapping[int, Stored], theirs: Mapping[int, Stored]
) -> Faults:
    for offset in sorted(ours.keys() | theirs.keys()):
        one, its = ours.get(offset), theirs.get(offset)
        if one != its:
            what = f"{name} has {_told(one)}, {other} {_told(its)}"
            yield Fault(offset, what, "batch")


def _told(one: Stored | None) -> str:
    if one is None:
        return "no batch that begins here"
    return f"epoch {one.epoch} up to {one.end_offset}, crc {one.crc:#010x}"
