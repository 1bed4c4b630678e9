"""What one group does to its disk, as the core asks: in order, durably, and off the event loop.

Appends are written by the loop, at once, and flushed by the group's disk thread: what is appended
during one flush shares the next (group commit). Election states are written by that thread, too.
Cutting the log must be over before anything else is begun: until then the group is `busy`.

Source: `raft.core.events`, rules 2 to 4; docs/design/quorum.md#durability-barriers,
docs/design/quorum.md#recovery-point.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from raft.core.effects import (
    Append,
    AppendLeaderChange,
    ClearRecovering,
    InstallSnapshot,
    PersistElectionState,
    Truncate,
)
from raft.core.events import AppendDurable, ElectionStateDurable, Event, LogStartMoved
from raft.driver.batch_builder import place
from raft.driver.counters import Counters
from raft.driver.disk_thread import DiskThread
from raft.driver.storage import Storage
from raft.interfaces import Draft
from raft.segments.segment import Segment
from records.batch import ControlType
from records.batch_writer import build_control_batch
from records.control import LeaderChangeMessage, Voter
from records.frame import encode_control_record
from records.types import Offset

log = logging.getLogger("raft.driver")

RECORD_AFTER_S: Final = 1.0  # the recovery point lags the flushed end by no more than about this

KEPT_BYTES: Final = 64 * 1024
"""Up to here a follower keeps in memory what it fetched, as a leader does: it applies that in a
moment. More at once is a replica that catches up, and its reads from the page cache cost little."""


class DiskWork:
    """The disk effects of one group."""

    def __init__(
        self,
        *,
        name: str,
        storage: Storage,
        disk: DiskThread,
        counters: Counters,
        generation: int,
        post: Callable[[Event], None],
        resume: Callable[[], None],
        on_appended: Callable[[], None],
    ) -> None:
        """Nothing under way.

        Args:    generation: of the core's log, now.
                 resume: called when the group is no longer `busy`.
                 on_appended: called when the log has grown, before anything else happens.
        """
        self.busy = False  # the log is being cut: carry nothing out
        self.resetting = False  # and there is nothing to be read in it just now
        self.recovering_cleared: Callable[[], None] | None = None
        self._name = name
        self._storage = storage
        self._disk = disk
        self._counters = counters
        self._generation = generation
        self._post = post
        self._resume = resume
        self._on_appended = on_appended
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._flushing = False
        self._flush_due = False
        self._flush_after_step = False
        self._recording: asyncio.TimerHandle | None = None
        self._sweeping: asyncio.Future[None] | None = None
        self._unswept: list[Segment] = []
        self._persisting = False
        self._persist_next: PersistElectionState | None = None

    async def close(self) -> None:
        """Let the thread finish, flush, record the recovery point, close the log."""
        self._closed = True
        if self._recording is not None:
            self._recording.cancel()
        if self._sweeping is not None:
            await asyncio.wait((self._sweeping,))
        await self._disk.run(self._storage.close)
        await self._disk.close()

    def persist(self, effect: PersistElectionState) -> None:
        """Write the election state; of several that wait, only the newest."""
        self._persist_next = effect
        if not self._persisting:
            self._persist_newest()

    def _persist_newest(self) -> None:
        effect, self._persist_next = self._persist_next, None
        assert effect is not None, f"{self._name}: no election state to write"
        self._persisting = True
        storage, state = self._storage, effect.state

        def done(_: None) -> None:
            self._persisting = False
            self._post(ElectionStateDurable(effect.sequence))
            if self._persist_next is not None:
                self._persist_newest()

        self._disk.submit(lambda: storage.persist(state), done)

    def append(self, effect: Append) -> None:
        """Write batches: drafts of ours, or what a leader sent."""
        batches = effect.batches
        pieces = [
            place(batch.data, batch.base_offset, batch.epoch)
            if type(batch.data) is Draft
            else _bytes_of(batch.data)
            for batch in batches
        ]
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        base_offset, end_offset = batches[0].base_offset, batches[-1].end_offset
        ours = type(batches[0].data) is Draft
        kept = ours or len(data) <= KEPT_BYTES
        self._storage.append(data, base_offset, end_offset, keep=kept)
        if not ours:
            self._counters.fetched_records += end_offset - base_offset
        self._appended(effect.generation, end_offset - base_offset, ours=ours)

    def append_leader_change(self, effect: AppendLeaderChange) -> None:
        """Write the first record of our epoch."""
        message = LeaderChangeMessage(
            leader_id=effect.leader_id,
            voters=tuple(Voter(voter_id=node) for node in effect.voters),
            granting_voters=tuple(Voter(voter_id=node) for node in effect.granting_voters),
        )
        _, value = encode_control_record(message)
        data = build_control_batch(
            [(ControlType.LEADER_CHANGE, value)],
            base_offset=effect.base_offset,
            leader_epoch=effect.epoch,
            timestamp=time.time_ns() // 1_000_000,
        )
        self._storage.append(data, effect.base_offset, Offset(effect.base_offset + 1), keep=True)
        self._appended(effect.generation, 1, ours=True)

    def _appended(self, generation: int, record_count: int, *, ours: bool) -> None:
        """Flush soon: a follower now, a leader once its followers have been sent the records.

        Waking a thread takes as long as sending to both, and their flushes are what a commit waits
        for: so they are to begin first.
        """
        self._generation = generation
        self._counters.appended_records += record_count
        self._on_appended()
        if self._flushing:
            self._flush_due = True
        elif ours:
            self._flush_due = True
            self._flush_after_step = True
        else:
            self._flush()

    def after_step(self) -> None:
        """The step's answers are on their way: they leave before what is called soon now."""
        if self._flush_after_step:
            self._flush_after_step = False
            self._loop.call_soon(self._flush_if_due)

    def _flush_if_due(self) -> None:
        if self._flush_due and not self._flushing and not self._closed:
            self._flush()

    def _flush(self) -> None:
        """Begin a flush; what is appended meanwhile shares the next one."""
        self._flushing = True
        self._flush_due = False
        generation = self._generation

        def done(end_offset: Offset) -> None:
            self._flushing = False
            self._post(AppendDurable(end_offset, generation))
            if self._closed:
                return  # what was appended since is flushed as the log is closed
            if self._flush_due and not self._flushing and not self._flush_after_step:
                self._flush()
            elif self._recording is None:
                self._recording = self._loop.call_later(RECORD_AFTER_S, self._record)

        self._disk.submit(self._storage.flush, done)

    def _record(self) -> None:
        """A second after a flush, what was flushed is durably known to be.

        Source: docs/design/quorum.md#recovery-point.
        """
        self._recording = None
        if not self._closed:
            self._disk.submit(self._storage.log.record_recovery_point, lambda _: None)

    def truncate(self, effect: Truncate) -> None:
        """Cut the log; the group stands still meanwhile."""
        self.busy = True
        self._generation = effect.generation
        log.info(
            "group=%s action=truncate end_offset=%d was=%d",
            self._name, effect.end_offset, self._storage.log.log_end_offset,
        )  # fmt: skip
        end_offset = effect.end_offset
        self._disk.submit(lambda: self._storage.truncate(end_offset), self._on_truncated)

    def _on_truncated(self, _: None) -> None:
        self.busy = False
        self._resume()

    def install(self, effect: InstallSnapshot, done: Callable[[], None]) -> None:
        """Empty the log and let it begin at a checkpoint; the group stands still meanwhile.

        Args:    done: called before anything else is carried out.
        """
        self.busy = self.resetting = True
        self._generation = effect.generation
        snapshot_id = effect.snapshot_id
        log.info(
            "group=%s action=install_snapshot snapshot=%d-%d end_offset=%d",
            self._name, *snapshot_id, self._storage.log.log_end_offset,
        )  # fmt: skip

        def installed(_: None) -> None:
            self.resetting = False
            self._counters.snapshots_installed += 1
            done()
            self._on_truncated(None)

        self._disk.submit(lambda: self._storage.reset(snapshot_id), installed)

    def move_start(self, start_offset: Offset) -> None:
        """Let the log start at a checkpoint's end; then forget checkpoints that end before it.

        The group stands still until the start is durable, not while files are deleted: those jobs
        are a thread's own, and an unlinked gigabyte holds up no flush.
        """
        self.busy = True

        def moved(segments: list[Segment]) -> None:
            self._counters.log_starts_moved += 1
            self.busy = False
            self._post(LogStartMoved(start_offset))
            self._resume()
            self.sweep(segments)

        self._disk.submit(lambda: self._storage.cut_prefix(start_offset), moved)

    def sweep(self, segments: list[Segment]) -> None:
        """Delete segments, and the checkpoints that nobody needs or reads any more."""
        if self._sweeping is not None or self._closed:
            self._unswept += segments
            return
        segments, self._unswept = [*self._unswept, *segments], []
        storage = self._storage

        def work() -> None:
            storage.log.delete(segments)
            storage.snapshots.drop_below(storage.log.log_start_offset)

        self._sweeping = self._loop.run_in_executor(None, work)
        self._sweeping.add_done_callback(self._swept)

    def _swept(self, done: asyncio.Future[None]) -> None:
        self._sweeping = None
        error = done.exception()
        if error is not None:  # they are no longer part of anything; the next start removes them
            log.error("group=%s action=sweep error=%r", self._name, str(error))

    def clear_recovering(self, _: ClearRecovering) -> None:
        """Remove the mark of a lost disk."""
        self._disk.submit(self._storage.clear_recovering, self._on_recovered)

    def _on_recovered(self, _: None) -> None:
        if self.recovering_cleared is not None:
            self.recovering_cleared()


def _bytes_of(data: object) -> memoryview:
    assert isinstance(data, memoryview), f"a follower's batch without bytes: {data!r}"
    return data
