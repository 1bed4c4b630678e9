"""Installing a snapshot: the log begins anew at its end.

A leader whose log no longer reaches back to a follower's answers a Fetch with the id of its newest
snapshot. The follower fetches no records until the driver has that snapshot, verified and durable
under its name; then its log begins at the snapshot's end, and everything before it is committed.

The trap: a complete snapshot counts whatever role the node has by then. It was committed once, and
the node would load it after a restart. Only a leader never installs one: it has all that is
committed.

Source: KIP-630, Fetching Snapshots, Validation of Snapshot and Log;
docs/design/snapshots.md#publishing-and-installing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from raft.core.context import Context
from raft.core.effects import AbandonSnapshot, Committed, FetchSnapshot, InstallSnapshot
from raft.core.events import SnapshotFailed, SnapshotFetched, SnapshotProgress
from raft.core.failure_detector import FailureDetector
from raft.core.fork import Fork
from raft.core.forks import Forks
from raft.core.log import EpochStart
from raft.core.messages import FetchRequest
from raft.core.recovery import Recovery
from raft.core.roles import Follower, Leader
from records.types import Epoch, NodeId, Offset, OffsetAndEpoch


@dataclass(slots=True, eq=False)
class SnapshotInstallation:
    """Has the driver fetch a snapshot, and installs it."""

    _context: Context
    _detector: FailureDetector
    _forks: Forks
    _recovery: Recovery

    def begin(self, peer: NodeId, snapshot_id: OffsetAndEpoch) -> None:
        """Fetch the snapshot that the leader offers, if it is newer than the committed log."""
        context, log = self._context, self._context.log
        committed = log.high_watermark or log.start_offset
        newer = snapshot_id.offset > committed
        sensible = min(snapshot_id) >= 0 and snapshot_id.epoch <= context.epoch
        fork = self._forks.of_snapshot(peer, snapshot_id) if sensible else None
        if fork is not None:
            self._forks.enter_doubt(fork)
            return
        if not newer or not log.epoch_before(committed) <= snapshot_id.epoch <= context.epoch:
            reason = f"offers snapshot {snapshot_id}, no newer than {log}"
            context.fault(peer, reason, FetchRequest)
            return
        context.follower.fetching_snapshot = snapshot_id
        context.gate.emit(FetchSnapshot(peer, context.epoch, snapshot_id))

    def on_progress(self, event: SnapshotProgress) -> None:
        """Treat the leader as alive, because a chunk of the snapshot has arrived."""
        follower = self._context.follower
        if isinstance(self._context.role, Follower) and follower.fetching_snapshot is not None:
            follower.snapshot_failures = 0
            follower.snapshot_complete = event.complete
            self._detector.note_leader_alive()

    def on_fetched(self, event: SnapshotFetched) -> None:
        """Install a snapshot that was fetched completely, unless the log already covers it.

        This does not depend on the role: a restarted node would do the same (`validate`).
        """
        context, log, snapshot_id = self._context, self._context.log, event.snapshot_id
        awaited = self._stop_waiting(snapshot_id)
        if log.holds(snapshot_id):  # fetched as records meanwhile
            if snapshot_id.offset > (log.high_watermark or 0):
                log.high_watermark = snapshot_id.offset
                context.gate.emit(Committed(snapshot_id.offset))
            log.note_snapshot(snapshot_id)
        elif snapshot_id.offset <= (log.high_watermark or log.start_offset):
            pass  # the log has begun at a newer one since
        elif isinstance(context.role, Leader):
            context.fault(None, f"snapshot {snapshot_id} is not of the log we lead: {log}")
        else:
            self._install_unless_forked(snapshot_id, event.epochs)
        if context.in_doubt:
            return
        if awaited:
            self._detector.note_leader_alive()
        self._recovery.finish_if_caught_up()

    def _stop_waiting(self, snapshot_id: OffsetAndEpoch) -> bool:
        """End the wait for a snapshot; return False if this node was not waiting for it."""
        follower = self._context.follower
        if follower.fetching_snapshot != snapshot_id:
            return False
        follower.fetching_snapshot = None
        follower.snapshot_complete = False
        return True

    def _install_unless_forked(
        self, snapshot_id: OffsetAndEpoch, epochs: Iterable[tuple[Epoch, Offset]]
    ) -> None:
        """Install a snapshot, or stop in doubt if the snapshot contradicts committed records."""
        pairs = tuple(EpochStart(*pair) for pair in epochs)
        role = self._context.role
        leader_id = role.leader_id if isinstance(role, Follower) else None
        fork = self._forks.of_snapshot(leader_id, snapshot_id, pairs)
        if fork is None:
            self._install(snapshot_id, pairs)
        else:
            self._forks.enter_doubt(fork)

    def _install(self, snapshot_id: OffsetAndEpoch, epochs: Iterable[EpochStart]) -> None:
        """Restart the log at the snapshot's end; all records before it are committed."""
        context, follower = self._context, self._context.follower
        other = follower.fetching_snapshot
        if other is not None and other.offset <= snapshot_id.offset:
            follower.fetching_snapshot = None
            context.gate.emit(AbandonSnapshot(other))
        context.log.reset_to(snapshot_id, epochs)
        context.voter_history.truncate(snapshot_id.offset)
        context.note_voters()
        context.gate.emit(InstallSnapshot(snapshot_id, context.log.generation))
        context.gate.emit(Committed(snapshot_id.offset))
        context.requests.send_due = True

    def validate(self) -> None:
        """Install the newest snapshot if the log lacks the snapshot's end, as after a crash.

        Source: KIP-630, Validation of Snapshot and Log.
        """
        log = self._context.log
        if log.snapshot_id is not None and not log.holds(log.snapshot_id):
            self._install_unless_forked(log.snapshot_id, log.snapshot_epochs)

    def found_fork(self) -> Fork | None:
        """Return the fork between this log and a snapshot left uninstalled by a crash, or None."""
        log = self._context.log
        if log.snapshot_id is None or log.holds(log.snapshot_id):
            return None
        return self._forks.of_snapshot(None, log.snapshot_id, log.snapshot_epochs)

    def on_failed(self, event: SnapshotFailed) -> None:
        """Send the leader a new Fetch after a failed snapshot download, with a growing delay."""
        context, follower = self._context, self._context.follower
        if self._stop_waiting(event.snapshot_id):
            if isinstance(context.role, Follower):
                wait_ms = context.config.retry_backoff_ms << follower.snapshot_failures
                wait_ms = min(wait_ms, context.config.retry_backoff_max_ms)
                follower.snapshot_failures = min(follower.snapshot_failures + 1, 10)
                context.requests.retry_later(context.role.leader_id, FetchRequest, wait_ms)
            context.requests.send_due = True
