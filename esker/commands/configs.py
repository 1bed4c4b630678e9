"""`esker configs`: settings of topics and brokers, read and changed, as `kafka-configs` does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from esker.commands.base import CommandGroup
from esker.commands.cluster_access import (
    AsJson,
    Controller,
    Server,
    Target,
    TimeoutMs,
    ask,
    pairs,
    stop_on,
    target,
)
from esker.commands.names import complete_from, complete_topics
from esker.commands.text_tables import show, table
from records.rpc.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

app = CommandGroup("Print and change the settings of topics and brokers.")

DESCRIBE_EXAMPLE = "Example: esker configs describe topics orders --all"
ALTER_EXAMPLE = "Example: esker configs alter topics orders --add-config retention.ms=60000"

TOPIC: Final = 2  # resource types of the wire
BROKER: Final = 4
TYPES: Final = {"topics": TOPIC, "brokers": BROKER}
SET: Final = 0  # operations of IncrementalAlterConfigs
DELETE: Final = 1
SOURCES: Final = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
}
OVERRIDES: Final = frozenset({1, 2, 3})
TIMEOUT_MS: Final = 30_000
_COMMA: Final = re.compile(r",(?=[^\]]*(?:\[|$))")  # outside brackets, as kafka-configs finds it
DESCRIBED_AT_ONCE: Final = 500  # topics or brokers; bounds the size of one response

EntityType = Annotated[
    str,
    typer.Argument(
        metavar="topics|brokers",
        autocompletion=complete_from("topics", "brokers"),
        help="Type of the entity with the settings: topics or brokers.",
    ),
]
EntityName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        autocompletion=complete_topics,
        help='Name of the topic or id of the broker; "" means all brokers.',
    ),
]
_Setting = DescribeConfigsResponse.DescribeConfigsResult.DescribeConfigsResourceResult


@app.callback(epilog=DESCRIBE_EXAMPLE)
def configs() -> None:
    """Print and change the settings of topics and brokers."""


@app.command(epilog=DESCRIBE_EXAMPLE)
def describe(
    entity_type: EntityType,
    entity_name: EntityName,
    bootstrap_controller: Controller = None,
    bootstrap_server: Server = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Also print settings with default values; default: only changed settings "
            "are printed.",
        ),
    ] = False,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:
    """Print the settings of a topic or a broker, each with its source."""
    cluster = target(bootstrap_controller, bootstrap_server)
    settings = _describe(cluster, _type(entity_type), [entity_name], timeout_ms)[entity_name]
    shown = [setting for setting in settings if everything or setting.config_source in OVERRIDES]
    rows = [
        (setting.name, setting.value or "", _source(setting),
         "read-only" if setting.read_only else "")
        for setting in shown
    ]  # fmt: skip
    result = {"configs": [_as_json(setting) for setting in shown]}
    show(result, table(("Name", "Value", "Source", ""), rows), as_json=as_json)
    if not rows and not as_json:
        hint = "" if everything or not entity_name else "; --all prints the defaults"
        typer.echo(f"esker: no setting was changed from its default{hint}", err=True)


@app.command(epilog=ALTER_EXAMPLE)
def alter(
    entity_type: EntityType,
    entity_name: EntityName,
    bootstrap_controller: Controller = None,
    bootstrap_server: Server = None,
    add_config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,...",
            help="Settings to change: KEY=VALUE,KEY=VALUE; brackets hold a value with commas: "
            "KEY=[A,B]; may be repeated; default: no setting is changed.",
        ),
    ] = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY,...",
            help="Names (KEY,...) of settings to reset to their defaults; may be repeated; "
            "default: no setting is reset.",
        ),
    ] = None,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:
    """Change settings of a topic or a broker; all other settings keep their values."""
    cluster = target(bootstrap_controller, bootstrap_server)
    if not add_config and not delete_config:
        raise typer.BadParameter("nothing to change: give --add-config or --delete-config")
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    added = parse_added(add_config or [])
    deleted = [key.strip() for part in delete_config or [] for key in part.split(",")]
    changes = [
        *(resource.AlterableConfig(name=k, config_operation=SET, value=v)
          for k, v in added.items()),
        *(resource.AlterableConfig(name=k, config_operation=DELETE, value=None)
          for k in deleted),
    ]  # fmt: skip
    request = IncrementalAlterConfigsRequest(
        resources=(
            resource(
                resource_type=_type(entity_type),
                resource_name=entity_name,
                configs=tuple(changes),
            ),
        ),
        validate_only=False,
    )
    response = ask(cluster, request, IncrementalAlterConfigsResponse, timeout_ms)
    (result,) = response.responses
    stop_on(entity_name or "all brokers", result.error_code, result.error_message)
    word = "setting" if len(changes) == 1 else "settings"
    show(
        {"entityType": entity_type, "entityName": entity_name, "set": added, "deleted": deleted},
        f"Changed {len(changes)} {word} of {entity_type} {entity_name!r}.",
        as_json=as_json,
    )


def parse_added(options: Sequence[str]) -> dict[str, str]:
    """Parse the settings of `--add-config`, in which brackets enclose a value with commas.

    >>> parse_added(["retention.ms=1000,a=[x,y]", "b=2"])
    {'retention.ms': '1000', 'a': 'x,y', 'b': '2'}
    """
    found = pairs([part for option in options for part in _COMMA.split(option)], "--add-config")
    return {
        key: value[1:-1] if value.startswith("[") and value.endswith("]") else value
        for key, value in found.items()
    }


def settings_of(
    cluster: Target, resource_type: int, names: Sequence[str], timeout_ms: int
) -> dict[str, dict[str, str | None]]:
    """Return the non-default settings of each named topic or broker."""
    return {
        name: {
            setting.name: setting.value
            for setting in settings
            if setting.config_source in OVERRIDES
        }
        for first in range(0, len(names), DESCRIBED_AT_ONCE)
        for name, settings in _describe(
            cluster, resource_type, names[first : first + DESCRIBED_AT_ONCE], timeout_ms
        ).items()
    }


def _describe(
    cluster: Target, resource_type: int, names: Sequence[str], timeout_ms: int
) -> dict[str, tuple[_Setting, ...]]:
    request = DescribeConfigsRequest(
        resources=tuple(
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=resource_type, resource_name=name, configuration_keys=None
            )
            for name in names
        )
    )
    response = ask(cluster, request, DescribeConfigsResponse, timeout_ms)
    for result in response.results:
        stop_on(result.resource_name, result.error_code, result.error_message)
    return {result.resource_name: result.configs for result in response.results}


def _type(entity_type: str) -> int:
    if entity_type not in TYPES:
        raise typer.BadParameter(
            f"{entity_type!r} is neither topics nor brokers", param_hint="--entity-type"
        )
    return TYPES[entity_type]


def _source(setting: _Setting) -> str:
    return SOURCES.get(setting.config_source, str(setting.config_source))


def _as_json(setting: _Setting) -> dict[str, Any]:
    return {
        "name": setting.name,
        "value": setting.value,
        "source": _source(setting),
        "readOnly": setting.read_only,
    }
