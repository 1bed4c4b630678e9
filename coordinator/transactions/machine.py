"""The state machine of `__transaction_state-0`: applies its records, publishes immutable images.

Source: docs/design/transactions.md; `coordinator.image_machine`.
"""

from __future__ import annotations

from coordinator.image_machine import ImageMachine
from coordinator.transactions.checkpoint import FrozenTransactions
from coordinator.transactions.state import TransactionsEdit, TransactionsImage
from raft.interfaces import Frozen
from records.types import OffsetAndEpoch


class TransactionMachine(ImageMachine[TransactionsImage, TransactionsEdit]):
    """All transactional ids as of the last applied record."""

    def _empty(self) -> TransactionsImage:
        return TransactionsImage()

    def _begin(self, image: TransactionsImage) -> TransactionsEdit:
        return TransactionsEdit(image)

    def _publish(self, edit: TransactionsEdit, applied: OffsetAndEpoch) -> TransactionsImage:  # noqa: ARG002
        return edit.publish()

    def _frozen(self, image: TransactionsImage) -> Frozen:
        return FrozenTransactions(image)

    def __repr__(self) -> str:
        return f"transactions at {self._applied}: {len(self.image.ids)}"
