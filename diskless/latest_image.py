"""Holds the newest cluster image: notifies callbacks, and wakes tasks that wait for a condition.

Implements the image part of `diskless.cluster.Cluster`; a subclass that observes the cluster's log,
with or without a network, calls `_publish` with each new image. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from coordinator.controller.image import MetadataImage


class LatestImage:
    """The newest cluster image, with callbacks and waiting tasks."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._callbacks: list[Callable[[MetadataImage], None]] = []
        self._waiting: list[
            tuple[Callable[[MetadataImage], bool], asyncio.Future[MetadataImage]]
        ] = []

    @property
    def image(self) -> MetadataImage:
        """Return the newest image of the cluster's metadata."""
        return self._image

    def on_image(self, callback: Callable[[MetadataImage], None]) -> None:
        """Register a callback that gets each newer image of the cluster's metadata."""
        self._callbacks.append(callback)

    async def image_where(
        self, holds: Callable[[MetadataImage], bool], timeout_s: float
    ) -> MetadataImage | None:
        """Wait for a cluster image that satisfies `holds`; return None at the timeout."""
        if holds(self._image):
            return self._image
        future: asyncio.Future[MetadataImage] = asyncio.get_running_loop().create_future()
        self._waiting.append((holds, future))
        try:
            return await asyncio.wait_for(future, max(0.0, timeout_s))
        except TimeoutError:
            return None
        finally:
            self._waiting = [waiter for waiter in self._waiting if waiter[1] is not future]

    def _publish(self, image: MetadataImage) -> None:
        """Call all callbacks with a newer cluster image; wake waiters whose condition is met."""
        self._image = image
        for callback in self._callbacks:
            callback(image)
        for holds, future in tuple(self._waiting):
            if not future.done() and holds(image):
                future.set_result(image)
