"""Computes a plan's effect on objects: which become free, and which topics pin the rest.

An object holds batches of many partitions, and can be deleted only when the last of them is dead: a
topic with a retention of a year pins the dead bytes of all topics that share its objects. Operators
need that most, and no row of a plan shows it.

Dead bytes are those of batches that were accepted once. An object's other bytes (its footer,
refused batches) are not counted; only for objects known from a checkpoint they cannot be told
apart, and are included.

An object is written by one commit, so all its runs are in one piece of the log. Pieces are read
separately, and their effects are added up.

Source: docs/design/batch-coordinator.md#deletion; KIP-1163 (objects are shared).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spark_jobs.plans.retention_plan import Effect
from spark_jobs.retention.digests import Digest, Piece
from spark_jobs.retention.plan import Starts


class PieceEffect(NamedTuple):
    """The effect on the objects of one piece, as `Effect`, with topics by id."""

    live_bytes: int
    removed_bytes: int
    objects_freed: int
    freed_bytes: int
    pinned_bytes: int
    pinned_by: Mapping[str, int]


def effect_of(piece: Piece, old: Starts, new: Starts) -> PieceEffect:
    """Compute the bytes that a span's objects lose when log starts move from `old` to `new`."""
    digest, rows = piece.digest, piece.rows
    counts, last = digest.run_counts, rows.last_offsets
    alive = last >= np.repeat(old.of(digest), counts)
    stays = last >= np.repeat(new.of(digest), counts)
    stored = rows.object_sizes
    before = _used_bytes(rows.objects, rows.byte_sizes, alive, len(stored))
    after = _used_bytes(rows.objects, rows.byte_sizes, stays, len(stored))
    freed = (before > 0) & (after == 0)
    dead = np.where(after > 0, rows.batch_bytes - after, 0)
    return PieceEffect(
        live_bytes=int(before.sum()),
        removed_bytes=int(before.sum() - after.sum()),
        objects_freed=int(freed.sum()),
        freed_bytes=int(stored[freed].sum()),
        pinned_bytes=int(dead.sum()),
        pinned_by=_pinned_by(digest, rows.objects, stays, dead),
    )


def _used_bytes(
    objects: npt.NDArray[np.int32],
    sizes: npt.NDArray[np.int64],
    which: npt.NDArray[np.bool_],
    count: int,
) -> npt.NDArray[np.int64]:
    """Sum the bytes of the chosen runs of batches for each object.

    The sums are exact, as no object has 2^53 bytes.
    """
    totals = np.bincount(objects, weights=np.where(which, sizes, 0), minlength=count)
    return totals.astype(np.int64)


def _pinned_by(
    digest: Digest,
    objects: npt.NDArray[np.int32],
    stays: npt.NDArray[np.bool_],
    dead: npt.NDArray[np.int64],
) -> dict[str, int]:
    """Sum, for each topic, the dead bytes of objects that contain live batches of the topic.

    An object that several topics pin counts for each of them, since each of them keeps it.
    """
    topics = np.repeat(digest.topics, digest.run_counts)
    width = max(1, len(dead))
    keys = topics[stays].astype(np.int64) * width + objects[stays]
    count = len(digest.topic_ids)
    possible = width * count
    if possible <= 4 * len(keys) + 1024:  # then counting is cheaper than sorting
        seen = np.zeros(possible, np.bool_)
        seen[keys] = True
        sums = np.array([dead[row].sum() for row in seen.reshape(count, width)], np.int64)
    else:
        topic, place = np.divmod(np.unique(keys), width)
        sums = np.zeros(count, np.int64)
        np.add.at(sums, topic, dead[place])
    return {
        topic_id: size
        for topic_id, size in zip(digest.topic_ids, sums.tolist(), strict=True)
        if size
    }


def sum_effects(parts: Iterable[PieceEffect], names: Mapping[str, str]) -> Effect:
    """Add up the bytes that new log starts free in all spans of a coordinator's log.

    Args:    names: of topics, by id; one without a name is called by its id.
    """
    known = list(parts)
    pinned_by = Counter[str]()
    for part in known:
        pinned_by.update(part.pinned_by)
    by_name = {names.get(topic_id) or topic_id: size for topic_id, size in pinned_by.items()}
    ranked = dict(sorted(by_name.items(), key=lambda item: (-item[1], item[0])))
    return Effect(
        live_bytes=sum(part.live_bytes for part in known),
        removed_bytes=sum(part.removed_bytes for part in known),
        objects_freed=sum(part.objects_freed for part in known),
        freed_bytes=sum(part.freed_bytes for part in known),
        pinned_bytes=sum(part.pinned_bytes for part in known),
        pinned_by=ranked,
    )
