"""One state machine over one replicated log: load, apply, checkpoint; for as long as it lives.

    host = MachineHost(log, machine, shelf, policy=policy, loop=loop, unique=numbers)
    host.start()

- At the start, and whenever the log was begun anew by a leader's checkpoint, the newest checkpoint
  is loaded; never one that is older than the state.
- What is committed is applied in order, in slices of some milliseconds.
- When the policy asks for a checkpoint, or somebody (`take_now`), the state is frozen, and encoded
  and written beside its further life; then the log is told (`snapshot.scheduling`).

Surprises. The log after the newest checkpoint is read in any case, even by a machine whose state
outlived the process and lies beyond it: so its bytes are counted, and so it is found out whether
that state is of this log's history at all. One that is not is thrown away. And a checkpoint of our
own disk that turns out damaged while it is loaded stops the node: there is no state to go on with.

No asyncio, no clock, no thread in here: whoever has them passes a `Loop` in, and the simulator is
one.

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
from snapshot.scheduling import NotHostedError, Taking
from snapshot.store import Shelf

READ_BYTES: Final = 256 * 1024
TICK_S: Final = 1.0  # between two looks at the policy while nothing is committed
_TOO_SHORT_MS: Final = 0.1  # a slice of loading that waits for something


class Listener(Protocol):
    """Who leads with the machine's state, or answers from it."""

    def applied(self, offset: Offset) -> None:
        """Everything below is in the state, and nothing is being loaded."""

    def lead(self, epoch: Epoch) -> None:
        """We lead, and the state holds everything before our epoch."""

    def step_down(self, epoch: Epoch) -> None:
        """We no longer do. Not told of epochs that `lead` was not told of."""


@runtime_checkable
class ReadInPlace(Protocol):
    """A machine that others read where it is. Who waits there for more to be applied says so."""

    on_wanted: Callable[[], None] | None


class MachineHost(Taking):
    """See the module. A `Watcher` of its log."""

    def __init__(
        self,
        log: ReplicatedLog,
        machine: StateMachine,
        shelf: Shelf,
        *,
        policy: SnapshotPolicy,
        loop: Loop,
        unique: Callable[[], int],
        listener: Listener | None = None,
        pace: Pace | None = None,
    ) -> None:
        """Nothing happens before `start`.

        Args:    shelf: `log.snapshots`, as what it is. unique: numbers from 1 to 2^63 - 1 that tell
                 the files of two attempts apart, also across restarts.
        """
        super().__init__(
            log, machine, shelf, policy=policy, loop=loop, unique=unique, pace=pace or Pace()
        )
        self.loaded = 0  # so many times
        self.last_load_ms: float | None = None
        self.on_loaded: Callable[[float], None] | None = None  # told how long it took, in ms
        self._listener = listener
        self._target = Offset(0)  # apply up to here (exclusive)
        self._cursor = Offset(0)  # the log is counted up to here, from the newest checkpoint on
        self._agreed = False  # the state is known to be of this log's history
        self._turn_due = False
        self._lingers = False  # the turn that is due is due later
        self._load: Iterator[None] = iter(())
        self._leading: Epoch | None = None
        self._told_lead = False
        self._begun_ms = 0.0
        if isinstance(machine, ReadInPlace):
            machine.on_wanted = self.hurry

    # --- life ---------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Is the state one that may be looked at?"""
        return self._agreed and self._loading is None and not self._stopped

    def start(self) -> None:
        """Follow the log from now on. Raises OSError."""
        newest = self.shelf.newest
        if newest is not None:
            self._begin_after(newest, self.shelf.size_bytes(newest) or 0)
            if newest.offset > self.machine.applied.offset:
                self._begin_load(newest)
        else:
            self._cursor = self.log.start_offset
        self.log.watch(self)
        self._loop.call_later(TICK_S, self._tick)

    def stop(self) -> None:
        """Let go of everything; whoever waits for a checkpoint is told."""
        self._stopped = True
        if self.generation is not None:
            self.generation.abandon(NotHostedError(f"{self.log.name} ends here"))
        self._tell_asked(NotHostedError(f"{self.log.name} ends here"))

    # --- a Watcher ----------------------------------------------------------------------------

    def committed(self, high_watermark: Offset) -> None:
        """Apply what is committed now: a slice of it at once, or all of it after the pace's linger.

        A replica that lingers does first what others wait for: a leader's answers leave, a
        follower's flush begins and its next Fetch says so. What more is committed meanwhile is
        applied in the same go.
        """
        self._target = high_watermark
        if self.generation is not None:
            self.generation.others_work()
        if self._turn_due:
            return
        if self._pace.linger_ms and self.ready:
            self._turn_due = self._lingers = True
            self._loop.call_later(self._pace.linger_ms / 1_000, self._end_linger)
        else:
            self._turn()

    def hurry(self) -> None:
        """Somebody waits for what is committed to be applied: linger no longer."""
        if self._lingers:
            self._loop.call_soon(self._end_linger)

    def _end_linger(self) -> None:
        """After a hurry the timer finds no linger, or cuts the next one short."""
        if self._lingers:
            self._on_turn()

    def lead(self, epoch: Epoch) -> None:
        """Passed on once the state holds all that was committed before."""
        self._leading, self._told_lead = epoch, False
        self.hurry()
        self._wake()

    def step_down(self, epoch: Epoch) -> None:
        """Passed on."""
        told, self._leading, self._told_lead = self._told_lead, None, False
        if told and self._listener is not None:
            self._listener.step_down(epoch)

    def snapshot(self, snapshot_id: OffsetAndEpoch) -> None:
        """The log begins at this checkpoint: load it, unless the state is beyond it already.

        Even then nothing before it can be read any more, whatever was still to be compared.
        """
        if snapshot_id.offset > self.machine.applied.offset or (
            self._loading is not None and snapshot_id > self._loading
        ):
            if self._loading is None or snapshot_id > self._loading:
                self._begin_load(snapshot_id)
        elif self._cursor < snapshot_id.offset:
            self._begin_after(snapshot_id, self.shelf.size_bytes(snapshot_id) or 0)
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
        self._turn_due = self._lingers = False
        self._turn()

    def _turn(self) -> None:
        if self._stopped:
            return
        try:
            if self._loading is not None:
                self._load_slice()
                return
            more = self._apply_slice()
            self._tell_listener()
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

    def _tell_listener(self) -> None:
        if self._listener is None or not self.ready:
            return
        self._listener.applied(self.machine.applied.offset)
        caught_up = self.machine.applied.offset >= self._target
        if self._leading is not None and not self._told_lead and caught_up:
            self._told_lead = True
            self._listener.lead(self._leading)

    # --- applying -----------------------------------------------------------------------------

    def _apply_slice(self) -> bool:
        """A few milliseconds' worth; True if there is more."""
        until_ms = self._loop.now_ms() + self._pace.apply_ms
        newest = self.shelf.newest
        if newest is not None and self._cursor < self.log.start_offset <= newest.offset:
            self.snapshot(newest)  # fetched when the log held it already, and the log was cut there
            if self._loading is not None:
                return False
        if not self._agreed and self._cursor == self.machine.applied.offset:
            self._agree(self._epoch_before_cursor())
        while self._cursor < self._target and self._loading is None:
            data = self.log.read(self._cursor, READ_BYTES)
            if not len(data):  # a checkpoint is being installed: we are told
                return False
            if self._agreed:
                self.machine.apply(self._counted(data, until_ms))
                applied = self.machine.applied.offset
                assert self._cursor == applied, f"given up to {self._cursor}, applied {applied}"
            else:
                self._compare(data)
            if self._loop.now_ms() >= until_ms:
                return self._cursor < self._target
        return False

    def _counted(self, data: Buffer, until_ms: float) -> Iterator[Batch]:
        """The batches from the cursor on; the cursor follows."""
        for batch in iter_batches(data):
            header = batch.header
            if header.end_offset <= self._cursor:  # the answer may begin before what was asked for
                continue
            assert header.base_offset == self._cursor, f"{header.base_offset}: {self._cursor}"
            yield batch
            self._cursor = header.end_offset
            self._bytes_since += header.size_bytes
            if self._loop.now_ms() >= until_ms:
                return

    def _compare(self, data: Buffer) -> None:
        """Count what the state holds already, up to its end; and is it that of this log?"""
        applied = self.machine.applied.offset
        for batch in self._counted(data, float("inf")):
            end_offset = batch.header.end_offset
            if end_offset < applied:
                continue
            if self._agree(batch.header.leader_epoch if end_offset == applied else None):
                self._cursor = end_offset
                self._bytes_since += batch.header.size_bytes
            return

    def _epoch_before_cursor(self) -> Epoch | None:
        """Of the record before the cursor, where a checkpoint or nothing at all is before it."""
        newest = self.shelf.newest
        if newest is not None and newest.offset == self._cursor:
            return newest.epoch
        return self.machine.applied.epoch if self._cursor == 0 else None

    def _agree(self, epoch: Epoch | None) -> bool:
        """Does the log hold, right before the state's end, a record of the state's epoch?"""
        if epoch == self.machine.applied.epoch:
            self._agreed = True
            return True
        self.machine.reset()
        newest = self.shelf.newest
        self._bytes_since = 0
        if newest is not None:
            self._begin_load(newest)
        else:
            assert self.log.start_offset == 0, f"no checkpoint below {self.log.start_offset}"
            self._cursor, self._agreed = Offset(0), True
        self._wake()
        return False

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
        """Every batch is checked before it is handed on, and the whole at the end."""
        path = self.shelf.path(snapshot_id)
        with CheckpointReader(self.shelf.files, path, epoch=snapshot_id.epoch) as reader:
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
