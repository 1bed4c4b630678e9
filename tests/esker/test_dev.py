"""`esker dev`: a cluster from nothing, that survives its processes and its own end.

The directory and the plan are tried without processes; one story runs real ones.

Source: docs/design/running.md#one-command-for-a-newcomer.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from esker.cli import app
from esker.dev.child import ALONE_S
from esker.dev.cluster import (
    HOST,
    IDENTITY,
    LEFTOVERS_S,
    QUORUM_PORTS_FROM,
    DevError,
    Plan,
    Store,
    belongings,
    identify,
    make_plan,
    owned,
    remove,
)
from esker.settings.config import HostSettings, load_host
from esker.settings.properties import read_properties
from tests.ports import free_row
from tests.processes import run
from tests.waiting import DEADLINE_S, wait_until

runner = CliRunner()


def free_port() -> int:
    """The first of a row of free ports: brokers', and the quorum's above."""
    return free_row((0, 1, *(QUORUM_PORTS_FROM + one for one in range(3))))


def plan_of(directory: Path, **settings: str) -> Plan:
    return make_plan(
        directory, identify(directory, None), port=free_port(), brokers=2, extra=settings
    )


# --- the directory and the plan -----------------------------------------------------------------


def test_a_directory_of_esker_dev_keeps_its_cluster_id_and_its_store(tmp_path: Path) -> None:
    first = identify(tmp_path, None)
    plan_of(tmp_path)
    assert identify(tmp_path, None) == identify(tmp_path, Store()) == first
    with pytest.raises(DevError, match=f"the records of {tmp_path} are in {tmp_path}/objects"):
        identify(tmp_path, Store(bucket="other"))


def test_the_store_of_esker_dev_can_be_changed_after_a_failed_first_start(tmp_path: Path) -> None:
    first = identify(tmp_path, None)
    bucket = Store(bucket="other")
    assert identify(tmp_path, bucket) == replace(first, store=bucket) == identify(tmp_path, None)


def test_esker_dev_refuses_a_directory_of_another_program(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(DevError, match=r"holds something else \(thesis\.tex\)"):
        identify(tmp_path, None)
    assert belongings(tmp_path) == ()


def test_esker_dev_refuses_a_damaged_identity_file(tmp_path: Path) -> None:
    identify(tmp_path, None)
    for text in ("", "{}", "[]", '{"clusterId": 1'):
        (tmp_path / IDENTITY).write_text(text)
        with pytest.raises(DevError, match="is damaged: --reset begins anew"):
            identify(tmp_path, None)


def test_a_restart_of_esker_dev_rewrites_settings_and_formats_no_directory_again(
    tmp_path: Path,
) -> None:
    plan = plan_of(tmp_path)
    metas = [(tmp_path / p.name / "meta.properties").read_bytes() for p in plan.quorum]
    again = plan_of(tmp_path, **{"diskless.append.commit.interval.ms": "10"})
    assert metas == [(tmp_path / p.name / "meta.properties").read_bytes() for p in again.quorum]
    for process in (*again.quorum, *again.brokers):
        settings = read_properties(process.properties)
        assert settings["diskless.append.commit.interval.ms"] == "10"
        assert settings["group.initial.rebalance.delay.ms"] == "0"
        assert HOST in settings["listeners"]
    ports = [p.endpoint.port for p in (*again.brokers, *again.quorum)]
    assert len(set(ports)) == 5
    assert ports[1] == ports[0] + 1
    assert min(ports[2:]) >= ports[0] + QUORUM_PORTS_FROM


def test_esker_dev_stores_records_in_a_given_bucket(tmp_path: Path) -> None:
    store = Store(bucket="b", endpoint="http://127.0.0.1:1", region="r")
    plan = make_plan(tmp_path, identify(tmp_path, store), port=free_port(), brokers=1, extra={})
    settings = read_properties(plan.brokers[0].properties)
    assert settings["diskless.storage.class.name"].endswith("S3Storage")
    assert settings["esker.storage.s3.bucket"] == "b"
    assert settings["esker.storage.s3.path.style"] == "true"
    assert "esker.storage.directory.path" not in settings
    assert identify(tmp_path, None).store == store


def test_esker_dev_plans_broker_processes_of_one_file(tmp_path: Path) -> None:
    port = free_row((*range(4), *(QUORUM_PORTS_FROM + one for one in range(3))))
    identity = identify(tmp_path, None)
    plan = make_plan(tmp_path, identity, port=port, brokers=1, processes=3, extra={})
    assert (len(plan.brokers), plan.broker_count, plan.bootstrap) == (1, 3, f"{HOST}:{port}")
    host = load_host(plan.brokers[0].properties)
    assert isinstance(host, HostSettings)
    assert [one.node_id for one in host.brokers] == [101, 102, 103]
    assert [one.addresses.clients[0].bind.port for one in host.brokers] == [
        port + 1, port + 2, port + 3,
    ]  # fmt: skip
    for one in host.brokers:
        assert (one.log_dir / "meta.properties").exists()
        assert one.log_dir.is_relative_to(tmp_path)
    make_plan(tmp_path, identity, port=port, brokers=1, processes=3, extra={})  # goes on with it
    assert tmp_path / "broker-processes" in belongings(tmp_path)


def test_esker_dev_names_a_taken_port_and_creates_no_file(tmp_path: Path) -> None:
    identity = identify(tmp_path, None)
    port = free_port()
    with socket.socket() as other:
        other.bind((HOST, port + 1))
        other.listen()
        with pytest.raises(DevError, match=f"port {port + 1} is taken.*--port"):
            make_plan(tmp_path, identity, port=port, brokers=2, extra={})
    assert not (tmp_path / "quorum-1").exists()


def test_esker_dev_reports_a_full_disk_with_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing to a file that is open fails without naming it."""

    def full(*_: object, **__: object) -> Plan:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("esker.commands.dev.make_plan", full)
    ran = runner.invoke(app, ["dev", "--dir", str(tmp_path / "a")])
    assert ran.exit_code == 1
    assert (
        ran.stderr
        == f"esker: {tmp_path / 'a'}: No space left on device: make room, and try again\n"
    )


def test_esker_dev_refuses_to_run_twice_in_one_directory(tmp_path: Path) -> None:
    with owned(tmp_path), pytest.raises(DevError, match="in use by another"), owned(tmp_path):
        pass
    with owned(tmp_path):
        pass


def test_esker_dev_reset_removes_only_its_own_files_after_confirmation(tmp_path: Path) -> None:
    plan_of(tmp_path)
    (tmp_path / "objects" / "ab").mkdir(parents=True)
    (tmp_path / "objects" / "ab" / "0").write_bytes(bytes(2_000_000))
    words = ["dev", "--dir", str(tmp_path), "--reset"]
    refused = runner.invoke(app, words)
    assert (refused.exit_code, (tmp_path / IDENTITY).exists()) == (1, True)
    assert "give --yes" in refused.stderr
    assert "objects" in refused.stderr
    assert "2.0 MB" in refused.stderr
    (tmp_path / "notes.txt").touch()  # not ours, and in the way of a start
    done = runner.invoke(app, [*words, "--yes"])
    assert done.exit_code == 1
    assert "holds something else (notes.txt)" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", ".esker-dev.lock"}


def test_esker_dev_reset_succeeds_when_repeated_after_an_interrupt(tmp_path: Path) -> None:
    plan_of(tmp_path)
    paths = belongings(tmp_path)
    remove(path for path in paths if path.name == "quorum-1")
    assert belongings(tmp_path) == tuple(path for path in paths if path.name != "quorum-1")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--set", "no.such.key=1"], "unknown setting no.such.key"),
        (["--set", "nothing"], "is not KEY=VALUE"),
        (["--store", "/directory"], "is not s3://BUCKET"),
        (["--store", "s3://bucket/prefix"], "is not s3://BUCKET"),
        (["--endpoint", "http://localhost:9000"], "requires --store"),
        (["--brokers", "10"], "--brokers"),
        (["--processes", "0"], "--processes"),
        (["--processes", "2", "--brokers", "2"], "name one of --brokers and --processes"),
        (["--port", "0"], "--port"),
        (["--port", "65535", "--processes", "1"], "--port: the last process's port would be 65536"),
        (["--port", "65535", "--brokers", "2"], "--port: the last broker's port would be 65536"),
    ],
)
def test_esker_dev_refuses_invalid_options_before_it_creates_a_file(
    tmp_path: Path, words: list[str], says: str
) -> None:
    directory = tmp_path / "data"
    ran = runner.invoke(app, ["dev", "--dir", str(directory), *words], env={"COLUMNS": "200"})
    assert (ran.exit_code, directory.exists()) == (2, False)
    assert says in ran.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--set", "num.partitions=0"], "num.partitions: 0 is not between"),
        (["--set", "node.id=7", "--processes", "2"], "node.id: leave it out: esker.broker.ids"),
        (["--set", "esker.broker.processes=2"], "esker.broker.processes: describes several"),
    ],
)
def test_the_error_of_esker_dev_for_an_invalid_value_names_the_setting(
    tmp_path: Path, words: list[str], says: str
) -> None:
    command = ["dev", "--dir", str(tmp_path), "--port", str(free_port())]
    ran = runner.invoke(app, [*command, *words])
    assert (ran.exit_code, ran.stderr.count("\n")) == (2, 1), ran.stderr
    assert f"esker: {says}" in ran.stderr
    assert not list(tmp_path.glob("*/meta.properties"))  # a next start is not of node 7


# --- real processes -----------------------------------------------------------------------------


class Dev:
    """`esker dev` as a process."""

    def __init__(self, directory: Path, port: int, *words: str) -> None:
        self.directory = directory
        self.port = port
        self.output = directory.with_suffix(".out")
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "esker", "dev", "--dir", str(directory),
                 "--port", str(port), *words],
                stdout=output, stderr=output, stdin=subprocess.DEVNULL,
            )  # fmt: skip

    @property
    def said(self) -> str:
        return self.output.read_text()

    def pid(self, name: str) -> int:
        return int((self.directory / "output" / f"{name}.pid").read_text())

    def esker(self, *words: str, text: str | None = None, code: int = 0) -> str:
        """A command's output, or with another exit code what it complains of.

        In this process, which is quicker; in a fork if it is to have a standard input.
        """
        line = [*words, "--bootstrap-server", f"{HOST}:{self.port}"]
        if text is None:
            result = runner.invoke(app, line)
            if result.exception is not None and not isinstance(result.exception, SystemExit):
                raise result.exception
            ended, out, error = result.exit_code, result.stdout, result.stderr
        else:
            ran = run("esker", *line, text=text)
            ended, out, error = ran.returncode, ran.stdout, ran.stderr
        assert ended == code, f"{words}: {ended}\n{out}\n{error}"
        return out if code == 0 else error


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


@contextlib.contextmanager
def running(directory: Path, port: int, *words: str) -> Iterator[Dev]:
    """Until it is ready; killed at the end, if it is still there."""
    directory.with_suffix(".out").unlink(missing_ok=True)
    dev = Dev(directory, port, *words)
    try:
        wait_until(
            lambda: "Ctrl-C stops it" in dev.said or dev.process.poll() is not None,
            "the cluster is ready", state=lambda: dev.said,
        )  # fmt: skip
        assert dev.process.poll() is None, dev.said
        yield dev
    finally:
        if dev.process.poll() is None:
            dev.process.kill()  # its children see the pipe end
        dev.process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc for processes that have ended")
def test_a_dev_cluster_restarts_killed_processes_and_resumes_after_a_stop(tmp_path: Path) -> None:
    directory, port = tmp_path / "data", free_port()
    lines = "".join(f"{number}\n" for number in range(2_000))
    with running(directory, port, "--set", "diskless.append.commit.interval.ms=20") as dev:
        assert f"{HOST}:{port}" in dev.said
        assert "for 5 ms, at the latest after 20 ms; see docs/tuning.md" in dev.said
        dev.esker("produce", "--topic", "numbers", text=lines)

        # A child that dies is said so, and comes back.
        old = dev.pid("quorum-1")
        os.kill(old, signal.SIGKILL)
        wait_until(
            lambda: dev.pid("quorum-1") != old, "quorum-1 is another process",
            state=lambda: dev.said,
        )  # fmt: skip
        assert "quorum-1 died (signal 9); it is started again" in dev.said

        # A second one is refused: by the directory, then by the port.
        other = ["dev", "--port", str(port), "--dir"]
        assert "in use by another" in runner.invoke(app, [*other, str(directory)]).stderr
        assert f"port {port} is taken" in runner.invoke(app, [*other, str(tmp_path / "2")]).stderr

        pids = [dev.pid(f"quorum-{node}") for node in (1, 2, 3)] + [dev.pid("broker-101")]
        dev.process.send_signal(signal.SIGINT)
        assert dev.process.wait(DEADLINE_S) == 0, dev.said
        assert "Stopping" in dev.said
        assert not any(map(alive, pids)), "what it started ends with it"

    with running(directory, port) as dev:
        read = dev.esker("consume", "--topic", "numbers", "--from-beginning", "--until-end")
        assert read == lines, "what was acknowledged is there"
        pids = [dev.pid(f"quorum-{node}") for node in (1, 2, 3)] + [dev.pid("broker-101")]
        dev.process.kill()  # as nobody can prepare for
        dev.process.wait()
        wait_until(lambda: not any(map(alive, pids)), f"{pids} go when their parent has gone")


def test_esker_dev_kills_processes_that_ignore_a_stop() -> None:
    """Its parent has died, and so has the quorum that it would take its leave of."""
    busy = (
        "import signal, threading, time; from esker.server.parent_watch import watch_parent; "
        "signal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True)); "
        "threading.Thread(target=watch_parent, args=(0.2,), daemon=True).start(); "
        "[time.sleep(1) for _ in range(600)]"
    )
    with subprocess.Popen(
        [sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        try:
            said, _ = child.communicate(timeout=DEADLINE_S)
        finally:
            child.kill()
    assert (said, child.returncode) == (b"asked\n", -signal.SIGKILL)
    assert ALONE_S < LEFTOVERS_S, "whoever comes next waits for it"


def test_esker_dev_stops_the_cluster_if_a_process_fails_at_its_start(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    plan_of(directory)
    (directory / "quorum-2" / "meta.properties").write_text("version=1\nnode.id=7\n")
    dev = Dev(directory, free_port())
    try:
        assert dev.process.wait(DEADLINE_S) == 1, dev.said
    finally:
        dev.process.kill()
        dev.process.wait()
    assert "quorum-2 dies at its start (exit code 1)" in dev.said
    assert "its last words" in dev.said
