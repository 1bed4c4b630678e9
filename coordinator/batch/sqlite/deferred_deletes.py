"""Deletes runs below a log start a few at a time.

A log start moves at once: from then on nothing below it is found, listed, counted or written into a
checkpoint. Rows remain, of which one DeleteRecords may kill millions, and the used bytes of the
objects that held them. They are deleted in bounded steps: some with the record that killed them,
the others later, with each slice of records that is applied and with a leader's maintenance.

The trap: no record says when a row is deleted, and two replicas may be at different points. That is
allowed because it cannot be seen: whether a run is dead follows from the log start alone. Readers
skip rows below the log start, and a checkpoint subtracts their bytes from the objects that held
them. Only "an object is used no more" is noticed late, by the leader, which marks the object by a
record once its own rows are deleted.

Source: docs/design/batch-coordinator.md#deletion; invariants 4 and 8 (docs/design/invariants.md);
docs/coordinator-state.md.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgpack

from coordinator.batch.sqlite.runs import Dead, Runs, Tally

ABOVE_EVERY_OFFSET: Final = 2**63 - 1

RUNS_WITH_RECORD: Final = 2_500
"""Dead runs that are deleted with the record that kills them: as many as retention and dismantling
take in a step, up to 8 ms."""

PARTITION_COST: Final = 10
"""The cost of a partition with few dead runs, in runs: four look-ups."""

RUNS_WITH_SLICE: Final = 500
"""Dead runs that are deleted with each slice of records applied: up to 2 ms."""


Move = tuple[int, int]
"""An offset below which runs are dead, and since when, in steady time (-1: it is not noted)."""

Moves = Sequence[Move]
"""The moves of one partition's log start whose dead rows are left, in the order of the log."""


def earlier_sql(first: str, second: str) -> str:
    """Return an SQL expression for the earlier of two times, where -1 means no time."""
    first, second = f"NULLIF({first}, -1)", f"NULLIF({second}, -1)"
    return f"COALESCE(MIN({first}, {second}), {first}, {second}, -1)"


class DeferredDeletes:
    """Partitions with dead runs: the offsets below which they are dead, by log id."""

    def __init__(self, runs: Runs, pending: Mapping[int, Moves]) -> None:
        """Create the queue of runs to delete, starting with those that an earlier process left.

        Args:  pending: as `packed` of an earlier process gave them.
        """
        self._runs = runs
        self._pending = {log_id: list(moves) for log_id, moves in pending.items()}
        self.is_changed = False  # since it was last written

    def __contains__(self, log_id: int) -> bool:
        """Return whether a partition's deleted runs of batches still have rows to delete."""
        return log_id in self._pending

    def __len__(self) -> int:
        """Return the number of partitions whose deleted runs of batches still have rows."""
        return len(self._pending)

    def packed(self) -> bytes:
        """Encode the queue: for each log id, the offsets below which to delete runs of batches."""
        self.is_changed = False
        return msgpack.packb(list(self._pending.items()))  # type: ignore[no-any-return]

    def enqueue(
        self, log_id: int, tally: Tally, below: int, since_ms: int, limit: int
    ) -> list[Dead]:
        """Delete up to `limit` runs of batches that end below an offset; queue any excess runs.

        Args:  since_ms: when they died, in steady time.
        """
        moves = self._pending.get(log_id, [])
        self.is_changed = self.is_changed or bool(moves)
        if moves and moves[-1][1] == since_ms:
            moves.pop()
        moves.append((below, since_ms))
        return self._delete(log_id, tally, moves, limit)

    def _delete(self, log_id: int, tally: Tally, moves: list[Move], limit: int) -> list[Dead]:
        """Delete up to `limit` queued runs of one partition; runs above the limit stay queued."""
        dead: list[Dead] = []
        left = limit
        while moves and left > 0:  # not even a look at 0: a record may name ten thousand partitions
            some, is_done = self._runs.drop_below(tally, *moves[0], left)
            dead += some
            left -= sum(piece.run_count for piece in some)
            if not is_done:
                break
            del moves[0]
        if moves:
            self._pending[log_id] = moves
            self.is_changed = True
        elif self._pending.pop(log_id, None) is not None:
            self.is_changed = True
        return dead

    def delete_some(
        self, tallies: Mapping[int, Tally], limit: int
    ) -> Iterator[tuple[int, list[Dead]]]:
        """Delete up to `limit` queued runs of batches; yield each log id with deleted runs.

        Args:  tallies: of the partitions that are still there.
        """
        while self._pending and limit > 0:
            log_id, moves = next(iter(self._pending.items()))
            tally = tallies.get(log_id) or Tally(log_id)  # a partition that was removed has none
            dead = self._delete(log_id, tally, moves, limit)
            yield log_id, dead
            limit -= max(PARTITION_COST, sum(runs.run_count for runs in dead))

    def used_objects(self, connection: sqlite3.Connection) -> str:
        """Return an SQL query of `objects` with used bytes that exclude deleted runs of batches.

        It ends where a WHERE or an ORDER BY may begin. Reads all pending dead runs.
        """
        if not self._pending:
            return "SELECT * FROM objects"
        connection.execute("DROP TABLE IF EXISTS temp.dead")
        connection.execute(
            "CREATE TABLE temp.dead (object_id INTEGER PRIMARY KEY, size INTEGER, since_ms INTEGER)"
        )
        both = earlier_sql("since_ms", "excluded.since_ms")
        for log_id, moves in self._pending.items():
            begin = 0
            for below, since_ms in moves:
                connection.execute(
                    "INSERT INTO temp.dead SELECT object_id, SUM(byte_size), ? FROM runs"
                    " WHERE log_id = ? AND last_offset >= ? AND last_offset < ?"
                    " GROUP BY object_id ON CONFLICT (object_id) DO UPDATE SET"
                    f" size = size + excluded.size, since_ms = {both}",
                    (since_ms, log_id, begin, below),
                )
                begin = below
        died_ms = earlier_sql("first_deletion_ms", "IFNULL(dead.since_ms, -1)")
        return (
            "SELECT object_id, size_bytes, used_bytes - IFNULL(dead.size, 0), format, broker_id,"
            f" committed_at_ms, marked_at_ms, topic_ids, {died_ms}"
            " FROM objects LEFT JOIN temp.dead USING (object_id)"
        )


def unpacked(value: bytes | None) -> dict[int, Moves]:
    """Decode a queue that `packed` encoded, by log id; return an empty queue for None."""
    return {} if value is None else dict(msgpack.unpackb(value, use_list=False))
