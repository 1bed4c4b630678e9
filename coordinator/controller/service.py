"""The handlers of the controller's requests on the controller listener, by api key.

The active controller answers what changes or describes the cluster; another node answers
NOT_CONTROLLER and names the leader. Only FindCoordinator is answered by every node, from its own
image: the quorum itself knows where a batch coordinator is.

A broker forwards its clients' requests in an Envelope, with the client's principal. The controller
decides by that principal what the client may do.

Source: KIP-590 (Envelope); KIP-919 (clients of controllers); KIP-1164 (FindCoordinator).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final
from uuid import UUID

from coordinator.controller import descriptions
from coordinator.controller.access import AccessTable, Client, host_of
from coordinator.controller.client import error_codes
from coordinator.controller.decide.context import Charge
from coordinator.controller.envelope import unwrap
from coordinator.controller.errors import RefusedError
from coordinator.controller.guarding import Asked
from coordinator.controller.guards import DESCRIBE_CONFIGS, GUARDS
from coordinator.controller.image import MetadataImage
from coordinator.controller.mutation_quotas import MutationQuotas
from coordinator.controller.refusals import refuse
from coordinator.controller.requests import SERVED, Send
from raft.interfaces import ReplicatedLog
from raft.net import Answer, Frame, Reply, RequestHeader, ServerConnection
from raft.net.handlers import Served, payload
from raft.net.routes import first_flexible
from records.codec import decode_message
from records.errors import RecordError
from records.internal_topics import DISKLESS_METADATA
from records.kafka_errors import ErrorCode
from records.rpc.base import Request, Response
from records.rpc.security import EnvelopeRequest, EnvelopeResponse
from records.rpc.topics import FindCoordinatorRequest, FindCoordinatorResponse
from records.types import NodeId
from records.uuids import decode_uuid

BATCH: Final = 3  # FindCoordinator's key type
FIRST_BATCH_VERSION: Final = 4
MAX_KEYS: Final = 10_000
FIND_COORDINATOR: Final = 10

ENVELOPE: Final = 58
OF_ACLS: Final = frozenset({30, 31})  # CreateAcls, DeleteAcls

log = logging.getLogger("coordinator.controller")

_KINDS: Final = {kind.number(): kind for kind in SERVED}
FORWARDABLE: Final = {
    key: first_flexible(key) for key in GUARDS if key in _KINDS and key != DESCRIBE_CONFIGS
}
"""The requests of clients that brokers forward, each with the first version with tagged fields."""

Endpoint = tuple[int, str, int]
"""Node id, host, port."""

_Result = FindCoordinatorResponse.Coordinator


class ControllerService:
    """Return the controller's handlers, for a `raft.driver.node_services.NodeService`."""

    def __init__(
        self,
        ask: Callable[[Request, Send, ServerConnection, Charge | None], None],
        *,
        image: Callable[[], MetadataImage],
        find_log: Callable[[str, int], ReplicatedLog | None],
        endpoint: Callable[[int], Endpoint | None],
        node_id: int,
        access: AccessTable | None = None,
        mutations: MutationQuotas | None = None,
    ) -> None:
        """Create a controller's request handlers from the functions that the handlers call.

        Args:  ask: `Requests.ask` of the current controller, with the request's connection.
               find_log: returns a group's log on this node, by topic and partition.
               endpoint: returns the address of a node of the quorum.
               access: what clients may do; None: everything.
               mutations: quotas of created and deleted partitions; None: there are none.
        """
        self._ask = ask
        self._image = image
        self._find_log = find_log
        self._endpoint = endpoint
        self._node_id = node_id
        self._access = access
        self._mutations = mutations

    @property
    def handlers(self) -> Mapping[int, Served]:
        """Return the controller's request handlers by api key."""
        table: dict[int, Served] = {}
        for message in SERVED:
            schema = message.schema()
            assert schema.key is not None
            lowest, highest = schema.versions
            table[schema.key] = Served(lowest, highest, self._serve(message))
        versions = FindCoordinatorRequest.schema().versions
        table[FIND_COORDINATOR] = Served(FIRST_BATCH_VERSION, versions.last, self._find)
        table[ENVELOPE] = Served(*EnvelopeRequest.schema().versions, self._open_envelope)
        table.update(descriptions.handlers(self._image))
        return table

    def _serve(
        self, kind: type[Request]
    ) -> Callable[[ServerConnection, RequestHeader, Frame], Answer]:
        def serve(connection: ServerConnection, header: RequestHeader, body: Frame) -> Answer:
            message = decode_message(kind, body, header.api_version)
            reply = Reply(connection)

            def send(response: Response) -> None:
                reply.send(payload(header, response))

            client = Client(
                connection.principal,
                host_of(connection.peer),
                header.client_id or "",
                header.api_version,
            )
            self._handle(message, header.api_version, client, send, connection)
            return reply

        return serve

    def _handle(
        self,
        request: Request,
        version: int,
        client: Client,
        send: Send,
        connection: ServerConnection,
    ) -> None:
        """Pass on the part of a request that the client may ask for, and send the response."""
        key = request.schema().key
        charge = None if self._mutations is None else self._mutations.charge_of(key or 0, client)
        if self._access is None:
            if key in OF_ACLS:
                send(refuse(request, ErrorCode.SECURITY_DISABLED, "No Authorizer is configured."))
            else:
                self._ask(request, send, connection, charge)
            return
        guard = GUARDS.get(key or 0)
        access = self._access.of(client.principal, client.host)
        asked = Asked(access, version, self._image())
        guarded = None if guard is None else guard(request, asked)
        if guarded is None:
            self._ask(request, send, connection, charge)
        elif guarded.request is None:
            send(guarded.finish(None))
        else:
            finish = guarded.finish
            self._ask(guarded.request, lambda response: send(finish(response)), connection, charge)

    def _open_envelope(
        self, connection: ServerConnection, header: RequestHeader, body: Frame
    ) -> Answer:
        """Answer the request of a client that a broker forwards, by the client's rights."""
        reply = Reply(connection)

        def refuse_envelope(code: ErrorCode) -> None:
            reply.send(payload(header, EnvelopeResponse(error_code=int(code))))

        envelope = decode_message(EnvelopeRequest, body, header.api_version)
        try:
            forwarded = unwrap(envelope, FORWARDABLE)
            inner = forwarded.header
            kind = _KINDS[inner.api_key]
            if inner.api_version not in kind.schema().versions:
                raise RefusedError(ErrorCode.UNSUPPORTED_VERSION, f"version {inner.api_version}")
            request = decode_message(kind, forwarded.body, inner.api_version)
        except (RefusedError, RecordError) as error:
            log.warning("request=envelope peer=%s error=%r", connection.peer, str(error)[:500])
            refuse_envelope(
                error.code if isinstance(error, RefusedError) else ErrorCode.UNSUPPORTED_VERSION
            )
            return reply

        def send(response: Response) -> None:
            if ErrorCode.NOT_CONTROLLER in error_codes(response):
                refuse_envelope(ErrorCode.NOT_CONTROLLER)
                return
            data = b"".join(payload(inner, response))
            reply.send(payload(header, EnvelopeResponse(error_code=0, response_data=data)))

        self._handle(request, inner.api_version, forwarded.client, send, connection)
        return reply

    def _find(
        self,
        connection: ServerConnection,  # noqa: ARG002 (a handler's)
        header: RequestHeader,
        body: Frame,
    ) -> Answer:
        message = decode_message(FindCoordinatorRequest, body, header.api_version)
        return payload(header, self.find_coordinators(message))

    def find_coordinators(self, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        """Return the node of each batch coordinator's key, or an error for other keys."""
        keys = request.coordinator_keys
        text = f"{len(keys)} keys; at most {MAX_KEYS} are allowed in one request."
        found = [self._find_coordinator(request.key_type, key) for key in keys[:MAX_KEYS]]
        left = [_not_found(key, ErrorCode.INVALID_REQUEST, text) for key in keys[MAX_KEYS:]]
        return FindCoordinatorResponse(coordinators=(*found, *left))

    def _find_coordinator(self, key_type: int, key: str) -> _Result:
        if key_type != BATCH:
            text = f"The quorum knows batch coordinators (key type 3), not key type {key_type}."
            return _not_found(key, ErrorCode.INVALID_REQUEST, text)
        named = parse_batch_key(key)
        if named is None:
            text = "A key is read:topicId:partition or write:topicId:partition."
            return _not_found(key, ErrorCode.INVALID_REQUEST, text)
        operation, topic_id, index = named
        topic = self._image().topics.get(topic_id)
        if topic is None or index not in topic.partitions:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return _not_found(key, code, f"There is no partition {index} of {topic_id}.")
        log = self._find_log(DISKLESS_METADATA, topic.coordinator(index))
        node_id = None if log is None else log.leader_id
        if operation == "read" and log is not None:
            node_id = NodeId(self._node_id)  # every node of the quorum has the coordinators' state
        endpoint = None if node_id is None else self._endpoint(node_id)
        if endpoint is None:
            text = f"{DISKLESS_METADATA}-{topic.coordinator(index)} has no leader."
            return _not_found(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
        return _Result(
            key=key, node_id=endpoint[0], host=endpoint[1], port=endpoint[2], error_message=None
        )


def _not_found(key: str, code: ErrorCode, message: str) -> _Result:
    return _Result(key=key, node_id=-1, port=-1, error_code=code, error_message=message)


def parse_batch_key(key: str) -> tuple[str, UUID, int] | None:
    """Parse KIP-1164's coordinator key into type, topic id and partition; None if invalid.

    The id is in Kafka's form (base 64) or the usual one.

    >>> parse_batch_key("write:00000000-0000-0000-0000-000000000007:3")
    ('write', UUID('00000000-0000-0000-0000-000000000007'), 3)
    """
    operation, _, rest = key[:200].partition(":")
    text, _, number = rest.rpartition(":")
    if operation not in ("read", "write") or not number.isascii() or not number.isdigit():
        return None
    try:
        topic_id = decode_uuid(text) if len(text) == _BASE64_LENGTH else UUID(text)
    except ValueError:
        return None
    return operation, topic_id, int(number)


_BASE64_LENGTH: Final = 22
