"""Metrics that clients push to brokers.

Source: KIP-714.
"""

from records.rpc.base import Request, Response
from records.wire import Array, Bool, Bytes, Int8, Int16, Int32, String, Uuid


class GetTelemetrySubscriptionsRequest(Request, key=71, versions="0"):
    """Asks which metrics a client should push. Source: KIP-714."""

    client_instance_id: Uuid


class GetTelemetrySubscriptionsResponse(Response, key=71, versions="0"):
    """Returns the metrics to push, and how often. Source: KIP-714."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    client_instance_id: Uuid
    subscription_id: Int32
    accepted_compression_types: Array[Int8]
    push_interval_ms: Int32
    telemetry_max_bytes: Int32
    delta_temporality: Bool
    requested_metrics: Array[String]


class PushTelemetryRequest(Request, key=72, versions="0"):
    """Pushes a client's metrics to a broker. Source: KIP-714."""

    client_instance_id: Uuid
    subscription_id: Int32
    terminating: Bool
    compression_type: Int8
    metrics: Bytes


class PushTelemetryResponse(Response, key=72, versions="0"):
    """Tells whether the metrics were accepted. Source: KIP-714."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
