"""What brokers were told of their batches, and whether one order of batches explains it.

Every batch has a number of its own that stays when it is sent again, be it in the same object or in
another one, by another broker. Then the claims can be checked one by one: each accepted batch has
offsets that nobody else has, they leave no gap, a duplicate is told the offset of its first commit,
the order agrees with real time, and what can be found is what was accepted.

Source: invariants 5, 6 and 7 (docs/design/invariants.md).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

Place = tuple[UUID, int]
"""A topic's id and a partition."""

NONE: Final = 0
UNKNOWN_PARTITION: Final = 3
OUT_OF_ORDER: Final = 45
OLD_EPOCH: Final = 47
UNKNOWN_TOPIC: Final = 100
TOPIC_IS_GONE: Final = frozenset({UNKNOWN_PARTITION, UNKNOWN_TOPIC})


class WrongHistoryError(Exception):
    """No order of batches explains what brokers were told, and what is there now."""


class Batch(NamedTuple):
    """One batch on its way."""

    number: int  # the same for all attempts
    place: Place
    producer_id: int
    epoch: int
    sequence: int
    records: int
    size: int  # bytes
    again: bool = False  # it was acknowledged before


class Outcome(NamedTuple):
    """What a broker was told of one batch."""

    error_code: int
    base_offset: int
    is_duplicate: bool


class Committed(NamedTuple):
    """An object and what became of its batches."""

    object_id: int
    invoked: int  # time.monotonic_ns
    returned: int
    batches: tuple[Batch, ...]
    outcomes: tuple[Outcome, ...]


class EndRead(NamedTuple):
    """A linearizable read of a partition's end."""

    invoked: int
    returned: int
    place: Place
    offset: int


class Run(NamedTuple):
    """What FindBatches says: these offsets lie in this object."""

    base_offset: int
    last_offset: int
    object_id: int
    size: int


class Partition(NamedTuple):
    """A partition as it is found in the end."""

    log_start_offset: int
    high_watermark: int
    runs: tuple[Run, ...]


class _Tile(NamedTuple):
    """Offsets that an accepted batch got."""

    base_offset: int
    end_offset: int
    object_id: int
    invoked: int
    returned: int


@dataclass
class History:
    """Everything that was said to brokers, a reader and a garbage collector."""

    committed: list[Committed] = field(default_factory=list)
    reads: list[EndRead] = field(default_factory=list)
    seen: list[tuple[Place, Run]] = field(default_factory=list)
    log_starts: dict[Place, int] = field(default_factory=dict)  # as DeleteRecords answered last
    doubtful: set[Place] = field(default_factory=set)  # where a deletion may have happened
    retention_bytes: dict[UUID, int] = field(default_factory=dict)  # of topics that have a bound
    deleted_objects: set[int] = field(default_factory=set)
    deleted_topics: set[UUID] = field(default_factory=set)
    happened: Counter[str] = field(default_factory=Counter)

    def check(self, final: Mapping[Place, Partition]) -> None:
        """Was it one order of batches, and is it what is there?

        Args:    final: every partition of every topic that is there in the end.
        Raises:  WrongHistoryError.
        """
        tiles = self._tiles()
        for place, row in tiles.items():
            _check_order(place, row)
        for read in self.reads:
            _check_read(read, tiles.get(read.place, []))
        for place, run in self.seen:
            _check_run(place, run, tiles.get(place, []))
        for place, partition in final.items():
            if place[0] in self.deleted_topics:
                raise WrongHistoryError(f"{place} was deleted, and is there: {partition}")
            self._check_partition(place, partition, tiles.get(place, []))
        for place in tiles:
            if place not in final and place[0] not in self.deleted_topics:
                raise WrongHistoryError(f"{place} is gone, and nobody deleted it")

    def is_exact(self, place: Place) -> bool:
        """Does nobody move the log's start but whoever says so in `log_starts`?"""
        return place not in self.doubtful and place[0] not in self.retention_bytes

    def _tiles(self) -> dict[Place, list[_Tile]]:
        """The accepted batches by partition and offset; every other outcome is judged."""
        first: dict[int, int] = {}  # by a batch's number
        tiles: dict[Place, list[_Tile]] = defaultdict(list)
        for one in self.committed:
            for batch, outcome in zip(one.batches, one.outcomes, strict=True):
                if outcome.error_code or outcome.is_duplicate:
                    continue
                base = outcome.base_offset
                if first.setdefault(batch.number, base) != base:
                    raise WrongHistoryError(
                        f"committed twice: {batch}, at {first[batch.number]} and {base}"
                    )
                end = base + batch.records
                tiles[batch.place].append(
                    _Tile(base, end, one.object_id, one.invoked, one.returned)
                )
        for one in self.committed:
            for batch, outcome in zip(one.batches, one.outcomes, strict=True):
                self._judge(batch, outcome, first)
        for row in tiles.values():
            row.sort()
        return tiles

    def _judge(self, batch: Batch, outcome: Outcome, first: Mapping[int, int]) -> None:
        """Duplicates and refusals: were they right?"""
        error = outcome.error_code
        if error in TOPIC_IS_GONE and batch.place[0] in self.deleted_topics:
            return
        if error:
            if batch.again and error in (OUT_OF_ORDER, OLD_EPOCH):
                return  # its producer has gone on; no offset was given a second time
            raise WrongHistoryError(f"refused with {error}: {batch}")
        if outcome.is_duplicate and first.get(batch.number) != outcome.base_offset:
            raise WrongHistoryError(
                f"{outcome} for {batch}, which was first at {first.get(batch.number)}"
            )
        if batch.again and not outcome.is_duplicate:
            raise WrongHistoryError(f"accepted again: {batch}, {outcome}")

    def _check_partition(self, place: Place, found: Partition, row: Sequence[_Tile]) -> None:
        end = row[-1].end_offset if row else 0
        if found.high_watermark != end:
            raise WrongHistoryError(
                f"{place} ends at {found.high_watermark}, but commits up to {end} were acknowledged"
            )
        self._check_start(place, found)
        offset = found.log_start_offset
        for run in found.runs:
            _check_run(place, run, row)
            if not run.base_offset <= offset <= run.last_offset:
                raise WrongHistoryError(f"{place} at {offset}: {run} is found")
            if run.object_id in self.deleted_objects:
                raise WrongHistoryError(f"{place}: {run} lies in an object that was deleted")
            offset = run.last_offset + 1
        if offset != end:
            raise WrongHistoryError(f"{place}: nothing is found from {offset} to {end}")

    def _check_start(self, place: Place, found: Partition) -> None:
        start, told = found.log_start_offset, self.log_starts.get(place, 0)
        if start < told or (start > told and self.is_exact(place)):
            raise WrongHistoryError(f"{place} begins at {start}, but was told to begin at {told}")
        bound = self.retention_bytes.get(place[0])
        if bound is not None and start > told and place not in self.doubtful:
            self.happened["retention moved it"] += 1
            left = sum(run.size for run in found.runs)
            if left < bound:
                raise WrongHistoryError(f"{place} keeps {left} bytes, it was to keep {bound}")


def _check_order(place: Place, row: Sequence[_Tile]) -> None:
    """Gapless, nothing twice, and later commits have later offsets."""
    end_offset = 0
    for tile in row:
        if tile.base_offset != end_offset:
            raise WrongHistoryError(f"{place}: {tile} does not follow {end_offset}")
        end_offset = tile.end_offset
    first_returned = 2**63
    for tile in reversed(row):
        if tile.invoked > first_returned:
            raise WrongHistoryError(f"{place}: {tile} was sent after a later offset was answered")
        first_returned = min(first_returned, tile.returned)


def _check_read(read: EndRead, row: Sequence[_Tile]) -> None:
    for tile in row:
        if tile.returned < read.invoked and tile.end_offset > read.offset:
            raise WrongHistoryError(f"{read} saw less than was acknowledged before: {tile}")
        if tile.invoked > read.returned and tile.base_offset < read.offset:
            raise WrongHistoryError(f"{read} saw more than had been sent: {tile}")


def _check_run(place: Place, run: Run, row: Sequence[_Tile]) -> None:
    """A run is a few whole batches of its object."""
    at = bisect_right(row, run.base_offset, key=lambda tile: tile.base_offset) - 1
    offset = run.base_offset
    while offset <= run.last_offset:
        tile = row[at] if 0 <= at < len(row) else None
        if tile is None or tile.base_offset != offset or tile.object_id != run.object_id:
            raise WrongHistoryError(f"{place}: {run} was found, at {offset} is {tile}")
        offset = tile.end_offset
        at += 1
    if offset != run.last_offset + 1:
        raise WrongHistoryError(f"{place}: {run} ends within a batch")
