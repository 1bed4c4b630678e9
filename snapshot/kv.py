"""A small key-value state machine: each key's last value, in the order of the keys' insertion.

A record with a key sets it; one with a null value deletes it; one without a key is counted and
leaves no trace in the state. What a batch's checksum vouches for may still be nonsense inside, if a
client wrote it: such a batch changes nothing, on every replica alike.

Freezing costs nothing. The dict becomes read-only, and further changes go to an *overlay* above
it; once the last frozen record was handed out, the overlay is merged back, a little at a time.

The trap is the order: the checkpoint is in the dict's own order, not sorted. It is a function
of the log, so every replica has the same; loading preserves it; and sorting a million keys would be
a pause of most of a second. The overlay must then keep it, too: a key that is deleted and set again
goes to the end.

Source: ours; docs/design/snapshots.md#generation-never-blocks-commits,
docs/design/state-machines.md#decide-and-apply; invariant 4 (docs/design/invariants.md).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from raft.interfaces import Frozen
from records.batch import (
    COMPRESSION_MASK,
    CONTROL,
    HEADER_SIZE_BYTES,
    MIN_RECORD_BYTES,
    Batch,
    BatchHeader,
    iter_records,
)
from records.codegen import read_uvarint, uvarint
from records.compression import Buffer
from records.errors import RecordError, UnknownRecordError
from records.frame import decode_record, encode_record
from records.key_value import KeyValueState
from records.types import Epoch, Offset, OffsetAndEpoch
from snapshot.values import iter_values

_HEAD: Final = encode_record(KeyValueState(key=b"", value=b""))[:-3]
"""Frame version, type and record version of every record of a checkpoint."""

_HEAD_BYTES: Final = len(_HEAD)

_MERGE_PER_RECORD: Final = 4  # merged back for every record applied
_MERGE_PER_SLICE: Final = 1_000  # a third of a millisecond
_LOAD_PER_SLICE: Final = 2_000  # records, some 3 ms


_Pair: TypeAlias = tuple[bytes | None, bytes | None]
"""A record's key and value."""


class _Change(NamedTuple):
    """A key's change in the overlay."""

    value: bytes | None  # None: deleted
    anew: bool  # whatever the dict below says of the key is over: it stands at the end


class KeyValueMachine:
    """The key-value state; implements `raft.interfaces.StateMachine`."""

    def __init__(self) -> None:
        self.keyless_records = 0  # seen by this process
        self.damaged_batches = 0
        self._applied = OffsetAndEpoch(Offset(0), Epoch(0))
        self._last_timestamp = 0
        self._base: dict[bytes, bytes] = {}
        self._overlay: OrderedDict[bytes, _Change] = OrderedDict()
        self._frozen: _FrozenKeyValues | None = None
        self._size = 0
        self._changed = 0
        self._changed_when_frozen = 0

    # --- looking ------------------------------------------------------------------------------

    @property
    def applied(self) -> OffsetAndEpoch:
        """Return the offset after the last applied record, and that record's epoch."""
        return self._applied

    @property
    def last_timestamp(self) -> int:
        """Return the timestamp in ms of the last applied batch."""
        return self._last_timestamp

    @property
    def changed_records(self) -> int:
        """Return how many values were replaced or deleted since the newest checkpoint."""
        return self._changed

    @property
    def total_records(self) -> int:
        """Return the number of keys in the state."""
        return self._size

    @property
    def checkpointable(self) -> bool:
        """Return whether the state can be frozen, which needs the last frozen state closed."""
        return self._frozen is None

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None if the key has no value."""
        change = self._overlay.get(key)
        return self._base.get(key) if change is None else change.value

    def __len__(self) -> int:
        return self._size

    def fill(self, values: Mapping[bytes, bytes]) -> None:
        """Replace all values without moving the state's offset, for benchmarks."""
        self._base, self._overlay, self._frozen = dict(values), OrderedDict(), None
        self._size = len(values)

    # --- applying -----------------------------------------------------------------------------

    def apply(self, batches: Iterable[Batch]) -> None:
        """Apply committed batches to the values, in order."""
        header: BatchHeader | None = None
        for batch in batches:
            header = batch.header
            attributes = header.attributes
            if not attributes & CONTROL:
                pair = None if attributes & COMPRESSION_MASK else _plain_pair(batch)
                if pair is None:
                    self._apply_pairs(_pairs(batch))
                elif self._frozen is not None or self._overlay:
                    self._apply_pairs((pair,))
                else:
                    self._change_base(*pair)
        if header is not None:
            self._last_timestamp = header.max_timestamp
            self._applied = OffsetAndEpoch(header.end_offset, header.leader_epoch)

    def _apply_pairs(self, pairs: Sequence[_Pair] | None) -> None:
        """Apply the keys and values of one batch; None: the batch is damaged."""
        if pairs is None:
            self.damaged_batches += 1
            return
        layered = self._frozen is not None or bool(self._overlay)
        for key, value in pairs:
            if key is None:
                self.keyless_records += 1
            elif layered:
                self._change_overlay(key, value)
            else:
                self._change_base(key, value)
        if layered and self._frozen is None:
            self._merge(_MERGE_PER_RECORD * len(pairs) + _MERGE_PER_SLICE)

    def _change_base(self, key: bytes, value: bytes | None) -> None:
        base = self._base
        before = len(base)
        if value is not None:
            base[key] = value
            self._size = len(base)
            self._changed += self._size == before
        elif base.pop(key, None) is not None:
            self._size = before - 1
            self._changed += 1

    def _change_overlay(self, key: bytes, value: bytes | None) -> None:
        overlay = self._overlay
        change = overlay.get(key)
        was_there = (key in self._base) if change is None else change.value is not None
        if value is None:
            if not was_there:
                return
            self._size -= 1
            self._changed += 1
            overlay[key] = _Change(None, anew=True)
            return
        if was_there:
            self._changed += 1
            overlay[key] = _Change(value, anew=change is not None and change.anew)
            return
        self._size += 1
        overlay[key] = _Change(value, anew=True)
        overlay.move_to_end(key)

    def _merge(self, limit: int) -> bool:
        """Merge up to `limit` of the changes made since a freeze; return whether none is left."""
        base, overlay = self._base, self._overlay
        while overlay and limit:
            key, change = overlay.popitem(last=False)
            if change.anew:
                base.pop(key, None)
            if change.value is not None:
                base[key] = change.value
            limit -= 1
        return not overlay

    # --- checkpoints --------------------------------------------------------------------------

    def freeze(self) -> Frozen:
        """Return a frozen copy of the state, which later changes do not affect."""
        assert self._frozen is None, "frozen already"
        self._merge(len(self._overlay))
        self._changed_when_frozen = self._changed
        self._frozen = _FrozenKeyValues(self, self._base)
        return self._frozen

    def thaw(self, frozen: _FrozenKeyValues) -> None:
        """Release a frozen copy, so that later changes can be merged into the state."""
        if self._frozen is frozen:
            self._frozen = None

    def merge_some(self) -> bool:
        """Merge some changes made since a freeze; return True if no more can be merged now."""
        return self._frozen is not None or self._merge(_MERGE_PER_SLICE)

    def checkpointed(self, snapshot_id: OffsetAndEpoch, record_count: int) -> None:
        """Stop counting the changed records that the new checkpoint includes."""
        assert snapshot_id.offset <= self._applied.offset, f"{snapshot_id}: {self._applied}"
        assert record_count >= 0, f"{record_count} records"
        self._changed -= self._changed_when_frozen
        self._changed_when_frozen = 0

    def reset(self) -> None:
        """Empty the state and set its offset to 0, without affecting a frozen copy."""
        self._applied = OffsetAndEpoch(Offset(0), Epoch(0))
        self._last_timestamp = 0
        self._base, self._overlay, self._frozen = {}, OrderedDict(), None
        self._size = self._changed = self._changed_when_frozen = 0

    def load(self, snapshot_id: OffsetAndEpoch, batches: Iterable[Batch]) -> Iterator[None]:
        """Replace the state by a checkpoint's records.

        Raises RecordError for a foreign record.
        """
        self.reset()
        base = self._base
        count = 0
        timestamp = 0
        for batch in batches:
            timestamp = batch.header.max_timestamp
            for record in iter_values(batch):
                key, value = _parse(record)
                base[key] = value
                count += 1
                if count % _LOAD_PER_SLICE == 0:
                    yield
        self._size = len(base)
        self._last_timestamp = timestamp
        self._applied = snapshot_id


class _FrozenKeyValues:
    """The state as it was when it was frozen."""

    def __init__(self, machine: KeyValueMachine, base: dict[bytes, bytes]) -> None:
        self._machine = machine
        self._base = base

    def values(self) -> Iterator[Buffer]:
        """Yield each frozen, encoded key and value, then empty bytes until changes are merged."""
        for key, value in self._base.items():
            yield b"".join(
                (_HEAD, uvarint(len(key) + 1), key, uvarint(len(value) + 1), value, b"\x00")
            )
        self._machine.thaw(self)
        while not self._machine.merge_some():
            yield b""

    def close(self) -> None:
        """Stop reading the frozen state."""
        self._machine.thaw(self)


def _pairs(batch: Batch) -> Sequence[_Pair] | None:
    """Return the keys and values of a batch's records, or None if it is damaged."""
    try:
        return [
            (
                None if record.key is None else bytes(record.key),
                None if record.value is None else bytes(record.value),
            )
            for record in iter_records(batch)
        ]
    except RecordError:
        return None


def _plain_pair(batch: Batch) -> tuple[bytes, bytes] | None:
    """Return the key and value of the only record of an uncompressed batch, if that is plain.

    Plain: the first record of the batch, of the batch's time, below 8 KiB, with a key below 64
    bytes and a value, and without headers. It saves two thirds of the time that any record takes.
    None: a batch of another kind, for `_pairs`.
    """
    header, view = batch.header, batch.view
    if header.record_count != 1 or len(view) < HEADER_SIZE_BYTES + MIN_RECORD_BYTES:
        return None
    body = bytes(view[HEADER_SIZE_BYTES:])
    size = len(body)
    length, at = body[0], 1
    if length >= 0x80:
        high = body[1]
        length, at = length & 0x7F | high << 7 if high < 0x80 else 1, 2
    if length & 1 or at + (length >> 1) != size or body[at : at + 3] != b"\x00\x00\x00":
        return None
    key_size = body[at + 3]
    value_at = at + 4 + (key_size >> 1)
    if key_size & 1 or key_size >= 0x80 or value_at + 2 > size:
        return None
    value_size, start = body[value_at], value_at + 1
    if value_size >= 0x80:
        high = body[start]
        value_size, start = value_size & 0x7F | high << 7 if high < 0x80 else 1, start + 1
    if value_size & 1 or start + (value_size >> 1) != size - 1 or body[-1]:
        return None
    return body[at + 4 : value_at], body[start:-1]


def _parse(record: bytes) -> tuple[bytes, bytes]:
    """Return the key and value of one record of a checkpoint.

    Raises:  RecordError if it is not one of ours.
    """
    if record.startswith(_HEAD):
        try:
            key_size, key_at = record[_HEAD_BYTES], _HEAD_BYTES + 1
            if key_size >= 0x80:
                key_size, key_at = read_uvarint(record, _HEAD_BYTES)
            key_end = key_at + key_size - 1
            value_size, value_at = record[key_end], key_end + 1
            if value_size >= 0x80:
                value_size, value_at = read_uvarint(record, key_end)
        except (IndexError, ValueError):
            key_size = value_size = key_at = key_end = value_at = 0
        value_end = value_at + value_size - 1
        if key_size and value_size and value_end == len(record) - 1 and not record[-1]:
            return record[key_at:key_end], record[value_at:value_end]
    decoded = decode_record(record)  # a form that we do not write, or none at all
    if not isinstance(decoded, KeyValueState):
        raise UnknownRecordError(kind="metadata", key=decoded.schema().key or 0)
    return decoded.key, decoded.value
