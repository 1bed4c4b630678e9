"""Three `esker start` processes with a batch coordinator, and what the nemesis does to them.

They are started as an operator starts them: properties files, `esker storage format`, `esker
start`; a lost disk is formatted with `--rejoin`. Checkpoints are taken often, and logs are cut
behind them, so a node with an empty disk comes up by a checkpoint.

Faults are as in `nemesis.nemesis`: each has had its effect before it is healed, nothing waits for a
time and hopes, and the plan comes from a seed. The victims are those who lead, as DescribeQuorum
says.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Final

from typer.testing import CliRunner

from coordinator.batch.sqlite.machine import FILE_NAME
from esker.cli import app
from esker.client.quorum_admin import AdminError, describe_quorum
from esker.settings.values import Endpoint
from raft.net import run
from tests.nemesis.snapshots import at_once
from tests.nemesis.uploads import Uploads
from tests.ports import free_ports
from tests.processes import Process, start
from tests.waiting import wait_until

DISKLESS_METADATA: Final = "__diskless-metadata"
CLUSTER_METADATA: Final = "__cluster_metadata"
GROUP: Final = f"{DISKLESS_METADATA}-0"
NODES: Final = (1, 2, 3)
PROPERTIES: Final = {
    "process.roles": "controller",
    "esker.object.key.prefix": "nemesis",
    "controller.quorum.election.timeout.ms": "300",
    "controller.quorum.fetch.timeout.ms": "1000",
    "metadata.log.max.record.bytes.between.snapshots": str(128 * 1024),
    "metadata.snapshot.min.changed_records.ratio": "0",
    "diskless.file.delete.delay.ms": "300",
    "log.retention.check.interval.ms": "100",
}
IN_THE_DARK_S: Final = 0.4  # shorter than a leader goes on believing in followers that are silent
LEADS_ALONE_S: Final = 2.0  # longer than that: it answers nothing any more
LOST: Final = 10  # commits: more than followers may find in a buffer when they wake
NEARLY: Final = 100  # offsets: commits go on
CALM: Final = 20  # commits between two faults
RUNNER: Final = CliRunner()


class CommandError(Exception):
    """An `esker` command that ended with an error."""


class NodeEndedError(Exception):
    """A node has ended by itself."""


def esker(*words: str) -> str:
    """What a command prints. Raises CommandError."""
    ran = RUNNER.invoke(app, list(words))
    if ran.exit_code:
        raise CommandError(f"esker {' '.join(words)}: {ran.stderr.strip() or ran.exception}")
    return ran.stdout


class CoordinatorQuorum:
    """Three nodes; kills what still runs when its block is left."""

    def __init__(self, home: Path, *, class_name: str | None = None) -> None:
        """
        Args:  class_name: of another batch coordinator than ours.
        """
        self.home = home
        self.ports = dict(zip(NODES, free_ports(len(NODES)), strict=True))
        self.processes: dict[int, Process] = {}
        self.cluster_id = esker("storage", "random-uuid").strip()
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in self.ports.items())
        for node, port in self.ports.items():
            properties = PROPERTIES | {
                "node.id": str(node),
                "controller.quorum.voters": voters,
                "listeners": f"CONTROLLER://127.0.0.1:{port}",
                "log.dirs": str(self.log_dir(node)),
            }
            if class_name is not None:
                properties["diskless.batch.coordinator.class.name"] = class_name
            text = "".join(f"{key}={value}\n" for key, value in properties.items())
            self._properties(node).write_text(text)
            self.format(node)

    def log_dir(self, node: int) -> Path:
        return self.home / str(node)

    def group_directory(self, node: int) -> Path:
        return self.log_dir(node) / GROUP

    def _properties(self, node: int) -> Path:
        return self.home / f"node{node}.properties"

    def output(self, node: int) -> str:
        """What a node has logged, over all its lives."""
        path = self.home / f"node{node}.log"
        return path.read_text() if path.exists() else ""

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [("127.0.0.1", port) for port in self.ports.values()]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.addresses)

    # --- lives --------------------------------------------------------------------------------

    def format(self, node: int, *options: str) -> None:
        """`esker storage format`."""
        config = ("--config", str(self._properties(node)))
        esker("storage", "format", *config, "--cluster-id", self.cluster_id, *options)

    def start(self, *nodes: int) -> None:
        """`esker start`, of these nodes or all."""
        for node in nodes or NODES:
            assert node not in self.processes, f"node {node} runs"
            with (self.home / f"node{node}.log").open("ab") as log:
                self.processes[node] = start(
                    "esker", "start", str(self._properties(node)), output=log
                )

    def kill(self, *nodes: int) -> None:
        """kill -9, and wait until they are gone."""
        chosen = nodes or tuple(self.processes)
        for node in chosen:
            self.processes[node].kill()
        for node in chosen:
            self.processes.pop(node).wait()

    def signal(self, node: int, number: signal.Signals) -> None:
        os.kill(self.processes[node].pid, number)

    def lose_disk(self, node: int) -> None:
        """A stopped node gets an empty disk, formatted to rejoin."""
        lost = self.log_dir(node).rename(self.home / f"lost-{time.monotonic_ns()}")
        shutil.rmtree(lost, ignore_errors=True)  # a child that read for it may not be gone yet
        self.format(node, "--rejoin")

    def check_alive(self) -> None:
        """No node has ended by itself: nothing that clients or peers send may do that."""
        for node, process in self.processes.items():
            if process.poll() is not None:
                raise NodeEndedError(f"node {node} ended: {self.output(node)[-2000:]}")

    # --- what it says -------------------------------------------------------------------------

    def leader(self, topic: str = DISKLESS_METADATA) -> int:
        """Who leads a group; waits for somebody."""
        bootstrap = tuple(Endpoint(*address) for address in self.addresses)
        found: list[int] = []

        def told() -> bool:
            self.check_alive()
            try:
                found[:] = [run(describe_quorum(bootstrap, topic, 0, timeout_ms=1_000)).partition
                            .leader_id]  # fmt: skip
            except AdminError:
                return False
            return found[0] in NODES

        wait_until(told, f"{topic} has a leader")
        return found[0]

    def ask(self, *words: str) -> list[dict[str, Any]]:
        """The lines that a command says with --json."""
        shown = esker(*words, "--bootstrap-controller", self.bootstrap, "--json")
        return [json.loads(line) for line in shown.splitlines()]

    def logs(self) -> dict[int, dict[str, Any]]:
        """Of each node that answers: its log of the group, as `esker snapshot list` has it."""
        try:
            return {line["nodeId"]: line for line in self.ask("snapshot", "list", "--group", GROUP)}
        except CommandError:
            return {}

    def fetched(self, node: int) -> int:
        """How many checkpoints of the group a node has fetched, over all its lives."""
        return sum(
            f"group={GROUP}" in line and "action=fetched_snapshot" in line
            for line in self.output(node).splitlines()
        )

    def parts(self, node: int) -> bool:
        """Is a checkpoint on its way to this disk, or into the state on it?"""
        directory = self.group_directory(node)
        return any(directory.glob("*.part")) or any(directory.glob(f"{FILE_NAME}.*"))

    def recovering(self, node: int) -> bool:
        """Has the node not yet caught up since it lost its disk?"""
        directory = self.log_dir(node)
        return any(directory.glob("esker.rejoin")) or any(directory.glob("*/recovering"))

    def __enter__(self) -> CoordinatorQuorum:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
        self.kill()
        if error is not None:
            for node in NODES:
                error.add_note(f"--- node {node}\n{self.output(node)[-4000:]}")


class CoordinatorNemesis:
    """Faults against a coordinator's quorum while brokers upload."""

    def __init__(self, quorum: CoordinatorQuorum, uploads: Uploads, random: Random) -> None:
        self.by_snapshot = 0  # nodes that came up by one
        self.leaders_killed = 0
        self._quorum = quorum
        self._uploads = uploads
        self._random = random
        self._wiped = random.choice(NODES)  # always the same: the others keep the whole log
        self._began = time.monotonic()

    def run(self, faults: Sequence[str]) -> None:
        """Each of these faults, healed before the next begins."""
        for name in faults:
            self.wait_for_commits(CALM)
            began = time.monotonic()
            fault: Callable[[], None] = getattr(self, name)
            fault()
            ended = time.monotonic()
            self.wait_for_commits()
            self._quorum.check_alive()
            healed_s = time.monotonic() - ended
            self._say(f"{name} lasted {ended - began:.2f} s, a commit {healed_s:.2f} s after")

    def wait_for_commits(self, count: int = 1) -> None:
        """Until brokers have been told of so many commits that they send from now on."""
        before = self._uploads.acknowledged + self._uploads.in_flight + count

        def told() -> bool:
            self._quorum.check_alive()
            return self._uploads.acknowledged > before or self._uploads.failed is not None

        wait_until(told, "commits go on after a fault")
        self._uploads.check_alive()

    # --- faults -------------------------------------------------------------------------------

    def kill_leader(self) -> None:
        """Of the batch coordinator, with commits in flight."""
        self._kill_and_restart(self._quorum.leader())

    def kill_controller(self) -> None:
        """Of the cluster's log: who creates and deletes topics."""
        self._kill_and_restart(self._quorum.leader(CLUSTER_METADATA))

    def kill_leader_in_the_dark(self) -> None:
        """Its followers stand still, so nothing that it is told is agreed on; then it dies.

        The followers are awake again only once it is dead: what they have not got is lost.
        """
        leader = self._quorum.leader()
        with self._paused(*self._others(leader)):
            time.sleep(IN_THE_DARK_S)  # the fault's length
            self._quorum.kill(leader)
        self.leaders_killed += 1
        self.wait_for_commits()
        self._quorum.start(leader)

    def kill_leader_after_answers_in_the_dark(self) -> None:
        """The same for a leader that answers alone: it dies once it has done so.

        On a busy machine a leader may resign before it has answered enough. Then its followers
        are woken, and the next leader is tried.
        """
        wait_until(self._killed_after_answers, "a leader answers while its followers stand still")
        self.leaders_killed += 1
        self.wait_for_commits()

    def _killed_after_answers(self) -> bool:
        leader, uploads = self._quorum.leader(), self._uploads
        with self._paused(*self._others(leader)):
            enough = uploads.acknowledged + uploads.in_flight + LOST
            gives_up_at = time.monotonic() + LEADS_ALONE_S
            while uploads.acknowledged < enough and time.monotonic() < gives_up_at:
                uploads.check_alive()
                time.sleep(0.001)
            if uploads.acknowledged < enough:
                return False
            self._quorum.kill(leader)
        return True

    def kill_all(self) -> None:
        """Everybody at once, with commits in flight."""
        self._quorum.kill()
        self._quorum.start()
        self.leaders_killed += 1

    def pause_leader(self) -> None:
        """SIGSTOP until another node leads; it wakes up believing that it still does."""
        leader = self._quorum.leader()
        with self._paused(leader):
            wait_until(
                lambda: self._quorum.leader() != leader, f"another node than {leader} leads",
            )  # fmt: skip
            self.wait_for_commits()

    def pause_follower(self) -> None:
        """A follower stands still; commits go on without it."""
        follower = self._random.choice(self._others(self._quorum.leader()))
        with self._paused(follower):
            self.wait_for_commits(CALM)

    def lose_database(self) -> None:
        """The state in SQLite is a cache of checkpoint and log: it may be gone, or be nonsense."""
        victim = self._random.choice(NODES)
        self._quorum.kill(victim)
        self.wait_for_commits()
        for path in self._quorum.group_directory(victim).glob(f"{FILE_NAME}*"):
            if self._random.random() < 0.5:
                path.unlink()
            else:
                path.write_bytes(self._random.randbytes(path.stat().st_size // 2))
        self._quorum.start(victim)
        self._wait_for_whole(victim)

    def kill_generating(self) -> None:
        """Whoever is first seen to write a checkpoint."""
        victims: list[int] = []

        def one_is() -> bool:
            victims[:] = [node for node in NODES if self._quorum.parts(node)]
            return bool(victims)

        at_once(one_is, "a node writes a checkpoint")
        self._kill_and_restart(victims[0])
        self._wait_for_whole(victims[0])

    def kill_installing(self) -> None:
        """An empty disk, and death while the checkpoint is on its way, and while it is loaded."""
        victim = self._wiped
        self._wait_for_cut_logs()
        self._quorum.kill(victim)
        self._quorum.lose_disk(victim)
        self.wait_for_commits()
        before = self._quorum.fetched(victim)
        for _ in range(2):
            self._quorum.start(victim)
            self._wait_for_install(victim, before)
            self._quorum.kill(victim)
        self._quorum.start(victim)
        self._wait_for_whole(victim)
        self.by_snapshot += 1

    def wipe(self) -> None:
        """An empty disk, while the log has begun past 0: it must come up by a checkpoint.

        The leader dies meanwhile. It comes back at once: there is no majority without it.
        """
        victim = self._wiped
        self._wait_for_cut_logs()
        self._quorum.kill(victim)
        self._quorum.lose_disk(victim)
        self.wait_for_commits()
        before = self._quorum.fetched(victim)
        self._quorum.start(victim)
        self._wait_for_install(victim, before)
        leader = self._quorum.leader()
        self._quorum.kill(leader)
        self._quorum.start(leader)
        self.leaders_killed += 1
        wait_until(
            lambda: self._quorum.fetched(victim) > before,
            f"node {victim} has fetched a checkpoint",
        )
        self._wait_for_whole(victim)
        self.by_snapshot += 1

    # --- helpers ------------------------------------------------------------------------------

    def _wait_for_cut_logs(self) -> None:
        """Until the logs begin past 0: whoever has nothing then comes up by a checkpoint."""

        def are_cut() -> bool:
            starts = [log["logStartOffset"] for log in self._quorum.logs().values()]
            return bool(starts) and min(starts) > 0

        wait_until(are_cut, "logs are cut behind a checkpoint")

    def _wait_for_install(self, victim: int, before: int) -> None:
        """Until a node fetches or loads a checkpoint, or has done so by now."""
        at_once(
            lambda: self._quorum.parts(victim) or self._quorum.fetched(victim) > before,
            f"node {victim} fetches or loads a checkpoint",
        )

    def _wait_for_whole(self, node: int) -> None:
        """Until a node votes, and its state has nearly all that is committed."""

        def is_whole() -> bool:
            logs = self._quorum.logs()
            if node not in logs or self._quorum.recovering(node):
                return False
            committed = max(int(log["highWatermark"]) for log in logs.values())
            return int(logs[node]["appliedOffset"]) > committed - NEARLY

        wait_until(is_whole, f"node {node} is whole again")

    def _others(self, node: int) -> list[int]:
        return [other for other in NODES if other != node]

    def _kill_and_restart(self, victim: int) -> None:
        self.leaders_killed += 1
        self._quorum.kill(victim)
        self.wait_for_commits()  # by the two others
        self._quorum.start(victim)

    @contextmanager
    def _paused(self, *nodes: int) -> Iterator[None]:
        for node in nodes:
            self._quorum.signal(node, signal.SIGSTOP)
        try:
            yield
        finally:
            for node in nodes:
                self._quorum.signal(node, signal.SIGCONT)

    def _say(self, what: str) -> None:
        print(f"{time.monotonic() - self._began:6.2f} {what}", flush=True)
