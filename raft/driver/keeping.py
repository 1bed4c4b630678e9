"""How checkpoints are kept: what the driver needs of the snapshot room, as the front door gives it.

Without it a group keeps everything: its log begins at 0 for ever.

Source: KIP-630; DESIGN §6.
"""

from __future__ import annotations

from collections.abc import Sequence

from raft.interfaces import Download, Piece
from records.types import Offset, OffsetAndEpoch


class NoSnapshots:
    """The checkpoints of a group that has none, and takes none in."""

    newest: OffsetAndEpoch | None = None
    ids: Sequence[OffsetAndEpoch] = ()

    def read(self, snapshot_id: OffsetAndEpoch, position: int, max_bytes: int) -> Piece | None:  # noqa: ARG002
        """There is none."""
        return None

    def receive(self, snapshot_id: OffsetAndEpoch) -> Download:
        """Nobody may be sent here for one: raises OSError."""
        raise OSError(f"no place to keep checkpoint {snapshot_id}")

    def added(self, snapshot_id: OffsetAndEpoch) -> None:
        """Nobody can have published one here."""
        raise AssertionError(f"no place for checkpoint {snapshot_id}")

    def drop_below(self, log_start_offset: Offset) -> None:
        """Nothing to drop."""
