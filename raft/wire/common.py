"""Groups, error codes and sentinels that all modules of the translation share.

Wire sentinels stop here: -1 is `None` inside. A number that cannot be is a `BadRequestError`, and
answered INVALID_REQUEST.

Source: KIP-595; the protocol guide, Error Codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from records.kafka_errors import ErrorCode
from records.types import Epoch, NodeId, Offset

CORE_ERRORS: Final = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,  # the leader is named beside it
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,  # shutting down
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.INVALID_REQUEST,  # contradicts itself, or what this node knows
        ErrorCode.FENCED_LEADER_EPOCH,  # the sender's epoch is old; the newer one is beside it
        ErrorCode.UNKNOWN_LEADER_EPOCH,  # the sender's epoch is ahead of this node's; retry
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,  # too many bytes wait to be committed
        ErrorCode.INCONSISTENT_VOTER_SET,
        ErrorCode.SNAPSHOT_NOT_FOUND,
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        ErrorCode.INVALID_VOTER_KEY,  # (id, directory id) is another disk's
    }
)
"""Error codes that the core answers with; a response with any other one is unexpected."""


NAMES_NODES_FROM: Final = {1: 16, 52: 1, 53: 1, 54: 1, 55: 2, 59: 1}
"""First version, by api key, whose response can name the addresses of nodes."""


class Group(NamedTuple):
    """A replicated partition: its topic by name and id, and its number."""

    topic: str
    partition: int
    topic_id: UUID

    @property
    def name(self) -> str:
        """Return the group's name, `topic-partition`, for its directory, log lines and metrics."""
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
    """Convert a node id of an RPC message, where a negative id means None."""
    return NodeId(node_id) if node_id >= 0 else None


def wire_node(node_id: NodeId | None) -> int:
    """Convert a node id for an RPC message, where -1 means None."""
    return NO_NODE if node_id is None else node_id


def checked_node(node_id: int) -> NodeId:
    """Return a node id from an RPC message unchanged, or raise if it is negative.

    Raises BadRequestError.
    """
    if node_id < 0:
        raise BadRequestError(f"node id {node_id}")
    return NodeId(node_id)


def checked_epoch(epoch: int) -> Epoch:
    """Return an epoch from an RPC message unchanged, or raise if it is negative.

    Raises BadRequestError.
    """
    if epoch < 0:
        raise BadRequestError(f"epoch {epoch}")
    return Epoch(epoch)


def checked_offset(offset: int) -> Offset:
    """Return an offset from an RPC message unchanged, or raise if it is negative.

    Raises BadRequestError.
    """
    if offset < 0:
        raise BadRequestError(f"offset {offset}")
    return Offset(offset)


def only(items: Sequence[T], what: str) -> T:
    """Return the only item of a sequence, or raise if it has none or several.

    Raises BadRequestError if there is another number of items.
    """
    if len(items) != 1:
        raise BadRequestError(f"{len(items)} {what}, exactly one is possible")
    return items[0]


def known_error(error: int, what: str) -> ErrorCode:
    """Return a response's error code, or raise if the Raft core does not support the code.

    Raises UnexpectedAnswerError.
    """
    if error not in CORE_ERRORS:
        raise UnexpectedAnswerError(error, what)
    return ErrorCode(error)
