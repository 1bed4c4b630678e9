"""The controller's state machine: the cluster log's records, as one immutable image after another.

A transaction is applied as its records come, to an edit that nobody sees; its end publishes that
edit, an abort drops it. So a change of a hundred thousand records appears at once everywhere, and
yet is applied in slices.

The surprise: a machine that met a record it does not know takes no more checkpoints. It can go on
without the record, but a checkpoint of its own would make everybody else go on without it.

Source: KIP-868 (transactions); KIP-630, When to Snapshot; upstream's MetadataBatchLoader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from coordinator.controller.apply import ImageEdit
from coordinator.controller.checkpoint import FrozenImage
from coordinator.controller.image import MetadataImage
from raft.interfaces import Frozen
from records.batch import Batch, iter_records
from records.errors import RecordError
from records.frame import decode_record
from records.metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
)
from records.types import Epoch, Offset, OffsetAndEpoch

log = logging.getLogger("coordinator.controller")

LOAD_SLICE_RECORDS: Final = 400  # of a checkpoint, between two looks at the loop: about 2 ms

Published = Callable[[MetadataImage], None]


class ControllerMachine:
    """A `raft.interfaces.StateMachine`. `image` is what is true now; listeners hear of each one."""

    def __init__(self) -> None:
        self.image = MetadataImage()
        self.unknown_records = 0  # of a type or version that this code does not know, or damaged
        self._applied = OffsetAndEpoch(Offset(0), Epoch(0))
        self._last_timestamp = 0
        self._edit = ImageEdit(self.image)
        self._outside: MetadataImage | None = None  # what is true while a transaction is open
        self._transaction_name: str | None = None
        self._changed = 0
        self._contradictions = 0
        self._frozen_at: tuple[Offset, int] | None = None  # the offset, and changes up to it
        self._listeners: list[Published] = []

    # --- a StateMachine -----------------------------------------------------------------------

    @property
    def applied(self) -> OffsetAndEpoch:
        """Everything below is in the state, the records of an open transaction included."""
        return self._applied

    @property
    def last_timestamp(self) -> int:
        """Of the last batch applied, ms since 1970."""
        return self._last_timestamp

    @property
    def changed_records(self) -> int:
        """Records that were replaced or left the state since the newest checkpoint."""
        return self._changed

    @property
    def total_records(self) -> int:
        """Records that a checkpoint would hold now."""
        return self.image.record_count

    @property
    def checkpointable(self) -> bool:
        """Not inside a transaction, and not once a record was met that we do not know."""
        return self._outside is None and not self.unknown_records

    @property
    def in_transaction(self) -> bool:
        """A transaction is open: a new leader has to abort it."""
        return self._outside is not None

    @property
    def contradictions(self) -> int:
        """Records that fitted nothing, and changed nothing."""
        return self._contradictions

    def listen(self, listener: Published) -> None:
        """Hear of every image from now on, at once of the present one."""
        self._listeners.append(listener)
        listener(self.image)

    def apply(self, batches: Iterable[Batch]) -> None:
        """Committed batches; one image is published for all of them."""
        for batch in batches:
            header = batch.header
            assert header.base_offset >= self._applied.offset, f"gap or repeat: {header}"
            if not header.is_control:
                self._apply_batch(batch)
            self._applied = OffsetAndEpoch(header.end_offset, header.leader_epoch)
            self._last_timestamp = max(self._last_timestamp, header.max_timestamp)
        if self._outside is None:
            self._show(self._freeze_edit(self._applied))
        elif self._outside is not self.image:
            self._show(self._outside)

    def _apply_batch(self, batch: Batch) -> None:
        for item in iter_records(batch):
            if item.value is None:
                continue
            try:
                record = decode_record(item.value)
            except RecordError as error:
                self.unknown_records += 1
                log.error("offset=%d record=%s", item.offset, error)
                continue
            match record:
                case BeginTransactionRecord() if self._outside is None:
                    here = OffsetAndEpoch(item.offset, batch.header.leader_epoch)
                    self._outside = self._freeze_edit(here)
                    self._transaction_name = record.name
                case EndTransactionRecord() if self._outside is not None:
                    self._outside = None  # the edit goes on, and what it holds counts
                case AbortTransactionRecord() if self._outside is not None:
                    log.info("action=abort transaction=%s", self._transaction_name)
                    self._edit, self._outside = ImageEdit(self._outside), None
                case _:
                    self._edit.apply(record)

    def _freeze_edit(self, applied: OffsetAndEpoch) -> MetadataImage:
        """The image after all that was applied; what changed is counted now, not before."""
        image = self._edit.publish(*applied)
        self._changed += self._edit.changed
        self._contradictions += self._edit.contradictions
        self._edit.changed = self._edit.contradictions = 0
        return image

    def _show(self, image: MetadataImage) -> None:
        self.image = image
        for listener in self._listeners:
            listener(image)

    def load(self, snapshot_id: OffsetAndEpoch, batches: Iterable[Batch]) -> Iterator[None]:
        """Begin anew from a checkpoint; yields every few hundred records."""
        edit = ImageEdit(MetadataImage())
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
                    edit.close_topics()
                    yield
        self._edit, self._outside = edit, None
        self._applied, self._last_timestamp = snapshot_id, timestamp
        image = self._freeze_edit(snapshot_id)
        self._changed, self._frozen_at = 0, None
        self._show(image)

    def reset(self) -> None:
        """Forget everything: empty, at the log's very beginning."""
        self._edit, self._outside = ImageEdit(MetadataImage()), None
        self._applied, self._last_timestamp = OffsetAndEpoch(Offset(0), Epoch(0)), 0
        self._changed, self._frozen_at, self.unknown_records = 0, None, 0
        self._show(MetadataImage())

    def freeze(self) -> Frozen:
        """The image is immutable: it is frozen already."""
        assert self.checkpointable, f"a checkpoint at {self._applied}: {self}"
        self._frozen_at = (self._applied.offset, self._changed)
        return FrozenImage(self.image)

    def checkpointed(self, snapshot_id: OffsetAndEpoch, record_count: int) -> None:  # noqa: ARG002
        """What was frozen is durable: count changes from there."""
        if self._frozen_at is not None and self._frozen_at[0] == snapshot_id.offset:
            self._changed -= self._frozen_at[1]
        self._frozen_at = None

    def __repr__(self) -> str:
        return f"controller at {self._applied}, transaction={self.in_transaction}"
