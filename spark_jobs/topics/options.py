"""The options of `esker_records`: those of Spark's Kafka source, and where the records lie.

A query that read `format("kafka")` names the object store besides, and nothing else changes.
Options that tune consumers have nothing to act on here, and are named in a warning. TLS and SASL
of the connections to brokers have the names of Kafka's client properties, `kafka.` before them.

Source: docs/tables.md; Spark's Structured Streaming + Kafka Integration Guide.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final

from spark_jobs.readers.object_store import ObjectStore, StoreOptions, open_store
from spark_jobs.source.option_error import OptionError, check_security
from spark_jobs.topics.coordinates import READ_COMMITTED, READ_UNCOMMITTED, TopicPartition
from spark_jobs.topics.decoder import COLUMNS, HEADERS, TYPES

BOOTSTRAP: Final = "kafka.bootstrap.servers"
ISOLATION: Final = "kafka.isolation.level"

OPTIONS: Final[Mapping[str, str]] = {
    BOOTSTRAP: "HOST:PORT[,...]: brokers that tell where records lie",
    "logDir": "instead of brokers: a node's log directory",
    "bootstrapController": "instead of brokers: HOST:PORT[,...], controllers to read the logs from",
    "archive": "instead of brokers: an archive of the logs, DIR or s3://BUCKET/PREFIX",
    "prefix": "with logs: key prefix of the objects, the brokers' esker.object.key.prefix",
    "store": "the object store: DIR or s3://BUCKET[/PREFIX]",
    "endpoint": "endpoint of the bucket's S3 server, if it is not Amazon's: http[s]://HOST:PORT",
    "region": "region of the bucket",
    "timeoutMs": "ms to wait for an answer of brokers or controllers; default 30000",
    "subscribe": "topics, comma separated",
    "subscribePattern": "regular expression that the whole name of a topic matches",
    "assign": 'partitions, as JSON: {"topic":[0,1]}',
    "startingOffsets": "batch: earliest (default) or JSON; streams: latest (default), too",
    "endingOffsets": "batch: latest (default) or JSON",
    "startingTimestamp": "ms since 1970: start at the first record that is not older",
    "endingTimestamp": "batch, ms since 1970: end before the first record that is not older",
    "startingOffsetsByTimestamp": 'the same for each partition, as JSON: {"topic":{"0":1000}}',
    "endingOffsetsByTimestamp": "the same for each partition, as JSON",
    "startingOffsetsByTimestampStrategy": "without such a record: error (default) or latest",
    "includeHeaders": "true: the column headers; default false",
    "failOnDataLoss": "fail if offsets were deleted (default true); false: warn and continue",
    ISOLATION: "read_uncommitted (default) or read_committed",
    "minPartitions": "tasks at the least; default: by size",
    "maxRecordsPerPartition": "offsets in one task at the most; default: by size",
    "maxOffsetsPerTrigger": "streams: offsets in one micro-batch; default: all that are there",
    "columns": "columns to read, comma separated; default: all",
}

_OF_CONSUMERS: Final = frozenset(
    {
        "kafkaconsumer.polltimeoutms",
        "fetchoffset.numretries",
        "fetchoffset.retryintervalms",
        "groupidprefix",
        "kafka.group.id",
    }
)
"""Options of Spark's Kafka source about its consumers, in lower case."""

_SECURITY: Final = ("kafka.security.", "kafka.sasl.", "kafka.ssl.")


Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class LogSource:
    """The logs that coordinates are read from."""

    log_dir: Path | None
    controllers: tuple[Address, ...]
    archive: str | None


class Edge(Enum):
    """An end of a partition."""

    EARLIEST = -2
    LATEST = -1


@dataclass(frozen=True, slots=True)
class Times:
    """Offsets that are given by time, in ms since 1970."""

    default: int | None  # of all partitions
    times: Mapping[TopicPartition, int]
    or_latest: bool  # where no record is as late


Offsets = Edge | Mapping[TopicPartition, int | Edge] | Times
"""One edge of all partitions, an offset or edge of each, or times."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a read, parsed."""

    brokers: tuple[Address, ...]  # none: from logs
    logs: LogSource | None
    prefix: str
    store: str
    store_options: StoreOptions
    timeout_ms: int
    topics: tuple[str, ...]  # of subscribe
    pattern: str | None
    assigned: tuple[TopicPartition, ...]
    starting: Offsets | None  # None: the default
    ending: Offsets | None
    columns: tuple[str, ...]
    fail_on_data_loss: bool
    committed: bool
    min_partitions: int | None
    max_records: int | None
    max_offsets: int | None  # of one micro-batch of a stream
    ignored: tuple[str, ...]  # options about consumers
    security: Mapping[str, str] = field(repr=False)  # Kafka's client properties of TLS and SASL

    def open_store(self) -> ObjectStore:
        """Open the object store."""
        return open_store(self.store, self.store_options)


def parse_options(options: Mapping[str, str]) -> Options:
    """Parse the options of a read from text.

    Raises:  OptionError.
    """
    known = {name.lower(): name for name in OPTIONS}
    given: dict[str, str] = {}
    ignored: list[str] = []
    security: dict[str, str] = {}
    for name, text in options.items():
        lower = name.lower()
        if lower in known:
            given[known[lower]] = text
        elif lower.startswith(_SECURITY):
            security[lower.removeprefix("kafka.")] = text
        elif lower in _OF_CONSUMERS or lower.startswith("kafka."):
            ignored.append(name)
        else:
            raise OptionError(f"{name}: no such option; there are: {', '.join(OPTIONS)}")
    store_options = StoreOptions(given.get("endpoint"), given.get("region"))
    brokers, logs = _coordinates_of(given)
    if security and not brokers and not (logs and logs.controllers):
        raise OptionError(
            f"kafka.{next(iter(security))}: only brokers and controllers are asked with TLS or SASL"
        )
    check_security(security)
    topics, pattern, assigned = _subscription(given)
    store = given.get("store")
    if not store:
        raise OptionError("store: name the object store, DIR or s3://BUCKET[/PREFIX]")
    try:
        store = open_store(store, store_options).uri
    except ValueError as error:
        raise OptionError(f"store: {error}") from None
    return Options(
        brokers=brokers,
        logs=logs,
        prefix=given.get("prefix", "").strip("/"),
        store=store,
        store_options=store_options,
        timeout_ms=_number(given, "timeoutMs") or 30_000,
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        starting=_offsets(given, "starting"),
        ending=_offsets(given, "ending"),
        columns=_columns(given),
        fail_on_data_loss=_choice(given, "failOnDataLoss", ("true", "false")) == "true",
        committed=_choice(given, ISOLATION, (READ_UNCOMMITTED, READ_COMMITTED)) == READ_COMMITTED,
        min_partitions=_number(given, "minPartitions"),
        max_records=_number(given, "maxRecordsPerPartition"),
        max_offsets=_number(given, "maxOffsetsPerTrigger"),
        ignored=tuple(ignored),
        security=security,
    )


def _coordinates_of(
    given: Mapping[str, str],
) -> tuple[tuple[Address, ...], LogSource | None]:
    """Return the brokers, or the logs, that coordinates come from."""
    controllers = _addresses(given, "bootstrapController")
    logs = [name for name in ("logDir", "bootstrapController", "archive") if given.get(name)]
    if given.get(BOOTSTRAP):
        if logs:
            raise OptionError(f"{logs[0]}: give {BOOTSTRAP} or logs, not both")
        return _addresses(given, BOOTSTRAP), None
    if not logs:
        raise OptionError(
            f"name the source of coordinates: {BOOTSTRAP}, logDir, bootstrapController or archive"
        )
    log_dir = given.get("logDir")
    path = None if log_dir is None else Path(log_dir).absolute()
    return (), LogSource(path, controllers, given.get("archive"))


def _subscription(
    given: Mapping[str, str],
) -> tuple[tuple[str, ...], str | None, tuple[TopicPartition, ...]]:
    """Return the topics, the pattern or the partitions that are read."""
    names = [name for name in ("subscribe", "subscribePattern", "assign") if given.get(name)]
    if len(names) != 1:
        raise OptionError("give one of subscribe, subscribePattern and assign")
    text = given[names[0]]
    if names[0] == "subscribe":
        topics = _words(text)
        if not topics:
            raise OptionError("subscribe: no topic")
        return topics, None, ()
    if names[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError(f"subscribePattern: {error}") from None
        return (), text, ()
    found = _json(given, "assign")
    if not all(
        isinstance(some, list) and all(type(one) is int and one >= 0 for one in some)
        for some in found.values()
    ):
        raise OptionError('assign: not of the form {"topic":[0,1]}')
    return (
        (),
        None,
        tuple(TopicPartition(name, one) for name, some in found.items() for one in some),
    )


def _offsets(given: Mapping[str, str], edge: str) -> Offsets | None:
    """Return the starting or ending offsets that options give, or None if they give none.

    As in Spark's source, a time of all partitions comes before times of each, and times before
    offsets.
    """
    strategy = _choice(given, "startingOffsetsByTimestampStrategy", ("error", "latest"))
    or_latest = edge == "ending" or strategy == "latest"
    if (time := _number(given, f"{edge}Timestamp", least=0)) is not None:
        return Times(time, {}, or_latest)
    if (name := f"{edge}OffsetsByTimestamp") in given:
        return Times(None, _by_partition(given, name), or_latest)
    name = f"{edge}Offsets"
    text = given.get(name, "").strip()
    if not text:
        return None
    if text.lower() in ("earliest", "latest"):
        return Edge[text.upper()]
    edges = {one.value: one for one in Edge}
    found = _by_partition(given, name)
    for place, offset in found.items():
        if offset < 0 and offset not in edges:
            raise OptionError(f"{name}: {place}: {offset} is no offset, nor -1 or -2")
    return {place: edges.get(offset, offset) for place, offset in found.items()}


def _by_partition(given: Mapping[str, str], name: str) -> dict[TopicPartition, int]:
    """Return the number of each partition in JSON like {"topic":{"0":23}}."""
    found = {}
    for topic, numbers in _json(given, name).items():
        if not isinstance(numbers, dict):
            raise OptionError(f'{name}: not of the form {{"topic":{{"0":23}}}}')
        for index, number in numbers.items():
            if not index.isdecimal() or type(number) is not int:
                raise OptionError(f'{name}: not of the form {{"topic":{{"0":23}}}}')
            found[TopicPartition(topic, int(index))] = number
    return found


def _columns(given: Mapping[str, str]) -> tuple[str, ...]:
    with_headers = _choice(given, "includeHeaders", ("false", "true")) == "true"
    there = (*COLUMNS, HEADERS) if with_headers else COLUMNS
    columns = _words(given.get("columns", ""))
    for column in columns:
        if column not in TYPES:
            raise OptionError(f"columns: there is no {column}; there are: {', '.join(TYPES)}")
    return columns or there


def _json(given: Mapping[str, str], name: str) -> dict[str, Any]:
    try:
        found = json.loads(given[name])
    except ValueError as error:
        raise OptionError(f"{name}: no JSON: {error}") from None
    if not isinstance(found, dict) or not found:
        raise OptionError(f"{name}: not a JSON object with topics")
    return found


def _number(given: Mapping[str, str], name: str, *, least: int = 1) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < least:
        raise OptionError(f"{name}: {text!r} is no number from {least} on")
    return int(text)


def _choice(given: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """Return an option's value in lower case; the first of the choices is the default."""
    text = given.get(name, choices[0]).strip().lower()
    if text not in choices:
        raise OptionError(f"{name}: {text!r} is none of {', '.join(choices)}")
    return text


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _addresses(given: Mapping[str, str], name: str) -> tuple[Address, ...]:
    found = []
    for text in _words(given.get(name, "")):
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port[:6]) < 1 << 16:
            raise OptionError(f"{name}: {text!r} is not HOST:PORT")
        found.append((host.strip("[]"), int(port)))
    return tuple(found)
