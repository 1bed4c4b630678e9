"""Answers clients that offer their metrics: no metric is subscribed to.

As in Kafka, brokers that hand the metrics to no plugin do not announce these requests, so that
clients offer none; a client that asks without ApiVersions gets an answer all the same.

A subscription's id is computed from the client's own id, so that a broker remembers no client and
knows an id that another broker gave.

Source: KIP-714; upstream's ClientMetricsManager.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final
from uuid import UUID

from diskless.apis.handler import make_handler
from raft.net.handlers import Served
from records.kafka_errors import ErrorCode
from records.rpc import telemetry as rpc
from records.types import ZERO_UUID

PUSH_INTERVAL_MS: Final = 300_000
MAX_BYTES: Final = 1024 * 1024
CODECS: Final = (4, 3, 1, 2)  # zstd, lz4, gzip, snappy; the broker's preferred one first
NO_CODEC: Final = 0


def subscriptions(
    request: rpc.GetTelemetrySubscriptionsRequest, new_id: Callable[[], UUID]
) -> rpc.GetTelemetrySubscriptionsResponse:
    """Answer with a subscription to no metrics, and with a new id for a client without an id."""
    client = request.client_instance_id
    if client == ZERO_UUID:
        client = new_id()
    return rpc.GetTelemetrySubscriptionsResponse(
        client_instance_id=client,
        subscription_id=_subscription_id(client),
        accepted_compression_types=CODECS,
        push_interval_ms=PUSH_INTERVAL_MS,
        telemetry_max_bytes=MAX_BYTES,
        delta_temporality=True,
        requested_metrics=(),
    )


def push(request: rpc.PushTelemetryRequest) -> rpc.PushTelemetryResponse:
    """Discard a client's metrics, or return an error for an invalid request."""
    client = request.client_instance_id
    code = ErrorCode.NONE
    if client == ZERO_UUID:
        code = ErrorCode.INVALID_REQUEST
    elif request.subscription_id != _subscription_id(client):
        code = ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    elif request.compression_type not in (NO_CODEC, *CODECS):
        code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    elif len(request.metrics) > MAX_BYTES:
        code = ErrorCode.TELEMETRY_TOO_LARGE
    return rpc.PushTelemetryResponse(error_code=code)


def _subscription_id(client: UUID) -> int:
    return zlib.crc32(client.bytes) >> 1  # a positive int32


def handlers(new_id: Callable[[], UUID]) -> dict[int, Served]:
    """Return the handlers of telemetry requests, by api key.

    Args:  new_id: draws an id for a client that has none.
    """
    return {
        71: make_handler(
            rpc.GetTelemetrySubscriptionsRequest, lambda request, _: subscriptions(request, new_id)
        ),
        72: make_handler(rpc.PushTelemetryRequest, lambda request, _: push(request)),
    }
