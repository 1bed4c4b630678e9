"""OAUTHBEARER at the gate of a listener: its messages, its refusals, and its sessions' ends."""

from __future__ import annotations

import pytest

from raft.net.authentication import SaslGate
from raft.net.errors import NetError, Reason
from raft.net.oauthbearer import MAX_MESSAGE, OauthError, TokenError, ValidToken, parse_first
from raft.net.principal import ANONYMOUS, Principal
from raft.net.sasl import ServerMechanisms
from records.rpc.cluster import MetadataRequest
from records.rpc.security import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.raft.net.oauth_world import first_message
from tests.raft.net.sasl_world import World, frame_of

METADATA = frame_of(MetadataRequest(topics=None), 1)
LIFETIMES = {"alice": 10_000, "bob": 10_000, "brief": 1_000}


def check(token):
    if token not in LIFETIMES:
        raise TokenError("it has expired")
    return ValidToken("bob" if token == "bob" else "alice", LIFETIMES[token])


def world_of(lifetime_ms=0):
    return World(
        lifetime_ms,
        enabled=("OAUTHBEARER",),
        gate=SaslGate,
        new_mechanisms=lambda **given: ServerMechanisms(**given, check_token=check),
    )


def shake(world):
    assert world.ask(SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1).error_code == 0


def send(world, data):
    return world.ask(SaslAuthenticateRequest(auth_bytes=data), 2)


def authenticate(world, text, authorization_id=""):
    shake(world)
    return send(world, first_message(text, authorization_id))


@pytest.mark.parametrize("authorization_id", ["", "alice"])
def test_a_valid_token_authenticates_its_user(authorization_id):
    world = world_of()
    answer = authenticate(world, "alice", authorization_id)
    assert (answer.error_code, bytes(answer.auth_bytes)) == (0, b"")
    assert world.connection.principal == Principal("User", "alice")
    assert world.send(METADATA) == b"handled"


@pytest.mark.parametrize("reply", [b"\x01", b"", first_message("alice")])
def test_a_refused_token_is_answered_in_json_and_then_with_code_58(reply):
    world = world_of()
    answer = authenticate(world, "expired")
    assert (answer.error_code, bytes(answer.auth_bytes)) == (0, b'{"status":"invalid_token"}')
    assert world.connection.principal == ANONYMOUS
    refused = send(world, reply)
    assert (refused.error_code, refused.error_message) == (58, '{"status":"invalid_token"}')
    assert world.connection.close_reason[0] is Reason.AUTHENTICATION_FAILED
    assert "it has expired" in world.connection.close_reason[1]
    assert world.gate.outcomes == {("OAUTHBEARER", False): 1}


def test_a_request_after_a_refused_token_is_not_handled():
    world = world_of()
    authenticate(world, "expired")
    with pytest.raises(NetError):
        world.send(METADATA)
    assert world.handled == []


def test_another_users_authorization_id_is_refused():
    world = world_of()
    assert authenticate(world, "alice", "root").error_code == 58
    assert world.connection.principal == ANONYMOUS


@pytest.mark.parametrize(
    ("listener_ms", "token", "session_ms"),
    [(0, "alice", 10_000), (5_000, "alice", 5_000), (5_000, "brief", 1_000)],
)
def test_a_session_ends_with_its_token_or_earlier_with_the_listeners_limit(
    listener_ms, token, session_ms
):
    world = world_of(listener_ms)
    assert authenticate(world, token).session_lifetime_ms == session_ms
    world.now = session_ms / 1_000
    assert world.send(METADATA) == b"handled"
    world.now += 0.001
    with pytest.raises(NetError) as ended:
        world.send(METADATA)
    assert ended.value.reason is Reason.EXPIRED


def test_a_new_token_of_the_same_user_prolongs_the_session():
    world = world_of()
    authenticate(world, "brief")
    world.now = 0.9
    assert authenticate(world, "alice").session_lifetime_ms == 10_000
    world.now = 10.8
    assert world.send(METADATA) == b"handled"


@pytest.mark.parametrize("other", ["bob", "expired"])
def test_reauthentication_with_anothers_or_a_refused_token_ends_the_connection(other):
    world = world_of()
    authenticate(world, "alice")
    answer = authenticate(world, other)
    if other == "expired":
        answer = send(world, b"\x01")
    assert answer.error_code == 58
    assert world.connection.close_reason[0] is Reason.AUTHENTICATION_FAILED


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        b"\0alice\0secret",
        b"n,,\x01\x01",
        b"n,,auth=Bearer t\x01\x01",
        b"n,,\x01auth=Bearer t\x01",
        b"n,,\x01auth=Bearer t",
        b"n,,\x01auth=Basic t\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01auth=Bearer t\x01auth=Bearer u\x01\x01",
        b"n,,\x01auth=Bearer t\x01x\x01\x01",
        b"p=tls-unique,,\x01auth=Bearer t\x01\x01",
        b"n,a=\xff,\x01auth=Bearer t\x01\x01",
        b"n,,\x01auth=Bearer " + b"t" * MAX_MESSAGE + b"\x01\x01",
    ],
)
def test_a_malformed_first_message_is_refused_at_once(data):
    with pytest.raises(OauthError):
        parse_first(data)
    world = world_of()
    shake(world)
    assert send(world, data).error_code == 58
    assert world.connection.closed


def test_a_first_message_may_have_extensions_and_a_quoted_authorization_id():
    first = parse_first(b"n,a=x=2Cy=3D,\x01auth=bearer t.o-k_e.n\x01traceId=1 2\x01\x01")
    assert (first.authorization_id, first.token) == ("x,y=", "t.o-k_e.n")
    assert "t.o-k_e.n" not in repr(first)
