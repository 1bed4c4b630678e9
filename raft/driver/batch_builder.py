"""Writes offsets and epochs into batches: proposers draft them, the log's leader stamps them.

A batch is complete but for two header fields, which no checksum covers: its base offset and its
epoch. A proposer hands over the bytes of one batch or of many (`raft.interfaces.Draft`); the core
accepts or refuses the whole draft as one unit, and the driver writes each batch's offset and epoch
into a copy just before the append. So a thousand small requests of one turn of the loop cost the
core one proposal.

Source: KIP-98, Message Format (what the CRC leaves out).
"""

from __future__ import annotations

import struct
from typing import Final

from raft.core.events import NewBatch
from raft.interfaces import Draft
from records.types import Epoch, Offset

_put_offset: Final = struct.Struct(">q").pack_into
_put_epoch: Final = struct.Struct(">i").pack_into
_EPOCH_AT: Final = 12


def new_batch(draft: Draft) -> NewBatch:
    """Create a NewBatch of the Raft core from a batch builder's draft."""
    return NewBatch(sum(draft.counts), sum(map(len, draft.parts)), draft)


def stamp_batches(draft: Draft, base_offset: Offset, epoch: Epoch) -> bytearray:
    """Return a copy of the draft's batches with this epoch and offsets from `base_offset`."""
    data = bytearray().join(draft.parts)
    position, offset = 0, int(base_offset)
    for part, count in zip(draft.parts, draft.counts, strict=True):
        _put_offset(data, position, offset)
        _put_epoch(data, position + _EPOCH_AT, epoch)
        position += len(part)
        offset += count
    return data
