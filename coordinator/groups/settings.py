"""What an operator sets for groups, and the bounds that are nobody's to set.

Names are those of Kafka's properties, dots for underscores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

MAX_GROUP_ID_BYTES: Final = 1024
"""Kafka has no bound of its own; an id is stored with every record of its group."""

MAX_INSTANCE_ID_BYTES: Final = 249
"""As of a topic's name, which Kafka's clients check it like."""

MAX_CLIENT_ID_BYTES: Final = 1024
"""What is kept of a client's id; the rest is cut off."""

MAX_GENERATION_BYTES: Final = 1024 * 1024
"""Of one generation's members: what one record, and one answer, may cost."""

MAX_OFFERED_BYTES: Final = 4 * MAX_GENERATION_BYTES
"""Of all that a group's members say when they join: several protocols, of which one is stored."""

MAX_OFFSETS: Final = 10_000
"""Offsets of one commit, as batches of one object."""

MAX_COMMIT_BYTES: Final = 1024 * 1024
"""Of one commit's offsets. Kafka's bound is the offsets topic's max.message.bytes."""

MAX_PROTOCOLS: Final = 100
"""Protocols that one member offers; clients offer two or three."""

MAX_PARKED: Final = 10_000
"""Requests that wait for one group's log; more are told to come back."""

MAX_BACKOFF_MS: Final = 1_000
"""Between two attempts to ask the log the same."""

MAX_FETCH_BYTES: Final = 1024 * 1024
"""Of what the log is asked for at once: names and partitions."""

MAX_GROUPS: Final = 100_000
"""In the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """How the log of groups behaves. Times in ms."""

    offsets_retention_ms: int = 7 * 24 * 3600 * 1000  # offsets.retention.minutes
    retention_check_interval_ms: int = 10 * 60 * 1000  # offsets.retention.check.interval.ms
    ownership_grace_ms: int = 3600 * 1000  # an owner may have members that the log knows not yet
    offset_metadata_max_bytes: int = 4096  # offset.metadata.max.bytes
    max_groups: int = MAX_GROUPS

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> LogSettings:
        """From properties by their names; those that are missing are as they are here."""
        known = {
            "retention_check_interval_ms": "offsets.retention.check.interval.ms",
            "offset_metadata_max_bytes": "offset.metadata.max.bytes",
        }
        given = {name: values[key] for name, key in known.items() if key in values}
        minutes = values.get("offsets.retention.minutes")
        if minutes is not None:
            given["offsets_retention_ms"] = minutes * 60_000
        return cls(**given)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """How a broker acts for groups. Times in ms."""

    min_session_timeout_ms: int = 6_000  # group.min.session.timeout.ms
    max_session_timeout_ms: int = 1_800_000  # group.max.session.timeout.ms
    initial_rebalance_delay_ms: int = 3_000  # group.initial.rebalance.delay.ms
    max_size: int = 1_000  # group.max.size; Kafka's default is no bound
    offset_metadata_max_bytes: int = 4096  # offset.metadata.max.bytes
    new_member_join_timeout_ms: int = 300_000  # a first JoinGroup may wait so long; as in Kafka
    answer_timeout_ms: int = 5_000  # offsets.commit.timeout.ms: for the log to answer
    retry_backoff_ms: int = 50  # before the log is asked the same again; doubled up to a second
    idle_ms: int = 10 * 60 * 1000  # an empty group that nobody asks for is forgotten by the broker
    adopt_delay_ms: int = 2_000  # after brokers came or went: most groups are asked for by then
    adopt_interval_ms: int = 30_000  # between two looks for members without a broker
    adopt_pause_ms: int = 20  # between the pieces of one look

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> GroupSettings:
        """From properties by their names; those that are missing are as they are here.

        Raises:  ValueError if they contradict each other.
        """
        known = {
            "min_session_timeout_ms": "group.min.session.timeout.ms",
            "max_session_timeout_ms": "group.max.session.timeout.ms",
            "initial_rebalance_delay_ms": "group.initial.rebalance.delay.ms",
            "max_size": "group.max.size",
            "offset_metadata_max_bytes": "offset.metadata.max.bytes",
            "answer_timeout_ms": "offsets.commit.timeout.ms",
        }
        found = cls(**{name: values[key] for name, key in known.items() if key in values})
        if found.min_session_timeout_ms > found.max_session_timeout_ms:
            raise ValueError(
                f"is {found.max_session_timeout_ms}, below group.min.session.timeout.ms, "
                f"which is {found.min_session_timeout_ms}"
            )
        return found
