"""Builds the refusal of any request."""

from __future__ import annotations

from typing import Final

from raft.core import messages
from raft.core.messages import Request, Response
from records.kafka_errors import ErrorCode
from records.types import Epoch, NodeId

_RESPONSES: Final[dict[type[Request], type[Response]]] = {
    messages.FetchRequest: messages.FetchResponse,
    messages.VoteRequest: messages.VoteResponse,
    messages.BeginQuorumEpochRequest: messages.BeginQuorumEpochResponse,
    messages.EndQuorumEpochRequest: messages.EndQuorumEpochResponse,
    messages.FetchSnapshotRequest: messages.FetchSnapshotResponse,
    messages.DescribeQuorumRequest: messages.DescribeQuorumResponse,
}


def refusal(request: Request, error: ErrorCode, leader_id: NodeId | None, epoch: Epoch) -> Response:
    """Build the response that refuses a request with `error`, including leader and epoch."""
    return _RESPONSES[type(request)](error=error, leader_id=leader_id, epoch=epoch)
