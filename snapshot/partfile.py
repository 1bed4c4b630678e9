"""A file that gets its final name only when it is whole.

It is written under another name, made durable, and only then renamed; the directory is synced last,
because a name is durable only then. Whatever step a crash hits, the final name leads to all the
bytes or does not exist.

Bytes are appended, which is all that a writer needs, and all that FetchSnapshot needs: a chunk is
welcome exactly when its position is `size_bytes`.

Source: KIP-630, Validation of Snapshot and Log; org.apache.kafka.snapshot.FileRawSnapshotWriter.
"""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path
from types import TracebackType

from raft.segments.files import File, FileSystem, Mode
from records.compression import Buffer
from records.types import OffsetAndEpoch
from snapshot.names import BOOTSTRAP_NAME, checkpoint_name, parse_part_name, part_name


class PartFile:
    """A partial file of `final_path`. Leaving the `with` block unpublished discards it."""

    def __init__(
        self, files: FileSystem, path: Path, final_path: Path, *, mode: Mode = Mode.CREATE
    ) -> None:
        self._files = files
        self._file: File | None = files.open(path, mode)
        self._finished = False
        self.path = path
        self.final_path = final_path
        self.size_bytes = self._file.size()

    @classmethod
    def create(
        cls,
        files: FileSystem,
        directory: Path,
        snapshot_id: OffsetAndEpoch,
        *,
        unique: int | None = None,
    ) -> PartFile:
        """Create the partial file of a checkpoint.

        Args:    unique: instead of a random number in its temporary name.
        """
        number = 1 + secrets.randbits(62) if unique is None else unique
        return cls(
            files,
            directory / part_name(snapshot_id, number),
            directory / checkpoint_name(snapshot_id),
        )

    @classmethod
    def create_bootstrap(cls, files: FileSystem, directory: Path) -> PartFile:
        """Create the partial file of a `bootstrap.checkpoint`."""
        final = directory / BOOTSTRAP_NAME
        return cls(files, final.with_name(final.name + ".tmp"), final)

    @classmethod
    def resume(cls, files: FileSystem, path: Path) -> PartFile:
        """Open a partial checkpoint file left before a restart, to append bytes.

        Its last bytes may never have reached the disk: only verification of the whole tells.
        """
        snapshot_id = parse_part_name(path.name)
        assert snapshot_id is not None, f"not the name of a part: {path}"
        return cls(files, path, path.with_name(checkpoint_name(snapshot_id)), mode=Mode.WRITE)

    def append(self, data: Buffer) -> None:
        """Append bytes to the partial file, at the end of the bytes that were appended before.

        Raises OSError.
        """
        assert self._file is not None, f"{self.path} is closed"
        try:
            self._file.write(self.size_bytes, data)
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(self.size_bytes)
            raise
        self.size_bytes += len(data)

    def flush(self) -> None:
        """Make all bytes appended to the partial file durable.

        Raises OSError; their state on disk is then unknown.
        """
        assert self._file is not None, f"{self.path} is closed"
        self._file.fdatasync()

    def publish(self) -> Path:
        """Make the bytes durable, then rename the file durably to its final name.

        Raises:  OSError. If the directory could not be synced, the file is there and whole, but may
                 be gone after a power loss.
        """
        assert self._file is not None, f"{self.path} is closed"
        self._file.fdatasync()
        self._close()
        self._files.rename(self.path, self.final_path)
        self._finished = True
        self._files.fsync_directory(self.final_path.parent)
        return self.final_path

    def keep(self) -> None:
        """Close the partial file without deleting it, so that `resume` can continue."""
        self._close()
        self._finished = True

    def discard(self) -> None:
        """Close and delete the partial file, unless `publish` or `keep` was called."""
        self._close()
        if not self._finished:
            self._finished = True
            with contextlib.suppress(FileNotFoundError):
                self._files.unlink(self.path)

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> PartFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.discard()
