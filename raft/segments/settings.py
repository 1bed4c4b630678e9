"""The settings of segments, and the result of an append."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from records.batch import MAX_BATCH_SIZE_BYTES
from records.types import Epoch, Offset

MAX_RELATIVE: Final = (1 << 31) - 1  # of offsets and positions: index entries are int32


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The limits at which a segment is closed. Defaults are Kafka's for the metadata log."""

    segment_bytes: int = 1 << 30  # metadata.log.segment.bytes; a larger batch gets its own
    segment_ms: int = 7 * 24 * 3600 * 1000  # metadata.log.segment.ms; by the batches' own times
    index_interval_bytes: int = 4096  # index.interval.bytes
    max_batch_size_bytes: int = MAX_BATCH_SIZE_BYTES
    recovery_point_interval_ms: int = 1000  # the most that may be flushed and not known to be

    def __post_init__(self) -> None:
        assert 0 < self.segment_bytes <= MAX_RELATIVE, f"positions are int32: {self}"


class Appended(NamedTuple):
    """The result of one append."""

    base_offset: Offset
    end_offset: Offset  # exclusive
    epoch: Epoch  # of its last batch
