"""Routes each frame to its handler, and refuses unsupported requests before decoding them.

    routes = Routes()
    routes.add(handlers)
    Listener(routes.handle)

Kafka closes the connection of a client that sends a key or a version that was not announced, and so
does this server, with one line that names the client and the key. The exception is ApiVersions
itself: a request of an unknown version is answered with the supported ones, in version 0.

A request's cost is bounded by its length, before anything is decoded: an array of structures takes
thirty times its bytes in memory and holds up the loop. So a request that carries no
records is refused above `MAX_QUESTION_BYTES`.

Source: KIP-35, KIP-511 (ApiVersions).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping
from typing import Final

from raft.net.connection import Answer, ServerConnection
from raft.net.errors import BadHeaderError
from raft.net.frames import Frame, Payload
from raft.net.handlers import Serve, Served, payload
from raft.net.header import API_VERSIONS_KEY, RequestHeader, parse_request_header
from records.kafka_errors import ErrorCode
from records.rpc import API
from records.rpc.cluster import ApiVersionsResponse

MAX_QUESTION_BYTES: Final = 1024 * 1024
"""The largest request that carries no records."""

MAX_CLIENT_ID: Final = 100  # characters of a client id in a log line


Refuse = Callable[[ServerConnection, RequestHeader, Frame], Payload | None]
"""Returns the response to a request that its peer may not send, or None."""

Around = Callable[[Serve, ServerConnection, RequestHeader, Frame], Answer]
"""Serves a request by its handler, and may look at the request and change the answer."""


def first_flexible(api_key: int) -> int | None:
    """Return the first version of an API with tagged fields, or None if no version has them."""
    flexible = API[api_key].request.schema().flexible
    return flexible.first if flexible.first <= flexible.last else None


class Routes:
    """Handlers by api key; must not change once a listener uses them."""

    def __init__(self, refuse: Refuse | None = None) -> None:
        """Create an empty table of handlers.

        Args:  refuse: returns the response to a request that its peer may not send, or None. It is
               asked before the request is handled.
        """
        self.around: Around | None = None  # serves requests in the place of their handlers
        self._refuse = refuse
        self._served: dict[int, Served] = {}
        self._first_flexible: dict[int, int | None] = {}
        self._large: set[int] = set()
        self._silent: set[int] = set()
        self.requests: Counter[int] = Counter()  # received, by api key

    def add(
        self,
        handlers: Mapping[int, Served],
        *,
        large: Container[int] = (),
        silent: Container[int] = (),
    ) -> None:
        """Register handlers of requests by api key.

        Args:  large: api keys whose handlers limit what they decode.
               silent: api keys that are served and not announced.
        """
        for key, served in handlers.items():
            assert key not in self._served, f"api key {key} is served already"
            self._served[key] = served
            self._first_flexible[key] = first_flexible(key)
            if key in large:
                self._large.add(key)
            if key in silent:
                self._silent.add(key)

    @property
    def served(self) -> Mapping[int, Served]:
        """Return the request handlers by api key."""
        return self._served

    def handle(self, connection: ServerConnection, frame: Frame) -> Answer:
        """Answer one request of a connection, immediately or later through a `Reply`.

        Raises:  NetError or RecordError for a malformed request: the connection is closed.
        """
        header = parse_request_header(frame, self._first_flexible)
        served = self._served[header.api_key]
        if not served.lowest <= header.api_version <= served.highest:
            if header.api_key == API_VERSIONS_KEY:
                return self._versions_unsupported(header)
            raise BadHeaderError(
                f"api key {header.api_key} has no version {header.api_version} here; "
                f"client id {_name_of(header)}"
            )
        if len(frame) > MAX_QUESTION_BYTES and header.api_key not in self._large:
            raise BadHeaderError(
                f"api key {header.api_key} of {len(frame)} bytes, the limit is "
                f"{MAX_QUESTION_BYTES}; client id {_name_of(header)}"
            )
        self.requests[header.api_key] += 1
        body = frame[header.body_at :]
        if self._refuse is not None:
            refusal = self._refuse(connection, header, body)
            if refusal is not None:
                return refusal
        if self.around is not None:
            return self.around(served.serve, connection, header, body)
        return served.serve(connection, header, body)

    def api_keys(self) -> tuple[ApiVersionsResponse.ApiVersion, ...]:
        """Return the entries of an ApiVersions response, ordered by api key."""
        return tuple(
            ApiVersionsResponse.ApiVersion(
                api_key=key, min_version=served.lowest, max_version=served.highest
            )
            for key, served in sorted(self._served.items())
            if key not in self._silent
        )

    def _versions_unsupported(self, header: RequestHeader) -> Answer:
        """Answer an ApiVersions request of an unsupported version with a version 0 response.

        Source: KIP-511.
        """
        message = ApiVersionsResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=self.api_keys()
        )
        return payload(header._replace(api_version=0, flexible=False), message)


def _name_of(header: RequestHeader) -> str:
    return repr(header.client_id)[:MAX_CLIENT_ID]
