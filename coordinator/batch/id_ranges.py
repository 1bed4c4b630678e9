"""Sets of object ids as ranges: most ids of a lease are committed, and the others lie together.

A set is a sorted tuple of disjoint, non-touching pairs (first, end), end exclusive.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

Ranges = tuple[tuple[int, int], ...]


def contains(ranges: Ranges, number: int) -> bool:
    """Return whether a number lies in one of the ranges.

    >>> contains(((1, 3), (5, 6)), 2), contains(((1, 3), (5, 6)), 3)
    (True, False)
    """
    at = bisect_right(ranges, number, key=lambda pair: pair[0])
    return at > 0 and number < ranges[at - 1][1]


def appended(ranges: Ranges, first: int, end: int) -> Ranges:
    """Return the ranges with [first, end) appended, or unchanged if [first, end) is empty.

    >>> appended(((1, 3),), 3, 5), appended(((1, 3),), 4, 5), appended(((1, 3),), 4, 4)
    (((1, 5),), ((1, 3), (4, 5)), ((1, 3),))
    """
    if first >= end:
        return ranges
    if ranges and ranges[-1][1] == first:
        return (*ranges[:-1], (ranges[-1][0], end))
    assert not ranges or ranges[-1][1] < first, f"{first} is not behind {ranges}"
    return (*ranges, (first, end))


def added(ranges: Ranges, number: int) -> Ranges:
    """Return the ranges with one more number, or unchanged if they contain the number.

    >>> added(((1, 3), (4, 5)), 3), added(((1, 3),), 0), added(((1, 3),), 2)
    (((1, 5),), ((0, 3),), ((1, 3),))
    """
    if contains(ranges, number):
        return ranges
    joined: list[tuple[int, int]] = []
    for first, end in sorted((*ranges, (number, number + 1))):
        if joined and joined[-1][1] == first:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((first, end))
    return tuple(joined)


def without(ranges: Ranges, numbers: Iterable[int]) -> Ranges:
    """Return the ranges without `numbers`, ignoring numbers outside of the ranges.

    >>> without(((1, 4), (6, 7)), [6, 2, 9])
    ((1, 2), (3, 4))
    """
    left = list(ranges)
    for number in sorted(set(numbers)):
        at = bisect_right(left, number, key=lambda pair: pair[0]) - 1
        if at >= 0 and number < left[at][1]:
            first, end = left[at]
            left[at : at + 1] = [
                pair for pair in ((first, number), (number + 1, end)) if pair[0] < pair[1]
            ]
    return tuple(left)


def numbers(ranges: Ranges) -> Iterator[int]:
    """Yield all numbers in the ranges, in rising order."""
    for first, end in ranges:
        yield from range(first, end)


def flat(ranges: Ranges) -> tuple[int, ...]:
    """Return the ranges as one flat tuple with the first number and the end of each range."""
    return tuple(number for pair in ranges for number in pair)


def from_flat(flattened: tuple[int, ...]) -> Ranges:
    """Rebuild the ranges from a flat tuple of the first number and the end of each range."""
    return tuple(zip(flattened[::2], flattened[1::2], strict=True))
