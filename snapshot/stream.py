"""Reads the batches of a file of any size in bounded memory.

A window of the file is read at a time and batches are cut out of it as views. A batch that the
window ends in is read again at the start of the next one, which costs less than putting the halves
together.

Source: ours; the batches are `records.batch`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from raft.segments.files import File
from records.batch import MAX_BATCH_SIZE_BYTES, Batch, parse_header, read_batch
from records.errors import CorruptBatchError, IncompleteBatchError
from snapshot.errors import DamagedFileError, TruncatedFileError

WINDOW_BYTES: Final = 1024 * 1024


def iter_file_batches(
    file: File,
    path: Path,
    *,
    position: int = 0,
    end_position: int | None = None,
    max_batch_bytes: int = MAX_BATCH_SIZE_BYTES,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[Batch]:
    """Yield a file's batches between two positions, after verifying their checksums.

    Memory: one window, or one batch where that is larger (at most `max_batch_bytes`).

    Args:    end_position: exclusive; the file's size when the reading begins if not given.
    Raises:  DamagedFileError at the first batch that is not sound, TruncatedFileError if the bytes
             end inside one; both name `path` and a position in the file.
    """
    end = file.size() if end_position is None else end_position
    window = memoryview(b"")
    window_start = position
    while position < end:
        try:
            batch = read_batch(window, position - window_start, max_size_bytes=max_batch_bytes)
        except IncompleteBatchError as error:
            wanted = min(end - position, max(window_bytes, error.needed_bytes))
            if wanted <= error.available_bytes:  # all there is, and still not enough
                raise _truncated_error(
                    path, position, error, window[position - window_start :]
                ) from None
            window = memoryview(file.read(position, wanted))
            window_start = position
            if len(window) <= error.available_bytes:  # the file has shrunk meanwhile
                end = position + len(window)
            continue
        except CorruptBatchError as error:
            raise DamagedFileError(
                path=path, position=position, offset=error.offset, reason=error.reason
            ) from None
        yield Batch(position, batch.header, batch.view)
        position += batch.header.size_bytes


def _truncated_error(
    path: Path, position: int, error: IncompleteBatchError, rest: memoryview
) -> TruncatedFileError:
    """Return the error for a truncated file, with the last batch's offset if readable."""
    offset = None
    if error.needed_bytes > error.available_bytes:
        try:
            offset = parse_header(rest).base_offset
        except (IncompleteBatchError, CorruptBatchError):
            offset = None
    reason = f"ends inside a batch of {error.needed_bytes} bytes, {error.available_bytes} are there"
    if offset is None:
        reason = f"ends inside a batch's header, {error.available_bytes} bytes are there"
    return TruncatedFileError(path=path, position=position, offset=offset, reason=reason)
