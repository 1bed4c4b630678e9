"""The settings of topics and brokers: types, defaults and allowed values.

A topic's setting overrides the cluster's default for all topics (a broker setting of the empty
name), which overrides the built-in one. A setting without effect in Esker is still accepted if an
ordinary Kafka client may send it and ignoring it loses nothing; otherwise it is refused:
`cleanup.policy=compact` (compaction is not implemented, and Connect and Streams rely on it), and
`diskless.enable=false` (every topic is diskless).

Source: upstream's TopicConfig; KIP-1163, Public Interfaces.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple

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


def _number(lowest: int, highest: int) -> Callable[[str], str | None]:
    def check(value: str) -> str | None:
        if not _WHOLE.fullmatch(value):  # Python's int() takes more than Java's
            return "is not a whole number"
        number = int(value)
        return None if lowest <= number <= highest else f"is outside {lowest}..{highest}"

    return check


def _one_of(*allowed: str) -> Callable[[str], str | None]:
    def check(value: str) -> str | None:
        return None if value in allowed else f"is none of {', '.join(allowed)}"

    return check


def _fraction(value: str) -> str | None:
    try:
        number = float(value)
    except ValueError:
        return "is not a number"
    return None if 0 <= number <= 1 else "is outside 0..1"


def _cleanup(value: str) -> str | None:
    if value == "delete":
        return None
    return "is not supported: diskless topics are cleaned up by delete only"


def _diskless(value: str) -> str | None:
    if value == "true":
        return None
    return "is not supported: every topic of this cluster is diskless"


def _producer(value: str) -> str | None:
    if value == "producer":
        return None
    return "is not supported: batches are stored as their producer sent them"


def _anything(value: str) -> str | None:  # noqa: ARG001 (a check's)
    return None


_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
_LONG: Final = ConfigType.LONG
_INT: Final = ConfigType.INT
_BOOL: Final = ConfigType.BOOLEAN
_TEXT: Final = ConfigType.STRING
_true_or_false = _one_of("true", "false")

TOPIC_CONFIGS: Final[dict[str, ConfigDef]] = {
    "cleanup.policy": ConfigDef(
        ConfigType.LIST, "delete", _cleanup, "How old data is removed.", "log.cleanup.policy"
    ),
    "compression.type": ConfigDef(
        _TEXT, "producer", _producer, "Where batches are compressed.", "compression.type"
    ),
    "diskless.enable": ConfigDef(_BOOL, "true", _diskless, "Records live in object storage."),
    "esker.retention.enforcer": ConfigDef(
        _TEXT,
        "coordinator",
        _one_of("coordinator", "external", "both"),
        "Which component deletes data past retention.",
        "esker.retention.enforcer",
    ),
    "max.message.bytes": ConfigDef(
        _INT, "1048588", _number(0, _INT_MAX), "Largest batch in bytes.", "message.max.bytes"
    ),
    "message.timestamp.after.max.ms": ConfigDef(
        _LONG,
        "3600000",
        _number(0, _LONG_MAX),
        "How far a record's timestamp may lie in the future, in ms.",
        "log.message.timestamp.after.max.ms",
    ),
    "message.timestamp.before.max.ms": ConfigDef(
        _LONG,
        str(_LONG_MAX),
        _number(0, _LONG_MAX),
        "How far a record's timestamp may lie in the past, in ms.",
        "log.message.timestamp.before.max.ms",
    ),
    "message.timestamp.type": ConfigDef(
        _TEXT,
        "CreateTime",
        _one_of("CreateTime", "LogAppendTime"),
        "Which clock sets a record's timestamp.",
        "log.message.timestamp.type",
    ),
    "retention.bytes": ConfigDef(
        _LONG, "-1", _number(-1, _LONG_MAX), "Bytes to keep per partition.", "log.retention.bytes"
    ),
    "retention.ms": ConfigDef(
        _LONG, "604800000", _number(-1, _LONG_MAX), "Time to keep records (ms).", "log.retention.ms"
    ),
    # Accepted because clients send them; partitions have no replicas and no files to which they
    # would apply.
    "delete.retention.ms": ConfigDef(_LONG, "86400000", _number(0, _LONG_MAX), "No effect."),
    "file.delete.delay.ms": ConfigDef(_LONG, "60000", _number(0, _LONG_MAX), "No effect."),
    "flush.messages": ConfigDef(_LONG, str(_LONG_MAX), _number(1, _LONG_MAX), "No effect."),
    "flush.ms": ConfigDef(_LONG, str(_LONG_MAX), _number(0, _LONG_MAX), "No effect."),
    "follower.replication.throttled.replicas": ConfigDef(
        ConfigType.LIST, "", _anything, "No effect."
    ),
    "index.interval.bytes": ConfigDef(_INT, "4096", _number(0, _INT_MAX), "No effect."),
    "leader.replication.throttled.replicas": ConfigDef(
        ConfigType.LIST, "", _anything, "No effect."
    ),
    "max.compaction.lag.ms": ConfigDef(_LONG, str(_LONG_MAX), _number(1, _LONG_MAX), "No effect."),
    "min.cleanable.dirty.ratio": ConfigDef(ConfigType.DOUBLE, "0.5", _fraction, "No effect."),
    "min.compaction.lag.ms": ConfigDef(_LONG, "0", _number(0, _LONG_MAX), "No effect."),
    "min.insync.replicas": ConfigDef(_INT, "1", _number(1, _INT_MAX), "No effect."),
    "preallocate": ConfigDef(_BOOL, "false", _true_or_false, "No effect."),
    "segment.bytes": ConfigDef(_INT, "1073741824", _number(14, _INT_MAX), "No effect."),
    "segment.index.bytes": ConfigDef(_INT, "10485760", _number(4, _INT_MAX), "No effect."),
    "segment.jitter.ms": ConfigDef(_LONG, "0", _number(0, _LONG_MAX), "No effect."),
    "segment.ms": ConfigDef(_LONG, "604800000", _number(1, _LONG_MAX), "No effect."),
    "unclean.leader.election.enable": ConfigDef(_BOOL, "false", _true_or_false, "No effect."),
}
"""The settings of a topic. Source: upstream's TopicConfig."""

BROKER_CONFIGS: Final[dict[str, ConfigDef]] = {
    definition.broker_name: definition
    for definition in TOPIC_CONFIGS.values()
    if definition.broker_name is not None
} | {
    "producer.id.expiration.ms": ConfigDef(
        _INT,
        "86400000",
        _number(1, 7 * 24 * 3_600_000),
        "How long the state of an inactive producer is kept, in ms.",
    ),
}
"""The settings that can be changed while brokers run, for one broker or for all."""


def check_config(name: str, value: str | None, known: dict[str, ConfigDef]) -> str:
    """Return the value of a setting if it is valid, else raise RefusedError (INVALID_CONFIG)."""
    definition = known.get(name)
    if definition is None:
        raise RefusedError(ErrorCode.INVALID_CONFIG, f"Unknown setting {name[:MAX_NAME_LENGTH]!r}.")
    if value is None:
        raise RefusedError(ErrorCode.INVALID_CONFIG, f"{name} has no value.")
    if len(value.encode()) > MAX_VALUE_BYTES:
        raise RefusedError(
            ErrorCode.INVALID_CONFIG, f"{name} is longer than {MAX_VALUE_BYTES} bytes."
        )
    wrong = definition.check(value)
    if wrong is not None:
        raise RefusedError(ErrorCode.INVALID_CONFIG, f"{name}={value[:80]} {wrong}.")
    return value
