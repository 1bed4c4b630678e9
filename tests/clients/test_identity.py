"""A running node whose controller checks the nodes as which its peers speak."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from esker.settings.access import STANDARD_AUTHORIZER
from tests.clients.secured import NODE, PASSWORD, USER, SecuredNode
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(120)


def settings(mode: str, principals: str) -> str:
    return (
        f"authorizer.class.name={STANDARD_AUTHORIZER}\nsuper.users=User:{USER};User:{NODE}\n"
        f"esker.controller.identity={mode}\nesker.node.principals={principals}\n"
    )


def read_in_a_group_and_write_in_a_transaction(node: SecuredNode) -> None:
    """Cause the broker's requests as the owner of a group and of a transactional id."""
    client = {
        "bootstrap.servers": node.address("SASL_SSL"),
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(node.ca_file),
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }
    consumer = Consumer(client | {"group.id": "g", "auto.offset.reset": "earliest"})
    producer = Producer(client | {"transactional.id": "t"})
    consumer.subscribe(["orders"])
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("orders", b"1")
    producer.commit_transaction(60)
    wait_until(lambda: consumer.poll(1.0), "a record is read")
    producer.begin_transaction()
    ends = [TopicPartition("orders", 0, 1)]
    producer.send_offsets_to_transaction(ends, consumer.consumer_group_metadata(), 60)
    producer.commit_transaction(60)
    consumer.commit(asynchronous=False)
    consumer.close()


def test_a_node_with_its_own_user_works_with_enforced_identity(tmp_path: Path) -> None:
    with SecuredNode(tmp_path, more=settings("enforce", "User:node-*")) as node:
        config = node.command_config("SASL_SSL")
        assert node.run("topics", "create", "orders", config=config).returncode == 0
        assert "orders" in node.run("topics", "list", config=config).stdout
        read_in_a_group_and_write_in_a_transaction(node)
        assert "decision=denied" not in node.output.read_text()


def test_a_node_with_a_foreign_user_works_and_is_logged_once_per_api(tmp_path: Path) -> None:
    with SecuredNode(tmp_path, more=settings("log", "User:other-*")) as node:
        config = node.command_config("SASL_SSL")
        assert node.run("topics", "create", "orders", config=config).returncode == 0
        wait_until(lambda: "api_key=63 as_node=1" in node.output.read_text(), "a line for API 63")
        lines = [line for line in node.output.read_text().splitlines() if "would_deny" in line]
        assert len(lines) == len({line.partition("api_key=")[2].split()[0] for line in lines})
