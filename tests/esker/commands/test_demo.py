"""`make demo` reports only what it verified; README shows the true output of it and of commands."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
from confluent_kafka import TopicPartition

from esker.cli import app
from examples import demo, demo_clients
from examples.demo_clients import Lines, Reading, real_lines, same_lines
from tests.interop import recording

ROOT = Path(__file__).parents[3]
PAGES = ("README.md", *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md"))))


@pytest.mark.spark
@pytest.mark.timeout(960)  # niced beside all other tests, its 40 s become minutes
def test_the_demo_succeeds_with_the_output_shown_in_readme() -> None:
    """README may omit lines of the output, and its numbers and ids are those of another run."""
    with subprocess.Popen(
        [sys.executable, "-m", "examples.demo", "--lines", "4000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, process_group=0,
    ) as demonstrating:  # fmt: skip
        try:
            out, err = demonstrating.communicate(timeout=900)
        finally:
            with contextlib.suppress(ProcessLookupError):  # and its `esker dev`, were it to hang
                os.killpg(demonstrating.pid, signal.SIGKILL)
    assert demonstrating.returncode == 0, out + err
    assert (err, "\x1b" in out, "✗" in out) == ("", False, False)
    claims = [line for line in out.splitlines() if line.startswith("  ✓")]
    assert len(claims) == 18
    assert max(map(len, claims)) <= 100

    printed = iter([shape(line) for line in out.splitlines() if line])
    block = console_blocks("README.md")[0]
    assert block[0].startswith("$ make demo")
    for line in block[1:]:
        assert any(shape(line) == other for other in printed), f"not printed, or not there: {line}"


def shape(line: str) -> str:
    line = re.sub(r"[A-Za-z0-9_-]{22}", "ID", line)
    line = re.sub(r"\b[0-9a-f]{2}/ID", "HH/ID", line)
    return re.sub(r" *\d[\d,.]*", " 0", line)


@pytest.mark.parametrize("position", [200, -40])
def test_the_demo_fails_on_a_damaged_recorded_log_of_kafka(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    target = tmp_path / recording.DYNAMIC / recording.METADATA
    target.mkdir(parents=True)
    for path in (recording.DIRECTORY / recording.DYNAMIC / recording.METADATA).iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    log = target / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    data[position] ^= 1
    log.write_bytes(data)
    monkeypatch.setattr(demo, "DIRECTORY", tmp_path)
    with pytest.raises((demo.DemoFailedError, demo.RecordError)):
        demo.kafka_log()


def test_the_demos_line_comparison_finds_a_missing_repeated_or_misplaced_line() -> None:
    lines = real_lines(500)
    found = [(name, line) for name, file_lines in lines.items() for line in file_lines]
    assert same_lines(lines, found)
    assert not same_lines(lines, found[:-1])
    assert not same_lines(lines, [*found, found[-1]])
    swapped = [found[1], found[0], *found[2:]]
    assert found[0][0] == found[1][0]
    assert found[0][1] != found[1][1]
    assert not same_lines(lines, swapped)


class FakeGroup:
    """Assigns every partition to its first member, and half of them to a second one later.

    A broker may do so: it admits the second member with the first one's next heartbeat, and the
    first could have read every record by then.
    """

    ROUNDS = 5  # polls of the first member before the second one is admitted

    def __init__(self, topic: str, lines: Lines, partitions: int) -> None:
        self.left: dict[int, list[FakeMessage]] = {index: [] for index in range(partitions)}
        for number, (name, file_lines) in enumerate(lines.items()):
            partition = number % partitions
            self.left[partition] += [FakeMessage(name.encode(), line) for line in file_lines]
        self.topic = topic
        self.members: list[FakeConsumer] = []
        self.committed: list[TopicPartition] = []
        self.polls = 0


class FakeMessage(NamedTuple):
    """A message with the methods of librdkafka's that the demo calls."""

    file: bytes
    line: bytes

    def error(self) -> None:
        """Return None: every message is a line."""

    def key(self) -> bytes:
        return self.file

    def value(self) -> bytes:
        return self.line


class FakeConsumer:
    """A consumer in a FakeGroup."""

    def __init__(self, group: FakeGroup) -> None:
        self.group = group
        self.has: set[int] = set()
        self.paused: set[int] = set()
        self.read: set[int] = set()
        self.on_assign: Any = None

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> None:
        assert not asynchronous
        self.group.committed += offsets

    def subscribe(self, topics: list[str], on_assign: Any) -> None:
        assert topics == [self.group.topic]
        self.on_assign = on_assign
        self.group.members.append(self)

    def consume(self, most: int, timeout: float) -> list[FakeMessage]:
        group = self.group
        first, *others = group.members
        if self is first:
            group.polls += 1
            if group.polls == 1:
                self._assign({*group.left})
            elif group.polls == group.ROUNDS and others:
                self.has -= {2, 3}
            elif group.polls == group.ROUNDS:
                group.polls -= 1
        elif not self.has and not first.has & {2, 3} and group.polls:
            self._assign({2, 3})
        else:
            time.sleep(timeout / 100)  # let others have their turn
        got: list[FakeMessage] = []
        for partition in self.has - self.paused:
            self.read |= {partition} if group.left[partition] else set()
            got += group.left[partition][:most]
            del group.left[partition][:most]
        return got

    def _assign(self, partitions: set[int]) -> None:
        assigned = [TopicPartition(self.group.topic, index) for index in sorted(partitions)]
        self.on_assign(self, assigned)

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self.has |= {assigned.partition for assigned in partitions}

    def assignment(self) -> list[TopicPartition]:
        return [TopicPartition(self.group.topic, index) for index in self.has]

    def pause(self, partitions: list[TopicPartition]) -> None:
        self.paused |= {paused.partition for paused in partitions}

    def resume(self, partitions: list[TopicPartition]) -> None:
        self.paused -= {resumed.partition for resumed in partitions}

    def close(self) -> None:
        """Do nothing: a fake consumer holds no resources."""


def test_the_demos_group_members_read_only_after_each_member_has_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the first member could read every record, and the demo would have one reader."""
    lines = {f"{number}.py": [b"one", b"two"] for number in range(8)}
    group = FakeGroup("python", lines, 4)
    monkeypatch.setattr(demo_clients, "Consumer", lambda _settings: FakeConsumer(group))
    with Reading("anywhere", "python", "readers", members=2, partitions=4) as reading:
        found = reading.until(16)
        assert sorted(map(sorted, reading.shares())) == [[0, 1], [2, 3]]
    assert same_lines(lines, found)
    assert [sorted(member.read) for member in group.members] == [[0, 1], [2, 3]]
    assert [(place.partition, place.offset) for place in group.committed] == [
        (partition, 0) for partition in range(4)
    ]


# --- commands in the documentation --------------------------------------------------------------


def console_blocks(page: str) -> list[list[str]]:
    text = (ROOT / page).read_text()
    return [block.splitlines() for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL)]


def commands() -> list[tuple[str, str]]:
    """Find every `esker` command of the pages, after a prompt or within backquotes."""
    found = []
    for page in PAGES:
        text = re.sub(r"\\\n>?", " ", (ROOT / page).read_text())  # a command on several lines
        typed = re.findall(r"^[$>] (.*)$", text, re.MULTILINE)
        for line in typed + re.findall(r"`(esker [^`]+)`", text):
            for part in re.split(r"[|;&]", line):
                words = part.split("#")[0].split()
                if words[:1] == ["esker"] and len(words) > 1 and "FILE" not in words[1]:
                    found.append((page, " ".join(words)))
    return sorted(set(found))


@pytest.mark.parametrize(("page", "line"), commands())
def test_every_command_in_the_documentation_is_accepted_by_the_command_line_parser(
    page: str, line: str
) -> None:
    """The command and each of its options exist."""
    words = [word for word in shlex.split(line)[1:] if not re.match(r"[0-9]?[<>]", word)]
    command: Any = typer.main.get_command(app)
    while hasattr(command, "get_command") and words and not words[0].startswith("-"):
        name = words.pop(0)
        found = command.get_command(None, name)
        assert found is not None, f"{page}: {line}: no command {name}"
        command = found
    known = {option for parameter in command.params for option in parameter.opts}
    known |= {"--help"}
    for word in words:
        if word.startswith("-"):
            assert word.partition("=")[0] in known, f"{page}: {line}: no option {word}"


def test_the_documentation_contains_more_than_80_esker_commands() -> None:
    assert len(commands()) > 80


def test_every_page_that_readme_links_to_exists() -> None:
    links = re.findall(r"\]\(([^)#]+)", (ROOT / "README.md").read_text())
    missing = [link for link in links if not link.startswith("http") and not (ROOT / link).exists()]
    assert missing == []
