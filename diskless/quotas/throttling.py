"""Holds a broker's clients to their quotas: measures, says so in the answer, and mutes.

    throttling = Throttling(cluster, windows, idle_ms=...)
    throttling.watch(routes)        # asked for each request while there are quotas

A request that exceeds a quota is carried out and answered at once, with `throttle_time_ms`; then
its connection is not read for that time. Only a Fetch gives nothing: its answer is replaced by an
empty one, and its bytes do not count, since the client asks for them again.

Without quotas `Routes` serves requests by itself, and a client without one costs a look-up. A
handler knows nothing of quotas: its encoded answer is decoded again if it must be changed.

Source: KIP-13, KIP-219; upstream's KafkaApis and ClientQuotaManager;
docs/design/security.md#quotas.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import msgspec

from coordinator.controller.image import MetadataImage
from diskless.cluster import Cluster
from diskless.quotas.clients import Bucket, ClientQuotas
from diskless.quotas.muting import Muting
from diskless.quotas.rates import Windows
from raft.net import API_VERSIONS_KEY, Answer, Frame, Payload, Reply, RequestHeader
from raft.net.connection import ServerConnection
from raft.net.handlers import Serve, payload
from raft.net.routes import Routes
from records.codec import decode_message
from records.rpc import API
from records.rpc.fetch import FetchResponse

PRODUCE, FETCH = 0, 1  # api keys
RECHECK_S: Final = 0.1  # until an image is complete, whose quotas are taken then
MAX_FETCH_BYTES: Final = 2**31 - 1

Measure = Callable[[Payload | None], Payload | None]
"""Measures an answer, and returns it or what is sent in its place."""


class Throttling:
    """The quotas of one broker's clients. Belongs to the event loop."""

    def __init__(self, cluster: Cluster, windows: Windows, *, idle_ms: Callable[[], int]) -> None:
        """Create the throttling of a broker, which begins with the first quota.

        Args:  idle_ms: returns how long a connection may be idle.
        """
        self.muting = Muting(idle_ms)
        self.throttled: Counter[str] = Counter()  # answers, by type of quota
        self.throttle_ms: Counter[str] = Counter()  # the same as their time
        self.clients = ClientQuotas(windows)
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        self._quotas: object = None  # the map that `clients` has taken
        self._has_quotas = False
        self._routes: list[Routes] = []
        self._recheck: asyncio.TimerHandle | None = None
        cluster.on_image(self._on_image)
        self._on_image(cluster.image)

    def watch(self, routes: Routes) -> None:
        """Hold the clients of a listener to their quotas."""
        self._routes.append(routes)
        routes.around = self.serve if self._has_quotas else None

    def close(self) -> None:
        """Look at no further image."""
        if self._recheck is not None:
            self._recheck.cancel()

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1_000)

    def _on_image(self, image: MetadataImage) -> None:
        """Take the quotas of a complete image.

        A replica that begins anew has an image without quotas, which must not free the clients.
        """
        quotas = image.security.quotas
        if quotas is self._quotas:
            return
        if self._recheck is not None:
            self._recheck.cancel()
            self._recheck = None
        if self._cluster.image_age_ms() is None:
            self._recheck = self._loop.call_later(
                RECHECK_S, lambda: self._on_image(self._cluster.image)
            )
            return
        self._quotas = quotas
        self.clients.take(quotas.values())
        self._has_quotas = bool(quotas)
        for routes in self._routes:
            routes.around = self.serve if self._has_quotas else None

    # --- requests -------------------------------------------------------------------------------

    def serve(
        self, handle: Serve, connection: ServerConnection, header: RequestHeader, body: Frame
    ) -> Answer:
        """Serve a request, and measure its answer if its client has a quota."""
        user, client_id = connection.principal.name, header.client_id or ""
        client = self.clients.of(user, client_id, self._now_ms())
        measure: Measure | None = None
        if client is not None:
            if header.api_key == PRODUCE and client.produce is not None:
                size = header.body_at + len(body)
                measure = self._produced(client.produce, connection, header, size)
            elif header.api_key == FETCH and client.fetch is not None:
                measure = self._fetched(client.fetch, connection, header)
        answer = handle(connection, header, body)
        return answer if measure is None else _measured(answer, connection, measure)

    def fetch_limit(self, connection: ServerConnection, client_id: str | None) -> int | None:
        """Return the most bytes that a client's quota ever allows at once, or None for no quota."""
        if not self._has_quotas:
            return None
        client = self.clients.of(connection.principal.name, client_id or "", self._now_ms())
        if client is None or client.fetch is None:
            return None
        windows = self.clients.windows
        most = client.fetch.limit * (windows.samples - 1) * windows.size_ms / 1_000
        return int(min(most, MAX_FETCH_BYTES))

    def _produced(
        self, bucket: Bucket, connection: ServerConnection, header: RequestHeader, size: int
    ) -> Measure:
        def measure(answer: Payload | None) -> Payload | None:
            throttle_ms = bucket.take(size, self._now_ms())
            if not throttle_ms:
                return answer
            self._throttle("Produce", connection, throttle_ms)
            return None if answer is None else with_throttle_time(header, answer, throttle_ms)

        return measure

    def _fetched(
        self, bucket: Bucket, connection: ServerConnection, header: RequestHeader
    ) -> Measure:
        def measure(answer: Payload | None) -> Payload | None:
            size, now_ms = size_of(answer), self._now_ms()
            throttle_ms = bucket.take(size, now_ms)
            if not throttle_ms:
                return answer
            bucket.rate.record(-size, now_ms)
            self._throttle("Fetch", connection, throttle_ms)
            return payload(header, FetchResponse(throttle_time_ms=throttle_ms, responses=()))

        return measure

    def _throttle(self, kind: str, connection: ServerConnection, throttle_ms: int) -> None:
        self.throttled[kind] += 1
        self.throttle_ms[kind] += throttle_ms
        self.muting.mute(connection, throttle_ms)


def _measured(answer: Answer, connection: ServerConnection, measure: Measure) -> Answer:
    """Return an answer that is measured when it is sent."""
    if answer is None:
        measure(None)
        return None
    if isinstance(answer, Reply):
        answer.on_send(measure)
        return answer
    reply = Reply(connection)  # not bytes: after an answer at once the next request is served
    reply.on_send(measure)
    assert isinstance(answer, bytes | bytearray | memoryview | tuple | list), f"{type(answer)}"
    reply.send(answer)
    return reply


def size_of(answer: Payload | None) -> int:
    """Return the size of an answer in bytes."""
    if answer is None:
        return 0
    return sum(map(len, answer)) if isinstance(answer, tuple | list) else len(answer)


def with_throttle_time(header: RequestHeader, answer: Payload, throttle_ms: int) -> Payload:
    """Return an encoded answer with its throttle time set, if its version has that field."""
    response: Any = API[header.api_key].response
    schema = response.schema()
    has_field = any(field.name == "throttle_time_ms" for field in schema.fields)
    if not has_field or header.api_version not in schema.versions:
        return answer
    parts = answer if isinstance(answer, tuple | list) else (answer,)
    head = 5 if header.flexible and header.api_key != API_VERSIONS_KEY else 4
    message: Any = decode_message(response, b"".join(parts)[head:], header.api_version)
    changed = msgspec.structs.replace(
        message, throttle_time_ms=max(throttle_ms, message.throttle_time_ms)
    )
    return payload(header, changed)
