"""A node's settings: Kafka's property names wherever Kafka or a KIP has one, ours begin `esker.`.

Every setting stands once in `esker.settings`, with its unit, default and bounds;
`docs/configuration.md` is made from that table. A key that is not there, or a value that cannot be,
is refused at start by an error that names the key: a misspelt setting that is ignored is found out
in production.

Source: the names and defaults of Apache Kafka 4.x (its documentation, Configuration), KIP-595,
KIP-835, KIP-630 and KIP-876 (checkpoints); docs/design/running.md#nodes-and-settings for what
differs.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from coordinator.groups.settings import GroupSettings
from diskless.produce.object_writer import WriterSettings
from diskless.stores.opening import DIRECTORY
from esker.settings import SETTINGS
from esker.settings.addresses import BROKER, CONTROLLER, Addresses, addresses_of
from esker.settings.coordinator_options import QUORUM, CoordinatorOptions, find_for_group
from esker.settings.errors import ConfigError
from esker.settings.properties import PropertiesError, read_properties
from esker.settings.values import Endpoint, parse_endpoint
from raft.core.config import QuorumConfig
from records.types import NodeId
from snapshot.log_start import LogStartSettings
from snapshot.policy import SnapshotSettings

ROLES: Final = frozenset({BROKER, CONTROLLER})
LEAST_DELETE_DELAY_MS: Final = 4 * QuorumConfig().fetch_max_wait_ms  # of a broker


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """A node's settings, checked against each other."""

    roles: frozenset[str]
    node_id: NodeId
    voters: Mapping[NodeId, Endpoint]
    addresses: Addresses
    log_dir: Path
    election_timeout_ms: int
    fetch_timeout_ms: int
    election_backoff_max_ms: int
    request_timeout_ms: int
    retry_backoff_ms: int
    segment_bytes: int
    segment_ms: int
    snapshots: SnapshotSettings
    log_start: LogStartSettings
    max_idle_interval_ms: int
    session_timeout_ms: int
    default_partitions: int
    default_replication_factor: int
    request_max_bytes: int
    connections_max_idle_ms: int
    metrics: Endpoint | None
    bench_log: bool
    bench_log_state: str
    coordinators: CoordinatorOptions
    warnings: tuple[str, ...]
    values: Mapping[str, Any]  # every setting, parsed, by its key
    given: Mapping[str, str]  # what stood in the file


def load_config(path: Path) -> NodeSettings:
    """Read and check a node's properties file.

    Raises:  ConfigError naming the key; PropertiesError naming the line; OSError.
    """
    return parse_config(read_properties(path))


def parse_config(properties: Mapping[str, str]) -> NodeSettings:
    """Parse each setting, then check the settings against each other.

    Raises ConfigError naming the key.
    """
    values = {key: setting.default for key, setting in SETTINGS.items()}
    for key, text in properties.items():
        setting = SETTINGS.get(key)
        if setting is None:
            raise ConfigError(key, _unknown(key))
        try:
            values[key] = setting.parse(text)
        except ValueError as error:
            raise ConfigError(key, str(error)) from None
    for key in ("process.roles", "node.id", "controller.quorum.voters", "listeners"):
        if values[key] is None:
            raise ConfigError(key, f"must be set: {SETTINGS[key].help}")
    try:
        GroupSettings.of(values)
    except ValueError as error:
        raise ConfigError("group.max.session.timeout.ms", str(error)) from None
    return _check_together(values, properties)


def _unknown(key: str) -> str:
    close = difflib.get_close_matches(key, SETTINGS, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"not a setting of this node{hint}"


def _check_together(values: Mapping[str, Any], given: Mapping[str, str]) -> NodeSettings:
    roles = _roles(values)
    voters: dict[NodeId, Endpoint] = values["controller.quorum.voters"]
    node_id = NodeId(values["node.id"])
    if CONTROLLER not in roles and node_id in voters:
        raise ConfigError(
            "node.id", f"{node_id} is a voter's (controller.quorum.voters): a broker needs its own"
        )
    if BROKER in roles:
        _check_broker(values)
    addresses = addresses_of(values, roles, voters)
    retention_bytes: int = values["metadata.max.retention.bytes"]
    return NodeSettings(
        roles=roles,
        node_id=node_id,
        voters=voters,
        addresses=addresses,
        log_dir=_log_dir(values),
        election_timeout_ms=values["controller.quorum.election.timeout.ms"],
        fetch_timeout_ms=values["controller.quorum.fetch.timeout.ms"],
        election_backoff_max_ms=values["controller.quorum.election.backoff.max.ms"],
        request_timeout_ms=values["controller.quorum.request.timeout.ms"],
        retry_backoff_ms=values["controller.quorum.retry.backoff.ms"],
        segment_bytes=values["metadata.log.segment.bytes"],
        segment_ms=values["metadata.log.segment.ms"],
        snapshots=SnapshotSettings(
            min_changed_ratio=values["metadata.snapshot.min.changed_records.ratio"],
            max_bytes_between=values["metadata.log.max.record.bytes.between.snapshots"],
            max_interval_ms=values["metadata.log.max.snapshot.interval.ms"],
        ),
        log_start=LogStartSettings(
            max_lag_ms=values["metadata.start.offset.lag.time.max.ms"],
            max_retention_bytes=None if retention_bytes < 0 else retention_bytes,
            archive_max_lag_bytes=values["esker.archive.max.lag.bytes"],
        ),
        max_idle_interval_ms=values["metadata.max.idle.interval.ms"],
        session_timeout_ms=values["broker.session.timeout.ms"],
        default_partitions=values["num.partitions"],
        default_replication_factor=values["default.replication.factor"],
        request_max_bytes=values["socket.request.max.bytes"],
        connections_max_idle_ms=values["connections.max.idle.ms"],
        metrics=values["esker.metrics.listener"],
        bench_log=values["esker.bench.log.enable"],
        bench_log_state=values["esker.bench.log.state"],
        coordinators=_coordinators(values, voters=len(voters)),
        warnings=tuple(addresses.warnings),
        values=values,
        given=given,
    )


def _coordinators(values: Mapping[str, Any], *, voters: int) -> CoordinatorOptions:
    options = CoordinatorOptions(
        class_name=values["diskless.batch.coordinator.class.name"],
        key_prefix=values["esker.object.key.prefix"],
        file_delete_delay_ms=values["diskless.file.delete.delay.ms"],
        lease_timeout_ms=values["esker.object.lease.timeout.ms"],
        producer_expiration_ms=values["producer.id.expiration.ms"],
    )
    try:
        find_for_group(options.class_name, voters=voters)
    except ValueError as error:
        raise ConfigError("diskless.batch.coordinator.class.name", str(error)) from None
    try:
        options.settings("any", 0)
    except ValueError as error:
        raise ConfigError("esker.object.key.prefix", str(error)) from None
    return options


def _roles(values: Mapping[str, Any]) -> frozenset[str]:
    words: tuple[str, ...] = values["process.roles"]
    roles = frozenset(words)
    if not roles or not roles <= ROLES or len(roles) < len(words):
        raise ConfigError("process.roles", "is `controller`, `broker` or `broker,controller`")
    return roles


def _check_broker(values: Mapping[str, Any]) -> None:
    """Raise ConfigError for settings that a broker cannot run with."""
    if not values["diskless.system.enable"]:
        raise ConfigError("diskless.system.enable", "a broker here has no other topics: leave true")
    if values["diskless.batch.coordinator.class.name"] != QUORUM:
        raise ConfigError(
            "diskless.batch.coordinator.class.name",
            f"a broker finds batches by replicas of {QUORUM} alone",
        )
    if (
        values["diskless.storage.class.name"] == DIRECTORY
        and not (values["esker.storage.directory.path"])
    ):
        raise ConfigError(
            "esker.storage.directory.path",
            "must be set: where all brokers keep their objects",
        )
    if values["diskless.file.delete.delay.ms"] < LEAST_DELETE_DELAY_MS:
        raise ConfigError(
            "diskless.file.delete.delay.ms",
            f"is below {LEAST_DELETE_DELAY_MS}: a broker whose metadata is half as old serves "
            "nothing, and it hears of an idle log every "
            f"{QuorumConfig().fetch_max_wait_ms} ms",
        )
    try:
        WriterSettings.of(values)
    except ValueError as error:
        raise ConfigError("esker.object.lease.timeout.ms", str(error)) from None
    session_ms = values["broker.session.timeout.ms"]
    if 2 * values["broker.heartbeat.interval.ms"] > session_ms:
        raise ConfigError(
            "broker.heartbeat.interval.ms",
            f"is more than half of broker.session.timeout.ms, which is {session_ms}",
        )


def _log_dir(values: Mapping[str, Any]) -> Path:
    if values["metadata.log.dir"]:
        return Path(values["metadata.log.dir"])
    if values["log.dirs"]:
        return Path(values["log.dirs"][0])
    if values["log.dir"]:
        return Path(values["log.dir"])
    raise ConfigError("log.dirs", "must be set: where this node keeps its logs")


__all__ = [
    "SETTINGS",
    "ConfigError",
    "Endpoint",
    "NodeSettings",
    "PropertiesError",
    "load_config",
    "parse_config",
    "parse_endpoint",
]
