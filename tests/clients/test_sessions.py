"""Real clients stay connected while sessions, rights, users and certificates end.

Sessions are short, so that each client authenticates again and again, or connects anew, under load.
"""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Final

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from tests.clients.secured import NODE, PASSWORD, USER, SecuredNode
from tests.interop.conftest import kafka, kafka_release, written_by_kafka
from tests.pki import Authority
from tests.raft.net.oauth_world import AUDIENCE, ISSUER, token, write_jwks
from tests.waiting import wait_until

__all__ = ["kafka", "kafka_release", "written_by_kafka"]

pytestmark = pytest.mark.slow

SESSION_S: Final = 3  # also the lifetime of a token
SESSIONS: Final = 3  # that each client lives through
CERTIFICATE_S: Final = 60
SCRAM: Final = {
    "SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256,
    "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512,
}
MECHANISMS: Final = ("PLAIN", *SCRAM, "OAUTHBEARER")
SASL: Final = ("SASL_PLAINTEXT", "SASL_SSL")
QUICK: Final = {("SASL_PLAINTEXT", "OAUTHBEARER"), ("SASL_SSL", "SCRAM-SHA-512")}
WAYS: Final = [
    pytest.param(
        way, marks=() if way in QUICK else pytest.mark.soak, id="-".join(filter(None, way))
    )
    for way in [("SSL", ""), *((protocol, one) for protocol in SASL for one in MECHANISMS)]
]
LIBRARIES: Final = ("librdkafka", "aiokafka", "kafka_python")
Send = Callable[[bytes], None]


def password_of(name: str) -> str:
    return f"secret of {name}"


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    home = tmp_path_factory.mktemp("sessions")
    more = (
        "".join(
            f"listener.name.{protocol.lower()}.connections.max.reauth.ms={SESSION_S * 1_000}\n"
            for protocol in SASL
        )
        + f"sasl.oauthbearer.jwks.endpoint.url={write_jwks(home / 'jwks.json')}\n"
        f"sasl.oauthbearer.expected.audience={AUDIENCE}\n"
        f"sasl.oauthbearer.expected.issuer={ISSUER}\n"
        "sasl.oauthbearer.clock.skew.seconds=1\n"
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
        f"super.users=User:{USER};User:{NODE}\n"
    )
    users = {name: password_of(name) for name in LIBRARIES}
    with SecuredNode(home, MECHANISMS, more, plain_users=users) as started:
        made = started.run("topics", "create", "t", config=started.command_config("SASL_SSL"))
        assert made.returncode == 0, made.stderr
        yield started


class Account:
    """A user with all rights on the topic `t`. The rights may be taken away, and the user end."""

    def __init__(self, node: SecuredNode, way: tuple[str, str], name: str) -> None:
        self.node, self.name = node, name
        self.protocol, self.mechanism = way
        self.password = password_of(name)
        self._has_ended = False
        self._admin = AdminClient(rdkafka(node, "PLAIN", USER, PASSWORD))
        principal = f"User:{name}"
        if self.protocol == "SSL":
            principal = f"User:CN={name},O=Esker"
            valid = timedelta(seconds=CERTIFICATE_S)
            own = node.ca.issue(name, hosts=(), valid=valid)
            self.certificate = str(own.write(node.home / f"{name}.pem"))
        self._acl = (
            ResourceType.TOPIC,
            "t",
            ResourcePatternType.LITERAL,
            principal,
            "*",
            AclOperation.ALL,
            AclPermissionType.ALLOW,
        )
        if self.mechanism in SCRAM:
            info = ScramCredentialInfo(SCRAM[self.mechanism], 4096)
            self._alter(UserScramCredentialUpsertion(name, info, self.password.encode()))
        self.allow()

    def allow(self) -> None:
        for future in self._admin.create_acls([AclBinding(*self._acl)]).values():
            future.result(60)

    def deny(self) -> None:
        for future in self._admin.delete_acls([AclBindingFilter(*self._acl)]).values():
            assert len(future.result(60)) == 1

    def token(self) -> str:
        """Return a token of one session; once the user has ended, an expired one."""
        lifetime_s = -60 if self._has_ended else SESSION_S
        return token(sub=self.name, exp=int(time.time()) + lifetime_s)

    def end(self) -> None:
        """Delete the user, or issue no more valid tokens; a certificate expires by itself."""
        self._has_ended = True
        if self.mechanism in SCRAM:
            self._alter(UserScramCredentialDeletion(self.name, SCRAM[self.mechanism]))

    def _alter(self, change: Any) -> None:
        for future in self._admin.alter_user_scram_credentials([change]).values():
            future.result(60)


def rdkafka(node: SecuredNode, mechanism: str, user: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": node.address("SASL_SSL"),
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": str(node.ca_file),
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
        "log_level": 0,
    }


def options(account: Account, token_provider: Any) -> dict[str, Any]:
    """Return the settings of aiokafka and kafka-python.

    Args:  token_provider: the class of the library from which a provider is derived.
    """
    settings: dict[str, Any] = {
        "bootstrap_servers": account.node.address(account.protocol),
        "security_protocol": account.protocol,
        "request_timeout_ms": 10_000,
    }
    if account.protocol.endswith("SSL"):
        context = ssl.create_default_context(cafile=str(account.node.ca_file))
        if account.protocol == "SSL":
            context.load_cert_chain(account.certificate)
        settings["ssl_context"] = context
    if account.mechanism:
        settings["sasl_mechanism"] = account.mechanism
    if account.mechanism == "OAUTHBEARER":
        settings["sasl_oauth_token_provider"] = token_provider()
    elif account.mechanism:
        settings["sasl_plain_username"] = account.name
        settings["sasl_plain_password"] = account.password
    return settings


def librdkafka(account: Account) -> tuple[Send, Callable[[], None]]:
    settings: dict[str, Any] = {
        "bootstrap.servers": account.node.address(account.protocol),
        "security.protocol": account.protocol.lower(),
        "log_level": 0,
        "linger.ms": 0,
        "message.timeout.ms": 20_000,
    }
    if account.protocol.endswith("SSL"):
        settings["ssl.ca.location"] = str(account.node.ca_file)
    if account.protocol == "SSL":
        own = account.certificate
        settings |= {"ssl.certificate.location": own, "ssl.key.location": own}
    if account.mechanism:
        settings["sasl.mechanism"] = account.mechanism
    if account.mechanism == "OAUTHBEARER":
        settings["oauth_cb"] = lambda _: (account.token(), time.time() + SESSION_S)
    elif account.mechanism:
        settings |= {"sasl.username": account.name, "sasl.password": account.password}
    producer = Producer(settings)

    def send(value: bytes) -> None:
        done: list[Any] = []
        producer.produce("t", value, on_delivery=lambda error, _: done.append(error))
        producer.flush(40)
        if done != [None]:
            raise KafkaException(done[0] if done else KafkaError(KafkaError._MSG_TIMED_OUT))

    return send, lambda: None


def aiokafka(account: Account) -> tuple[Send, Callable[[], None]]:
    from aiokafka import AIOKafkaProducer
    from aiokafka.abc import AbstractTokenProvider

    class Tokens(AbstractTokenProvider):
        async def token(self) -> str:
            return account.token()

    loop = asyncio.new_event_loop()

    async def start() -> AIOKafkaProducer:
        producer = AIOKafkaProducer(**options(account, Tokens))
        await producer.start()
        return producer

    producer = loop.run_until_complete(start())

    def send(value: bytes) -> None:
        loop.run_until_complete(asyncio.wait_for(producer.send_and_wait("t", value), 40))

    def close() -> None:
        loop.run_until_complete(producer.stop())
        loop.close()

    return send, close


def kafka_python(account: Account) -> tuple[Send, Callable[[], None]]:
    from kafka import KafkaProducer
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Tokens(AbstractTokenProvider):
        def token(self) -> str:
            return account.token()

    producer = KafkaProducer(**options(account, Tokens), delivery_timeout_ms=20_000)

    def send(value: bytes) -> None:
        producer.send("t", value).get(timeout=40)

    return send, lambda: producer.close(timeout=5)


def fails(send: Send) -> str:
    """Return the error of a record, or an empty text."""
    try:
        send(b"x")
    except Exception as error:
        return f"{type(error).__name__} {error}"
    return ""


def live_through(node: SecuredNode, way: tuple[str, str], client: Callable[..., Any]) -> None:
    """Write while sessions, the rights and the user of one client end."""
    account = Account(node, way, client.__name__)
    send, close = client(account)
    try:
        wait_until(lambda: not fails(send), "the first record is written")
        end = time.monotonic() + SESSIONS * SESSION_S
        while time.monotonic() < end:
            send(b"x")
            time.sleep(0.01)
        account.deny()
        wait_until(lambda: "authoriz" in fails(send).lower(), "a client without the right")
        account.allow()
        close()  # a producer of aiokafka does not try again
        send, close = client(account)
        wait_until(lambda: not fails(send), "a client with the right writes again")
        if account.mechanism != "PLAIN":  # whose users last as long as their node
            account.end()
            wait_until(lambda: fails(send), "the session of a user that has ended is over")
    finally:
        close()


CLIENTS: Final = (librdkafka, aiokafka, kafka_python)


@pytest.mark.parametrize("way", WAYS)
def test_clients_write_through_the_ends_of_sessions_until_right_and_user_are_revoked(
    node, way
) -> None:
    with ThreadPoolExecutor(len(CLIENTS)) as pool:
        for done in [pool.submit(live_through, node, way, client) for client in CLIENTS]:
            done.result()
    assert "secret of" not in node.output.read_text()


def certified(node: SecuredNode, library: str, certificate: str) -> bool:
    """Return whether a client with a certificate connects."""
    if library == "librdkafka":
        admin = AdminClient(
            {
                "bootstrap.servers": node.address("SSL"),
                "security.protocol": "ssl",
                "ssl.ca.location": str(node.ca_file),
                "ssl.certificate.location": certificate,
                "ssl.key.location": certificate,
                "log_level": 0,
            }
        )
        try:
            return bool(admin.list_topics(timeout=60 if "good" in certificate else 2).brokers)
        except KafkaException:
            return False
    context = ssl.create_default_context(cafile=str(node.ca_file))
    context.load_cert_chain(certificate)
    where = {"bootstrap_servers": node.address("SSL"), "security_protocol": "SSL"}
    if library == "kafka-python":
        from kafka import KafkaAdminClient
        from kafka.errors import KafkaError

        wait_ms = 60_000 if "good" in certificate else 2_000
        try:
            KafkaAdminClient(**where, ssl_context=context, bootstrap_timeout_ms=wait_ms).close()
        except (KafkaError, OSError):
            return False
        return True
    from aiokafka import AIOKafkaClient
    from aiokafka.errors import KafkaError as AioError

    async def connect() -> bool:
        client = AIOKafkaClient(**where, ssl_context=context)
        try:
            await client.bootstrap()
        except AioError:
            return False
        finally:
            await client.close()
        return True

    return asyncio.run(connect())


@pytest.mark.parametrize("library", ["librdkafka", "aiokafka", "kafka-python"])
def test_a_client_with_an_expired_or_foreign_certificate_is_refused(node, library, tmp_path):
    good = node.ca.issue("client", hosts=()).write(tmp_path / "good.pem")
    expired = node.ca.issue("old", valid=timedelta(minutes=-1)).write(tmp_path / "expired.pem")
    foreign = Authority("stranger").issue("client").write(tmp_path / "foreign.pem")
    files = (good, expired, foreign)
    assert [certified(node, library, str(file)) for file in files] == [True, False, False]


@pytest.mark.soak
@pytest.mark.java
@pytest.mark.timeout(660)
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("protocol", SASL)
def test_a_java_producer_authenticates_anew_under_load(
    node, kafka, protocol, mechanism, monkeypatch
) -> None:
    account = Account(node, (protocol, mechanism), LIBRARIES[0])
    if mechanism == "OAUTHBEARER":
        file = node.home / "java-token"
        file.write_text(token(sub=account.name))
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={file.as_uri()}"
        monkeypatch.setenv("JAVA_TOOL_OPTIONS", allowed)
        config = node.token_config(protocol, file)
    else:
        config = node.command_config(protocol, mechanism, account.name, account.password)
    done = kafka.run(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", "t", "--num-records", "3000", "--record-size", "10", "--throughput", "200"),
        *("--bootstrap-server", node.address(protocol), "--command-config", str(config)),
    )
    assert "3000 records sent" in done.out


@pytest.mark.soak
@pytest.mark.java
@pytest.mark.timeout(660)
@pytest.mark.parametrize("protocol", SASL)
def test_a_java_consumer_ends_when_its_user_is_deleted(node, kafka, protocol) -> None:
    account = Account(node, (protocol, "SCRAM-SHA-512"), "java")
    config = node.command_config(protocol, account.mechanism, account.name, account.password)
    send, _ = librdkafka(account)
    send(b"read before")
    words = kafka.command(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--topic", "t", "--partition", "0", "--offset", "earliest"),
        *("--bootstrap-server", node.address(protocol), "--command-config", str(config)),
    )
    printed, errors = node.home / "java-records", node.home / "java-errors"
    with printed.open("wb") as out, errors.open("wb") as error:
        consumer = subprocess.Popen(words, stdout=out, stderr=error)
    try:
        wait_until(lambda: printed.stat().st_size, "the consumer has read")
        account.end()
        consumer.wait(120)
    finally:
        consumer.kill()
        consumer.wait()
    assert "SaslAuthenticationException" in errors.read_text()
