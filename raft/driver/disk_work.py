"""Carries out the core's disk effects of one group, in order, durably and off the event loop.

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
from raft.driver.batch_builder import stamp_batches
from raft.driver.counters import Counters
from raft.driver.disk_thread import DiskThread
from raft.driver.storage import Storage
from raft.interfaces import Draft
from raft.segments.segment import Segment
from records.batch import ControlType
from records.batch_writer import build_control_batch
from records.control import LeaderChangeMessage, Voter
from records.frame import encode_control_record
from records.types import Epoch, Offset

log = logging.getLogger("raft.driver")

RECORD_AFTER_S: Final = 1.0  # the recovery point lags the flushed end by no more than about this

FLUSH_LATE_S: Final = 0.5
"""An observer's flushed end lags the end of its log by no more than about this."""

KEPT_BYTES: Final = 64 * 1024
"""Up to here a follower keeps in memory what it fetched, as a leader does: it applies that in a
moment. More at once is a replica that catches up, and its reads from the page cache cost little."""


class DiskWork:
    """Carries out the disk effects of one group."""

    def __init__(
        self,
        *,
        name: str,
        storage: Storage,
        disk: DiskThread,
        counters: Counters,
        generation: int,
        acknowledges: Callable[[], bool],
        post: Callable[[Event], None],
        resume: Callable[[], None],
        on_appended: Callable[[], None],
    ) -> None:
        """Create the disk work of a group, with no job submitted yet.

        Args:    generation: the current generation of the core's log.
                 acknowledges: whether somebody waits for flushes; see `Quorum.acknowledges`.
                 resume: called when the group is no longer `busy`.
                 on_appended: called when the log has grown, before anything else happens.
        """
        self.busy = False  # the log is being cut: no effect may be carried out
        self.resetting = False  # the log is being reset: it cannot be read either
        self.recovering_cleared: Callable[[], None] | None = None
        self._name = name
        self._storage = storage
        self._disk = disk
        self._counters = counters
        self._generation = generation
        self._acknowledges = acknowledges
        self._post = post
        self._resume = resume
        self._on_appended = on_appended
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._flushing = False
        self._flush_due = False
        self._flush_after_step = False
        self._epoch: Epoch | None = None  # of the newest batch appended
        self._flushing_late: asyncio.TimerHandle | None = None
        self._recording: asyncio.TimerHandle | None = None
        self._deleting: asyncio.Future[None] | None = None
        self._undeleted: list[Segment] = []
        self._persisting = False
        self._persist_next: PersistElectionState | None = None

    @property
    def job_s(self) -> float:
        """Return the seconds for which the disk thread's current job has been running, or 0."""
        return self._disk.job_s

    async def close(self) -> None:
        """Wait for the disk thread, flush, record the recovery point and close the log."""
        self._closed = True
        for timer in (self._recording, self._flushing_late):
            if timer is not None:
                timer.cancel()
        if self._deleting is not None:
            await asyncio.wait((self._deleting,))
        await self._disk.run(self._storage.close)
        await self._disk.close()

    def persist(self, effect: PersistElectionState) -> None:
        """Write the election state; of several states that wait, write only the newest."""
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
        """Append batches of this node's own proposals, or batches fetched from the leader."""
        batches = effect.batches
        parts = [
            stamp_batches(batch.data, batch.base_offset, batch.epoch)
            if type(batch.data) is Draft
            else _bytes_of(batch.data)
            for batch in batches
        ]
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        base_offset, end_offset = batches[0].base_offset, batches[-1].end_offset
        ours = type(batches[0].data) is Draft
        kept = ours or len(data) <= KEPT_BYTES
        self._storage.append(data, base_offset, end_offset, keep=kept)
        if not ours:
            self._counters.fetched_records += end_offset - base_offset
        new_epoch = batches[-1].epoch != self._epoch
        self._epoch = batches[-1].epoch
        late = not (ours or new_epoch or self._acknowledges())
        self._appended(effect.generation, end_offset - base_offset, ours=ours, late=late)

    def append_leader_change(self, effect: AppendLeaderChange) -> None:
        """Append the LeaderChange record that begins this node's epoch."""
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

    def _appended(
        self, generation: int, record_count: int, *, ours: bool, late: bool = False
    ) -> None:
        """Flush appended batches: a follower now, a leader after sending them to its followers.

        Waking a thread takes as long as sending to both followers, and a commit waits for their
        flushes: so those should begin first. Nobody waits for an observer's, which flushes late:
        what came in `FLUSH_LATE_S` together, but the first records of an epoch at once. Otherwise,
        after a power failure, a state could have records of an epoch that the log does not know,
        which looks like a fork.
        """
        self._generation = generation
        self._counters.appended_records += record_count
        self._on_appended()
        if late:
            if self._flushing_late is None:
                self._flushing_late = self._loop.call_later(FLUSH_LATE_S, self._flush_late)
        elif self._flushing:
            self._flush_due = True
        elif ours:
            self._flush_due = True
            self._flush_after_step = True
        else:
            self._flush()

    def _flush_late(self) -> None:
        self._flushing_late = None
        self._flush_due = True
        self._flush_if_due()

    def after_step(self) -> None:
        """Schedule the flush to run after the messages of this step of the Raft core are sent."""
        if self._flush_after_step:
            self._flush_after_step = False
            self._loop.call_soon(self._flush_if_due)

    def _flush_if_due(self) -> None:
        if self._flush_due and not self._flushing and not self._closed:
            self._flush()

    def _flush(self) -> None:
        """Begin to flush the log; batches appended meanwhile wait for the next flush."""
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
        """Record durably the recovery point and the offset below which all records are committed.

        Source: docs/design/quorum.md#recovery-point.
        """
        self._recording = None
        if not self._closed:
            self._disk.submit(self._storage.log.record_recovery_point, lambda _: None)

    def note_committed(self, offset: Offset) -> None:
        """Record a new high watermark in memory; it is written to disk about a second later.

        Source: docs/design/forks.md#the-floor.
        """
        self._storage.log.note_committed(offset)
        if self._recording is None and not self._closed:
            self._recording = self._loop.call_later(RECORD_AFTER_S, self._record)

    def mark_doubt(self, text: str) -> None:
        """Write the description of a fork durably, so that the group stays stopped."""
        self._disk.submit(lambda: self._storage.mark_doubt(text), lambda _: None)

    def truncate(self, effect: Truncate) -> None:
        """Truncate the log on the disk thread, and keep `busy` set until the truncation ends."""
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
        """Reset the log on the disk thread, to begin at a checkpoint's end.

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
        """Move the log's start to a checkpoint's end, then delete older segments and checkpoints.

        The group is busy until the start is durable, but not while files are deleted: a thread of
        their own does that, so that unlinking a gigabyte holds up no flush.
        """
        self.busy = True

        def moved(segments: list[Segment]) -> None:
            self._counters.log_starts_moved += 1
            self.busy = False
            self._post(LogStartMoved(start_offset))
            self._resume()
            self.delete_obsolete(segments)

        self._disk.submit(lambda: self._storage.cut_prefix(start_offset), moved)

    def delete_obsolete(self, segments: list[Segment]) -> None:
        """Delete these segments, and checkpoints below the log's start that are not being read."""
        if self._deleting is not None or self._closed:
            self._undeleted += segments
            return
        segments, self._undeleted = [*self._undeleted, *segments], []
        storage = self._storage

        def work() -> None:
            storage.log.delete(segments)
            storage.snapshots.drop_below(storage.log.log_start_offset)

        self._deleting = self._loop.run_in_executor(None, work)
        self._deleting.add_done_callback(self._on_deleted)

    def _on_deleted(self, done: asyncio.Future[None]) -> None:
        self._deleting = None
        error = done.exception()
        if error is not None:  # the files are already unused; the next start removes them
            log.error("group=%s action=sweep error=%r", self._name, str(error))

    def clear_recovering(self, _: ClearRecovering) -> None:
        """Remove the file that marks the disk as lost, because the replica has caught up."""
        self._disk.submit(self._storage.clear_recovering, self._on_recovered)

    def _on_recovered(self, _: None) -> None:
        if self.recovering_cleared is not None:
            self.recovering_cleared()


def _bytes_of(data: object) -> memoryview:
    assert isinstance(data, memoryview), f"a follower's batch without bytes: {data!r}"
    return data
