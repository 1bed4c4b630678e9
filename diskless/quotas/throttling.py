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
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import msgspec

from coordinator.controller.image import MetadataImage
from coordinator.controller.quotas import CONTROLLER_MUTATION_RATE, USER_KEYS
from diskless.quotas.clients import Bucket, ClientQuotas
from diskless.quotas.connections import ConnectionQuotas
from diskless.quotas.muting import Muting
from diskless.quotas.rates import Windows
from diskless.request_time import Stopwatch, measured, timed
from raft.net import API_VERSIONS_KEY, Answer, Frame, Payload, Reply, RequestHeader
from raft.net.connection import ServerConnection
from raft.net.handlers import Serve, payload
from raft.net.routes import Routes
from records.codec import decode_message
from records.rpc import API
from records.rpc.fetch import FetchResponse

PRODUCE, FETCH = 0, 1  # api keys
MUTATIONS: Final = frozenset({19, 20, 37})
"""CreateTopics, DeleteTopics and CreatePartitions, whose throttle times the controller sets."""

EXEMPT: Final = frozenset({27})
"""WriteTxnMarkers: requests that need CLUSTER_ACTION do not count, as in Kafka."""

RECHECK_S: Final = 0.1  # until an image is complete, whose quotas are taken then
MAX_FETCH_BYTES: Final = 2**31 - 1

Measure = Callable[[Payload | None], Payload | None]
"""Measures an answer, and returns it or what is sent in its place."""


Counts = Callable[[ServerConnection, int], bool]
"""(connection, api key) -> whether such a request counts for its client's quotas."""


class Images(Protocol):
    """The images with quotas, and whether the newest is complete."""

    @property
    def image(self) -> MetadataImage: ...

    def on_image(self, callback: Callable[[MetadataImage], None]) -> None: ...

    def image_age_ms(self) -> float | None: ...


class Throttling:
    """The quotas of one node's clients. Belongs to the event loop."""

    def __init__(
        self,
        cluster: Images,
        windows: Windows,
        *,
        idle_ms: Callable[[], int],
        counts: Counts = lambda _connection, api_key: api_key not in EXEMPT,
    ) -> None:
        """Create the throttling of a node, which begins with the first quota.

        Args:  idle_ms: returns how long a connection may be idle.
               counts: returns whether a request of this API counts for its connection's client.
        """
        self.muting = Muting(idle_ms)
        self.throttled: Counter[str] = Counter()  # answers, by type of quota
        self.throttle_ms: Counter[str] = Counter()  # the same as their time
        self.clients = ClientQuotas(windows)
        self.connections = ConnectionQuotas(windows, self.now_ms)
        self._cluster = cluster
        self._counts = counts
        self._loop = asyncio.get_running_loop()
        self._quotas: object = None  # the map that `clients` has taken
        self._has_quotas = False
        self._limits_mutations = False
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

    def now_ms(self) -> int:
        """Return the time of the loop's clock."""
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
        self.clients.take(quotas)
        self.connections.take(quotas)
        keys = {key for _, key in quotas}
        self._has_quotas = not keys.isdisjoint(USER_KEYS)
        self._limits_mutations = CONTROLLER_MUTATION_RATE in keys
        for routes in self._routes:
            routes.around = self.serve if self._has_quotas else None

    # --- requests -------------------------------------------------------------------------------

    def serve(
        self, handle: Serve, connection: ServerConnection, header: RequestHeader, body: Frame
    ) -> Answer:
        """Serve a request, and measure it and its answer if its client has a quota of it."""
        user, client_id = connection.principal.name, header.client_id or ""
        client = self.clients.of(user, client_id, self.now_ms())
        if client is None:
            return handle(connection, header, body)
        key = header.api_key
        if not self._counts(connection, key):
            return handle(connection, header, body)
        request = client.request
        produce = client.produce if key == PRODUCE else None
        fetch = client.fetch if key == FETCH else None
        mutates = client.mutates and key in MUTATIONS
        if request is None and produce is None and fetch is None and not mutates:
            return handle(connection, header, body)
        watch = Stopwatch()
        size = header.body_at + len(body)
        measure = _Measure(self, connection, header, size, request, produce, fetch, watch)
        if request is None:
            return _measured(handle(connection, header, body), connection, measure)
        with measured(watch):
            return _measured(handle(connection, header, body), connection, measure)

    def fetch_limit(self, connection: ServerConnection, client_id: str | None) -> int | None:
        """Return the most bytes that a client's quota ever allows at once, or None for no quota."""
        if not self._has_quotas:
            return None
        client = self.clients.of(connection.principal.name, client_id or "", self.now_ms())
        if client is None or client.fetch is None:
            return None
        windows = self.clients.windows
        most = client.fetch.limit * (windows.samples - 1) * windows.size_ms / 1_000
        return int(min(most, MAX_FETCH_BYTES))

    def names_clients(self) -> bool:
        """Return whether the controller has to know for whom this broker forwards requests."""
        return self._limits_mutations

    def throttle(self, kind: str, connection: ServerConnection, throttle_ms: int) -> None:
        """Count a throttled answer, and mute its connection."""
        self.throttled[kind] += 1
        self.throttle_ms[kind] += throttle_ms
        self.muting.mute(connection, throttle_ms)


class _Measure:
    """Measures one request when its answer is sent."""

    __slots__ = (
        "_connection", "_fetch", "_header", "_produce",
        "_request", "_size", "_throttling", "_watch",
    )  # fmt: skip

    def __init__(
        self,
        throttling: Throttling,
        connection: ServerConnection,
        header: RequestHeader,
        size: int,
        request: Bucket | None,
        produce: Bucket | None,
        fetch: Bucket | None,
        watch: Stopwatch,
    ) -> None:
        """Create the measure of a request by the quotas that it counts for.

        Args:  size: of the request, in bytes.
        """
        self._throttling = throttling
        self._connection = connection
        self._header = header
        self._size = size
        self._request = request
        self._produce = produce
        self._fetch = fetch
        self._watch = watch

    def __call__(self, answer: Payload | None) -> Payload | None:
        """Record the request; return its answer, or what is sent in its place."""
        throttling, header = self._throttling, self._header
        now_ms = throttling.now_ms()
        times_ms = {"Request": self._request_ms(now_ms)}
        size = 0
        if self._produce is not None:
            times_ms["Produce"] = self._produce.take(self._size, now_ms)
        elif self._fetch is not None:
            size = size_of(answer)
            times_ms["Fetch"] = self._fetch.take(size, now_ms)
        elif header.api_key in MUTATIONS and answer is not None:
            times_ms["ControllerMutation"] = throttle_time_of(header, answer)
        kind = max(times_ms, key=times_ms.__getitem__)
        throttle_ms = times_ms[kind]
        if not throttle_ms:
            return answer
        throttling.throttle(kind, self._connection, throttle_ms)
        if answer is None:
            return None
        if header.api_key == FETCH:
            if self._fetch is not None:
                self._fetch.rate.record(-size, now_ms)
            return payload(header, FetchResponse(throttle_time_ms=throttle_ms, responses=()))
        return with_throttle_time(header, answer, throttle_ms)

    def _request_ms(self, now_ms: int) -> int:
        """Record the request's time; return its throttle time, one sample's at most."""
        if self._request is None:
            return 0
        percent = self._watch.read_ns() * 100 / 1e9
        most_ms = self._throttling.clients.windows.size_ms
        return min(most_ms, self._request.take(percent, now_ms))


def _measured(answer: Answer, connection: ServerConnection, measure: Measure) -> Answer:
    """Return an answer that is measured when it is sent."""
    if answer is None:
        measure(None)
        return None
    if isinstance(answer, Reply):
        answer.on_send(measure)
        return answer
    if isinstance(answer, Awaitable):
        return timed(_measure_later(answer, measure))
    reply = Reply(connection)  # not bytes: after an answer at once the next request is served
    reply.on_send(measure)
    reply.send(answer)
    return reply


async def _measure_later(answer: Awaitable[Payload | None], measure: Measure) -> Payload | None:
    return measure(await answer)


def size_of(answer: Payload | None) -> int:
    """Return the size of an answer in bytes."""
    if answer is None:
        return 0
    return sum(map(len, answer)) if isinstance(answer, tuple | list) else len(answer)


def throttle_time_of(header: RequestHeader, answer: Payload) -> int:
    """Return the throttle time that an encoded answer has, or 0 if its version has none."""
    message = _decoded(header, answer)
    return 0 if message is None else max(0, message.throttle_time_ms)


def with_throttle_time(header: RequestHeader, answer: Payload, throttle_ms: int) -> Payload:
    """Return an encoded answer with its throttle time set, if its version has that field."""
    message = _decoded(header, answer)
    if message is None:
        return answer
    return payload(header, msgspec.structs.replace(message, throttle_time_ms=throttle_ms))


def _decoded(header: RequestHeader, answer: Payload) -> Any:
    """Decode an answer, or return None for one without a throttle time."""
    response: Any = API[header.api_key].response
    schema = response.schema()
    has_field = any(field.name == "throttle_time_ms" for field in schema.fields)
    if not has_field or header.api_version not in schema.versions:
        return None
    parts = answer if isinstance(answer, tuple | list) else (answer,)
    head = 5 if header.flexible and header.api_key != API_VERSIONS_KEY else 4
    return decode_message(response, b"".join(parts)[head:], header.api_version)
