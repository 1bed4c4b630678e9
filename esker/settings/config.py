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
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from coordinator.groups.settings import GroupSettings
from diskless.produce.object_writer import WriterSettings
from diskless.stores.opening import DIRECTORY
from esker.settings import SETTINGS
from esker.settings.access import AUTHORIZER, IDENTITY
from esker.settings.addresses import BROKER, CONTROLLER, Addresses, addresses_of
from esker.settings.coordinator_options import QUORUM, CoordinatorOptions, find_for_group
from esker.settings.errors import ConfigError, raise_all
from esker.settings.of_kafka import is_without_effect, refusal_of
from esker.settings.processes import IDS, PROCESSES, divide, plan_processes
from esker.settings.properties import PropertiesError, read_properties
from esker.settings.security import OF_LISTENERS, PREFIX, check_of_listener, is_secret
from esker.settings.topic_defaults import topic_defaults
from esker.settings.values import Endpoint, parse_endpoint, voters_of
from raft.core.config import QuorumConfig
from raft.net.security import PLAINTEXT
from records.types import NodeId
from snapshot.log_start import LogStartSettings
from snapshot.policy import SnapshotSettings

ROLES: Final = frozenset({BROKER, CONTROLLER})
_STANDS_FOR: Final = {
    "broker.id": "node.id",
    "controller.quorum.bootstrap.servers": "controller.quorum.voters",
}
"""Kafka's settings that a lone node takes for ours."""

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
    topic_defaults: Mapping[str, str]  # by the broker's name of a topic setting
    warnings: tuple[str, ...]
    values: Mapping[str, Any]  # every setting, parsed, by its key
    given: Mapping[str, str]  # what stood in the file


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """The brokers of a properties file with `esker.broker.processes`."""

    shared: Mapping[str, Endpoint]  # bootstrap ports by listener: every broker accepts from them
    metrics: Endpoint | None  # serves the metrics and health of all brokers
    log_dir: Path  # the brokers' directories are below it
    brokers: tuple[NodeSettings, ...]


def load_config(path: Path) -> NodeSettings:
    """Read and check the properties file of one node.

    Raises:  ConfigError naming the key; PropertiesError naming the line; OSError.
    """
    repeated: list[str] = []
    properties = read_properties(path, repeated)
    return _check_file(path, properties, repeated, parse_config(properties))


def load_host(path: Path) -> HostSettings | NodeSettings:
    """Read and check a properties file of one node, or of several broker processes.

    Raises:  as `load_config`.
    """
    repeated: list[str] = []
    properties = read_properties(path, repeated)
    if PROCESSES not in properties:
        return _check_file(path, properties, repeated, parse_config(properties))
    host = parse_host(properties)
    first = _check_file(path, properties, repeated, host.brokers[0])
    return replace(host, brokers=(first, *host.brokers[1:]))


def parse_host(properties: Mapping[str, str]) -> HostSettings:
    """Parse the settings of several broker processes. Raises ConfigError as `parse_config`."""
    plan = plan_processes(properties)
    whole = [parse_config(child, id_key=IDS) for child in plan.children]
    return HostSettings(
        shared=plan.shared,
        metrics=plan.metrics,
        log_dir=plan.log_dir,
        brokers=tuple(parse_config(divide(one.given, one.values, len(whole))) for one in whole),
    )


def _check_file(
    path: Path, properties: Mapping[str, str], repeated: Sequence[str], config: NodeSettings
) -> NodeSettings:
    """Return a node's settings with the warnings about its file.

    Raises:  ConfigError if strangers can read a secret in the file.
    """
    secrets = [key for key, value in properties.items() if value and is_secret(key)]
    if secrets and path.stat().st_mode & stat.S_IROTH:
        raise ConfigError(
            secrets[0], f"is a secret, and every user of this machine can read it: chmod o-r {path}"
        )
    if not repeated:
        return config
    text = f"settings given more than once, of which the last value holds: {', '.join(repeated)}"
    return replace(config, warnings=(*config.warnings, text))


def parse_config(properties: Mapping[str, str], *, id_key: str = "node.id") -> NodeSettings:
    """Parse each setting, then check the settings against each other.

    Args:    id_key: the setting that an operator gave the node's id by.
    Raises:  ConfigError with a line for each wrong setting that names its key.
    """
    values = {key: setting.default for key, setting in SETTINGS.items()}
    errors: list[ConfigError] = [
        ConfigError(key, f"describes several brokers: this takes one node's settings{also}")
        for key, also in ((PROCESSES, ""), (IDS, f", or needs {PROCESSES}"))
        if key in properties
    ]
    without_effect: list[str] = []
    for key, text in properties.items():
        setting = SETTINGS.get(key)
        try:
            if "${" in text:
                raise ValueError("values from config providers are not supported: write the value")
            if setting is not None:
                values[key] = setting.parse(text)
            elif key.startswith(PREFIX):
                check_of_listener(key, text)
            elif not is_without_effect(key):
                raise ValueError(_unknown(key))
            elif (refusal := refusal_of(key, text)) is not None:
                raise ValueError(refusal)
            else:
                without_effect.append(key)
        except ValueError as error:
            errors.append(ConfigError(key, str(error)))
    wrong = {error.key for error in errors}
    implied = _lone_controller(values, properties, wrong)
    values |= implied
    without_effect = [key for key in without_effect if _STANDS_FOR.get(key) not in implied]
    errors += [
        ConfigError(key, f"must be set: {SETTINGS[key].help}")
        for key in ("process.roles", "node.id", "controller.quorum.voters", "listeners")
        if values[key] is None and key not in wrong
    ]
    raise_all(errors)
    return _check_together(values, properties, without_effect, id_key)


def _lone_controller(
    values: Mapping[str, Any], given: Mapping[str, str], wrong: set[str]
) -> dict[str, Any]:
    """Derive settings that Kafka's single-node properties file leaves out: id, voter, store.

    It names its quorum by `controller.quorum.bootstrap.servers`, its id perhaps by `broker.id`, and
    no object store. With one address there is one voter, this node, and its objects lie beside its
    logs.
    """
    implied: dict[str, Any] = {}
    if values["node.id"] is None and given.get("broker.id", "").isdecimal():
        implied["node.id"] = int(given["broker.id"])
    node_id = implied.get("node.id", values["node.id"])
    servers = given.get("controller.quorum.bootstrap.servers", "")
    has_roles = set(values["process.roles"] or ()) == ROLES
    if values["controller.quorum.voters"] is not None or not servers or node_id is None:
        return implied
    if "," in servers or not has_roles or "controller.quorum.voters" in wrong:
        return implied
    try:
        implied["controller.quorum.voters"] = voters_of(f"{node_id}@{servers}")
    except ValueError:
        return implied
    directory = values["log.dirs"][0] if values["log.dirs"] else values["log.dir"]
    if values["diskless.storage.class.name"] == DIRECTORY and directory:
        implied["esker.storage.directory.path"] = values["esker.storage.directory.path"] or str(
            Path(directory) / "esker-objects"
        )
    return implied


def _unknown(key: str) -> str:
    close = difflib.get_close_matches(key, SETTINGS, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"not a setting of this node{hint}"


def _check_together(
    values: Mapping[str, Any],
    given: Mapping[str, str],
    without_effect: Sequence[str],
    id_key: str,
) -> NodeSettings:
    roles = _roles(values)
    voters: dict[NodeId, Endpoint] = values["controller.quorum.voters"]
    node_id = NodeId(values["node.id"])
    errors = [*_group_errors(values), *_transaction_errors(values)]
    if CONTROLLER not in roles and node_id in voters:
        message = f"{node_id} is a voter's (controller.quorum.voters): a broker needs its own"
        errors.append(ConfigError(id_key, message))
    if values[IDENTITY] != "off" and not values[AUTHORIZER]:
        errors.append(ConfigError(IDENTITY, f"needs {AUTHORIZER}, which says who is a node at all"))
    if BROKER in roles:
        errors += _broker_errors(values)
    try:
        addresses = addresses_of(values, roles, voters, given)
        log_dir = _log_dir(values)
        coordinators = _coordinators(values, voters=len(voters))
        if values[IDENTITY] == "enforce" and addresses.controller_protocol == PLAINTEXT:
            errors.append(
                ConfigError(
                    IDENTITY, f"{addresses.controller_name} is PLAINTEXT: no peer has an identity"
                )
            )
    except ConfigError as error:
        raise_all([*errors, error])
        raise
    raise_all(errors)
    warnings = list(addresses.warnings)
    if not addresses.is_secured and (unused := sorted(key for key in given if key in OF_LISTENERS)):
        warnings.append(f"settings without effect, for no listener has TLS or SASL: {unused}")
    if without_effect:
        warnings.append(f"settings of Kafka without effect here: {', '.join(without_effect)}")
    retention_bytes: int = values["metadata.max.retention.bytes"]
    return NodeSettings(
        roles=roles,
        node_id=node_id,
        voters=voters,
        addresses=addresses,
        log_dir=log_dir,
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
        coordinators=coordinators,
        topic_defaults=topic_defaults(values),
        warnings=tuple(warnings),
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
        max_producers=values["esker.max.producers"],
        retention_check_interval_ms=values["log.retention.check.interval.ms"],
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


def _group_errors(values: Mapping[str, Any]) -> Iterator[ConfigError]:
    """Yield an error if the settings of consumer groups contradict each other."""
    try:
        GroupSettings.of(values)
    except ValueError as error:
        yield ConfigError("group.max.session.timeout.ms", str(error))


def _transaction_errors(values: Mapping[str, Any]) -> Iterator[ConfigError]:
    """Yield an error if a marker can be forgotten before a late commit of its transaction."""
    lease_ms = values["esker.object.lease.timeout.ms"]
    upload_ms = values["esker.append.upload.timeout.ms"]
    if values["producer.id.expiration.ms"] <= lease_ms + upload_ms:
        yield ConfigError(
            "producer.id.expiration.ms",
            f"is not above {lease_ms + upload_ms}, esker.object.lease.timeout.ms and "
            "esker.append.upload.timeout.ms together: a batch that is committed late could reopen "
            "a transaction that has ended; raise it or lower these",
        )


def _broker_errors(values: Mapping[str, Any]) -> Iterator[ConfigError]:
    """Yield an error for each setting with which a broker cannot run."""
    if not values["diskless.system.enable"]:
        yield ConfigError("diskless.system.enable", "a broker here has no other topics: leave true")
    if values["diskless.batch.coordinator.class.name"] != QUORUM:
        yield ConfigError(
            "diskless.batch.coordinator.class.name",
            f"a broker finds batches by replicas of {QUORUM} alone",
        )
    if (
        values["diskless.storage.class.name"] == DIRECTORY
        and not (values["esker.storage.directory.path"])
    ):
        yield ConfigError(
            "esker.storage.directory.path",
            "must be set: where all brokers keep their objects",
        )
    if values["diskless.file.delete.delay.ms"] < LEAST_DELETE_DELAY_MS:
        yield ConfigError(
            "diskless.file.delete.delay.ms",
            f"is below {LEAST_DELETE_DELAY_MS}: a broker whose metadata is half as old serves "
            "nothing, and it hears of an idle log every "
            f"{QuorumConfig().fetch_max_wait_ms} ms",
        )
    deadline_ms = values["esker.delete.physical.max.ms"]
    least_ms = values["diskless.file.delete.delay.ms"] + values["esker.compaction.interval.ms"]
    if 0 <= deadline_ms < 4 * least_ms:
        yield ConfigError(
            "esker.delete.physical.max.ms",
            f"is below {4 * least_ms}, four times diskless.file.delete.delay.ms and "
            "esker.compaction.interval.ms together: raise it or lower these",
        )
    try:
        WriterSettings.of(values)
    except ValueError as error:
        yield ConfigError("esker.object.lease.timeout.ms", str(error))
    session_ms = values["broker.session.timeout.ms"]
    if 2 * values["broker.heartbeat.interval.ms"] > session_ms:
        yield ConfigError(
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
    "HostSettings",
    "NodeSettings",
    "PropertiesError",
    "load_config",
    "load_host",
    "parse_config",
    "parse_endpoint",
    "parse_host",
]
