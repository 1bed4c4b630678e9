"""The gate of a SASL listener, frame by frame, on a clock that the test turns."""

from __future__ import annotations

import pytest

from raft.net.authentication import SaslGate, State
from raft.net.errors import BadHeaderError, NetError, Reason
from raft.net.principal import ANONYMOUS, Principal
from raft.net.sasl import ServerMechanisms
from records.rpc.cluster import ApiVersionsRequest, MetadataRequest
from records.rpc.security import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.raft.net.sasl_world import METADATA_KEY, PASSWORD, USER, World, frame_of, scram_first

METADATA = frame_of(MetadataRequest(topics=None), 1)
VERSIONS = frame_of(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3)
ALICE = Principal("User", USER)


def shake(world, mechanism="PLAIN", version=1):
    return world.ask(SaslHandshakeRequest(mechanism=mechanism), version)


def plain(world, user=USER, password=PASSWORD, version=2):
    data = f"\0{user}\0{password}".encode()
    return world.ask(SaslAuthenticateRequest(auth_bytes=data), version)


def let_in(world):
    assert shake(world).error_code == 0
    assert plain(world).error_code == 0
    return world


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_listener_handles_requests_once_their_user_is_authenticated(version):
    world = World()
    assert world.send(VERSIONS) == b"handled"
    shaken = shake(world)
    assert (shaken.error_code, shaken.mechanisms) == (0, ("PLAIN", "SCRAM-SHA-256"))
    answer = plain(world, version=version)
    assert (answer.error_code, answer.session_lifetime_ms) == (0, 0)
    assert world.connection.principal == ALICE
    assert world.connection.allowed == 1_000_000
    assert world.send(METADATA) == b"handled"
    assert world.handled == [18, METADATA_KEY]


def test_bare_sasl_bytes_after_a_handshake_of_version_0_authenticate_a_user():
    world = World()
    assert shake(world, "SCRAM-SHA-256", version=0).error_code == 0
    client, first = scram_first()
    final = client.final(world.send(first))
    client.verify(world.send(final))
    assert world.connection.principal == ALICE


def requests_before_authentication(world):
    """Yield what a stranger sends, in each state of an authentication."""
    yield world.send, METADATA
    shake(world)
    yield world.send, METADATA
    yield world.send, VERSIONS


def test_a_listener_handles_no_request_before_authentication_in_any_state():
    for count in range(3):
        world = World()
        steps = requests_before_authentication(world)
        for _ in range(count):
            next(steps)
        send, frame = next(steps)
        with pytest.raises(BadHeaderError):
            send(frame)
        assert world.handled == []
        assert world.connection.principal == ANONYMOUS


def test_a_connection_may_ask_for_api_versions_a_bounded_number_of_times():
    world = World()
    for _ in range(16):
        world.send(VERSIONS)
    with pytest.raises(BadHeaderError):
        world.send(VERSIONS)


@pytest.mark.parametrize(("mechanism", "code"), [("GSSAPI", 33), ("SCRAM-SHA-512", 33), ("", 33)])
def test_a_listener_answers_a_handshake_for_a_disabled_mechanism_and_closes_the_connection(
    mechanism, code
):
    world = World()
    assert shake(world, mechanism).error_code == code
    assert world.connection.close_reason[0] is Reason.AUTHENTICATION_FAILED
    assert world.send(METADATA) is None
    assert world.handled == []


def test_a_listener_answers_wrong_credentials_with_code_58_and_closes_the_connection():
    world = World()
    shake(world)
    answer = plain(world, password="wrong")
    assert (answer.error_code, bytes(answer.auth_bytes)) == (58, b"")
    assert world.connection.close_reason[0] is Reason.AUTHENTICATION_FAILED
    assert world.gate.outcomes == {("PLAIN", False): 1}
    assert world.connection.authentication.state is State.FAILED


def test_a_listener_refuses_sasl_bytes_without_a_handshake_with_illegal_sasl_state():
    assert plain(World()).error_code == 34


def test_an_expired_session_closes_its_connection_unless_the_client_reauthenticated():
    world = World(lifetime_ms=1_000)
    shake(world)
    assert plain(world).session_lifetime_ms == 1_000
    world.now = 0.9
    let_in(world)
    world.now = 1.8
    assert world.send(METADATA) == b"handled"
    world.now = 2.0
    with pytest.raises(NetError) as ended:
        world.send(METADATA)
    assert ended.value.reason is Reason.EXPIRED


def test_a_client_with_an_expired_session_may_reauthenticate():
    world = let_in(World(lifetime_ms=1_000))
    world.now = 5.0
    let_in(world)
    assert world.send(METADATA) == b"handled"


def test_a_listener_refuses_a_reauthentication_as_another_user():
    world = World(new_mechanisms=two_users)
    let_in(world)
    shake(world)
    assert plain(world, user="bob").error_code == 58
    assert world.connection.close_reason[0] is Reason.AUTHENTICATION_FAILED


def test_a_listener_refuses_a_reauthentication_by_another_mechanism():
    world = let_in(World())
    assert shake(world, "SCRAM-SHA-256").error_code == 33


def test_a_listener_handles_no_request_during_a_reauthentication():
    world = let_in(World())
    shake(world)
    with pytest.raises(BadHeaderError):
        world.send(METADATA)


def two_users(**settings):
    users = {USER: PASSWORD, "bob": PASSWORD}
    return ServerMechanisms(**{**settings, "plain_users": users})


# --- mutants -------------------------------------------------------------------------------------


class OpenGate(SaslGate):
    """Handles every request, authenticated or not."""

    def handle(self, connection, frame):
        key = int.from_bytes(frame[:2], "big")
        return (
            super().handle(connection, frame)
            if key in (17, 36)
            else self._handle(connection, frame)
        )


class ForgetfulGate(SaslGate):
    """Lets a re-authentication change the user."""

    def _check_same(self, connection, session, outcome):
        pass


def test_the_sasl_gate_tests_catch_a_mutant_that_handles_unauthenticated_requests(monkeypatch):
    monkeypatch.setattr(World.__init__, "__defaults__", (0, ("PLAIN",), OpenGate, ServerMechanisms))
    with pytest.raises(pytest.fail.Exception):
        test_a_listener_handles_no_request_before_authentication_in_any_state()


def test_the_sasl_gate_tests_catch_a_mutant_that_lets_a_session_change_its_user(monkeypatch):
    monkeypatch.setattr(
        World.__init__, "__defaults__", (0, ("PLAIN",), ForgetfulGate, ServerMechanisms)
    )
    with pytest.raises(AssertionError):
        test_a_listener_refuses_a_reauthentication_as_another_user()
