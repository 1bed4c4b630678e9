"""Plans a cluster below one directory: three quorum nodes, brokers, and their objects.

    DIR/esker-dev.json        whose directory this is: cluster id, where the objects are
    DIR/quorum-1 ... -3/      the logs of the quorum's nodes; with the objects, all there is
    DIR/broker-101 .../       copies of those logs, which brokers read
    DIR/broker-processes/     the same of all brokers of --processes, by id
    DIR/objects/              records, unless they go to S3
    DIR/settings/*.properties one file for each process, written anew at every start
    DIR/security/             with --secure: certificates, and the settings of clients
    DIR/output/*.log, *.pid   what each process says, and its id, for who wants to kill one

Everything listens on loopback. The brokers' ports are those asked for and the ones above; the
quorum takes the first free ones ten further on. They are not left to the system, which chooses from
the range it also gives to clients: a node that comes back after a kill would find its port taken,
perhaps by a connection that a neighbour made to itself.

Source: docs/design/running.md#one-command-for-a-newcomer.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from esker.dev.secure import SECURITY
from esker.server.storage import format_storage
from esker.settings.config import NodeSettings, parse_config, parse_host
from esker.settings.values import Endpoint
from raft.driver.registry import LOCK_FILE
from raft.segments.properties import META_PROPERTIES_FILE
from records.uuids import encode_uuid, random_uuid

HOST: Final = "127.0.0.1"
QUORUM: Final = (1, 2, 3)
FIRST_BROKER: Final = 101
MAX_BROKERS: Final = 9
QUORUM_PORTS_FROM: Final = 10  # above the first broker's port
IDENTITY: Final = "esker-dev.json"
LOCK: Final = ".esker-dev.lock"
LEFTOVERS_S: Final = 20.0
SUPERVISOR: Final = "broker-processes"
OBJECTS: Final = "objects"
SETTINGS: Final = "settings"
OUTPUT: Final = "output"
DIRECTORY_STORE: Final = "diskless.stores.directory.DirectoryStorage"
S3_STORE: Final = "diskless.stores.s3.S3Storage"


class DevError(Exception):
    """The cluster cannot be started; the message names the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """The object store: a bucket, or (None) the directory."""

    bucket: str | None = None
    endpoint: str | None = None
    region: str | None = None

    def settings(self, directory: Path) -> dict[str, str]:
        """Return a broker's settings of the object store, a bucket or a part of `directory`."""
        if self.bucket is None:
            return {
                "diskless.storage.class.name": DIRECTORY_STORE,
                "esker.storage.directory.path": str(directory / OBJECTS),
            }
        found = {
            "diskless.storage.class.name": S3_STORE,
            "esker.storage.s3.bucket": self.bucket,
        }
        if self.endpoint is not None:
            found["esker.storage.s3.endpoint"] = self.endpoint
            found["esker.storage.s3.path.style"] = "true"
        if self.region is not None:
            found["esker.storage.s3.region"] = self.region
        return found

    def place(self, directory: Path) -> str:
        """Return the object store's location, a path or an S3 URL, to be shown in messages."""
        if self.bucket is None:
            return str(directory / OBJECTS)
        return f"s3://{self.bucket}" + (f" at {self.endpoint}" if self.endpoint else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The owner of a directory, stored in it."""

    cluster_id: str
    store: Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process of the cluster, with its command and output file."""

    name: str  # `quorum-1`, `broker-101`, `broker-processes`
    node_id: int  # of a supervisor, the first of its brokers
    endpoint: Endpoint
    properties: Path
    output: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A cluster whose settings and directories are written, ready to start."""

    directory: Path
    identity: Identity
    quorum: tuple[Process, ...]
    brokers: tuple[Process, ...]  # with --processes, the only one is their supervisor
    broker_count: int

    @property
    def bootstrap(self) -> str:
        """Return the dev cluster's address for `--bootstrap-server`."""
        return ",".join(str(broker.endpoint) for broker in self.brokers)

    @property
    def controllers(self) -> str:
        """Return the quorum's addresses as a value of `--bootstrap-controller`."""
        return ",".join(str(node.endpoint) for node in self.quorum)


# --- whose directory ----------------------------------------------------------------------------


@contextmanager
def owned(directory: Path) -> Iterator[None]:
    """Lock the directory, created if missing, against use by another `esker dev`.

    Raises DevError.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / LOCK).open("w")
    except OSError as error:
        why = "is no directory" if directory.is_file() else f"{error.strerror}"
        raise DevError(f"{directory}: {why}: name another with --dir") from None
    with lock:
        if not _is_locked(lock):
            raise DevError(
                f"{directory} is in use by another `esker dev`: stop that one, or use another --dir"
            )
        wait_for_leftovers(directory)
        yield


def wait_for_leftovers(directory: Path) -> None:
    """Wait until all processes of a killed `esker dev` have ended.

    Raises:  DevError if they do not.
    """
    deadline = time.monotonic() + LEFTOVERS_S
    for path in sorted(directory.glob(f"*-*/{LOCK_FILE}")):
        with path.open("r+") as lock:
            while not _is_locked(lock):
                if time.monotonic() > deadline:
                    raise DevError(f"{path.parent} is in use: end the process that has it")
                time.sleep(0.05)


def _is_locked(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def identify(directory: Path, store: Store | None) -> Identity:
    """Return the directory's cluster identity, creating an identity in an empty directory.

    Args:    store: None: the one it has, a directory store if it is new. Another is taken as
             long as nothing was formatted: what came of a first attempt binds nobody.
    Raises:  DevError if it is somebody else's, or its records are in another store.
    """
    path = directory / IDENTITY
    try:
        kept = _parse(path.read_text())
    except FileNotFoundError:
        kept = None
    except (ValueError, KeyError, TypeError):
        raise DevError(f"{path} is damaged: --reset begins anew, without what was there") from None
    if kept is None:
        others = sorted(entry.name for entry in directory.iterdir() if entry.name != LOCK)
        if others:
            raise DevError(
                f"{directory} holds something else ({', '.join(others[:3])}): "
                "name a directory of its own with --dir"
            )
        kept = Identity(cluster_id=encode_uuid(random_uuid()), store=store or Store())
        _write(path, json.dumps(_as_json(kept), indent=2) + "\n")
    elif store is not None and store != kept.store:
        if not any(directory.glob(f"quorum-*/{META_PROPERTIES_FILE}")):  # it never began
            kept = replace(kept, store=store)
            _write(path, json.dumps(_as_json(kept), indent=2) + "\n")
            return kept
        raise DevError(
            f"the records of {directory} are in {kept.store.place(directory)}: leave --store out, "
            "or begin another cluster with --dir or --reset"
        )
    return kept


def _as_json(identity: Identity) -> dict[str, Any]:
    store = identity.store
    return {
        "clusterId": identity.cluster_id,
        "bucket": store.bucket,
        "endpoint": store.endpoint,
        "region": store.region,
    }


def _parse(text: str) -> Identity:
    found = json.loads(text)
    store = Store(bucket=found["bucket"], endpoint=found["endpoint"], region=found["region"])
    return Identity(cluster_id=str(found["clusterId"]), store=store)


def _write(path: Path, text: str) -> None:
    """Write the text to the file atomically, replacing the old content."""
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    with open(temporary, "w", opener=_for_owner) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)


def _for_owner(path: str, flags: int) -> int:
    """Open a new file that only its owner can read, because settings may hold passwords."""
    return os.open(path, flags, 0o600)


def belongings(directory: Path) -> tuple[Path, ...]:
    """List the files that `esker dev` created in a directory, which --reset removes."""
    found = [
        entry
        for pattern in (
            IDENTITY, f"{IDENTITY}.tmp", OBJECTS, SETTINGS, OUTPUT, SECURITY,
            "quorum-*", "broker-*",
        )
        for entry in directory.glob(pattern)
    ]  # fmt: skip
    return tuple(sorted(found)) if (directory / IDENTITY).exists() else ()


def remove(paths: Iterable[Path]) -> None:
    """Delete files of the dev cluster, the identity file last so that a rerun can finish."""
    for path in sorted(paths, key=lambda path: path.name == IDENTITY):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


# --- a plan -------------------------------------------------------------------------------------


def ports_of_brokers(port: int, brokers: int, processes: int | None) -> range:
    """Return the ports of the brokers, with their bootstrap port if they are processes of one file.

    Args:  those of `make_plan`.
    """
    return range(port, port + (brokers if processes is None else processes + 1))


def make_plan(
    directory: Path,
    identity: Identity,
    *,
    port: int,
    brokers: int,
    extra: Mapping[str, str],
    listener: str = "PLAINTEXT",
    processes: int | None = None,
) -> Plan:
    """Plan the nodes of `esker dev`: choose ports, write settings, format new directories.

    Args:    extra: settings for every process, over our own.
             listener: name of the brokers' listener.
             processes: run so many brokers of one properties file, which share the bootstrap port
                 `port` and have the ports above it; None: run `brokers` of a file each.
    Raises:  DevError for a port that is taken; ConfigError, StorageError, OSError.
    """
    broker_ports = ports_of_brokers(port, brokers, processes)
    for one in broker_ports:
        if not is_free(one):
            raise DevError(
                f"port {one} is taken, perhaps by another `esker dev` or a Kafka: name a free one "
                "with --port"
            )
    quorum_ports = _free_ports(port + QUORUM_PORTS_FROM, len(QUORUM))
    voters = ",".join(f"{node}@{HOST}:{at}" for node, at in zip(QUORUM, quorum_ports, strict=True))
    shared = {
        "controller.quorum.voters": voters,
        "controller.quorum.election.timeout.ms": "400",  # the first leaders, a second sooner
        "group.initial.rebalance.delay.ms": "0",
    }
    own = {"process.roles": "controller"}
    quorum = [
        _settings(directory, f"quorum-{node}", node, at, "CONTROLLER", shared | own, extra)
        for node, at in zip(QUORUM, quorum_ports, strict=True)
    ]
    own = {"process.roles": "broker", **identity.store.settings(directory)}
    if processes is None:
        planned = [
            _settings(directory, f"broker-{node}", node, at, listener, shared | own, extra)
            for node, at in enumerate(broker_ports, start=FIRST_BROKER)
        ]
    else:
        settings = shared | own | _of_processes(processes, port, listener)
        planned = [_settings_of_supervisor(directory, port, listener, settings, extra)]
    # Nothing was written before: settings that are refused leave no directory behind.
    (directory / SETTINGS).mkdir(exist_ok=True)
    (directory / OUTPUT).mkdir(exist_ok=True)
    return Plan(
        directory=directory,
        identity=identity,
        quorum=tuple(_make_process(directory, identity, one) for one in quorum),
        brokers=tuple(_make_process(directory, identity, one) for one in planned),
        broker_count=processes or brokers,
    )


class _ProcessSettings(NamedTuple):
    """The settings of a process that is not made yet."""

    name: str
    node_id: int
    port: int
    properties: Mapping[str, str]
    nodes: Sequence[NodeSettings]  # that it runs, or starts as children


def _of_processes(count: int, port: int, listener: str) -> dict[str, str]:
    """Return the settings of several broker processes of one file, with ports from `port` + 1."""
    return {
        "esker.broker.processes": str(count),
        "esker.broker.ids": f"{FIRST_BROKER}-{FIRST_BROKER + count - 1}",
        "advertised.listeners": f"{listener}://{HOST}:{{{port + 1}+i}}",
    }


def _settings_of_supervisor(
    directory: Path,
    port: int,
    listener: str,
    settings: Mapping[str, str],
    extra: Mapping[str, str],
) -> _ProcessSettings:
    """Return the settings of several broker processes of one file. Raises ConfigError."""
    properties = {
        "listeners": f"{listener}://{HOST}:{port}",
        "log.dirs": str(directory / SUPERVISOR),
        **settings,
        **extra,
    }
    nodes = parse_host(properties).brokers
    return _ProcessSettings(SUPERVISOR, FIRST_BROKER, port, properties, nodes)


def _settings(
    directory: Path,
    name: str,
    node_id: int,
    port: int,
    listener: str,
    settings: Mapping[str, str],
    extra: Mapping[str, str],
) -> _ProcessSettings:
    """Return the settings of a node's process. Raises ConfigError."""
    properties = {
        "node.id": str(node_id),
        "listeners": f"{listener}://{HOST}:{port}",
        "log.dirs": str(directory / name),
        **settings,
        **extra,
    }
    return _ProcessSettings(name, node_id, port, properties, [parse_config(properties)])


def _make_process(directory: Path, identity: Identity, process: _ProcessSettings) -> Process:
    """Format the directories of a process if they are new, and write its properties file."""
    for node in process.nodes:
        if not (node.log_dir / META_PROPERTIES_FILE).exists():
            format_storage(node, identity.cluster_id)
    path = directory / SETTINGS / f"{process.name}.properties"
    lines = (f"{key}={_escape(value)}\n" for key, value in process.properties.items())
    _write(path, "".join(lines))
    return Process(
        name=process.name,
        node_id=process.node_id,
        endpoint=Endpoint(HOST, process.port),
        properties=path,
        output=directory / OUTPUT / f"{process.name}.log",
    )


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\")


def is_free(port: int) -> bool:
    """Return whether a listener could bind the port on loopback. Raises DevError."""
    if not 0 < port < 65536:
        raise DevError(f"{port} is no port")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as a listener does
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _free_ports(first: int, count: int) -> list[int]:
    """Return the lowest `count` free ports, starting at `first`. Raises DevError."""
    found: list[int] = []
    for port in range(first, min(first + 1000, 65536)):
        if is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    raise DevError(f"no {count} free ports from {first} on: choose another --port")
