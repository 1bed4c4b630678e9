"""An unanswered inbound request: its header, and the reply that keeps its answer's order."""

from __future__ import annotations

from typing import NamedTuple

from raft.driver.snapshot_serving import PartitionSlot
from raft.net import Reply, RequestHeader
from raft.net.handlers import payload
from raft.wire.common import NAMES_NODES_FROM
from raft.wire.fetch import FetchForm
from records.rpc.base import Response


class InboundRequest(NamedTuple):
    """An unanswered request, with everything needed to encode and send its answer."""

    header: RequestHeader
    reply: Reply
    form: FetchForm | None = None  # of a Fetch: how it named its topic
    slot: PartitionSlot | None = None  # of a FetchSnapshot: its partition of the whole request
    from_voter: bool = False  # of a Fetch: its high watermark is not urgent to a voter

    @property
    def names_nodes(self) -> bool:
        """Return whether the response to this request's version has fields for node endpoints."""
        return self.header.api_version >= NAMES_NODES_FROM[self.header.api_key]

    def answer(self, message: Response) -> None:
        """Send the response, encoded at the request's version."""
        self.reply.send(payload(self.header, message))
