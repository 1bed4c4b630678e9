"""A node's settings: Kafka's property names wherever Kafka or a KIP has one, ours begin `esker.`.

Every setting stands once in `SETTINGS`, with its unit, default and bounds; `docs/configuration.md`
is made from that table. A key that is not there, or a value that cannot be, is refused at start by
an error that names the key: a misspelt setting that is ignored is found out in production.

Source: the names and defaults of Apache Kafka 4.x (its documentation, Configuration), KIP-595,
KIP-835, KIP-630 and KIP-876 (checkpoints); DESIGN §12 for what differs.
"""

from __future__ import annotations

import difflib
import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from esker.properties import PropertiesError, read_properties
from raft.core.config import QuorumConfig
from records.types import NodeId
from snapshot.log_start import LogStartSettings
from snapshot.policy import SnapshotSettings

MEBIBYTE: Final = 1024 * 1024


class ConfigError(Exception):
    """A setting that is unknown, missing or impossible. The message names the key."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a listener is reached: a host name or address, and a port (0 to 65535)."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: how its text becomes a value, and what it is if it is not given."""

    key: str
    parse: Callable[[str], Any]
    default: Any  # of the parsed type; None: must be given, or the text says what happens
    help: str  # one sentence, with unit


# --- values ------------------------------------------------------------------------------------


def _integer(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a whole number") from None
        if not least <= value <= most:
            raise ValueError(f"{value} is not between {least} and {most}")
        return value

    return parse


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def parse_endpoint(text: str) -> Endpoint:
    """HOST:PORT, an IPv6 address in brackets.

    >>> parse_endpoint("[::1]:9093")
    Endpoint(host='::1', port=9093)
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or len(port) > 5 or int(port) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address stands in brackets")
    return Endpoint(host, int(port))


def _listeners(text: str) -> dict[str, Endpoint]:
    found: dict[str, Endpoint] = {}
    for part in _list(text):
        name, separator, address = part.partition("://")
        if not separator or not name:
            raise ValueError(f"{part!r} is not NAME://HOST:PORT")
        if name in found:
            raise ValueError(f"listener {name} stands twice")
        found[name] = parse_endpoint(address)
    return found


_node_id = _integer(0, 2**31 - 1)


def _voters(text: str) -> dict[NodeId, Endpoint]:
    voters: dict[NodeId, Endpoint] = {}
    for part in _list(text):
        node, at, address = part.partition("@")
        if not at or not node.isdecimal():
            raise ValueError(f"{part!r} is not ID@HOST:PORT")
        node_id = NodeId(_node_id(node))
        if node_id in voters:
            raise ValueError(f"voter {node} stands twice")
        endpoint = parse_endpoint(address)
        if _is_wildcard(endpoint.host) or endpoint.port == 0:
            raise ValueError(f"{part!r}: others cannot connect to {endpoint}")
        voters[node_id] = endpoint
    if not voters:
        raise ValueError("no voters")
    return voters


def _protocol_map(text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in _list(text):
        name, _, protocol = part.partition(":")
        if protocol != "PLAINTEXT":
            raise ValueError(f"{part!r}: only PLAINTEXT is supported; TLS and SASL are not yet")
        pairs[name] = protocol
    return pairs


def _is_wildcard(host: str) -> bool:
    try:
        return host == "" or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


_MILLISECONDS = _integer(1, 2**31 - 1)


def _ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if not 0 <= value <= 1:  # not a number is no ratio either
        raise ValueError(f"{text} is not between 0 and 1")
    return value


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} is none of {', '.join(words)}")
        return text

    return parse


SETTINGS: Final = {
    setting.key: setting
    for setting in (
        Setting("process.roles", _list, None, "What this node is: `controller`."),
        Setting("node.id", _node_id, None, "This node's id, unique in the cluster."),
        Setting(
            "controller.quorum.voters",
            _voters,
            None,
            "The quorum: `ID@HOST:PORT`, comma separated, the same on every node.",
        ),
        Setting(
            "controller.listener.names",
            _list,
            ("CONTROLLER",),
            "Which of the listeners serves the quorum (the first is used between its nodes).",
        ),
        Setting(
            "listeners", _listeners, None, "`NAME://HOST:PORT`, comma separated: what to bind."
        ),
        Setting(
            "advertised.listeners",
            _listeners,
            {},
            "What others are told to connect to; default: as bound.",
        ),
        Setting(
            "listener.security.protocol.map",
            _protocol_map,
            {},
            "`NAME:PLAINTEXT` for each listener; no other protocol is supported yet.",
        ),
        Setting("log.dirs", _list, (), "Directories of this node's logs; the first is used."),
        Setting("log.dir", str, "", "One directory, if `log.dirs` is not given."),
        Setting("metadata.log.dir", str, "", "Where the quorum's logs lie; default: `log.dirs`."),
        Setting(
            "controller.quorum.election.timeout.ms",
            _MILLISECONDS,
            1000,
            "Milliseconds without a leader before a voter campaigns (up to twice that).",
        ),
        Setting(
            "controller.quorum.fetch.timeout.ms",
            _integer(QuorumConfig().fetch_max_wait_ms + 1, 2**31 - 1),  # waiting is no silence
            2000,
            "Milliseconds without an answer from the leader before a follower doubts it.",
        ),
        Setting(
            "controller.quorum.election.backoff.max.ms",
            _MILLISECONDS,
            1000,
            "Most milliseconds that a less preferred successor waits after a leader resigned.",
        ),
        Setting(
            "controller.quorum.request.timeout.ms",
            _MILLISECONDS,
            2000,
            "Milliseconds before a request to another node is given up.",
        ),
        Setting(
            "controller.quorum.retry.backoff.ms",
            _MILLISECONDS,
            20,
            "Milliseconds before a failed request is repeated.",
        ),
        Setting(
            "metadata.log.segment.bytes",
            _integer(8 * MEBIBYTE, 2**31 - 1),
            1024 * MEBIBYTE,
            "Bytes after which a log begins a new file.",
        ),
        Setting(
            "metadata.log.segment.ms",
            _MILLISECONDS,
            7 * 24 * 3600 * 1000,
            "Milliseconds after which a log begins a new file.",
        ),
        Setting(
            "metadata.log.max.record.bytes.between.snapshots",
            _integer(1, 2**63 - 1),
            SnapshotSettings().max_bytes_between,
            "Bytes of log since the newest checkpoint before another is taken (see the ratio).",
        ),
        Setting(
            "metadata.snapshot.min.changed_records.ratio",
            _ratio,
            SnapshotSettings().min_changed_ratio,
            "Share of a checkpoint's records (0 to 1) that must have changed before another is "
            "taken; one is also taken once the log since it is larger than it.",
        ),
        Setting(
            "metadata.log.max.snapshot.interval.ms",
            _integer(0, 2**63 - 1),
            SnapshotSettings().max_interval_ms,
            "Milliseconds after which a checkpoint is taken if anything was committed; 0: never.",
        ),
        Setting(
            "metadata.start.offset.lag.time.max.ms",
            _integer(0, 2**63 - 1),
            LogStartSettings().max_lag_ms,
            "Milliseconds that a log keeps what is before a checkpoint for a replica that lags.",
        ),
        Setting(
            "metadata.max.retention.bytes",
            _integer(-1, 2**63 - 1),
            LogStartSettings().max_retention_bytes,
            "Bytes of a log and its checkpoints past which it waits for no replica; -1: no bound.",
        ),
        Setting(
            "metadata.max.idle.interval.ms",
            _integer(0, 2**31 - 1),
            500,
            "Milliseconds of silence after which the leader writes a NoOpRecord; 0: never.",
        ),
        Setting(
            "socket.request.max.bytes",
            _integer(1024, 256 * MEBIBYTE),  # beyond, raft.net takes a length for a stray protocol
            100 * MEBIBYTE,
            "Bytes that one request may have.",
        ),
        Setting(
            "connections.max.idle.ms",
            _MILLISECONDS,
            600_000,
            "Milliseconds after which an idle connection is closed.",
        ),
        Setting(
            "esker.metrics.listener",
            parse_endpoint,
            None,
            "`HOST:PORT` that serves `/metrics` and `/health`; default: neither is served.",
        ),
        Setting(
            "esker.bench.log.enable",
            _boolean,
            False,
            "Serves the group `esker-bench-log` on the controller listener, for benchmarks.",
        ),
        Setting(
            "esker.bench.log.state",
            _one_of("none", "kv"),
            "none",
            "What is built from `esker-bench-log`: `kv`, its keys and their newest values; `none`.",
        ),
    )
}
"""Every setting a node knows, by key."""


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
    request_max_bytes: int
    connections_max_idle_ms: int
    metrics: Endpoint | None
    bench_log: bool
    bench_log_state: str
    warnings: tuple[str, ...]


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
    if node_id in voters and _is_wildcard(advertised.host):
        advertised = voters[node_id]
    if _is_wildcard(advertised.host):
        raise ConfigError(
            "advertised.listeners",
            f"others cannot connect to {advertised}: name a host or an address for {name}",
        )
    retention_bytes: int = values["metadata.max.retention.bytes"]
    warnings = []
    if not _is_loopback(bind.host):
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
        request_max_bytes=values["socket.request.max.bytes"],
        connections_max_idle_ms=values["connections.max.idle.ms"],
        metrics=values["esker.metrics.listener"],
        bench_log=values["esker.bench.log.enable"],
        bench_log_state=values["esker.bench.log.state"],
        warnings=tuple(warnings),
    )


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
