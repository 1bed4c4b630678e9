"""The state machine of `__consumer_offsets-0`: applies its records, publishes immutable images.

Source: docs/design/groups.md; `coordinator.image_machine`.
"""

from __future__ import annotations

from coordinator.groups.checkpoint import FrozenGroups
from coordinator.groups.state import GroupsEdit, GroupsImage
from coordinator.image_machine import ImageMachine
from raft.interfaces import Frozen
from records.types import OffsetAndEpoch


class GroupMachine(ImageMachine[GroupsImage, GroupsEdit]):
    """All groups as of the last applied record."""

    def _empty(self) -> GroupsImage:
        return GroupsImage()

    def _begin(self, image: GroupsImage) -> GroupsEdit:
        return GroupsEdit(image)

    def _publish(self, edit: GroupsEdit, applied: OffsetAndEpoch) -> GroupsImage:  # noqa: ARG002
        return edit.publish()

    def _frozen(self, image: GroupsImage) -> Frozen:
        return FrozenGroups(image)

    def __repr__(self) -> str:
        return f"groups at {self._applied}: {len(self.image.groups)}"
