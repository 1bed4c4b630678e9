"""A node that is forked from a template behaves as one that was started on a command line."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.processes import Forked, Process, start
from tests.processes import run as run_to_end
from tests.waiting import wait_until

TOLD = """
import os, random, signal, sys
if __name__ == "__main__":
    print(sys.argv[1:], os.getcwd(), os.environ["TOLD"], "diskless.broker" in sys.modules)
    print(random.random(), file=sys.stderr)
    if sys.argv[1] == "codec":
        from records.codec import encode_message
        from records.rpc.cluster import DescribeClusterRequest as Request
        print("known:", sorted(Request._encoders))
        encode_message(Request(include_cluster_authorized_operations=False), int(sys.argv[2]))
        sys.exit()
    if sys.argv[1] == "exit":
        sys.exit(7)
    if sys.argv[1] == "raise":
        raise OSError("as told")
    print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, flush=True)
    signal.pause()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A directory with a module `told`, and a file for what it prints."""
    (tmp_path / "told.py").write_text(TOLD)
    return tmp_path


def run(program: Path, *words: str, fresh: bool = False) -> tuple[Process, Path]:
    output = program / f"{'.'.join(words)}.{fresh}.txt"
    with output.open("wb") as file:
        environment = {"TOLD": "in the environment"}
        process = start(
            "told", *words, output=file, cwd=program, environment=environment, fresh=fresh
        )
    return process, output


@pytest.mark.parametrize("fresh", [False, True], ids=["forked", "fresh"])
def test_a_forked_test_process_has_its_own_arguments_directory_and_environment(
    program: Path, *, fresh: bool
) -> None:
    process, output = run(program, "exit", fresh=fresh)
    assert process.wait(60) == 7
    assert process.poll() == process.returncode == 7
    assert isinstance(process, Forked) is not fresh
    assert f"['exit'] {program} in the environment {not fresh}" in output.read_text()


@pytest.mark.parametrize("fresh", [False, True], ids=["forked", "fresh"])
def test_a_forked_test_process_that_raises_an_error_prints_the_error_and_exits_with_code_1(
    program: Path, *, fresh: bool
) -> None:
    process, output = run(program, "raise", fresh=fresh)
    assert process.wait(60) == 1
    assert "OSError: as told" in output.read_text()


def test_a_forked_test_process_receives_signals(program: Path) -> None:
    killed, output = run(program, "stay")
    wait_until(lambda: "True\n" in output.read_text(), "Ctrl-C would reach it")
    assert killed.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        killed.wait(0)
    killed.kill()
    assert killed.wait(60) == -signal.SIGKILL
    killed.terminate()  # it is gone: nothing happens


def test_forked_test_processes_draw_different_random_numbers(program: Path) -> None:
    drawn = []
    for word in ("exit", "raise"):
        process, output = run(program, word)
        process.wait(60)
        drawn += [line for line in output.read_text().splitlines() if line.startswith("0.")]
    assert len(set(drawn)) == 2


def test_a_forked_test_command_reads_its_input_and_separates_errors_from_output() -> None:
    printed = run_to_end("json.tool", "--compact", text='{"key": 1}')
    assert (printed.returncode, printed.stdout, printed.stderr) == (0, '{"key":1}\n', "")
    refused = run_to_end("json.tool", text="no JSON")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "Expecting value" in refused.stderr


def test_a_forked_process_inherits_the_codecs_that_earlier_forks_compiled(program: Path) -> None:
    known = []
    for version in ("1", "0"):
        process, output = run(program, "codec", version)
        assert process.wait(60) == 0
        known.append(output.read_text().partition("known: ")[2])
    assert "1" in known[1], known
