"""Names as arguments or as Kafka's options, and the profiles that name clusters."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from esker.cli import COMMANDS, app, module_of
from esker.client.profiles import config_path, read_profiles
from esker.commands.base import CommandGroup
from esker.commands.cluster_access import Server, Target, target
from esker.commands.names import TopicName, TopicNames
from esker.settings.values import Endpoint
from tests.esker.commands.conftest import Ran

VARIABLES = ("ESKER_CONFIG", "ESKER_PROFILE", "ESKER_BOOTSTRAP_SERVERS", "XDG_CONFIG_HOME")
TWO = """
profile = "local"

[profiles.local]
bootstrap.servers = "h:1"

[profiles.quorum]
bootstrap.controllers = "c:1,c:2"
"""


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the profiles of the person who runs the tests out of them."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "config.toml"
    monkeypatch.setenv("ESKER_CONFIG", str(path))
    return path


# --- names --------------------------------------------------------------------------------------

probe = CommandGroup("Print what a command is called with.")


@probe.callback()
def _group() -> None:
    """Print what a command is called with."""


@probe.command()
def one(topic: TopicName, bootstrap_server: Server = None) -> None:
    typer.echo(json.dumps([topic, bootstrap_server]))


@probe.command()
def many(topic: TopicNames = None) -> None:
    typer.echo(json.dumps(topic))


def called(*words: str, code: int = 0) -> Any:
    ran = CliRunner().invoke(probe, list(words), env={"COLUMNS": "200"})
    assert ran.exit_code == code, ran.output
    return json.loads(ran.stdout) if code == 0 else ran.stderr


def test_commands_accept_a_name_as_an_argument_or_with_kafkas_option() -> None:
    assert called("one", "t") == called("one", "--topic", "t") == ["t", None]
    assert called("many", "a", "b") == called("many", "--topic", "a", "--topic", "b") == ["a", "b"]
    assert called("many") is None


def test_a_command_without_a_name_or_with_the_name_twice_exits_with_a_usage_error() -> None:
    assert "TOPIC: is missing: give it as an argument, or as --topic" in called("one", code=2)
    twice = called("one", "t", "--topic", "t", code=2)
    assert "TOPIC: is given twice, as an argument and as --topic" in twice


def commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each command below this one, with the words that run it."""
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command
    for name, child in (children or {}).items():
        yield from commands(child, (*path, name))


ALL = [
    found
    for name in COMMANDS
    for found in commands(
        typer.main.get_command(importlib.import_module(module_of(name)).app), (name,)
    )
]
OPTIONS = {
    ("topics", "create"): {"--topic"},
    ("topics", "describe"): {"--topic"},
    ("topics", "alter"): {"--topic"},
    ("topics", "delete"): {"--topic"},
    ("groups", "describe"): {"--group"},
    ("groups", "delete"): {"--group"},
    ("configs", "describe"): {"--entity-type", "--entity-name"},
    ("configs", "alter"): {"--entity-type", "--entity-name"},
    ("brokers", "unregister"): {"--id"},
    ("features", "upgrade"): {"--feature", "-f"},
    ("features", "downgrade"): {"--feature", "-f"},
    ("chunks", "create"): {"--create-chunk-json-file"},
    ("chunks", "alter"): {"--alter-chunk-json-file"},
    ("storage", "format"): {"--config", "-c"},
    ("storage", "info"): {"--config", "-c"},
    ("quorum", "describe"): {"--group"},
    ("produce",): {"--topic"},
    ("consume",): {"--topic"},
}
WITHOUT_JSON = {("dev",), ("start",), ("restart",), ("produce",)}
"""Commands that print no data, but what they are doing."""


def options(command: Any) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize("words", OPTIONS, ids=" ".join)
def test_commands_accept_the_option_names_of_former_versions_and_of_kafka(words: Any) -> None:
    assert options(dict(ALL)[words]) >= OPTIONS[words]
    kinds = [parameter.param_type_name for parameter in dict(ALL)[words].params]
    assert "argument" in kinds


def test_every_command_that_connects_to_a_cluster_accepts_a_profile() -> None:
    for words, command in ALL:
        if "--bootstrap-server" in options(command) and words not in {("dump-log",), ("doctor",)}:
            assert "--profile" in options(command), words


def test_every_command_that_prints_data_has_a_json_option() -> None:
    without = {words for words, command in ALL if "--json" not in options(command)}
    assert without == WITHOUT_JSON


def test_shell_completion_offers_profiles_and_the_fixed_values_of_options(config: Path) -> None:
    config.write_text(TWO)
    for words, offered in (
        ("topics list --profile l", ["local"]),
        ("profile use q", ["quorum"]),
        ("configs describe t", ["topics"]),
        ("produce t --compression z", ["zstd"]),
        ("produce t --acks a", ["all"]),
        ("consume t --output r", ["raw"]),
    ):
        variables = {
            "_ESKER_COMPLETE": "complete_bash",
            "COMP_WORDS": f"esker {words}",
            "COMP_CWORD": str(len(words.split())),
        }
        ran = CliRunner().invoke(app, env=variables, prog_name="esker")
        assert ran.stdout.split() == offered, words


def test_shell_completion_of_topic_names_prints_no_name_if_no_cluster_can_be_reached(
    config: Path,
) -> None:
    config.write_text('[profiles.p]\nbootstrap.servers = "127.0.0.1:1"\n')
    for words in ("topics describe --profile p", "groups describe --bootstrap-server 127.0.0.1:1"):
        variables = {
            "_ESKER_COMPLETE": "complete_bash",
            "COMP_WORDS": f"esker {words} ",
            "COMP_CWORD": "5",
        }
        ran = CliRunner().invoke(app, env=variables, prog_name="esker")
        assert (ran.exit_code, ran.stdout.strip(), ran.stderr) == (0, "", "")


# --- profiles -----------------------------------------------------------------------------------


def servers(*words: str) -> str:
    found = called("one", "t", *words)[1]
    assert found is None or isinstance(found, str)
    return ",".join(map(str, target(None, found).addresses))


def test_a_command_takes_addresses_from_option_environment_or_profile_in_this_order(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert servers() == "127.0.0.1:9092"
    config.write_text(TWO + '[profiles.other]\nbootstrap.servers = "o:1"\n')
    assert servers() == "h:1"
    monkeypatch.setenv("ESKER_PROFILE", "other")
    assert servers() == "o:1"
    monkeypatch.setenv("ESKER_BOOTSTRAP_SERVERS", "env:1")
    assert servers() == "env:1"
    assert servers("--profile", "local") == "h:1"
    assert servers("--profile", "local", "--bootstrap-server", "opt:1") == "opt:1"


def test_a_profile_of_controllers_sends_requests_to_controllers(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(TWO)
    monkeypatch.setenv("ESKER_PROFILE", "quorum")
    assert target(None, None) == Target((Endpoint("c", 1), Endpoint("c", 2)), brokers=False)


def test_a_command_for_brokers_refuses_a_profile_of_controllers(
    esker: Callable[..., Ran], config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(TWO)
    says = "the profile: has no bootstrap.servers"
    assert says in esker("groups", "list", "--profile", "quorum").err
    monkeypatch.setenv("ESKER_PROFILE", "quorum")
    assert says in esker("groups", "list").err


def test_environment_variables_determine_the_path_of_the_profiles_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert config_path() == tmp_path / "config.toml"
    monkeypatch.delenv("ESKER_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert config_path() == tmp_path / "xdg" / "esker" / "config.toml"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert config_path() == tmp_path / ".config" / "esker" / "config.toml"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a = \n", ":1: Invalid value"),
        ("x = 1\n", ":1: unknown key x: the file has profile and [profiles.NAME]"),
        ("profiles = 1\n", ":1: profiles is not a table"),
        ("\n[profiles]\np = 1\n", ":3: profile p is not a table"),
        ("profile = 'p'\n", ":1: profile = 'p' is no profile of this file"),
        ("[profiles.p]\n\nbootstrap.server = 'h:1'\n", ":3: unknown property bootstrap.server"),
        ("[profiles.p]\nbootstrap.servers = 1\n", ":2: bootstrap.servers is not a string"),
        (
            "[profiles.p]\n'bootstrap.servers' = 'h'\n",
            ":2: bootstrap.servers: 'h' is not HOST:PORT",
        ),
        ("profiles" + ".p" * 900 + "=1\n", ":1: unknown property p.p.p"),
        ("profiles = " + "[" * 1_900 + "\n", ": tables are nested too deeply"),
        ("\n# " + "x" * 2_000, ":2: a line of over 2000 letters"),
        ("profiles.p.bootstrap = {servers = ''}\n", ":1: bootstrap.servers: '' is not HOST:PORT"),
        ("\n[profiles.p]\n", ":2: profile p has no addresses: give it bootstrap.servers"),
    ],
)
def test_the_error_for_an_invalid_profiles_file_names_the_file_and_the_line(
    esker: Callable[..., Ran], config: Path, text: str, says: str
) -> None:
    config.write_text(text)
    for words in (("profile", "list"), ("topics", "list")):
        ran = esker(*words)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith(f"esker: {config}{says}"), ran.err
        assert ran.err.count("\n") == 1


def test_a_command_reports_an_unreadable_profiles_file_with_its_path(
    esker: Callable[..., Ran], config: Path
) -> None:
    config.write_bytes(b"\xff")
    assert "not UTF-8" in esker("profile", "list").err
    config.write_bytes(b"#" * (1024 * 1024 + 1))
    assert "larger than 1048576 bytes" in esker("profile", "list").err
    config.unlink()
    config.mkdir()
    assert f"{config}: Is a directory" in esker("profile", "list").err


def test_the_profile_commands_list_show_and_choose_profiles(
    esker: Callable[..., Ran], config: Path
) -> None:
    empty = esker("profile", "list", "--json").lines[0]
    assert empty == {"file": str(config), "profiles": []}
    assert "127.0.0.1:9092" in esker("profile", "show").out
    config.write_text(TWO.lstrip())
    assert "*  local" in esker("profile", "list").out
    assert esker("profile", "show").out == "bootstrap.servers=h:1\n"
    assert esker("profile", "show", "quorum", "--json").lines == [
        {"name": "quorum", "properties": {"bootstrap.controllers": "c:1,c:2"}}
    ]
    assert esker("profile", "use", "quorum").code == 0
    assert config.read_text() == TWO.lstrip().replace('= "local"', '= "quorum"')
    assert read_profiles().default == "quorum"
    refused = esker("profile", "use", "none")
    assert refused.code == 2
    assert "no profile 'none': it has local, quorum" in refused.err


def test_profile_use_adds_the_default_profile_to_a_profiles_file_without_a_default(
    esker: Callable[..., Ran], config: Path
) -> None:
    config.write_text('# mine\n[profiles."a b"]\nbootstrap.servers = "h:1"\n')
    assert esker("profile", "use", "a b").code == 0
    assert config.read_text().startswith('profile = "a b"\n# mine\n[profiles."a b"]\n')
    assert read_profiles().default == "a b"


def test_profile_use_changes_nothing_but_the_name_in_the_file_that_a_link_points_to(
    esker: Callable[..., Ran], config: Path, tmp_path: Path
) -> None:
    file = tmp_path / "dotfiles.toml"
    config.symlink_to(file)
    rest = '  # of mine\u2028\r\n[profiles.a]\nbootstrap.servers = "h:1"\n[profiles."ä"]\n' + (
        'bootstrap.servers = "h:2"'
    )
    for value, name in (('"a"', "ä"), ("'a'", "ä"), ('"ä"', "a")):
        file.write_text(f"profile = {value}{rest}", encoding="utf-8", newline="")
        assert esker("profile", "use", name).code == 0
        assert config.is_symlink()
        assert file.read_bytes().decode() == f'profile = "{name}"{rest}'


def test_profile_use_leaves_a_file_unchanged_whose_default_profile_it_cannot_change(
    esker: Callable[..., Ran], config: Path
) -> None:
    text = 'profile = """\na"""\n[profiles.a]\nbootstrap.servers = "h:1"\n'
    config.write_text(text)
    refused = esker("profile", "use", "a")
    assert refused.code == 2
    assert refused.err.startswith(f"esker: {config}:1: profile is not a string on one line")
    assert config.read_text() == text
