"""kcat, as a process: librdkafka of another year, driven from a command line.

It writes what it reads as JSON, a line a message, and its rebalances on standard error.
"""

from __future__ import annotations

import json
import queue
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import IO, Any, Final

from tests.clients.client import (
    EARLIEST,
    MESSAGE_TOO_LARGE,
    ORDINARY,
    PLAIN,
    UNKNOWN_TOPIC_OR_PARTITION,
    Client,
    How,
    Last,
    Member,
    Membership,
    Message,
    Read,
    Reader,
    Refused,
    Start,
)
from tests.waiting import DEADLINE_S

OWN_ERROR: Final = -1
SENTENCES: Final = (
    ("Message size too large", MESSAGE_TOO_LARGE),
    ("Unknown topic or partition", UNKNOWN_TOPIC_OR_PARTITION),
)
QUICK: Final = ("-X", "reconnect.backoff.ms=20", "-X", "reconnect.backoff.max.ms=200")
REBALANCED: Final = re.compile(r"rebalanced .*: (assigned|revoked): ?(.*)")
SHIFTED: Final = re.compile(r"incremental (assignment|revoke) of .*protocol\): ?(.*)")


def is_installed() -> bool:
    return shutil.which("kcat") is not None


class Kcat(Client):
    """It administers nothing, and tells no offsets of what it sent."""

    name = "kcat"

    def _command(self, *words: str) -> list[str]:
        return ["kcat", "-b", self.bootstrap, *QUICK, *words]

    # --- messages -----------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        messages: Sequence[Message],
        how: How = PLAIN,
    ) -> list[tuple[int, int]] | None:
        words = ["-P", "-t", topic, "-K", "\\t", "-z", how.codec]
        words += ["-X", f"acks={how.acks}", "-X", f"message.max.bytes={how.max_request_bytes}"]
        words += ["-X", f"message.timeout.ms={int(DEADLINE_S * 1000)}"]
        words += ["-X", "linger.ms=5"]
        if how.idempotent:
            words += ["-X", "enable.idempotence=true"]
        if how.partition is not None:
            words += ["-p", str(how.partition)]
        if any(message.value is None or message.key is None for message in messages):
            words.append("-Z")  # what is empty, is null
        for name, value in messages[0].headers:
            words += ["-H", f"{name}={value.decode()}"]
        text = b"".join(b"%b\t%b\n" % (one.key or b"", one.value or b"") for one in messages)
        done = subprocess.run(
            self._command(*words), input=text, capture_output=True, timeout=2 * DEADLINE_S,
            check=False,
        )  # fmt: skip
        if done.returncode or b"failed" in done.stderr:
            raise _refused(done.stderr.decode())
        return None

    def follow(
        self, topic: str, partition: int, start: Start, *, committed_only: bool = False
    ) -> Reader:
        match start:
            case Last(count):
                begin = str(-count)
            case int():
                begin = "beginning" if start == EARLIEST else str(start)
            case _:
                begin = f"s@{start.timestamp_ms}"
        words = ["-C", "-t", topic, "-p", str(partition), "-o", begin]
        words += ["-X", "auto.offset.reset=earliest"]
        words += ["-X", "topic.metadata.refresh.interval.ms=1000"]
        if committed_only:
            words += ["-X", "isolation.level=read_committed"]
        return KcatReader(self._command(*words, "-J", "-u", "-X", "fetch.wait.max.ms=100"))

    def join(self, group: str, topic: str, how: Membership = ORDINARY) -> Member:
        words = ["-G", group, "-J", "-u", "-X", "auto.offset.reset=earliest"]
        words += ["-X", "heartbeat.interval.ms=100", "-X", "session.timeout.ms=30000"]
        if how.instance is not None:
            words += ["-X", f"group.instance.id={how.instance}"]
        if how.cooperative:
            words += ["-X", "partition.assignment.strategy=cooperative-sticky"]
        words += ["-X", "fetch.wait.max.ms=100", topic]
        return KcatMember(self._command(*words))

    def leaders(self, topic: str) -> dict[int, int]:
        done = subprocess.run(
            self._command("-L", "-J", "-t", topic), capture_output=True, timeout=DEADLINE_S,
            check=False,
        )  # fmt: skip
        if done.returncode:
            raise _refused(done.stderr.decode())
        (found,) = json.loads(done.stdout)["topics"]
        if "error" in found:
            raise _refused(found["error"])
        return {one["partition"]: one["leader"] for one in found["partitions"]}

    def topics(self) -> frozenset[str]:
        done = subprocess.run(
            self._command("-L", "-J"), capture_output=True, timeout=DEADLINE_S, check=False
        )
        if done.returncode:
            raise _refused(done.stderr.decode())
        return frozenset(one["topic"] for one in json.loads(done.stdout)["topics"])

    def begin_transactions(self, transactional_id: str) -> None:
        """It begins one when it is told of an id, and sends all of its input in it."""
        words = ["-P", "-t", "transactions", "-X", f"transactional.id={transactional_id}"]
        done = subprocess.run(
            self._command(*words), input=b"value\n", capture_output=True,
            timeout=2 * DEADLINE_S, check=False,
        )  # fmt: skip
        if done.returncode:
            raise _refused(done.stderr.decode())


def _refused(said: str) -> Refused:
    code = next((code for words, code in SENTENCES if words in said), OWN_ERROR)
    return Refused(code, said.strip()[-500:])


class KcatReader(Reader):
    """A process that reads one partition."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
        )
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._partitions: frozenset[int] = frozenset()
        self._said: list[str] = []
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._threads = [
            threading.Thread(target=self._hear, args=(self._process.stdout,)),
            threading.Thread(target=self._overhear, args=(self._process.stderr,)),
        ]
        for thread in self._threads:
            thread.start()

    def _hear(self, stream: IO[bytes]) -> None:
        for line in stream:
            self._lines.put(line)

    def _overhear(self, stream: IO[bytes]) -> None:
        for line in stream:
            text = line.decode(errors="replace").strip()
            self._said.append(text)
            if (found := REBALANCED.search(text)) is not None:
                self._partitions = _named(found[2]) if found[1] == "assigned" else frozenset()
            elif (found := SHIFTED.search(text)) is not None:
                if found[1] == "assignment":
                    self._partitions |= _named(found[2])
                else:
                    self._partitions -= _named(found[2])

    def poll(self, timeout_s: float) -> list[Read]:
        deadline = time.monotonic() + timeout_s
        got: list[Read] = []
        while not got or not self._lines.empty():
            try:
                line = self._lines.get(timeout=max(0.01, min(0.1, deadline - time.monotonic())))
                got.append(_read(json.loads(line)))
            except queue.Empty:
                if self._process.poll() is not None and self._lines.empty():
                    raise _refused("\n".join(self._said)) from None
                if time.monotonic() > deadline:
                    break
        return got

    def close(self) -> None:
        self._process.send_signal(signal.SIGINT)  # it commits, leaves its group, and ends
        try:
            self._process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.join()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()


class KcatMember(KcatReader, Member):
    """A process that is a member of a group."""

    def assigned(self) -> frozenset[int]:
        return self._partitions


def _named(text: str) -> frozenset[int]:
    """The partitions in `topic [0], topic [1]`."""
    return frozenset(int(one) for one in re.findall(r"\[(\d+)\]", text))


def _read(line: dict[str, Any]) -> Read:
    flat = line.get("headers") or []
    headers = tuple(
        (name, value.encode()) for name, value in zip(flat[::2], flat[1::2], strict=True)
    )
    value, key = line["payload"], line["key"]
    return Read(
        line["partition"], line["offset"], None if value is None else value.encode(),
        None if key is None else key.encode(), line["ts"], headers,
    )  # fmt: skip
