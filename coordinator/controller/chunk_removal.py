"""Removes chunks that are no longer needed.

The batch coordinators know which those are: a chunk may be removed once its partition's log start
has passed the chunk's last offset. So the active controller periodically requests the log starts of
all partitions that have chunks, and removes the chunks below. A log start only moves forward, so an
old answer removes too little and never too much.

Source: docs/design/chunks.md#removing-a-chunk; KIP-1114, Automatic chunk deletion.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from coordinator.controller.decide.chunks import remove_chunks
from coordinator.controller.handover import HandOver
from coordinator.controller.image import MetadataImage
from coordinator.controller.leader import Controller
from coordinator.errors import CoordinatorError
from records.types import Offset

log = logging.getLogger("coordinator.controller")

INTERVAL_MS: Final = 30_000


class ChunkRemoval:
    """Removes unneeded chunks every 30 s while this node is the active controller."""

    def __init__(self, controller: Controller, handover: HandOver) -> None:
        self._controller = controller
        self._handover = handover
        self._last_ms: int | None = None
        self._open = 0
        self._log_starts: dict[tuple[UUID, int], Offset] = {}
        self.removed = 0

    def tick(self, now_ms: int) -> None:
        """Remove unneeded partition chunks if 30 s have passed since the last removal.

        The clock is monotonic; call it often.
        """
        if self._controller.active_epoch is None:
            self._last_ms = None
        elif self._last_ms is None:
            self._last_ms = now_ms
        elif now_ms - self._last_ms >= INTERVAL_MS:
            self._last_ms = now_ms
            self.start()

    def start(self) -> None:
        """Request log starts from the coordinators; then remove chunks below the log starts.

        Does nothing while a removal is in progress.
        """
        if self._open or self._controller.active_epoch is None:
            return
        by_coordinator = partitions_with_chunks(self._controller.machine.image)
        self._log_starts.clear()
        self._open = len(by_coordinator)
        for coordinator, partitions in by_coordinator.items():
            self._handover.calls.log_starts(coordinator, partitions, self._on_log_starts)

    def _on_log_starts(self, answer: Mapping[tuple[UUID, int], Offset] | CoordinatorError) -> None:
        if not isinstance(answer, CoordinatorError):
            self._log_starts.update(answer)
        self._open -= 1
        if not self._open:
            starts = dict(self._log_starts)
            self._controller.submit(
                lambda context: remove_chunks(context.image, starts),
                self._on_removed,
                name="remove chunks",
            )

    def _on_removed(self, outcome: Any) -> None:
        if not isinstance(outcome, CoordinatorError) and outcome:
            self.removed += outcome
            log.info("action=remove_chunks count=%d", outcome)


def partitions_with_chunks(image: MetadataImage) -> dict[int, list[tuple[UUID, int]]]:
    """Return the partitions with inactive chunks (closed offset ranges), by batch coordinator."""
    found: dict[int, list[tuple[UUID, int]]] = {}
    for topic in image.iter_topics():
        for index in topic.chunks:
            found.setdefault(topic.coordinator(index), []).append((topic.topic_id, index))
    return found
