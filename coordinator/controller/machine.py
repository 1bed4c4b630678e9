"""The controller's state machine: applies the cluster log, publishes immutable images.

The records of a transaction are applied as they arrive, to an edit that is not published; its end
publishes that edit, an abort drops it. So a change of a hundred thousand records appears at once
everywhere, and yet is applied in slices.

A finalized esker.version that this code does not support ends the node, as in upstream: it could
not read what the others write.

Source: KIP-868 (transactions); upstream's MetadataBatchLoader; `coordinator.image_machine`;
docs/design/features.md.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
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
    """The cluster as of the last applied record, or as of before the transaction that is open."""

    def __init__(self, file_defaults: Mapping[str, str] | None = None) -> None:
        """Start with an empty cluster image that has this node's topic defaults.

        They come from the node's properties file.
        """
        self._file_defaults = file_defaults or {}
        self._before_transaction: MetadataImage | None = None  # while one is open
        self._transaction_name: str | None = None
        super().__init__()

    @property
    def checkpointable(self) -> bool:
        """Return whether a checkpoint of the applied state may be taken now.

        It may not while a transaction is open, nor after an unknown record was read.
        """
        return self._before_transaction is None and not self.unknown_records

    @property
    def in_transaction(self) -> bool:
        """Return whether a transaction is open, which a new leader has to abort."""
        return self._before_transaction is not None

    # --- ImageMachine -------------------------------------------------------------------------

    def _empty(self) -> MetadataImage:
        return MetadataImage(file_defaults=self._file_defaults)

    def _begin(self, image: MetadataImage) -> ImageEdit:
        return ImageEdit(image)

    def _publish(self, edit: ImageEdit, applied: OffsetAndEpoch) -> MetadataImage:
        return edit.publish(*applied)

    def _frozen(self, image: MetadataImage) -> Frozen:
        return FrozenImage(image)

    def _apply_record(self, record: MetadataRecord, offset: Offset, epoch: Epoch) -> None:
        match record:
            case BeginTransactionRecord() if self._before_transaction is None:
                self._before_transaction = self._next_image(OffsetAndEpoch(offset, epoch))
                self._transaction_name = record.name
            case EndTransactionRecord() if self._before_transaction is not None:
                self._before_transaction = None  # the edit with its records is published next
            case AbortTransactionRecord() if self._before_transaction is not None:
                log.info("action=abort transaction=%s", self._transaction_name)
                self._edit, self._before_transaction = ImageEdit(self._before_transaction), None
            case _:
                self._edit.apply(record)

    def _show(self, image: MetadataImage) -> None:
        # An empty image, while the log is read anew, names no level: that is no news.
        if image.offset and image.features.recorded is not self.image.features.recorded:
            self._log_levels(image)
            # Before the image is shown: no leader of another log may act on it.
            image.features.check_supported()
        super()._show(image)

    def _log_levels(self, image: MetadataImage) -> None:
        """Log each feature whose finalized level has changed."""
        before, after = self.image.features, image.features
        for name in sorted({*before.finalized, *after.finalized}):
            if before.level(name) != after.level(name):
                log.info(
                    "action=finalize feature=%s level=%d before=%d offset=%d",
                    name, after.level(name), before.level(name), image.offset,
                )  # fmt: skip

    def _show_applied(self) -> None:
        if self._before_transaction is None:
            self._show(self._next_image(self._applied))
        elif self._before_transaction is not self.image:
            self._show(self._before_transaction)

    def _between_slices(self, edit: ImageEdit) -> None:
        edit.close_topics()

    def _start_from(self, edit: ImageEdit) -> None:
        super()._start_from(edit)
        self._before_transaction = None

    def __repr__(self) -> str:
        return f"controller at {self._applied}, transaction={self.in_transaction}"
