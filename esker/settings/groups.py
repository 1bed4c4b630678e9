"""Settings of consumer groups: of their coordinators on brokers, and of their log.

Source: Apache Kafka 4.x (Configuration), `group.*`, `offsets.*`; `coordinator.groups.settings`.
"""

from __future__ import annotations

from typing import Final

from coordinator.groups.settings import GroupSettings, LogSettings
from esker.settings.base import Setting
from esker.settings.values import MILLISECONDS, integer

_GROUP: Final = GroupSettings()
_LOG: Final = LogSettings()

SETTINGS: Final = (
    Setting(
        "group.min.session.timeout.ms",
        MILLISECONDS,
        _GROUP.min_session_timeout_ms,
        "The shortest session timeout of a group member, in milliseconds.",
    ),
    Setting(
        "group.max.session.timeout.ms",
        MILLISECONDS,
        _GROUP.max_session_timeout_ms,
        "The longest session timeout of a group member, in milliseconds.",
    ),
    Setting(
        "group.initial.rebalance.delay.ms",
        integer(0, 2**31 - 1),
        _GROUP.initial_rebalance_delay_ms,
        "Milliseconds that an empty group waits for more members before its first rebalance.",
    ),
    Setting(
        "group.max.size",
        integer(1, 100_000),
        _GROUP.max_size,
        "Maximum number of members of a group (Kafka's default is no limit).",
    ),
    Setting(
        "esker.max.groups",
        integer(1, 10_000_000),
        _LOG.max_groups,
        "Maximum number of consumer groups; a request that would create one more is refused with "
        "POLICY_VIOLATION.",
    ),
    Setting(
        "offsets.commit.timeout.ms",
        MILLISECONDS,
        _GROUP.answer_timeout_ms,
        "Milliseconds that a commit of offsets waits for the quorum.",
    ),
    Setting(
        "offset.metadata.max.bytes",
        integer(0, 64 * 1024),
        _GROUP.offset_metadata_max_bytes,
        "Maximum bytes of metadata that a consumer commits with an offset.",
    ),
    Setting(
        "offsets.retention.minutes",
        integer(1, 2**31 - 1),
        _LOG.offsets_retention_ms // 60_000,
        "Minutes for which the offsets of a group without members are kept.",
    ),
    Setting(
        "offsets.retention.check.interval.ms",
        MILLISECONDS,
        _LOG.retention_check_interval_ms,
        "Milliseconds between two searches for expired offsets and empty groups.",
    ),
)
