"""Chunks that nobody needs are removed by the controller itself, now and then.

Which those are, the batch coordinators know: a chunk may go once its partition's log start has
passed the chunk's last offset. So the active controller asks the coordinators of partitions that
have chunks where their logs start, and removes what lies below. A log start only moves forward, so
an old answer removes too little and never too much.

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


class ChunkSweep:
    """One sweep at a time; see the module."""

    def __init__(self, controller: Controller, handover: HandOver) -> None:
        self._controller = controller
        self._handover = handover
        self._swept_ms: int | None = None
        self._open = 0
        self._log_starts: dict[tuple[UUID, int], Offset] = {}
        self.removed = 0

    def tick(self, now_ms: int) -> None:
        """Call it often; a sweep begins every 30 s of a monotonic clock."""
        if self._controller.active_epoch is None:
            self._swept_ms = None
        elif self._swept_ms is None:
            self._swept_ms = now_ms
        elif now_ms - self._swept_ms >= INTERVAL_MS:
            self._swept_ms = now_ms
            self.sweep()

    def sweep(self) -> None:
        """Ask, then remove; does nothing while the last sweep waits for its answers."""
        if self._open or self._controller.active_epoch is None:
            return
        groups = partitions_with_chunks(self._controller.machine.image)
        self._log_starts.clear()
        self._open = len(groups)
        for coordinator, partitions in groups.items():
            self._handover.calls.log_starts(coordinator, partitions, self._heard)

    def _heard(self, answer: Mapping[tuple[UUID, int], Offset] | CoordinatorError) -> None:
        if not isinstance(answer, CoordinatorError):
            self._log_starts.update(answer)
        self._open -= 1
        if not self._open:
            starts = dict(self._log_starts)
            self._controller.submit(
                lambda context: remove_chunks(context.image, starts),
                self._done,
                name="remove chunks",
            )

    def _done(self, outcome: Any) -> None:
        if not isinstance(outcome, CoordinatorError) and outcome:
            self.removed += outcome
            log.info("action=remove_chunks count=%d", outcome)


def partitions_with_chunks(image: MetadataImage) -> dict[int, list[tuple[UUID, int]]]:
    """Partitions that have inactive chunks, by their coordinator."""
    found: dict[int, list[tuple[UUID, int]]] = {}
    for topic in image.iter_topics():
        for index in topic.chunks:
            found.setdefault(topic.coordinator(index), []).append((topic.topic_id, index))
    return found
