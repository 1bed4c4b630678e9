"""Registers a quorum node and its listener with the active controller, once per process.

It asks until the answer stands in its own image: whatever was lost on the way, in the end everybody
can read who the controllers are.

Source: KIP-919 (ControllerRegistration); upstream's ControllerRegistrationManager.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final
from uuid import UUID

from coordinator.controller.client import ControllerClient
from coordinator.controller.image import MetadataImage
from coordinator.errors import CoordinatorError
from records.rpc.brokers import ControllerRegistrationRequest, ControllerRegistrationResponse

log = logging.getLogger("esker")

AGAIN_MS: Final = 5_000


def registration(
    node_id: int,
    incarnation_id: UUID,
    listener: tuple[str, str, int],
    features: Mapping[str, tuple[int, int]],
    *,
    protocol: int = 0,
) -> ControllerRegistrationRequest:
    """Build a controller's registration request.

    Args:  listener: name, host and port. protocol: Kafka's number of its security protocol.
    """
    name, host, port = listener
    request = ControllerRegistrationRequest
    return request(
        controller_id=node_id,
        incarnation_id=incarnation_id,
        zk_migration_ready=False,
        listeners=(request.Listener(name=name, host=host, port=port, security_protocol=protocol),),
        features=tuple(
            request.Feature(
                name=feature, min_supported_version=lowest, max_supported_version=highest
            )
            for feature, (lowest, highest) in sorted(features.items())
        ),
    )


class ControllerJoining:
    """Sends the registration again until the cluster log shows it."""

    def __init__(
        self,
        client: Callable[[], ControllerClient],
        request: ControllerRegistrationRequest,
        image: Callable[[], MetadataImage],
    ) -> None:
        """Prepare to register this node's controller if the metadata image lacks it.

        Args:  client: called when a client is first needed.
        """
        self._make = client
        self._client: ControllerClient | None = None
        self._request = request
        self._image = image
        self._asked_ms: int | None = None
        self._task: asyncio.Task[None] | None = None

    def tick(self, now_ms: int) -> None:
        """Send the controller's registration if it is due; `now_ms` is monotonic time."""
        image = self._image()
        if not image.record_count or (self._task is not None and not self._task.done()):
            return
        known = image.controllers.get(self._request.controller_id)
        if known is not None and known.incarnation_id == self._request.incarnation_id:
            return
        if self._asked_ms is None or now_ms - self._asked_ms >= AGAIN_MS:
            self._asked_ms = now_ms
            self._task = asyncio.get_running_loop().create_task(self._ask())

    async def _ask(self) -> None:
        if self._client is None:
            self._client = self._make()
        try:
            answer = await self._client.call(self._request, ControllerRegistrationResponse)
        except CoordinatorError as error:
            log.info("action=register_controller error=%s", error)
            return
        if answer.error_code:
            log.warning(
                "action=register_controller error=%d %s", answer.error_code, answer.error_message
            )

    async def close(self) -> None:
        """Cancel the controller's registration request and send no other."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._client is not None:
            await self._client.close()
