"""All PLAIN passwords of nodes change on a running cluster with enforced identity of nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tests.clients.secured import PLAIN_MODULE
from tests.clients.steady_load import Load, read_all
from tests.clients.test_security_change import (
    BROKERS,
    NEW,
    OLD,
    TOPIC,
    VOTERS,
    Cluster,
    answers,
    names,
)
from tests.processes import run
from tests.waiting import wait_until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

LISTENER: Final = "listener.name.controller_old.plain.sasl.jaas.config"


def old_secret(user: str) -> str:
    return f"former-secret-of-{user}"


class PasswordCluster(Cluster):
    """A cluster with enforced identity, whose two listeners of controllers differ by passwords."""

    def write(self, node: int, controllers: tuple[str, ...], own: tuple[str, ...]) -> None:
        self.identity = "enforce"
        super().write(node, controllers, own)
        users = " ".join(f'user_{user}="{old_secret(user)}"' for user in names())
        me = f"node-{node}"
        text = (
            self.file(node)
            .read_text()
            .replace("CONTROLLER_OLD:PLAINTEXT", "CONTROLLER_OLD:SASL_SSL")
        )
        self.file(node).write_text(
            f'{text}{LISTENER}={PLAIN_MODULE} required username="{me}" '
            f'password="{old_secret(me)}" {users};\n'
        )


def test_all_passwords_of_nodes_change_under_load_by_a_second_listener(tmp_path: Path) -> None:
    cluster = PasswordCluster(tmp_path)

    def roll(nodes: tuple[int, ...], controllers: Any, own: Any, load: Load | None = None) -> None:
        for node in nodes:
            cluster.restart(node, controllers, own)
            if load is not None:
                port = cluster.ports[own[0]][node]
                wait_until(lambda port=port: answers(port), f"node {node} listens")
                load.wait_for_more(f"after the restart of node {node}")

    try:
        roll(VOTERS, OLD, OLD)
        roll(BROKERS, OLD, NEW)
        created = ("topics", "create", TOPIC, *cluster.secured())
        wait_until(lambda: run("esker", *created).returncode == 0, "the topic exists")
        with Load(TOPIC, cluster.client("NEW")) as load:
            load.wait_for_more("with the former passwords")
            roll(VOTERS, (*OLD, *NEW), (*OLD, *NEW), load)
            roll(VOTERS, (*NEW, *OLD), (*NEW, *OLD), load)
            roll(BROKERS, NEW, NEW, load)
            roll(VOTERS, NEW, NEW, load)
        assert not load.failed
        assert not load.refused
        read = read_all(TOPIC, cluster.client("NEW"), len(load.acknowledged))
        assert read == load.acknowledged
        for node in (*VOTERS, *BROKERS):
            assert old_secret(f"node-{node}") not in cluster.log(node)
        for voter in VOTERS:
            assert "decision=denied" not in cluster.log(voter)
    finally:
        cluster.stop()
