"""Decides about settings of topics, and of brokers as defaults for all topics.

Only differences are stored. A topic's effective value is its own setting, else the cluster's
default (a broker setting of the empty name), else the built-in one; DescribeConfigs shows which.
`__cluster_metadata` shows a fixed, read-only `cleanup.policy=snapshot`.

Source: KIP-133, KIP-226, KIP-339; KIP-630 (`cleanup.policy=snapshot`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Final

from coordinator.controller.config_defs import (
    BROKER_CONFIGS,
    COMPACT,
    DELETE,
    MAX_NAME_LENGTH,
    PROCESS_CONFIGS,
    THROTTLES,
    TOPIC_CONFIGS,
    ConfigDef,
    ConfigType,
    check_combination,
    check_config,
    has_default_synonym,
    split_list,
)
from coordinator.controller.decide.context import Context, Decision
from coordinator.controller.errors import RefusedError
from coordinator.controller.image import BROKER, TOPIC, MetadataImage, Resource
from coordinator.controller.kafka_keys import is_broker_key
from records.internal_topics import CLUSTER_METADATA, INTERNAL_TOPICS
from records.kafka_errors import ErrorCode
from records.metadata import ConfigRecord
from records.rpc import configs as rpc
from records.schema import MetadataRecord

CLUSTER_DEFAULT: Final = Resource(BROKER, "")
MAX_CHANGES: Final = 1_000  # of one resource
MAX_DESCRIBED: Final = 2_000  # resources of one request, which take a quarter of a second


class Source(IntEnum):
    """Sources of a value in DescribeConfigs. Source: KIP-226."""

    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5


class Operation(IntEnum):
    """Operations of IncrementalAlterConfigs. Source: KIP-339."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_Synonym = tuple[str, str, Source]


def synonyms(
    image: MetadataImage, own: Mapping[str, str | None], name: str, definition: ConfigDef
) -> list[_Synonym]:
    """Return all values of a topic setting with their sources, the effective value first."""
    found: list[_Synonym] = []
    value = own.get(name)
    if value is not None:
        found.append((name, value, Source.TOPIC_CONFIG))
    if definition.broker_name is not None:
        default = image.config(CLUSTER_DEFAULT, definition.broker_name)
        if default is not None:
            found.append((definition.broker_name, default, Source.DYNAMIC_DEFAULT_BROKER_CONFIG))
        in_file = image.file_defaults.get(definition.broker_name)
        if in_file is not None:
            found.append((definition.broker_name, in_file, Source.STATIC_BROKER_CONFIG))
    found.append((definition.broker_name or name, definition.default, Source.DEFAULT_CONFIG))
    return found


def described_configs(
    image: MetadataImage, own: Mapping[str, str | None]
) -> Iterator[tuple[str, str, Source]]:
    """Yield (name, effective value, source) of each topic setting."""
    for name, definition in TOPIC_CONFIGS.items():
        _, value, source = synonyms(image, own, name, definition)[0]
        yield name, value, source


def topic_value(image: MetadataImage, topic: str, name: str) -> str:
    """Return the effective value of one topic setting without surrounding blanks."""
    own = image.config(Resource(TOPIC, topic), name)
    return synonyms(image, {name: own}, name, TOPIC_CONFIGS[name])[0][1].strip()


def dynamic_synonyms(image: MetadataImage, broker_name: str, name: str) -> list[_Synonym]:
    """Return the values of a broker's setting in the cluster log, the effective value first.

    Args:  broker_name: the broker's id as text, or empty for the defaults of all brokers.
    """
    found = [
        (name, image.config(Resource(BROKER, broker_name), name), Source.DYNAMIC_BROKER_CONFIG),
        (name, image.config(CLUSTER_DEFAULT, name), Source.DYNAMIC_DEFAULT_BROKER_CONFIG),
    ]
    if not broker_name:
        del found[0]
    return [(name, value, source) for name, value, source in found if value is not None]


def process_settings(image: MetadataImage, broker_id: int) -> dict[str, int]:
    """Return the settings in the cluster log for a running broker's process, by name."""
    found = {name: dynamic_synonyms(image, str(broker_id), name) for name in PROCESS_CONFIGS}
    return {name: int(values[0][1]) for name, values in found.items() if values}


def cleanup_policies(image: MetadataImage, topic: str) -> list[str]:
    """Return the items of a topic's `cleanup.policy`: COMPACT, DELETE, both or none."""
    return split_list(topic_value(image, topic, "cleanup.policy"))


def is_only_compacted(image: MetadataImage, topic: str) -> bool:
    """Return whether a topic is compacted only, so that no request may delete its records.

    Every record may be the newest of its key.
    """
    policies = cleanup_policies(image, topic)
    return COMPACT in policies and DELETE not in policies


# --- describing ---------------------------------------------------------------------------------

_Described = rpc.DescribeConfigsResponse.DescribeConfigsResult
_Shown = _Described.DescribeConfigsResourceResult


def describe_configs(request: rpc.DescribeConfigsRequest, image: MetadataImage) -> object:
    """Answer a DescribeConfigs request from the cluster image."""
    results = []
    too_many = len(request.resources) > MAX_DESCRIBED
    for resource in request.resources:
        keys = resource.configuration_keys
        wanted = None if keys is None else frozenset(keys)
        named = Resource(resource.resource_type, resource.resource_name)
        try:
            if too_many:
                raise RefusedError(
                    ErrorCode.POLICY_VIOLATION, f"{len(request.resources)} resources at once."
                )
            shown = [
                entry
                for entry in _describe(named, image, documented=request.include_documentation)
                if wanted is None or entry.name in wanted
            ]
        except RefusedError as refused:
            results.append(
                _Described(
                    error_code=refused.code,
                    error_message=refused.message,
                    resource_type=named.type,
                    resource_name=named.name,
                    configs=(),
                )
            )
            continue
        if not request.include_synonyms:
            shown = [_without_synonyms(entry) for entry in shown]
        results.append(
            _Described(
                error_message=None,
                resource_type=named.type,
                resource_name=named.name,
                configs=tuple(shown),
            )
        )
    return rpc.DescribeConfigsResponse(results=tuple(results))


def _without_synonyms(entry: _Shown) -> _Shown:
    return _Shown(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.config_source,
        is_sensitive=False,
        config_type=entry.config_type,
        documentation=entry.documentation,
    )


def _describe(resource: Resource, image: MetadataImage, *, documented: bool) -> Iterator[_Shown]:
    """Yield the described settings of a topic or broker. Raises RefusedError."""
    if resource == (TOPIC, CLUSTER_METADATA):
        yield _cluster_metadata(documented=documented)
    elif resource.type == TOPIC:
        if resource.name not in image.topic_ids:
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"There is no topic {resource.name[:MAX_NAME_LENGTH]!r}.",
            )
        own = image.configs.get(resource, {})
        for name, definition in TOPIC_CONFIGS.items():
            found = synonyms(image, own, name, definition)
            yield _entry(name, found, definition, documented=documented)
    elif resource.type == BROKER:
        check_broker(resource.name, image)
        for name, definition in BROKER_CONFIGS.items():
            found = dynamic_synonyms(image, resource.name, name)
            if resource == CLUSTER_DEFAULT and not found:
                continue  # the cluster's defaults list only what was set
            if (in_file := image.file_defaults.get(name)) is not None:
                found.append((name, in_file, Source.STATIC_BROKER_CONFIG))
            found.append((name, definition.default, Source.DEFAULT_CONFIG))
            yield _entry(name, found, definition, documented=documented)
    else:
        raise _unknown_type(resource)


def _entry(name: str, found: list[_Synonym], definition: ConfigDef, *, documented: bool) -> _Shown:
    synonym = _Shown.DescribeConfigsSynonym
    _, value, source = found[0]
    return _Shown(
        name=name,
        value=value,
        read_only=False,
        config_source=source,
        is_sensitive=False,
        synonyms=tuple(
            synonym(name=n, value=v, source=s)
            for n, v, s in found
            if s is not Source.DEFAULT_CONFIG or has_default_synonym(definition)
        ),
        config_type=definition.type,
        documentation=definition.about if documented else None,
    )


def _cluster_metadata(*, documented: bool) -> _Shown:
    about = "The cluster's own log is cut down to a snapshot (KIP-630)."
    return _Shown(
        name="cleanup.policy",
        value="snapshot",
        read_only=True,
        config_source=Source.STATIC_BROKER_CONFIG,
        is_sensitive=False,
        config_type=ConfigType.LIST,
        documentation=about if documented else None,
    )


def check_broker(name: str, image: MetadataImage) -> None:
    """Check that `name` is a registered broker's id, or empty for all brokers.

    Raises RefusedError.
    """
    if name == "":
        return
    if not name.isascii() or not name.isdigit() or len(name) > 10 or str(int(name)) != name:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"{name[:20]!r} is not a broker id.")
    if int(name) not in image.brokers:
        raise RefusedError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker {name} is not registered.")


def _unknown_type(resource: Resource) -> RefusedError:
    return RefusedError(
        ErrorCode.INVALID_REQUEST, f"Resource type {resource.type}: only topics (2), brokers (4)."
    )


# --- changing -----------------------------------------------------------------------------------

_Resource = rpc.IncrementalAlterConfigsRequest.AlterConfigsResource


def replace_configs(request: rpc.AlterConfigsRequest, context: Context) -> Decision:
    """Replace all settings of each resource, and remove settings that the request does not name."""
    changes = rpc.IncrementalAlterConfigsRequest(
        resources=tuple(_as_changes(item, context.image) for item in request.resources),
        validate_only=request.validate_only,
    )
    decision = alter_configs(changes, context)
    result = rpc.AlterConfigsResponse.AlterConfigsResourceResponse
    return Decision(
        decision.records,
        rpc.AlterConfigsResponse(
            responses=tuple(
                result(
                    error_code=changed.error_code,
                    error_message=changed.error_message,
                    resource_type=changed.resource_type,
                    resource_name=changed.resource_name,
                )
                for changed in decision.response.responses
            )
        ),
    )


def _as_changes(
    item: rpc.AlterConfigsRequest.AlterConfigsResource, image: MetadataImage
) -> _Resource:
    """Return the changes of single settings that together replace all settings of a resource."""
    config = _Resource.AlterableConfig
    named = {given.name for given in item.configs}
    own = image.configs.get(Resource(item.resource_type, item.resource_name), {})
    replaced = [
        config(name=given.name, config_operation=Operation.SET, value=given.value)
        for given in item.configs
    ]
    removed = [
        config(name=name, config_operation=Operation.DELETE, value=None)
        for name in own
        if name not in named
    ]
    return _Resource(
        resource_type=item.resource_type,
        resource_name=item.resource_name,
        configs=(*replaced, *removed),
    )


def alter_configs(request: rpc.IncrementalAlterConfigsRequest, context: Context) -> Decision:
    """Change the settings of each requested resource; a resource gets all its changes or none."""
    result = rpc.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
    records: list[MetadataRecord] = []
    results = []
    times = Counter((item.resource_type, item.resource_name) for item in request.resources)
    too_many = len(request.resources) > context.limits.max_items_of_request
    for item in request.resources:
        resource = Resource(item.resource_type, item.resource_name)
        code, message = ErrorCode.NONE, None
        try:
            if too_many:
                raise RefusedError(
                    ErrorCode.POLICY_VIOLATION, f"{len(request.resources)} resources at once."
                )
            if times[resource] > 1:
                raise RefusedError(
                    ErrorCode.INVALID_REQUEST, "Each resource must appear at most once."
                )
            changed = _alter(item, resource, context.image)
            if len(records) + len(changed) > context.limits.max_records_of_request:
                raise RefusedError(
                    ErrorCode.POLICY_VIOLATION,
                    f"{resource.name!r}: the request changes too much; send several.",
                )
            records += changed
        except RefusedError as refused:
            code, message = refused.code, refused.message
        results.append(
            result(
                error_code=code,
                error_message=message,
                resource_type=resource.type,
                resource_name=resource.name,
            )
        )
    kept = () if request.validate_only else tuple(records)
    return Decision(kept, rpc.IncrementalAlterConfigsResponse(responses=tuple(results)))


def _alter(item: _Resource, resource: Resource, image: MetadataImage) -> list[ConfigRecord]:
    """Build the records that change one resource's settings. Raises RefusedError."""
    known = _known_configs(resource, image)
    own = image.configs.get(resource, {})
    names = [config.name for config in item.configs]
    if len(set(names)) != len(names) or len(names) > MAX_CHANGES:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, f"{resource.name}: settings repeat, or exceed {MAX_CHANGES}."
        )
    records = []
    changed = dict(own)
    for config in item.configs:
        if config.value is None and config.config_operation != Operation.DELETE:
            raise RefusedError(
                ErrorCode.INVALID_REQUEST, f"Null value not supported for : {config.name}"
            )
        if resource.type == BROKER and config.config_operation != Operation.DELETE:
            _check_scope(config.name, resource)
        value = changed[config.name] = _new_value(config, known, own.get(config.name))
        if value != own.get(config.name):
            records.append(
                ConfigRecord(
                    resource_type=resource.type,
                    resource_name=resource.name,
                    name=config.name,
                    value=value,
                )
            )
    if resource.type == TOPIC:
        check_combination(changed)
    return records


def _known_configs(resource: Resource, image: MetadataImage) -> dict[str, ConfigDef]:
    """Return the definitions of a resource's settings by name. Raises RefusedError."""
    if resource.type == TOPIC:
        if resource.name in INTERNAL_TOPICS:
            raise RefusedError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"{resource.name} is internal: its settings are fixed.",
            )
        if resource.name not in image.topic_ids:
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"There is no topic {resource.name[:MAX_NAME_LENGTH]!r}.",
            )
        return TOPIC_CONFIGS
    if resource.type == BROKER:
        check_broker(resource.name, image)
        return BROKER_CONFIGS
    raise _unknown_type(resource)


def _check_scope(name: str, resource: Resource) -> None:
    """Check that a setting may have a value for one broker only. Raises RefusedError."""
    if resource == CLUSTER_DEFAULT or name in PROCESS_CONFIGS or name in THROTTLES:
        return
    if name in BROKER_CONFIGS:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"{name} is decided for the whole cluster, not by broker {resource.name}: change the "
            "default of all brokers (an empty broker name, --entity-default).",
        )


def _new_value(
    config: _Resource.AlterableConfig, known: dict[str, ConfigDef], own: str | None
) -> str | None:
    """Return a setting's value after the change; None if it is removed. Raises RefusedError."""
    definition = known.get(config.name)
    if definition is None and known is BROKER_CONFIGS and is_broker_key(config.name):
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"Cannot update these configs dynamically: [{config.name}]. Change it in the broker's "
            "properties file and restart the broker.",
        )
    if config.config_operation == Operation.DELETE:
        return None if definition is not None else check_config(config.name, None, known)
    if config.config_operation == Operation.SET:
        return check_config(config.name, config.value, known)
    if config.config_operation not in (Operation.APPEND, Operation.SUBTRACT):
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"{config.name}: operation {config.config_operation} is unknown.",
        )
    if definition is None or config.value is None:
        return check_config(config.name, config.value, known)
    if definition.type is not ConfigType.LIST:
        raise RefusedError(ErrorCode.INVALID_CONFIG, f"{config.name} is not a list.")
    items = split_list(own if own is not None else definition.default)
    given = split_list(config.value)
    if config.config_operation == Operation.APPEND:
        items += [item for item in given if item not in items]
    else:
        items = [item for item in items if item not in given]
    return check_config(config.name, ",".join(items), known)
