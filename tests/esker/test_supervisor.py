"""Several broker processes of one properties file: clients, deaths, hanging, and orderly ends."""

from __future__ import annotations

import asyncio
import fcntl
import functools
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from esker.cli import app
from esker.server.back_off import BackOff
from esker.server.host_status import (
    STATUS_FILE,
    SUPERVISOR_LOCK,
    BrokerProcess,
    read_status,
    write_status,
)
from esker.server.supervisor import HANG_S, HostError, State, Supervisor
from tests.clients.confluent import QUICK, Confluent
from tests.clients.hosted import HOST, HostedCluster
from tests.ports import free_port, free_row
from tests.waiting import DEADLINE_S, wait_until, wait_until_async

PARTITIONS = 8


def on_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test on an event loop."""

    @functools.wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


class Load:
    """A producer that sends to one partition until it is told to stop."""

    def __init__(self, bootstrap: str, topic: str, partition: int, **settings: Any) -> None:
        self.sent = 0
        self.delivered = 0
        self.errors: list[str] = []
        self._topic, self._partition = topic, partition
        self._producer = Producer(
            {**QUICK, "bootstrap.servers": bootstrap, "linger.ms": 5, **settings}
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._producer.produce(
                self._topic, b"%d" % self.sent, partition=self._partition, on_delivery=self._on
            )
            self.sent += 1
            self._producer.poll(0)
            time.sleep(0.005)
        self._producer.flush(DEADLINE_S)

    def _on(self, error: Any, _: Any) -> None:
        if error is None:
            self.delivered += 1
        else:
            self.errors.append(error.str())

    @contextmanager
    def running(self) -> Iterator[None]:
        """Send in a thread; wait for the last answers at the end."""
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()


def is_gone(pid: int) -> bool:
    """Has this process ended?"""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def kill_under_load(
    cluster: HostedCluster, by_leader: dict[int, int], *, kills: int
) -> tuple[Load, Load]:
    """Kill broker 102 again and again while producers write to it and to broker 101.

    The other one's producer has no retries, so that one error would reach it.
    """
    others = Load(cluster.host_bootstrap, "t", by_leader[101], retries=0)
    own = Load(cluster.host_bootstrap, "t", by_leader[102], **{"enable.idempotence": True})
    with others.running(), own.running():
        for kill in range(kills):
            delivered = own.delivered
            wait_until(lambda: own.delivered > delivered + 20, "records are delivered")  # noqa: B023
            cluster.kill_process(102)
            wait_until(lambda: cluster.starts(102) == kill + 2, "it is started again")  # noqa: B023
            cluster.wait_until_ready()
        delivered = own.delivered
        wait_until(lambda: own.delivered > delivered + 20, "its clients go on")
    assert (others.errors, others.delivered) == ([], others.sent)
    assert (own.errors, own.delivered) == ([], own.sent)
    return others, own


def test_killed_and_orphaned_broker_processes_cost_other_clients_no_error(tmp_path: Path) -> None:
    metrics = free_port()
    settings = {"esker.metrics.listener": f"127.0.0.1:{metrics}"}
    with HostedCluster(tmp_path, brokers=2, settings_of={101: settings, 102: settings}) as cluster:
        cluster.start()
        client = Confluent(cluster.host_bootstrap)
        client.create_topic("t", PARTITIONS, {})
        by_leader = {leader: partition for partition, leader in client.leaders("t").items()}
        assert set(by_leader) == {101, 102}, "partitions spread over the processes"

        # The shared port cannot be bound by a second cluster of the same user.
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            with pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", cluster.host_port))

        others, own = kill_under_load(cluster, by_leader, kills=1)

        def get(path: str) -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{metrics}{path}") as answer:
                return str(answer.read().decode())

        wait_until(lambda: '"102": {"ready": true' in get("/health/ready"), "health is gathered")
        shown = get("/metrics")
        assert 'esker_process_up{process="101"} 1' in shown
        assert 'esker_process_restarts_total{process="102"} 1' in shown
        assert shown.count("# TYPE esker_broker_fenced gauge") == 1
        assert 'esker_broker_fenced{process="102"} 0' in shown

        # The supervisor dies: its processes drain and end, and the next one waits for that.
        orphans = [cluster.pid(101), cluster.pid(102)]
        cluster.kill(HOST)
        cluster.launch(HOST)
        wait_until(lambda: all(map(is_gone, orphans)), "orphans end")
        cluster.wait_until_ready()
        for load, partition in ((others, by_leader[101]), (own, by_leader[102])):
            values = [one.value for one in client.read("t", load.sent, partition=partition)]
            assert values == [b"%d" % number for number in range(load.sent)]

        # SIGTERM of the supervisor in the middle of writing: brokers drain, and nothing is lost.
        clean = cluster.output(HOST).count("stopped=clean")
        drained = Load(
            cluster.host_bootstrap, "drained", by_leader[101], **{"enable.idempotence": True}
        )
        client.create_topic("drained", PARTITIONS, {})
        with drained.running():
            wait_until(lambda: drained.delivered > 20, "records are delivered")
            cluster.stop(HOST)  # exit code 0
            assert cluster.output(HOST).count("stopped=clean") == clean + 4, "brokers and nodes"
            cluster.launch(HOST)
            cluster.wait_until_ready()
        assert (drained.errors, drained.delivered) == ([], drained.sent)
        found = client.read("drained", drained.sent, partition=by_leader[101])
        assert [one.value for one in found] == [b"%d" % number for number in range(drained.sent)]
        cluster.stop(HOST)


@pytest.mark.soak
def test_a_broker_process_that_is_killed_every_few_seconds_costs_no_record(tmp_path: Path) -> None:
    with HostedCluster(tmp_path, brokers=4) as cluster:
        cluster.start()
        client = Confluent(cluster.host_bootstrap)
        client.create_topic("t", 4 * PARTITIONS, {})
        by_leader = {leader: partition for partition, leader in client.leaders("t").items()}
        assert set(by_leader) == set(cluster.broker_ids)
        others, own = kill_under_load(cluster, by_leader, kills=6)
        for load, partition in ((others, by_leader[101]), (own, by_leader[102])):
            values = [one.value for one in client.read("t", load.sent, partition=partition)]
            assert values == [b"%d" % number for number in range(load.sent)]
        cluster.stop(HOST)


# --- the supervisor alone, with programs that only report ----------------------------------------

ALIVE = "import os,sys,json,time; r=json.loads(sys.stdin.readline())['reports'];"
READY = ALIVE + "os.write(r, b'alive\\nready\\n');"
SLEEPS = READY + "time.sleep(60)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + SLEEPS
DRAINS = ALIVE + "sys.exit(0)"
DIES = ALIVE + "os.write(r, b'alive\\n'); sys.exit(3)"


@contextmanager
def supervisor(script: str, stop_s: float = 20.0) -> Iterator[Supervisor]:
    """A supervisor of one program; its processes are killed at the end."""
    settings: Any = SimpleNamespace(node_id=101, given={})
    program = (sys.executable, "-S", "-c", script)
    made = Supervisor([settings], {}, program=program, stop_s=stop_s)
    try:
        yield made
    finally:
        for child in made.children:
            if child.process is not None:
                child.process.kill()
                child.process.wait()


async def until(made: Supervisor, state: State) -> None:
    """Wait until the only child is in a state; the supervisor ticks meanwhile."""
    loop = asyncio.get_running_loop()
    made._ticked_at = loop.time()

    async def tick() -> bool:
        made._tick(loop.time())
        return made.children[0].state is state

    await wait_until_async(tick, f"the process is {state.value}")


@on_a_loop
async def test_a_process_that_gives_no_sign_of_life_is_killed_and_started_again() -> None:
    with supervisor(SLEEPS) as made:
        await until(made, State.READY)
        child = made.children[0]
        assert child.process is not None
        first = child.process.pid
        now = child.heard_at
        for second in range(1, int(HANG_S) + 1):  # the supervisor runs all the time
            made._tick(now + second)
            assert child.heard_at == now, f"killed after {second} s"
        made._tick(now + HANG_S + 1)
        child.process.wait()
        made._tick(now + HANG_S + 1.1)  # reaped, and due at once
        assert (child.state, child.starts) == (State.STARTING, 2)
        assert child.process is not None
        assert child.process.pid != first


@on_a_loop
async def test_a_pause_of_the_whole_host_kills_no_process() -> None:
    with supervisor(SLEEPS) as made:
        await until(made, State.READY)
        process = made.children[0].process
        assert process is not None
        made._tick(made._ticked_at + 1_000)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)


@on_a_loop
async def test_a_process_that_dies_again_and_again_is_a_crash_loop_with_longer_pauses() -> None:
    with supervisor(DIES) as made:
        await until(made, State.STARTING)
        child, now, waits = made.children[0], made._ticked_at, []
        for _ in range(4):
            assert child.process is not None
            child.process.wait()
            made._tick(now)
            if child.state is State.WAITING:
                waits.append(child.start_at - now)
                now = child.start_at
                made._ticked_at = now
                made._tick(now)
        assert (waits, made.statuses()[0].is_crash_loop) == ([0.5, 1.0, 2.0], True)


@on_a_loop
async def test_a_process_that_drains_and_exits_is_started_again_and_is_no_crash_loop() -> None:
    with supervisor(DRAINS) as made:
        await until(made, State.STARTING)
        child, now = made.children[0], made._ticked_at
        for starts in range(2, 6):
            assert child.process is not None
            child.process.wait()
            made._tick(now)
            assert (child.state, child.start_at - now) == (State.WAITING, 0.5)
            now = made._ticked_at = child.start_at
            made._tick(now)
            assert (child.state, child.starts) == (State.STARTING, starts)
        assert not made.statuses()[0].is_crash_loop


@on_a_loop
async def test_a_process_that_does_not_stop_in_time_is_killed_and_named() -> None:
    with supervisor(DEAF, stop_s=0.3) as made:
        await until(made, State.READY)
        stop = asyncio.Event()
        stop.set()
        with pytest.raises(HostError, match=r"brokers \[101\] did not stop within 0 s: killed"):
            await made.run(stop)
        assert made.children[0].state is State.STOPPED


def test_the_pauses_before_a_restart_grow_and_begin_anew_after_a_stable_time() -> None:
    back_off = BackOff()
    assert [back_off.ended(None) for _ in range(9)] == [0, 0.5, 1, 2, 4, 8, 16, 30, 30]
    assert back_off.is_crash_loop(None)
    assert back_off.is_crash_loop(9.9)
    assert not back_off.is_crash_loop(10.0)
    assert [back_off.ended(10.0), back_off.ended(9.9)] == [0, 0.5]
    assert not back_off.is_crash_loop(None)


# --- what the host refuses -----------------------------------------------------------------------


def host_file(directory: Path, port: int, **changes: str) -> Path:
    """A properties file of two brokers on this machine, formatted."""
    first = free_row((0, 1))
    file = directory / "host.properties"
    lines = {
        "process.roles": "broker",
        "esker.broker.processes": "2",
        "esker.broker.ids": "101-102",
        "controller.quorum.voters": f"1@127.0.0.1:{free_port()}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{{{first}+i}}",
        "log.dirs": str(directory / "host"),
        "esker.storage.directory.path": str(directory / "store"),
        **changes,
    }
    file.write_text("".join(f"{key}={text}\n" for key, text in lines.items()))
    return file


def esker(*words: str) -> tuple[int, str]:
    """Exit code and output of a command in this process."""
    ran = CliRunner().invoke(app, list(words))
    return ran.exit_code, ran.output


def test_a_host_that_cannot_run_its_brokers_says_why_in_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        file = str(host_file(tmp_path, port))
        code, said = esker("start", file)
        assert (code, "101 is not formatted" in said) == (1, True), said
        ids = [esker("storage", "random-uuid")[1].strip() for _ in range(2)]
        code, said = esker("storage", "format", file, "-t", ids[0])
        assert (code, said.count("Formatted ")) == (0, 2)
        code, said = esker("storage", "format", file, "-t", ids[0])
        assert (code, "is formatted already; nothing was changed" in said) == (1, True), said
        assert esker("storage", "format", file, "-t", ids[0], "--ignore-formatted") == (
            0,
            "All of the log directories are already formatted.\n",
        )
        shutil.rmtree(tmp_path / "host" / "102")
        code, said = esker("storage", "format", file, "-t", ids[1])
        assert (code, f"is of cluster {ids[0]}: name that one" in said) == (1, True), said
        code, said = esker("storage", "format", file, "-t", ids[0])
        assert (code, said.count("Formatted ")) == (0, 1)
        code, said = esker("start", file)
        assert code == 1
        assert f"the bootstrap port of PLAINTEXT cannot listen at 127.0.0.1:{port}" in said
        assert "end what listens there, or choose another port" in said
    with (tmp_path / "host" / SUPERVISOR_LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, said = esker("start", file)
        assert (code, "is in use by another `esker start`: stop that one" in said) == (1, True)
    file = str(host_file(tmp_path, port, **{"esker.broker.processes": "0"}))
    code, said = esker("start", file)
    assert (code, said.count("\n")) == (2, 1), said
    assert "esker.broker.processes: 0 is not between 1 and 64" in said


def test_a_cache_directory_that_no_broker_can_use_is_refused_before_one_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(*_: object) -> None:
        pytest.fail("brokers are started")

    monkeypatch.setattr(Supervisor, "run", run)
    port, cache = free_port(), tmp_path / "cache"
    cluster_id, other_id = (esker("storage", "random-uuid")[1].strip() for _ in range(2))
    esker("storage", "format", str(host_file(tmp_path, port)), "-t", cluster_id)

    def refusal(directory: Path) -> str:
        before = sorted(tmp_path.rglob("*"))
        code, said = esker(
            "start", str(host_file(tmp_path, port, **{"esker.cache.dir": str(directory)}))
        )
        assert (code, said.count("\n")) == (1, 1), said
        assert sorted(tmp_path.rglob("*")) == before
        return said

    assert f"{cache}/101: there is no directory {cache}: make it, or mount" in refusal(cache)
    host = tmp_path / "host"
    assert f"{host}/101 shares a directory with log.dirs={host}/101" in refusal(host)
    store = tmp_path / "store"
    store.mkdir()
    assert "a directory with esker.storage.directory.path=" in refusal(store)
    (cache / "102").mkdir(parents=True)
    (cache / "102" / "photos").touch()
    assert f"{cache}/102 has files that are no cache of Esker (photos)" in refusal(cache)
    (cache / "102" / "photos").unlink()
    for owner in (f"cluster.id={other_id}\nnode.id=102", f"cluster.id={cluster_id}\nnode.id=101"):
        (cache / "102" / "meta.properties").write_text(f"version=1\n{owner}\n")
        assert f"{cache}/102 belongs to node" in refusal(cache)
    (cache / "102" / "meta.properties").unlink()
    (cache / "102").rename(tmp_path / "real")
    (cache / "102").symlink_to(tmp_path / "real")
    assert f"{cache}/102 is a symbolic link: name the directory itself" in refusal(cache)


# --- esker restart -------------------------------------------------------------------------------

DRAINS_IF_ASKED = (
    "import signal; signal.signal(signal.SIGTERM, lambda *_: __import__('os')._exit(0));" + SLEEPS
)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a supervisor, as this process's own command cannot."""
    directory.mkdir(exist_ok=True)
    with (directory / SUPERVISOR_LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_restart_ends_a_broker_process_and_waits_until_its_successor_is_ready(
    tmp_path: Path,
) -> None:
    """Mutants: it returns once the process has ended, or takes the old process for the new one."""
    file, directory = str(host_file(tmp_path, free_port())), tmp_path / "host"
    told: list[BrokerProcess] = []

    @on_a_loop
    async def work() -> None:
        stop = asyncio.Event()

        def tell(processes: Mapping[int, BrokerProcess]) -> None:
            told.append(processes[101])
            write_status(directory, processes)

        with supervisor(DRAINS_IF_ASKED) as made, locked(directory):
            running = asyncio.create_task(made.run(stop, tell))
            await wait_until_async(
                lambda: is_ready(directory), "the status file tells of a ready process"
            )
            code, said = await asyncio.to_thread(esker, "restart", file, "--id", "101")
            assert (code, "Broker 101 is ready again after" in said) == (0, True), said
            child = made.children[0]
            assert (child.state, child.starts) == (State.READY, 2)
            stop.set()
            await running

    work()
    assert [one.state for one in told if one.starts == 1][-1] == "waiting"


async def is_ready(directory: Path) -> bool:
    return (read_status(directory) or {}).get(101, BrokerProcess("", 0, None)).state == "ready"


def test_restart_says_why_it_restarts_nothing(tmp_path: Path) -> None:
    file, directory = str(host_file(tmp_path, free_port())), tmp_path / "host"

    def refused(*words: str) -> tuple[int, str]:
        code, said = esker("restart", file, *words)
        return code, " ".join(said.replace("│", "").split())

    code, said = refused("--id", "103")
    assert (code, "103 is none of the brokers of" in said) == (2, True), said
    code, said = refused("--id", "101")
    assert (code, "no `esker start` of these brokers runs here" in said) == (1, True), said
    directory.mkdir(exist_ok=True)
    write_status(directory, {101: BrokerProcess("ready", 1, os.getpid())})
    code, said = refused("--id", "101")  # a file of a supervisor that was killed
    assert (code, "no `esker start` of these brokers runs here" in said) == (1, True), said
    with locked(directory):
        write_status(directory, {101: BrokerProcess("waiting", 3, None)})
        code, said = refused("--id", "101")
        assert (code, "broker 101 is waiting: wait until it is ready" in said) == (1, True), said
        (directory / STATUS_FILE).write_text("nonsense")
        assert refused("--id", "101")[0] == 1
