"""A node with an authorizer: its clients may do what entries made by librdkafka allow."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from esker.settings.access import STANDARD_AUTHORIZER
from tests.clients.secured import NODE, PASSWORD, USER, SecuredNode

pytestmark = pytest.mark.slow

CLIENT = "User:CN=client,O=Esker"
DENIED = "Topic authorization failed"


def admin_of(node: SecuredNode) -> AdminClient:
    return AdminClient(
        {
            "bootstrap.servers": node.address("SASL_PLAINTEXT"),
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
        }
    )


def entry(operation: AclOperation) -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC,
        "mine-",
        ResourcePatternType.PREFIXED,
        CLIENT,
        "*",
        operation,
        AclPermissionType.ALLOW,
    )


def creates(node: SecuredNode, topic: str) -> str:
    """Create a topic as the client of a certificate; return what the command says."""
    config = node.command_config("SSL")
    made = node.run("topics", "create", topic, config=config, protocol="SSL")
    return "" if made.returncode == 0 else made.stderr


def test_a_client_may_create_the_topics_that_an_entry_allows_also_after_a_restart(
    tmp_path: Path,
) -> None:
    more = f"authorizer.class.name={STANDARD_AUTHORIZER}\nsuper.users=User:{USER};User:{NODE}\n"
    node = SecuredNode(tmp_path, ("PLAIN",), more)
    with node:
        assert DENIED in creates(node, "mine-1")
        admin = admin_of(node)
        made = admin.create_acls([entry(AclOperation.CREATE), entry(AclOperation.DESCRIBE)])
        for future in made.values():
            future.result()
        assert creates(node, "mine-1") == ""
        assert DENIED in creates(node, "other")
        listed = node.run("topics", "list", config=node.command_config("SSL"), protocol="SSL")
        assert listed.returncode == 1
        assert "the node's log names the missing operation" in listed.stderr
    with node:
        admin = admin_of(node)
        everything = AclBindingFilter(
            ResourceType.ANY,
            None,
            ResourcePatternType.ANY,
            None,
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        assert len(admin.describe_acls(everything).result()) == 2
        assert creates(node, "mine-2") == ""
        (removed,) = admin.delete_acls([everything]).values()
        assert len(removed.result()) == 2
        assert DENIED in creates(node, "mine-3")
    lines = node.output.read_text().splitlines()
    denials = [line for line in lines if f"decision=denied principal='{CLIENT}'" in line]
    assert any("operation=CREATE resource_type=TOPIC resource='other'" in one for one in denials)
    assert any("operation=DESCRIBE resource_type=CLUSTER" in one for one in denials)
