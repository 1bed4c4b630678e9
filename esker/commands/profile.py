"""`esker profile`: the named clusters of the command line, kept in one TOML file.

Source: esker/client/profiles.py; docs/commands.md.
"""

from __future__ import annotations

from typing import Annotated

import typer

from esker.client.profiles import (
    PROPERTIES,
    ProfileError,
    Profiles,
    read_profiles,
    set_default_profile,
)
from esker.commands.cluster_access import AsJson, profile_or_exit, stop_for_profile
from esker.commands.names import complete_profiles
from esker.commands.text_tables import show as show_result
from esker.commands.text_tables import table

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="List and choose profiles: named clusters for other commands to connect to.",
)

LIST_EXAMPLE = "Example: esker profile list"
SHOW_EXAMPLE = "Example: esker profile show prod"
USE_EXAMPLE = "Example: esker profile use prod"


@app.callback(epilog=LIST_EXAMPLE)
def profile() -> None:
    """List and choose profiles: named clusters for other commands to connect to."""


@app.command(name="list", epilog=LIST_EXAMPLE)
def list_(as_json: AsJson = False) -> None:
    """Print all profiles with their addresses, and the file that has them.

    An asterisk marks the profile that commands use without --profile.
    """
    profiles = _read()
    current = profiles.chosen()
    rows = [
        ("*" if name == current else "", name, *(properties.get(key, "-") for key in PROPERTIES))
        for name, properties in profiles.by_name.items()
    ]
    found = [
        {"name": name, "current": name == current, "properties": dict(properties)}
        for name, properties in profiles.by_name.items()
    ]
    text = f"File: {profiles.path}\n{table(('', 'Profile', *PROPERTIES), rows)}"
    show_result({"file": str(profiles.path), "profiles": found}, text, as_json=as_json)


@app.command(epilog=SHOW_EXAMPLE)
def show(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            autocompletion=complete_profiles,
            help="Name of the profile to print; default: the profile that commands use without "
            "--profile.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the properties of one profile."""
    chosen = _read().chosen(name)
    properties = dict(profile_or_exit(chosen))
    text = "\n".join(f"{key}={value}" for key, value in properties.items())
    if chosen is None:
        text = "No profile is in use: commands connect to 127.0.0.1:9092."
    show_result({"name": chosen, "properties": properties}, text, as_json=as_json)


@app.command(epilog=USE_EXAMPLE)
def use(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            autocompletion=complete_profiles,
            help="Name of the profile that commands use without --profile and ESKER_PROFILE.",
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Make a profile the default of all commands, by the file's line `profile = ...`."""
    try:
        path = set_default_profile(name)
    except ProfileError as error:
        stop_for_profile(error)
    show_result(
        {"name": name, "file": str(path)},
        f"Commands use profile {name} from now on ({path}).",
        as_json=as_json,
    )


def _read() -> Profiles:
    try:
        return read_profiles()
    except ProfileError as error:
        stop_for_profile(error)
