"""The settings of topics and brokers: types, defaults and allowed values.

A topic's setting overrides the cluster's default for all topics (a broker setting of the empty
name), which overrides the built-in one. All of Kafka's topic settings are accepted with Kafka's
bounds, because tools copy them from topic to topic; those about replicas, segment files and local
disks have no effect. Only what would break a promise is refused: `diskless.enable=false` (every
topic is diskless) and `remote.storage.enable=true` (tiered storage is not implemented).

Source: upstream's TopicConfig and LogConfig; KIP-1163, Public Interfaces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from coordinator.controller.errors import RefusedError
from records.kafka_errors import ErrorCode

MAX_NAME_LENGTH: Final = 249  # of a setting; the same limit as for topic names
MAX_VALUE_BYTES: Final = 32_767  # the longest string of the wire


class ConfigType(IntEnum):
    """Types of settings in DescribeConfigs. Source: KIP-569."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class ConfigDef(NamedTuple):
    """The definition of one setting."""

    type: ConfigType
    default: str
    check: Callable[[str], str | None]  # returns why a value is invalid, or None
    about: str
    broker_name: str | None = None  # name of the cluster-wide default; None: no such default


_WHOLE: Final = re.compile(r" *[+-]?[0-9]{1,20} *")

Check: TypeAlias = Callable[[str], str | None]


def _number(lowest: int, highest: int, kind: str = "LONG") -> Check:
    def check(value: str) -> str | None:
        # Python's int() takes more than Java's
        if not _WHOLE.fullmatch(value) or abs(int(value)) > _MAX[kind]:
            return f"Not a number of type {kind}"
        if int(value) < lowest:
            return f"Value must be at least {lowest}"
        return None if int(value) <= highest else f"Value must be no more than {highest}"

    return check


def _one_of(*allowed: str) -> Check:
    def check(value: str) -> str | None:
        known = value.strip() in allowed
        return None if known else f"String must be one of: {', '.join(allowed)}"

    return check


def _list_of(*allowed: str) -> Check:
    check_item = _one_of(*allowed)

    def check(value: str) -> str | None:
        return next(filter(None, map(check_item, split_list(value))), None)

    return check


def _fraction(value: str) -> str | None:
    try:
        number = float(value)
    except ValueError:
        return "Not a number of type DOUBLE"
    if not number >= 0:
        return "Value must be at least 0"
    return None if number <= 1 else "Value must be no more than 1"


def _boolean(value: str) -> str | None:
    known = value.strip().lower() in ("true", "false")
    return None if known else "Expected value to be either true or false"


def _only_true(value: str) -> str | None:
    if value.strip().lower() == "false":
        return "Every topic of this cluster is diskless"
    return _boolean(value)


_check_gzip: Final = _number(1, 9, "INT")


def _gzip_level(value: str) -> str | None:
    if value.strip() == "-1" or _check_gzip(value) is None:
        return None
    return "Value must be between 1 and 9 or equal to -1"


_THROTTLED: Final = re.compile(r"(\*|( *[0-9]+:[0-9]+ *(,|$))*)")


def _check_throttled(value: str) -> str | None:
    if _THROTTLED.fullmatch(value):
        return None
    return "Must be * or a list of PARTITION:BROKER,PARTITION:BROKER,..."


def split_list(value: str) -> list[str]:
    """Split a LIST setting's value into its items without surrounding blanks."""
    return [item.strip() for item in value.split(",") if item.strip()]


_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
_MAX: Final = {"INT": _INT_MAX, "LONG": _LONG_MAX}
COMPACT: Final = "compact"
DELETE: Final = "delete"


def _long(
    default: int | str,
    lowest: int,
    about: str,
    broker_name: str | None = None,
    highest: int = _LONG_MAX,
) -> ConfigDef:
    check = _number(lowest, highest, "LONG")
    return ConfigDef(ConfigType.LONG, str(default), check, about, broker_name)


def _int(
    default: int, lowest: int, about: str, broker_name: str | None = None, highest: int = _INT_MAX
) -> ConfigDef:
    check = _number(lowest, highest, "INT")
    return ConfigDef(ConfigType.INT, str(default), check, about, broker_name)


def _text(
    default: str, allowed: tuple[str, ...], about: str, broker_name: str | None = None
) -> ConfigDef:
    return ConfigDef(ConfigType.STRING, default, _one_of(*allowed), about, broker_name)


def _flag(
    default: str, about: str, check: Check = _boolean, broker_name: str | None = None
) -> ConfigDef:
    return ConfigDef(ConfigType.BOOLEAN, default, check, about, broker_name)


NO_EFFECT: Final = "No effect: "
_NO_FILES: Final = NO_EFFECT + "records lie in objects, not in segment files."
_NO_REPLICAS: Final = NO_EFFECT + "partitions have no replicas; the object store copies data."
_NO_TIERS: Final = NO_EFFECT + "tiered storage is not implemented."
_AS_SENT: Final = NO_EFFECT + "batches are stored as their producer compressed them."

TOPIC_CONFIGS: Final[dict[str, ConfigDef]] = {
    "cleanup.policy": ConfigDef(
        ConfigType.LIST,
        DELETE,
        _list_of(COMPACT, DELETE),
        "How old records are removed. With `delete` in the list, `retention.ms` and "
        "`retention.bytes` apply. With `compact` in it, each record needs a key, and the newest "
        "record of each key is kept; brokers remove older ones. An empty list keeps all.",
        "log.cleanup.policy",
    ),
    "diskless.enable": _flag(
        "true",
        "Whether records live in object storage; only `true`.",
        _only_true,
    ),
    "esker.retention.enforcer": _text(
        "coordinator",
        ("coordinator", "external", "both"),
        "Which component deletes records past retention: the batch coordinator, the Spark sweep "
        "(`external`), or both.",
        "esker.retention.enforcer",
    ),
    "max.message.bytes": _int(
        1_048_588, 0, "Largest batch in bytes, as it is stored.", "message.max.bytes"
    ),
    "message.timestamp.after.max.ms": _long(
        3_600_000,
        0,
        "How far a record's timestamp may lie in the future, in ms.",
        "log.message.timestamp.after.max.ms",
    ),
    "message.timestamp.before.max.ms": _long(
        _LONG_MAX,
        0,
        "How far a record's timestamp may lie in the past, in ms.",
        "log.message.timestamp.before.max.ms",
    ),
    "message.timestamp.type": _text(
        "CreateTime",
        ("CreateTime", "LogAppendTime"),
        "Which clock sets a record's timestamp: the producer's or the broker's.",
        "log.message.timestamp.type",
    ),
    "retention.bytes": _long(
        -1,
        -_LONG_MAX,
        "Bytes to keep of each partition; negative: no limit.",
        "log.retention.bytes",
    ),
    "retention.ms": _long(
        604_800_000, -1, "Time to keep records, in ms; -1: no limit.", "log.retention.ms"
    ),
    # Accepted because clients and tools send them.
    "compression.gzip.level": ConfigDef(
        ConfigType.INT, "-1", _gzip_level, _AS_SENT, "compression.gzip.level"
    ),
    "compression.lz4.level": _int(9, 1, _AS_SENT, "compression.lz4.level", 17),
    "compression.type": _text(
        "producer",
        ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        _AS_SENT,
        "compression.type",
    ),
    "compression.zstd.level": _int(3, -131_072, _AS_SENT, "compression.zstd.level", 22),
    "delete.retention.ms": _long(
        86_400_000,
        0,
        "Time to keep a tombstone of a compacted topic after its first compaction, in ms.",
        "log.cleaner.delete.retention.ms",
    ),
    "file.delete.delay.ms": _long(60_000, 0, _NO_FILES, "log.segment.delete.delay.ms"),
    "flush.messages": _long(_LONG_MAX, 1, _NO_FILES, "log.flush.interval.messages"),
    "flush.ms": _long(_LONG_MAX, 0, _NO_FILES),
    "follower.replication.throttled.replicas": ConfigDef(
        ConfigType.LIST, "", _check_throttled, _NO_REPLICAS
    ),
    "index.interval.bytes": _int(4096, 0, _NO_FILES, "log.index.interval.bytes"),
    "leader.replication.throttled.replicas": ConfigDef(
        ConfigType.LIST, "", _check_throttled, _NO_REPLICAS
    ),
    "local.retention.bytes": _long(-2, -2, _NO_TIERS, "log.local.retention.bytes"),
    "local.retention.ms": _long(-2, -2, _NO_TIERS, "log.local.retention.ms"),
    "max.compaction.lag.ms": _long(
        _LONG_MAX,
        1,
        "Age of a record, in ms, from which its partition is compacted whatever its dirty ratio.",
        "log.cleaner.max.compaction.lag.ms",
    ),
    "min.cleanable.dirty.ratio": ConfigDef(
        ConfigType.DOUBLE,
        "0.5",
        _fraction,
        "Part of a partition's bytes that was never compacted, from 0 to 1, above which it is due.",
        "log.cleaner.min.cleanable.ratio",
    ),
    "min.compaction.lag.ms": _long(
        0,
        0,
        "Age of a record, in ms, below which it is not compacted.",
        "log.cleaner.min.compaction.lag.ms",
    ),
    "min.insync.replicas": _int(1, 1, _NO_REPLICAS, "min.insync.replicas"),
    "preallocate": _flag("false", _NO_FILES, broker_name="log.preallocate"),
    "remote.log.copy.disable": _flag("false", _NO_TIERS),
    "remote.log.delete.on.disable": _flag("false", _NO_TIERS),
    "remote.storage.enable": _flag("false", "Tiered storage; only `false`."),
    "segment.bytes": _int(1_073_741_824, 1_048_576, _NO_FILES, "log.segment.bytes"),
    "segment.index.bytes": _int(10_485_760, 4, _NO_FILES, "log.index.size.max.bytes"),
    "segment.jitter.ms": _long(0, 0, _NO_FILES),
    "segment.ms": _long(604_800_000, 1, _NO_FILES),
    "unclean.leader.election.enable": _flag(
        "false", _NO_REPLICAS, broker_name="unclean.leader.election.enable"
    ),
}
"""The settings of a topic. Source: upstream's TopicConfig."""

PROCESS_CONFIGS: Final[dict[str, ConfigDef]] = {
    "diskless.append.commit.interval.ms": _long(
        250,
        1,
        "Maximum milliseconds for which a broker collects batches before it writes them as one "
        "object. It writes earlier while producers wait: see esker.append.quiet.ms.",
        highest=_INT_MAX,
    ),
    "esker.append.quiet.ms": _long(
        5,
        0,
        "Milliseconds without a new batch after which a broker writes an object before the commit "
        "interval is over; 0: never. Longer than the gap between two requests of one producer.",
        highest=60_000,
    ),
    "esker.append.objects.per.second": _long(
        "",
        0,
        "Objects below 768 KiB that a broker may write a second before the commit interval is "
        "over; 0: none. Default: 8 with S3, 64 with a directory.",
        highest=100_000,
    ),
    "esker.append.runs.per.second": _long(
        10_000,
        0,
        "Partitions, summed over the objects of one second, up to which a broker writes objects "
        "before the commit interval is over; each is a row in the batch coordinator's state.",
        highest=10_000_000,
    ),
    "diskless.append.buffer.max.bytes": _long(
        8 * 1024 * 1024,
        1,
        "Bytes of buffered batches that close an object; a larger batch is an object alone.",
        highest=1024**3,
    ),
}
"""The settings of one broker's process that can be changed while it runs."""

THROTTLES: Final[dict[str, ConfigDef]] = dict.fromkeys(
    (
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    ),
    _long(_LONG_MAX, 0, _NO_REPLICAS),
)
"""Settings of one broker that `kafka-reassign-partitions` sets and removes."""

BROKER_CONFIGS: Final[dict[str, ConfigDef]] = (
    {
        definition.broker_name: definition
        for definition in TOPIC_CONFIGS.values()
        if definition.broker_name is not None
    }
    | {
        "producer.id.expiration.ms": _int(
            86_400_000,
            1,
            "How long the state of an inactive producer is kept, in ms.",
            highest=7 * 24 * 3_600_000,
        ),
    }
    | PROCESS_CONFIGS
    | THROTTLES
)
"""The settings that can be changed while brokers run. Only those of `PROCESS_CONFIGS` and
`THROTTLES` can differ between brokers."""


def has_default_synonym(definition: ConfigDef) -> bool:
    """Return whether DescribeConfigs lists the default of a setting among its synonyms.

    As in Kafka: not if brokers have no such setting, and not where theirs has a unit of its own.
    """
    return definition.broker_name not in (None, "log.retention.ms")


def check_config(name: str, value: str | None, known: dict[str, ConfigDef]) -> str:
    """Return the setting's value if it is valid, else raise RefusedError (INVALID_CONFIG)."""
    definition = known.get(name)
    if definition is None:
        kind = "topic config name" if known is TOPIC_CONFIGS else "setting"
        raise RefusedError(ErrorCode.INVALID_CONFIG, f"Unknown {kind}: {name[:MAX_NAME_LENGTH]}")
    if value is None:
        raise RefusedError(ErrorCode.INVALID_CONFIG, f"{name} has no value.")
    if len(value.encode()) > MAX_VALUE_BYTES:
        raise RefusedError(
            ErrorCode.INVALID_CONFIG, f"{name} is longer than {MAX_VALUE_BYTES} bytes."
        )
    wrong = definition.check(value)
    if wrong is not None:
        message = f"Invalid value {value[:80]} for configuration {name}: {wrong}"
        raise RefusedError(ErrorCode.INVALID_CONFIG, message)
    return value


def check_combination(own: Mapping[str, str | None]) -> None:
    """Check that a topic's settings agree with one another and with the cluster's features.

    Raises:  RefusedError (INVALID_CONFIG). Source: upstream's LogConfig.validate.
    """
    if (own.get("remote.storage.enable") or "false").strip().lower() == "true":
        raise RefusedError(
            ErrorCode.INVALID_CONFIG,
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage.",
        )
    shortest, longest = (
        int(own.get(name) or TOPIC_CONFIGS[name].default)
        for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    )
    if shortest > longest:
        raise RefusedError(
            ErrorCode.INVALID_CONFIG,
            f"conflict topic config setting min.compaction.lag.ms ({shortest}) > "
            f"max.compaction.lag.ms ({longest})",
        )
