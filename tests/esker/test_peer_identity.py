"""The nodes as which the peers of a controller's listener may speak."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from random import Random
from types import SimpleNamespace
from typing import Any, Final

import pytest
from cryptography import x509

import esker.server.peer_identity as module
from coordinator.controller.access import AccessSettings, AccessTable
from coordinator.controller.guards import GUARDS
from coordinator.controller.image import MetadataImage
from esker.server.listener_gate import FREE, ListenerGate
from esker.server.peer_identity import (
    CLAIMS,
    NAMED_ONLY,
    OF_CONTROLLERS,
    OF_NODES,
    OWNED,
    IdentityMode,
    PeerIdentities,
)
from raft.net.certificates import names_of
from raft.net.header import RequestHeader
from raft.net.principal import ANONYMOUS, Principal
from records.codec import encode_message
from records.rpc import API
from records.rpc.brokers import BrokerRegistrationRequest
from records.rpc.fetch import FetchRequest
from records.rpc.quorum import VoteRequest
from records.schema import ArrayOf, Message, StructOf
from tests.diskless.calling import Caller
from tests.diskless.nonsense import Nonsense
from tests.esker.test_controller_access import ON_LISTENERS
from tests.pki import Authority

VOTER, BROKER, NEW = 1, 11, 99
VOTERS: Final = {1: "Quorum-1.example", 2: "10.0.0.2"}
REGISTERED: Final = {BROKER: ("broker-11.example", "public.example"), 12: ("broker-12.example",)}
IMAGE_BROKERS: Final[dict[int, Any]] = {
    node_id: SimpleNamespace(end_points=tuple(SimpleNamespace(host=host) for host in hosts))
    for node_id, hosts in REGISTERED.items()
}
OWNERS: Final[dict[tuple[str, str], Any]] = {
    (field, "owned"): SimpleNamespace(broker_id=BROKER, ownership_epoch=7)
    for field in ("group_id", "transactional_id")
}
SENDER_FIELDS: Final = {"broker_id", "replica_id", "leader_id", "controller_id", "controller_epoch"}


def user(name: str) -> Caller:
    return Caller(principal=Principal("User", name))


def certificate(*names: str, subject: str = "CN=x") -> Caller:
    caller = Caller(principal=Principal("User", subject))
    caller.certificate_names = names_of(Authority().issue("x", hosts=names).certificate)
    return caller


def identities(mode: str = "enforce", pattern: str = "node-*") -> PeerIdentities:
    return PeerIdentities(
        IdentityMode(mode),
        Principal("User", pattern),
        VOTERS,
        lambda: IMAGE_BROKERS,
        lambda field, name: OWNERS.get((field, name)),
    )


def fields_of(message: type[Message]) -> Iterator[str]:
    """Yield the names of all fields of a message, those of nested structures included."""
    for field in message.schema().fields:
        yield field.name
        kind = field.type
        while isinstance(kind, ArrayOf):
            kind = kind.element
        if isinstance(kind, StructOf):
            yield from fields_of(kind.message)


def speaking_as(key: int, node_id: int) -> Any:
    """Return a request of an API in which each id of its sender is `node_id`."""
    kind = API[key].request
    if key == FetchRequest.schema().key:
        return FetchRequest(
            replica_state=FetchRequest.ReplicaState(replica_id=node_id),
            max_wait_ms=0,
            min_bytes=0,
            topics=(),
        )
    request = Nonsense(Random(key), (), ()).request(kind, kind.schema().versions.last)
    return _renamed(request, node_id)


def _renamed(message: Any, node_id: int) -> Any:
    values: dict[str, Any] = {}
    for field in message.schema().fields:
        value = getattr(message, field.name)
        if field.name in SENDER_FIELDS - {"controller_epoch"}:
            value = node_id
        elif isinstance(field.type, ArrayOf) and isinstance(field.type.element, StructOf):
            if not value and field.name in ("topics", "partitions"):
                kind = field.type.element.message
                value = (Nonsense(Random(1), (), ())._message(kind, 0, flexible=True),)
            value = value and tuple(_renamed(item, node_id) for item in value)
        values[field.name] = value
    return type(message)(**values)


def is_refused(
    checked: PeerIdentities, caller: Caller, key: int, node_id: int, *, is_super: bool = True
) -> bool:
    """Return whether the gate of a listener refuses a request of a super user, or of another."""
    request = speaking_as(key, node_id)
    version = API[key].request.schema().versions.last
    settings = AccessSettings(
        frozenset({str(caller.principal)} if is_super else ()), allow_everyone=False
    )
    table = AccessTable(settings, MetadataImage, lambda: True)
    header = RequestHeader(key, version, 0, None, version in API[key].request.schema().flexible, 0)
    body = memoryview(encode_message(request, version))
    peer: Any = caller
    return ListenerGate(table, checked).refuse(peer, header, body) is not None


def test_each_field_that_names_a_sender_on_a_controllers_listener_is_checked() -> None:
    checked = CLAIMS.keys() | OF_CONTROLLERS | NAMED_ONLY
    for key in ON_LISTENERS:
        if SENDER_FIELDS & set(fields_of(API[key].request)):
            assert key in checked, API[key].request.__name__
    assert checked <= set(ON_LISTENERS)


@pytest.mark.parametrize("key", sorted(CLAIMS))
def test_a_request_is_taken_from_its_own_node_alone(key: int) -> None:
    checked = identities()
    own = [
        user(f"node-{VOTER}"),
        certificate(f"esker:node:{VOTER}"),
        certificate("quorum-1.example"),
    ]
    others = [
        user("ANONYMOUS"),
        user("ann"),
        user("node-2"),
        user("node-01"),
        user("node-"),
        user("xnode-1"),
        certificate(),
        certificate("esker:node:2", "quorum-1.example"),
        certificate("esker:node:01"),
        certificate("10.0.0.2"),
        certificate("*.example"),
        certificate("broker-11.example"),
    ]
    assert not [caller for caller in own if is_refused(checked, caller, key, VOTER)]
    assert all(is_refused(checked, caller, key, VOTER) for caller in others)
    assert checked.refused == {key: len(others)}


@pytest.mark.parametrize("key", ON_LISTENERS)
def test_each_api_of_a_controllers_listener_needs_cluster_action_before_an_identity(
    key: int,
) -> None:
    checked = identities()
    clients = (Caller(principal=ANONYMOUS), user("ann"))
    refused = [is_refused(checked, caller, key, VOTER, is_super=False) for caller in clients]
    assert refused == [key not in FREE and key not in GUARDS] * 2
    assert not checked.refused  # for lack of CLUSTER_ACTION


SPEAKS_AS_ITS_SENDER: Final = {
    1, 2, 52, 53, 54, 59, 62, 63, 67, 70, 1094, 1100, 1101, 1116, 1117, 1120, 1140,
}  # fmt: skip
FROM_VOTERS: Final = {1093, 1095, 1107}
FROM_NODES: Final = {
    58, 1096, 1102, 1103, 1104, 1121, 1122, 1124, 1125, 1126, 1127, 1130, 1141, 1142, 1143, 1144,
    1146, 1150,
}  # fmt: skip
NONE_A_CLIENT_ANOTHER_NODE_THE_RIGHT_ONE: Final = (
    Caller(principal=ANONYMOUS),
    user("ann"),
    user(f"node-{BROKER}"),
    user(f"node-{VOTER}"),
)


@pytest.mark.parametrize("key", ON_LISTENERS)
def test_each_api_refuses_those_of_four_super_users_that_are_not_the_node(key: int) -> None:
    checked = identities()
    refused = [
        is_refused(checked, caller, key, VOTER)
        for caller in NONE_A_CLIENT_ANOTHER_NODE_THE_RIGHT_ONE
    ]
    if key in SPEAKS_AS_ITS_SENDER | FROM_VOTERS:
        assert refused == [True, True, True, False]
    elif key in FROM_NODES:
        assert refused == [True, True, False, False]
    else:
        assert refused == [False] * 4


@pytest.mark.parametrize("key", sorted(OF_NODES))
def test_a_node_request_is_taken_from_every_voter_and_broker_and_from_no_other_peer(
    key: int,
) -> None:
    checked = identities()
    for caller in (
        user("node-11"),
        user("node-2"),
        certificate("esker:node:12"),
        certificate("10.0.0.2"),
        certificate("public.example"),
    ):
        assert not is_refused(checked, caller, key, 0)
    for caller in (
        user("node-99"),
        user("node-011"),
        user("ann"),
        certificate(),
        certificate("esker:node:99", "broker-11.example"),
        certificate("stranger.example"),
    ):
        assert is_refused(checked, caller, key, 0)


def test_a_broker_that_registers_is_a_node_from_then_on() -> None:
    brokers = [dict[int, Any]()]
    checked = PeerIdentities(
        IdentityMode.ENFORCE,
        Principal("User", "node-*"),
        VOTERS,
        lambda: brokers[0],
        lambda _field, _name: None,
    )
    assert is_refused(checked, certificate("broker-11.example"), 58, 0)
    brokers[0] = IMAGE_BROKERS
    assert not is_refused(checked, certificate("broker-11.example"), 58, 0)


@pytest.mark.parametrize("key", sorted(OWNED))
def test_a_request_of_an_owner_is_taken_from_the_broker_that_the_log_names(key: int) -> None:
    def refused(caller: Caller, name: str = "owned", epoch: int = 7) -> bool:
        request = SimpleNamespace(**{OWNED[key]: name, "ownership_epoch": epoch})
        return identities().refuses(caller, key, request)

    assert {"ownership_epoch", OWNED[key]} <= set(fields_of(API[key].request))
    assert not refused(user(f"node-{BROKER}"))
    for caller in (user("node-12"), user(f"node-{VOTER}"), certificate("broker-12.example")):
        assert refused(caller)
        assert not refused(caller, epoch=6)  # the decision refuses it, as one of a former owner
        assert not refused(caller, name="of nobody")


@pytest.mark.parametrize("key", sorted(OF_CONTROLLERS))
def test_a_controllers_call_is_taken_from_every_voter_and_from_no_other_peer(key: int) -> None:
    checked = identities()
    for caller in (user("node-2"), certificate("esker:node:1"), certificate("10.0.0.2")):
        assert not is_refused(checked, caller, key, 0)
    for caller in (user("node-11"), user("ann"), certificate("broker-11.example")):
        assert is_refused(checked, caller, key, 0)


@pytest.mark.parametrize("key", [52, 53, 54, 70])
def test_a_broker_may_not_send_the_requests_of_voters(key: int) -> None:
    for node_id in (BROKER, NEW, -1):
        assert is_refused(identities(), user(f"node-{node_id}"), key, node_id)


def test_a_registered_broker_is_known_by_each_host_that_it_registered() -> None:
    for host in REGISTERED[BROKER]:
        assert not is_refused(identities(), certificate(host), 63, BROKER)
    assert is_refused(identities(), certificate("broker-12.example"), 63, BROKER)


def registration(node_id: int, host: str) -> BrokerRegistrationRequest:
    request = speaking_as(62, node_id)
    listener = BrokerRegistrationRequest.Listener
    values = {name: getattr(request, name) for name in fields_of(BrokerRegistrationRequest)
              if hasattr(request, name)}  # fmt: skip
    listeners = (listener(name="A", host=host, port=1, security_protocol=0),) if host else ()
    return BrokerRegistrationRequest(**values | {"listeners": listeners})


@pytest.mark.parametrize(
    ("caller", "node_id", "host", "refused"),
    [
        (certificate("a.example"), NEW, "a.example", False),
        (certificate("a.example"), NEW, "b.example", True),
        (certificate("a.example"), NEW, "", True),
        (certificate("a.example"), BROKER, "a.example", True),  # it has another host
        (certificate("broker-11.example"), BROKER, "a.example", False),
        (certificate("a.example"), VOTER, "a.example", True),
        (user("node-99"), NEW, "b.example", False),
        (user("node-98"), NEW, "b.example", True),
        (user("ann"), NEW, "b.example", True),
    ],
)
def test_a_new_broker_registers_from_a_host_that_it_names(
    caller: Caller, node_id: int, host: str, refused: bool
) -> None:
    assert identities().refuses(caller, 62, registration(node_id, host)) is refused


def test_an_id_without_a_node_may_read_with_a_proven_name_only() -> None:
    assert not is_refused(identities(), certificate("new.example"), 1, NEW)
    assert not is_refused(identities(), user("broker"), 1, NEW)
    assert is_refused(identities(), Caller(principal=ANONYMOUS), 1, NEW)
    assert not is_refused(identities(), Caller(principal=ANONYMOUS), 1, -1)  # as a consumer


def test_a_fetch_of_an_old_version_names_its_replica_in_another_field() -> None:
    request = FetchRequest(replica_id=VOTER, max_wait_ms=0, min_bytes=0, topics=())
    assert identities().refuses(user("node-2"), 1, request)
    assert not identities().refuses(user("node-1"), 1, request)


def test_each_partition_of_a_vote_names_the_peer() -> None:
    topic = VoteRequest.TopicData

    def partition(node_id: int) -> Any:
        return topic.PartitionData(
            partition_index=0,
            replica_epoch=1,
            replica_id=node_id,
            last_offset_epoch=0,
            last_offset=0,
        )

    def refused(*topics: tuple[int, ...]) -> bool:
        parts = (tuple(map(partition, ids)) for ids in topics)
        request = VoteRequest(topics=tuple(topic(topic_name="t", partitions=ids) for ids in parts))
        return identities().refuses(user("node-1"), 52, request)

    assert not refused((1, 1), (1,))
    assert refused((1, 2))
    assert refused((1,), (2,))


def test_the_pattern_of_principals_has_a_type() -> None:
    group = Caller(principal=Principal("Group", "node-1"))
    assert is_refused(identities(), group, 52, VOTER)


def test_a_principal_of_the_pattern_without_a_node_id_is_no_node() -> None:
    caller = certificate("quorum-1.example", subject="node-operator")
    assert is_refused(identities(), caller, 52, VOTER)


def test_log_counts_and_logs_what_enforce_refuses_and_off_does_neither(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "esker.audit")
    for mode, line in (("off", ""), ("log", "would_deny"), ("enforce", "denied")):
        caplog.clear()
        checked = identities(mode)
        answers = [is_refused(checked, user("ann"), 52, VOTER) for _ in range(3)]
        assert answers == [mode == "enforce"] * 3
        assert checked.refused[52] == (0 if mode == "off" else 3)
        assert len(caplog.messages) == (0 if mode == "off" else 1)
        assert all(f"decision={line} principal='User:ann'" in text for text in caplog.messages)
    (family,) = checked.metrics()
    (sample,) = family.samples
    assert (sample.labels, sample.value) == ({"api_key": "52", "refused": "yes"}, 3)


def test_the_log_of_refusals_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LOGGED", 3)
    checked = identities()
    for number in range(20):
        assert is_refused(checked, user(f"ann-{number}"), 52, VOTER)
        assert len(checked._logged) <= 3


def test_the_pattern_of_principals_may_end_with_more_than_the_id() -> None:
    checked = identities(pattern="CN=node-*,O=quorum")
    assert not is_refused(checked, user("CN=node-1,O=quorum"), 52, VOTER)
    assert is_refused(checked, user("CN=node-1,O=other"), 52, VOTER)
    assert is_refused(checked, user("node-1"), 52, VOTER)


def test_a_certificates_names_are_its_hosts_and_the_uris_of_nodes() -> None:
    issued = Authority().issue(
        "x", hosts=("A.Example", "::1", "10.0.0.1", "*.b", "esker:node:7", "esker:other")
    )
    assert isinstance(issued.certificate, x509.Certificate)
    assert names_of(issued.certificate) == {"a.example", "::1", "10.0.0.1", "esker:node:7"}
