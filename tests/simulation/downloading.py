"""A process's download of a checkpoint: questions over a connection of its own, pieces to the disk.

The production `Download` does all that touches the part; here is what its driver owes it: one piece
at a time, another connection when one is lost, a report to the core after each. What is complete is
published even if the core has lost interest; what is not is kept for whoever goes on with it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, Final

from raft.core.effects import AbandonSnapshot, FetchSnapshot
from raft.core.events import SnapshotFailed, SnapshotFetched, SnapshotProgress
from raft.core.messages import FetchSnapshotRequest
from raft.interfaces import Download, RejectedSnapshotError, SnapshotChunk
from raft.wire.snapshots import RefusedError
from records.kafka_errors import ErrorCode
from records.types import Epoch, Offset, OffsetAndEpoch
from tests.simulation.machine import CLUSTER_ID
from tests.simulation.part import Part
from tests.simulation.world import MS

PIECE_TIMEOUT_US: Final = 600 * MS
MAX_LOST: Final = 3
"""Pieces in a row that got no answer; then the core is told, and decides."""


class Fetching:
    """One download under way; thrown away when it is over, so that nothing late can touch it."""

    __slots__ = ("asked", "complete", "download", "effect", "epochs", "lost", "over")

    def __init__(self, effect: FetchSnapshot) -> None:
        self.effect = effect
        self.download: Download | None = None
        self.epochs: tuple[tuple[Epoch, Offset], ...] = ()  # as the whole checkpoint names them
        self.asked = 0  # the newest question's number
        self.lost = 0
        self.complete = False
        self.over = False

    @property
    def snapshot_id(self) -> OffsetAndEpoch:
        return self.effect.snapshot_id


class Downloading(Part):
    """At most one at a time."""

    send_apart: Callable[[int, int, FetchSnapshotRequest], None]
    close_apart: Callable[[int], None]

    def __init__(self) -> None:
        self.fetching: Fetching | None = None
        self._asked = 0

    def _on_fetch_snapshot(self, effect: FetchSnapshot) -> None:
        old = self.fetching
        if old is not None and old.complete:
            if old.snapshot_id == effect.snapshot_id:
                old.effect = effect  # it is all here, and will be reported
                return
            self._later(self._begin_after, old, effect)
            return
        if old is not None:
            self._end(old)
        fetching = self.fetching = Fetching(effect)
        self._on_the_disk(self._begin, fetching)

    def _begin_after(self, old: Fetching, effect: FetchSnapshot) -> None:
        """The core wants another one by now; the part of that which is complete comes first."""
        if old.over:
            if self.fetching is None:
                self._on_fetch_snapshot(effect)
            else:
                self.handle(SnapshotFailed(effect.snapshot_id))
        else:
            self._later(self._begin_after, old, effect)

    def _later(self, action: Any, *args: object) -> None:
        self.shared.world.after(MS, self.job, action, *args)

    def _on_abandon_snapshot(self, effect: AbandonSnapshot) -> None:
        fetching = self.fetching
        if fetching is not None and fetching.snapshot_id == effect.snapshot_id:
            if not fetching.complete:
                self._end(fetching)
            self.checker.rare["downloads abandoned"] += 1

    def _end(self, fetching: Fetching) -> None:
        """Nobody waits for it; what is there is kept."""
        fetching.over = True
        if fetching.download is not None:
            fetching.download.keep()
        if self.fetching is fetching:
            self.fetching = None

    def _fail(self, fetching: Fetching, *, discard: bool = False) -> None:
        download = fetching.download
        if discard and download is not None:
            self.checker.rare["downloads thrown away"] += 1
            download.discard()
            fetching.download = None
        self._end(fetching)
        self.handle(SnapshotFailed(fetching.snapshot_id))

    def _on_the_disk(self, action: Any, fetching: Fetching, *args: object) -> None:
        """When the disk gets to it, unless it is over by then."""

        def act() -> None:
            if not fetching.over:
                action(fetching, *args)

        self.shared.world.after(self.machine.flush_us() // 4, self.job, act)

    # -- pieces ------------------------------------------------------------------------------------

    def _begin(self, fetching: Fetching) -> None:
        try:
            fetching.download = self.store.receive(fetching.snapshot_id)
        except OSError as error:
            self._met(error)
            self._fail(fetching)
            return
        position = fetching.download.position
        if position:
            self.checker.rare["downloads resumed"] += 1
        elif fetching.snapshot_id in self.machine.downloads_begun:
            self.checker.rare["downloads restarted"] += 1
        self.machine.downloads_begun.add(fetching.snapshot_id)
        self._ask(fetching)

    def _ask(self, fetching: Fetching) -> None:
        assert fetching.download is not None
        self._asked += 1
        fetching.asked = -self._asked
        request = FetchSnapshotRequest(
            cluster_id=CLUSTER_ID,
            replica=self.machine.identity,
            epoch=fetching.effect.epoch,
            snapshot_id=fetching.snapshot_id,
            position=fetching.download.position,
            max_bytes=self.shared.piece_bytes,
        )
        self.send_apart(fetching.effect.leader_id, fetching.asked, request)
        self.shared.world.after(PIECE_TIMEOUT_US, self.job, self._unanswered, fetching.asked)

    def _unanswered(self, number: int) -> None:
        """No answer came, or none will."""
        fetching = self.fetching
        if fetching is None or fetching.asked != number:
            return
        self.close_apart(fetching.effect.leader_id)
        fetching.lost += 1
        if fetching.lost > MAX_LOST:
            self._fail(fetching)
        else:
            self._ask(fetching)

    def piece_arrived(self, number: int, request: FetchSnapshotRequest, payload: Any) -> None:
        """The answer to a question; one that nobody waits for is dropped."""
        fetching = self.fetching
        if fetching is None or fetching.asked != number:
            return
        try:
            piece = self.shared.courier.read_piece(payload, request)
        except RefusedError as error:
            gone = error.error in (ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE)
            self._fail(fetching, discard=gone)
            return
        except Exception as error:
            self.checker.rare["pieces refused"] += 1
            self.shared.world.note(self, error)
            self._fail(fetching)
            return
        fetching.asked = 0
        self._on_the_disk(self._take, fetching, request.position, piece)

    def _take(self, fetching: Fetching, position: int, piece: SnapshotChunk) -> None:
        assert fetching.download is not None
        fetching.lost = 0
        try:
            fetching.complete = fetching.download.take(position, piece)
        except RejectedSnapshotError as error:
            self.shared.world.note(self, error)
            self.checker.rare["downloads thrown away"] += 1
            self._fail(fetching)
            return
        except OSError as error:
            self._met(error)
            self._fail(fetching)
            return
        self.handle(SnapshotProgress(complete=fetching.complete))
        if fetching.complete:
            self._on_the_disk(self._publish, fetching)
        elif not fetching.over:
            self._ask(fetching)

    def _publish(self, fetching: Fetching) -> None:
        assert fetching.download is not None
        snapshot_id = fetching.snapshot_id
        self.dare()
        try:
            fetching.epochs = tuple(fetching.download.publish())
        except RejectedSnapshotError as error:
            self.shared.world.note(self, error)
            self.checker.rare["downloads rejected"] += 1
            self._fail(fetching)
            return
        except OSError as error:
            self._met(error)
            self._fail(fetching)
            return
        self._end(fetching)
        self.store.added(snapshot_id)
        self.checker.states.published(self, snapshot_id)
        self.handle(SnapshotFetched(snapshot_id, fetching.epochs))

    def _met(self, error: OSError) -> None:
        full = error.errno == errno.ENOSPC
        self.checker.rare[
            "downloads that met a full disk" if full else "downloads that failed"
        ] += 1

    def piece_lost(self, number: int) -> None:
        """The connection was reset, or could not be made: by another one, a little later."""
        self.shared.world.after(20 * MS, self.job, self._unanswered, number)
