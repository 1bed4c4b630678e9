"""Moves a group's log start offset: checked about once a second and after each new checkpoint.

The rule itself is `SnapshotHosting.log_start`; this module gathers what the rule needs and carries
out its decision: first pending answers that name the old start are sent, then the new start is made
durable, then segments and older checkpoints are deleted.

Checkpoints that are being read stay for a while, so deletion below the start is repeated.

Source: KIP-630, When to Increase the LogStartOffset, When to Delete Snapshots;
docs/design/snapshots.md#where-the-log-starts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from raft.core.messages import ReplicaState
from raft.core.quorum import Quorum
from raft.driver.disk_work import DiskWork
from raft.driver.log_readers import ArchiveReaders
from raft.driver.snapshot_hosting import (
    FollowingReplica,
    KeptCheckpoint,
    LogStartView,
    ReadingArchive,
)
from raft.driver.storage import Storage
from records.types import NodeId, Offset, OffsetAndEpoch

log = logging.getLogger("raft.driver")

EVERY_S: Final = 1.0
RETRY_EVERY_S: Final = 60.0


class LogStart:
    """Evaluates the rule for one group, and has the disk carry it out."""

    def __init__(
        self,
        *,
        quorum: Quorum,
        storage: Storage,
        disk: DiskWork,
        rule: Callable[[LogStartView], OffsetAndEpoch | None],
        leader_log_start: Callable[[NodeId], Offset | None],
        before: Callable[[], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """Create the component that moves the log's start, which runs once `start` is called.

        Args:    leader_log_start: the log start offset that a leader's last Fetch response had.
                 before: called before the log is cut.
        """
        self.readers = ArchiveReaders()
        self._quorum = quorum
        self._storage = storage
        self._disk = disk
        self._rule = rule
        self._leader_log_start = leader_log_start
        self._before = before
        self._on_fatal = on_fatal
        self._first_seen_ms: dict[OffsetAndEpoch, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._delete_at = 0.0
        self._log_error_at = 0.0

    def start(self) -> None:
        """Check now, and again every second, whether the log's start can move."""
        self.look()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(EVERY_S, self._on_timer)

    def close(self) -> None:
        """Stop checking whether the log's start can move."""
        if self._timer is not None:
            self._timer.cancel()

    def _on_timer(self) -> None:
        try:
            self.start()
        except BaseException as error:
            self._on_fatal(error)

    def look(self) -> None:
        """Move the log's start if the retention rule allows it and the disk is idle."""
        ids = self._usable()
        if not ids or self._disk.busy:
            return
        try:
            view = self._view(ids)
        except OSError as error:  # nothing is lost: the log just keeps its start
            self._log_error(error)
            return
        chosen = self._rule(view)
        start_offset = self._storage.log.log_start_offset
        if chosen is not None and chosen.offset > start_offset:
            assert chosen in ids, f"a log start at {chosen}, where no checkpoint of ours ends"
            self._before()
            self._disk.move_start(chosen.offset)
        elif ids[0].offset < start_offset and time.monotonic() >= self._delete_at:
            self._delete_at = time.monotonic() + RETRY_EVERY_S
            self._disk.delete_obsolete([])

    def _log_error(self, error: OSError) -> None:
        """Log an error in moving the log's start, at most once a minute."""
        if time.monotonic() >= self._log_error_at:
            self._log_error_at = time.monotonic() + RETRY_EVERY_S
            log.error("log=%s action=log_start error=%r", self._storage.directory, str(error))

    def _usable(self) -> list[OffsetAndEpoch]:
        """Return the ids of the installed checkpoints at whose end offsets the log may start.

        Without an installed checkpoint there is none.
        """
        log, newest = self._quorum.log, self._quorum.log.snapshot_id
        if newest is None:
            return []
        high_watermark = log.high_watermark or 0
        return [
            one
            for one in self._storage.snapshots.ids
            if one <= newest and one.offset <= high_watermark
        ]

    def _view(self, ids: list[OffsetAndEpoch]) -> LogStartView:
        now_ms = time.monotonic_ns() // 1_000_000
        quorum, log = self._quorum, self._storage.log
        self._first_seen_ms = {one: self._first_seen_ms.get(one, now_ms) for one in ids}
        followers, leader_id = quorum.followers, quorum.leader_id
        replicas: list[FollowingReplica] = []
        readers = {reader.key: reader for reader in self.readers.all}
        if followers is not None:
            replicas += (_replica(state, voter=True) for state in followers.voters)
            replicas += (  # a reader is waited for by a rule of its own
                _replica(state, voter=False)
                for state in followers.observers
                if state.key not in readers
            )
        follows = followers is None and leader_id is not None and leader_id != quorum.node_id
        return LogStartView(
            now_ms=now_ms,
            log_start_offset=log.log_start_offset,
            log_bytes=log.bytes_from(log.log_start_offset),
            checkpoints=[
                KeptCheckpoint(
                    one,
                    self._storage.snapshots.size_bytes(one) or 0,
                    log.bytes_from(one.offset),
                    now_ms - self._first_seen_ms[one],
                )
                for one in ids
            ],
            leading_since_ms=followers.since_ms if followers is not None else None,
            replicas=replicas,
            leader_log_start=(
                self._leader_log_start(leader_id) if follows and leader_id is not None else None
            ),
            readers=[
                ReadingArchive(reader.key.id, reader.offset, reader.last_fetch_ms)
                for reader in readers.values()
            ],
        )


def _replica(state: ReplicaState, *, voter: bool) -> FollowingReplica:
    return FollowingReplica(state.key.id, voter, state.log_end_offset, state.last_fetch_ms)
