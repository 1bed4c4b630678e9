"""Holds the clients of a controller's listeners to their quotas.

    throttling = throttle_clients(controllers, node.routes, settings.values)

A broker throttles its own clients; requests that it forwards do not count again. Here count the
requests that clients send to a controller, by `--bootstrap-controller`: request time, and the
mutations that the controller charges for.

The trap: a quota of all users is one of nodes, too, and a muted node loses its session. With an
authorizer a peer that has CLUSTER_ACTION is a node; without one nobody can be told from a node, so
nobody is throttled.

Source: upstream's ControllerApis; docs/design/security.md#quotas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from coordinator.controller.access import AccessTable, host_of
from coordinator.controller.authorizer import Operation
from coordinator.controller.guards import GUARDS
from coordinator.controller.image import MetadataImage
from diskless.quotas.rates import Windows
from diskless.quotas.throttling import Throttling
from esker.server.controllers import ControllerParts
from esker.server.listener_gate import OPERATIONS
from raft.net.connection import ServerConnection
from raft.net.routes import Routes

OF_CLIENTS: Final = frozenset({*GUARDS, *OPERATIONS})
"""The requests that a client may send to a controller."""


class ControllerImages:
    """A controller's images of the cluster, as `Throttling` reads them."""

    def __init__(self, controllers: ControllerParts) -> None:
        self._controllers = controllers

    @property
    def image(self) -> MetadataImage:
        """Return the newest image."""
        return self._controllers.machine.image

    def on_image(self, callback: Callable[[MetadataImage], None]) -> None:
        """Call `callback` with the present and each later image."""
        self._controllers.listen(callback)

    def image_age_ms(self) -> float | None:
        """Return 0 for an image that has reached the high watermark, or None."""
        return 0.0 if self._controllers.is_image_complete() else None


def throttle_clients(
    controllers: ControllerParts, routes: Routes, values: Mapping[str, Any]
) -> Throttling | None:
    """Throttle the clients of a started node's listeners; do nothing without an authorizer."""
    table = controllers.access
    if table is None:
        return None
    throttling = Throttling(
        ControllerImages(controllers),
        Windows(values["quota.window.num"], values["quota.window.size.seconds"] * 1_000),
        idle_ms=lambda: int(values["connections.max.idle.ms"]),
        counts=lambda connection, key: counts(table, connection, key),
    )
    throttling.watch(routes)
    return throttling


def counts(table: AccessTable, connection: ServerConnection, api_key: int) -> bool:
    """Return whether a request is a client's."""
    if api_key not in OF_CLIENTS:
        return False
    access = table.of(connection.principal, host_of(connection.peer))
    return not access.allows_cluster(Operation.CLUSTER_ACTION, logs=False)
