"""How many topics a second does a quorum of three create, and what does a heartbeat wait meanwhile?

    python -m bench.bench_controller_cluster [--topics 10000] [--tiny]

Three controllers on loopback, real processes and disks; three scripted brokers register and are
unfenced. Topics of 10 partitions with 3 replicas are created in requests of 100, one after the
other; from a process of its own a broker sends a heartbeat every 10 ms, first alone, then
meanwhile. The same client asks Esker and then Apache Kafka's controllers, where Java and the
released jars are there: a ratio above 1 says that we are faster. Musts: 0.3 of Kafka's topics/s,
heartbeats' p99 at most twice that of an idle controller.

What differs: ours answers a creation once the batch coordinator has committed it as well.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from records.rpc.base import Request, Response
from records.rpc.brokers import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from records.rpc.topics import CreateTopicsRequest, CreateTopicsResponse
from tests.coordinator.controller.world import creation, registration
from tests.interop.kafka_release import KafkaMissingError, KafkaSetupError, fetch
from tests.interop.kafka_run import Kafka, ToolFailedError, configure_node
from tests.interop.kafka_scenario import CLUSTER_ID
from tests.quorum_processes import NODES, Quorum
from tests.raft.driver.client import Client

ROOT: Final = Path(__file__).parents[1]
TOPICS: Final = 10_000
PARTITIONS: Final = 10
TOPICS_OF_REQUEST: Final = 100
BROKERS: Final = (1001, 1002, 1003)
BEAT_S: Final = 0.01
IDLE_S: Final = 3.0
PATIENCE_S: Final = 60.0
IN_THE_FUTURE: Final = 2**40  # a metadata offset that no broker is behind

R = TypeVar("R", bound=Response)


class Figures(NamedTuple):
    """What was measured of one quorum."""

    topics_per_s: float
    idle_p99_ms: float
    busy_p99_ms: float


def codes(answer: Response) -> set[int]:
    items = getattr(answer, "topics", None)
    return {item.error_code for item in items} if items else {answer.error_code}  # type: ignore[attr-defined]


class Asker:
    """Asks the active controller, whichever port that is."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = ports
        self._client: Client | None = None

    def ask(self, request: Request, answer: type[R], version: int) -> R:
        """Send a request to each node in turn until the active controller answers."""
        deadline = time.monotonic() + PATIENCE_S
        last: object = "nobody answers"
        while time.monotonic() < deadline:
            for port in self._ports:
                try:
                    client = self._client or Client("127.0.0.1", port, timeout_s=PATIENCE_S)
                    got = client.ask(request, answer, version)
                except OSError as error:
                    last, self._client = error, None
                    continue
                if not codes(got) & {6, 41, 8, 7}:
                    self._client = client
                    return got
                last = got
                client.close()
                self._client = None
            time.sleep(0.1)
        raise SystemExit(f"no controller: {last}")


def register(asker: Asker, cluster_id: str) -> dict[int, int]:
    """Register brokers, wait until they are unfenced, and return their broker epochs by id."""
    feature = BrokerRegistrationRequest.Feature
    features = [feature(name="metadata.version", min_supported_version=7, max_supported_version=60)]
    for name in (
        "transaction",
        "group",
        "eligible.leader.replicas",
        "share",
        "streams",
        "kraft",
        "esker",
    ):
        features.append(
            feature(name=f"{name}.version", min_supported_version=0, max_supported_version=9)
        )
    epochs = {}
    for broker_id in BROKERS:
        request = registration(
            broker_id,
            cluster_id=cluster_id,
            features=tuple(features),
            log_dirs=(UUID(int=broker_id << 64),),
        )
        answer = asker.ask(request, BrokerRegistrationResponse, 4)
        assert answer.error_code == 0, answer
        epochs[broker_id] = answer.broker_epoch
        beat(asker, broker_id, answer.broker_epoch)
    return epochs


def beat(asker: Asker, broker_id: int, epoch: int) -> None:
    request = BrokerHeartbeatRequest(
        broker_id=broker_id,
        broker_epoch=epoch,
        current_metadata_offset=IN_THE_FUTURE,
        want_fence=False,
        want_shut_down=False,
    )
    answer = asker.ask(request, BrokerHeartbeatResponse, 1)
    assert (answer.error_code, answer.is_fenced) == (0, False), answer


class Heart:
    """Beats for all brokers in a process of its own, as a broker does, until it is stopped.

    In a thread of this one a beat waited for the interpreter whenever a request for a hundred
    topics was encoded or its answer decoded: up to five milliseconds, ten times a beat.
    """

    def __init__(self, ports: Sequence[int], epochs: Mapping[int, int]) -> None:
        said = json.dumps({"ports": list(ports), "epochs": list(epochs.items())})
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.bench_controller_cluster", "--beat", said],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        assert self._process.stdout is not None, "a pipe was asked for"
        self._process.stdout.readline()  # it beats

    def stop(self) -> list[tuple[float, float]]:
        """Stop the heartbeats, and return each heartbeat's start time and its duration in ms."""
        out, _ = self._process.communicate("")
        if self._process.returncode:
            raise SystemExit("the heartbeats failed")
        return [(at, took) for at, took in json.loads(out)]


def beat_until_told(said: str) -> None:
    """Send heartbeats until standard input ends, then print their times: the process of `Heart`."""
    told = json.loads(said)
    asker = Asker(told["ports"])
    times: list[tuple[float, float]] = []
    stopped = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        stopped.set()

    for broker_id, epoch in told["epochs"]:
        beat(asker, broker_id, epoch)  # connects
    threading.Thread(target=wait_for_the_end, daemon=True).start()
    print("beating", flush=True)
    while not stopped.is_set():
        for broker_id, epoch in told["epochs"]:
            begin = time.perf_counter()
            beat(asker, broker_id, epoch)
            times.append((begin, (time.perf_counter() - begin) * 1e3))
            stopped.wait(BEAT_S)
    print(json.dumps(times))


def p99(times_ms: list[float]) -> float:
    """Return the 99th percentile of heartbeat times, or 0 without heartbeats."""
    return sorted(times_ms)[int(len(times_ms) * 0.99)] if times_ms else 0.0


def measure(ports: Sequence[int], cluster_id: str, topics: int, idle_s: float) -> Figures:
    """Register brokers and create topics in one quorum, and return the measured figures."""
    asker = Asker(ports)
    epochs = register(asker, cluster_id)
    requests = []
    for first in range(0, topics, TOPICS_OF_REQUEST):
        named = range(first, min(topics, first + TOPICS_OF_REQUEST))
        entries = tuple(creation(f"topic-{i}", PARTITIONS, factor=3).topics[0] for i in named)
        requests.append(CreateTopicsRequest(topics=entries, timeout_ms=60_000))
    heart = Heart(ports, epochs)
    time.sleep(idle_s)
    begin = time.perf_counter()
    for request in requests:
        answer = asker.ask(request, CreateTopicsResponse, 4)
        assert codes(answer) == {0}, answer
    end = time.perf_counter()
    beats = heart.stop()
    idle = p99([took for at, took in beats if at < begin])
    busy = p99([took for at, took in beats if begin <= at <= end])
    return Figures(topics / (end - begin), idle, busy)


@contextmanager
def esker_quorum(home: Path) -> Iterator[tuple[list[int], str]]:
    """Start three Esker nodes, and yield their ports and the cluster id."""
    with Quorum(home) as quorum:
        quorum.start(*NODES)
        meta = (home / "1" / "meta.properties").read_text()
        found = [line for line in meta.splitlines() if line.startswith("cluster.id=")]
        yield list(quorum.ports.values()), found[0].split("=", 1)[1].strip()


@contextmanager
def kafka_quorum(home: Path) -> Iterator[tuple[list[int], str]]:
    """Start three Apache Kafka controllers with static voters; yield ports and cluster id."""
    kafka = Kafka(fetch())
    plans = {}
    for node in NODES:
        plans[node] = configure_node(
            kafka, home / str(node), node_id=node, roles="controller", dynamic_voters=False
        )
    ports = {node: plan.ports["CONTROLLER"] for node, plan in plans.items()}
    voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in ports.items())
    with ExitStack() as stack:
        for plan in plans.values():
            lines = plan.properties.read_text().splitlines()
            kept = [line for line in lines if not line.startswith("controller.quorum.voters")]
            plan.properties.write_text("\n".join([*kept, f"controller.quorum.voters={voters}", ""]))
            plan.format(CLUSTER_ID)
            stack.enter_context(plan.started([]))
        yield list(ports.values()), CLUSTER_ID


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=TOPICS)
    parser.add_argument("--tiny", action="store_true", help="to see that it runs; without Java")
    parser.add_argument("--beat", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.beat:
        beat_until_told(arguments.beat)
        return
    topics = 200 if arguments.tiny else arguments.topics
    idle_s = 0.5 if arguments.tiny else IDLE_S
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(f"commit {commit or 'unknown'}, Python {platform.python_version()}, {platform.machine()}")
    figures: dict[str, Figures] = {}
    for name, quorum in (("Esker", esker_quorum), ("Kafka", kafka_quorum)):
        if name == "Kafka" and arguments.tiny:
            continue
        with tempfile.TemporaryDirectory() as home, contextlib.ExitStack() as stack:
            try:
                ports, cluster_id = stack.enter_context(quorum(Path(home)))
            except (KafkaMissingError, KafkaSetupError, ToolFailedError) as error:
                print(f"{name} left out: {error}")
                continue
            found = figures[name] = measure(ports, cluster_id, topics, idle_s)
            print(
                f"{name} {found.topics_per_s:8,.0f} topics/s of {PARTITIONS} partitions; heartbeat "
                f"p99 {found.idle_p99_ms:.1f} ms idle, {found.busy_p99_ms:.1f} ms meanwhile "
                f"({found.busy_p99_ms / max(found.idle_p99_ms, 0.001):.1f}x)"
            )
    if len(figures) == 2:
        ratio = figures["Esker"].topics_per_s / figures["Kafka"].topics_per_s
        print(f"topics/s beside Kafka: {ratio:.2f}x (must 0.3x, aim 1.0x)")


if __name__ == "__main__":
    main()
