"""Access control of a controller's listener: which operation of the cluster each request needs.

    gate = ListenerGate(table, identities)
    refusal = gate.refuse(connection, header, body)      # None: the request may be handled

A request that is not named here is one of nodes, and needs CLUSTER_ACTION. What clients ask of a
controller needs the operation that it needs at a broker; a node with CLUSTER_ACTION may ask it too,
because it reads the same from the log. Requests that change the cluster have guards of their own
(`coordinator.controller.guards`), which look at each part of them.

The trap: a node asks for votes before it has an image. So nodes are super users, as in Kafka.

Source: upstream's ControllerApis; docs/design/security.md#controllers-listeners.
"""

from __future__ import annotations

from typing import Any, Final

from coordinator.batch.calls import CALLS, refuse
from coordinator.controller.access import AccessTable, host_of
from coordinator.controller.authorizer import Operation
from coordinator.controller.guarding import DENIED_CLUSTER
from coordinator.controller.guards import GUARDS
from esker.server.peer_identity import PeerIdentities
from raft.net import Frame, Payload, RequestHeader, ServerConnection
from raft.net.handlers import payload
from records.codec import decode_message
from records.kafka_errors import ErrorCode
from records.rpc import API, topics
from records.rpc.base import Response
from records.schema import zero

FREE: Final = frozenset({17, 18, 36})
"""SaslHandshake, ApiVersions, SaslAuthenticate: asked before there is a principal."""

OPERATIONS: Final = {
    2: Operation.DESCRIBE,  # ListOffsets of the quorum's logs
    10: Operation.DESCRIBE,  # FindCoordinator of batches
    55: Operation.DESCRIBE,  # DescribeQuorum
    60: Operation.ALTER,  # DescribeCluster, as in Kafka
    1105: Operation.DESCRIBE,  # DescribeDisklessTopics
    1106: Operation.DESCRIBE,  # DescribeDisklessObject
    1108: Operation.ALTER,  # ApplyRetention
    1109: Operation.ALTER,  # MarkOrphans
    1112: Operation.DESCRIBE,  # DescribeTopics
    1113: Operation.DESCRIBE,  # DescribeBrokers
    1115: Operation.ALTER,  # AcceptClock
    1118: Operation.DESCRIBE,  # DescribeCleaning
    1119: Operation.DESCRIBE,  # ListDisklessObjects
}
"""What a client needs that has no CLUSTER_ACTION, by api key."""


_CALLS: Final = frozenset(call.api_key for call in CALLS)


class ListenerGate:
    """The access control of one node's controller listeners."""

    def __init__(self, table: AccessTable, identities: PeerIdentities | None = None) -> None:
        """Create the access control of a node's listeners.

        Args:  identities: checks the nodes as which requests speak, or None.
        """
        self._table = table
        self._identities = identities

    def refuse(
        self, connection: ServerConnection, header: RequestHeader, body: Frame
    ) -> Payload | None:
        """Return the response that refuses a request, or None if it may be handled."""
        key = header.api_key
        if key in FREE or key in GUARDS:
            return None
        access = self._table.of(connection.principal, host_of(connection.peer))
        operation = OPERATIONS.get(key)
        if access.allows_cluster(Operation.CLUSTER_ACTION, logs=operation is None):
            return self._refuse_identity(connection, header, body)
        if operation is not None and access.allows_cluster(operation):
            return self._refuse_identity(connection, header, body)
        request = decode_message(API[key].request, body, header.api_version, whole=False)
        return payload(header, refusal_of(key, request))

    def _refuse_identity(
        self, connection: ServerConnection, header: RequestHeader, body: Frame
    ) -> Payload | None:
        """Refuse a request that speaks as another node than its peer."""
        key, identities = header.api_key, self._identities
        if identities is None or not identities.checks(key):
            return None
        request = decode_message(API[key].request, body, header.api_version, whole=False)
        if not identities.refuses(connection, key, request):
            return None
        return payload(header, refusal_of(key, request))


def refusal_of(key: int, request: Any) -> Response:
    """Build the response that refuses a whole request of a controller's listener."""
    code = int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    response = API[key].response
    if key in _CALLS:
        refusal: Response = refuse(request, code, DENIED_CLUSTER)
        return refusal
    if response is topics.FindCoordinatorResponse:
        found = topics.FindCoordinatorResponse.Coordinator
        return topics.FindCoordinatorResponse(
            coordinators=tuple(
                found(key=name, node_id=-1, port=-1, error_code=code, error_message=DENIED_CLUSTER)
                for name in request.coordinator_keys
            ),
        )
    values: dict[str, Any] = {
        field.name: zero(field.type) for field in response.schema().fields if field.required
    }
    names = {field.name for field in response.schema().fields}
    if "error_code" in names:
        values["error_code"] = code
    if "error_message" in names:
        values["error_message"] = DENIED_CLUSTER
    return response(**values)
