"""The table of access control on a broker of Esker, against the answers of Apache Kafka.

pytest tests/interop/test_access_answers.py                     # Esker, in this process
pytest -m soak tests/interop/test_access_answers.py             # Apache Kafka, again
pytest -m soak tests/interop/test_access_answers.py --rewrite   # and its answers recorded anew
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import UUID

import msgspec
import pytest

from coordinator.controller.access import AccessSettings, Client
from diskless.access import gate
from diskless.access.gate import ASK_THEMSELVES, GUARDS
from esker.settings.access import STANDARD_AUTHORIZER
from raft.net.sasl import ServerMechanisms
from raft.net.security import ListenerSecurity
from records.kafka_errors import ErrorCode
from records.rpc.base import Request
from records.rpc.partitions import InitProducerIdRequest
from records.rpc.quorum import DescribeQuorumRequest, DescribeQuorumResponse
from records.rpc.security import CreateAclsRequest
from records.rpc.topics import FindCoordinatorRequest
from tests.clients.apache_kafka import SETTINGS
from tests.coordinator.groups.world import TRANSACTIONS
from tests.diskless.broker_world import running_broker
from tests.diskless.cluster_world import ClusterWorld
from tests.interop import access_table
from tests.interop.access_table import ADMIN, GROUPS, PRINCIPALS, RECORDED, TOPICS, response_of
from tests.interop.kafka_run import Kafka, configure_node
from tests.interop.kafka_scenario import CLUSTER_ID
from tests.interop.kafka_tools import CLASSES, RUN_TOOLS
from tests.interop.sasl_client import SaslClient
from tests.waiting import DEADLINE_S, wait_until

PASSWORD: Final = "secret"

LOGIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"

DIFFERENCES: Final[dict[tuple[str, str], str]] = {}
"""Requests that Esker answers otherwise to a principal, and why."""


class Asker:
    """Connections of the table's principals to one broker."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._clients = {
            user: SaslClient("127.0.0.1", port, user, PASSWORD, DEADLINE_S)
            for user in (ADMIN, *PRINCIPALS)
        }

    def __call__(self, principal: str, request: Request, version: int) -> Any:
        return self._clients[principal].ask(request, response_of(request), version)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def can_create(self) -> bool:
        """Return whether the cluster creates topics, by one that is not created."""
        request = access_table.topics_request()
        made = self(ADMIN, msgspec.structs.replace(request, validate_only=True), 5)
        return not any(topic.error_code for topic in made.topics)

    def fill(self) -> None:
        """Create the topics and the groups of the table."""
        made = self(ADMIN, access_table.topics_request(), 5)
        assert not any(topic.error_code for topic in made.topics), made

        def has_groups() -> bool:
            for key_type in (0, 1):  # Kafka creates the logs of groups and transactions now
                find = FindCoordinatorRequest(key_type=key_type, coordinator_keys=GROUPS)
                found = self(ADMIN, find, 4).coordinators
                if any(coordinator.error_code for coordinator in found):
                    return False
            codes = {
                self(ADMIN, access_table.commit(group, "read", "hidden"), 8)
                .topics[0]
                .partitions[0]
                .error_code
                for group in GROUPS
            }
            return codes == {ErrorCode.NONE}

        wait_until(has_groups, "offsets of groups are committed")

        def has_transactions() -> bool:
            request = InitProducerIdRequest(transactional_id="mine", transaction_timeout_ms=60_000)
            code: int = self(ADMIN, request, 4).error_code
            return code == ErrorCode.NONE

        wait_until(has_transactions, "a transactional producer is known")


T = TypeVar("T")

FIRST_OF_OURS: Final = 1_000
ID: Final = UUID(int=1)


def on_esker(make_acls: Callable[[Asker], None], tell: Callable[[Asker], T]) -> T:
    """Tell a story to a broker of Esker, on a cluster in memory with the table's entries."""

    def story(port: int) -> T:
        asker = Asker(port)
        try:
            asker.fill()
            make_acls(asker)
            return tell(asker)
        finally:
            asker.close()

    async def run() -> T:
        users = dict.fromkeys((ADMIN, *PRINCIPALS), PASSWORD)
        sasl = ServerMechanisms(
            enabled=("PLAIN",), plain_users=users, find_credential=lambda *_: None
        )
        async with ClusterWorld(brokers=()) as world:
            describe_quorum_of(world)
            async with running_broker(
                world,
                access=AccessSettings(frozenset({f"User:{ADMIN}"}), allow_everyone=False),
                security=ListenerSecurity(tls=None, sasl=sasl, session_lifetime_ms=0),
            ) as broker:
                await world.finalize(esker_version=4, transaction_version=2)
                world.group_log._features = lambda: TRANSACTIONS
                return await asyncio.to_thread(story, broker.listeners["PLAIN"].port)

    return asyncio.run(run())


def describe_quorum_of(world: ClusterWorld) -> None:
    """Let the controller of a cluster in memory, which has no quorum, describe one."""
    cluster = world.cluster(1)
    ask_controller = cluster.ask_controller

    async def answer(request: Request, response: Any, client: Client | None = None) -> Any:
        if isinstance(request, DescribeQuorumRequest):
            return DescribeQuorumResponse(error_message="", topics=())
        return await ask_controller(request, response, client)

    cluster.ask_controller = answer  # type: ignore[method-assign]


def create_acls(asker: Asker) -> None:
    made = asker(ADMIN, CreateAclsRequest(creations=tuple(access_table.creations())), 2)
    assert not any(result.error_code for result in made.results), made


def run_kafka_acls(kafka: Kafka, home: Path, port: int, *invocations: str) -> list[str]:
    """Run `kafka-acls.sh` as the table's super user, and return what each run printed."""
    config = home / "admin.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={LOGIN_MODULE} required username="{ADMIN}" password="{PASSWORD}";\n'
    )
    words = [CLASSES["acls"], "--bootstrap-server", f"127.0.0.1:{port}"]
    words += ["--command-config", str(config)]
    lines = ("\t".join((*words, *one.split())) + "\n" for one in invocations)
    said = kafka.run(str(RUN_TOOLS), stdin="".join(lines), timeout_s=DEADLINE_S).out
    outputs = re.split(r"^### (?=\d+$)", said, flags=re.MULTILINE)[1:]
    assert len(outputs) == len(invocations), said
    codes = [output.partition("\n")[0] for output in outputs]
    assert set(codes) == {"0"}, said
    return [output.partition("\n")[2] for output in outputs]


def add_acls(kafka: Kafka, home: Path, port: int) -> None:
    """Make the entries of the table with `kafka-acls.sh`; list and remove one more."""
    run_kafka_acls(kafka, home, port, *(f"--add {line}" for line in access_table.ACLS))
    more = "--allow-principal User:ann --producer --topic more"
    some = "--topic more --resource-pattern-type match"
    listed = run_kafka_acls(
        kafka, home, port, f"--add {more}", f"--list {some}", f"--remove --force {more}", "--list"
    )
    assert "name=more" in listed[1], listed
    assert "operation=WRITE" in listed[1], listed
    assert "name=more" not in listed[3], listed
    assert "name=own-" in listed[3], listed


@contextmanager
def kafka_with_authorizer(kafka: Kafka, home: Path) -> Iterator[int]:
    """Run Apache Kafka with StandardAuthorizer; yield the port of its SASL listener."""
    users = "".join(f' user_{user}="{PASSWORD}"' for user in (ADMIN, *PRINCIPALS))
    plan = configure_node(
        kafka,
        home,
        node_id=1,
        listeners={"CLIENTS": "SASL_PLAINTEXT"},
        settings=SETTINGS
        | {
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": f"User:ANONYMOUS;User:{ADMIN}",
            "listener.name.clients.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.clients.plain.sasl.jaas.config": f"{LOGIN_MODULE} required{users};",
        },
    )
    plan.format(CLUSTER_ID, "--standalone")
    with plan.started(["CLIENTS"]) as node:
        yield node.ports["CLIENTS"]


@pytest.mark.java
@pytest.mark.soak
def test_apache_kafka_gives_the_recorded_answers(
    kafka: Kafka, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with kafka_with_authorizer(kafka, tmp_path / "kafka") as port:
        asker = Asker(port)
        try:
            wait_until(asker.can_create, "Kafka creates topics")
            asker.fill()
            add_acls(kafka, tmp_path, port)
            found = access_table.answers(asker)
        finally:
            asker.close()
    if request.config.getoption("--rewrite"):
        rows = (f"{json.dumps(label)}: {json.dumps(row)}" for label, row in found.items())
        RECORDED.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    assert found == json.loads(RECORDED.read_text())


@pytest.mark.java
@pytest.mark.soak
def test_esker_gives_the_recorded_answers_with_entries_of_kafkas_own_tool(
    kafka: Kafka, tmp_path: Path
) -> None:
    found = on_esker(lambda asker: add_acls(kafka, tmp_path, asker.port), access_table.answers)
    assert not differences(found)


def differences(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the answers that are not the recorded ones, and are not said to differ."""
    expected = json.loads(RECORDED.read_text())
    assert found.keys() <= expected.keys()
    return {
        f"{label}, as {principal}": (found[label][principal], answer)
        for label in found
        for principal, answer in expected[label].items()
        if found[label][principal] != answer and (label, principal) not in DIFFERENCES
    }


def test_esker_answers_every_principal_as_apache_kafka_does() -> None:
    different = differences(on_esker(create_acls, access_table.answers))
    assert not different, json.dumps(different, indent=1)[:6_000]


def test_the_table_has_a_request_for_every_guard_and_no_more_requests_than_are_recorded() -> None:
    asked = {ask.request.schema().key for ask in access_table.requests(dict.fromkeys(TOPICS, ID))}
    labels = [ask.label for ask in access_table.requests(dict.fromkeys(TOPICS, ID))]
    assert labels == list(json.loads(RECORDED.read_text()))
    of_kafka = {key for key in GUARDS if key < FIRST_OF_OURS}
    assert not of_kafka - asked
    assert asked - of_kafka == ASK_THEMSELVES


def test_the_table_notices_every_guard_that_lets_everybody_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def story(asker: Asker) -> list[int]:
        unnoticed = []
        for key, guard in GUARDS.items():
            if key < FIRST_OF_OURS:
                mutants[key] = lambda *_: None
                if not differences(access_table.answers(asker, key)):
                    unnoticed.append(key)
                mutants[key] = guard
        return unnoticed

    mutants = dict(GUARDS)
    monkeypatch.setattr(gate, "GUARDS", mutants)
    assert not on_esker(create_acls, story)


@pytest.mark.parametrize(
    ("api_key", "where", "name", "mutant"),
    [
        (0, "diskless.produce.service", "denied_produce", lambda *_, **__: (0, ())),
        (3, "diskless.apis.metadata", "may_describe", lambda *_, **__: True),
        (3, "diskless.apis.metadata", "topic_operations", lambda *_: 0),
        (3, "diskless.apis.metadata", "cluster_operations", lambda *_: 0),
        (3, "diskless.apis.cluster", "is_allowed", lambda *_: True),
        (60, "diskless.apis.cluster", "cluster_operations", lambda *_: 0),
        (75, "diskless.apis.describe_partitions", "may_describe", lambda *_, **__: True),
        (75, "diskless.apis.describe_partitions", "topic_operations", lambda *_: 0),
    ],
)
def test_the_table_notices_descriptions_that_show_too_much(
    api_key: int, where: str, name: str, mutant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{where}.{name}", mutant)
    assert differences(on_esker(create_acls, lambda asker: access_table.answers(asker, api_key)))
