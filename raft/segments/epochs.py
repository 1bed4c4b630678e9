"""Maps epochs to offsets, for the answer of a leader to a follower whose log diverged.

One entry per epoch, (epoch, first offset it wrote), both rising, with no gaps between what they
cover. A follower sends the epoch of its last record; the leader answers with the greatest epoch of
its own that is not later, and where that one ends. So a follower drops a whole epoch per round trip
instead of guessing offsets.

On disk it is `leader-epoch-checkpoint`: text, a version, a count, then one entry a line.

Source: KIP-101; KIP-595, Fetch (diverging epoch); upstream's LeaderEpochCheckpointFile.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from raft.segments.errors import CorruptFileError
from raft.segments.files import FileSystem, read_small_file, replace_file
from records.types import Epoch, Offset, OffsetAndEpoch

EPOCHS_FILE: Final = "leader-epoch-checkpoint"
_LIMIT_BYTES: Final = 32 * 1024 * 1024  # a million elections
_MAX_EPOCH: Final = (1 << 31) - 1
_MAX_OFFSET: Final = (1 << 63) - 1


class EpochStart(NamedTuple):
    """The start offset of an epoch, which ends where the next one begins or the log ends."""

    epoch: Epoch
    start_offset: Offset  # inclusive


class Epochs:
    """The entries in force, in memory; `dirty` means that the file is older.

    >>> epochs = Epochs([EpochStart(1, 0), EpochStart(4, 10)])
    >>> epochs.end_offset(3, log_end_offset=25)
    OffsetAndEpoch(offset=10, epoch=1)
    """

    def __init__(self, entries: Iterable[EpochStart] = ()) -> None:
        self._entries = list(entries)
        self.dirty = False

    @property
    def entries(self) -> tuple[EpochStart, ...]:
        return tuple(self._entries)

    @property
    def last(self) -> Epoch | None:
        """Return the epoch of the newest record, or None for an empty log."""
        return self._entries[-1].epoch if self._entries else None

    def assign(self, epoch: Epoch, start_offset: Offset) -> None:
        """Add an entry for a batch of `epoch` appended at `start_offset`, if the epoch is new."""
        if self._entries and self._entries[-1].epoch == epoch:
            return
        if self._entries:
            last = self._entries[-1]
            assert last.epoch < epoch, f"epoch went backwards: {last} -> {epoch}"
            assert last.start_offset <= start_offset, f"epoch backwards: {last}, {start_offset}"
            if last.start_offset == start_offset:  # all its records lie below the log start
                self._entries.pop()
        self._entries.append(EpochStart(epoch, start_offset))
        self.dirty = True

    def end_offset(self, epoch: int, *, log_end_offset: Offset) -> OffsetAndEpoch | None:
        """Return the greatest known epoch not later than `epoch`, and its exclusive end offset.

        None if every known epoch is later, or none is known: only a snapshot can help then.
        """
        i = bisect_right(self._entries, epoch, key=lambda entry: entry.epoch)
        if i == 0:
            return None
        end = self._entries[i].start_offset if i < len(self._entries) else log_end_offset
        return OffsetAndEpoch(end, self._entries[i - 1].epoch)

    def epoch_at(self, offset: int) -> Epoch | None:
        """Return the epoch of the record at `offset`, or None if it precedes the first entry."""
        i = bisect_right(self._entries, offset, key=lambda entry: entry.start_offset)
        return self._entries[i - 1].epoch if i else None

    def truncate_to(self, end_offset: int) -> None:
        """Remove the entries that start at or after `end_offset`."""
        count = bisect_right(self._entries, end_offset - 1, key=lambda entry: entry.start_offset)
        if count < len(self._entries):
            del self._entries[count:]
            self.dirty = True

    def clear(self) -> None:
        """Remove all entries of the epoch cache."""
        self.truncate_to(0)

    def drop_before(self, start_offset: Offset) -> None:
        """Remove entries below `start_offset`; the epoch at that offset now starts there."""
        i = bisect_right(self._entries, start_offset, key=lambda entry: entry.start_offset)
        if i and self._entries[i - 1].start_offset < start_offset:
            kept = EpochStart(self._entries[i - 1].epoch, start_offset)
            self._entries[:i] = [kept]
            self.dirty = True
        elif i > 1:
            del self._entries[: i - 1]
            self.dirty = True


def write_epochs(files: FileSystem, directory: Path, entries: Iterable[EpochStart]) -> None:
    """Replace the leader epoch checkpoint file durably."""
    lines = [f"{epoch} {start_offset}" for epoch, start_offset in entries]
    text = "\n".join(["0", str(len(lines)), *lines, ""])
    replace_file(files, directory / EPOCHS_FILE, text.encode())


def read_epochs(files: FileSystem, directory: Path) -> list[EpochStart]:
    """Return the entries of the epoch checkpoint file, or no entries without a file.

    Raises:  CorruptFileError where it is not a checkpoint or its entries do not rise.
    """
    path = directory / EPOCHS_FILE
    try:
        data = read_small_file(files, path, limit_bytes=_LIMIT_BYTES)
    except FileNotFoundError:
        return []
    if len(data) > _LIMIT_BYTES:
        raise CorruptFileError(path=path, reason=f"larger than {_LIMIT_BYTES} bytes")
    lines = data.decode("ascii", "replace").splitlines()
    if not lines or lines[0].strip() != "0":
        raise CorruptFileError(path=path, reason="line 1 is not version 0")
    if len(lines) < 2 or lines[1].strip() != str(len(lines) - 2):
        raise CorruptFileError(path=path, reason=f"line 2 does not count {len(lines) - 2} entries")
    entries: list[EpochStart] = []
    for number, line in enumerate(lines[2:], start=3):
        words = line.split()
        if len(words) != 2 or not all(word.isdecimal() and len(word) < 20 for word in words):
            raise CorruptFileError(path=path, reason=f"line {number} is not 'epoch offset'")
        entry = EpochStart(Epoch(int(words[0])), Offset(int(words[1])))
        if entry.epoch > _MAX_EPOCH or entry.start_offset > _MAX_OFFSET:
            raise CorruptFileError(path=path, reason=f"line {number} exceeds its type")
        if entries and not (
            entries[-1].epoch < entry.epoch and entries[-1].start_offset < entry.start_offset
        ):
            raise CorruptFileError(path=path, reason=f"line {number} does not rise")
        entries.append(entry)
    return entries
