"""A node tells its faults over HTTP, logs them, and ends when its directory goes away."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raft.driver import BENCH_LOG, Node, health, metrics
from raft.driver.directory_watch import DirectoryWatch
from raft.driver.errors import DirectoryGoneError
from raft.driver.health import LOGGED_EVERY_S, DegradationLog, Health
from raft.driver.metrics import MetricsServer
from raft.interfaces import Degradation, draft_values
from raft.net.http import json_response
from raft.segments.files import File, Mode, RealFile, RealFileSystem
from records.types import NodeId
from tests.doubles.memory_log import SilentTicket
from tests.raft.driver.cluster import free_ports
from tests.raft.driver.test_node import config_of, leading_log, log_dir
from tests.waiting import DEADLINE_S, wait_until_async

__all__ = ["log_dir"]

HELD = Degradation("clock", "deletion is held", unready=False)
FULL = Degradation("object_store", "no space left")


class FakeHost:
    """A node with the faults that a test gives it."""

    def __init__(self, *faults: Degradation) -> None:
        healthy = not any(fault.unready for fault in faults)
        self.health = lambda: Health(healthy, 10, NodeId(1), 3, faults)


def answer(path: str, *faults: Degradation) -> tuple[int, dict[str, Any]]:
    """Return status and body of a health check."""
    host: Any = FakeHost(*faults)
    answered = asyncio.run(MetricsServer(host)._answer(path.encode()))
    head, _, body = answered.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), json.loads(body)


def test_the_liveness_endpoint_of_a_running_node_answers_200_despite_degradations() -> None:
    assert answer("/health/live", FULL) == (200, {"live": True})


def test_a_ready_node_answers_200_with_its_degradations_only_in_health() -> None:
    assert answer("/health/ready", HELD) == (200, {"ready": True, "reasons": []})
    status, body = answer("/health", HELD)
    assert status == 200
    assert body == {
        "healthy": True,
        "ready": True,
        "barrier_age_ms": 10,
        "leader_id": 1,
        "epoch": 3,
        "reasons": [],
        "degradations": [{"name": "clock", "reason": "deletion is held", "unready": False}],
    }


def test_an_unready_node_answers_503_with_the_reasons() -> None:
    status, body = answer("/health/ready", HELD, FULL)
    assert (status, body["ready"]) == (503, False)
    assert body["reasons"] == [{"name": "object_store", "reason": "no space left"}]
    status, body = answer("/health", HELD, FULL)
    assert (status, body["healthy"], body["ready"]) == (503, False, False)
    assert [fault["name"] for fault in body["degradations"]] == ["clock", "object_store"]


class Hanging(RealFileSystem):
    """A file system whose flushes wait while `pause` is set."""

    def __init__(self) -> None:
        self.may_flush = threading.Event()
        self.may_flush.set()

    def open(self, path: Path, mode: Mode) -> File:
        file = super().open(path, mode)
        assert isinstance(file, RealFile)
        flush = file.fdatasync

        def fdatasync() -> None:
            assert self.may_flush.wait(DEADLINE_S)
            flush()

        file.fdatasync = fdatasync  # type: ignore[method-assign]
        return file


def test_a_flush_that_hangs_makes_a_node_unready_until_it_ends(
    log_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "HANGS_AFTER_S", 0.2)
    files = Hanging()

    async def story() -> None:
        (port,) = free_ports(1)
        node = Node(config_of(log_dir, port), files)
        await node.start()
        log = await leading_log(node)
        await wait_until_async(lambda: node.health().healthy)
        files.may_flush.clear()
        log.propose(SilentTicket(), log.leading_epoch, draft_values([b"x"], timestamp_ms=0))
        await wait_until_async(lambda: any(fault.name == "flush" for fault in node.health.faults()))
        assert not node.health().healthy
        files.may_flush.set()
        await wait_until_async(lambda: node.health().healthy)
        await node.stop()

    asyncio.run(story())


@pytest.mark.parametrize("gone", ["", f"{BENCH_LOG}-0", "meta.properties"])
def test_a_node_whose_directory_is_removed_stops_within_a_second(
    gone: str,
    log_dir: Path,
) -> None:
    async def story() -> None:
        (port,) = free_ports(1)
        node = Node(config_of(log_dir, port))
        await node.start()
        await leading_log(node)
        path = log_dir / gone
        began = asyncio.get_running_loop().time()
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        with pytest.raises((DirectoryGoneError, OSError)) as error:
            await asyncio.wait_for(node.failed, DEADLINE_S)
        took_s = asyncio.get_running_loop().time() - began
        assert isinstance(error.value, DirectoryGoneError), error.value
        assert str(path) in str(error.value)
        assert took_s < 3, "half a second to the next look, and a busy machine"
        for driver in node.groups.values():
            driver._stopped = True
        node.health.stop()
        await node.listener.close(drain_ms=0)

    asyncio.run(story())


def test_a_new_directory_at_the_path_of_a_moved_log_directory_is_reported_as_missing(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "data"
    (directory / "g-0").mkdir(parents=True)
    (directory / "meta.properties").touch()
    (directory / "g-0" / "quorum-state").touch()
    watch = DirectoryWatch(directory, list, lambda _: None)
    assert watch.find_missing([directory / "g-0"]) is None
    (directory / "g-0" / "quorum-state").unlink()
    assert watch.find_missing([directory / "g-0"]) == directory / "g-0" / "quorum-state"
    (directory / "g-0" / "quorum-state").touch()
    directory.rename(tmp_path / "moved")
    shutil.copytree(tmp_path / "moved", directory)
    assert watch.find_missing([directory / "g-0"]) == directory


def test_a_node_logs_a_lasting_health_degradation_once_and_its_end_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "raft.driver")
    degradations = DegradationLog(NodeId(1))
    for now in range(5):
        degradations.note([FULL], float(now))
    degradations.note([], 5.0)
    degradations.note([HELD], 6.0)  # for a moment only
    degradations.note([], 7.0)
    lines = [record.message for record in caplog.records]
    assert lines == [
        "node=1 degradation=object_store reason='no space left'",
        "node=1 degradation=object_store over=yes",
    ]


def test_a_node_logs_a_health_degradation_again_if_its_reason_changes_for_some_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "raft.driver")
    degradations = DegradationLog(NodeId(1))
    for now in range(30):
        degradations.note([Degradation("flush", f"for {now} s")], float(now))
    assert len(caplog.records) == 1 + (29 - 2) // int(LOGGED_EVERY_S)


def test_a_mutant_health_check_that_always_answers_200_fails_the_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mutant: every claim about unready nodes fails on it."""
    honest: Any = json_response
    monkeypatch.setattr(metrics, "json_response", lambda value, *, ok: honest(value, ok=ok or True))
    with pytest.raises(AssertionError):
        test_an_unready_node_answers_503_with_the_reasons()


def test_the_health_endpoint_of_a_node_includes_the_faults_of_each_registered_component() -> None:
    host: Any = SimpleNamespace(groups={}, node_id=NodeId(1))
    monitor = health.HealthMonitor(host)
    monitor.watches.append(lambda: [HELD])
    assert list(monitor.faults()) == [HELD]
