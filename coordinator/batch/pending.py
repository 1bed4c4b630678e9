"""The state that a leader decides against: applied state with the proposed records on top.

Each table has two generations of changes in front of it. New changes go to the young one. Once all
that the old one holds is applied, it says nothing that the table behind does not, and is dropped;
the young one takes its place. So an entry costs one dict store, is never looked for to be removed,
and the overlay is as small as what is in flight, twice.

Source: docs/design/state-machines.md#pending-state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, Generic, Protocol, TypeVar
from uuid import UUID

from coordinator.batch.applying import apply_record
from coordinator.batch.state import (
    Answer,
    Broker,
    Cleaning,
    Counters,
    Lease,
    Log,
    LogId,
    Producer,
    ProducerKey,
    Tables,
    Topic,
)
from coordinator.batch.transactions import OpenTransactions
from records.schema import MetadataRecord

K = TypeVar("K")
V = TypeVar("V")

_MISSING: Final[Any] = object()


class _Generations(Protocol):
    def age(self) -> None: ...

    def drop(self) -> None: ...

    def __len__(self) -> int: ...


class Overlay(Generic[K, V]):
    """A table, with changes in front of it. None is a row that was removed."""

    __slots__ = ("_behind", "_old", "_table", "_young")

    def __init__(self, table: Callable[[], Any]) -> None:
        self._table = table
        self._behind = table().get
        self._young: dict[K, V | None] = {}
        self._old: dict[K, V | None] = {}

    def get(self, key: K, default: Any = None) -> Any:
        """Return a key's row with the proposed changes, or `default` if there is no such row."""
        value = self._young.get(key, _MISSING)
        if value is _MISSING:
            value = self._old.get(key, _MISSING)
            if value is _MISSING:
                return self._behind(key, default)
        return default if value is None else value

    def __setitem__(self, key: K, value: V) -> None:
        self._young[key] = value

    def update(self, rows: Mapping[K, V]) -> None:
        """Add or replace several rows as proposed changes."""
        self._young.update(rows)

    def pop(self, key: K, default: Any = None) -> Any:
        """Remove a row as a proposed change; return its value, or `default` if there is no row."""
        value = self.get(key, default)
        self._young[key] = None
        return value

    def items(self) -> Iterable[tuple[K, V]]:
        """Return all rows with the proposed changes; meant for small tables only."""
        table = self._table()
        if not self._young and not self._old:
            rows: Iterable[tuple[K, V]] = table.items()
            return rows
        merged = {**table, **self._old, **self._young}
        return [(key, value) for key, value in merged.items() if value is not None]

    def age(self) -> None:
        """Drop the older generation of changes, which is applied; the younger becomes the older."""
        if self._old or self._young:
            self._old, self._young = self._young, {}

    def drop(self) -> None:
        """Drop all proposed changes, so that reads return the applied table's rows."""
        self._young, self._old = {}, {}
        self._behind = self._table().get

    def __len__(self) -> int:
        return len(self._young) + len(self._old)


class PendingState:
    """The tables of `coordinator.batch.state` with all proposed records applied."""

    def __init__(self, applied: Callable[[], Tables]) -> None:
        """Create the pending state, equal to the applied tables while nothing is proposed.

        Args:  applied: gives the applied tables; called again whenever the overlay is dropped.
        """
        self._applied = applied
        self.topics: Overlay[UUID, Topic] = Overlay(lambda: applied().topics)
        self.logs: Overlay[LogId, Log] = Overlay(lambda: applied().logs)
        self.producers: Overlay[ProducerKey, Producer] = Overlay(lambda: applied().producers)
        self.leases: Overlay[int, Lease] = Overlay(lambda: applied().leases)
        self.brokers: Overlay[int, Broker] = Overlay(lambda: applied().brokers)
        self.answers: Overlay[int, Answer] = Overlay(lambda: applied().answers)
        self.cleanings: Overlay[LogId, Cleaning] = Overlay(lambda: applied().cleanings)
        self.open_transactions: Overlay[LogId, OpenTransactions] = Overlay(
            lambda: applied().open_transactions
        )
        self.replacing: Overlay[tuple[LogId, int], int] = Overlay(lambda: applied().replacing)
        self._overlays: tuple[_Generations, ...] = (
            self.topics,
            self.logs,
            self.producers,
            self.leases,
            self.brokers,
            self.answers,
            self.cleanings,
            self.open_transactions,
            self.replacing,
        )
        self.counters = Counters()
        self._end_offset = self._old_end_offset = 0
        self.drop()

    def apply(self, offset: int, record: MetadataRecord) -> None:
        """Apply the record that was proposed at this offset to the pending tables."""
        apply_record(self, record)
        self._end_offset = offset + 1

    def applied(self, end_offset: int) -> None:
        """Drop proposed changes that the applied state, which ends at `end_offset`, contains."""
        if end_offset >= self._old_end_offset:
            for overlay in self._overlays:
                overlay.age()
                if end_offset >= self._end_offset:  # nothing is proposed that is not applied
                    overlay.age()
            self._old_end_offset = self._end_offset

    def drop(self) -> None:
        """Discard all proposed records and return to the applied tables."""
        for overlay in self._overlays:
            overlay.drop()
        self.counters = replace(self._applied().counters)
        self._end_offset = self._old_end_offset = 0

    def __len__(self) -> int:
        """Return how many changed table rows are kept in memory for the proposed records."""
        return sum(len(overlay) for overlay in self._overlays)
