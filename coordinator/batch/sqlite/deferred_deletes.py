"""Runs below a log start, taken away a few at a time.

A log start moves at once: from then on nothing below it is found, listed, counted or written into a
checkpoint. What is left are rows, of which one DeleteRecords may kill millions, and the used bytes
of the objects that they lay in. Those go in bounded steps: some with the record that killed them,
the others later, some with each slice of records that is applied, and with each sweep of a leader.

The surprise: when a row goes is nobody's decision and in no record, and two replicas may be at
different points. That is allowed because it cannot be seen: whether a run is dead follows from the
log start alone. Whoever reads rows leaves the dead ones out, and whoever writes a checkpoint takes
their bytes off the objects that they lay in. Only "an object is used no more" is noticed later than
it is true, by the leader, who marks it by a record when its own rows are gone.

Source: docs/design/batch-coordinator.md#deletion; invariants 4 and 8 (docs/design/invariants.md);
docs/coordinator-state.md.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from typing import Final

import msgpack

from coordinator.batch.sqlite.runs import Dead, Runs, Tally

ABOVE_EVERY_OFFSET: Final = 2**63 - 1

AT_ONCE: Final = 2_500
"""Dead runs that go with the record that kills them: what retention and dismantling take in a step,
up to 8 ms."""

A_PARTITION: Final = 10
"""What a partition costs where there is little to take away, in runs: four looks at the tables."""

A_SLICE: Final = 500
"""Dead runs that go with each slice of records applied: up to 2 ms."""


class Graves:
    """Where dead runs are left: below which offset, by log id. The oldest first."""

    def __init__(self, runs: Runs, left: Mapping[int, int]) -> None:
        """
        Args:  left: of an earlier life, as `packed` gave it.
        """
        self._runs = runs
        self._left = dict(left)
        self.is_changed = False  # since it was last written

    def __contains__(self, log_id: int) -> bool:
        """Are there dead runs of this partition? Then its tally counts them too."""
        return log_id in self._left

    def __len__(self) -> int:
        """Partitions that have some."""
        return len(self._left)

    def packed(self) -> bytes:
        """To be kept with the rows."""
        self.is_changed = False
        return msgpack.packb(list(self._left.items()))  # type: ignore[no-any-return]

    def bury(self, log_id: int, tally: Tally, below: int, limit: int) -> list[Dead]:
        """The runs that end below an offset are dead: take away up to `limit`, leave the rest."""
        if limit <= 0:  # not even a look: a record may name ten thousand partitions
            self._left[log_id] = below
            self.is_changed = True
            return []
        dead, is_done = self._runs.drop_below(tally, below, limit)
        if not is_done:
            self._left[log_id] = below
            self.is_changed = True
        elif self._left.pop(log_id, None) is not None:
            self.is_changed = True
        return dead

    def go_on(self, tallies: Mapping[int, Tally], limit: int) -> Iterator[tuple[int, list[Dead]]]:
        """Take away up to `limit` of those left; log ids, and what died of each.

        Args:  tallies: of the partitions that are still there.
        """
        while self._left and limit > 0:
            log_id, below = next(iter(self._left.items()))
            tally = tallies.get(log_id) or Tally(log_id)  # a partition that is gone: nobody's
            dead = self.bury(log_id, tally, below, limit)
            yield log_id, dead
            limit -= max(A_PARTITION, sum(piece.run_count for piece in dead))

    def used_objects(self, connection: sqlite3.Connection) -> str:
        """A query for the columns of `objects`, used bytes without those of dead runs.

        It ends where a WHERE or an ORDER BY may begin. Reads all dead runs that are left.
        """
        if not self._left:
            return "SELECT * FROM objects"
        connection.execute("DROP TABLE IF EXISTS temp.dead")
        connection.execute("CREATE TABLE temp.dead (object_id INTEGER PRIMARY KEY, size INTEGER)")
        for key in self._left.items():
            connection.execute(
                "INSERT INTO temp.dead SELECT object_id, SUM(byte_size) FROM runs"
                " WHERE log_id = ? AND last_offset < ? GROUP BY object_id"
                " ON CONFLICT (object_id) DO UPDATE SET size = size + excluded.size",
                key,
            )
        return (
            "SELECT object_id, size_bytes, used_bytes - IFNULL(dead.size, 0), format, broker_id,"
            " committed_at_ms, marked_at_ms, topic_ids"
            " FROM objects LEFT JOIN temp.dead USING (object_id)"
        )


def unpacked(value: bytes | None) -> dict[int, int]:
    """What `packed` gave; nothing, if there is none."""
    return {} if value is None else dict(msgpack.unpackb(value, use_list=False))
