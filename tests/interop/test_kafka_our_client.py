"""Our own client commands on Apache Kafka: what they ask for is the protocol, not Esker.

The rest of their tests runs on `esker dev` (tests/esker/test_bootstrap_server.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from records.uuids import encode_uuid, random_uuid
from tests.interop.kafka_run import Kafka, configure_node
from tests.processes import run

pytestmark = pytest.mark.java


@pytest.fixture(scope="module")
def port(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Of a broker."""
    plan = configure_node(
        kafka,
        tmp_path_factory.mktemp("kafka") / "node",
        node_id=1,
        dynamic_voters=False,
        settings={
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
        },
    )
    plan.format(encode_uuid(random_uuid()))
    with plan.started(["PLAINTEXT"]):
        yield plan.ports["PLAINTEXT"]


def esker(port: int, *words: str, text: str = "") -> str:
    ran = run("esker", *words, "--bootstrap-server", f"127.0.0.1:{port}", text=text)
    assert ran.returncode == 0, f"{words}: {ran.stdout}{ran.stderr}"
    return ran.stdout


def test_eskers_client_produces_to_and_consumes_from_kafka_with_and_without_a_group(
    port: int,
) -> None:
    text = "".join(f"{number % 9}:{number}\n" for number in range(3_000))
    for codec in ("snappy", "zstd"):
        esker(port, "produce", "--topic", codec, "--key-separator", ":", "--compression", codec,
              text=text)  # fmt: skip
        read = ("consume", "--topic", codec, "--from-beginning", "--until-end")
        assert esker(port, *read, "--key-separator", ":") == text
    words = ("consume", "--topic", "zstd", "--group", "g", "--from-beginning")
    assert esker(port, *words, "--max-messages", "2") == "0\n1\n"
    assert esker(port, *words, "--max-messages", "1") == "2\n"
    assert "g" in esker(port, "groups", "list").split()
    group = json.loads(esker(port, "groups", "describe", "--group", "g", "--json"))
    assert group["partitions"][0]["lag"] == 2_997
    assert "LeaderId" in esker(port, "quorum", "describe")
