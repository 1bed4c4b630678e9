"""Real clients stay connected while sessions, rights, users and certificates end.

Sessions are short, so that each client authenticates again and again, or connects anew, under load.
"""

from __future__ import annotations

import asyncio
import ssl
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
from tests.waiting import wait_until

__all__ = ["kafka", "kafka_release", "written_by_kafka"]

pytestmark = pytest.mark.slow

SESSION_S: Final = 3
SESSIONS: Final = 3  # that each client lives through
MECHANISM: Final = "SCRAM-SHA-512"
Send = Callable[[bytes], None]


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    more = (
        f"listener.name.sasl_ssl.connections.max.reauth.ms={SESSION_S * 1_000}\n"
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
        f"super.users=User:{USER};User:{NODE}\n"
    )
    home = tmp_path_factory.mktemp("sessions")
    with SecuredNode(home, ("PLAIN", MECHANISM), more) as started:
        made = started.run("topics", "create", "t", config=started.command_config("SASL_SSL"))
        assert made.returncode == 0, made.stderr
        yield started


class Account:
    """A user with the right to write to the topic `t`, both of which may be taken away."""

    def __init__(self, node: SecuredNode, name: str) -> None:
        self.name, self.password = name, f"secret of {name}"
        self._admin = AdminClient(rdkafka(node, "PLAIN", USER, PASSWORD))
        self._acl = (
            ResourceType.TOPIC,
            "t",
            ResourcePatternType.LITERAL,
            f"User:{name}",
            "*",
            AclOperation.WRITE,
            AclPermissionType.ALLOW,
        )
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        self._alter(UserScramCredentialUpsertion(name, info, self.password.encode()))
        self.allow()

    def allow(self) -> None:
        for future in self._admin.create_acls([AclBinding(*self._acl)]).values():
            future.result(60)

    def deny(self) -> None:
        for future in self._admin.delete_acls([AclBindingFilter(*self._acl)]).values():
            assert len(future.result(60)) == 1

    def delete(self) -> None:
        self._alter(UserScramCredentialDeletion(self.name, ScramMechanism.SCRAM_SHA_512))

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


def options(node: SecuredNode, account: Account) -> dict[str, Any]:
    """Return the settings of aiokafka and kafka-python."""
    return {
        "bootstrap_servers": node.address("SASL_SSL"),
        "security_protocol": "SASL_SSL",
        "ssl_context": ssl.create_default_context(cafile=str(node.ca_file)),
        "sasl_mechanism": MECHANISM,
        "sasl_plain_username": account.name,
        "sasl_plain_password": account.password,
        "request_timeout_ms": 10_000,
    }


def librdkafka(node: SecuredNode, account: Account) -> tuple[Send, Callable[[], None]]:
    settings = rdkafka(node, MECHANISM, account.name, account.password)
    producer = Producer(settings | {"linger.ms": 0, "message.timeout.ms": 20_000})

    def send(value: bytes) -> None:
        done: list[Any] = []
        producer.produce("t", value, on_delivery=lambda error, _: done.append(error))
        producer.flush(40)
        if done != [None]:
            raise KafkaException(done[0] if done else KafkaError(KafkaError._MSG_TIMED_OUT))

    return send, lambda: None


def aiokafka(node: SecuredNode, account: Account) -> tuple[Send, Callable[[], None]]:
    from aiokafka import AIOKafkaProducer

    loop = asyncio.new_event_loop()

    async def start() -> AIOKafkaProducer:
        producer = AIOKafkaProducer(**options(node, account))
        await producer.start()
        return producer

    producer = loop.run_until_complete(start())

    def send(value: bytes) -> None:
        loop.run_until_complete(asyncio.wait_for(producer.send_and_wait("t", value), 40))

    def close() -> None:
        loop.run_until_complete(producer.stop())
        loop.close()

    return send, close


def kafka_python(node: SecuredNode, account: Account) -> tuple[Send, Callable[[], None]]:
    from kafka import KafkaProducer

    producer = KafkaProducer(**options(node, account), delivery_timeout_ms=20_000)

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


def live_through(node: SecuredNode, client: Callable[..., Any]) -> None:
    """Write while sessions, the right and the user of one client end."""
    account = Account(node, client.__name__)
    send, close = client(node, account)
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
        send, close = client(node, account)
        wait_until(lambda: not fails(send), "a client with the right writes again")
        account.delete()
        wait_until(lambda: fails(send), "a deleted user's session ends")
    finally:
        close()


CLIENTS: Final = (librdkafka, aiokafka, kafka_python)


def test_clients_write_through_the_ends_of_sessions_until_right_and_user_are_revoked(node) -> None:
    with ThreadPoolExecutor(len(CLIENTS)) as pool:
        for done in [pool.submit(live_through, node, client) for client in CLIENTS]:
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
@pytest.mark.parametrize("mechanism", ["PLAIN", MECHANISM])
def test_a_java_producer_authenticates_anew_under_load(node, kafka, mechanism) -> None:
    account = Account(node, f"java-{mechanism}")
    user, password = (USER, PASSWORD) if mechanism == "PLAIN" else (account.name, account.password)
    config = node.command_config("SASL_SSL", mechanism, user, password)
    done = kafka.run(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", "t", "--num-records", "3000", "--record-size", "10", "--throughput", "200"),
        *("--bootstrap-server", node.address("SASL_SSL"), "--command-config", str(config)),
    )
    assert "3000 records sent" in done.out
