"""A request that came in and its answer's way out: header, version and place in the order."""

from __future__ import annotations

from typing import NamedTuple

from raft.net import Buffer, Reply, RequestHeader, response_header
from raft.wire_fetch import FetchForm
from records.codec import encode_parts
from records.rpc.base import Response

API_VERSIONS_KEY = 18


class Asked(NamedTuple):
    """An unanswered request: enough to encode its answer."""

    header: RequestHeader
    reply: Reply
    form: FetchForm | None = None  # of a Fetch: how it named its topic
    message: object = None  # of a FetchSnapshot: the request as it came

    def answer(self, message: Response) -> None:
        """Send the answer, at the request's version."""
        self.reply.send(payload(self.header, message))


def payload(header: RequestHeader, message: Response) -> tuple[Buffer, ...]:
    """A response, header and body, as buffers; record bytes in it are not copied."""
    flexible = header.flexible and header.api_key != API_VERSIONS_KEY
    head = response_header(header.correlation_id, flexible=flexible)
    return (head, *encode_parts(message, header.api_version))
