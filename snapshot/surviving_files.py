"""Reads what a directory of one log still holds, without changing a byte of it.

Opening a log repairs it: the torn tail is cut, leftovers are deleted. A surviving directory may be
the last copy of its records, so it is only read here, and every batch is checked, also below the
recovery point: the first batch that is not sound ends the copy.

Source: docs/design/restore.md#choosing-among-copies; docs/design/quorum.md#recovery-point.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from raft.segments.epochs import EpochStart
from raft.segments.files import FileSystem, Mode
from raft.segments.recovery_point import read_log_state
from raft.segments.scan import scan
from raft.segments.segment import base_offset_of, segment_name
from raft.segments.settings import LogConfig
from records.batch import Batch
from records.types import Epoch, Offset, OffsetAndEpoch
from snapshot.errors import DamagedFileError
from snapshot.names import checkpoint_name, list_checkpoints
from snapshot.reader import verify_checkpoint
from snapshot.stream import iter_file_batches
from snapshot.surviving_logs import NoCopyError, SurvivingLog


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOnDisk:
    """A copy of one log that can be restored, and the damage that was found in its files."""

    log: SurvivingLog
    checkpoint: OffsetAndEpoch | None  # newest sound one; None: the log starts at offset 0
    damage: tuple[str, ...]  # sentences that name file and position


def read_copy(files: FileSystem, directory: Path, *, high_watermark: int = 0) -> CopyOnDisk:
    """Check a log's segments and checkpoints and return what a restore can use of them.

    Args:    high_watermark: of this log in the node's `replication-offset-checkpoint`.
    Raises:  NoCopyError if records are missing between a sound checkpoint and the log's start;
             FileNotFoundError or CorruptFileError of the recovery point; OSError.
    """
    state = read_log_state(files, directory)
    checkpoint, below, damage = _newest_checkpoint(files, directory)
    covered = checkpoint.offset if checkpoint else Offset(0)
    if covered < state.log_start_offset:
        raise NoCopyError(
            f"{directory}: the log starts at offset {state.log_start_offset}, and no sound "
            f"checkpoint reaches it (the newest ends at {covered}); name another source by --from"
        )
    end, found, is_cut = covered, list[EpochStart](), False
    if not state.resetting:
        scanned, found, damaged = _scan_segments(files, directory, first_needed=covered)
        end = max(scanned, covered)
        damage += damaged
        if end < state.recovery_point:
            damage.append(
                f"{directory}: ends at {end}, below recovery point {state.recovery_point}"
            )
        is_cut = bool(damaged) or end < state.recovery_point
    log = SurvivingLog(
        directory=directory,
        epochs=_merged(below, found),
        end=end,
        committed=max(Offset(high_watermark), state.floor, covered),  # checkpoints: committed alone
        damaged=is_cut,
    )
    return CopyOnDisk(log=log, checkpoint=checkpoint, damage=tuple(damage))


def read_batches(files: FileSystem, copy: CopyOnDisk) -> Iterator[Batch]:
    """Yield the batches of a copy's log behind its checkpoint, up to the copy's end.

    Call it while the directory is unchanged since `read_copy`, which has checked every batch.
    """
    directory = copy.log.directory
    start = copy.checkpoint.offset if copy.checkpoint else Offset(0)
    names = map(base_offset_of, files.listdir(directory))
    bases = sorted(base for base in names if base is not None)
    for index, base in enumerate(bases):
        if base >= copy.log.end or (index + 1 < len(bases) and bases[index + 1] <= start):
            continue
        path = directory / segment_name(base)
        file = files.open(path, Mode.READ)
        try:
            for batch in iter_file_batches(file, path):
                if batch.header.base_offset >= start:
                    yield batch
                if batch.header.end_offset >= copy.log.end:
                    return  # damage may follow
        finally:
            file.close()


def _newest_checkpoint(
    files: FileSystem, directory: Path
) -> tuple[OffsetAndEpoch | None, list[EpochStart], list[str]]:
    """Return the newest sound checkpoint, the epochs of the log it covers, and damage found."""
    damage = []
    for snapshot_id in reversed(list_checkpoints(files, directory)):
        path = directory / checkpoint_name(snapshot_id)
        try:
            preamble = verify_checkpoint(files, path, epoch=snapshot_id.epoch).preamble
        except DamagedFileError as error:
            damage.append(str(error))
            continue
        starts = [EpochStart(Epoch(epoch), Offset(start)) for epoch, start in preamble.epochs]
        if not starts and snapshot_id.offset:  # of Kafka: its id tells the last record's epoch
            starts = [EpochStart(snapshot_id.epoch, Offset(snapshot_id.offset - 1))]
        return snapshot_id, starts, damage
    return None, [], damage


def _scan_segments(
    files: FileSystem, directory: Path, *, first_needed: Offset
) -> tuple[Offset, list[EpochStart], list[str]]:
    """Return the exclusive end of the sound batches, their epochs, and the damage after them.

    Segments that end at or below `first_needed` are skipped: the checkpoint stands for them.
    """
    bases = sorted(
        base for base in map(base_offset_of, files.listdir(directory)) if base is not None
    )
    while len(bases) > 1 and bases[1] <= first_needed:
        del bases[0]
    if not bases or bases[0] > first_needed:
        reason = f"the segment with offset {first_needed} is missing"
        return first_needed, [], [f"{directory}: {reason}"]
    end, epochs = bases[0], list[EpochStart]()
    for base in bases:
        path = directory / segment_name(base)
        if base != end:
            return end, epochs, [f"{path}: the records from offset {end} to {base} are missing"]
        file = files.open(path, Mode.READ)
        try:
            result = scan(
                file,
                base_offset=base,
                size_bytes=file.size(),
                last_epoch=epochs[-1].epoch if epochs else None,
                index_interval_bytes=LogConfig().index_interval_bytes,
            )
        finally:
            file.close()
        epochs += result.found.epochs
        end = Offset(result.found.tail.end_offset)
        if result.damage is not None:
            position = result.found.tail.position
            return end, epochs, [f"{path}: byte {position}, offset {end}: {result.damage}"]
    return end, epochs, []


def _merged(below: list[EpochStart], found: list[EpochStart]) -> tuple[EpochStart, ...]:
    """Return the epochs of a checkpoint and of the segments that follow or overlap it.

    An epoch that both name begins at the lower of the two offsets.
    """
    starts: dict[Epoch, Offset] = {}
    for epoch, start in (*below, *found):
        starts[epoch] = min(start, starts.get(epoch, start))
    return tuple(EpochStart(epoch, start) for epoch, start in sorted(starts.items()))
