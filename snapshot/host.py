"""Runs one state machine over one replicated log: loads, applies, takes checkpoints.

    host = MachineHost(log, machine, store, policy=policy, loop=loop, unique=numbers)
    host.start()

- At the start, and whenever a leader's checkpoint replaced the log, the host loads the newest
  checkpoint, unless the state is newer.
- It applies committed records in order, in slices of some milliseconds.
- When the policy or a caller of `take_now` asks for a checkpoint, the state is frozen, and encoded
  and written while later records are applied; then the log is notified (`snapshot.scheduling`).

The trap: the log after the newest checkpoint is read in any case, even if the machine's state
outlived the process and is ahead of that checkpoint. So the host counts the log's bytes, and finds
out whether the state belongs to the history of this log. If not, that is a fork. A local
checkpoint that proves damaged while it is loaded stops the node, which has no other state.

The module uses no asyncio, clock or thread: the caller passes a `Loop` in, and the simulator
passes one of its own.

Source: docs/design/snapshots.md, docs/design/state-machines.md#decide-and-apply; KIP-630,
Interaction with the Kafka Controller and Metadata Cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Protocol, runtime_checkable

from raft.interfaces import ReplicatedLog, StateMachine
from records.batch import Batch, iter_batches
from records.compression import Buffer
from records.types import Epoch, Offset, OffsetAndEpoch
from snapshot.generation import Loop, Pace
from snapshot.policy import SnapshotPolicy
from snapshot.reader import CheckpointReader
from snapshot.scheduling import NotHostedError, SnapshotScheduler
from snapshot.store import SnapshotStore

READ_BYTES: Final = 256 * 1024
TICK_S: Final = 1.0  # between two checks of the policy while nothing is committed
_TOO_SHORT_MS: Final = 0.1  # a loading slice this short is waiting for the disk


class Listener(Protocol):
    """The service that leads with the machine's state, or answers from it."""

    def applied(self, offset: Offset) -> None:
        """React to the state having all records below `offset`, with no checkpoint loading."""

    def lead(self, epoch: Epoch) -> None:
        """React to the start of this node's leadership, once the state has all earlier records."""

    def step_down(self, epoch: Epoch) -> None:
        """React to the end of this node's leadership of `epoch`, which `lead` had begun."""


@runtime_checkable
class ReadInPlace(Protocol):
    """A machine with readers; a waiting reader calls `on_wanted` to have more records applied."""

    on_wanted: Callable[[], None] | None


class MachineHost(SnapshotScheduler):
    """Hosts one state machine; a `Watcher` of its log."""

    def __init__(
        self,
        log: ReplicatedLog,
        machine: StateMachine,
        store: SnapshotStore,
        *,
        policy: SnapshotPolicy,
        loop: Loop,
        unique: Callable[[], int],
        listener: Listener | None = None,
        pace: Pace | None = None,
    ) -> None:
        """Create the host of a state machine, which applies the log once `start` is called.

        Args:    store: `log.snapshots` by its own type. unique: numbers from 1 to 2^63 - 1 that
        tell          the files of two attempts apart, also across restarts.
        """
        super().__init__(
            log, machine, store, policy=policy, loop=loop, unique=unique, pace=pace or Pace()
        )
        self.loaded = 0  # number of checkpoints loaded
        self.last_load_ms: float | None = None
        self.on_loaded: Callable[[float], None] | None = None  # called with the duration in ms
        self._listener = listener
        self._target = Offset(0)  # apply up to here (exclusive)
        self._cursor = Offset(0)  # the log is counted up to here, from the newest checkpoint on
        self._unapplied: Buffer = b""  # committed batches that were read and not applied yet
        self._unapplied_from = Offset(0)  # the offset of the first of them
        self._agreed = False  # the state is known to belong to this log's history
        self._turn_due = False
        self._delays_apply = False  # the next turn waits for the apply delay
        self._load: Iterator[None] = iter(())
        self._leading: Epoch | None = None
        self._announced_lead = False
        self._begun_ms = 0.0
        if isinstance(machine, ReadInPlace):
            machine.on_wanted = self.apply_now

    # --- start and stop -----------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Return whether the state may be read: it is loaded and agrees with the log."""
        return self._agreed and self._loading is None and not self._stopped

    def start(self) -> None:
        """Load the newest checkpoint if it is ahead of the state, then follow the log.

        Raises OSError.
        """
        if self.log.in_doubt:  # the state stays as it is: its newest checkpoint may be another's
            self.stop()
            return
        if self._contradicts(self.log.epoch_before(self.machine.applied.offset)):
            return
        newest = self.store.newest
        if newest is not None:
            self._begin_after(newest, self.store.size_bytes(newest) or 0)
            if newest.offset > self.machine.applied.offset:
                self._begin_load(newest)
        else:
            self._cursor = self.log.start_offset
        self.log.watch(self)
        self._loop.call_later(TICK_S, self._tick)

    def stop(self) -> None:
        """Stop following the log, and fail requests for a checkpoint with NotHostedError."""
        self._stopped = True
        if self.generation is not None:
            self.generation.abandon(NotHostedError(f"{self.log.name} ends here"))
        self._answer_requests(NotHostedError(f"{self.log.name} ends here"))

    # --- a Watcher ----------------------------------------------------------------------------

    def committed(self, high_watermark: Offset) -> None:
        """Begin to apply newly committed records after the configured apply delay, if any.

        During the delay the replica does what others wait for: a leader sends its answers, a
        follower begins its flush and sends its next Fetch. Records committed meanwhile are
        applied in the same turn.
        """
        self._target = high_watermark
        if self.generation is not None:
            self.generation.yield_to_commits()
        if self._turn_due:
            return
        if self._pace.apply_delay_ms and self.ready:
            self._turn_due = self._delays_apply = True
            self._loop.call_later(self._pace.apply_delay_ms / 1_000, self._end_apply_delay)
        else:
            self._turn()

    def apply_now(self) -> None:
        """Apply committed records without further delay, because a reader waits for them."""
        if self._delays_apply:
            self._loop.call_soon(self._end_apply_delay)

    def _end_apply_delay(self) -> None:
        """Apply committed records at the end of the apply delay, unless already applied."""
        if self._delays_apply:
            self._on_turn()

    def lead(self, epoch: Epoch) -> None:
        """Announce this node's leadership once the state has all records before `epoch`."""
        self._leading, self._announced_lead = epoch, False
        self.apply_now()
        self._wake()

    def step_down(self, epoch: Epoch) -> None:
        """Announce that this node stopped leading, if its leadership was announced."""
        told, self._leading, self._announced_lead = self._announced_lead, None, False
        if told and self._listener is not None:
            self._listener.step_down(epoch)

    def snapshot(self, snapshot_id: OffsetAndEpoch) -> None:
        """Load the checkpoint at which the log now begins, unless the state includes its records.

        Records before it cannot be read any more, so the comparison of the state ends too.
        """
        if snapshot_id.offset > self.machine.applied.offset or (
            self._loading is not None and snapshot_id > self._loading
        ):
            if self._loading is None or snapshot_id > self._loading:
                self._begin_load(snapshot_id)
        elif self._cursor < snapshot_id.offset:
            self._begin_after(snapshot_id, self.store.size_bytes(snapshot_id) or 0)
        self._wake()

    # --- turns --------------------------------------------------------------------------------

    def _wake(self, delay_s: float = 0.0) -> None:
        if self._turn_due or self._stopped:
            return
        self._turn_due = True
        if delay_s:
            self._loop.call_later(delay_s, self._on_turn)
        else:
            self._loop.call_soon(self._on_turn)

    def _on_turn(self) -> None:
        self._turn_due = self._delays_apply = False
        self._turn()

    def _turn(self) -> None:
        if self._stopped:
            return
        if self.log.in_doubt:
            self.stop()
            return
        try:
            if self._loading is not None:
                self._load_slice()
                return
            more = self._apply_slice()
            self._notify_listener()
            self._consider_a_checkpoint()
        except BaseException as error:
            self.stop()
            self._loop.fail(error)
            return
        if more:
            self._wake()

    def _tick(self) -> None:
        if not self._stopped:
            self._wake()
            self._loop.call_later(TICK_S, self._tick)

    def _notify_listener(self) -> None:
        if self._listener is None or not self.ready:
            return
        self._listener.applied(self.machine.applied.offset)
        caught_up = self.machine.applied.offset >= self._target
        if self._leading is not None and not self._announced_lead and caught_up:
            self._announced_lead = True
            self._listener.lead(self._leading)

    # --- applying -----------------------------------------------------------------------------

    def _apply_slice(self) -> bool:
        """Apply committed records for a few milliseconds; return True if records are left."""
        until_ms = self._loop.now_ms() + self._pace.apply_ms
        newest = self.store.newest
        if newest is not None and self._cursor < self.log.start_offset <= newest.offset:
            self.snapshot(newest)  # fetched when the log held it already, and the log was cut there
            if self._loading is not None:
                return False
        if not self._agreed and self._cursor == self.machine.applied.offset:
            self._agree(self._epoch_before_cursor())
        while self._cursor < self._target and self._loading is None and not self._stopped:
            data = self._unapplied if self._unapplied_from == self._cursor else b""
            if not len(data):
                data = self.log.read(self._cursor, READ_BYTES)
            if not len(data):  # a checkpoint is being installed: `snapshot` will be called
                return False
            if self._agreed:
                self.machine.apply(self._count_batches(data, until_ms))
                applied = self.machine.applied.offset
                assert self._cursor == applied, f"given up to {self._cursor}, applied {applied}"
            else:
                self._compare(data)
            if self._loop.now_ms() >= until_ms:
                return self._cursor < self._target
        return False

    def _count_batches(self, data: Buffer, until_ms: float) -> Iterator[Batch]:
        """Yield the batches from the apply position on, moving the position past each batch.

        When the time is over, the bytes that are left are kept for the next slice.
        """
        self._unapplied = b""
        now_ms = self._loop.now_ms
        for batch in iter_batches(data):
            header, view = batch.header, batch.view
            base_offset = header[0]
            end_offset = base_offset + header[6] + 1  # as `header.end_offset`, in half the time
            if end_offset <= self._cursor:  # the answer may begin before what was asked for
                continue
            assert base_offset == self._cursor, f"{base_offset}: {self._cursor}"
            yield batch
            self._cursor = Offset(end_offset)
            self._bytes_since += len(view)
            if now_ms() >= until_ms:
                self._unapplied = memoryview(data)[batch.position + len(view) :]
                self._unapplied_from = self._cursor
                return

    def _compare(self, data: Buffer) -> None:
        """Check that the state and the log agree on the records that both include."""
        applied = self.machine.applied.offset
        for batch in self._count_batches(data, float("inf")):
            end_offset = batch.header.end_offset
            if end_offset < applied:
                continue
            if self._agree(batch.header.leader_epoch if end_offset == applied else None):
                self._cursor = end_offset
                self._bytes_since += batch.header.size_bytes
            return

    def _epoch_before_cursor(self) -> Epoch | None:
        """Return the epoch of the record before the apply position, or None if unknown.

        It is known where a checkpoint ends and where the log begins.
        """
        newest = self.store.newest
        if newest is not None and newest.offset == self._cursor:
            return newest.epoch
        return self.machine.applied.epoch if self._cursor == 0 else None

    def _agree(self, epoch: Epoch | None) -> bool:
        """Return whether the log has `epoch` for the last record that the state has applied.

        Another epoch is a fork. If the log has no epoch there, since no batch ends there or the
        state cannot be compared any more, the state is reset and loaded from this log.
        """
        if epoch == self.machine.applied.epoch:
            self._agreed = True
            return True
        if self._contradicts(epoch):
            return False
        self.machine.reset()
        newest = self.store.newest
        self._bytes_since = 0
        if newest is not None:
            self._begin_load(newest)
        else:
            assert self.log.start_offset == 0, f"no checkpoint below {self.log.start_offset}"
            self._cursor, self._agreed = Offset(0), True
        self._wake()
        return False

    def _contradicts(self, epoch: Epoch | None) -> bool:
        """Report a fork and return True if `epoch` differs from that of the last applied record.

        Why this is a fork: only committed records are applied, so the log has lost them. The host
        reports it and stops; the state stays as it is.
        """
        applied = self.machine.applied
        if epoch is None or not applied.offset or epoch == applied.epoch:
            return False
        self.stop()
        self.log.report_fork(applied, epoch)
        return True

    # --- loading ------------------------------------------------------------------------------

    def _begin_load(self, snapshot_id: OffsetAndEpoch) -> None:
        applied = self.machine.applied
        assert snapshot_id.offset > applied.offset or not self._agreed, f"{snapshot_id}: {applied}"
        if self.generation is not None:
            self.generation.abandon(NotHostedError("a newer checkpoint has come from the leader"))
        self._loading = snapshot_id
        self._begun_ms = self._loop.now_ms()
        self._load = self._loader(snapshot_id)
        self._wake()

    def _loader(self, snapshot_id: OffsetAndEpoch) -> Iterator[None]:
        """Load a checkpoint, verifying each batch before its use and the whole file at the end."""
        path = self.store.path(snapshot_id)
        with CheckpointReader(self.store.files, path, epoch=snapshot_id.epoch) as reader:
            data = (batch for batch in reader.batches() if not batch.header.is_control)
            yield from self.machine.load(snapshot_id, data)
            assert reader.checkpoint is not None, f"{path} was not read to its end"
            self.checkpoint_bytes = reader.size_bytes

    def _load_slice(self) -> None:
        begun_ms = self._loop.now_ms()
        for _ in self._load:
            short = self._loop.now_ms() - begun_ms < _TOO_SHORT_MS
            self._wake(0.001 if short else 0.0)
            return
        snapshot_id, self._loading = self._loading, None
        assert snapshot_id is not None, "loaded, and nothing was to be loaded"
        applied = self.machine.applied
        assert applied == snapshot_id, f"loaded {snapshot_id}, the state is at {applied}"
        self.loaded += 1
        self.last_load_ms = self._loop.now_ms() - self._begun_ms
        if self.on_loaded is not None:
            self.on_loaded(self.last_load_ms)
        self._begin_after(snapshot_id, self.checkpoint_bytes)
        self._agreed = True
        self._wake()

    def _begin_after(self, snapshot_id: OffsetAndEpoch, size_bytes: int) -> None:
        self._cursor = snapshot_id.offset
        self._bytes_since = 0
        self.checkpoint_bytes = size_bytes
        self._checkpoint_ms = self._loop.now_ms()
