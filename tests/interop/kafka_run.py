"""Runs Apache Kafka's tools, and nodes of it, in Java processes of their own.

On two cores a tool's process costs about 0.4 s and a node's start about 2 s: small heap, the serial
collector, only the quick compiler. A node that is stopped may leave an archive of the classes it
loaded beside the jars; without it a node costs three times as much, and a tool twice, so the
fixture `kafka` has it made first. Even so: put many files into one call where a tool takes them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from tests.ports import free_port
from tests.processes import Process
from tests.waiting import wait_until

LOG4J: Final = Path(__file__).with_name("log4j2.properties")
DUMP: Final = "org.apache.kafka.tools.DumpLogSegments"
SHELL: Final = "org.apache.kafka.shell.MetadataShell"
STORAGE: Final = "kafka.tools.StorageTool"
NODE: Final = "kafka.Kafka"

_CONTROL_RECORD: Final = "SnapshotFileReader Ignoring control record with type"
STOP_TIMEOUT_S: Final = 120.0  # a node may write its class archive meanwhile, 3 s of an idle core

_ENCODINGS: Final = ("file.encoding", "stdout.encoding", "sun.stdout.encoding")


HUNG_RUNS: Final = 2  # of a tool that did not end, before the run that counts
HUNG_AFTER_S: Final = 20  # it takes 1 or 2
SHELL_ATTEMPTS: Final = 10  # of MetadataShell, which may answer too early


class ToolFailedError(Exception):
    """A Java process ended with an exit code other than 0, or too late."""


class ToolHungError(ToolFailedError):
    """It did not end in time."""


class Said(NamedTuple):
    """Standard output and standard error. Some tools report what they found wrong in the latter."""

    out: str
    err: str


@dataclass(frozen=True, slots=True)
class Kafka:
    """A fetched release. `jars` is the directory that `kafka_release.fetch` returned."""

    jars: Path
    more_jars: tuple[Path, ...] = ()  # directories that stand behind it on the class path

    @property
    def class_archive(self) -> Path:
        """Classes ready to be mapped; a Java that it is not for passes it over."""
        return self.jars / "classes.jsa"

    def command(self, main_class: str, *arguments: str | Path, heap_mib: int = 256) -> list[str]:
        """The command line that runs one of Kafka's main classes."""
        options = ["-Xshare:auto", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xlog:disable"]
        if self.class_archive.exists():
            options.append(f"-XX:SharedArchiveFile={self.class_archive}")
        options += [f"-D{name}=UTF-8" for name in _ENCODINGS]
        options += [f"-Xmx{heap_mib}m", f"-Dlog4j2.configurationFile={LOG4J}"]
        directories = (self.jars, *self.more_jars)
        classes = ["-cp", os.pathsep.join(f"{jars}/*" for jars in directories), main_class]
        return ["java", *options, *classes, *(str(argument) for argument in arguments)]

    def run(
        self, main_class: str, *arguments: str | Path, timeout_s: float = 60, stdin: str = ""
    ) -> Said:
        """What a tool that ends by itself has to say.

        Raises:  ToolFailedError, with what the tool said.
        """
        command = self.command(main_class, *arguments)
        try:
            done = subprocess.run(
                command, capture_output=True, encoding="utf-8", timeout=timeout_s, input=stdin
            )
        except subprocess.TimeoutExpired as error:
            raise ToolHungError(f"{main_class} did not end within {timeout_s} s") from error
        if done.returncode != 0:
            said = done.stdout[-2000:] + done.stderr[-4000:]
            raise ToolFailedError(f"{main_class} ended with {done.returncode}: {said}")
        return Said(done.stdout, done.stderr)

    def _run_again_if_hung(self, main_class: str, *arguments: str | Path) -> Said:
        for _ in range(HUNG_RUNS):
            with contextlib.suppress(ToolHungError):
                return self.run(main_class, *arguments, timeout_s=HUNG_AFTER_S)
        return self.run(main_class, *arguments)

    def shell(self, file: Path, *words: str) -> str:
        """One command of MetadataShell on a checkpoint or a log segment.

        The shell exits with 0 even where it could not load a record: what it says on standard
        error is its judgement. It was seen not to end, once, on a file that it read before and
        after; and now and then it shows an empty image, for it waits until the file is loaded and
        not until that is published. Then it is run again.

        Raises:  ToolFailedError.
        """
        for _ in range(SHELL_ATTEMPTS):
            said = self._run_again_if_hung(SHELL, "--snapshot", file, *words)
            complaints = [line for line in said.err.splitlines() if _CONTROL_RECORD not in line]
            if complaints:
                raise ToolFailedError(f"MetadataShell on {file}: {'; '.join(complaints)[:4000]}")
            if said.out.strip():
                return said.out
        raise ToolFailedError(f"MetadataShell finds nothing in {file} for {' '.join(words)}")


@dataclass(frozen=True, slots=True)
class Node:
    """A running node of Kafka."""

    node_id: int
    directory: Path  # log.dirs, which holds `__cluster_metadata-0`
    ports: Mapping[str, int]  # by listener name
    process: subprocess.Popen[bytes]
    output: Path  # what it wrote to standard output and standard error

    @property
    def metadata_log(self) -> Path:
        return self.directory / "__cluster_metadata-0"

    def said(self) -> str:
        return self.output.read_text(errors="replace")[-4000:]


@dataclass(frozen=True, slots=True)
class Plan:
    """A configured node, to be formatted and started."""

    kafka: Kafka
    node_id: int
    home: Path
    ports: Mapping[str, int]
    properties: Path

    @property
    def directory(self) -> Path:
        return self.home / "log"

    def format(self, cluster_id: str, *arguments: str) -> None:
        """Format the directory with Kafka's StorageTool."""
        self.kafka.run(STORAGE, "format", "-t", cluster_id, "-c", self.properties, *arguments)

    @contextmanager
    def started(self, listeners: Sequence[str], *, archive_classes: bool = False) -> Iterator[Node]:
        """A running node, once the named listeners accept; stopped cleanly at the end.

        Args:    archive_classes: leave `Kafka.class_archive` behind, unless it is there.
        Raises:  ToolFailedError if it dies, or is not up or not down in time.
        """
        output = self.home / "output.txt"
        with ExitStack() as stack:
            log = stack.enter_context(output.open("ab"))
            command = self.kafka.command(NODE, self.properties)
            if archive_classes and not self.kafka.class_archive.exists():
                partial = self.home / "classes.jsa"
                command.insert(1, f"-XX:ArchiveClassesAtExit={partial}")
                stack.callback(_publish, partial, self.kafka.class_archive)
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            stack.callback(stop_process, process)
            node = Node(self.node_id, self.directory, self.ports, process, output)
            for listener in listeners:
                _wait_until_listening(node, self.ports[listener])
            yield node


def configure_node(
    kafka: Kafka,
    home: Path,
    *,
    node_id: int,
    roles: str = "broker,controller",
    dynamic_voters: bool = True,
    listeners: Mapping[str, str] | None = None,
    settings: Mapping[str, str] | None = None,
) -> Plan:
    """A node that is its own quorum, or a broker of another; its directory is not formatted yet.

    Args:    dynamic_voters: kraft.version 1 (voters in the log), else 0 (voters in the settings).
             listeners: security protocol by name, besides CONTROLLER (and PLAINTEXT of a broker).
             settings: what is added or replaced; a broker alone needs `controller.quorum.voters`.
    """
    protocols = {"CONTROLLER": "PLAINTEXT", **(listeners or {})}
    if "broker" in roles:
        protocols["PLAINTEXT"] = "PLAINTEXT"
    ports = {name: free_port() for name in protocols if name != "CONTROLLER" or roles != "broker"}
    controller = f"127.0.0.1:{ports.get('CONTROLLER')}"
    quorum = (
        {"controller.quorum.bootstrap.servers": controller}
        if dynamic_voters
        else {"controller.quorum.voters": f"{node_id}@{controller}"}
    )
    lines = {
        "process.roles": roles,
        "node.id": str(node_id),
        "controller.listener.names": "CONTROLLER",
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
        "listener.security.protocol.map": ",".join(f"{n}:{p}" for n, p in protocols.items()),
        "log.dirs": str(home / "log"),
        **quorum,
        **(settings or {}),
    }
    home.mkdir(parents=True)
    properties = home / "server.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return Plan(kafka, node_id, home, ports, properties)


def _wait_until_listening(node: Node, port: int) -> None:
    def listens() -> bool:
        if node.process.poll() is not None:
            raise ToolFailedError(f"node {node.node_id} died while starting: {node.said()}")
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True

    wait_until(
        listens, f"node {node.node_id} listens at {port}", state=node.said, retry_on=(OSError,)
    )


def _publish(partial: Path, target: Path) -> None:
    """Copy a file to where others look for it, whole or not at all; none, if there is none."""
    if partial.exists():
        beside = target.with_name(f"{target.name}.{os.getpid()}")
        shutil.copyfile(partial, beside)
        beside.rename(target)


def stop_process(process: Process) -> None:
    """SIGTERM, which a node takes for an orderly shutdown; SIGKILL if it does not obey.

    Raises:  ToolFailedError if it did not.
    """
    process.terminate()
    try:
        process.wait(timeout=STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise ToolFailedError(f"{process.args!r} did not stop within {STOP_TIMEOUT_S} s") from None
