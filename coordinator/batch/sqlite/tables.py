"""Rows between SQLite and Python: read once, changed in memory, written once per transaction.

A batch of commits touches the same partitions and producers again and again. Their rows are changed
in a dict, and `flush` hands the changed ones to SQLite in one call before the transaction commits:
two to three times the rate of writing each change.

Tables that are small, or that every commit reads, are in memory whole (`WholeTable`). Producers and
answers are not (`WriteBackTable`): what was read or written is remembered in two generations of a
bounded size. A full young one becomes the old one, and the old one is forgotten: nearly
least-recently-used, for one dict look-up in the common case. That a row does *not* exist is
remembered too.

Source: docs/design/batch-coordinator.md#state-in-sqlite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_MISSING: Final[Any] = object()

Store = Callable[[Mapping[Any, Any]], None]
"""Writes rows by key to SQLite; deletes those that are None."""


class WholeTable(dict[K, V]):
    """A table held whole in memory that tracks which rows SQLite lacks."""

    __slots__ = ("_dirty", "_store")

    def __init__(self, rows: Mapping[K, V], store: Store) -> None:
        super().__init__(rows)
        self._store = store
        self._dirty: set[K] = set()

    def __setitem__(self, key: K, value: V) -> None:
        dict.__setitem__(self, key, value)
        self._dirty.add(key)

    def update(self, rows: Mapping[K, V]) -> None:  # type: ignore[override]
        """Add or replace several rows in memory, to be written to SQLite by `flush`."""
        dict.update(self, rows)
        self._dirty.update(rows)

    def pop(self, key: K, default: Any = None) -> Any:
        """Remove a row in memory and return its value, or `default` if there is no such row."""
        self._dirty.add(key)
        return dict.pop(self, key, default)

    def flush(self) -> int:
        """Write changed rows to SQLite and return their count. Raises sqlite3.Error.

        New rows count, too.
        """
        if not self._dirty:
            return 0
        written = len(self._dirty)
        self._store({key: self.get(key) for key in self._dirty})
        self._dirty.clear()
        return written


class WriteBackTable(Generic[K, V]):
    """A table whose rows in use are in memory. None stands for an absent row."""

    __slots__ = ("_capacity", "_dirty", "_load", "_old", "_store", "_young", "count")

    def __init__(
        self, load: Callable[[K], V | None], store: Store, *, capacity: int, count: int
    ) -> None:
        """Create a table whose rows are read from SQLite when they are first used.

        Args:  load: reads one row from SQLite.
               capacity: clean rows in a generation.
               count: rows there are; right again after each flush.
        """
        self._load = load
        self._store = store
        self._capacity = capacity
        self.count = count
        self._dirty: dict[K, V | None] = {}
        self._young: dict[K, V | None] = {}
        self._old: dict[K, V | None] = {}

    def get(self, key: K, default: Any = None) -> Any:
        """Return the row of a key from memory or SQLite, or `default` if there is no such row."""
        value = self._dirty.get(key, _MISSING)
        if value is _MISSING:
            value = self._clean(key)
        return default if value is None else value

    def __setitem__(self, key: K, value: V) -> None:
        self._dirty[key] = value

    def update(self, rows: Mapping[K, V]) -> None:
        """Add or replace several rows in memory, to be written to SQLite by `flush`."""
        self._dirty.update(rows)

    def pop(self, key: K, default: Any = None) -> Any:
        """Remove a row in memory and return its value, or `default` if there is no such row."""
        value = self.get(key, default)
        self._dirty[key] = None
        return value

    def flush(self) -> int:
        """Write changed rows to SQLite; return the count of replaced and deleted rows.

        Raises sqlite3.Error.
        """
        dirty = self._dirty
        if not dirty:
            return 0
        replaced = 0
        for key, value in dirty.items():
            if self._clean(key) is not None:
                replaced += 1
                self.count -= value is None
            else:
                self.count += value is not None
        self._store(dirty)
        self._dirty = {}
        self._young.update(dirty)
        self._age()
        return replaced

    def forget(self, keys: Callable[[K], bool]) -> None:
        """Drop rows whose key satisfies `keys` from memory, because SQLite was changed directly."""
        assert not self._dirty, "rows that SQLite has not"
        for generation in (self._young, self._old):
            for key in [key for key in generation if keys(key)]:
                del generation[key]

    def _clean(self, key: K) -> V | None:
        value = self._young.get(key, _MISSING)
        if value is _MISSING:
            value = self._old.get(key, _MISSING)
            if value is _MISSING:
                value = self._load(key)
            self._young[key] = value
            self._age()
        result: V | None = value
        return result

    def _age(self) -> None:
        if len(self._young) > self._capacity:
            self._old, self._young = self._young, {}
