"""A log that begins anew at a snapshot: asked for, awaited, installed.

A leader whose log no longer reaches back to ours answers a Fetch with its newest snapshot's id. We
fetch no records until the driver has that, verified and durable under its name; then the log begins
at its end, and everything before it is committed.

The surprise: from the moment a snapshot is there it counts, whatever we have become meanwhile. It
was committed once, and after a restart we would go by it. Only a leader never installs one: it has
all that is committed.

Source: KIP-630, Fetching Snapshots, Validation of Snapshot and Log;
docs/design/snapshots.md#publishing-and-installing.
"""

from __future__ import annotations

from abc import abstractmethod

from raft.core.effects import AbandonSnapshot, Committed, FetchSnapshot, InstallSnapshot
from raft.core.events import SnapshotFailed, SnapshotFetched, SnapshotProgress
from raft.core.messages import FetchRequest
from raft.core.recovering import Recovering
from raft.core.roles import Follower, Leader
from records.types import NodeId, OffsetAndEpoch


class Installing(Recovering):
    """Follower: snapshots, on their way and arrived."""

    @abstractmethod
    def _leader_is_back(self) -> None:
        """The leader we follow gave a sign: stop taking it for lost."""

    def _begin_snapshot(self, peer: NodeId, snapshot_id: OffsetAndEpoch) -> None:
        """Our log is behind the leader's start: fetch a snapshot, then go on from its end."""
        log = self.log
        committed = log.high_watermark or log.start_offset
        newer = snapshot_id.offset > committed
        if not newer or not log.epoch_before(committed) <= snapshot_id.epoch <= self.epoch:
            self._fault(peer, f"offers snapshot {snapshot_id}, no newer than {self.log}")
            self._retry_later(peer, FetchRequest, self.config.retry_backoff_max_ms)
            return
        self._following.fetching_snapshot = snapshot_id
        self._effects.append(FetchSnapshot(peer, self.epoch, snapshot_id))

    def _on_snapshot_progress(self, event: SnapshotProgress) -> None:
        following = self._following
        if isinstance(self.role, Follower) and following.fetching_snapshot is not None:
            following.snapshot_failures = 0
            following.snapshot_complete = event.complete
            self._leader_is_back()

    def _on_snapshot_fetched(self, event: SnapshotFetched) -> None:
        """A snapshot is there under its final name: from now on the newer of it and the log counts.

        Also if another epoch began meanwhile, and whatever we have become: it was committed once,
        and after a restart we would go by it (`_validate_snapshot`).
        """
        snapshot_id, following = event.snapshot_id, self._following
        awaited = following.fetching_snapshot == snapshot_id
        if awaited:
            following.fetching_snapshot = None
            following.snapshot_complete = False
        if self.log.holds(snapshot_id):  # fetched as records meanwhile
            if snapshot_id.offset > (self.log.high_watermark or 0):
                self._commit_by_snapshot(snapshot_id)
            self.log.note_snapshot(snapshot_id)
        elif snapshot_id.offset <= (self.log.high_watermark or self.log.start_offset):
            pass  # the log has begun at a newer one since
        elif isinstance(self.role, Leader):
            self._fault(None, f"snapshot {snapshot_id} is not of the log we lead: {self.log}")
        else:
            self._install(snapshot_id)
        if awaited:
            self._leader_is_back()
        self._see_if_recovered()

    def _install(self, snapshot_id: OffsetAndEpoch) -> None:
        """Begin the log anew at the snapshot's end; everything before it is committed."""
        other = self._following.fetching_snapshot
        if other is not None and other.offset <= snapshot_id.offset:
            self._following.fetching_snapshot = None
            self._effects.append(AbandonSnapshot(other))
        self.log.reset_to(snapshot_id)
        self.voter_history.truncate(snapshot_id.offset)
        self._note_voters()
        self._effects.append(InstallSnapshot(snapshot_id, self.log.generation))
        self._effects.append(Committed(snapshot_id.offset))
        self._pump_due = True

    def _commit_by_snapshot(self, snapshot_id: OffsetAndEpoch) -> None:
        self.log.high_watermark = snapshot_id.offset
        self._effects.append(Committed(snapshot_id.offset))

    def _validate_snapshot(self) -> None:
        """At the start: what a crash left between publishing a snapshot and installing it.

        Source: KIP-630, Validation of Snapshot and Log.
        """
        newest = self.log.snapshot_id
        if newest is not None and not self.log.holds(newest):
            self._install(newest)

    def _on_snapshot_failed(self, event: SnapshotFailed) -> None:
        """Fetch the log again, and be told again where to begin: soon, then less and less soon."""
        following = self._following
        if following.fetching_snapshot == event.snapshot_id:
            following.fetching_snapshot = None
            following.snapshot_complete = False
            if isinstance(self.role, Follower):
                wait_ms = self.config.retry_backoff_ms << following.snapshot_failures
                wait_ms = min(wait_ms, self.config.retry_backoff_max_ms)
                following.snapshot_failures = min(following.snapshot_failures + 1, 10)
                self._retry_later(self.role.leader_id, FetchRequest, wait_ms)
            self._pump_due = True
