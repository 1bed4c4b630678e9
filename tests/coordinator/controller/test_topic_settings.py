"""Topic settings are accepted and refused as Apache Kafka 4.3.1 does.

tests/data/topic_settings_of_kafka.json has Kafka's answer to each value, recorded and compared anew
by tests/clients/test_topic_settings_on_kafka.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coordinator.controller.cluster_view import ImageView
from coordinator.controller.config_defs import (
    TOPIC_CONFIGS,
    check_combination,
    check_config,
)
from coordinator.controller.errors import RefusedError
from tests.coordinator.controller.test_refusals import alter
from tests.coordinator.controller.world import World

RECORDED = Path(__file__).parents[2] / "data" / "topic_settings_of_kafka.json"
ANSWERS: list[tuple[dict[str, str], str]] = json.loads(RECORDED.read_text())
WORDED_OTHERWISE = "throttled.replicas"


def answer(settings: dict[str, str]) -> str:
    """Return the message that refuses the settings of a new topic, or an empty text."""
    try:
        for name, value in settings.items():
            check_config(name, value, TOPIC_CONFIGS)
        check_combination(settings)
    except RefusedError as refused:
        return refused.message
    return ""


@pytest.mark.parametrize(("settings", "kafkas"), ANSWERS, ids=[str(row[0]) for row in ANSWERS])
def test_a_topic_setting_is_accepted_or_refused_as_by_kafka(
    settings: dict[str, str], kafkas: str
) -> None:
    ours = answer(settings)
    if any(WORDED_OTHERWISE in name for name in settings):
        assert bool(ours) == bool(kafkas)
    else:
        assert ours == kafkas


def test_every_topic_setting_of_kafka_has_recorded_answers() -> None:
    recorded = {name for settings, _ in ANSWERS for name in settings}
    own = {"diskless.enable", "esker.retention.enforcer"}
    assert set(TOPIC_CONFIGS) - own <= recorded


def created(settings: dict[str, str]) -> World:
    """Return a controller with one topic "t"."""
    world = World().elect()
    world.register(1)
    world.create("t", configs=settings)
    return world


@pytest.mark.parametrize(
    ("policy", "limits"),
    [
        ("delete", (60_000, 500)),
        ("compact,delete", (60_000, 500)),
        (" delete", (60_000, 500)),
        ("compact", (None, None)),
        ("", (None, None)),
    ],
)
def test_retention_applies_only_where_the_policy_contains_delete(
    policy: str, limits: tuple[int | None, int | None]
) -> None:
    settings = {"retention.ms": "60000", "retention.bytes": "500", "cleanup.policy": policy}
    world = created(settings)
    topic_id = world.image.topic_ids["t"]
    config = ImageView(lambda: world.image).topic_config(topic_id)
    assert config is not None
    assert (config.retention_ms, config.retention_bytes) == limits


def test_a_changed_topic_setting_is_checked_against_the_unchanged_ones() -> None:
    world = created({"max.compaction.lag.ms": "5"})
    end = world.log.end_offset
    refused = world.ask(alter(2, "t", "min.compaction.lag.ms", "6"))
    assert refused.responses[0].error_code == 40
    assert world.log.end_offset == end
    accepted = world.ask(alter(2, "t", "min.compaction.lag.ms", "5"))
    assert accepted.responses[0].error_code == 0
