"""Routes a client listener's requests to their handlers, and answers ApiVersions.

    dispatcher = Dispatcher(handlers, cluster=cluster, listener_name="PLAINTEXT")
    listener = Listener(dispatcher.handle, name="PLAINTEXT")

ApiVersions announces the same table that requests are looked up in, without client telemetry. A
request with a key or a version that is not in the table closes its connection, and one log line
names client and key, as in Kafka; so do a TLS hello and an HTTP request, which the transport
recognises by their first bytes.

Source: KIP-35, KIP-511 (ApiVersions), KIP-584 (features in it).
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Container, Mapping
from typing import Final

from diskless.apis.handler import RequestContext, make_handler
from diskless.cluster import Cluster
from raft.net import API_VERSIONS_KEY
from raft.net.handlers import Served
from raft.net.routes import Routes
from records.features import SUPPORTED
from records.kafka_errors import ErrorCode
from records.rpc.cluster import ApiVersionsRequest, ApiVersionsResponse

log = logging.getLogger("diskless.dispatch")

FIRST_NAMED_VERSION: Final = 3  # of ApiVersions: clients say what they are
ZERO_POSSIBLE_VERSION: Final = 4  # a feature's lowest level can be 0. Source: KAFKA-17011
SILENT: Final = frozenset({71, 72})
"""Client telemetry: answered, and not announced, so that clients offer no metrics. As in Kafka."""

MAX_CLIENT_KINDS: Final = 200  # counted apart; clients choose these names
OTHERS: Final = ("others", "")

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]{0,198}[a-zA-Z0-9])?")


class Dispatcher:
    """Serves one client listener. Belongs to the event loop."""

    def __init__(
        self,
        handlers: Mapping[int, Served],
        *,
        cluster: Cluster,
        listener_name: str,
        large: Container[int] = (),
        features: Mapping[str, tuple[int, int]] = SUPPORTED,
    ) -> None:
        """Create a dispatcher that announces the APIs of `handlers` and routes requests to them.

        Args:  large: api keys whose handlers bound what they decode; requests of all others are
                   refused above 1 MiB.
               features: the features that this broker supports: lowest and highest level, both
                   inclusive.
        """
        self.listener_name = listener_name
        self.clients: Counter[tuple[str, str]] = Counter()  # requests by software and version
        self._cluster = cluster
        self._features = features
        self._routes = Routes()
        self._routes.add(handlers, large=large, silent=SILENT)
        self._routes.add({API_VERSIONS_KEY: make_handler(ApiVersionsRequest, self._api_versions)})
        self.handle = self._routes.handle  # the listener's handler

    @property
    def routes(self) -> Routes:
        """Return the table of this listener's requests."""
        return self._routes

    @property
    def served(self) -> Mapping[int, Served]:
        """Return the handlers of the announced requests, by api key."""
        return self._routes.served

    @property
    def requests(self) -> Counter[int]:
        """Return the number of requests received, by api key."""
        return self._routes.requests

    def _api_versions(
        self, request: ApiVersionsRequest, context: RequestContext
    ) -> ApiVersionsResponse:
        if context.version >= FIRST_NAMED_VERSION and not self._note(request, context):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=())
        response = ApiVersionsResponse
        zero_possible = context.version >= ZERO_POSSIBLE_VERSION
        return response(
            api_keys=self._routes.api_keys(),
            supported_features=tuple(
                response.SupportedFeatureKey(name=name, min_version=low, max_version=high)
                for name, (low, high) in sorted(self._features.items())
                if low > 0 or zero_possible
            ),
            finalized_features_epoch=self._cluster.metadata_offset(),
            finalized_features=tuple(
                response.FinalizedFeatureKey(
                    name=name, max_version_level=level, min_version_level=level
                )
                for name, level in self._cluster.image.features.finalized.items()
            ),
        )

    def _note(self, request: ApiVersionsRequest, context: RequestContext) -> bool:
        """Count the client's software name and version; return False if either is malformed.

        Defined by KIP-511.
        """
        kind = (request.client_software_name, request.client_software_version)
        if not all(_SOFTWARE.fullmatch(text) for text in kind):
            return False
        if kind not in self.clients and len(self.clients) >= MAX_CLIENT_KINDS:
            kind = OTHERS
        if kind not in self.clients:
            log.info(
                "listener=%s peer=%s client_id=%r software=%s version=%s",
                self.listener_name, context.peer, (context.client_id or "")[:100], *kind,
            )  # fmt: skip
        self.clients[kind] += 1
        return True
