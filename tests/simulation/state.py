"""What the state must be, by a model too simple to be wrong.

The model is a dict and a list of the committed records. It says what the state is after any prefix
of the log, and so what every checkpoint of that prefix must hold, byte for byte on every replica
(invariant 4, docs/design/invariants.md); and where a transaction is open, inside which there must
be none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from records.batch import CONTROL, Batch, iter_batches, iter_records
from records.errors import RecordError
from records.frame import encode_record
from records.key_value import KeyValueState
from records.types import OffsetAndEpoch

if TYPE_CHECKING:
    from tests.simulation.node import Process

BEGIN: Final = b"transaction begins "
END: Final = b"transaction ends "
"""How the values of records without a key begin that say so."""


def transaction_after(batch: Batch, *, before: bool) -> bool:
    """Is a transaction open behind this batch?"""
    if batch.header.attributes & CONTROL:
        return before
    data = bytes(batch.view)
    begins, ends = data.rfind(BEGIN), data.rfind(END)
    return before if begins == ends == -1 else begins > ends


class StateModel:
    """The committed records, and the states they make."""

    def __init__(self) -> None:
        self._changes: list[tuple[int, list[tuple[bytes, bytes | None]]]] = []  # by end offset
        self._open: list[tuple[int, bool]] = [(0, False)]
        self._state: dict[bytes, bytes] = {}
        self._offset = 0
        self._next = 0
        self._files: dict[OffsetAndEpoch, bytes] = {}

    def commit(self, batch: Batch) -> None:
        """The next batch of the one log there is."""
        end = int(batch.header.end_offset)
        was_open = self._open[-1][1]
        is_open = transaction_after(batch, before=was_open)
        if is_open != was_open:
            self._open.append((end, is_open))
        if not batch.header.attributes & CONTROL:
            records = [
                (bytes(record.key), None if record.value is None else bytes(record.value))
                for record in iter_records(batch)
                if record.key is not None
            ]
            self._changes.append((end, records))

    def at(self, offset: int) -> dict[bytes, bytes]:
        """The state after everything below `offset`. Do not change it."""
        if offset < self._offset:
            self._state, self._offset, self._next = {}, 0, 0
        state = self._state
        while self._next < len(self._changes) and self._changes[self._next][0] <= offset:
            for key, value in self._changes[self._next][1]:
                if value is None:
                    state.pop(key, None)
                else:
                    state[key] = value
            self._next += 1
        self._offset = offset
        return state

    def is_open_at(self, offset: int) -> bool:
        """Is `offset` inside a transaction?"""
        return [is_open for end, is_open in self._open if end <= offset][-1]

    def published(self, process: Process, snapshot_id: OffsetAndEpoch) -> None:
        """A checkpoint is there, whole: what is in it, and does everybody have the same?"""
        path = process.store.path(snapshot_id)
        data = process.machine.disk.content(path)
        known = self._files.get(snapshot_id)
        assert known is None or known == data, (
            f"{process}: checkpoint {snapshot_id} is another here than elsewhere (invariant 4)"
        )
        if known is not None:
            return
        assert not self.is_open_at(snapshot_id.offset), (
            f"{process}: checkpoint {snapshot_id} inside an open transaction"
        )
        values = self._values(process, snapshot_id, data)
        state = self.at(snapshot_id.offset)
        expected = [encode_record(KeyValueState(key=k, value=v)) for k, v in state.items()]
        assert values == expected, (
            f"{process}: checkpoint {snapshot_id} is not the state of the log there (invariant 4)"
        )
        self._files[snapshot_id] = data

    @staticmethod
    def _values(process: Process, snapshot_id: OffsetAndEpoch, data: bytes) -> list[bytes]:
        try:
            return [
                bytes(record.value or b"")
                for batch in iter_batches(data)
                if not batch.header.is_control
                for record in iter_records(batch)
            ]
        except RecordError as error:
            raise AssertionError(f"{process}: checkpoint {snapshot_id} is damaged") from error

    def look(self, process: Process) -> None:
        """Is the state that the process has what the log says?"""
        host, state = process.host, process.state
        if host is None or state is None or not host.ready:
            return
        expected = self.at(state.applied.offset)
        same = len(state) == len(expected) and all(
            state.get(key) == value for key, value in expected.items()
        )
        assert same, f"{process}: its state at {state.applied} is not that of the log (invariant 4)"
