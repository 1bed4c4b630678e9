"""Rows between SQLite and Python: read once, changed in memory, written once per transaction.

A batch of commits touches the same partitions and producers again and again. Their rows are changed
in a dict, and `flush` hands the changed ones to SQLite in one call before the transaction commits:
two to three times the rate of writing each change.

What was read or written is remembered in two generations of a bounded size: a full young one
becomes the old one, and the old one is forgotten. That is nearly least-recently-used, for one dict
look-up in the common case. That a row does *not* exist is remembered too.

Source: DESIGN §7 (partition and producer rows written once per transaction); measured in
docs/coordinator-state.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_MISSING: Final[Any] = object()


class WriteBackTable(Generic[K, V]):
    """A table's rows by key; None is a row that is not there."""

    def __init__(
        self,
        load: Callable[[K], V | None],
        store: Callable[[dict[K, V | None]], None],
        *,
        capacity: int,
    ) -> None:
        """
        Args:  load: reads one row from SQLite.
               store: writes rows to SQLite, deletes those that are None.
               capacity: clean rows in a generation.
        """
        self._load = load
        self._store = store
        self._capacity = capacity
        self._dirty: dict[K, V | None] = {}
        self._young: dict[K, V | None] = {}
        self._old: dict[K, V | None] = {}

    def get(self, key: K, default: Any = None) -> Any:
        """The row, or `default`."""
        value = self._dirty.get(key, _MISSING)
        if value is _MISSING:
            value = self._young.get(key, _MISSING)
            if value is _MISSING:
                value = self._old.get(key, _MISSING)
                if value is _MISSING:
                    value = self._load(key)
                self._young[key] = value
                self._age()
        return default if value is None else value

    def __getitem__(self, key: K) -> V:
        value: V | None = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __contains__(self, key: K) -> bool:
        return self.get(key) is not None

    def __setitem__(self, key: K, value: V) -> None:
        self._dirty[key] = value

    def __delitem__(self, key: K) -> None:
        self._dirty[key] = None

    def pop(self, key: K, default: Any = None) -> Any:
        """Remove a row, there or not; the row or `default`."""
        value = self.get(key, default)
        self._dirty[key] = None
        return value

    def flush(self) -> None:
        """Write what was changed. Raises sqlite3.Error: the transaction then has to end."""
        if not self._dirty:
            return
        self._store(self._dirty)
        self._young.update(self._dirty)
        self._dirty = {}
        self._age()

    def forget(self) -> None:
        """Drop all that is in memory, changes too."""
        self._dirty, self._young, self._old = {}, {}, {}

    def _age(self) -> None:
        if len(self._young) > self._capacity:
            self._old, self._young = self._young, {}
