"""The state machine of `__consumer_offsets-0`: its records, as one immutable image after another.

As with the controller, a machine that met a record it does not know takes no more checkpoints: it
can go on without the record, but a checkpoint of its own would make everybody else do so too.

Source: DESIGN §7; KIP-630, When to Snapshot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from coordinator.groups.checkpoint import FrozenGroups
from coordinator.groups.state import GroupsEdit, GroupsImage
from raft.interfaces import Frozen
from records.batch import Batch, iter_records
from records.errors import RecordError
from records.frame import decode_record
from records.types import Epoch, Offset, OffsetAndEpoch

log = logging.getLogger("coordinator.groups")

LOAD_SLICE_RECORDS: Final = 400  # of a checkpoint, between two looks at the loop: about 3 ms

Published = Callable[[GroupsImage], None]


class GroupMachine:
    """A `raft.interfaces.StateMachine`. `image` is what is true now; listeners hear of each one."""

    def __init__(self) -> None:
        self.image = GroupsImage()
        self.unknown_records = 0  # of a type or version that this code does not know, or damaged
        self.contradictions = 0  # records that fitted nothing, and changed nothing
        self._applied = OffsetAndEpoch(Offset(0), Epoch(0))
        self._last_timestamp = 0
        self._changed = 0
        self._frozen_at: tuple[Offset, int] | None = None  # the offset, and changes up to it
        self._listeners: list[Published] = []

    # --- a StateMachine -----------------------------------------------------------------------

    @property
    def applied(self) -> OffsetAndEpoch:
        """Everything below is in the state."""
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
        """Not once a record was met that we do not know."""
        return not self.unknown_records

    def listen(self, listener: Published) -> None:
        """Hear of every image from now on, at once of the present one."""
        self._listeners.append(listener)
        listener(self.image)

    def apply(self, batches: Iterable[Batch]) -> None:
        """Committed batches; one image is published for all of them."""
        edit = GroupsEdit(self.image)
        for batch in batches:
            header = batch.header
            assert header.base_offset >= self._applied.offset, f"gap or repeat: {header}"
            if not header.is_control:
                self._apply_batch(edit, batch)
            self._applied = OffsetAndEpoch(header.end_offset, header.leader_epoch)
            self._last_timestamp = max(self._last_timestamp, header.max_timestamp)
        self._changed += edit.changed
        self._show(edit)

    def _apply_batch(self, edit: GroupsEdit, batch: Batch) -> None:
        for item in iter_records(batch):
            try:
                edit.apply(decode_record(item.value))
            except RecordError as error:
                self.unknown_records += 1
                log.error("offset=%d record=%s", item.offset, error)

    def _show(self, edit: GroupsEdit) -> None:
        self.contradictions += edit.contradictions
        self.image = edit.publish()
        for listener in self._listeners:
            listener(self.image)

    def load(self, snapshot_id: OffsetAndEpoch, batches: Iterable[Batch]) -> Iterator[None]:
        """Begin anew from a checkpoint; yields every few hundred records."""
        edit = GroupsEdit(GroupsImage())
        self.unknown_records = self.contradictions = 0
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
                    yield
        self._applied, self._last_timestamp = snapshot_id, timestamp
        self._changed, self._frozen_at = 0, None
        self._show(edit)

    def reset(self) -> None:
        """Forget everything: empty, at the log's very beginning."""
        self._applied, self._last_timestamp = OffsetAndEpoch(Offset(0), Epoch(0)), 0
        self._changed, self._frozen_at = 0, None
        self.unknown_records = self.contradictions = 0
        self._show(GroupsEdit(GroupsImage()))

    def freeze(self) -> Frozen:
        """The image is immutable: it is frozen already."""
        assert self.checkpointable, f"a checkpoint at {self._applied}: {self}"
        self._frozen_at = (self._applied.offset, self._changed)
        return FrozenGroups(self.image)

    def checkpointed(self, snapshot_id: OffsetAndEpoch, record_count: int) -> None:  # noqa: ARG002
        """What was frozen is durable: count changes from there."""
        if self._frozen_at is not None and self._frozen_at[0] == snapshot_id.offset:
            self._changed -= self._frozen_at[1]
        self._frozen_at = None

    def __repr__(self) -> str:
        return f"groups at {self._applied}: {len(self.image.groups)}"
