"""Keeps the event loop responsive: long work is sliced (`Pace`), or goes to a thread.

Both measures rest on counts, not on a clock, so that a simulation runs the same way each time.

Source: invariant 10 (docs/design/invariants.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from struct import Struct
from typing import Final

from records.batch import COMPRESSION_MASK
from records.compression import Buffer

SLICE_PARTITIONS: Final = 100  # described between two turns of the loop: about 1.5 ms
MANY_RECORDS: Final = 20_000  # about 10 ms
MUCH_COMPRESSED: Final = 256 * 1024  # bytes: less is done before a thread has its turn
INLINE_BYTES: Final = 4 * 1024 * 1024  # decompressed on the loop, about 3 ms; more in a thread

_WEIGHT: Final = Struct(">22xB34xi")  # of a batch's header: attributes, record count


class Pace:
    """Yields to the event loop after every `SLICE_PARTITIONS` steps."""

    def __init__(self) -> None:
        self._left = SLICE_PARTITIONS

    async def step(self, count: int = 1) -> None:
        """Count the work of one partition, or of several; let other tasks run in between."""
        self._left -= count
        if self._left <= 0:
            self._left = SLICE_PARTITIONS
            await asyncio.sleep(0)


def takes_long(batches: Iterable[Buffer | None]) -> bool:
    """Return whether reading these batches' records would block the event loop for long.

    The headers are not checked. A batch that understates its record count gains nothing: no more
    than that many of its records are read.
    """
    records = compressed = 0
    for batch in batches:
        if batch is not None and len(batch) >= _WEIGHT.size:
            attributes, count = _WEIGHT.unpack_from(batch)
            records += max(0, count)
            if attributes & COMPRESSION_MASK:
                compressed += len(batch)
    return records > MANY_RECORDS or compressed > MUCH_COMPRESSED
