"""Answers DescribeConfigs and both AlterConfigs for topics, the cluster and this broker.

Settings of topics and cluster-wide defaults are in the cluster log, so every broker describes them
from its image. Only a process itself knows the settings that it was started with: this broker
refuses a request about another broker, as Kafka does, and clients send it there. Those settings
are read-only, except those that a broker follows while it runs (`PROCESS_CONFIGS`).

The controller decides a change. The answer waits briefly until this broker's image has the new
values: a client that sets a value and then reads it should see it.

Source: KIP-133, KIP-226 (synonyms), KIP-339, KIP-569 (documentation); upstream's ConfigHelper.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from coordinator.controller.access import Client
from coordinator.controller.config_defs import (
    BROKER_CONFIGS,
    MAX_NAME_LENGTH,
    PROCESS_CONFIGS,
    ConfigType,
)
from coordinator.controller.decide.configs import (
    Operation,
    Source,
    describe_configs,
    dynamic_synonyms,
)
from coordinator.controller.image import BROKER, TOPIC, MetadataImage, Resource
from coordinator.controller.placement import unfenced_brokers
from coordinator.controller.refusals import refuse
from coordinator.errors import CoordinatorError
from diskless.apis.auto_creation import check_name
from diskless.apis.handler import make_handler
from diskless.cluster import Cluster
from raft.net.handlers import Served
from records.kafka_errors import ErrorCode
from records.rpc import configs as rpc

MAX_RESOURCES: Final = 10_000
"""Resources of one answer: some thirty megabytes."""

SLICE_RESOURCES: Final = 20  # described before the loop runs other tasks: a few ms

SEEN_HERE_S: Final = 1.0
"""The longest that the answer to a change waits for this broker's own image."""

BROKER_LOGGER, CLIENT_METRICS, GROUP = 8, 16, 32
"""Types of resources without settings in the cluster log. Source: KIP-412, KIP-714, KIP-848."""

LISTED: Final = (GROUP, CLIENT_METRICS, BROKER_LOGGER, BROKER, TOPIC)
LOGGER_SOURCE: Final = 6  # DYNAMIC_BROKER_LOGGER_CONFIG
FIRST_WITH_TYPES: Final = 1  # of ListConfigResources; before, it listed client metrics only

LEVELS: Final = ((50, "FATAL"), (40, "ERROR"), (30, "WARN"), (20, "INFO"), (10, "DEBUG"))
"""Log4j's names of Python's levels."""

ROOT_LOGGER: Final = "root"

_RequestedPartition = rpc.DescribeConfigsRequest.DescribeConfigsResource
_Result = rpc.DescribeConfigsResponse.DescribeConfigsResult
_Entry = _Result.DescribeConfigsResourceResult


class OwnSetting(NamedTuple):
    """A setting that this process was started with, as text."""

    name: str
    value: str | None  # None: not set, or secret
    default: str | None
    type: ConfigType
    about: str
    is_sensitive: bool = False

    @property
    def is_default(self) -> bool:
        """Return whether the setting has its default value."""
        return not self.is_sensitive and self.value == self.default


async def describe(
    request: rpc.DescribeConfigsRequest,
    image: MetadataImage,
    *,
    broker_id: int,
    own: Sequence[OwnSetting] = (),
) -> rpc.DescribeConfigsResponse:
    """Describe the settings of each requested resource, with an error for an invalid resource.

    Args:  broker_id: this broker's. own: the settings that it was started with.
    """
    results: list[_Result] = []
    distinct = {
        (requested.resource_type, requested.resource_name): requested
        for requested in request.resources
    }
    for number, requested in enumerate(distinct.values()):
        if number >= MAX_RESOURCES:
            text = f"A request may describe at most {MAX_RESOURCES} resources."
            results.append(_refusal(requested, ErrorCode.POLICY_VIOLATION, text))
            continue
        if number % SLICE_RESOURCES == SLICE_RESOURCES - 1:
            await asyncio.sleep(0)
        single = msgspec.structs.replace(request, resources=(requested,))  # type: ignore[type-var]
        if requested.resource_type == TOPIC and (
            check_name(requested.resource_name) == ErrorCode.INVALID_TOPIC_EXCEPTION
        ):
            text = f"Topic name is invalid: {requested.resource_name[:MAX_NAME_LENGTH]!r}"
            results.append(_refusal(requested, ErrorCode.INVALID_TOPIC_EXCEPTION, text))
            continue
        if requested.resource_type in (BROKER_LOGGER, CLIENT_METRICS, GROUP):
            results.append(_described_here(requested, broker_id))
            continue
        if requested.resource_type == BROKER and requested.resource_name:
            results.append(_broker(single, image, broker_id, own))
            continue
        answer = describe_configs(single, image)
        assert isinstance(answer, rpc.DescribeConfigsResponse), f"{answer}"
        results += answer.results
    return rpc.DescribeConfigsResponse(results=tuple(results))


def _broker(
    request: rpc.DescribeConfigsRequest,
    image: MetadataImage,
    broker_id: int,
    own: Sequence[OwnSetting],
) -> _Result:
    """Describe this broker's dynamic settings and the settings of its properties file."""
    (requested,) = request.resources
    name = requested.resource_name
    if not name.isascii() or not name.isdigit():
        text = f"A broker's id must be a number, not {name[:20]!r}."
        return _refusal(requested, ErrorCode.INVALID_REQUEST, text)
    if name != str(broker_id):
        text = (
            f"This is broker {broker_id}, which knows its own settings, not those of {name[:20]}."
        )
        return _refusal(requested, ErrorCode.INVALID_REQUEST, text)
    answer = describe_configs(request, image)
    assert isinstance(answer, rpc.DescribeConfigsResponse), f"{answer}"
    shared = () if answer.results[0].error_code else answer.results[0].configs  # not registered yet
    entries = [entry for entry in shared if entry.name not in PROCESS_CONFIGS]
    wanted = (
        None if requested.configuration_keys is None else frozenset(requested.configuration_keys)
    )
    entries += [
        _own_entry(setting, request, dynamic_synonyms(image, name, setting.name))
        for setting in own
        if (setting.name not in BROKER_CONFIGS or setting.name in PROCESS_CONFIGS)
        and (wanted is None or setting.name in wanted)
    ]
    return _Result(
        error_message=None,
        resource_type=requested.resource_type,
        resource_name=name,
        configs=tuple(entries),
    )


def _described_here(requested: _RequestedPartition, broker_id: int) -> _Result:
    """Describe the loggers of this broker, or a resource that has no settings.

    Groups are of the classic protocol and metrics are not subscribed to, so neither has settings.
    """
    kind, name = requested.resource_type, requested.resource_name
    invalid = ErrorCode.INVALID_REQUEST
    if kind != BROKER_LOGGER:
        if name:
            return _result(requested, ())
        noun = "Group" if kind == GROUP else "Client metrics subscription"
        return _refusal(requested, invalid, f"{noun} name must not be empty")
    if not name:
        return _refusal(requested, invalid, "Broker id must not be empty")
    if not name.isascii() or not name.isdigit():
        text = f"Broker id must be an integer, but it is: {name[:20]}"
        return _refusal(requested, invalid, text)
    if name != str(broker_id):
        text = f"Unexpected broker id, expected {broker_id} but received {name[:20]}"
        return _refusal(requested, invalid, text)
    wanted = requested.configuration_keys
    return _result(
        requested,
        tuple(entry for entry in _loggers() if wanted is None or entry.name in wanted),
    )


def _loggers() -> Iterator[_Entry]:
    """Yield the effective level of each logger of this process. Source: KIP-412."""
    for name in (ROOT_LOGGER, *sorted(logging.root.manager.loggerDict)):
        effective = logging.getLogger(None if name == ROOT_LOGGER else name).getEffectiveLevel()
        level = next((text for lowest, text in LEVELS if effective >= lowest), "TRACE")
        yield _Entry(
            name=name, value=level, read_only=True, config_source=LOGGER_SOURCE, is_sensitive=False
        )


def _result(requested: _RequestedPartition, entries: tuple[_Entry, ...]) -> _Result:
    return _Result(
        error_message="",
        resource_type=requested.resource_type,
        resource_name=requested.resource_name,
        configs=entries,
    )


def _own_entry(
    setting: OwnSetting,
    request: rpc.DescribeConfigsRequest,
    dynamic: Sequence[tuple[str, str, Source]],
) -> _Entry:
    """Describe a setting of this broker's process with its value, source and synonyms.

    Args:  dynamic: its values in the cluster log, which come before that of the properties file.
    """
    synonym = _Entry.DescribeConfigsSynonym
    given = None if setting.is_sensitive else setting.value
    synonyms = [synonym(name=name, value=value, source=source) for name, value, source in dynamic]
    if not setting.is_default:
        static = Source.STATIC_BROKER_CONFIG
        synonyms.append(synonym(name=setting.name, value=given, source=static))
    default = Source.DEFAULT_CONFIG
    synonyms.append(synonym(name=setting.name, value=setting.default, source=default))
    return _Entry(
        name=setting.name,
        value=synonyms[0].value,
        read_only=setting.name not in PROCESS_CONFIGS,
        config_source=synonyms[0].source,
        is_sensitive=setting.is_sensitive,
        synonyms=tuple(synonyms) if request.include_synonyms else (),
        config_type=setting.type,
        documentation=setting.about if request.include_documentation else None,
    )


def _refusal(requested: _RequestedPartition, code: ErrorCode, message: str) -> _Result:
    return _Result(
        error_code=code,
        error_message=message,
        resource_type=requested.resource_type,
        resource_name=requested.resource_name,
        configs=(),
    )


# --- listing ------------------------------------------------------------------------------------


def list_resources(
    request: rpc.ListConfigResourcesRequest, image: MetadataImage, version: int
) -> rpc.ListConfigResourcesResponse:
    """List the resources of the requested types by name; of all types if none is requested.

    Groups and client metrics are listed only if they have settings, and so never.
    """
    types = set(request.resource_types) if version >= FIRST_WITH_TYPES else {CLIENT_METRICS}
    if not types <= set(LISTED):
        return rpc.ListConfigResourcesResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION, config_resources=()
        )
    serving = [str(broker.broker_id) for broker in unfenced_brokers(image)]
    names: dict[int, Sequence[str]] = {
        BROKER_LOGGER: serving,
        BROKER: serving,
        TOPIC: sorted(image.topic_ids),
    }
    resource = rpc.ListConfigResourcesResponse.ConfigResource
    return rpc.ListConfigResourcesResponse(
        config_resources=tuple(
            resource(resource_name=name, resource_type=kind)
            for kind in LISTED
            if not types or kind in types
            for name in names.get(kind, ())
        )
    )


# --- changing -----------------------------------------------------------------------------------


_Alter = rpc.AlterConfigsRequest | rpc.IncrementalAlterConfigsRequest


_Altered = rpc.AlterConfigsResponse | rpc.IncrementalAlterConfigsResponse


async def alter(request: _Alter, cluster: Cluster, client: Client | None = None) -> _Altered:
    """Forward changes of settings; answer once the cluster image shows the changes."""
    replaces = isinstance(request, rpc.AlterConfigsRequest)
    kind: type[_Altered] = (
        rpc.AlterConfigsResponse if replaces else rpc.IncrementalAlterConfigsResponse
    )
    try:
        answer = await cluster.ask_controller(request, kind, client)
    except CoordinatorError as error:
        refusal = refuse(request, ErrorCode.REQUEST_TIMED_OUT, error.message)
        assert isinstance(refusal, kind), f"{refusal}"
        return refusal
    if not request.validate_only:
        changed = {
            Resource(result.resource_type, result.resource_name)
            for result in answer.responses
            if not result.error_code
        }
        expected = list(_expected_values(request, changed, cluster.image))
        await cluster.image_where(
            lambda image: all(
                image.config(where, name) == value for where, name, value in expected
            ),
            SEEN_HERE_S,
        )
    return answer


def _expected_values(
    request: _Alter, changed: set[Resource], image: MetadataImage
) -> Sequence[tuple[Resource, str, str | None]]:
    """Return the setting values that the cluster image has once the request is carried out.

    Args:  image: what it has and an AlterConfigs request does not name, that request deletes.
    """
    expected: list[tuple[Resource, str, str | None]] = []
    for requested in request.resources:
        resource = Resource(requested.resource_type, requested.resource_name)
        if resource not in changed:
            continue
        if isinstance(requested, rpc.AlterConfigsRequest.AlterConfigsResource):
            named = {config.name: config.value for config in requested.configs}
            removed = dict.fromkeys(image.configs.get(resource, {}).keys() - named.keys())
            expected += [(resource, name, value) for name, value in (named | removed).items()]
            continue
        expected += [
            (resource, config.name, config.value if is_set else None)
            for config in requested.configs
            if (is_set := config.config_operation == Operation.SET)
            or config.config_operation == Operation.DELETE
        ]
    return expected


def handlers(cluster: Cluster, own: Sequence[OwnSetting] = ()) -> dict[int, Served]:
    """Return the handlers of requests about settings, by api key.

    Args:  own: the settings that this process was started with.
    """
    return {
        32: make_handler(
            rpc.DescribeConfigsRequest,
            lambda request, _: describe(
                request, cluster.image, broker_id=cluster.broker_id, own=own
            ),
            in_line=True,
        ),
        74: make_handler(
            rpc.ListConfigResourcesRequest,
            lambda request, context: list_resources(request, cluster.image, context.version),
        ),
        33: make_handler(
            rpc.AlterConfigsRequest,
            lambda request, context: alter(request, cluster, context.client),
        ),
        44: make_handler(
            rpc.IncrementalAlterConfigsRequest,
            lambda request, context: alter(request, cluster, context.client),
        ),
    }
