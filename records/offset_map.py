"""The newest offset of each key of a partition, 24 bytes a key.

    offsets = OffsetMap(salt=os.urandom(16), max_keys=5_000_000)
    offsets.put(offsets.digests(block), block.offsets)
    offsets.newest(digests)      # -1 for a key that is not in the map

A key is known by a digest of 16 bytes, salted for each round, so that no producer can choose two
keys that are taken for one. Digests stand in NumPy arrays, sorted by their first halves and cut
into buckets, because a merge of new keys copies a bucket. New keys collect until they are an
eighth of the map: so each entry is copied a bounded number of times.

Two digests with equal first halves are one key only if their second halves are equal, too; the
later one of such a pair, which a partition of 2^32 keys has with even chance, stands in a dict.

Source: Kafka's SkimpyOffsetMap has the same purpose; docs/design/compaction.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from records.record_block import RecordBlock
from records.varint_columns import Numbers

ENTRY_BYTES: Final = 24
DIGEST_BYTES: Final = 16
MIN_PENDING: Final = 1 << 17
PENDING_SHARE: Final = 8
BUCKETS: Final = 64

Halves = npt.NDArray[np.uint64]
Digests = npt.NDArray[np.uint64]
"""A row for each key: the two halves of its digest."""


class _Bucket(NamedTuple):
    """Keys whose digests begin with the same bits, sorted by the first half of the digest."""

    first: Halves
    second: Halves
    offsets: Numbers

    def rows(self, chosen: Any) -> _Bucket:
        """Return the bucket's entries that a slice or a mask selects."""
        return _Bucket(self.first[chosen], self.second[chosen], self.offsets[chosen])


def digest_keys(keys: Sequence[bytes], salt: bytes) -> Digests:
    """Return the salted 16-byte digest of each key."""
    joined = b"".join([blake2b(key, digest_size=DIGEST_BYTES, salt=salt).digest() for key in keys])
    return np.frombuffer(joined, np.uint64).reshape(-1, 2)


def digest_block(block: RecordBlock, wanted: Numbers, salt: bytes) -> Digests:
    """Return the digests of the keys of the `wanted` records; no key may be null."""
    starts = block.key_starts[wanted]
    ends = starts + block.key_sizes[wanted]
    data = block.data
    pairs = zip(starts.tolist(), ends.tolist(), strict=True)
    return digest_keys([data[start:end] for start, end in pairs], salt)


class OffsetMap:
    """Maps digests of keys to the newest offset that was put for the key."""

    def __init__(self) -> None:
        self._buckets = [_EMPTY] * BUCKETS
        self._collisions: dict[tuple[int, int], int] = {}
        self._pending: list[tuple[Digests, Numbers]] = []
        self._pending_count = 0
        self._count = 0

    def __len__(self) -> int:
        """Return the number of keys in the map; a key both merged and pending counts twice."""
        return self._count + self._pending_count + len(self._collisions)

    def put(self, digests: Digests, offsets: Numbers) -> None:
        """Set the newest offset of each key; all offsets must be above those of earlier calls."""
        self._pending.append((digests, offsets))
        self._pending_count += len(offsets)
        if self._pending_count > max(MIN_PENDING, self._count // PENDING_SHARE):
            self.merge()

    def merge(self) -> None:
        """Merge the pending entries of the map into its sorted buckets."""
        if not self._pending_count:
            return
        digests = np.concatenate([digests for digests, _ in self._pending])
        offsets = np.concatenate([offsets for _, offsets in self._pending])
        self._pending, self._pending_count = [], 0
        order = np.argsort(digests[:, 0], kind="stable")
        new = _Bucket(digests[order, 0], digests[order, 1], offsets[order])
        while len(new.first):
            begins = np.ones(len(new.first), np.bool_)
            begins[1:] = new.first[1:] != new.first[:-1]
            groups = np.cumsum(begins) - 1
            same = new.second == new.second[begins][groups]
            self._merge_sorted(_without_older(new.rows(same)))
            new = new.rows(~same)  # collide with those just merged

    def _merge_sorted(self, new: _Bucket) -> None:
        """Merge sorted entries with distinct first digest halves into the map's buckets."""
        bounds = np.searchsorted(new.first, _BUCKET_STARTS).tolist()
        for index, (begin, end) in enumerate(zip(bounds, [*bounds[1:], None], strict=True)):
            part = new.rows(slice(begin, end))
            if len(part.first):
                old = self._buckets[index]
                self._buckets[index] = self._merge_bucket(old, part)
                self._count += len(self._buckets[index].first) - len(old.first)

    def _note_collisions(self, entries: _Bucket) -> None:
        for first, second, offset in zip(*(column.tolist() for column in entries), strict=True):
            self._collisions[first, second] = max(offset, self._collisions.get((first, second), -1))

    def _merge_bucket(self, old: _Bucket, new: _Bucket) -> _Bucket:
        """Merge two buckets; for a key in both, keep the entry of `new`, whose offset is newer."""
        places = np.searchsorted(old.first, new.first)
        known = places < len(old.first)
        known[known] = old.first[places[known]] == new.first[known]
        same = known.copy()
        same[known] = old.second[places[known]] == new.second[known]
        if (known & ~same).any():
            self._note_collisions(new.rows(known & ~same))
        old.offsets[places[same]] = new.offsets[same]
        at, fresh = places[~known], ~known
        return _Bucket(
            np.insert(old.first, at, new.first[fresh]),
            np.insert(old.second, at, new.second[fresh]),
            np.insert(old.offsets, at, new.offsets[fresh]),
        )

    def newest(self, digests: Digests) -> Numbers:
        """Return the newest offset of each key, or -1 for a key that is not in the map."""
        self.merge()
        found = np.full(len(digests), -1, np.int64)
        owners = (digests[:, 0] >> _BUCKET_SHIFT).astype(np.int64)
        order = np.argsort(owners, kind="stable")
        bounds = np.searchsorted(owners[order], np.arange(BUCKETS + 1)).tolist()
        for index, (begin, end) in enumerate(pairwise(bounds)):
            bucket, rows = self._buckets[index], order[begin:end]
            if not len(rows) or not len(bucket.first):
                continue
            wanted = digests[rows]
            places = np.minimum(np.searchsorted(bucket.first, wanted[:, 0]), len(bucket.first) - 1)
            same = bucket.first[places] == wanted[:, 0]
            same &= bucket.second[places] == wanted[:, 1]
            found[rows[same]] = bucket.offsets[places[same]]
        if self._collisions:
            pairs = map(tuple, digests.tolist())
            extra = np.array([self._collisions.get(pair, -1) for pair in pairs], np.int64)
            found = np.maximum(found, extra)
        return found

    def drain_offsets(self) -> Numbers:
        """Return the newest offsets of all keys in rising order, and empty the map.

        Its memory is free while the offsets are sorted.
        """
        self.merge()
        parts = [bucket.offsets for bucket in self._buckets]
        parts.append(np.array(list(self._collisions.values()), np.int64))
        self._buckets, self._collisions, self._count = [_EMPTY] * BUCKETS, {}, 0
        offsets = np.concatenate(parts)
        offsets.sort()
        return offsets


def _without_older(entries: _Bucket) -> _Bucket:
    """Return only the newest entry for each first digest half; `entries` must be sorted."""
    ends = np.ones(len(entries.first), np.bool_)
    ends[:-1] = entries.first[1:] != entries.first[:-1]
    return entries.rows(ends)


_EMPTY: Final = _Bucket(np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.int64))
_BUCKET_SHIFT: Final = np.uint64(64 - (BUCKETS.bit_length() - 1))
_BUCKET_STARTS: Final = np.arange(BUCKETS, dtype=np.uint64) << _BUCKET_SHIFT
