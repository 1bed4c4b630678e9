"""Defines a report's window of time, cut into equal buckets.

The width of a bucket must be known before the first record is counted, or counts of different
pieces would not fit together. So both ends of the log are read first: one record at its beginning
and the last few at its end.

The trap: clocks step, so a commit's time can lie outside the window. It then counts in the first or
the last bucket; no clock can make a page of a million buckets.

Source: docs/design/pipeline.md#the-report.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from spark_jobs.readers.logs import Log
from spark_jobs.report.cube import Numbers

BUCKETS: Final = 120
"""Largest number of buckets: more than a page can show apart."""

_SECOND: Final = 1000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
WIDTHS_MS: Final = (
    *(n * _SECOND for n in (1, 2, 5, 10, 15, 30)),
    *(n * _MINUTE for n in (1, 2, 5, 10, 15, 30)),
    *(n * _HOUR for n in (1, 2, 3, 6, 12)),
    *(n * _DAY for n in (1, 2, 7, 30, 365)),
)
"""Widths of a bucket that are easy to read."""

_LAST_RECORDS: Final = (1, 64, 4096)
"""Offsets at a log's end that are searched for a data record: control records have no time."""


@dataclass(frozen=True, slots=True)
class Window:
    """Buckets [start, start + width) and so on; the last one holds `last_ms`."""

    start_ms: int  # ms since 1970, a multiple of the width
    last_ms: int
    width_ms: int

    def bucket(self, time_ms: int) -> int:
        """Return the start of the time bucket that a time falls into.

        >>> Window(60_000, 300_000, 60_000).bucket(61_000)
        60000
        """
        clipped = min(max(time_ms, self.start_ms), self.last_ms)
        return clipped - clipped % self.width_ms

    def buckets(self, times_ms: Numbers) -> Numbers:
        """Return the start of the time bucket that each time falls into."""
        clipped = np.clip(times_ms, self.start_ms, self.last_ms)
        return clipped - clipped % self.width_ms

    def starts(self) -> list[int]:
        """Return the start time of every bucket in the window."""
        return list(range(self.start_ms, self.bucket(self.last_ms) + 1, self.width_ms))


def window(first_ms: int, last_ms: int) -> Window:
    """Return the window between two times, divided into at most BUCKETS buckets of equal width.

    >>> window(1_000_500, 1_000_500 + 3_600_000).width_ms
    60000
    """
    last_ms = max(first_ms, last_ms)
    for width in WIDTHS_MS:
        start = first_ms - first_ms % width
        if (last_ms - start) // width < BUCKETS:
            return Window(start, last_ms, width)
    width = WIDTHS_MS[-1] * (1 + (last_ms - first_ms) // (WIDTHS_MS[-1] * (BUCKETS - 1)))
    return Window(first_ms - first_ms % width, last_ms, width)


def ends_of(logs: Iterable[tuple[Log, int]]) -> tuple[int, int] | None:
    """Return the times of the first and last record of all logs, or None if there are no records.

    Args:    logs: with the end offset of each, exclusive.
    Raises:  LostRangeError, DamagedFileError, RecordError; OSError.
    """
    times: list[int] = []
    for log, end in logs:
        times += _ends(log, end)
    return (min(times), max(times)) if times else None


def _ends(log: Log, end: int) -> list[int]:
    spans = [span for span in log.spans(end) if not span.is_checkpoint]
    first = next((place.timestamp_ms for span in spans for place, _ in span.values()), None)
    if first is None:
        return []
    begin = spans[0].start_offset
    for back in _LAST_RECORDS:
        last = log.spans(end, start_offset=max(begin, end - back))
        times = [place.timestamp_ms for span in last for place, _ in span.values()]
        if times:
            return [first, max(times)]
    return [first]
