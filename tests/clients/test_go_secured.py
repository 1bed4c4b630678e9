"""franz-go over TLS and SASL: right and wrong in each way, and authenticated anew under load."""

from __future__ import annotations

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Final

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.clients.secured import NODE, PASSWORD, PROTOCOLS, USER, SecuredNode
from tests.clients.test_go_clients import build_go
from tests.clients.test_sessions import Account, rdkafka
from tests.pki import Authority
from tests.raft.net.oauth_world import AUDIENCE, FOREIGN_KEY, ISSUER, token, write_jwks
from tests.waiting import wait_until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS: Final = ("PLAIN", *SCRAM, "OAUTHBEARER")
SESSION_S: Final = 2
RUN_S: Final = 240  # a record takes 100 ms on a busy machine
WAYS: Final = [("SSL", "")] + [
    (protocol, mechanism)
    for protocol in PROTOCOLS
    if protocol.startswith("SASL")
    for mechanism in MECHANISMS
]


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    home = tmp_path_factory.mktemp("go-secured")
    users = [
        word
        for mechanism in SCRAM
        for word in ("--add-scram", f"{mechanism}=[name=bob,password=bobs-secret]")
    ]
    more = (
        f"sasl.oauthbearer.jwks.endpoint.url={write_jwks(home / 'jwks.json')}\n"
        f"sasl.oauthbearer.expected.audience={AUDIENCE}\n"
        f"sasl.oauthbearer.expected.issuer={ISSUER}\n"
        f"connections.max.reauth.ms={SESSION_S * 1_000}\n"
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
        f"super.users=User:{NODE};User:{USER};User:bob;User:CN=client,O=Esker\n"
    )
    with SecuredNode(home, MECHANISMS, more, format_options=tuple(users)) as started:
        made = started.run("topics", "create", "t", config=started.command_config("SASL_SSL"))
        assert made.returncode == 0, made.stderr
        yield started


@pytest.fixture(scope="module")
def program():
    return build_go("secured", "build", package="./secured")


def secret_of(mechanism: str) -> tuple[str, str]:
    if mechanism in SCRAM:
        return "bob", "bobs-secret"
    return USER, PASSWORD if mechanism == "PLAIN" else token()


def run_go(program, node, way, secret, certificate, records=1) -> str:
    """Run the producer; return what it prints, or an empty text if it runs too long."""
    protocol, mechanism = way
    words = (node.address(protocol), protocol, mechanism, *secret, node.ca_file, certificate)
    try:
        return subprocess.run(
            [program, *map(str, words), "t", str(records)],
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        ).stdout
    except subprocess.TimeoutExpired:
        return ""


@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_a_franz_go_producer_is_admitted_with_the_right_secret_alone(node, program, way, tmp_path):
    right = secret_of(way[1])
    wrong = (right[0], token(FOREIGN_KEY) if way[1] == "OAUTHBEARER" else "wrong")
    certificate = node.client_file if way == ("SSL", "") else ""
    assert run_go(program, node, way, right, certificate) == "acknowledged 1\n"
    if way[1]:
        assert "acknowledged" not in run_go(program, node, way, wrong, "")
        if way[1] == "OAUTHBEARER":
            expired_token = token(exp=int(time.time()) - 60)
            assert "acknowledged" not in run_go(program, node, way, (USER, expired_token), "")
        return
    expired = node.ca.issue("old", valid=timedelta(minutes=-1)).write(tmp_path / "expired.pem")
    foreign = Authority("stranger").issue("client").write(tmp_path / "foreign.pem")
    for bad in (expired, foreign, ""):
        assert "acknowledged" not in run_go(program, node, way, right, bad)


@pytest.mark.parametrize("way", WAYS[1:], ids="-".join)
def test_a_franz_go_producer_authenticates_anew_under_load(node, program, way):
    count = SESSION_S * 3 * 100  # a record takes 10 ms and more
    printed = run_go(program, node, way, secret_of(way[1]), "", count)
    assert printed == f"acknowledged {count}\n"


@pytest.mark.parametrize("protocol", PROTOCOLS[1:])
def test_a_franz_go_producer_ends_when_its_user_is_deleted(node, program, protocol):
    account = Account(node, (protocol, "SCRAM-SHA-512"), "carol")
    way, secret = (protocol, account.mechanism), (account.name, account.password)
    with ThreadPoolExecutor(1) as pool:
        before = written(node)
        printed = pool.submit(run_go, program, node, way, secret, "", 1_000_000)
        wait_until(lambda: written(node) > before + 10, "the producer writes")
        account.end()
        assert printed.result().startswith("failed:")


def written(node) -> int:
    """Return the end offset of the topic."""
    consumer = Consumer(rdkafka(node, "PLAIN", USER, PASSWORD) | {"group.id": "none"})
    try:
        end: int = consumer.get_watermark_offsets(TopicPartition("t", 0), timeout=60)[1]
        return end
    finally:
        consumer.close()
