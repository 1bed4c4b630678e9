"""Real clients that authenticate by tokens (OAUTHBEARER) on a node with the issuer's keys."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from spark_jobs.topics.coordinates import CoordinatesError
from tests.benches import printed
from tests.clients.secured import NODE, SecuredNode
from tests.clients.steady_load import Load, read_all
from tests.interop.conftest import kafka, kafka_release, written_by_kafka
from tests.interop.kafka_run import ToolFailedError
from tests.raft.net.oauth_world import AUDIENCE, FOREIGN_KEY, ISSUER, token, write_jwks
from tests.waiting import wait_until

__all__ = ["kafka", "kafka_release", "written_by_kafka"]

pytestmark = pytest.mark.slow

MECHANISM = "OAUTHBEARER"
SKEW_S = 2
NODE_TOKEN_S = 20  # of tokens in a node's file, which is renewed each second


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    home = tmp_path_factory.mktemp("oauth")
    own = home / "node-token"  # with this one the node connects to its own controller
    ends = threading.Event()

    def renew() -> None:
        while not ends.wait(1):
            new = own.with_suffix(".new")
            new.write_text(token(sub=NODE, exp=int(time.time()) + NODE_TOKEN_S))
            new.replace(own)

    renewing = threading.Thread(target=renew, daemon=True)
    renewing.start()
    more = (
        f"sasl.oauthbearer.jwks.endpoint.url={write_jwks(home / 'jwks.json')}\n"
        f"sasl.oauthbearer.expected.audience={AUDIENCE}\n"
        f"sasl.oauthbearer.expected.issuer={ISSUER}\n"
        f"sasl.oauthbearer.clock.skew.seconds={SKEW_S}\n"
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
        "super.users=User:alice;User:node-1\n"
    )
    with SecuredNode(home, ("PLAIN", MECHANISM), more, token_file=own) as started:
        made = started.run("topics", "create", "t", config=started.command_config("SASL_SSL"))
        assert made.returncode == 0, made.stderr
        try:
            yield started
        finally:
            ends.set()
            renewing.join()


def librdkafka_config(node, new_token, protocol="SASL_SSL"):
    return {
        "bootstrap.servers": node.address(protocol),
        "security.protocol": protocol.lower(),
        "ssl.ca.location": str(node.ca_file),
        "sasl.mechanism": MECHANISM,
        "oauth_cb": new_token,
        "log_level": 0,
    }


def librdkafka(node, protocol: str, text: str, timeout_s: float) -> set[str]:
    """The topics that librdkafka lists with a token."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    admin = AdminClient(librdkafka_config(node, lambda _: (text, time.time() + 600), protocol))
    admin.poll(0)
    try:
        return set(admin.list_topics(timeout=timeout_s).topics)
    except KafkaException:
        return set()


def aiokafka_client(node, protocol: str, text: str, timeout_s: float) -> set[str]:
    """The topics that aiokafka lists with a token."""
    import ssl

    from aiokafka import AIOKafkaConsumer
    from aiokafka.abc import AbstractTokenProvider
    from aiokafka.errors import KafkaError

    class Provider(AbstractTokenProvider):
        async def token(self):
            return text

    async def list_topics():
        consumer = AIOKafkaConsumer(
            bootstrap_servers=node.address(protocol),
            security_protocol=protocol,
            ssl_context=ssl.create_default_context(cafile=str(node.ca_file)),
            sasl_mechanism=MECHANISM,
            sasl_oauth_token_provider=Provider(),
        )
        try:
            await asyncio.wait_for(consumer.start(), timeout_s)
            return set(await consumer.topics())
        except (KafkaError, TimeoutError):
            return set()
        finally:
            await consumer.stop()

    return asyncio.run(list_topics())


def kafka_python(node, protocol: str, text: str, timeout_s: float) -> set[str]:
    """The topics that kafka-python lists with a token."""
    import ssl

    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Provider(AbstractTokenProvider):
        def token(self):
            return text

    try:
        admin = KafkaAdminClient(
            bootstrap_servers=node.address(protocol),
            bootstrap_timeout_ms=int(timeout_s * 1_000),
            security_protocol=protocol,
            ssl_context=ssl.create_default_context(cafile=str(node.ca_file)),
            sasl_mechanism=MECHANISM,
            sasl_oauth_token_provider=Provider(),
        )
    except (KafkaError, OSError):
        return set()
    try:
        return set(admin.list_topics())
    finally:
        admin.close()


CLIENTS = (librdkafka, aiokafka_client, kafka_python)
SASL = ("SASL_PLAINTEXT", "SASL_SSL")


@pytest.mark.parametrize("protocol", SASL)
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
def test_a_client_with_a_valid_token_has_its_users_rights(node, client, protocol):
    assert "t" in client(node, protocol, token(), 60)
    assert "t" not in client(node, protocol, token(sub="stranger"), 60)


@pytest.mark.parametrize("protocol", SASL)
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
def test_a_client_with_an_expired_token_or_one_of_a_foreign_key_is_refused(node, client, protocol):
    bad = (token(FOREIGN_KEY), token(exp=int(time.time()) - 60))
    assert [client(node, protocol, text, 2) for text in bad] == [set(), set()]


def test_the_log_has_the_reason_of_a_refusal_and_no_token(node):
    bad = token(aud="somebody")
    assert librdkafka(node, "SASL_SSL", bad, 2) == set()
    wait_until(
        lambda: "the token is refused: it is for another audience" in node.output.read_text(),
        "the refusal is logged",
    )
    assert bad not in node.output.read_text()
    assert bad.split(".")[2] not in node.output.read_text()


def test_a_producer_goes_on_with_new_tokens_on_one_connection(node):
    from confluent_kafka import Producer

    made, errors = [], []

    def new_token(_config):
        made.append(time.time())
        return token(exp=int(time.time()) + 2), time.time() + 2

    producer = Producer(
        librdkafka_config(node, new_token) | {"error_cb": errors.append, "linger.ms": 0}
    )
    delivered = []
    end = time.monotonic() + 12
    while time.monotonic() < end:
        producer.produce("t", b"x", on_delivery=lambda error, _: delivered.append(error))
        producer.poll(0.05)
    assert producer.flush(30) == 0
    assert len(delivered) > 50
    assert set(delivered) == {None}
    assert len(made) >= 3
    assert not errors


def test_a_command_authenticates_with_the_token_in_a_file(node):
    file = node.home / "command-token"
    config = node.token_config("SASL_SSL", file)
    file.write_text(token())
    assert "t" in node.run("topics", "list", config=config).stdout.split()
    file.write_text(token(FOREIGN_KEY))
    refused = node.run("topics", "list", config=config)
    assert refused.returncode == 1
    assert "the token is refused: " in refused.stderr
    file.unlink()
    assert f"no token from {file.as_uri()}" in node.run("topics", "list", config=config).stderr


@pytest.mark.soak
def test_a_benchmark_measures_a_running_cluster_with_the_token_in_a_file(node):
    file = node.home / "bench-token"
    file.write_text(token())
    config = node.token_config("SASL_SSL", file)
    where = ("--bootstrap-server", node.address("SASL_SSL"), "--command-config", str(config))
    assert printed("bench_broker", *where, "--tiny").count("consumed") == 2


def test_a_node_goes_on_under_load_with_new_tokens_after_the_end_of_others(node):
    settings = librdkafka_config(node, lambda _: (token(), time.time() + 600))
    config = node.command_config("SASL_SSL")
    assert node.run("topics", "create", "later", config=config).returncode == 0
    end = time.monotonic() + NODE_TOKEN_S + SKEW_S
    with Load("later", settings) as load:
        wait_until(lambda: time.monotonic() > end, "all tokens of the beginning have expired")
        load.wait_for_more("with new tokens")
    assert not load.failed
    assert read_all("later", settings, len(load.acknowledged)) == load.acknowledged


def test_esker_records_reads_with_tokens(node):
    from esker.settings.properties import read_properties
    from tests.spark_jobs.topics_world import read_rows

    config = node.command_config("SASL_SSL")
    assert node.run("topics", "create", "spark", config=config).returncode == 0
    with Load("spark", librdkafka_config(node, lambda _: (token(), time.time() + 600))) as load:
        load.wait_for_more("for Spark", 10)
    file = node.home / "spark-token"
    config = node.token_config("SASL_SSL", file)
    options = {f"kafka.{name}": value for name, value in read_properties(config).items()} | {
        "kafka.bootstrap.servers": node.address("SASL_SSL"),
        "store": str(node.home / "objects"),
        "subscribe": "spark",
        "includeHeaders": "true",
    }
    file.write_text(token())
    values = [int(row[6]) for row in read_rows(options)]
    assert sorted(values) == load.acknowledged
    file.write_text(token(FOREIGN_KEY))
    with pytest.raises(CoordinatesError, match=r"not authenticated: .*the token is refused"):
        read_rows(options)


@pytest.mark.soak
@pytest.mark.java
@pytest.mark.timeout(660)
@pytest.mark.parametrize("protocol", SASL)
def test_a_java_client_authenticates_with_a_valid_token_from_a_file_alone(
    node, kafka, monkeypatch, protocol
):
    file = node.home / "token"
    file.write_text(token())
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={file.as_uri()}"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", allowed)
    config = node.token_config(protocol, file)
    where = ("--bootstrap-server", node.address(protocol), "--command-config", str(config))
    topics = "org.apache.kafka.tools.TopicCommand"
    assert "t" in kafka.run(topics, *where, "--list").out.split()
    for bad in (token(FOREIGN_KEY), token(exp=int(time.time()) - 60)):
        file.write_text(bad)
        with pytest.raises(ToolFailedError, match=r"SaslAuthenticationException.*invalid_token"):
            kafka.run(topics, *where, "--list")
