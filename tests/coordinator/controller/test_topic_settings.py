"""Topic settings are accepted and refused as Apache Kafka 4.3.1 does.

tests/data/topic_settings_of_kafka.json has Kafka's answer to each value, recorded and compared anew
by tests/clients/test_topic_settings_on_kafka.py.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.controller.cluster_view import ImageView
from coordinator.controller.config_defs import (
    BROKER_CONFIGS,
    PROCESS_CONFIGS,
    THROTTLES,
    TOPIC_CONFIGS,
    check_combination,
    check_config,
)
from coordinator.controller.decide.configs import Source, synonyms, topic_value
from coordinator.controller.errors import RefusedError
from coordinator.controller.image import Resource
from coordinator.controller.machine import ControllerMachine
from tests.coordinator.controller.test_image import load
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
def test_the_controller_accepts_and_refuses_the_same_topic_settings_as_kafka(
    settings: dict[str, str], kafkas: str
) -> None:
    ours = answer(settings)
    if any(WORDED_OTHERWISE in name for name in settings):
        assert bool(ours) == bool(kafkas)
    else:
        assert ours == kafkas


def test_recorded_answers_of_kafka_exist_for_every_topic_setting() -> None:
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
def test_retention_applies_only_to_topics_whose_cleanup_policy_contains_delete(
    policy: str, limits: tuple[int | None, int | None]
) -> None:
    settings = {"retention.ms": "60000", "retention.bytes": "500", "cleanup.policy": policy}
    world = created(settings)
    topic_id = world.image.topic_ids["t"]
    config = ImageView(lambda: world.image).topic_config(topic_id)
    assert config is not None
    assert (config.retention_ms, config.retention_bytes) == limits


def test_the_controller_refuses_a_changed_topic_setting_that_contradicts_an_unchanged_setting() -> (
    None
):
    world = created({"max.compaction.lag.ms": "5"})
    end = world.log.end_offset
    refused = world.ask(alter(2, "t", "min.compaction.lag.ms", "6"))
    assert refused.responses[0].error_code == 40
    assert world.log.end_offset == end
    accepted = world.ask(alter(2, "t", "min.compaction.lag.ms", "5"))
    assert accepted.responses[0].error_code == 0


def test_cluster_and_topic_settings_override_the_default_in_a_properties_file() -> None:
    image = replace(created({"retention.ms": "1"}).image, file_defaults={"log.retention.ms": "3"})
    without = ControllerMachine({"log.retention.ms": "3"}).image
    assert topic_value(without, "t", "retention.ms") == "3"
    assert topic_value(image, "t", "retention.ms") == "1"
    sources = synonyms(image, {"retention.ms": "1"}, "retention.ms", TOPIC_CONFIGS["retention.ms"])
    assert [(value, source) for _, value, source in sources] == [
        ("1", Source.TOPIC_CONFIG),
        ("3", Source.STATIC_BROKER_CONFIG),
        ("604800000", Source.DEFAULT_CONFIG),
    ]


def test_defaults_from_the_properties_file_survive_applied_records_and_a_checkpoint_load() -> None:
    machine = ControllerMachine({"log.retention.ms": "3"})
    world = created({})
    frozen = world.machine.freeze()
    load(machine, world.machine.applied, [bytes(value) for value in frozen.values()])
    frozen.close()
    assert topic_value(machine.image, "t", "retention.ms") == "3"


@pytest.mark.parametrize("name", sorted(set(BROKER_CONFIGS) - {*PROCESS_CONFIGS, *THROTTLES}))
def test_the_controller_refuses_to_change_a_setting_of_the_whole_cluster_for_one_broker(
    name: str,
) -> None:
    world = created({})
    value = BROKER_CONFIGS[name].default
    answer = world.ask(alter(4, "1", name, value))
    assert answer.responses[0].error_code == 42
    assert "the default of all brokers" in answer.responses[0].error_message
    assert not world.image.configs
    assert world.ask(alter(4, "", name, value)).responses[0].error_code == 0


@pytest.mark.parametrize(
    ("name", "lowest", "highest"),
    [
        ("diskless.append.buffer.max.bytes", 1, 2**30),
        ("diskless.append.commit.interval.ms", 1, 2**31 - 1),
        ("esker.append.objects.per.second", 0, 100_000),
        ("esker.append.quiet.ms", 0, 60_000),
        ("esker.append.runs.per.second", 0, 10_000_000),
    ],
)
def test_the_controller_refuses_values_out_of_bounds_for_dynamic_broker_settings(
    name: str, lowest: int, highest: int
) -> None:
    world = created({})
    for broker in ("", "1"):
        for value in (lowest - 1, highest + 1, 10**12, "", "x", "1.5"):
            answer = world.ask(alter(4, broker, name, f"{value}"))
            assert answer.responses[0].error_code == 40, value
        assert Resource(4, broker) not in world.image.configs
        for value in (lowest, highest):
            assert world.ask(alter(4, broker, name, f"{value}")).responses[0].error_code == 0


@pytest.mark.parametrize("name", ["num.io.threads", "esker.append.max.uploads", "listeners"])
def test_the_controller_explains_its_refusal_to_change_a_setting_that_is_fixed_at_start(
    name: str,
) -> None:
    world = created({})
    answer = world.ask(alter(4, "1", name, "8"))
    assert answer.responses[0].error_code == 42
    assert "properties file" in (answer.responses[0].error_message or "")
