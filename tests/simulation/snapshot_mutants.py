"""Deliberate bugs around checkpoints, each found by the simulation; see `tests.simulation.mutants`.

Not every bug has a victim by itself. A download that goes on with a part of another checkpoint is
caught by the footer's checksum of the whole; so the mutant that does so trusts each batch's own
checksum, as upstream does. And who votes by the records of its log harms nobody until its log has
been cut right to its end.

Source: KIP-630, Changes to Leader Election, When to Increase the LogStartOffset;
docs/design/snapshots.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from raft.core.elections import VoteGranting
from raft.core.progress import LeaderState
from raft.interfaces import EpochStarts
from raft.segments.files import FileSystem, Mode
from records.types import Epoch, Offset, OffsetAndEpoch
from snapshot.download import PartDownload
from snapshot.errors import DamagedFileError
from snapshot.framing import Checkpoint
from snapshot.kv import KeyValueMachine
from snapshot.log_start import Holder, LogStartSettings
from snapshot.names import DOWNLOAD_NUMBER, list_downloads, part_name
from snapshot.policy import SnapshotSettings
from snapshot.store import SnapshotStore
from snapshot.stream import iter_file_batches
from tests.raft.core.mutants import with_part
from tests.simulation.cluster import Production
from tests.simulation.hosting import SmallBatches, WatchedMachine
from tests.simulation.machine import Snapshots
from tests.simulation.mutants import Mutant
from tests.simulation.node import Process
from tests.simulation.plan import LEADER, Fault, Plan
from tests.simulation.world import MS, SECOND

UNKNOWN: Final[Any] = SimpleNamespace(preamble=SimpleNamespace(epochs=()))
"""What is known of a checkpoint that was not verified."""


class VoteByTheLog(VoteGranting):
    """Votes are asked and given by the log's records, although a newer snapshot is there."""

    def log_position(self) -> tuple[Epoch, Offset]:
        return super().log_position() if self._context.log.epochs else (Epoch(0), Offset(0))


class Unverified(PartDownload):
    """Whatever came is a checkpoint."""

    def verify(self) -> Checkpoint:
        return UNKNOWN


class BatchByBatch(PartDownload):
    """Whatever consists of sound batches is a checkpoint."""

    def verify(self) -> Checkpoint:
        file = self._files.open(self._part.path, Mode.READ)
        try:
            for _ in iter_file_batches(file, self._part.path):
                pass
        except DamagedFileError as error:
            self._reject(str(error))
        return UNKNOWN


class RenameOnly(PartDownload):
    """The final name is there, and may be gone after a loss of power."""

    def publish(self) -> EpochStarts:
        disk: Any = self._files
        disk.fsync_directory = lambda _: None
        try:
            return super().publish()
        finally:
            del disk.fsync_directory


class OtherDownloads(SnapshotStore):
    """A store that receives in another way."""

    download: type[PartDownload]

    def receive(self, snapshot_id: OffsetAndEpoch) -> PartDownload:
        received = super().receive(snapshot_id)
        received.__class__ = self.download
        return received


class InstallUnverified(OtherDownloads):
    """What came is installed as it came."""

    download = Unverified


class InstallBeforeDurable(OtherDownloads):
    """The log is emptied before the checkpoint's name is durable."""

    download = RenameOnly


class ResumeAnyPart(OtherDownloads):
    """A download goes on with whatever part is there, of whichever checkpoint and leader."""

    download = BatchByBatch

    def receive(self, snapshot_id: OffsetAndEpoch) -> PartDownload:
        for path in list_downloads(self.files, self.directory).values():
            own = self.directory / part_name(snapshot_id, DOWNLOAD_NUMBER)
            if path != own and not self.files.exists(own):
                self.files.rename(path, own)
        return super().receive(snapshot_id)


class DropUnderReader(SnapshotStore):
    """Who reads a checkpoint does not keep it."""

    def __init__(
        self, files: FileSystem, directory: Path, *, now_ms: Callable[[], int], pin_ms: int
    ) -> None:
        super().__init__(files, directory, now_ms=now_ms, pin_ms=0 * pin_ms)


class CutKnowingNobody(Process):
    """A leader's log is cut past whoever has not been heard of yet."""

    def holders(self, leader: LeaderState) -> Sequence[Holder]:
        return [holder for holder in super().holders(leader) if holder.last_seen_ms is not None]


class LoadOlder(SmallBatches):
    """The newest checkpoint is loaded, even by a state that is beyond it."""

    def start(self) -> None:
        super().start()
        newest = self.store.newest
        if newest is not None and self._loading is None:
            self._begin_load(newest)


class FreezeInTransaction(WatchedMachine):
    """A checkpoint may be taken in the middle of a transaction."""

    checkpointable = KeyValueMachine.checkpointable


def _eager(plan: Plan) -> Plan:
    """Checkpoints all the time, logs cut at once."""
    snapshots = Snapshots(
        policy=SnapshotSettings(min_changed_ratio=0.0, max_bytes_between=200, max_interval_ms=200),
        log_start=LogStartSettings(live_ms=300, max_lag_ms=300, max_retention_bytes=1_000),
    )
    return replace(plan, voters=3, clock_ppm=(), snapshots=snapshots, piece_bytes=400)


def _lazy_leaders(plan: Plan) -> Plan:
    """Checkpoints all the time, logs cut only when nobody needs them."""
    eager = _eager(plan)
    log_start = LogStartSettings(live_ms=2000, max_lag_ms=60_000, max_retention_bytes=None)
    return replace(eager, snapshots=replace(eager.snapshots, log_start=log_start))


def _garbled(plan: Plan) -> Plan:
    """Everybody lags, and nobody sends what is on its disk."""
    weather = [
        Fault(at_us, kind, node, node, 3 * SECOND, 7)
        for at_us in range(SECOND, 10 * SECOND, SECOND)
        for kind, node in (
            ("garble", 0),
            ("garble", 1),
            ("garble", 2),
            ("isolate", at_us // SECOND % 3),
        )
    ]
    return replace(_eager(plan), faults=tuple(weather), storm_us=10 * SECOND, observers=1)


def _interrupted(plan: Plan) -> Plan:
    """Observers whose downloads, in small pieces, hardly ever end before something happens."""
    weather = [
        Fault(at_us, kind, node, node, 300 * MS, 3)
        for at_us in range(SECOND, 10 * SECOND, 500 * MS)
        for kind, node in (("isolate", 3), ("kill", 4), ("reset", 3))
    ]
    return replace(
        _eager(plan),
        faults=tuple(weather),
        storm_us=10 * SECOND,
        network=replace(plan.network, least_us=5_000, lost_one_in=0),
        piece_bytes=100,
        observers=2,
        ambush_one_in=0,
    )


def _power_fails(plan: Plan) -> Plan:
    """When a snapshot is installed."""
    return replace(
        _interrupted(plan),
        piece_bytes=8000,
        daring=True,
        ambush_on="InstallSnapshot",
        ambush_one_in=3,
    )


def _elections(plan: Plan) -> Plan:
    """Logs that end where their checkpoints do, and leaders that die when a voter has missed it."""
    weather: list[Fault] = []
    for number, at_us in enumerate(range(2 * SECOND, 14 * SECOND, 2 * SECOND)):
        weather.append(Fault(at_us, "isolate", number % 3, 0, 1400 * MS, 0))
        weather.append(Fault(at_us + 1350 * MS, "power", LEADER, 0, 0, 0))
    return replace(
        _eager(plan),
        faults=tuple(weather),
        storm_us=14 * SECOND,
        pause_us=200 * MS,
        election_timeout_ms=500,
        observers=0,
        ambush_one_in=0,
    )


SNAPSHOT_MUTANTS: Final = (
    Mutant(
        name="vote by the log although a newer snapshot is there",
        production=Production(quorum=with_part(VoteByTheLog)),
        suited=_elections,
        pinned=6,
    ),
    Mutant(
        name="install before verifying",
        production=Production(store=InstallUnverified),
        suited=_garbled,
        pinned=1,
    ),
    Mutant(
        name="resume a download from another leader's file",
        production=Production(store=ResumeAnyPart),
        suited=_interrupted,
        pinned=3,
    ),
    Mutant(
        name="truncate before the rename is durable",
        production=Production(store=InstallBeforeDurable),
        suited=_power_fails,
        pinned=35,
    ),
    Mutant(
        name="drop a snapshot under its reader",
        production=Production(store=DropUnderReader),
        suited=_interrupted,
        pinned=1,
    ),
    Mutant(
        name="advance the log start with nobody known live",
        production=Production(process=CutKnowingNobody),
        suited=_lazy_leaders,
        pinned=1,
    ),
    Mutant(
        name="load a snapshot older than the state",
        production=Production(host=LoadOlder),
        suited=_eager,
        pinned=1,
    ),
    Mutant(
        name="publish a snapshot inside an open transaction",
        production=Production(state=FreezeInTransaction),
        suited=_eager,
        pinned=1,
    ),
)
"""Every one must be found."""
