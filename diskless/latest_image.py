"""The newest image of the cluster that a broker has: who hears of each, and who waits for one.

Half of what `diskless.cluster.Cluster` promises of the image; who observes the cluster's log, with
or without a network, says `_show` and inherits the rest. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from coordinator.controller.image import MetadataImage


class LatestImage:
    """See the module."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._told: list[Callable[[MetadataImage], None]] = []
        self._waiting: list[
            tuple[Callable[[MetadataImage], bool], asyncio.Future[MetadataImage]]
        ] = []

    @property
    def image(self) -> MetadataImage:
        """See Cluster."""
        return self._image

    def on_image(self, callback: Callable[[MetadataImage], None]) -> None:
        """See Cluster."""
        self._told.append(callback)

    async def image_where(
        self, holds: Callable[[MetadataImage], bool], timeout_s: float
    ) -> MetadataImage | None:
        """See Cluster."""
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

    def _show(self, image: MetadataImage) -> None:
        """A newer one is there: tell everybody, then wake whom it is enough for."""
        self._image = image
        for callback in self._told:
            callback(image)
        for holds, future in tuple(self._waiting):
            if not future.done() and holds(image):
                future.set_result(image)
