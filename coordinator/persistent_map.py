"""A map that is never changed: each change makes another map, which shares most of the first.

The image of a cluster is published after every slice of records and read from anywhere, so it must
not move under a reader; and copying a hundred thousand partitions for one of them is out of the
question. A `Map` is a tuple of small dictionaries, its shards. A change copies one shard and the
tuple of pointers; many changes go through an `Editor`, which copies each shard once.

The trap: the shard is chosen by the *high* bits of a scrambled hash. A dictionary looks at the low
bits first, and keys of one shard that agreed in those would all collide.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_SHARD_ENTRIES: Final = 64  # on average, before there are more shards: a copy costs a microsecond
_GROWTH: Final = 4
_SCRAMBLE: Final = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, as in Fibonacci hashing
_SHIFT: Final = 40

Shards = tuple[dict[K, V], ...]


class Map(Mapping[K, V]):
    """An immutable mapping; its order means nothing.

    >>> one = Map().set("a", 1)
    >>> two = one.set("b", 2)
    >>> sorted(one), sorted(two), sorted(two.remove("a"))
    (['a'], ['a', 'b'], ['b'])
    """

    __slots__ = ("_shards", "_size")

    def __init__(self, shards: Shards[K, V] = ({},), size: int = 0) -> None:
        """Create a map from an editor's shards; without arguments, create an empty map.

        An editor gives up the shards that it passes.
        """
        self._shards = shards
        self._size = size

    def __getitem__(self, key: K) -> V:
        shards = self._shards
        return shards[(hash(key) * _SCRAMBLE >> _SHIFT) & (len(shards) - 1)][key]

    def get(self, key: K, default: Any = None) -> Any:
        """Return the value of a key, or `default` if the map lacks the key."""
        shards = self._shards
        return shards[(hash(key) * _SCRAMBLE >> _SHIFT) & (len(shards) - 1)].get(key, default)

    def __contains__(self, key: object) -> bool:
        shards = self._shards
        return key in shards[(hash(key) * _SCRAMBLE >> _SHIFT) & (len(shards) - 1)]

    def __iter__(self) -> Iterator[K]:
        for shard in self._shards:
            yield from shard

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"Map({dict(self)!r})"

    def set(self, key: K, value: V) -> Map[K, V]:
        """Return a new map with this value for one key."""
        editor = self.edit()
        editor.set(key, value)
        return editor.freeze()

    def remove(self, key: K) -> Map[K, V]:
        """Return a map without the key, or this map if it has no such key."""
        if key not in self:
            return self
        editor = self.edit()
        editor.pop(key)
        return editor.freeze()

    def gone(self, later: Map[K, V]) -> Iterator[K]:
        """Yield this map's keys that `later`, a newer version of the map, lacks.

        Shards that both versions share are not read.

        >>> list(Map().set("a", 1).set("b", 2).gone(Map().set("b", 3)))
        ['a']
        """
        if len(self._shards) != len(later._shards):
            yield from (key for key in self if key not in later)
            return
        for before, after in zip(self._shards, later._shards, strict=True):
            if before is not after:
                yield from (key for key in before if key not in after)

    def differences(self, later: Map[K, V]) -> Iterator[tuple[V | None, V | None]]:
        """Yield the values here and in `later` of each key whose values differ; None for no value.

        Shards that both versions share are not read.

        >>> list(Map().set("a", 1).differences(Map().set("a", 2))), list(Map().differences(Map()))
        ([(1, 2)], [])
        """
        pairs: Iterable[tuple[Mapping[K, V], Mapping[K, V]]] = ((self, later),)
        if len(self._shards) == len(later._shards):
            pairs = zip(self._shards, later._shards, strict=True)
        for before, after in pairs:
            if before is after:
                continue
            for key, value in before.items():
                other = after.get(key)
                if other is not value and other != value:
                    yield value, other
            for key, value in after.items():
                if key not in before:
                    yield None, value

    def edit(self) -> Editor[K, V]:
        """Return an editor that collects changes for a new map."""
        return Editor(self, self._shards, self._size)


class Editor(Generic[K, V]):
    """A series of changes to a map; they are private to it until `freeze`."""

    __slots__ = ("_base", "_owned", "_shards", "_size")

    def __init__(self, base: Map[K, V], shards: Shards[K, V], size: int) -> None:
        self._base = base
        self._shards: list[dict[K, V]] | Shards[K, V] = shards
        self._owned: set[int] = set()
        self._size = size

    def get(self, key: K) -> V | None:
        """Return a key's value including the collected changes, or None if there is no such key."""
        shards = self._shards
        return shards[(hash(key) * _SCRAMBLE >> _SHIFT) & (len(shards) - 1)].get(key)

    def set(self, key: K, value: V) -> None:
        """Add a key with its value, or replace the value."""
        shard = self._own(key)
        before = len(shard)
        shard[key] = value
        if len(shard) != before:
            self._size += 1
            if self._size > _SHARD_ENTRIES * len(self._shards):
                self._grow()

    def pop(self, key: K) -> V | None:
        """Remove a key and return its value; None if there is no such key."""
        if self.get(key) is None:
            return None
        self._size -= 1
        return self._own(key).pop(key)

    def freeze(self) -> Map[K, V]:
        """Return the changed map, or the original if nothing was changed."""
        if not self._owned:
            return self._base
        self._owned = set()
        self._shards = tuple(self._shards)
        self._base = Map(self._shards, self._size)
        return self._base

    def _own(self, key: K) -> dict[K, V]:
        index = (hash(key) * _SCRAMBLE >> _SHIFT) & (len(self._shards) - 1)
        if index not in self._owned:
            if not self._owned:
                self._shards = list(self._shards)
            assert isinstance(self._shards, list), "shards of a frozen map"
            self._shards[index] = self._shards[index].copy()
            self._owned.add(index)
        return self._shards[index]

    def _grow(self) -> None:
        count = len(self._shards) * _GROWTH
        shards: list[dict[K, V]] = [{} for _ in range(count)]
        for shard in self._shards:
            for key, value in shard.items():
                shards[(hash(key) * _SCRAMBLE >> _SHIFT) & (count - 1)][key] = value
        self._shards = shards
        self._owned = set(range(count))
