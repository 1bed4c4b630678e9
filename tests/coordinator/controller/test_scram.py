"""SCRAM credentials of users: stored as verifiers, described, removed, and refused with reasons."""

from __future__ import annotations

import base64

from diskless.apis.security import describe_scram
from raft.net.scram import SHA_256, SHA_512, ScramClient, ScramCredential, ScramServer
from records.kafka_errors import ErrorCode
from records.rpc import security as rpc
from tests.coordinator.controller.world import World, records_of

ASK = rpc.AlterUserScramCredentialsRequest
DESCRIBE = rpc.DescribeUserScramCredentialsRequest
SALT = base64.b64decode("eDhpN21pdzVnY2o0bDNhZmpwcDd4NHpuNA==")


def leading() -> World:
    world = World()
    world.elect()
    return world


def upsert(name="alice", mechanism=1, iterations=4096, salt=SALT, salted=None, password="x"):
    if salted is None:
        scram = SHA_256 if mechanism == 1 else SHA_512
        salted = scram.salt_password(password, salt, iterations)
    return ASK.ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=salted
    )


def remove(name="alice", mechanism=1):
    return ASK.ScramCredentialDeletion(name=name, mechanism=mechanism)


def alter(world, *upsertions, deletions=()):
    results = world.ask(ASK(deletions=deletions, upsertions=upsertions)).results
    return {result.user: result.error_code for result in results}


def test_the_controller_stores_the_scram_credential_that_kafkas_format_tool_writes():
    # The record of tests/data/kafka/dump.json: alice, alice-secret, 4096 iterations.
    world = leading()
    assert alter(world, upsert(password="alice-secret")) == {"alice": 0}
    record = world.image.security.scrams["alice", 1]
    assert base64.b64encode(record.stored_key) == b"/fVqjHQQvGBPRWbsyWQ2sbUCj9/sex46C9SX/4OUwIM="
    assert base64.b64encode(record.server_key) == b"yfOZzThsAdl59uzgVzZsvGywsvKqvHf6PFP8zG1k344="


def test_a_user_can_authenticate_until_the_users_scram_credential_is_removed():
    world = leading()
    alter(world, upsert(password="secret", mechanism=2))
    record = world.image.security.scrams["alice", 2]
    credential = ScramCredential(
        salt=record.salt,
        iterations=record.iterations,
        stored_key=record.stored_key,
        server_key=record.server_key,
    )
    server = ScramServer(SHA_512, {"alice": credential}.get, unknown_salt_key=b"")
    client = ScramClient(SHA_512, "alice", "secret")
    client.verify(server.final(client.final(server.first(client.first()))))
    assert alter(world, deletions=(remove(mechanism=2),)) == {"alice": 0}
    assert ("alice", 2) not in world.image.security.scrams


def test_a_refused_scram_credential_gets_kafkas_code_and_does_not_affect_other_users():
    world = leading()
    before = len(records_of(world.image))
    changes = (
        upsert("few", iterations=4095),
        upsert("many", iterations=16385),
        upsert("unknown", mechanism=9),
        upsert("short", salted=b"p"),
        upsert("unsalted", salt=b""),
        upsert("twice"),
        upsert(""),
        upsert("long" * 300),
        upsert("good"),
    )
    answer = alter(world, *changes, deletions=(remove("twice"), remove("gone"), remove("bad", 9)))
    unacceptable = ErrorCode.UNACCEPTABLE_CREDENTIAL
    assert answer == {
        "few": unacceptable,
        "many": unacceptable,
        "unknown": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        "short": unacceptable,
        "unsalted": unacceptable,
        "twice": ErrorCode.DUPLICATE_RESOURCE,
        "": unacceptable,
        "long" * 300: unacceptable,
        "good": 0,
        "gone": ErrorCode.RESOURCE_NOT_FOUND,
        "bad": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
    }
    assert len(records_of(world.image)) == before + 1


def test_the_controller_refuses_a_request_with_too_many_scram_credentials_as_a_whole():
    world = leading()
    answer = alter(world, deletions=(remove(),) * 10_001)
    assert answer == {"alice": ErrorCode.POLICY_VIOLATION}


def test_describe_scram_returns_mechanisms_and_iterations_of_users_without_verifiers():
    world = leading()
    alter(world, upsert("ann"), upsert("bob", mechanism=2, iterations=8192))
    every = describe_scram(DESCRIBE(users=None), world.image).results
    assert {one.user: one.credential_infos[0].iterations for one in every} == {
        "ann": 4096,
        "bob": 8192,
    }
    names = tuple(DESCRIBE.UserName(name=name) for name in ("bob", "eve", "ann", "ann"))
    results = describe_scram(DESCRIBE(users=names), world.image).results
    assert [(one.user, one.error_code) for one in results] == [
        ("bob", 0),
        ("eve", ErrorCode.RESOURCE_NOT_FOUND),
        ("ann", ErrorCode.DUPLICATE_RESOURCE),
    ]
    many = describe_scram(DESCRIBE(users=names[:1] * 10_001), world.image)
    assert many.error_code == ErrorCode.POLICY_VIOLATION
