"""Brokers of Apache Kafka follow an Esker controller that checks the identity of its peers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from esker.settings.access import STANDARD_AUTHORIZER
from tests.clients.secured import PLAIN_MODULE
from tests.interop.kafka_run import Kafka, Plan, configure_node
from tests.interop.kafka_scenario import CLUSTER_ID
from tests.interop.test_kafka_joins_esker import Copy
from tests.ports import free_ports
from tests.processes import start
from tests.quorum_processes import storage
from tests.waiting import wait_until

pytestmark = [pytest.mark.soak, pytest.mark.java, pytest.mark.timeout(300)]

JAVA_BROKER: Final = 100
OTHER: Final = 101
NODES: Final = (1, JAVA_BROKER, OTHER)


def jaas(node: int) -> str:
    return f'{PLAIN_MODULE} required username="node-{node}" password="secret-{node}"'


class Controller:
    """One Esker controller whose peers must prove which node they are."""

    def __init__(self, home: Path) -> None:
        (self.port,) = free_ports(1)
        self.voters = f"1@127.0.0.1:{self.port}"
        self.output = home / "node.log"
        users = " ".join(f'user_node-{node}="secret-{node}"' for node in NODES)
        self.file = home / "node.properties"
        self.file.write_text(
            f"process.roles=controller\nnode.id=1\ncontroller.quorum.voters={self.voters}\n"
            f"listeners=CONTROLLER://127.0.0.1:{self.port}\n"
            "controller.listener.names=CONTROLLER\n"
            "listener.security.protocol.map=CONTROLLER:SASL_PLAINTEXT\n"
            "sasl.enabled.mechanisms=PLAIN\n"
            f"listener.name.controller.plain.sasl.jaas.config={jaas(1)} {users};\n"
            f"authorizer.class.name={STANDARD_AUTHORIZER}\n"
            f"super.users={';'.join(f'User:node-{node}' for node in NODES)}\n"
            "esker.controller.identity=enforce\n"
            f"log.dirs={home / 'log'}\n"
        )
        self.file.chmod(0o600)
        storage("format", "--config", str(self.file), "--cluster-id", CLUSTER_ID)

    def denials(self) -> str:
        lines = self.output.read_text().splitlines()
        return "\n".join(line for line in lines if "decision=denied" in line)


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    made = Controller(tmp_path)
    with made.output.open("ab") as log:
        process = start("esker", "start", str(made.file), output=log)
    yield made
    process.terminate()
    process.wait()


def java_broker(kafka: Kafka, home: Path, controller: Controller, user: int) -> Plan:
    """Return a broker of Apache Kafka with the id JAVA_BROKER and the user of a node."""
    settings = {
        "controller.quorum.voters": controller.voters,
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": f"{jaas(user)};",
    }
    plan = configure_node(
        kafka,
        home,
        node_id=JAVA_BROKER,
        roles="broker",
        dynamic_voters=False,
        listeners={"CONTROLLER": "SASL_PLAINTEXT"},
        settings=settings,
    )
    plan.format(CLUSTER_ID)
    return plan


def test_a_kafka_broker_with_its_own_user_follows_the_log(
    kafka: Kafka, controller: Controller, tmp_path: Path
) -> None:
    plan = java_broker(kafka, tmp_path / "java", controller, JAVA_BROKER)
    with plan.started([]) as broker:
        copy = Copy(broker.metadata_log / f"{0:020}.log")
        wait_until(lambda: copy.last_epoch() is not None, state=broker.said)
    assert controller.denials() == ""


def test_a_kafka_broker_with_another_nodes_user_gets_no_record(
    kafka: Kafka, controller: Controller, tmp_path: Path
) -> None:
    plan = java_broker(kafka, tmp_path / "java", controller, OTHER)
    with plan.started([]) as broker:
        copy = Copy(broker.metadata_log / f"{0:020}.log")
        wait_until(
            lambda: f"api_key=1 as_node={JAVA_BROKER}" in controller.denials(), state=broker.said
        )
        assert copy.last_epoch() is None
    assert f"principal='User:node-{OTHER}'" in controller.denials()
