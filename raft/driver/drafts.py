"""Batches on their way into a log: drafted by whoever proposes, placed once they are accepted.

A batch is complete but for two header fields, which no checksum covers: its base offset and its
epoch. Whoever proposes hands over the bytes of one batch or of many; the core judges the whole
draft as one unit, and the driver writes each batch's place into a copy just before the append. So a
thousand small requests of one turn of the loop cost the core one proposal.

Source: KIP-98, Message Format (what the CRC leaves out).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from raft.core.events import NewBatch
from records.batch_writer import build_value_batch
from records.compression import Buffer
from records.types import Epoch, Offset

_put_offset: Final = struct.Struct(">q").pack_into
_put_epoch: Final = struct.Struct(">i").pack_into
_EPOCH_AT: Final = 12


class Draft(NamedTuple):
    """Whole batches without a place; `counts` says how many offsets each takes."""

    parts: Sequence[Buffer]
    counts: Sequence[int]

    def new_batch(self) -> NewBatch:
        """What the core is asked to append: one unit, whatever is in it."""
        return NewBatch(sum(self.counts), sum(map(len, self.parts)), self)

    def place(self, base_offset: Offset, epoch: Epoch) -> bytearray:
        """A copy of all batches, back to back, from `base_offset` on."""
        data = bytearray().join(self.parts)
        position, offset = 0, int(base_offset)
        for part, count in zip(self.parts, self.counts, strict=True):
            _put_offset(data, position, offset)
            _put_epoch(data, position + _EPOCH_AT, epoch)
            position += len(part)
            offset += count
        return data


def draft_values(values: Sequence[Buffer], *, timestamp_ms: int) -> Draft:
    """One batch of records without keys: how metadata records are written."""
    batch = build_value_batch(values, base_offset=0, leader_epoch=0, timestamp=timestamp_ms)
    return Draft((batch,), (len(values),))
