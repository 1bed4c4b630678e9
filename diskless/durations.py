"""Counts durations in buckets, for a Prometheus histogram."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Durations:
    """Durations of one kind of work, in seconds.

    >>> took = Durations()
    >>> took.add(0.02), took.add(0.3), took.count, round(took.sum_s, 2)
    (None, None, 2, 0.32)
    >>> [count for bound, count in took.cumulative_counts() if bound in ("0.025", "0.5", "+Inf")]
    [1, 2, 2]
    """

    __slots__ = ("_counts", "sum_s")

    def __init__(self) -> None:
        self.sum_s = 0.0
        self._counts = [0] * (len(BOUNDS_S) + 1)

    def add(self, seconds: float) -> None:
        """Count one duration in its histogram bucket."""
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    @property
    def count(self) -> int:
        return sum(self._counts)

    def cumulative_counts(self) -> Iterator[tuple[str, int]]:
        """Yield each bound with the number of durations up to that bound, as Prometheus expects."""
        so_far = 0
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self._counts, strict=True):
            so_far += count
            yield bound, so_far
