"""Groups, error codes and sentinels that all modules of the translation share.

Wire sentinels stop here: -1 is `None` inside. A number that cannot be is a `BadRequestError`, and
answered INVALID_REQUEST.

Source: KIP-595; the protocol guide, Error Codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from raft.core.errors import ErrorCode
from records.types import Epoch, NodeId, Offset


class WireError(IntEnum):
    """Error codes that the driver answers with and the core has no use for."""

    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    MESSAGE_TOO_LARGE = 10
    INVALID_REQUIRED_ACKS = 21
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    KAFKA_STORAGE_ERROR = 56
    FETCH_SESSION_ID_NOT_FOUND = 70
    OFFSET_NOT_AVAILABLE = 78
    INVALID_RECORD = 87
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115


NAMES_NODES_FROM: Final = {1: 16, 52: 1, 53: 1, 54: 1, 55: 2, 59: 1}
"""By api key: the first version whose answer can say where nodes listen."""


class Group(NamedTuple):
    """A replicated partition: its topic by name and id, and its number."""

    topic: str
    partition: int
    topic_id: UUID

    @property
    def name(self) -> str:
        """`topic-partition`: the directory's name, and how log lines and metrics call it."""
        return f"{self.topic}-{self.partition}"


class GroupRef(NamedTuple):
    """A group as a request names it: by topic name, or (Fetch from version 13) by id."""

    topic: str | UUID
    partition: int


class BadRequestError(Exception):
    """A request that decodes but says nothing possible: answered INVALID_REQUEST."""


class UnexpectedAnswerError(Exception):
    """An answer with an error that the core does not know, or not about our group."""

    def __init__(self, error: int, what: str) -> None:
        super().__init__(f"{what}: error {error}")
        self.error = error


T = TypeVar("T")

NO_NODE: Final = -1


def optional_node(node_id: int) -> NodeId | None:
    """Return None for -1 or any negative number, else the node id."""
    return NodeId(node_id) if node_id >= 0 else None


def wire_node(node_id: NodeId | None) -> int:
    """Return -1 for None, else the node id."""
    return NO_NODE if node_id is None else node_id


def checked_node(node_id: int) -> NodeId:
    """Return a node id that may not be negative. Raises BadRequestError."""
    if node_id < 0:
        raise BadRequestError(f"node id {node_id}")
    return NodeId(node_id)


def checked_epoch(epoch: int) -> Epoch:
    """Raises BadRequestError."""
    if epoch < 0:
        raise BadRequestError(f"epoch {epoch}")
    return Epoch(epoch)


def checked_offset(offset: int) -> Offset:
    """Raises BadRequestError."""
    if offset < 0:
        raise BadRequestError(f"offset {offset}")
    return Offset(offset)


def only(items: Sequence[T], what: str) -> T:
    """Return the only item. Raises BadRequestError if there is another number of items."""
    if len(items) != 1:
        raise BadRequestError(f"{len(items)} {what}, exactly one is possible")
    return items[0]


def known_error(error: int, what: str) -> ErrorCode:
    """Return the core's error code for a wire error. Raises UnexpectedAnswerError."""
    try:
        return ErrorCode(error)
    except ValueError:
        raise UnexpectedAnswerError(error, what) from None
