"""Generates one checkpoint beside a running state machine without holding up commits.

Three things would hold up commits: a long turn of the event loop, a thread that holds the
interpreter lock, and a disk with much to flush. So records are encoded on the loop, in slices of
half a millisecond, and a thread only writes, which releases the interpreter lock.

A slice is followed by the next at once while nothing else happens. Once something is committed
(`yield_to_commits`), or a slice had to wait, slices are shorter for a while, with pauses in
between, and every batch is flushed by itself, so that a flush of the log beside it waits for no
more than 256 KiB. So an idle node generates as fast as its disk can, a busy one in a tenth of its
time.

Memory is bounded by one batch and two chunks, whatever the size of the state.

On a disk error the generation is discarded and the node goes on: the log still holds everything
that the checkpoint would have held.

Source: docs/design/snapshots.md#generation-never-blocks-commits; KIP-630, Snapshot Format.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from raft.interfaces import EpochStarts, Frozen
from records.compression import Buffer
from records.errors import BatchTooLargeError
from records.types import OffsetAndEpoch
from snapshot.encoder import CheckpointEncoder
from snapshot.partfile import PartFile
from snapshot.store import SnapshotStore

_CLOCK_EVERY: Final = 64  # records between two looks at the clock: some 100 µs
_NOTHING_YET_S: Final = 0.01


class Loop(Protocol):
    """The event loop, clock and disk thread that drive a state machine.

    All callbacks are made on the loop's thread, none before the call that asks for it returns.
    """

    def now_ms(self) -> float:
        """Return the time of a monotonic clock in milliseconds."""

    def call_soon(self, callback: Callable[[], None]) -> object:
        """Call `callback` in the next turn of the event loop, after callbacks already queued."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> object:
        """Call `callback` on the event loop after `delay_s` seconds."""

    def offload(self, job: Callable[[], None], done: Callable[[], None]) -> object:
        """Run `job`, which may block on the disk, in a thread; then call `done` in the event loop.

        A job raises only what must stop the node, as `fail` does.
        """

    def fail(self, error: BaseException) -> None:
        """Stop the node, because a state machine's state is broken or cannot be loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Sizes of slices and writes, and the pauses between them."""

    apply_ms: float = 1.0  # of applying, between two turns of the loop
    apply_delay_ms: float = 0.0  # from a new high watermark to applying up to it
    generate_ms: float = 0.5  # of encoding
    generate_records: int = 4096  # of encoding, whatever the clock says
    busy_gap_ms: float = 0.1  # a slice that had to wait longer than this: the loop is busy
    busy_ms: float = 10.0  # how long the loop then counts as busy
    busy_generate_ms: float = 0.25  # of encoding, while the loop is busy
    rest_ms: float = 2.0  # between two slices, while the loop is busy
    chunk_bytes: int = 1024 * 1024  # handed to the disk at once
    flush_bytes: int = 2 * 1024 * 1024  # flushed at once
    busy_flush_bytes: int = 128 * 1024  # the same while the loop is busy; at least one batch


class Generation:
    """The generation of one checkpoint; calls `done(self, error)` once, with its files closed."""

    def __init__(
        self,
        store: SnapshotStore,
        snapshot_id: OffsetAndEpoch,
        frozen: Frozen,
        *,
        last_timestamp: int,
        epochs: EpochStarts,
        unique: int,
        loop: Loop,
        pace: Pace,
        done: Callable[[Generation, Exception | None], None],
    ) -> None:
        """Prepare to write a checkpoint of the state `frozen`; `start` begins the writing.

        Args:    unique: tells this attempt's file name from others'; 1 to 2^63 - 1.
        """
        self.snapshot_id = snapshot_id
        self.encoder = CheckpointEncoder(
            epoch=snapshot_id.epoch, last_timestamp=last_timestamp, epochs=epochs
        )
        self.size_bytes = 0
        self.published = False  # the whole file has its final name
        self._store = store
        self._frozen = frozen
        self._values = frozen.values()
        self._unique = unique
        self._loop = loop
        self._pace = pace
        self._done = done
        self._part: PartFile | None = None
        self._unflushed_bytes = 0
        self._writing = False
        self._slice_due = False
        self._complete = False  # the footer is encoded
        self._error: Exception | None = None
        self._over = False
        self._slice_ended_ms: float | None = None
        self._busy_until_ms = 0.0

    def start(self) -> None:
        """Create the checkpoint's partial file and begin to encode the frozen state."""
        self._offload(self._create)

    def yield_to_commits(self) -> None:
        """Encode in shorter slices for a while, because the log has new committed records."""
        self._busy_until_ms = self._loop.now_ms() + self._pace.busy_ms

    def abandon(self, error: Exception) -> None:
        """Discard the checkpoint; `done` is called once the running disk job has ended."""
        self._error = self._error or error
        if not self._writing:
            self._offload(self._discard)

    # --- on the loop --------------------------------------------------------------------------

    def _slice(self) -> None:
        self._slice_due = False
        if self._over or self._error is not None or self._complete:
            return
        now_ms = self._loop.now_ms()
        pace, ended_ms = self._pace, self._slice_ended_ms
        if ended_ms is not None and now_ms - ended_ms > pace.busy_gap_ms:
            self._busy_until_ms = now_ms + pace.busy_ms
        busy = self._busy
        try:
            starved = self._encode(pace.busy_generate_ms if busy else pace.generate_ms)
        except (BatchTooLargeError, OSError) as error:  # no log can have held it; unreadable now
            self.abandon(error)
            return
        self._write_if_worth_it()
        if starved:
            self._slice_later(_NOTHING_YET_S)
        elif busy:
            self._slice_later(pace.rest_ms / 1_000)
        else:
            self._slice_soon()

    def _encode(self, slice_ms: float) -> bool:
        """Encode state values for up to `slice_ms`; return True if the next is not ready yet."""
        encoder, pace, now_ms = self.encoder, self._pace, self._loop.now_ms
        until_ms = now_ms() + slice_ms
        for count, value in enumerate(self._values, 1):
            if not len(value):
                return True
            encoder.append(value)
            if count % _CLOCK_EVERY == 0 or encoder.ready_bytes:
                full = encoder.ready_bytes >= pace.chunk_bytes
                if full or count >= pace.generate_records or now_ms() >= until_ms:
                    return False
        encoder.finish()
        self._complete = True
        return False

    def _slice_soon(self) -> None:
        if self._may_slice():
            self._slice_ended_ms = self._loop.now_ms()
            self._slice_due = True
            self._loop.call_soon(self._slice)

    def _slice_later(self, delay_s: float) -> None:
        if self._may_slice():
            self._slice_ended_ms = None  # the wait was ours
            self._slice_due = True
            self._loop.call_later(delay_s, self._slice)

    def _may_slice(self) -> bool:
        """Return whether to encode further values; False while a full chunk waits for the disk."""
        waits = self._writing and self.encoder.ready_bytes >= self._pace.chunk_bytes
        return not (self._slice_due or self._complete or waits or self._over)

    @property
    def _busy(self) -> bool:
        return self._loop.now_ms() < self._busy_until_ms

    def _write_if_worth_it(self) -> None:
        if self._writing:
            return
        worth_bytes = 1 if self._busy else self._pace.chunk_bytes
        if self.encoder.ready_bytes >= worth_bytes or self._complete:
            batches = self.encoder.drain()
            flush_bytes = self._pace.busy_flush_bytes if self._busy else self._pace.flush_bytes
            if self._complete:
                self._offload(lambda: self._write_and_publish(batches, flush_bytes))
            else:
                self._offload(lambda: self._write(batches, flush_bytes))

    def _offload(self, job: Callable[[], None]) -> None:
        """Run a job in the disk thread and store its OSError as this checkpoint's error."""

        def run() -> None:
            try:
                job()
            except OSError as error:  # anything else is not the disk's: let it stop the node
                self._error = self._error or error

        self._writing = True
        self._loop.offload(run, self._on_written)

    def _on_written(self) -> None:
        self._writing = False
        if self._over:
            return
        if self.published or (self._error is not None and self._part is None):
            self._over = True
            self._frozen.close()
            self._done(self, None if self.published else self._error)
        elif self._error is not None:
            self._offload(self._discard)
        else:
            self._write_if_worth_it()
            self._slice_soon()

    # --- in the thread ------------------------------------------------------------------------

    def _create(self) -> None:
        self._check_free_space()
        self._part = PartFile.create(
            self._store.files, self._store.directory, self.snapshot_id, unique=self._unique
        )

    def _check_free_space(self) -> None:
        """Raise OSError unless a checkpoint as large as the newest fits on the disk."""
        store = self._store
        expected_bytes = 0 if store.newest is None else store.size_bytes(store.newest) or 0
        if store.files.free_bytes(store.directory) < expected_bytes:
            reason = f"No space left for another {expected_bytes} bytes"
            raise OSError(errno.ENOSPC, reason, str(store.directory))

    def _write(self, batches: list[Buffer], flush_bytes: int) -> None:
        assert self._part is not None, "written before it was created"
        for batch in batches:
            self._part.append(batch)
            self._unflushed_bytes += len(batch)
            if self._unflushed_bytes >= flush_bytes:
                self._part.flush()
                self._unflushed_bytes = 0

    def _write_and_publish(self, batches: list[Buffer], flush_bytes: int) -> None:
        self._write(batches, flush_bytes)
        assert self._part is not None, "published before it was created"
        if self._error is None:  # not given up meanwhile
            self.size_bytes = self._part.size_bytes
            self._part.publish()
            self.published = True

    def _discard(self) -> None:
        part, self._part = self._part, None
        if part is not None:
            part.discard()
