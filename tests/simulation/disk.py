"""A disk that keeps its promises and not one thing more.

Files live in memory and know what was flushed. `crash` is a power loss: of every file it keeps the
flushed bytes, and of the writes since then any it likes, the last one torn or turned into garbage;
names that were created, renamed or unlinked without a directory sync may or may not have been. All
of it is drawn from the `random.Random` it is given, so a seed replays a crash.

Faults to inject: `capacity_bytes` (ENOSPC with part of the write done), `fail_next` (any error,
once, at an operation of one's choice; a failed fdatasync loses what it should have flushed, for
good, as Linux does), `power_loss_at` (raise `PowerLoss` before the n-th change), `flip_bit`.

It implements `raft.segments.files.FileSystem`. One thread at a time.
"""

from __future__ import annotations

import errno
import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from raft.segments.files import Mode

_T = TypeVar("_T")


class PowerLoss(BaseException):  # no error that anybody could handle
    """The machine stopped here. Call `crash` before the disk is used again."""


@dataclass(slots=True)
class _Write:
    position: int
    data: bytes

    def apply(self, content: bytearray) -> None:
        end = self.position + len(self.data)
        if len(content) < end:
            content.extend(bytes(end - len(content)))
        content[self.position : end] = self.data


@dataclass(slots=True)
class _Truncate:
    size: int

    def apply(self, content: bytearray) -> None:
        if len(content) > self.size:
            del content[self.size :]
        else:
            content.extend(bytes(self.size - len(content)))


@dataclass(slots=True)
class _Content:
    """One file's bytes, whatever names it has."""

    now: bytearray = field(default_factory=bytearray)  # what a reader sees
    durable: bytearray = field(default_factory=bytearray)
    pending: list[_Write | _Truncate] = field(default_factory=list)

    def change(self, operation: _Write | _Truncate) -> None:
        operation.apply(self.now)
        self.pending.append(operation)


@dataclass(slots=True)
class _Rename:
    """A change of one directory's names: None as source is a creation, as target an unlink."""

    source: Path | None
    target: Path | None
    content: _Content

    def apply(self, names: dict[Path, _Content]) -> None:
        if self.source is not None:
            names.pop(self.source, None)
        if self.target is not None:
            names[self.target] = self.content


class SimulatedFile:
    """An open file. It dies with the power."""

    def __init__(self, disk: SimulatedDisk, path: Path, content: _Content, mode: Mode) -> None:
        self._disk = disk
        self._path = path
        self._content = content
        self._mode = mode
        self._boot = disk.boots
        self._closed = False

    def _check(self) -> None:
        assert self._boot == self._disk.boots, f"{self._path}: used after a power loss"
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self._path))

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        self._check()
        assert self._mode is not Mode.READ, f"{self._path}: opened for reading"
        room = self._disk.room_bytes
        growth = position + len(data) - len(self._content.now)
        part = bytes(data)
        if growth > room:
            part = part[: max(0, len(part) - (growth - room))]
        try:
            self._disk.step("write", self._path)
        except OSError:
            self._content.change(_Write(position, part[: len(part) // 2]))
            raise
        if part:
            self._content.change(_Write(position, part))
        if len(part) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))

    def read(self, position: int, size_bytes: int) -> bytes:
        self._check()
        assert position >= 0 <= size_bytes, f"pread refuses {size_bytes} bytes at {position}"
        return bytes(self._content.now[position : position + size_bytes])

    def read_into(self, position: int, target: memoryview) -> int:
        data = self.read(position, len(target))
        target[: len(data)] = data
        return len(data)

    def truncate(self, size_bytes: int) -> None:
        self._check()
        self._disk.step("truncate", self._path)
        self._content.change(_Truncate(size_bytes))

    def fdatasync(self) -> None:
        self._check()
        content = self._content
        try:
            self._disk.step("fdatasync", self._path)
        except OSError:
            content.pending.clear()  # marked clean, never written
            raise
        for operation in content.pending:
            operation.apply(content.durable)
        content.pending.clear()

    def drop_cache(self) -> None:
        """What a failed flush left in the cache alone is gone; what waits to be flushed stays."""
        self._check()
        content = self._content
        content.now = bytearray(content.durable)
        for operation in content.pending:
            operation.apply(content.now)

    def size(self) -> int:
        self._check()
        return len(self._content.now)

    def close(self) -> None:
        self._closed = True


class SimulatedDisk:
    """See the module. `steps` counts changes, so that a test can lose power before each."""

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.power_loss_at: int | None = None
        self.steps = 0
        self.boots = 0
        self._names: dict[Path, _Content] = {}
        self._durable_names: dict[Path, _Content] = {}
        self._pending_names: dict[Path, list[_Rename]] = {}
        self._directories: set[Path] = set()
        self._failures: list[tuple[str, str, int]] = []

    # --- FileSystem --------------------------------------------------------------------------

    def open(self, path: Path, mode: Mode) -> SimulatedFile:
        content = self._names.get(path)
        if content is None and mode is not Mode.CREATE:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if path.parent not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))
        if mode is Mode.CREATE:
            self.step("create", path)
            if content is None:
                content = _Content()
                self._rename(_Rename(None, path, content), path.parent)
            elif content.now:
                content.change(_Truncate(0))
        assert content is not None
        return SimulatedFile(self, path, content, mode)

    def exists(self, path: Path) -> bool:
        return path in self._names or path in self._directories

    def listdir(self, directory: Path) -> list[str]:
        if directory not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(directory))
        inside = f"{directory}/"  # a path keeps its text; its parent is made anew
        found = map(str, (*self._names, *self._directories))
        names = (text[len(inside) :] for text in found if text.startswith(inside))
        return sorted(name for name in names if "/" not in name)

    def make_directory(self, directory: Path) -> None:
        """Durable at once, as the real one's sync of the parents makes it."""
        self._directories.update((directory, *directory.parents))

    def rename(self, source: Path, target: Path) -> None:
        assert source.parent == target.parent, "renames across directories are not simulated"
        if source not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(source))
        self.step("rename", target)
        self._rename(_Rename(source, target, self._names[source]), target.parent)

    def unlink(self, path: Path) -> None:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        self.step("unlink", path)
        self._rename(_Rename(path, None, self._names[path]), path.parent)

    def fsync_directory(self, directory: Path) -> None:
        self.step("fsync_directory", directory)
        for rename in self._pending_names.pop(directory, ()):
            rename.apply(self._durable_names)

    def free_bytes(self, directory: Path) -> int:  # noqa: ARG002 (one disk, any directory)
        return self.room_bytes

    # --- what a test does to it --------------------------------------------------------------

    @property
    def room_bytes(self) -> int:
        if self.capacity_bytes is None:
            return 1 << 60
        return max(0, self.capacity_bytes - self.used_bytes)

    @property
    def used_bytes(self) -> int:
        """What all files take up together."""
        return sum(len(file.now) for file in self._names.values())

    def fail_next(self, operation: str, *, name: str = "", error: int = errno.EIO) -> None:
        """Fail the next `operation` on a file whose name contains `name`, once."""
        self._failures.append((operation, name, error))

    def forget_failures(self) -> None:
        """What `fail_next` asked for and has not happened yet will not."""
        self._failures.clear()

    def flip_bit(self, path: Path, position: int, bit: int = 0) -> None:
        """Damage a byte, on the disk and in the cache."""
        content = self._names[path]
        assert position < len(content.durable), f"{path}: flip bits of what was flushed"
        content.now[position] ^= 1 << bit
        content.durable[position] ^= 1 << bit

    def replace(self, path: Path, data: bytes) -> None:
        """Put other bytes in a file's place, durably."""
        content = self._names.setdefault(path, _Content())
        self._durable_names[path] = content
        content.now, content.durable = bytearray(data), bytearray(data)
        content.pending.clear()

    def durable_bytes(self, path: Path) -> int:
        """How long the file is if the power fails now and nothing else of it survives."""
        return len(self._names[path].durable)

    def content(self, path: Path) -> bytes:
        return bytes(self._names[path].now)

    def crash(self, rng: random.Random) -> None:
        """Lose power and come back: what was promised is there, the rest is drawn from `rng`."""
        self.boots += 1
        self.power_loss_at = None
        self._failures.clear()
        for _, renames in sorted(self._pending_names.items()):
            for rename in _some(renames, rng):
                rename.apply(self._durable_names)
        self._pending_names.clear()
        self._names = dict(self._durable_names)
        for _, content in sorted(self._names.items()):
            _lose_power(content, rng)

    # --- inside ------------------------------------------------------------------------------

    def step(self, operation: str, path: Path) -> None:
        """Every change passes here first."""
        if self.power_loss_at is not None and self.steps >= self.power_loss_at:
            raise PowerLoss(f"before step {self.steps}: {operation} {path.name}")
        self.steps += 1
        for i, (wanted, name, error) in enumerate(self._failures):
            if wanted == operation and name in path.name:
                del self._failures[i]
                raise OSError(error, os.strerror(error), str(path))

    def _rename(self, rename: _Rename, directory: Path) -> None:
        rename.apply(self._names)
        self._pending_names.setdefault(directory, []).append(rename)


def _some(operations: list[_T], rng: random.Random) -> list[_T]:
    """All, none, a prefix, or any subset in order."""
    match rng.randrange(4):
        case 0:
            return operations
        case 1:
            return []
        case 2:
            return operations[: rng.randrange(len(operations) + 1)]
        case _:
            return [operation for operation in operations if rng.random() < 0.5]


def _lose_power(content: _Content, rng: random.Random) -> None:
    kept = list(_some(content.pending, rng))
    if kept and isinstance(kept[-1], _Write) and rng.random() < 0.6:
        kept[-1] = _torn(kept[-1], rng)
    for operation in kept:
        operation.apply(content.durable)
    content.pending.clear()
    content.now = bytearray(content.durable)


def _torn(write: _Write, rng: random.Random) -> _Write:
    """The first part of a write, sometimes with garbage or zeros in the place of the rest."""
    cut = rng.randrange(len(write.data) + 1)
    rest = len(write.data) - cut
    match rng.randrange(3):
        case 0:
            return _Write(write.position, write.data[:cut])
        case 1:
            return _Write(write.position, write.data[:cut] + rng.randbytes(rest))
        case _:
            return _Write(write.position, write.data[:cut] + bytes(rest))
