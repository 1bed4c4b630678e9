"""Settings of topics and brokers through a broker. KIP-133, KIP-226, KIP-339, KIP-569."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from coordinator.controller.config_defs import TOPIC_CONFIGS, ConfigType
from diskless.apis import configs
from diskless.apis.configs import OwnSetting
from raft.net.handlers import Served
from records.rpc import configs as rpc
from tests.diskless.calling import call
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.virtual_time import run

TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE, APPEND, SUBTRACT = range(4)

OWN: Final = (
    OwnSetting("node.id", "1", None, ConfigType.INT, "This node."),
    OwnSetting("num.partitions", "1", "1", ConfigType.INT, "Partitions by default."),
    OwnSetting("broker.rack", "a", "", ConfigType.STRING, "The rack."),
    OwnSetting("esker.secret", "hush", None, ConfigType.STRING, "Never told.", is_sensitive=True),
    OwnSetting("esker.append.quiet.ms", "9", "5", ConfigType.LONG, "Quiet time."),
    OwnSetting("log.retention.ms", "5", "5", ConfigType.LONG, "Shadowed by the cluster's."),
)


class Story:
    """A cluster with a topic t, and the requests of broker 1."""

    def __init__(self, world: ClusterWorld) -> None:
        self.world = world
        self.handlers: dict[int, Served] = configs.handlers(world.cluster(1), OWN)

    async def describe(
        self,
        kind: int,
        name: str,
        *keys: str,
        synonyms: bool = False,
        documentation: bool = False,
        version: int = 4,
    ) -> Any:
        """Describe one resource; return its result."""
        asked = rpc.DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=keys or None
        )
        request = rpc.DescribeConfigsRequest(
            resources=(asked,), include_synonyms=synonyms, include_documentation=documentation
        )
        answer = await call(self.handlers, request, rpc.DescribeConfigsResponse, version)
        return answer.results[0]

    async def alter(
        self,
        *changes: tuple[int, str, str | None],
        kind: int = TOPIC,
        name: str = "t",
        validate_only: bool = False,
        version: int = 1,
    ) -> tuple[int, str | None]:
        """Alter settings by (operation, setting, value); return error and message."""
        resource = rpc.IncrementalAlterConfigsRequest.AlterConfigsResource
        asked = resource(
            resource_type=kind,
            resource_name=name,
            configs=tuple(
                resource.AlterableConfig(name=setting, config_operation=operation, value=value)
                for operation, setting, value in changes
            ),
        )
        request = rpc.IncrementalAlterConfigsRequest(
            resources=(asked,), validate_only=validate_only
        )
        answer = await call(self.handlers, request, rpc.IncrementalAlterConfigsResponse, version)
        return answer.responses[0].error_code, answer.responses[0].error_message

    async def replace(
        self, *settings: tuple[str, str | None], validate_only: bool = False, version: int = 2
    ) -> tuple[int, str | None]:
        """Replace all settings of topic t; return error and message."""
        resource = rpc.AlterConfigsRequest.AlterConfigsResource
        request = rpc.AlterConfigsRequest(
            resources=(
                resource(
                    resource_type=TOPIC,
                    resource_name="t",
                    configs=tuple(
                        resource.AlterableConfig(name=name, value=value) for name, value in settings
                    ),
                ),
            ),
            validate_only=validate_only,
        )
        answer = await call(self.handlers, request, rpc.AlterConfigsResponse, version)
        return answer.responses[0].error_code, answer.responses[0].error_message

    async def own_settings(self) -> dict[str, str]:
        """Return the settings of topic t that are not defaults."""
        described = await self.describe(TOPIC, "t")
        return {c.name: c.value for c in described.configs if c.config_source == 1}


def tell(story: Callable[[Story], Awaitable[None]]) -> None:
    async def told() -> None:
        async with ClusterWorld(brokers=(1, 2)) as world:
            await world.create("t")
            await story(Story(world))

    run(told)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_describe_configs_returns_all_settings_of_a_topic_with_their_source(version: int) -> None:
    async def story(told: Story) -> None:
        assert await told.alter((SET, "retention.ms", "5000")) == (0, None)
        assert await told.alter((SET, "log.retention.bytes", "77"), kind=BROKER, name="") == (
            0,
            None,
        )
        found = await told.describe(TOPIC, "t", version=version)
        assert (found.error_code, found.resource_type, found.resource_name) == (0, TOPIC, "t")
        shown = {entry.name: entry for entry in found.configs}
        assert set(shown) == set(TOPIC_CONFIGS)
        assert (shown["retention.ms"].value, shown["retention.ms"].config_source) == ("5000", 1)
        assert (shown["retention.bytes"].value, shown["retention.bytes"].config_source) == ("77", 3)
        assert (shown["segment.ms"].value, shown["segment.ms"].config_source) == ("604800000", 5)
        assert shown["diskless.enable"].value == "true"
        assert not any(entry.synonyms or entry.documentation for entry in found.configs)
        if version >= 3:
            assert shown["retention.ms"].config_type == ConfigType.LONG

    tell(story)


def test_describe_configs_lists_the_synonyms_of_a_setting_in_order_of_precedence() -> None:
    async def story(told: Story) -> None:
        await told.alter((SET, "retention.ms", "5000"))
        await told.alter((SET, "log.retention.ms", "9000"), kind=BROKER, name="")
        found = await told.describe(TOPIC, "t", "retention.ms", synonyms=True)
        (entry,) = found.configs
        assert [(s.name, s.value, s.source) for s in entry.synonyms] == [
            ("retention.ms", "5000", 1),
            ("log.retention.ms", "9000", 3),
        ]
        (entry,) = (await told.describe(TOPIC, "t", "max.message.bytes", synonyms=True)).configs
        assert [(s.name, s.value, s.source) for s in entry.synonyms] == [
            ("message.max.bytes", "1048588", 5)
        ]

    tell(story)


def test_describe_configs_returns_documentation_only_on_request() -> None:
    async def story(told: Story) -> None:
        found = await told.describe(TOPIC, "t", "retention.ms", documentation=True)
        assert found.configs[0].documentation == "Time to keep records, in ms; -1: no limit."
        found = await told.describe(BROKER, "1", "broker.rack", documentation=True)
        assert found.configs[0].documentation == "The rack."

    tell(story)


def test_a_broker_describes_its_own_settings_as_read_only() -> None:
    async def story(told: Story) -> None:
        found = await told.describe(BROKER, "1", synonyms=True)
        assert found.error_code == 0
        shown = {entry.name: entry for entry in found.configs}
        assert len(shown) == len(found.configs), "each once"
        rack = shown["broker.rack"]
        assert (rack.value, rack.config_source, rack.read_only) == ("a", 4, True)
        assert [(s.value, s.source) for s in rack.synonyms] == [("a", 4), ("", 5)]
        assert (shown["num.partitions"].config_source, shown["num.partitions"].read_only) == (
            5,
            True,
        )
        secret = shown["esker.secret"]
        assert (secret.value, secret.is_sensitive) == (None, True)
        assert [s.value for s in secret.synonyms] == [None, None]
        changeable = shown["log.retention.ms"]
        assert (changeable.value, changeable.read_only) == ("604800000", False), (
            "by the cluster log"
        )

    tell(story)


def test_describe_configs_returns_the_source_and_synonyms_of_a_dynamic_broker_setting() -> None:
    name = "esker.append.quiet.ms"

    async def story(told: Story) -> None:
        expected = [("9", 4), ("5", 5)]
        for broker, value, source in (("", "7", 3), ("1", "6", 2)):
            await told.alter((SET, name, value), kind=BROKER, name=broker)
            expected.insert(0, (value, source))
            found = await told.describe(BROKER, "1", name, synonyms=True)
            (entry,) = found.configs
            assert [(s.value, s.source) for s in entry.synonyms] == expected
            assert (entry.value, entry.config_source, entry.read_only) == (value, source, False)
        found = await told.describe(BROKER, "")
        assert [(e.name, e.value) for e in found.configs] == [(name, "7")]
        for broker in ("1", ""):
            assert await told.alter((DELETE, name, None), kind=BROKER, name=broker) == (0, None)
        (entry,) = (await told.describe(BROKER, "1", name)).configs
        assert (entry.value, entry.config_source) == ("9", 4)

    tell(story)


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "none", 3),
        (BROKER, "2", 42),
        (BROKER, "99", 42),
        (BROKER, "one", 42),
        (BROKER, "١", 42),
        (8, "2", 42),
        (TOPIC, "", 17),
        (TOPIC, "bad name", 17),
        (0, "x", 42),
    ],
)
def test_a_broker_refuses_to_describe_the_configs_of_an_unknown_resource(
    kind: int, name: str, code: int
) -> None:
    async def story(told: Story) -> None:
        found = await told.describe(kind, name)
        assert (found.error_code, found.configs) == (code, ())
        assert found.error_message

    tell(story)


def test_describe_quorum_of_the_cluster_log_returns_the_controllers_response() -> None:
    async def story(told: Story) -> None:
        found = await told.describe(TOPIC, "__cluster_metadata")
        assert [(e.name, e.value, e.read_only) for e in found.configs] == [
            ("cleanup.policy", "snapshot", True)
        ]

    tell(story)


def test_describe_configs_answers_each_resource_and_refuses_resources_above_the_limit() -> None:
    async def story(told: Story) -> None:
        asked = rpc.DescribeConfigsRequest.DescribeConfigsResource
        names = ["t", "none", *(f"none-{number}" for number in range(configs.MAX_RESOURCES))]
        request = rpc.DescribeConfigsRequest(
            resources=tuple(
                asked(resource_type=TOPIC, resource_name=name, configuration_keys=())
                for name in names
            )
        )
        answer = await call(told.handlers, request, rpc.DescribeConfigsResponse, 4)
        codes = [result.error_code for result in answer.results]
        assert len(codes) == len(names)
        assert codes[:3] == [0, 3, 3]
        assert codes[-2:] == [44, 44]
        twice = rpc.DescribeConfigsRequest(
            resources=tuple(
                asked(resource_type=TOPIC, resource_name="t", configuration_keys=None)
                for _ in range(20_000)
            )
        )
        answer = await call(told.handlers, twice, rpc.DescribeConfigsResponse, 4)
        assert [result.resource_name for result in answer.results] == ["t"], "described once"

    tell(story)


def test_a_broker_answers_a_topic_setting_change_once_it_describes_the_new_value() -> None:
    async def story(told: Story) -> None:
        cluster = told.world.cluster(1)
        cluster.pause()
        asked = asyncio.ensure_future(told.alter((SET, "retention.ms", "5")))
        await asyncio.sleep(0.5)
        assert not asked.done()
        cluster.go_on()
        assert await asked == (0, None)
        assert (await told.describe(TOPIC, "t", "retention.ms")).configs[0].value == "5"
        cluster.pause()
        assert await told.alter((DELETE, "retention.ms", None)) == (0, None), "after a moment"

    tell(story)


@pytest.mark.parametrize("version", [0, 1])
def test_incremental_alter_configs_sets_and_deletes_values_and_changes_list_entries(
    version: int,
) -> None:
    async def story(told: Story) -> None:
        name = "leader.replication.throttled.replicas"
        for change, expected in (
            ((SET, name, "0:1,1:1"), "0:1,1:1"),
            ((APPEND, name, "2:1"), "0:1,1:1,2:1"),
            ((SUBTRACT, name, "1:1"), "0:1,2:1"),
            ((DELETE, name, None), ""),
        ):
            assert await told.alter(change, version=version) == (0, None)
            assert (await told.describe(TOPIC, "t", name)).configs[0].value == expected
        assert await told.alter((SET, "retention.ms", "5"), validate_only=True) == (0, None)
        assert (await told.describe(TOPIC, "t", "retention.ms")).configs[0].config_source == 5

    tell(story)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_alter_configs_removes_the_settings_that_it_does_not_name(version: int) -> None:
    async def story(told: Story) -> None:
        first, second = {"retention.ms": "5", "segment.ms": "7"}, {"segment.ms": "8"}
        for settings in (first, second, {}):
            assert await told.replace(*settings.items(), validate_only=True) == (0, None)
            assert await told.replace(*settings.items(), version=version) == (0, None)
            assert await told.own_settings() == settings

    tell(story)


@pytest.mark.parametrize(
    ("code", "settings"),
    [
        (40, {"retention.ms": "soon"}),
        (40, {"nothing.of.ours": "1"}),
        (42, {"retention.ms": None}),
    ],
)
def test_alter_configs_refuses_an_invalid_value_and_changes_no_setting(
    code: int, settings: dict[str, str | None]
) -> None:
    async def story(told: Story) -> None:
        assert await told.replace(("segment.ms", "7")) == (0, None)
        refused, message = await told.replace(("flush.ms", "7"), *settings.items())
        assert refused == code
        assert next(iter(settings)) in (message or "")
        assert await told.own_settings() == {"segment.ms": "7"}

    tell(story)


@pytest.mark.parametrize("operation", [SET, APPEND, SUBTRACT])
def test_a_broker_refuses_a_null_value_in_a_setting_change_unless_it_deletes_the_setting(
    operation: int,
) -> None:
    async def story(told: Story) -> None:
        refusal = (42, "Null value not supported for : cleanup.policy")
        assert await told.alter((operation, "cleanup.policy", None)) == refusal

    tell(story)


@pytest.mark.parametrize(
    "change",
    [
        (SET, "diskless.enable", "false"),
        (SET, "cleanup.policy", "compressed"),
        (APPEND, "cleanup.policy", "compressed"),
        (SET, "compression.type", "zip"),
        (SET, "message.timestamp.type", "LogAppendtime"),
        (SET, "message.timestamp.before.max.ms", "-1"),
        (SET, "max.message.bytes", "9999999999"),
        (SET, "nothing.of.ours", "1"),
        (DELETE, "nothing.of.ours", None),
        (APPEND, "retention.ms", "1"),
    ],
)
def test_a_broker_refuses_an_invalid_change_of_a_setting_with_a_reason(
    change: tuple[int, str, str | None],
) -> None:
    async def story(told: Story) -> None:
        code, message = await told.alter((SET, "segment.ms", "7"), change)
        assert code == 40
        assert message is not None
        assert change[1] in message
        assert (await told.describe(TOPIC, "t", "segment.ms")).configs[0].value != "7", (
            "all or none"
        )

    tell(story)


def test_incremental_alter_configs_changes_the_topic_settings_that_esker_uses() -> None:
    async def story(told: Story) -> None:
        kept = {
            "diskless.enable": "true",
            "retention.ms": "-1",
            "retention.bytes": "100",
            "message.timestamp.type": "LogAppendTime",
            "message.timestamp.before.max.ms": "1",
            "message.timestamp.after.max.ms": "2",
            "max.message.bytes": "77",
            "compression.type": "producer",
            "cleanup.policy": "delete",
        }
        assert await told.alter(*((SET, name, value) for name, value in kept.items())) == (0, None)
        found = await told.describe(TOPIC, "t", *kept)
        assert {e.name: (e.value, e.config_source) for e in found.configs} == {
            name: (value, 1) for name, value in kept.items()
        }

    tell(story)


def test_a_broker_refuses_changes_to_the_settings_of_internal_topics() -> None:
    async def story(told: Story) -> None:
        for name in ("__consumer_offsets", "__cluster_metadata", "__diskless-metadata"):
            assert (await told.alter((SET, "retention.ms", "5"), name=name))[0] == 17

    tell(story)


def test_alter_configs_with_repeated_or_too_many_resources_changes_no_setting() -> None:
    async def story(told: Story) -> None:
        resource = rpc.AlterConfigsRequest.AlterConfigsResource
        setting = resource.AlterableConfig(name="segment.ms", value="7")
        for times, code in ((2, 42), (100_000, 44)):
            resources = (resource(resource_type=TOPIC, resource_name="t", configs=(setting,)),)
            request = rpc.AlterConfigsRequest(resources=resources * times, validate_only=False)
            answer = await call(told.handlers, request, rpc.AlterConfigsResponse, 2)
            assert {one.error_code for one in answer.responses} == {code}
            assert len(answer.responses) == times
            assert await told.own_settings() == {}

    tell(story)


def test_while_no_controller_answers_alter_configs_times_out_and_describe_configs_succeeds() -> (
    None
):
    async def story(told: Story) -> None:
        told.world.controller_away = True
        assert (await told.alter((SET, "retention.ms", "5")))[0] == 7
        assert (await told.describe(TOPIC, "t")).error_code == 0

    tell(story)


def resources(told: Story, *types: int, version: int = 1) -> Any:
    request = rpc.ListConfigResourcesRequest(resource_types=types)
    return call(told.handlers, request, rpc.ListConfigResourcesResponse, version)


def test_list_config_resources_returns_only_resources_of_the_requested_types() -> None:
    async def story(told: Story) -> None:
        listed = (await resources(told)).config_resources
        assert {(8, "1"), (8, "2"), (4, "1"), (4, "2"), (2, "t")} <= {
            (one.resource_type, one.resource_name) for one in listed
        }
        assert {one.resource_type for one in listed} == {2, 4, 8}
        brokers = (await resources(told, 4, 4)).config_resources
        assert [(one.resource_type, one.resource_name) for one in brokers] == [(4, "1"), (4, "2")]
        for types in ((16,), (32,), (16, 32)):
            assert (await resources(told, *types)).config_resources == ()
        assert (await resources(told, version=0)).config_resources == (), "client metrics only"
        for kind in (0, 1, 3, 99):
            answer = await resources(told, kind)
            assert (answer.error_code, answer.config_resources) == (35, ())

    tell(story)


def test_list_config_resources_lists_each_resource_once_for_100_000_requested_types() -> None:
    async def story(told: Story) -> None:
        listed = (await resources(told, *(4, 2) * 50_000)).config_resources
        assert [one.resource_type for one in listed].count(4) == 2
        assert len(listed) == len({(one.resource_type, one.resource_name) for one in listed})
        answer = await resources(told, *(4,) * 99_999, 99)
        assert (answer.error_code, answer.config_resources) == (35, ())

    tell(story)


@pytest.mark.parametrize("kind", [16, GROUP])
def test_describe_configs_returns_no_settings_of_groups_and_client_metrics(kind: int) -> None:
    async def story(told: Story) -> None:
        described = await told.describe(kind, "anything")
        assert (described.error_code, described.configs) == (0, ())
        described = await told.describe(kind, "")
        assert described.error_code == 42
        assert "name must not be empty" in described.error_message

    tell(story)


def test_describe_configs_describes_only_the_loggers_of_the_answering_broker() -> None:
    async def story(told: Story) -> None:
        levels = {one.name: one.value for one in (await told.describe(8, "1")).configs}
        assert levels["root"] == levels["diskless.dispatch"] == "WARN"
        (entry,) = (await told.describe(8, "1", "root")).configs
        assert (entry.config_source, entry.read_only) == (6, True)
        for name, text in (
            ("2", "Unexpected broker id, expected 1 but received 2"),
            ("x", "Broker id must be an integer, but it is: x"),
            ("", "Broker id must not be empty"),
        ):
            refused = await told.describe(8, name)
            assert (refused.error_code, refused.error_message) == (42, text)

    with_level = logging.getLogger("diskless.dispatch")
    before, root = with_level.level, logging.root.level
    try:
        logging.root.setLevel(logging.WARNING)
        with_level.setLevel(logging.NOTSET)
        tell(story)
    finally:
        with_level.setLevel(before)
        logging.root.setLevel(root)
