"""One refusal for every kind of request, naming the leader and epoch the refuser believes in."""

from __future__ import annotations

from typing import assert_never

from raft.core.errors import ErrorCode
from raft.core.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
)
from records.types import Epoch, NodeId


def refusal(request: Request, error: ErrorCode, leader_id: NodeId | None, epoch: Epoch) -> Response:
    """The answer that says `error` to this request."""
    match request:
        case FetchRequest():
            return FetchResponse(error=error, leader_id=leader_id, epoch=epoch)
        case VoteRequest():
            return VoteResponse(error=error, leader_id=leader_id, epoch=epoch)
        case BeginQuorumEpochRequest():
            return BeginQuorumEpochResponse(error=error, leader_id=leader_id, epoch=epoch)
        case EndQuorumEpochRequest():
            return EndQuorumEpochResponse(error=error, leader_id=leader_id, epoch=epoch)
        case FetchSnapshotRequest():
            return FetchSnapshotResponse(error=error, leader_id=leader_id, epoch=epoch)
        case DescribeQuorumRequest():
            return DescribeQuorumResponse(error=error, leader_id=leader_id, epoch=epoch)
        case _:
            assert_never(request)
