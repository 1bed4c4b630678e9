"""Settings of groups, by Kafka's names, where they are used."""

from __future__ import annotations

import pytest

from coordinator.groups.settings import GroupSettings, LogSettings
from esker.settings.config import ConfigError, parse_config
from esker.settings.groups import SETTINGS

NODE = {
    "process.roles": "controller",
    "node.id": "1",
    "controller.quorum.voters": "1@127.0.0.1:9093",
    "listeners": "CONTROLLER://127.0.0.1:9093",
    "log.dirs": "x",
}


def test_every_group_setting_of_a_properties_file_reaches_the_group_coordinator() -> None:
    given = {setting.key: str(100 + number) for number, setting in enumerate(SETTINGS)}
    given |= {"group.max.session.timeout.ms": "1000"}
    values = parse_config(NODE | given).values
    assert GroupSettings.of(values) == GroupSettings(
        min_session_timeout_ms=100, max_session_timeout_ms=1000, initial_rebalance_delay_ms=102,
        max_size=103, answer_timeout_ms=105, offset_metadata_max_bytes=106,
    )  # fmt: skip
    assert LogSettings.of(values) == LogSettings(
        max_groups=104,
        offset_metadata_max_bytes=106,
        offsets_retention_ms=107 * 60_000,
        retention_check_interval_ms=108,
    )


def test_group_settings_default_to_kafkas_except_the_group_size() -> None:
    values = parse_config(NODE).values
    assert (GroupSettings.of(values), LogSettings.of(values)) == (GroupSettings(), LogSettings())
    assert values["offsets.retention.minutes"] == 7 * 24 * 60
    assert values["group.initial.rebalance.delay.ms"] == 3_000
    assert values["group.max.size"] == 1_000


def test_the_error_for_invalid_session_timeouts_names_the_setting() -> None:
    with pytest.raises(ConfigError, match=r"below group\.min\.session\.timeout\.ms") as caught:
        parse_config(NODE | {"group.max.session.timeout.ms": "5999"})
    assert caught.value.key == "group.max.session.timeout.ms"
