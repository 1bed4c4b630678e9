"""The controller's state machine: the cluster log's records, as one immutable image after another.

A transaction is applied as its records come, to an edit that nobody sees; its end publishes that
edit, an abort drops it. So a change of a hundred thousand records appears at once everywhere, and
yet is applied in slices.

Source: KIP-868 (transactions); upstream's MetadataBatchLoader; `coordinator.image_machine`.
"""

from __future__ import annotations

import logging
from typing import Final

from coordinator.controller.apply import ImageEdit
from coordinator.controller.checkpoint import FrozenImage
from coordinator.controller.image import MetadataImage
from coordinator.image_machine import ImageMachine
from raft.interfaces import Frozen
from records.metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
)
from records.schema import MetadataRecord
from records.types import Epoch, Offset, OffsetAndEpoch

log: Final = logging.getLogger("coordinator.controller")


class ControllerMachine(ImageMachine[MetadataImage, ImageEdit]):
    """The cluster, as of what is applied; while a transaction is open, as of before it."""

    def __init__(self) -> None:
        self._outside: MetadataImage | None = None  # what is true while a transaction is open
        self._transaction_name: str | None = None
        super().__init__()

    @property
    def checkpointable(self) -> bool:
        """Not inside a transaction, and not once a record was met that we do not know."""
        return self._outside is None and not self.unknown_records

    @property
    def in_transaction(self) -> bool:
        """A transaction is open: a new leader has to abort it."""
        return self._outside is not None

    # --- what is of this kind of image --------------------------------------------------------

    def _empty(self) -> MetadataImage:
        return MetadataImage()

    def _begin(self, image: MetadataImage) -> ImageEdit:
        return ImageEdit(image)

    def _publish(self, edit: ImageEdit, applied: OffsetAndEpoch) -> MetadataImage:
        return edit.publish(*applied)

    def _frozen(self, image: MetadataImage) -> Frozen:
        return FrozenImage(image)

    def _apply_record(self, record: MetadataRecord, offset: Offset, epoch: Epoch) -> None:
        match record:
            case BeginTransactionRecord() if self._outside is None:
                self._outside = self._next_image(OffsetAndEpoch(offset, epoch))
                self._transaction_name = record.name
            case EndTransactionRecord() if self._outside is not None:
                self._outside = None  # the edit goes on, and what it holds counts
            case AbortTransactionRecord() if self._outside is not None:
                log.info("action=abort transaction=%s", self._transaction_name)
                self._edit, self._outside = ImageEdit(self._outside), None
            case _:
                self._edit.apply(record)

    def _show_applied(self) -> None:
        if self._outside is None:
            self._show(self._next_image(self._applied))
        elif self._outside is not self.image:
            self._show(self._outside)

    def _between_slices(self, edit: ImageEdit) -> None:
        edit.close_topics()

    def _start_from(self, edit: ImageEdit) -> None:
        super()._start_from(edit)
        self._outside = None

    def __repr__(self) -> str:
        return f"controller at {self._applied}, transaction={self.in_transaction}"
