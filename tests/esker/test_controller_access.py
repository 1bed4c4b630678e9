"""Access control of controllers: Envelopes decided by the client in them, and nodes' requests."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, Final

import msgspec
import pytest

from coordinator.controller.access import AccessSettings, AccessTable, Client
from coordinator.controller.client import error_codes
from coordinator.controller.envelope import unwrap, wrap
from coordinator.controller.guards import GUARDS
from coordinator.controller.mutation_quotas import MutationQuotas, MutationWindow
from coordinator.controller.requests import SERVED
from coordinator.controller.service import FORWARDABLE, ControllerService
from esker.server.listener_gate import FREE, ListenerGate
from raft.driver.peers import OUR_VERSIONS
from raft.net.header import RequestHeader
from raft.net.principal import Principal
from records.codec import decode_message, encode_message
from records.kafka_errors import ErrorCode as E
from records.rpc import API, topics
from records.rpc.brokers import BrokerRegistrationRequest
from records.rpc.security import CreateAclsRequest
from tests.coordinator.controller.test_acls import ENTRY
from tests.coordinator.controller.world import World
from tests.diskless.calling import Caller, call
from tests.diskless.nonsense import Nonsense
from tests.interop.quota_table import alter

ADMIN, ANN, NODE = (Principal("User", name) for name in ("admin", "ann", "node"))
HOST: Final = "10.0.0.9"


class Controller:
    """A controller with an authorizer, and what is sent to its listener."""

    def __init__(self, *, has_authorizer: bool = True) -> None:
        self.world = World()
        self.world.elect()
        self.table = AccessTable(
            AccessSettings(frozenset({str(ADMIN)}), allow_everyone=False),
            lambda: self.world.image,
            lambda: True,
        )
        self.handlers = ControllerService(
            self._ask,
            image=lambda: self.world.image,
            find_log=lambda *_: None,
            endpoint=lambda _: None,
            node_id=1,
            access=self.table if has_authorizer else None,
            mutations=MutationQuotas(
                MutationWindow(2, 1),
                image=lambda: self.world.image,
                monotonic_ms=lambda: self.world.monotonic_ms,
            ),
        ).handlers

    def _ask(self, request: Any, send: Any, _: Any, charge: Any) -> None:
        self.world.requests.ask(request, send, None, charge)
        self.world.run()

    def allow(self, principal: Principal, operation: int, kind: int, name: str, host: str) -> None:
        entry = ENTRY | {
            "principal": str(principal),
            "operation": operation,
            "resource_type": kind,
            "resource_name": name,
            "host": host,
        }
        creation = CreateAclsRequest.AclCreation(**entry)
        answer = self.world.ask(CreateAclsRequest(creations=(creation,)))
        assert not answer.results[0].error_code, answer

    def ask(self, request: Any, principal: Principal = ADMIN, version: int | None = None) -> Any:
        key = request.schema().key
        version = request.schema().versions.last if version is None else version
        caller = Caller(principal=principal)
        return asyncio.run(call(self.handlers, request, API[key].response, version, caller=caller))

    def forward(self, request: Any, principal: Principal = ANN, **more: Any) -> Any:
        """Send a request in an envelope; return its response, or the envelope's error."""
        version = request.schema().versions.last
        envelope = wrap(request, version, Client(principal, HOST))
        answer = self.ask(msgspec.structs.replace(envelope, **more))  # type: ignore[type-var]
        if answer.error_code:
            assert answer.response_data is None
            return E(answer.error_code)
        data = bytes(answer.response_data)
        assert data[:5] == bytes(5)  # the correlation id, no tagged fields
        return decode_message(API[request.schema().key].response, data[5:], version)


def creation(*names: str) -> topics.CreateTopicsRequest:
    topic = topics.CreateTopicsRequest.CreatableTopic
    return topics.CreateTopicsRequest(
        topics=tuple(
            topic(name=name, num_partitions=1, replication_factor=-1, assignments=(), configs=())
            for name in names
        ),
        timeout_ms=1_000,
        validate_only=True,
    )


def codes(answer: topics.CreateTopicsResponse) -> dict[str, int]:
    return {topic.name: topic.error_code for topic in answer.topics}


def test_a_forwarded_request_is_decided_by_its_client_and_not_by_the_broker() -> None:
    controller = Controller()
    denied = E.TOPIC_AUTHORIZATION_FAILED
    assert codes(controller.forward(creation("a", "b"))) == {"a": denied, "b": denied}
    controller.allow(ANN, 5, 2, "a", HOST)
    controller.allow(ANN, 5, 2, "b", "10.0.0.7")  # the broker's address
    answer = codes(controller.forward(creation("a", "b")))
    assert answer["a"] != denied
    assert answer["b"] == denied
    assert denied not in codes(controller.forward(creation("a", "b"), ADMIN)).values()


def test_a_request_that_is_not_forwarded_is_decided_by_its_sender() -> None:
    controller = Controller()
    assert set(codes(controller.ask(creation("a"), ANN)).values()) == {29}
    assert set(codes(controller.ask(creation("a"), ADMIN)).values()) != {29}


def test_entries_need_alter_of_the_cluster_and_an_authorizer() -> None:
    request = CreateAclsRequest(creations=(CreateAclsRequest.AclCreation(**ENTRY),))
    controller = Controller()
    assert controller.forward(request).results[0].error_code == E.CLUSTER_AUTHORIZATION_FAILED
    assert controller.forward(request, ADMIN).results[0].error_code == 0
    controller.allow(ANN, 7, 4, "kafka-cluster", "*")
    assert controller.forward(request).results[0].error_code == 0
    without = Controller(has_authorizer=False)
    assert without.forward(request).results[0].error_code == E.SECURITY_DISABLED
    assert set(codes(without.forward(creation("a"))).values()) != {29}


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("request_principal", b"", E.PRINCIPAL_DESERIALIZATION_FAILURE),
        ("request_principal", None, E.PRINCIPAL_DESERIALIZATION_FAILURE),
        ("request_principal", b"\0\0\x05User", E.PRINCIPAL_DESERIALIZATION_FAILURE),
        ("request_principal", b"\0\1", E.PRINCIPAL_DESERIALIZATION_FAILURE),
        ("request_principal", bytes(100_000), E.PRINCIPAL_DESERIALIZATION_FAILURE),
        ("client_host_address", b"", E.INVALID_REQUEST),
        ("client_host_address", bytes(5), E.INVALID_REQUEST),
        ("request_data", b"", E.UNSUPPORTED_VERSION),
        ("request_data", bytes.fromhex("0013 0007"), E.UNSUPPORTED_VERSION),
        ("request_data", bytes.fromhex("0013 0063 00000000 0000 00"), E.UNSUPPORTED_VERSION),
        ("request_data", bytes.fromhex("0013 0007 00000000 0000 00 ffff"), E.UNSUPPORTED_VERSION),
        ("request_data", bytes.fromhex("003a 0000 00000000 0000 00"), E.INVALID_REQUEST),
        ("request_data", bytes.fromhex("0034 0000 00000000 0000 00"), E.INVALID_REQUEST),
    ],
)
def test_a_malformed_envelope_is_refused_with_kafkas_code_and_its_connection_lives(
    field: str, value: bytes | None, error: E
) -> None:
    assert Controller().forward(creation("a"), **{field: value}) == error


def test_an_envelope_says_itself_that_its_node_is_not_the_controller() -> None:
    controller = Controller()
    controller.world.depose()
    assert controller.forward(creation("a"), ADMIN) == E.NOT_CONTROLLER


def test_an_envelope_has_the_bytes_of_kafkas_principal() -> None:
    envelope = wrap(creation("a"), 7, Client(ANN, "0:0:0:0:0:0:0:1"))
    assert bytes(envelope.request_principal or b"") == b"\0\0\x05User\x04ann\0\0"
    assert bytes(envelope.client_host_address) == bytes(15) + b"\1"
    forwarded = unwrap(envelope, FORWARDABLE)
    assert forwarded.client == Client(ANN, "0:0:0:0:0:0:0:1", "", 7)
    assert forwarded.header.api_key == 19


def test_an_envelope_has_the_clients_id_and_the_version_that_the_client_sent() -> None:
    """By them the controller finds the client's quota, and what the client knows of it."""
    client = Client(ANN, "10.0.0.7", "app", 4)
    forwarded = unwrap(wrap(creation("a"), 7, client), FORWARDABLE)
    assert forwarded.client == client
    assert forwarded.header.api_version == 7


def test_a_forwarded_request_is_charged_to_its_client_and_not_to_the_broker() -> None:
    controller = Controller(has_authorizer=False)
    controller.world.register(1)
    controller.world.ask(alter(((("user", "ann"),), (("controller_mutation_rate", 0.4),))))
    assert codes(controller.forward(creation("a"))) == {"a": 0}
    answer = controller.forward(creation("b"))
    assert codes(answer) == {"b": E.THROTTLING_QUOTA_EXCEEDED}
    assert answer.throttle_time_ms == 500
    assert codes(controller.forward(creation("b"), NODE)) == {"b": 0}
    assert codes(controller.ask(creation("b"), ANN)) == {"b": E.THROTTLING_QUOTA_EXCEEDED}
    assert codes(controller.ask(creation("b"), ANN, 5)) == {"b": 0}, "an old client, which waits"


# --- the listener -------------------------------------------------------------------------------

FIRST_OF_OURS: Final = 1_000
ON_LISTENERS: Final = sorted(
    {*OUR_VERSIONS, 10, 58, *(key for key in API if key >= FIRST_OF_OURS)}
    | {kind.schema().key or 0 for kind in SERVED}
)


def is_refused(controller: Controller, principal: Principal, key: int) -> bool:
    """Return whether the listener's gate refuses a request of an API, with a response."""
    schema = API[key].request.schema()
    version = schema.versions.last
    request = Nonsense(Random(key), (), ()).request(API[key].request, version)
    header = RequestHeader(key, version, 0, None, version in schema.flexible, 0)
    body = memoryview(encode_message(request, version))
    caller: Any = Caller(principal=principal)
    answer = ListenerGate(controller.table).refuse(caller, header, body)
    if answer is None:
        return False
    head = 5 if version in schema.flexible else 4
    response = decode_message(API[key].response, b"".join(map(bytes, answer))[head:], version)
    assert error_codes(response) <= {0, E.CLUSTER_AUTHORIZATION_FAILED}, response
    return True


def test_each_request_on_a_controllers_listener_is_refused_to_a_stranger() -> None:
    controller = Controller()
    passed = {key for key in ON_LISTENERS if not is_refused(controller, ANN, key)}
    assert passed == {18} | (GUARDS.keys() & set(ON_LISTENERS))
    assert FREE - {18} == {17, 36}  # the gate of SASL answers these


def test_a_node_with_cluster_action_may_send_all_requests_of_nodes() -> None:
    controller = Controller()
    controller.allow(NODE, 9, 4, "kafka-cluster", "*")
    assert not [key for key in ON_LISTENERS if is_refused(controller, NODE, key)]
    assert is_refused(controller, ANN, BrokerRegistrationRequest.schema().key or 0)


@pytest.mark.parametrize(("operation", "allowed"), [(8, {10, 55, 1105}), (7, {60, 1108, 10, 55})])
def test_a_client_may_ask_a_controller_what_its_operation_allows(
    operation: int, allowed: set[int]
) -> None:
    controller = Controller()
    controller.allow(ANN, operation, 4, "kafka-cluster", "*")
    passed = {key for key in ON_LISTENERS if not is_refused(controller, ANN, key)}
    assert allowed <= passed
    assert not passed & {1, 52, 53, 54, 58, 59, 62, 63, 67, 70, 1091, 1099}
