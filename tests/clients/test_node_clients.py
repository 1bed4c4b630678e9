"""KafkaJS and @platformatic/kafka: outside `make test`, for they have to be fetched.

Each runs a script of its own against a cluster of ours, and against Apache Kafka, so that a script
that asks for too much is found out.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final
from uuid import uuid4

import pytest

from tests.clients.apache_kafka import apache_kafka
from tests.clients.world import World
from tests.interop.conftest import kafka, kafka_release, written_by_kafka
from tests.interop.kafka_release import PROJECT, locked
from tests.interop.kafka_run import Kafka

__all__ = ["kafka", "kafka_release", "written_by_kafka"]

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

SCRIPTS: Final = Path(__file__).with_name("node")
CLIENTS: Final = ("kafkajs", "platformatic")
INSTALL_S: Final = 180
RUN_S: Final = 60


@pytest.fixture(scope="module")
def node_clients() -> Path:
    """The directory with `node_modules`, made once below `.cache`."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("NODE CLIENTS NOT TESTED: node or npm is not on the PATH")
    home = PROJECT / ".cache" / "node-clients"
    home.mkdir(parents=True, exist_ok=True)
    package = SCRIPTS / "package.json"
    with locked(home.with_suffix(".lock")):
        copy = home / "package.json"
        if not copy.exists() or copy.read_bytes() != package.read_bytes():
            copy.write_bytes(package.read_bytes())
            done = subprocess.run(
                ["npm", "install", "--no-audit", "--no-fund"], cwd=home, capture_output=True,
                text=True, timeout=INSTALL_S, check=False,
            )  # fmt: skip
            if done.returncode:
                copy.unlink()
                pytest.skip(f"NODE CLIENTS NOT TESTED: npm install: {done.stderr.strip()[-500:]}")
    return home


def run(home: Path, client: str, bootstrap: str, *more: str) -> None:
    """A client's script; everything that it claims must hold."""
    done = subprocess.run(
        ["node", str(SCRIPTS / f"{client}.mjs"), bootstrap, f"node-{uuid4().hex[:8]}", *more],
        capture_output=True, text=True, timeout=RUN_S, check=False,
        env={**os.environ, "NODE_CLIENTS": str(home)},
    )  # fmt: skip
    claims = [json.loads(line) for line in done.stdout.splitlines()]
    print(client, [claim["name"] for claim in claims])
    assert done.returncode == 0, f"after {claims}: {done.stderr[-3000:]}"
    assert claims
    wrong = [claim for claim in claims if not claim["holds"]]
    assert not wrong, wrong


@pytest.mark.parametrize("client", CLIENTS)
def test_each_node_js_client_produces_records_to_and_consumes_records_from_esker(
    client: str, node_clients: Path, world: World
) -> None:
    run(node_clients, client, world.bootstrap)


@pytest.mark.java
@pytest.mark.parametrize("client", CLIENTS)
def test_each_node_js_client_produces_records_to_and_consumes_records_from_kafka(
    client: str, node_clients: Path, kafka: Kafka, tmp_path: Path
) -> None:
    with apache_kafka(kafka, tmp_path / "node") as world:
        run(node_clients, client, world.bootstrap, "transactions")
