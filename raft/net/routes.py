"""From a frame to whoever answers it: what is served, and what is refused before it is decoded.

    routes = Routes()
    routes.add(handlers)
    Listener(routes.handle)

Kafka closes the connection of a client that asks for a key or a version that was not announced, and
so do we, with one line that names the client and the key. The exception is ApiVersions itself: who
asks in a version of the future is told, in the oldest form, which there are.

How much a request may cost is decided by its length, before anything is decoded: an array of
structures takes thirty times its bytes in memory and holds the loop. So a request that carries no
records is refused above `MAX_QUESTION_BYTES`.

Source: KIP-35, KIP-511 (ApiVersions).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from typing import Final

from raft.net.connection import Answer, ServerConnection
from raft.net.errors import BadHeaderError
from raft.net.frames import Frame
from raft.net.handlers import Served, payload
from raft.net.header import API_VERSIONS_KEY, RequestHeader, parse_request_header
from records.kafka_errors import ErrorCode
from records.rpc import API
from records.rpc.cluster import ApiVersionsResponse

MAX_QUESTION_BYTES: Final = 1024 * 1024
"""Of a request that carries no records."""

MAX_NAMED: Final = 100  # characters of a client's own words in a line of ours


def first_flexible(api_key: int) -> int | None:
    """The first version of an api with tagged fields; None if it has none."""
    flexible = API[api_key].request.schema().flexible
    return flexible.first if flexible.first <= flexible.last else None


class Routes:
    """See the module. Not changed any more once a listener uses it."""

    def __init__(self) -> None:
        self._served: dict[int, Served] = {}
        self._first_flexible: dict[int, int | None] = {}
        self._large: set[int] = set()
        self.requests: Counter[int] = Counter()  # that came, by api key

    def add(self, handlers: Mapping[int, Served], *, large: Container[int] = ()) -> None:
        """More requests; `large` ones bound by themselves what they decode."""
        for key, served in handlers.items():
            assert key not in self._served, f"api key {key} is served already"
            self._served[key] = served
            self._first_flexible[key] = first_flexible(key)
            if key in large:
                self._large.add(key)

    @property
    def served(self) -> Mapping[int, Served]:
        """By api key."""
        return self._served

    def handle(self, connection: ServerConnection, frame: Frame) -> Answer:
        """Answer one request, or promise to: a listener's handler.

        Raises:  NetError or RecordError for bytes that are no request: the connection is closed.
        """
        header = parse_request_header(frame, self._first_flexible)
        served = self._served[header.api_key]
        if not served.lowest <= header.api_version <= served.highest:
            if header.api_key == API_VERSIONS_KEY:
                return self._versions_unsupported(header)
            raise BadHeaderError(
                f"api key {header.api_key} has no version {header.api_version} here; "
                f"client id {_named(header)}"
            )
        if len(frame) > MAX_QUESTION_BYTES and header.api_key not in self._large:
            raise BadHeaderError(
                f"api key {header.api_key} of {len(frame)} bytes, the limit is "
                f"{MAX_QUESTION_BYTES}; client id {_named(header)}"
            )
        self.requests[header.api_key] += 1
        return served.serve(connection, header, frame[header.body_at :])

    def api_keys(self) -> tuple[ApiVersionsResponse.ApiVersion, ...]:
        """What ApiVersions announces, by rising key."""
        return tuple(
            ApiVersionsResponse.ApiVersion(
                api_key=key, min_version=served.lowest, max_version=served.highest
            )
            for key, served in sorted(self._served.items())
        )

    def _versions_unsupported(self, header: RequestHeader) -> Answer:
        """Too new for us: say what we know, in the form that everybody reads. Source: KIP-511."""
        message = ApiVersionsResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=self.api_keys()
        )
        return payload(header._replace(api_version=0, flexible=False), message)


def _named(header: RequestHeader) -> str:
    return repr(header.client_id)[:MAX_NAMED]
