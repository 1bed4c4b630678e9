"""How a log begins anew at a snapshot: asked for, awaited, installed.

A leader whose log no longer reaches back to ours answers a Fetch with its newest snapshot's id. We
fetch no records until the driver has that, verified and durable under its name; then the log begins
at its end, and everything before it is committed.

The trap: from the moment a snapshot is there it counts, whatever we have become meanwhile. It was
committed once, and after a restart we would go by it. Only a leader never installs one: it has all
that is committed.

Source: KIP-630, Fetching Snapshots, Validation of Snapshot and Log;
docs/design/snapshots.md#publishing-and-installing.
"""

from __future__ import annotations

from dataclasses import dataclass

from raft.core.context import Context
from raft.core.effects import AbandonSnapshot, Committed, FetchSnapshot, InstallSnapshot
from raft.core.events import SnapshotFailed, SnapshotFetched, SnapshotProgress
from raft.core.failure_detector import FailureDetector
from raft.core.messages import FetchRequest
from raft.core.recovery import Recovery
from raft.core.roles import Follower, Leader
from records.types import NodeId, OffsetAndEpoch


@dataclass(slots=True, eq=False)
class SnapshotInstallation:
    """A follower's snapshots, on their way and arrived."""

    _context: Context
    _detector: FailureDetector
    _recovery: Recovery

    def begin(self, peer: NodeId, snapshot_id: OffsetAndEpoch) -> None:
        """Our log is behind the leader's start: fetch a snapshot, then go on from its end."""
        context, log = self._context, self._context.log
        committed = log.high_watermark or log.start_offset
        newer = snapshot_id.offset > committed
        if not newer or not log.epoch_before(committed) <= snapshot_id.epoch <= context.epoch:
            reason = f"offers snapshot {snapshot_id}, no newer than {log}"
            context.fault(peer, reason, FetchRequest)
            return
        context.follower.fetching_snapshot = snapshot_id
        context.gate.emit(FetchSnapshot(peer, context.epoch, snapshot_id))

    def on_progress(self, event: SnapshotProgress) -> None:
        """A piece arrived: the leader lives."""
        follower = self._context.follower
        if isinstance(self._context.role, Follower) and follower.fetching_snapshot is not None:
            follower.snapshot_failures = 0
            follower.snapshot_complete = event.complete
            self._detector.note_leader_alive()

    def on_fetched(self, event: SnapshotFetched) -> None:
        """A snapshot is there under its final name: from now on the newer of it and the log counts.

        Also if another epoch began meanwhile, and whatever we have become: it was committed once,
        and after a restart we would go by it (`validate`).
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
            self._install(snapshot_id)
        if awaited:
            self._detector.note_leader_alive()
        self._recovery.finish_if_caught_up()

    def _stop_waiting(self, snapshot_id: OffsetAndEpoch) -> bool:
        """Wait for this snapshot no longer; return whether it was awaited."""
        follower = self._context.follower
        if follower.fetching_snapshot != snapshot_id:
            return False
        follower.fetching_snapshot = None
        follower.snapshot_complete = False
        return True

    def _install(self, snapshot_id: OffsetAndEpoch) -> None:
        """Begin the log anew at the snapshot's end; everything before it is committed."""
        context, follower = self._context, self._context.follower
        other = follower.fetching_snapshot
        if other is not None and other.offset <= snapshot_id.offset:
            follower.fetching_snapshot = None
            context.gate.emit(AbandonSnapshot(other))
        context.log.reset_to(snapshot_id)
        context.voter_history.truncate(snapshot_id.offset)
        context.note_voters()
        context.gate.emit(InstallSnapshot(snapshot_id, context.log.generation))
        context.gate.emit(Committed(snapshot_id.offset))
        context.requests.send_due = True

    def validate(self) -> None:
        """Finish, at the start, what a crash left between publishing a snapshot and installing it.

        Source: KIP-630, Validation of Snapshot and Log.
        """
        newest = self._context.log.snapshot_id
        if newest is not None and not self._context.log.holds(newest):
            self._install(newest)

    def on_failed(self, event: SnapshotFailed) -> None:
        """Fetch the log again, and be told again where to begin: soon, then less and less soon."""
        context, follower = self._context, self._context.follower
        if self._stop_waiting(event.snapshot_id):
            if isinstance(context.role, Follower):
                wait_ms = context.config.retry_backoff_ms << follower.snapshot_failures
                wait_ms = min(wait_ms, context.config.retry_backoff_max_ms)
                follower.snapshot_failures = min(follower.snapshot_failures + 1, 10)
                context.requests.retry_later(context.role.leader_id, FetchRequest, wait_ms)
            context.requests.send_due = True
