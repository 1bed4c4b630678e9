"""The command line: help, errors, pipes and terminals."""

from __future__ import annotations

import importlib
import os
import pty
import shlex
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from esker.cli import COMMANDS, app, module_of
from records.batch_writer import build_value_batch
from records.frame import encode_record
from records.metadata import FeatureLevelRecord
from tests.esker.commands.files import SEGMENT, TIME, write_segment

ESKER = [sys.executable, "-m", "esker"]


def run(*words: str, **settings) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*ESKER, *words], capture_output=True, text=True, timeout=280, **settings)


def has_example(command, name: str) -> bool:
    """Check that the help of a command, and of each of its subcommands, ends with an example."""
    epilog = command.epilog or ""
    subcommands = getattr(command, "commands", {}).values()
    own = epilog.startswith("Example: ") and f"esker {name}" in epilog
    return own and all(has_example(sub, f"{name} {sub.name}") for sub in subcommands)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_help_of_every_command_ends_with_an_example(name):
    command = typer.main.get_command(importlib.import_module(module_of(name)).app)
    assert has_example(command, name)


def test_the_last_line_of_each_commands_help_is_its_example(esker):
    for words, example in ((["--help"], "dev"), (["dump-log", "--help"], "dump-log")):
        ran = esker(*words)
        assert ran.code == 0
        last = ran.out.rstrip().splitlines()[-1].lstrip()
        assert last.startswith(f"Example: esker {example}")


def test_the_list_of_commands_repeats_the_first_line_of_each_commands_help() -> None:
    """The list is printed without importing the commands, which takes a second."""
    for name, listed in COMMANDS.items():
        command = typer.main.get_command(importlib.import_module(module_of(name)).app)
        first = (command.help or "").split("\n\n")[0].replace("\n", " ")
        assert listed.summary == first


def test_the_help_of_esker_lists_the_commands_in_groups_by_purpose(esker) -> None:
    shown = esker("--help").out
    headings = dict.fromkeys(listed.panel for listed in COMMANDS.values())
    places = [shown.index(f"─ {heading} ─") for heading in headings]
    assert places == sorted(places)
    for name, listed in COMMANDS.items():
        others = [place for place in places if place > shown.index(f"─ {listed.panel} ─")]
        assert shown.index(f"─ {listed.panel} ─") < shown.index(f"│ {name} ")
        assert shown.index(f"│ {name} ") < min(others, default=len(shown))


def completed(*words: str) -> list[str]:
    """Return what bash is offered for the last of these words after `esker`."""
    variables = {
        "_ESKER_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(("esker", *words)),
        "COMP_CWORD": str(len(words)),
    }
    return CliRunner().invoke(app, env=variables, prog_name="esker").stdout.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_esker_prints_a_completion_script_for_each_shell(shell: str) -> None:
    variables = {"_ESKER_COMPLETE": f"source_{shell}"}
    ran = CliRunner().invoke(app, env=variables, prog_name="esker")
    assert ran.exit_code == 0
    assert f"_ESKER_COMPLETE=complete_{shell}" in ran.stdout


def test_shell_completion_offers_commands_subcommands_and_options() -> None:
    assert completed("d") == ["dev", "dump-log", "diskless", "doctor"]
    assert completed("topics", "de") == ["describe", "delete"]
    assert "--compression" in completed("produce", "--")


@pytest.mark.parametrize("optimize", ["1", "2"])
def test_esker_refuses_to_run_in_python_without_assertions(tmp_path, optimize):
    write_segment(tmp_path)
    ran = run("dump-log", SEGMENT, cwd=tmp_path, env=os.environ | {"PYTHONOPTIMIZE": optimize})
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("esker: refuses to run with assertions off; start it without -O")
    assert ran.stderr.count("\n") == 1


def test_a_command_reports_a_full_disk_under_its_standard_output_in_one_line(tmp_path) -> None:
    log = shlex.quote(str(write_segment(tmp_path)))
    for words in ("storage random-uuid", "--help", f"dump-log {log}"):
        shell = f"{sys.executable} -m esker {words} > /dev/full"
        ran = subprocess.run(shell, shell=True, capture_output=True, text=True, check=False)
        assert ran.returncode == 1
        assert ran.stderr == "esker: standard output: No space left on device\n"


def test_no_socket_of_a_command_gets_the_descriptor_of_a_closed_standard_stream() -> None:
    """uvloop aborts if a socket has the descriptor of a standard file."""
    command = f"{sys.executable} -m esker topics list --bootstrap-server 127.0.0.1:1"
    for closed in ("<&-", ">&-", "<&- >&-"):
        ran = subprocess.run(
            f"{command} {closed}", shell=True, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 1, ran.stderr
        assert ran.stderr.startswith("esker: no broker answers")
    ran = subprocess.run(f"{command} <&- >&- 2>&-", shell=True, check=False)
    assert ran.returncode == 1


def test_the_error_for_a_mistyped_command_suggests_the_likely_command(esker):
    ran = esker("dumplog")
    assert ran.code == 2
    assert "dump-log" in ran.err


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (".", "a directory; name the files in it, for example ./*.log"),
        ("missing.log", "missing.log: No such file or directory"),
        ("0000.snapshot", "producer state of a Kafka broker"),
        ("17.txt", "not a file that dump-log can read; it reads segments (.log)"),
        ("x" * 300 + ".log", "File name too long"),
    ],
)
@pytest.mark.parametrize("options", [[], ["--verify"], ["--json"]])
def test_dump_log_reports_an_unreadable_file_in_one_line(esker, tmp_path, name, says, options):
    for present in ("0000.snapshot", "17.txt"):
        (tmp_path / present).touch()
    ran = esker("dump-log", *options, name)
    assert ran.code == 2
    text = ran.lines[0]["reason"] if options == ["--json"] else ran.err
    assert says in text
    assert (ran.out + ran.err).count("\n") == 1


def test_dump_log_of_a_named_pipe_ends_with_an_error(esker, tmp_path):
    os.mkfifo(tmp_path / SEGMENT)
    ran = esker("dump-log", SEGMENT)
    assert (ran.code, ran.err) == (2, f"esker: {SEGMENT}: not a regular file\n")


def test_the_deep_and_allow_gaps_options_of_dump_log_require_verify(esker):
    assert esker("dump-log", "--deep", SEGMENT).code == 2


def test_a_command_whose_output_pipe_is_closed_prints_no_error(tmp_path):
    values = [b"\x01\x14\x00\x00"] * 50_000
    data = build_value_batch(values, base_offset=100, leader_epoch=1, timestamp=TIME)
    write_segment(tmp_path, bytes(data))
    ran = subprocess.run(
        f"{sys.executable} -m esker dump-log {SEGMENT} | head -n 1",
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        executable="/bin/bash",
    )
    assert (ran.stdout, ran.stderr) == (f"{SEGMENT}\n", "")


def test_command_output_to_a_pipe_contains_no_escape_codes(tmp_path):
    write_segment(tmp_path)
    ran = run("dump-log", SEGMENT, cwd=tmp_path, env=os.environ | {"FORCE_COLOR": "1"})
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "\x1b" not in ran.stdout


def on_a_terminal(*words: str, cwd, stream: str = "stdout", **environment: str) -> str:
    """Run a command with standard output or error on a terminal, and return its output there."""
    leader, follower = pty.openpty()
    settings = {"TERM": "xterm-256color", "COLUMNS": "70"} | environment
    inherited = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL} | {stream: follower}
    with subprocess.Popen(
        [*ESKER, *words], **streams, cwd=cwd, env=inherited | settings
    ) as process:
        os.close(follower)
        shown = b""
        try:
            while chunk := os.read(leader, 65536):
                shown += chunk
        except OSError:  # Linux: the last follower is closed
            pass
        process.wait(timeout=280)
    os.close(leader)
    return shown.decode().replace("\r\n", "\n")


def test_dump_log_shows_its_progress_through_a_long_file_only_on_a_terminal(tmp_path):
    batch = build_value_batch(
        [bytes(8_000_000)] * 5, base_offset=100, leader_epoch=1, timestamp=TIME
    )
    write_segment(tmp_path, bytes(batch))
    words = ["dump-log", "--verify", SEGMENT]
    assert "40.0 MB" in on_a_terminal(*words, cwd=tmp_path, stream="stderr")
    assert run(*words, cwd=tmp_path).stderr == ""
    write_segment(tmp_path)
    assert on_a_terminal(*words, cwd=tmp_path, stream="stderr") == ""


def test_command_output_on_a_terminal_has_colours_and_the_terminals_width(tmp_path):
    write_segment(tmp_path)
    shown = on_a_terminal("dump-log", SEGMENT, cwd=tmp_path)
    assert "\x1b[36mTopicRecord\x1b[0m" in shown
    fields = [line for line in shown.splitlines() if line.startswith(" " * 15)]
    assert fields
    assert all(len(line) <= 70 for line in fields)


def test_the_no_color_variable_turns_colours_off(tmp_path):
    write_segment(tmp_path)
    assert "\x1b" not in on_a_terminal("dump-log", SEGMENT, cwd=tmp_path, NO_COLOR="1")


def test_in_an_ascii_locale_commands_print_non_ascii_letters_as_escapes(tmp_path):
    value = encode_record(FeatureLevelRecord(name="bøb", feature_level=1))
    data = build_value_batch([value], base_offset=100, leader_epoch=1, timestamp=TIME)
    write_segment(tmp_path, bytes(data))
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    ran = run("dump-log", SEGMENT, cwd=tmp_path, env=environment)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert r'name="b\xf8b"' in ran.stdout


LOADED = """
import sys
from esker.cli import main
sys.argv = ["esker", "start", "missing.properties"]
try:
    main()
except SystemExit as end:
    print(end.code, *({"boto3", "jwt", "numpy", "pydantic", "pyspark"} & set(sys.modules)))
"""


def test_a_node_starts_without_importing_optional_libraries(tmp_path):
    """numpy (retention) and pydantic (Typer's options) would take a third of the start time."""
    ran = subprocess.run(
        [sys.executable, "-c", LOADED], cwd=tmp_path, capture_output=True, text=True, timeout=280
    )
    says = "esker: missing.properties: No such file or directory: name the node's properties file\n"
    assert (ran.stdout, ran.stderr) == ("2\n", says)


@pytest.mark.parametrize("words", [["start"], ["start", "--help"], ["start", "a", "b"]])
def test_the_start_command_prints_its_usage_for_help_or_invalid_options(tmp_path, words):
    ran = run(*words, cwd=tmp_path)
    assert ran.returncode == (0 if "--help" in words else 2)
    assert "Usage:" in ran.stdout + ran.stderr
