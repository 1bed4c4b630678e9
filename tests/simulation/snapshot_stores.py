"""A process's checkpoints: serving them, installing them, and cutting the log down to them.

The store and the rule of how far the log may be cut are the production ones. Where a crash may come
between two changes of the disk, this says so (`dare`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from raft.core.effects import InstallSnapshot, ServeSnapshot
from raft.core.events import LogStartMoved
from raft.core.log import EpochStart, LogState
from raft.core.progress import LeaderState
from raft.interfaces import SnapshotChunk
from records.kafka_errors import ErrorCode
from records.types import Epoch, Offset, OffsetAndEpoch
from snapshot.log_start import Candidate, Holder, Kind, follower_log_start, leader_log_start
from tests.simulation.machine import DIRECTORY
from tests.simulation.part import Part
from tests.simulation.world import MS

LOOK_US: Final = 200 * MS
"""How often the log's start is thought about."""


class Shelving(Part):
    """See the module."""

    answer_piece: Callable[[int, int, int, SnapshotChunk | None], None]
    snapshot_installed: Callable[[OffsetAndEpoch], None]

    def __init__(self) -> None:
        self.leader_log_start = Offset(0)
        self._published_ms: dict[OffsetAndEpoch, int] = {}
        self._served: dict[OffsetAndEpoch, int] = {}

    def open_shelf(self) -> None:
        """What there is; what is no checkpoint and can never be one goes."""
        shared, machine = self.shared, self.machine
        self.store = shared.store_class(
            machine.disk, DIRECTORY, now_ms=machine.clock.now_ms, pin_ms=shared.snapshots.pin_ms
        )

    def geometry(self) -> LogState:
        """The log as found, and the newest checkpoint beside it, whatever a crash left of both."""
        log, ids = self.log, self.store.ids
        start = log.log_start_offset
        start_epochs = [one.epoch for one in ids if one.offset == start]
        assert start == 0 or start_epochs, (
            f"{self}: its log starts at {start}, and no checkpoint ends there: {ids} (KIP-630)"
        )
        return LogState(
            start_offset=start,
            start_epoch=start_epochs[0] if start_epochs else Epoch(0),
            end_offset=log.log_end_offset,
            epochs=tuple(
                EpochStart(epoch, first)
                for epoch, first in log.epochs
                if first < log.log_end_offset  # else it runs on from before, and has no record yet
            ),
            snapshot_id=self.store.newest,
            floor=log.floor,
            snapshot_epochs=()
            if self.store.newest is None
            else self.store.epochs(self.store.newest),
        )

    # -- serving -----------------------------------------------------------------------------------

    def _on_serve_snapshot(self, effect: ServeSnapshot) -> None:
        connection, correlation, request = effect
        piece, error, snapshot_id = None, 0, request.snapshot_id
        now_ms = self.machine.clock.now_ms()
        try:
            piece = self.store.read(snapshot_id, request.position, request.max_bytes)
        except ValueError:
            error = int(ErrorCode.POSITION_OUT_OF_RANGE)
        if piece is None and not error:
            error = int(ErrorCode.SNAPSHOT_NOT_FOUND)
            read_ms = self._served.get(snapshot_id)
            assert read_ms is None or now_ms - read_ms > self.shared.snapshots.reader_ms, (
                f"{self}: checkpoint {snapshot_id} was dropped {now_ms - read_ms} ms after it was"
                " read: under its reader"
            )
        elif piece is not None:
            self._served[snapshot_id] = now_ms
            piece = self._garbled(piece, request.position)
        self.answer_piece(connection, correlation, error, piece)

    def _garbled(self, piece: SnapshotChunk, position: int) -> SnapshotChunk:
        """What a broken peer sends: other bytes, other sizes, another file's bytes."""
        machine = self.machine
        if self.shared.world.now_us > machine.garbles_until_us or machine.random.random() < 0.5:
            return piece
        self.checker.rare["pieces garbled"] += 1
        data = bytearray(piece.data)
        match machine.random.randrange(8):
            case 0 | 1 | 2 if data:
                data[machine.random.randrange(len(data))] ^= 1 << machine.random.randrange(8)
            case 3:
                return SnapshotChunk(piece.size_bytes, bytes(data[: len(data) // 2]))
            case 4:
                return SnapshotChunk(max(0, piece.size_bytes - 7), bytes(data))
            case 5:
                return SnapshotChunk(piece.size_bytes, bytes(data) + bytes(9))
            case _:
                other = machine.random.choice(self.store.ids)
                spliced = self.store.read(other, 0, 1 << 30)
                if spliced is not None:
                    return SnapshotChunk(
                        piece.size_bytes,
                        bytes(spliced.data[position : position + len(data)]),
                    )
        return SnapshotChunk(piece.size_bytes, bytes(data))

    # -- installing --------------------------------------------------------------------------------

    def _on_install_snapshot(self, effect: InstallSnapshot) -> None:
        snapshot_id, self._generation = effect.snapshot_id, effect.generation
        self.checker.installing(self, snapshot_id)
        self.dare()
        self.log.reset_to(snapshot_id.offset)
        self.checker.installed(self, snapshot_id)
        self.snapshot_installed(snapshot_id)

    # -- cutting the log ---------------------------------------------------------------------------

    def look(self) -> None:
        """Now and then: may the log start later?"""
        self.shared.world.after(LOOK_US, self.job, self.look)
        self.checker.states.look(self)
        leader = self.quorum._context.leader
        if leader is not None and leader.is_open:
            chosen = self._leader_log_start(leader)
        else:
            chosen = follower_log_start(
                self.store.ids, self.leader_log_start, log_start_offset=self.log.log_start_offset
            )
        if chosen is not None and chosen.offset <= self.log.flushed_end_offset:
            self._cut(chosen)
        try:
            self.store.drop_below(self.log.log_start_offset)
        except OSError:
            self.checker.rare["failed writes"] += 1

    def _leader_log_start(self, leader: LeaderState) -> OffsetAndEpoch | None:
        shared, log, now_ms = self.shared, self.log, self.machine.clock.now_ms()
        candidates = [self._candidate(one, now_ms) for one in self.store.ids]
        chosen = leader_log_start(
            candidates,
            self.holders(leader),
            log_start_offset=log.log_start_offset,
            log_bytes=log.size_bytes,
            now_ms=now_ms,
            leading_since_ms=leader.since_ms,
            settings=shared.snapshots.log_start,
        )
        if chosen is not None:
            self._may_cut(leader, chosen, candidates)
        return chosen

    def _may_cut(
        self, leader: LeaderState, chosen: OffsetAndEpoch, candidates: Sequence[Candidate]
    ) -> None:
        """By the leader's own words: only past what everybody that lives has, or by force."""
        settings, now_ms = self.shared.snapshots.log_start, self.machine.clock.now_ms()
        ages = {candidate.snapshot_id: candidate.age_ms for candidate in candidates}
        sizes = sum(candidate.size_bytes for candidate in candidates) + self.log.size_bytes
        too_large = settings.max_retention_bytes is not None
        if ages[chosen] >= settings.max_lag_ms:
            return
        if too_large and sizes > settings.max_retention_bytes:
            return
        for replica in (*leader.voters.values(), *leader.observers.values()):
            seen_ms, held = replica.last_fetch_ms, replica.end_offset or 0
            unknown = seen_ms is None and now_ms - leader.since_ms < settings.live_ms
            lives = seen_ms is not None and now_ms - seen_ms <= settings.live_ms
            held_by_it = held >= chosen.offset if lives else not unknown
            assert held_by_it, (
                f"{self}: its log is to start at {chosen}, and {replica.key} holds {held}"
                f" (it was seen {seen_ms}, it is {now_ms}, we lead since {leader.since_ms})"
            )

    def holders(self, leader: LeaderState) -> Sequence[Holder]:
        """Everybody the leader knows of."""
        voters = [
            Holder(f"voter {node}", Kind.VOTER, replica.end_offset, replica.last_fetch_ms)
            for node, replica in leader.voters.items()
        ]
        return voters + [
            Holder(f"observer {key.id}", Kind.OBSERVER, replica.end_offset, replica.last_fetch_ms)
            for key, replica in leader.observers.items()
        ]

    def _candidate(self, snapshot_id: OffsetAndEpoch, now_ms: int) -> Candidate:
        """Offsets stand for bytes where nobody counts bytes."""
        log, offset = self.log, snapshot_id.offset
        length = max(1, log.log_end_offset - log.log_start_offset)
        after = log.size_bytes * max(0, log.log_end_offset - offset) // length
        published_ms = self._published_ms.setdefault(snapshot_id, now_ms)
        size_bytes = self.store.size_bytes(snapshot_id) or 0
        return Candidate(snapshot_id, size_bytes, after, now_ms - published_ms)

    def _cut(self, snapshot_id: OffsetAndEpoch) -> None:
        self.checker.rare["log starts moved"] += 1
        self.dare()
        self.log.drop_prefix(snapshot_id.offset)
        self.handle(LogStartMoved(snapshot_id.offset))
