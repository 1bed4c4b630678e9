"""Groups of commands in one style: names as arguments or as Kafka's options, and profiles.

    app = CommandGroup("Create and delete topics.")

    @app.command(epilog=EXAMPLE)
    def delete(topic: TopicName, bootstrap_server: Server = None) -> None: ...

This command takes `orders` or `--topic orders`, and `--profile NAME`: the function declares each
name once, as an argument, and `CommandGroup` adds the option of `KAFKA_OPTIONS`. `delete` is called
with one value, whichever way it was given.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, get_args, get_type_hints

import typer
from typer.models import ArgumentInfo

from esker.client.profiles import CONTROLLERS, SERVERS
from esker.commands.cluster_access import no_servers, profile_or_exit
from esker.commands.names import complete_profiles

OPTION: Final = "{}_option"
KAFKA_OPTIONS: Final = {
    "topic": ("--topic",),
    "group": ("--group",),
    "entity_type": ("--entity-type",),
    "entity_name": ("--entity-name",),
    "broker_id": ("--id",),
    "transactional_id": ("--transactional-id",),
    "feature": ("--feature", "-f"),
    "config": ("--config", "-c"),
    "create_chunk_json_file": ("--create-chunk-json-file",),
    "alter_chunk_json_file": ("--alter-chunk-json-file",),
}
"""The options of Kafka's tools that name the same as an argument, by the argument's parameter."""

PROFILE: Final = "profile"
Profile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME",
        autocompletion=complete_profiles,
        help="Name of the profile with the cluster's addresses; default: the environment's "
        "ESKER_PROFILE, else the default profile of the file that `esker profile list` "
        "names.",
    ),
]


COMMAND_CONFIG: Final = "command_config"
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        help="Path of a file with Kafka's client properties of TLS and SASL, such as "
        "security.protocol; default: connections are PLAINTEXT.",
    ),
]


_client_properties: Final[ContextVar[Mapping[str, str]]] = ContextVar("client properties")


class CommandGroup(typer.Typer):
    """Commands whose arguments may be given as Kafka's options, and addresses as a profile."""

    def __init__(self, help: str | None = None, **settings: Any) -> None:  # noqa: A002 (Typer's)
        """Create a group of commands; `help` is None for a command outside of any group."""
        super().__init__(
            add_completion=False, no_args_is_help=help is not None, help=help, **settings
        )

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        """Register a function as a command, as Typer does, with Kafka's options added."""
        register = super().command(name, **settings)

        def decorate(function: Callable[..., None]) -> Callable[..., None]:
            register(with_options(function))
            return function

        return decorate


class _Name(NamedTuple):
    """An argument that may be given as an option: its parameter, option and placeholder."""

    parameter: str
    flag: str
    metavar: str
    required: bool

    def take(self, values: dict[str, Any]) -> None:
        """Set an argument in `values` from the argument itself or from Kafka's option for it.

        Raises typer.BadParameter if both are given, or none of a required argument.
        """
        option = values.pop(OPTION.format(self.parameter))
        argument = values[self.parameter]
        if given(argument) and given(option):
            raise typer.BadParameter(
                f"is given twice, as an argument and as {self.flag}: give one of them",
                param_hint=self.metavar,
            )
        values[self.parameter] = argument if given(argument) else option
        if self.required and not given(values[self.parameter]):
            raise typer.BadParameter(
                f"is missing: give it as an argument, or as {self.flag}", param_hint=self.metavar
            )


def given(value: Any) -> bool:
    """Return whether a parameter has a value: 0 and empty text count, an empty list does not."""
    return value not in (None, [], ())


def with_options(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command's function with options added: Kafka's names of arguments, --profile."""
    hints = get_type_hints(function, include_extras=True)
    parameters: list[inspect.Parameter] = []
    names: list[_Name] = []
    for parameter in inspect.signature(function).parameters.values():
        hint = hints[parameter.name]
        made = parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY)
        argument, options = _argument(hint), KAFKA_OPTIONS.get(parameter.name)
        if argument is None or options is None:
            parameters.append(made)
            continue
        kind = get_args(hint)[0] | None
        metavar = argument.metavar or parameter.name.upper()
        required = parameter.default is inspect.Parameter.empty
        names.append(_Name(parameter.name, options[0], metavar, required))
        option = typer.Option(
            *options,
            metavar=metavar,
            min=argument.min,
            autocompletion=argument.autocompletion,
            help=f"Value of the argument {metavar}, under the name of Kafka's option.",
        )
        parameters += [
            made.replace(annotation=Annotated[kind, argument], default=None),
            made.replace(
                name=OPTION.format(parameter.name),
                annotation=Annotated[kind, option],
                default=None,
            ),
        ]
    kind_ = inspect.Parameter.KEYWORD_ONLY
    takes_profile = "bootstrap_server" in hints
    if takes_profile:
        parameters.append(inspect.Parameter(PROFILE, kind_, default=None, annotation=Profile))
    if takes_profile or "bootstrap_controller" in hints:
        parameters.append(
            inspect.Parameter(COMMAND_CONFIG, kind_, default=None, annotation=CommandConfig)
        )

    def command(**values: Any) -> None:
        with secured(values.pop(COMMAND_CONFIG, None)):
            if takes_profile:
                apply_profile(values)
            for name in names:
                name.take(values)
            function(**values)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def _argument(hint: Any) -> ArgumentInfo | None:
    """Return Typer's declaration in the type hint of an argument, or None for an option's hint."""
    return next((one for one in get_args(hint)[1:] if isinstance(one, ArgumentInfo)), None)


@contextmanager
def secured(file: Path | None) -> Iterator[None]:
    """Make all connections of a command secure as a file of client properties says."""
    if file is None:
        yield
        return
    from esker.client.security import CommandConfigError, read_command_config
    from esker.settings.properties import read_properties
    from raft.net.security import outgoing

    try:
        security = read_command_config(file)
    except CommandConfigError as error:
        raise typer.BadParameter(str(error), param_hint="--command-config") from None
    token = _client_properties.set(read_properties(file))
    try:
        with outgoing(security):
            yield
    finally:
        _client_properties.reset(token)


def client_properties() -> dict[str, str]:
    """Return the properties of `--command-config`, for connections that other processes open.

    Paths of files are absolute: other processes have other working directories.
    """
    return {
        name: str(Path(text).absolute()) if name.endswith("store.location") else text
        for name, text in _client_properties.get({}).items()
    }


def apply_profile(values: dict[str, Any]) -> None:
    """Replace `--profile` by the addresses of that profile, unless an option gives addresses."""
    profile = values.pop(PROFILE, None)
    if profile is None or any(map(values.get, ("bootstrap_server", "bootstrap_controller"))):
        return
    properties = profile_or_exit(profile)
    if SERVERS in properties:
        values["bootstrap_server"] = properties[SERVERS]
    elif "bootstrap_controller" in values:
        values["bootstrap_controller"] = properties.get(CONTROLLERS)
    else:
        raise no_servers()
