"""The handlers of the controller's requests on the controller listener, by api key.

The active controller answers what changes or describes the cluster; another node answers
NOT_CONTROLLER and names the leader. Only FindCoordinator is answered by every node, from its own
image: the quorum itself knows where a batch coordinator is.

Source: KIP-919 (clients of controllers); KIP-1164 (FindCoordinator, key type 3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final
from uuid import UUID

from coordinator.controller import descriptions
from coordinator.controller.image import MetadataImage
from coordinator.controller.requests import SERVED, Send
from raft.interfaces import ReplicatedLog
from raft.net import Answer, Frame, Reply, RequestHeader, ServerConnection
from raft.net.handlers import Served, payload
from records.codec import decode_message
from records.internal_topics import DISKLESS_METADATA
from records.kafka_errors import ErrorCode
from records.rpc.base import Request, Response
from records.rpc.topics import FindCoordinatorRequest, FindCoordinatorResponse
from records.types import NodeId
from records.uuids import decode_uuid

BATCH: Final = 3  # FindCoordinator's key type
FIRST_BATCH_VERSION: Final = 4
MAX_KEYS: Final = 10_000
FIND_COORDINATOR: Final = 10

Endpoint = tuple[int, str, int]
"""Node id, host, port."""

_Result = FindCoordinatorResponse.Coordinator


class ControllerService:
    """Return the controller's handlers, for a `raft.driver.node_services.NodeService`."""

    def __init__(
        self,
        ask: Callable[[Request, Send, ServerConnection], None],
        *,
        image: Callable[[], MetadataImage],
        find_log: Callable[[str, int], ReplicatedLog | None],
        endpoint: Callable[[int], Endpoint | None],
        node_id: int,
    ) -> None:
        """Create a controller's request handlers from the functions that the handlers call.

        Args:  ask: `Requests.ask` of the current controller, with the request's connection.
               find_log: returns a group's log on this node, by topic and partition.
               endpoint: returns the address of a node of the quorum.
        """
        self._ask = ask
        self._image = image
        self._find_log = find_log
        self._endpoint = endpoint
        self._node_id = node_id

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

            self._ask(message, send, connection)
            return reply

        return serve

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
