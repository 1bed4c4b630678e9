"""A request that came in and its answer's way out: header, version and place in the order."""

from __future__ import annotations

from typing import NamedTuple

from raft.driver.snapshot_serving import Slot
from raft.net import Reply, RequestHeader
from raft.net.handlers import payload
from raft.wire.common import NAMES_NODES_FROM
from raft.wire.fetch import FetchForm
from records.rpc.base import Response


class Asked(NamedTuple):
    """An unanswered request: enough to encode its answer."""

    header: RequestHeader
    reply: Reply
    form: FetchForm | None = None  # of a Fetch: how it named its topic
    slot: Slot | None = None  # of a FetchSnapshot: which partition of which question
    from_voter: bool = False  # of a Fetch: nobody asks a follower's state what is committed

    @property
    def names_nodes(self) -> bool:
        """Can its answer say where nodes listen?"""
        return self.header.api_version >= NAMES_NODES_FROM[self.header.api_key]

    def answer(self, message: Response) -> None:
        """Send the answer, at the request's version."""
        self.reply.send(payload(self.header, message))
