"""A process's log and election state, and the thread that flushes them.

Flushes and writes of the election state run on a disk "thread", one at a time, and end some time
after they began; everything else takes no time.
"""

from __future__ import annotations

from raft.core.effects import (
    Append,
    AppendLeaderChange,
    ClearRecovering,
    PersistElectionState,
    Truncate,
)
from raft.core.events import AppendDurable, ElectionStateDurable, Event
from raft.segments.properties import QuorumState, write_quorum_state
from records.batch import ControlType
from records.batch_writer import build_control_batch, stamp
from records.codec import encode_message
from records.control import LeaderChangeMessage, Voter
from records.types import Offset
from tests.simulation.machine import DIRECTORY, RECOVERING_MARK
from tests.simulation.part import Part
from tests.simulation.world import MS

RECORD_AFTER_US = 200 * MS
"""Sooner than in production, where schedules would often be over by then."""


class DiskWork(Part):
    """What is written, and when it is durable."""

    def __init__(self) -> None:
        self._persist: PersistElectionState | None = None
        self._unflushed = False
        self._disk_works = False
        self._generation = 0
        self._recording = False

    def _on_persist(self, effect: PersistElectionState) -> None:
        self._persist = effect
        self._work()

    def _on_clear_recovering(self, _: ClearRecovering) -> None:
        disk = self.machine.disk
        self.checker.caught_up(self.node_id)
        disk.unlink(DIRECTORY / RECOVERING_MARK)
        disk.fsync_directory(DIRECTORY)

    def _on_append(self, effect: Append) -> None:
        parts: list[bytearray | memoryview] = []
        for batch in effect.batches:
            data = batch.data
            assert isinstance(data, bytearray | memoryview), f"{self}: {batch}"
            if isinstance(data, bytearray):  # our own proposal
                stamp(data, base_offset=batch.base_offset, leader_epoch=batch.epoch)
            parts.append(data)
        self._write(b"".join(parts), effect.generation)

    def _on_append_leader_change(self, effect: AppendLeaderChange) -> None:
        self.checker.leads(self, effect.epoch)
        message = LeaderChangeMessage(
            version=0,
            leader_id=effect.leader_id,
            voters=tuple(Voter(voter_id=node) for node in effect.voters),
            granting_voters=tuple(Voter(voter_id=node) for node in effect.granting_voters),
        )
        data = build_control_batch(
            [(ControlType.LEADER_CHANGE, encode_message(message, 0))],
            base_offset=effect.base_offset,
            leader_epoch=effect.epoch,
            timestamp=0,
        )
        self._write(bytes(data), effect.generation)

    def _write(self, data: bytes, generation: int) -> None:
        self.checker.appending(self.node_id, data)
        self._generation = generation
        self.log.append(data)
        self._unflushed = True
        self._work()

    def note_committed(self, offset: Offset) -> None:
        """A new high watermark: the floor is recorded a while later, also if nothing is flushed."""
        self.log.note_committed(offset)
        if not self._recording:
            self._recording = True
            self.shared.world.after(RECORD_AFTER_US, self._record)

    def _record(self) -> None:
        self._recording = False
        if self.alive:
            self.guard(self._record_now)

    def _record_now(self) -> None:
        before = self.log.floor
        self.log.record_recovery_point()
        self.checker.rare["floors recorded"] += self.log.floor > before

    def _on_truncate(self, effect: Truncate) -> None:
        self._generation = effect.generation
        self.checker.truncating(self.node_id, effect.end_offset)
        end = self.log.truncate_to(effect.end_offset)
        assert end == effect.end_offset, f"{self}: cut at {end}, not at {effect.end_offset}"
        self.checker.truncated(self.node_id, end)

    def _work(self) -> None:
        """Give the disk's thread something to do, if it is idle."""
        if self._disk_works or not self.alive:
            return
        machine = self.machine
        if self._persist is not None:
            persist, self._persist = self._persist, None
            self._disk_works = True
            self.shared.world.after(machine.flush_us(), self._persisted, persist)
        elif self._unflushed:
            self._unflushed = False
            self._disk_works = True
            end, generation = self.log.log_end_offset, self._generation
            self.shared.world.after(machine.flush_us(), self._flushed, end, generation)

    def _persisted(self, effect: PersistElectionState) -> None:
        if self.alive:
            self.guard(self._write_election, effect)

    def _write_election(self, effect: PersistElectionState) -> None:
        state = effect.state
        write_quorum_state(
            self.machine.disk,
            DIRECTORY,
            QuorumState(
                epoch=state.epoch,
                leader_id=state.leader_id,
                voted_id=state.voted.id if state.voted else None,
                voted_directory_id=state.voted.directory_id if state.voted else None,
            ),
            version=1,
        )
        self.machine.election = state
        self._worked(ElectionStateDurable(effect.sequence))

    def _flushed(self, end: Offset, generation: int) -> None:
        if self.alive:
            self.guard(self._flush, end, generation)

    def _flush(self, end: Offset, generation: int) -> None:
        self.checker.flushed(self.node_id, self.log.flush())
        self._worked(AppendDurable(end, generation))

    def _worked(self, event: Event) -> None:
        self._disk_works = False
        self._work()
        self.handle(event)
