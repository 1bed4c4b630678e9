"""Counts durations and sizes in buckets, for Prometheus histograms."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Histogram:
    """Counts values of one kind in buckets; by default durations in seconds.

    >>> took = Histogram()
    >>> took.add(0.02), took.add(0.3), took.count, round(took.sum, 2)
    (None, None, 2, 0.32)
    >>> [count for bound, count in took.cumulative_counts() if bound in ("0.025", "0.5", "+Inf")]
    [1, 2, 2]
    """

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float] = BOUNDS_S) -> None:
        """Create a histogram of empty buckets with these inclusive, rising upper bounds."""
        self.sum = 0.0
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)

    def add(self, value: float) -> None:
        """Count one value in the histogram bucket that covers the value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """Return the number of values that the histogram has counted in all buckets."""
        return sum(self._counts)

    def cumulative_counts(self) -> Iterator[tuple[str, int]]:
        """Yield each bound with the number of values up to that bound, as Prometheus expects."""
        so_far = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            so_far += count
            yield bound, so_far
