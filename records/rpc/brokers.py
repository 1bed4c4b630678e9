"""The requests by which brokers and controllers report to the active controller.

Source: KIP-631 (BrokerRegistration, BrokerHeartbeat), KIP-730 (AllocateProducerIds), KIP-858 (log
directories), KIP-919 (ControllerRegistration), KIP-584 (UpdateFeatures).
"""

from typing import Annotated

from records.rpc.base import Request, Response
from records.schema import Message
from records.wire import (
    IGNORABLE,
    Array,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    String,
    UInt16,
    Uuid,
    between,
    since,
    tag,
)


class BrokerRegistrationRequest(Request, key=62, versions="0-4"):
    """A broker process asks to be a member under its id. Source: KIP-631."""

    class Listener(Message):
        name: String
        host: String
        port: UInt16
        security_protocol: Int16

    class Feature(Message):
        name: String
        min_supported_version: Int16
        max_supported_version: Int16

    broker_id: Int32
    cluster_id: String
    incarnation_id: Uuid  # of the process
    listeners: Array[Listener]
    features: Array[Feature]
    rack: String | None
    is_migrating_zk_broker: Annotated[Bool, since(1)] = False
    log_dirs: Annotated[Array[Uuid], since(2), IGNORABLE] = ()
    previous_broker_epoch: Annotated[Int64, since(3), IGNORABLE] = -1
    unready_reason: Annotated[String | None, tag(1000), IGNORABLE] = None  # ours; null: ready


class BrokerRegistrationResponse(Response, key=62, versions="0-4"):
    """The epoch that the broker acts under. Source: KIP-631."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    broker_epoch: Int64 = -1


class BrokerHeartbeatRequest(Request, key=63, versions="0-2"):
    """A broker lives, has read so far, and wishes to be fenced or not. Source: KIP-631."""

    broker_id: Int32
    broker_epoch: Int64 = -1
    current_metadata_offset: Int64
    want_fence: Bool
    want_shut_down: Bool
    offline_log_dirs: Annotated[Array[Uuid], since(1), tag(0, "1+")] = ()
    cordoned_log_dirs: Annotated[Array[Uuid] | None, since(2), tag(1, "2+")] = None
    unready_reason: Annotated[String | None, tag(1000), IGNORABLE] = None  # ours; null: ready


class BrokerHeartbeatResponse(Response, key=63, versions="0-2"):
    """The controller's view of the broker: fenced, caught up, may shut down. Source: KIP-631."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    is_caught_up: Bool = False
    is_fenced: Bool = True
    should_shut_down: Bool
    # Ours (Java skips the tag): the controller's wall clock, ms since 1970; -1: unknown.
    wall_clock_ms: Annotated[Int64, tag(1000), IGNORABLE] = -1


class UnregisterBrokerRequest(Request, key=64, versions="0"):
    """Forgets a broker. Source: KIP-631."""

    broker_id: Int32


class UnregisterBrokerResponse(Response, key=64, versions="0"):
    """The outcome of unregistering a broker. Source: KIP-631."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None


class AllocateProducerIdsRequest(Request, key=67, versions="0"):
    """A broker asks for a block of producer ids. Source: KIP-730."""

    broker_id: Int32
    broker_epoch: Int64 = -1


class AllocateProducerIdsResponse(Response, key=67, versions="0"):
    """The block. Source: KIP-730."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id_start: Int64
    producer_id_len: Int32


class ControllerRegistrationRequest(Request, key=70, versions="0"):
    """A controller says how it is reached and what it can do. Source: KIP-919."""

    class Listener(Message):
        name: String
        host: String
        port: UInt16
        security_protocol: Int16

    class Feature(Message):
        name: String
        min_supported_version: Int16
        max_supported_version: Int16

    controller_id: Int32
    incarnation_id: Uuid
    zk_migration_ready: Bool
    listeners: Array[Listener]
    features: Array[Feature]


class ControllerRegistrationResponse(Response, key=70, versions="0"):
    """The outcome of a controller's registration. Source: KIP-919."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None


class UpdateFeaturesRequest(Request, key=57, versions="0-2"):
    """Finalizes features at other levels. Source: KIP-584, KIP-778."""

    class FeatureUpdateKey(Message):
        feature: String
        max_version_level: Int16  # 0 removes the feature
        allow_downgrade: Annotated[Bool, between(0, 0)] = False
        upgrade_type: Annotated[Int8, since(1)] = 1  # 1 upgrade, 2 safe, 3 unsafe downgrade

    timeout_ms: Int32 = 60_000
    feature_updates: Array[FeatureUpdateKey]
    validate_only: Annotated[Bool, since(1)] = False


class UpdateFeaturesResponse(Response, key=57, versions="0-2"):
    """All of it is done, or nothing. Source: KIP-584."""

    class UpdatableFeatureResult(Message):
        feature: String
        error_code: Int16 = 0
        error_message: String | None

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None
    results: Annotated[Array[UpdatableFeatureResult], between(0, 1), IGNORABLE] = ()
