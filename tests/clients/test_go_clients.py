"""Administrative requests of franz-go, Sarama and kafka-go, whose modules have to be fetched.

One program asks a cluster of ours and Apache Kafka, and prints a line for each answer. Lines that
differ are listed here, and in docs/differences.md with their reasons.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.clients.apache_kafka import apache_kafka
from tests.clients.cluster import EskerCluster
from tests.interop.conftest import kafka, kafka_release, written_by_kafka
from tests.interop.kafka_release import PROJECT, locked
from tests.interop.kafka_run import Kafka

__all__ = ["kafka", "kafka_release", "written_by_kafka"]

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

SOURCES: Final = Path(__file__).with_name("go")
BUILD_S: Final = 600
RUN_S: Final = 120

DIFFERENT: Final[frozenset[str]] = frozenset()
"""Names of the lines that may differ."""


def build_go(name: str, *command: str, package: str = ".") -> Path:
    """Compile a Go program below `.cache`, and return its path; skip the test if that fails.

    Args:  command: of `go`, such as "build".
    """
    go = shutil.which("go", path=f"{os.environ['PATH']}:/usr/local/go/bin")
    if go is None:
        pytest.skip("GO CLIENTS NOT TESTED: go is not on the PATH")
    home = PROJECT / ".cache" / "go-clients"
    home.mkdir(parents=True, exist_ok=True)
    with locked(home.with_suffix(".lock")):
        done = subprocess.run(
            [go, *command, "-o", str(home / name), package], cwd=SOURCES, capture_output=True,
            text=True, timeout=BUILD_S, check=False,
        )  # fmt: skip
    if done.returncode and "dial tcp" in done.stderr:
        pytest.skip(f"GO CLIENTS NOT TESTED: no module can be fetched: {done.stderr[-300:]}")
    assert not done.returncode, done.stderr
    return home / name


@pytest.fixture(scope="module")
def program() -> Path:
    """The compiled program of administrative requests."""
    return build_go("admin", "build")


def answers(program: Path, bootstrap: str) -> dict[str, str]:
    """Return what each request was answered, by client and name."""
    done = subprocess.run(
        [str(program), bootstrap], capture_output=True, text=True, timeout=RUN_S, check=False
    )
    assert not done.returncode, f"{done.stdout}\n{done.stderr}"
    return dict(line.split(": ", 1) for line in done.stdout.splitlines())


def test_esker_answers_administrative_requests_of_go_clients_as_apache_kafka_does(
    program: Path, kafka: Kafka, tmp_path: Path
) -> None:
    with EskerCluster(tmp_path / "esker", brokers=1, quorum=(1,)) as cluster:
        cluster.start()
        ours = answers(program, cluster.bootstrap)
        cluster.check_alive()
    with apache_kafka(kafka, tmp_path / "kafka") as world:
        theirs = answers(program, world.bootstrap)
    assert ours.keys() == theirs.keys()
    assert len(ours) > 50
    wrong = {
        name: (ours[name], theirs[name])
        for name in theirs
        if (ours[name] != theirs[name]) != (name in DIFFERENT)
    }
    assert not wrong, "\n".join(f"{name}: {pair}" for name, pair in wrong.items())
