"""State machines whose state is one immutable image after another.

Committed records change a private *edit*; the image that it publishes is the next state. Listeners
are called with each image, holders of an older one go on reading it, and a state to be frozen for a
checkpoint is frozen already.

The trap: a machine that has skipped an unknown record takes no more checkpoints. It can go on
without the record, but replicas that loaded its checkpoint would lack the record, too.

Source: docs/design/state-machines.md#decide-and-apply; KIP-630, When to Snapshot.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Generic, Protocol, TypeVar

from raft.interfaces import Frozen
from records.batch import Batch, iter_records
from records.errors import RecordError
from records.frame import decode_record
from records.schema import MetadataRecord
from records.types import Epoch, Offset, OffsetAndEpoch

log: Final = logging.getLogger("coordinator")

LOAD_SLICE_RECORDS: Final = 400  # of a checkpoint, between two looks at the loop: 2 to 3 ms


class Image(Protocol):
    """The whole of a state as of an offset. Immutable."""

    @property
    def record_count(self) -> int:
        """Return the number of records in a checkpoint of this image."""


class Edit(Protocol):
    """Changes on top of an image; `publish` makes them the next image and goes on from it."""

    changed: int  # records that were replaced, or left the state
    contradictions: int  # records that fitted nothing, and changed nothing

    def apply(self, record: MetadataRecord) -> None:
        """Apply one committed record to these pending changes of a state image."""


ImageT = TypeVar("ImageT", bound=Image)
EditT = TypeVar("EditT", bound=Edit)


class ImageMachine(ABC, Generic[ImageT, EditT]):
    """A `raft.interfaces.StateMachine` that publishes one immutable image after another."""

    def __init__(self) -> None:
        self.image = self._empty()
        self.unknown_records = 0  # of a type or version that this code does not know, or damaged
        self._edit = self._begin(self.image)
        self._applied = OffsetAndEpoch(Offset(0), Epoch(0))
        self._last_timestamp = 0
        self._changed = 0
        self._contradictions = 0
        self._frozen_at: tuple[Offset, int] | None = None  # the offset, and changes up to it
        self._listeners: list[Callable[[ImageT], None]] = []

    # --- what is of one kind of image ---------------------------------------------------------

    @abstractmethod
    def _empty(self) -> ImageT:
        """Return the state image of an empty log."""

    @abstractmethod
    def _begin(self, image: ImageT) -> EditT:
        """Return an object that collects changes on top of a state image."""

    @abstractmethod
    def _publish(self, edit: EditT, applied: OffsetAndEpoch) -> ImageT:
        """Return the next state image, with the changes of `edit`, as of the offset `applied`."""

    @abstractmethod
    def _frozen(self, image: ImageT) -> Frozen:
        """Return the records that a checkpoint of this state image holds."""

    def _apply_record(self, record: MetadataRecord, offset: Offset, epoch: Epoch) -> None:  # noqa: ARG002
        """Apply the record at `offset`, which was written in `epoch`, to the pending changes."""
        self._edit.apply(record)

    def _show_applied(self) -> None:
        """Publish one state image after some committed batches were applied."""
        self._show(self._next_image(self._applied))

    def _between_slices(self, edit: EditT) -> None:
        """Do nothing between a load's steps; a subclass may compact the pending changes there."""

    def _start_from(self, edit: EditT) -> None:
        """Replace the pending changes, and the state that they rest on, by those of `edit`."""
        self._edit = edit

    # --- a StateMachine -----------------------------------------------------------------------

    @property
    def applied(self) -> OffsetAndEpoch:
        """Return the offset after the last applied record, and that record's epoch.

        Records of an open transaction are included.
        """
        return self._applied

    @property
    def last_timestamp(self) -> int:
        """Return the timestamp of the last applied batch in ms since 1970."""
        return self._last_timestamp

    @property
    def changed_records(self) -> int:
        """Return the number of records replaced or removed since the newest checkpoint."""
        return self._changed

    @property
    def total_records(self) -> int:
        """Return the number of records that a checkpoint of the current state would hold."""
        return self.image.record_count

    @property
    def checkpointable(self) -> bool:
        """Return whether a checkpoint may be taken: until a record of unknown kind is applied."""
        return not self.unknown_records

    @property
    def contradictions(self) -> int:
        """Return the number of applied records that contradicted the state and were ignored."""
        return self._contradictions

    def listen(self, listener: Callable[[ImageT], None]) -> None:
        """Call `listener` with the current state image, and then with each new image."""
        self._listeners.append(listener)
        listener(self.image)

    def apply(self, batches: Iterable[Batch]) -> None:
        """Apply committed batches of records, and publish one state image for all of them."""
        for batch in batches:
            header = batch.header
            assert header.base_offset >= self._applied.offset, f"gap or repeat: {header}"
            if not header.is_control:
                self._apply_batch(batch)
            self._applied = OffsetAndEpoch(header.end_offset, header.leader_epoch)
            self._last_timestamp = max(self._last_timestamp, header.max_timestamp)
        self._show_applied()

    def _apply_batch(self, batch: Batch) -> None:
        epoch = batch.header.leader_epoch
        for item in iter_records(batch):
            if item.value is None:
                continue
            try:
                record = decode_record(item.value)
            except RecordError as error:
                self.unknown_records += 1
                log.error("offset=%d record=%s", item.offset, error)
                continue
            self._apply_record(record, item.offset, epoch)

    def _next_image(self, applied: OffsetAndEpoch) -> ImageT:
        """Build the next state image; add its changed and contradictory records to the counters."""
        edit = self._edit
        image = self._publish(edit, applied)
        self._changed += edit.changed
        self._contradictions += edit.contradictions
        edit.changed = edit.contradictions = 0
        return image

    def _show(self, image: ImageT) -> None:
        self.image = image
        for listener in self._listeners:
            listener(image)

    def load(self, snapshot_id: OffsetAndEpoch, batches: Iterable[Batch]) -> Iterator[None]:
        """Replace the state by a checkpoint's state; yield after every few hundred records."""
        edit = self._begin(self._empty())
        self.unknown_records = 0
        count, timestamp = 0, 0
        for batch in batches:
            timestamp = max(timestamp, batch.header.max_timestamp)
            if batch.header.is_control:
                continue
            for item in iter_records(batch):
                count += 1
                try:
                    edit.apply(decode_record(item.value))
                except RecordError as error:
                    self.unknown_records += 1
                    log.error("checkpoint=%s offset=%d record=%s", snapshot_id, item.offset, error)
                if count % LOAD_SLICE_RECORDS == 0:
                    self._between_slices(edit)
                    yield
        self._start_from(edit)
        self._applied, self._last_timestamp = snapshot_id, timestamp
        image = self._next_image(snapshot_id)
        self._changed, self._frozen_at = 0, None
        self._show(image)

    def reset(self) -> None:
        """Replace the state by that of an empty log, at offset 0."""
        image = self._empty()
        self._start_from(self._begin(image))
        self._applied, self._last_timestamp = OffsetAndEpoch(Offset(0), Epoch(0)), 0
        self._changed, self._frozen_at, self.unknown_records = 0, None, 0
        self._show(image)

    def freeze(self) -> Frozen:
        """Return the checkpoint records of the current state; later records do not change them."""
        assert self.checkpointable, f"a checkpoint at {self._applied}: {self}"
        self._frozen_at = (self._applied.offset, self._changed)
        return self._frozen(self.image)

    def checkpointed(self, snapshot_id: OffsetAndEpoch, record_count: int) -> None:  # noqa: ARG002
        """Count as changed only the records changed since the new checkpoint's state was frozen."""
        if self._frozen_at is not None and self._frozen_at[0] == snapshot_id.offset:
            self._changed -= self._frozen_at[1]
        self._frozen_at = None
