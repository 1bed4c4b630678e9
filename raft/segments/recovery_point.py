"""The offset up to which the log is durable, which tells a torn tail from damage.

After a crash the end of a log may be torn, because it was not flushed yet: cutting it loses
nothing that was promised. The same bytes further down mean that the disk lost promised data, and
then cutting would be the very thing that must not happen. The recovery point is the line between
the two, so it must itself be durable and must never say more than was flushed.

It lives in one file of two slots written in turn, each a line of text with a sequence number and a
CRC-32C, padded to 4096 bytes. A torn write spoils one slot and the other still holds. Writing in
place costs one fdatasync, no directory sync, and no space: also on a full disk a log can be
truncated, which has to lower the point first.

The line also carries the log start offset (segments below it are leftovers of an interrupted
deletion), whether a reset to that offset has begun and not ended, and the *floor*: the end of the
records that were known to be committed and were flushed here. It says nothing of damage; it shows
that a log, whose records are all sound, has lost records that were committed (a fork). A line of
version 0 has no floor, which means that none is known. A file of version 0 stays so until its owner
says that no node of Esker 0.1 will read it: that release knows version 0 alone.
Ours alone: upstream keeps recovery-point-offset-checkpoint per log directory, and never for KRaft.

Source: docs/design/quorum.md#recovery-point; docs/design/forks.md#the-floor.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from raft.segments.errors import CorruptFileError
from raft.segments.files import File, FileSystem, Mode
from records.types import Offset

RECOVERY_POINT_FILE: Final = "recovery-point"
SLOT_BYTES: Final = 4096  # a torn page or sector reaches no further
_LINE: Final = re.compile(
    rb"(esker-recovery-point v([01]) seq=(\d{1,19}) log_start=(\d{1,19})"
    rb" recovery_point=(\d{1,19})(?: floor=(\d{1,19}))? resetting=([01])) crc=([0-9a-f]{8})\n *\n?"
)


class LogState(NamedTuple):
    """The log start, recovery point and floor, which must survive a crash."""

    log_start_offset: Offset  # inclusive
    recovery_point: Offset  # exclusive: all below was flushed
    resetting: bool = False  # every segment is to be deleted; the log starts anew at its start
    floor: Offset = Offset(0)  # exclusive: all below was committed and flushed; 0: none is known


class RecoveryPointFile:
    """The open file; `state` is the content of its newest sound slot."""

    def __init__(
        self, path: Path, file: File, state: LogState, *, sequence: int, version: int
    ) -> None:
        self._path = path
        self._file = file
        self._sequence = sequence
        self._version = version
        self.state = state

    @property
    def has_floor(self) -> bool:
        """Return whether the file's version has a field for the floor."""
        return self._version >= 1

    def allow_floor(self) -> None:
        """Let the next write have the newest version; older releases cannot read it."""
        self._version = 1

    @classmethod
    def create(cls, files: FileSystem, directory: Path, state: LogState) -> RecoveryPointFile:
        """Create the recovery point file, whose directory the caller syncs."""
        path = directory / RECOVERY_POINT_FILE
        file = files.open(path, Mode.CREATE)
        file.write(0, _render(state, 0, version=1) + _render(state, 1, version=1))
        file.fdatasync()
        return cls(path, file, state, sequence=1, version=1)

    @classmethod
    def open(cls, files: FileSystem, directory: Path) -> RecoveryPointFile:
        """Open an existing recovery point file, and make its state durable.

        After a failed flush and a restart of the process the state may be in the kernel's memory
        only, and its owner is about to delete what the state says is not needed.
        Raises:  FileNotFoundError; CorruptFileError if neither slot is sound; OSError.
        """
        path = directory / RECOVERY_POINT_FILE
        file = files.open(path, Mode.WRITE)
        try:
            sequence, state, version = _newest_slot(file, path)
            opened = cls(path, file, state, sequence=sequence, version=version)
            opened.write(state)
        except BaseException:
            file.close()
            raise
        return opened

    def write(self, state: LogState) -> None:
        """Write the log's state durably over the older of the file's two copies.

        A state with a floor needs `has_floor`. Raises OSError.
        """
        assert self.has_floor or not state.floor, f"{self._path}: no field for the floor of {state}"
        sequence = self._sequence + 1
        line = _render(state, sequence, version=self._version)
        self._file.write(sequence % 2 * SLOT_BYTES, line)
        self._file.fdatasync()
        self._sequence = sequence
        self.state = state

    def close(self) -> None:
        self._file.close()


def read_log_state(files: FileSystem, directory: Path) -> LogState:
    """Return the content of a log's recovery point file, which stays unchanged.

    Raises:  FileNotFoundError; CorruptFileError if neither slot is sound; OSError.
    """
    path = directory / RECOVERY_POINT_FILE
    file = files.open(path, Mode.READ)
    try:
        return _newest_slot(file, path).state
    finally:
        file.close()


class _Slot(NamedTuple):
    """The content of a sound slot."""

    sequence: int
    state: LogState
    version: int


def _newest_slot(file: File, path: Path) -> _Slot:
    """Return the newer sound slot."""
    slots = [_parse(file.read(i * SLOT_BYTES, SLOT_BYTES)) for i in range(2)]
    newest = max((slot for slot in slots if slot), default=None, key=lambda slot: slot.sequence)
    if newest is None:
        raise CorruptFileError(path=path, reason="neither slot is sound")
    return newest


def _render(state: LogState, sequence: int, *, version: int) -> bytes:
    floor = f"floor={state.floor} " if version >= 1 else ""
    body = (
        f"esker-recovery-point v{version} seq={sequence} log_start={state.log_start_offset} "
        f"recovery_point={state.recovery_point} {floor}resetting={int(state.resetting)}"
    ).encode()
    line = body + b" crc=%08x\n" % crc32c(body)
    return line.ljust(SLOT_BYTES - 1) + b"\n"


def _parse(slot: bytes) -> _Slot | None:
    match = _LINE.fullmatch(slot)
    if match is None or int(match[8], 16) != crc32c(match[1]):
        return None
    if match[2] == b"0" and match[6] is not None:  # a version without a floor
        return None
    start, point, floor = (Offset(int(match[i] or 0)) for i in (4, 5, 6))
    state = LogState(start, point, match[7] == b"1", floor)
    return _Slot(int(match[3]), state, int(match[2]))
