"""Several brokers of one properties file: what each of them has of its own.

    plan = plan_processes({"esker.broker.processes": "2", "esker.broker.ids": "101-102", ...})
    plan.brokers[1].node_id      # 102; its port, its directory, its part of memory and budgets

The file describes the host. Each broker's settings are derived from it as text and then checked as
if they had stood in a file of their own, so one broker of several is refused what a single one is.

Source: docs/design/processes.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from diskless.produce.closing import ClosingSettings
from esker.settings.addresses import BROKER
from esker.settings.base import Setting
from esker.settings.errors import ConfigError, raise_all
from esker.settings.values import (
    MEBIBYTE,
    Endpoint,
    integer,
    is_loopback,
    is_wildcard,
    listeners,
    node_id_of,
    parse_endpoint,
    voters_of,
    words,
)

CACHE_DIR: Final = "esker.cache.dir"
PROCESSES: Final = "esker.broker.processes"
IDS: Final = "esker.broker.ids"
METRICS: Final = "esker.metrics.listener"
ADVERTISED: Final = "advertised.listeners"
MAX_PROCESSES: Final = 64
CHILD_METRICS: Final = "127.0.0.1:0"

DIVIDED: Final = {
    "esker.append.max.in.flight.bytes": MEBIBYTE,
    "esker.fetch.cache.max.bytes": 0,
    "esker.fetch.read.ahead.max.bytes": 0,
    "esker.cache.max.bytes": 64 * MEBIBYTE,
    "esker.cache.fill.max.bytes.per.second": 1024,
    "esker.append.objects.per.second": 1,
    "esker.append.runs.per.second": 1,
}
"""Settings that hold for all processes of a file together, and the least that one process gets."""

_PORT: Final = re.compile(r"\{(\d{1,5})\+i\}")
_RANGE: Final = re.compile(r"(\d+)(?:\s*-\s*(\d+))?")


def parse_ids(text: str) -> tuple[int, ...]:
    """Parse node ids and ranges of them, both ends included.

    >>> parse_ids("101-103, 107")
    (101, 102, 103, 107)
    """
    found: list[int] = []
    for part in words(text):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r} is neither ID nor FIRST-LAST")
        first, last = node_id_of(match[1]), node_id_of(match[2] or match[1])
        if last < first:
            raise ValueError(f"{part!r} ends before it begins")
        if last - first >= MAX_PROCESSES:
            raise ValueError(f"{part!r} has more than {MAX_PROCESSES} ids")
        found += range(first, last + 1)
    if (twice := [one for one, next_one in pairwise(sorted(found)) if one == next_one]) != []:
        raise ValueError(f"{twice[0]} stands twice")
    return tuple(found)


SETTINGS: Final = (
    Setting(
        PROCESSES,
        integer(1, MAX_PROCESSES),
        None,
        "Number of broker processes that `esker start` runs from this file, each a broker of its "
        "own; default: one process, which is the node.",
    ),
    Setting(
        IDS,
        parse_ids,
        (),
        f"Node ids of these processes, as `101-104` or `101,102`, instead of `node.id`; as many as "
        f"`{PROCESSES}`.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlan:
    """The broker processes of one properties file, before the settings of each are checked."""

    shared: Mapping[str, Endpoint]  # by listener's name: bound once, every process accepts from it
    metrics: Endpoint | None  # serves the metrics and health of all processes
    log_dir: Path
    children: tuple[Mapping[str, str], ...]  # the properties of each process


def plan_processes(properties: Mapping[str, str]) -> ProcessPlan:
    """Derive each process's properties from those of the file.

    The memory and budgets of the file are not divided yet: see `divide`.

    Raises:  ConfigError with a line for each wrong setting that names its key.
    """
    count: int = _parsed(PROCESSES, integer(1, MAX_PROCESSES), properties)
    errors = list(_of_the_whole_file(properties))
    raise_all(errors)
    ids: tuple[int, ...] = _parsed(IDS, parse_ids, properties)
    if len(ids) != count:
        raise ConfigError(
            IDS, f"has {len(ids)} ids for {count} processes ({PROCESSES}): write one for each"
        )
    shared: dict[str, Endpoint] = _parsed("listeners", listeners, properties)
    advertised = _advertised(properties.get(ADVERTISED, ""), shared, count)
    own = [
        {name: Endpoint(shared[name].host, place.port) for name, place in of_child.items()}
        for of_child in advertised
    ]
    metrics = _parsed(METRICS, parse_endpoint, properties) if METRICS in properties else None
    _check_ports(properties, ids, shared, own, advertised, metrics)
    log_dir = _log_dir(properties)
    return ProcessPlan(
        shared=shared,
        metrics=metrics,
        log_dir=log_dir,
        children=tuple(
            _child(properties, node_id, log_dir / str(node_id), binds, places, metrics)
            for node_id, binds, places in zip(ids, own, advertised, strict=True)
        ),
    )


def divide(properties: Mapping[str, str], values: Mapping[str, Any], count: int) -> dict[str, str]:
    """Return a process's properties with its part of the file's memory and budgets.

    Args:  values: the parsed settings of `properties`. count: of the file's processes.
    """
    whole = {key: values[key] for key in DIVIDED}
    whole["esker.append.objects.per.second"] = ClosingSettings.of(values).objects_per_second
    parts = {
        key: str(max(min(least, whole[key]), whole[key] // count)) for key, least in DIVIDED.items()
    }
    return {**properties, **parts}


def _parsed(key: str, parse: Any, properties: Mapping[str, str]) -> Any:
    """Parse one setting that must be there. Raises ConfigError."""
    if not properties.get(key, "").strip():
        raise ConfigError(key, f"must be set, because {PROCESSES} is")
    try:
        return parse(properties[key])
    except ValueError as error:
        raise ConfigError(key, str(error)) from None


def _of_the_whole_file(properties: Mapping[str, str]) -> Iterator[ConfigError]:
    if words(properties.get("process.roles", "")) != (BROKER,):
        message = f"needs process.roles={BROKER}: a controller is one process"
        yield ConfigError(PROCESSES, message)
    for key in ("node.id", "broker.id"):
        if key in properties:
            yield ConfigError(key, f"leave it out: {IDS} has the ids of {PROCESSES}")


def _advertised(text: str, shared: Mapping[str, Endpoint], count: int) -> list[dict[str, Endpoint]]:
    """Return each process's advertised address by listener. Raises ConfigError."""
    by_name: dict[str, list[str]] = {name: [] for name in shared}
    for part in words(text):
        name, separator, address = part.partition("://")
        if not separator:
            raise ConfigError(ADVERTISED, f"{part!r} is not NAME://HOST:PORT")
        if name not in by_name:
            raise ConfigError(ADVERTISED, f"{name} is not in listeners")
        by_name[name].append(address)
    places: list[dict[str, Endpoint]] = [{} for _ in range(count)]
    for name, addresses in by_name.items():
        if len(addresses) == 1 and _PORT.search(addresses[0]):
            addresses = [_with_port(addresses[0], child) for child in range(count)]
        if len(addresses) != count:
            raise ConfigError(
                ADVERTISED,
                f"{name} has {len(addresses)} addresses for {count} processes: write "
                f"{name}://HOST:{{9101+i}} (the ports from 9101 on), or {count} addresses",
            )
        for child, address in enumerate(addresses):
            try:
                places[child][name] = parse_endpoint(address)
            except ValueError as error:
                raise ConfigError(ADVERTISED, str(error)) from None
            if not places[child][name].port:
                raise ConfigError(ADVERTISED, f"{name}: no client can connect to port 0")
    return places


def _with_port(address: str, child: int) -> str:
    return _PORT.sub(lambda match: str(int(match[1]) + child), address)


def _check_ports(
    properties: Mapping[str, str],
    ids: Sequence[int],
    shared: Mapping[str, Endpoint],
    own: Sequence[Mapping[str, Endpoint]],
    advertised: Sequence[Mapping[str, Endpoint]],
    metrics: Endpoint | None,
) -> None:
    """Raise ConfigError if two listeners, or a listener and a controller, have one port."""
    for name, place in shared.items():
        if not place.port:
            raise ConfigError("listeners", f"{name}: no client can connect to port 0")
    taken = [(f"the bootstrap port of {name}", place) for name, place in shared.items()]
    if metrics is not None:
        taken.append((METRICS, metrics))
    for node_id, binds in zip(ids, own, strict=True):
        for name, place in binds.items():
            for what, other in taken:
                if _collide(place, other):
                    raise ConfigError(
                        ADVERTISED, f"broker {node_id} would bind {place}, and so does {what}"
                    )
            taken.append((f"broker {node_id} for {name}", place))
    hosts = {place.host for places in advertised for place in places.values()}
    for voter, controller in _voters(properties).items():
        for what, place in taken:
            near = controller.host in hosts or _is_here(controller.host, place.host)
            if place.port == controller.port and near:
                raise ConfigError(
                    "listeners" if place in shared.values() else ADVERTISED,
                    f"{what} has port {place.port} of controller {voter} at {controller}",
                )


def _voters(properties: Mapping[str, str]) -> Mapping[Any, Endpoint]:
    try:
        return voters_of(properties.get("controller.quorum.voters", ""))
    except ValueError:
        return {}  # each process's settings name what is wrong


def _collide(one: Endpoint, other: Endpoint) -> bool:
    same = one.host == other.host or is_wildcard(one.host) or is_wildcard(other.host)
    return bool(one.port) and one.port == other.port and same


def _is_here(controller: str, bound: str) -> bool:
    """Return whether a controller's host is one that a listener on this machine binds."""
    if is_loopback(controller):
        return is_loopback(bound) or is_wildcard(bound)
    return controller == bound


def _log_dir(properties: Mapping[str, str]) -> Path:
    for key in ("metadata.log.dir", "log.dirs", "log.dir"):
        if found := words(properties.get(key, "")):
            return Path(found[0])
    raise ConfigError("log.dirs", "must be set: each process keeps its logs in a directory below")


def _child(
    properties: Mapping[str, str],
    node_id: int,
    log_dir: Path,
    binds: Mapping[str, Endpoint],
    advertised: Mapping[str, Endpoint],
    metrics: Endpoint | None,
) -> dict[str, str]:
    of_the_file = (PROCESSES, IDS, "metadata.log.dir", "log.dir")
    cache_dir = properties.get(CACHE_DIR, "").strip()
    return {
        **{key: text for key, text in properties.items() if key not in of_the_file},
        "node.id": str(node_id),
        "listeners": ",".join(f"{name}://{place}" for name, place in binds.items()),
        ADVERTISED: ",".join(f"{name}://{place}" for name, place in advertised.items()),
        "log.dirs": str(log_dir),
        **({CACHE_DIR: str(Path(cache_dir) / str(node_id))} if cache_dir else {}),
        **({METRICS: CHILD_METRICS} if metrics is not None else {}),
    }
