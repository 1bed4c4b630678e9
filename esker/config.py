"""A node's settings: Kafka's property names wherever Kafka or a KIP has one, ours begin `esker.`.

Every setting stands once in `esker.settings`, with its unit, default and bounds;
`docs/configuration.md` is made from that table. A key that is not there, or a value that cannot be,
is refused at start by an error that names the key: a misspelt setting that is ignored is found out
in production.

Source: the names and defaults of Apache Kafka 4.x (its documentation, Configuration), KIP-595,
KIP-835, KIP-630 and KIP-876 (checkpoints); DESIGN §12 for what differs.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.groups.settings import GroupSettings
from esker.coordinators import CoordinatorOptions, find_implementation
from esker.properties import PropertiesError, read_properties
from esker.settings import SETTINGS
from esker.values import Endpoint, is_loopback, is_wildcard, parse_endpoint
from records.types import NodeId
from snapshot.log_start import LogStartSettings
from snapshot.policy import SnapshotSettings


class ConfigError(Exception):
    """A setting that is unknown, missing or impossible. The message names the key."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key
        self.reason = reason


# --- the whole ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """The settings of a node with the role `controller`, checked against each other."""

    node_id: NodeId
    voters: Mapping[NodeId, Endpoint]
    listener_name: str
    bind: Endpoint
    advertised: Endpoint
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


def load_config(path: Path) -> ControllerConfig:
    """Read and check a node's properties file.

    Raises:  ConfigError naming the key; PropertiesError naming the line; OSError.
    """
    return parse_config(read_properties(path))


def parse_config(properties: Mapping[str, str]) -> ControllerConfig:
    """Check settings one by one, then against each other. Raises ConfigError naming the key."""
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
    return _check_together(values)


def _unknown(key: str) -> str:
    close = difflib.get_close_matches(key, SETTINGS, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"not a setting of this node{hint}"


def _check_together(values: Mapping[str, Any]) -> ControllerConfig:
    if values["process.roles"] != ("controller",):
        raise ConfigError("process.roles", "only `controller` can be started yet")
    name = _controller_listener(values)
    bind: Endpoint = values["listeners"][name]
    advertised: Endpoint = values["advertised.listeners"].get(name, bind)
    voters: dict[NodeId, Endpoint] = values["controller.quorum.voters"]
    node_id = NodeId(values["node.id"])
    if node_id in voters and voters[node_id].port != advertised.port:
        raise ConfigError(
            "controller.quorum.voters",
            f"says that node {node_id} listens at {voters[node_id]}, listeners say {advertised}",
        )
    if node_id in voters and is_wildcard(advertised.host):
        advertised = voters[node_id]
    if is_wildcard(advertised.host):
        raise ConfigError(
            "advertised.listeners",
            f"others cannot connect to {advertised}: name a host or an address for {name}",
        )
    retention_bytes: int = values["metadata.max.retention.bytes"]
    warnings = []
    if not is_loopback(bind.host):
        warnings.append(
            f"listener {name} at {bind} is open to whoever can reach it: there is no "
            "authentication and no encryption yet; bind it to a private network"
        )
    return ControllerConfig(
        node_id=node_id,
        voters=voters,
        listener_name=name,
        bind=bind,
        advertised=advertised,
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
        warnings=tuple(warnings),
        values=values,
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
        find_implementation(options.class_name, voters=voters)
    except ValueError as error:
        raise ConfigError("diskless.batch.coordinator.class.name", str(error)) from None
    try:
        options.settings("any", 0)
    except ValueError as error:
        raise ConfigError("esker.object.key.prefix", str(error)) from None
    return options


def _controller_listener(values: Mapping[str, Any]) -> str:
    names: tuple[str, ...] = values["controller.listener.names"]
    if not names:
        raise ConfigError("controller.listener.names", "names no listener")
    for name in values["listeners"]:
        if name not in names:
            raise ConfigError("listeners", f"{name} is not in controller.listener.names")
    for name in values["advertised.listeners"]:
        if name not in values["listeners"]:
            raise ConfigError("advertised.listeners", f"{name} is not in listeners")
    if names[0] not in values["listeners"]:
        raise ConfigError("listeners", f"lacks {names[0]}, the first of controller.listener.names")
    return names[0]


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
    "ControllerConfig",
    "Endpoint",
    "PropertiesError",
    "load_config",
    "parse_config",
    "parse_endpoint",
]
