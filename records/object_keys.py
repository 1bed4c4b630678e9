"""Object keys: `<prefix>/<two hex of a hash>/<cluster id>/<coordinator partition>/<object id>`.

The key is a function of the object's id, so no table holds keys, and a coordinator can name objects
that were never committed. Cluster and coordinator partition stand in it, so two clusters in one
bucket never touch each other's objects.

A restored cluster has a new id, and keeps the objects of its ancestors under their keys. Ids below
a bound belong to an ancestor, so the key is still a function of the id.

The surprise: the two hex digits come first, of a hash of the id. An object store spreads its load
by the first characters of a key; ids alone, which rise, would all go to one place.

Source: docs/design/batch-coordinator.md#keys.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from zlib import crc32

MAX_OBJECT_ID: Final = 2**63 - 1
MAX_KEY_BYTES: Final = 1024  # of S3

_PART: Final = r"[A-Za-z0-9_=,@+-][A-Za-z0-9_=.,@+-]*"  # begins with no dot
_KEY: Final = re.compile(rf"{_PART}(/{_PART})*")
_CLUSTER_ID: Final = re.compile(r"[A-Za-z0-9_-]+")
_OBJECT_ID: Final = re.compile(r"0|[1-9][0-9]{0,18}")


def check_key(key: str) -> None:
    """Check that every object store allows the key, also as a path below a root directory.

    Raises:  ValueError.

    >>> check_key("esker/7f/3Zk/0/12")
    >>> check_key("../etc/passwd")
    Traceback (most recent call last):
    ValueError: '../etc/passwd' is no object key
    """
    if len(key) > MAX_KEY_BYTES or not _KEY.fullmatch(key):
        raise ValueError(f"{key[:200]!r} is no object key")


def spread(object_id: int) -> int:
    """Return the number from 0 to 255 whose two hex digits begin the key of an object.

    >>> spread(4711)
    206
    """
    return crc32(object_id.to_bytes(8, "big")) >> 24


class ForeignKeyError(ValueError):
    """The key is not one of this coordinator's objects."""

    def __init__(self, key: str) -> None:
        super().__init__(f"not a key of this coordinator: {key[:MAX_KEY_BYTES]!r}")
        self.key = key


class Ancestor(NamedTuple):
    """A cluster whose objects a restored cluster goes on with."""

    cluster_id: str
    object_ids_below: tuple[int, ...]  # by batch coordinator, exclusive


class Ancestors:
    """The ancestors of a cluster, oldest first; empty until the cluster log has named them.

    One object is shared by all keys of a node, because coordinators begin before that log is read.
    """

    __slots__ = ("clusters",)

    def __init__(self, clusters: tuple[Ancestor, ...] = ()) -> None:
        self.clusters = clusters

    def find(self, coordinator_partition: int, object_id: int) -> str | None:
        """Return the id of the ancestor that wrote an object, or None if no ancestor did.

        >>> ancestors = Ancestors((Ancestor("first", (10,)), Ancestor("second", (20, 5))))
        >>> [ancestors.find(0, object_id) for object_id in (9, 10, 20)]
        ['first', 'second', None]
        >>> ancestors.find(1, 4)
        'second'
        """
        for ancestor in self.clusters:
            below = ancestor.object_ids_below
            if coordinator_partition < len(below) and object_id < below[coordinator_partition]:
                return ancestor.cluster_id
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectKeys:
    """The keys of one coordinator's objects.

    >>> keys = ObjectKeys(prefix="esker", cluster_id="Ck3xYz", coordinator_partition=0)
    >>> keys.key(4711)
    'esker/ce/Ck3xYz/0/4711'
    >>> keys.object_id("esker/ce/Ck3xYz/0/4711")
    4711
    """

    prefix: str  # may hold slashes, "" for none
    cluster_id: str
    coordinator_partition: int
    ancestors: Ancestors = field(default_factory=Ancestors, compare=False)

    def __post_init__(self) -> None:
        if not _CLUSTER_ID.fullmatch(self.cluster_id):
            raise ValueError(f"a cluster id is base64, not {self.cluster_id!r}")
        if self.coordinator_partition < 0:
            raise ValueError(f"no partition: {self.coordinator_partition}")
        if self.prefix.startswith("/") or self.prefix.endswith("/"):
            raise ValueError(f"a prefix has no slash at its ends: {self.prefix!r}")
        if len(self.key(MAX_OBJECT_ID).encode()) > MAX_KEY_BYTES:
            raise ValueError(f"keys would exceed {MAX_KEY_BYTES} bytes: {self.prefix!r}")

    def writer(self, object_id: int) -> str:
        """Return the id of the cluster that wrote an object: this one, or an ancestor."""
        return self.ancestors.find(self.coordinator_partition, object_id) or self.cluster_id

    def key(self, object_id: int) -> str:
        """Return the object store key of an object id."""
        partition = self.coordinator_partition
        name = f"{spread(object_id):02x}/{self.writer(object_id)}/{partition}/{object_id}"
        return f"{self.prefix}/{name}" if self.prefix else name

    def object_id(self, key: str) -> int:
        """Return the id of the object with this key.

        Raises:  ForeignKeyError if it is not exactly what `key` gives for some id.
        """
        digits = key.rpartition("/")[2]
        if not _OBJECT_ID.fullmatch(digits):
            raise ForeignKeyError(key)
        object_id = int(digits)
        if object_id > MAX_OBJECT_ID or self.key(object_id) != key:
            raise ForeignKeyError(key)
        return object_id
