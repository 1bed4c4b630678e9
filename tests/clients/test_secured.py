"""Real clients on listeners with TLS and SASL: each protocol and mechanism, right and wrong."""

from __future__ import annotations

import asyncio
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from esker.client.security import read_command_config
from esker.settings.properties import read_properties
from raft.net.security import outgoing, outgoing_security
from spark_jobs.readers.logs import LogsError
from spark_jobs.topics.coordinates import CoordinatesError
from tests.benches import printed
from tests.clients.secured import (
    NODE,
    NODE_PASSWORD,
    PASSWORD,
    PROTOCOLS,
    USER,
    SecuredNode,
)
from tests.interop.conftest import kafka, kafka_release, written_by_kafka
from tests.interop.kafka_run import ToolFailedError
from tests.pki import Authority
from tests.processes import run
from tests.waiting import wait_until

__all__ = ["kafka", "kafka_release", "written_by_kafka"]

pytestmark = pytest.mark.slow

LOG = "__cluster_metadata-0"
TOPICS = "org.apache.kafka.tools.TopicCommand"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
USERS = {
    "PLAIN": (USER, PASSWORD),
    "SCRAM-SHA-256": ("carol", "carols, secret"),
    "SCRAM-SHA-512": ("bob", "bob=secret"),
}
WAYS = [
    (protocol, mechanism)
    for protocol in PROTOCOLS
    for mechanism in (MECHANISMS if protocol.startswith("SASL") else ("",))
]


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    home = tmp_path_factory.mktemp("secured")
    users = [
        word
        for mechanism, (name, password) in USERS.items()
        if mechanism != "PLAIN"
        for word in ("--add-scram", f'{mechanism}=[name={name},password="{password}"]')
    ]
    more = "connections.max.reauth.ms=3600000\n"
    with SecuredNode(home, MECHANISMS, more, format_options=tuple(users)) as started:
        made = started.run("topics", "create", "t", config=started.command_config("SASL_SSL"))
        assert made.returncode == 0, made.stderr
        yield started


def user_of(mechanism: str, wrong: bool) -> tuple[str, str]:
    name, password = USERS.get(mechanism, ("", ""))
    return name, "wrong" if wrong else password


def librdkafka(node: SecuredNode, protocol: str, mechanism: str, wrong: bool) -> bool:
    """Does librdkafka list topics?"""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    name, password = user_of(mechanism, wrong)
    config = {"bootstrap.servers": node.address(protocol), "security.protocol": protocol.lower()}
    if protocol.endswith("SSL"):
        config["ssl.ca.location"] = str(node.ca_file)
    if protocol == "SSL" and not wrong:
        key = str(node.client_file)
        config |= {"ssl.certificate.location": key, "ssl.key.location": key}
    if mechanism:
        config |= {
            "sasl.mechanism": mechanism,
            "sasl.username": name,
            "sasl.password": password,
        }
    admin = AdminClient(config | {"log_level": 0})
    try:
        return "t" in admin.list_topics(timeout=2 if wrong else 60).topics
    except KafkaException:
        return False


def ssl_context(node: SecuredNode, wrong: bool):
    import ssl

    context = ssl.create_default_context(cafile=str(node.ca_file))
    if not wrong:
        context.load_cert_chain(str(node.client_file))
    return context


def aiokafka_client(node: SecuredNode, protocol: str, mechanism: str, wrong: bool) -> bool:
    """Does aiokafka produce a record?"""
    from aiokafka import AIOKafkaProducer
    from aiokafka.errors import KafkaError

    name, password = user_of(mechanism, wrong)
    options = {"security_protocol": protocol}
    if protocol.endswith("SSL"):
        options["ssl_context"] = ssl_context(node, wrong)
    if mechanism:
        options |= {
            "sasl_mechanism": mechanism,
            "sasl_plain_username": name,
            "sasl_plain_password": password,
        }

    async def produce() -> bool:
        producer = AIOKafkaProducer(bootstrap_servers=node.address(protocol), **options)
        try:
            await producer.start()
            await producer.send_and_wait("t", b"x")
            return True
        except KafkaError:
            return False
        finally:
            await producer.stop()

    return asyncio.run(produce())


def kafka_python(node: SecuredNode, protocol: str, mechanism: str, wrong: bool) -> bool:
    """Does kafka-python describe the cluster?"""
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    name, password = user_of(mechanism, wrong)
    options = {"security_protocol": protocol}
    if protocol.endswith("SSL"):
        options["ssl_context"] = ssl_context(node, wrong)
    if mechanism:
        options |= {
            "sasl_mechanism": mechanism,
            "sasl_plain_username": name,
            "sasl_plain_password": password,
        }
    try:
        admin = KafkaAdminClient(
            bootstrap_servers=node.address(protocol),
            bootstrap_timeout_ms=2_000 if wrong else 60_000,
            **options,
        )
    except (KafkaError, OSError):
        return False
    try:
        return "t" in admin.list_topics()
    except KafkaError:
        return False
    finally:
        admin.close()


CLIENTS = (librdkafka, aiokafka_client, kafka_python)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
def test_a_client_authenticates_with_each_security_protocol_and_sasl_mechanism(node, client):
    refused = [way for way in WAYS if not client(node, *way, wrong=False)]
    assert not refused


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
def test_a_broker_refuses_a_client_without_a_valid_identity_in_each_way(node, client):
    with ThreadPoolExecutor(len(WAYS)) as pool:
        admitted = list(pool.map(lambda way: client(node, *way, wrong=True), WAYS))
    assert not any(admitted), dict(zip(WAYS, admitted, strict=True))


def test_a_command_connects_with_a_certificate_and_prints_no_wrong_password(node):
    config = node.command_config("SSL")
    listed = node.run("topics", "list", config=config, protocol="SSL")
    assert listed.returncode == 0, listed.stderr
    assert "t" in listed.stdout.split()
    wrong = node.command_config("SASL_SSL", password="wrong")
    refused = node.run("topics", "list", config=wrong)
    assert refused.returncode == 1
    assert "user alice is refused" in refused.stderr
    assert "wrong" not in node.output.read_text()
    assert PASSWORD not in node.output.read_text()


@pytest.mark.parametrize("way", [("SSL", ""), ("SASL_SSL", "SCRAM-SHA-512")], ids="-".join)
def test_a_benchmark_measures_a_running_cluster_with_a_command_config(node, way):
    protocol, mechanism = way
    config = node.command_config(protocol, mechanism, *USERS.get(mechanism, ("", "")))
    where = ("--bootstrap-server", node.address(protocol), "--command-config", str(config))
    lines = printed("bench_broker", *where, "--tiny")
    assert lines.count("end to end") == 1
    assert lines.count("consumed") == 2
    topics = node.run("topics", "list", config=config, protocol=protocol)
    assert "t" in topics.stdout.split()
    assert "bench-" not in topics.stdout


@pytest.mark.soak
@pytest.mark.java
@pytest.mark.timeout(660)
def test_kafkas_tools_create_a_scram_user_with_which_a_java_client_authenticates(node, kafka):
    config = node.command_config("SASL_SSL", "SCRAM-SHA-512", *USERS["SCRAM-SHA-512"])
    where = ("--bootstrap-server", node.address("SASL_SSL"), "--command-config", str(config))
    entity = ("--entity-type", "users", "--entity-name", "dave")
    credential = "SCRAM-SHA-256=[password=daves-secret]"
    configs = "kafka.admin.ConfigCommand"
    kafka.run(configs, *where, *entity, "--alter", "--add-config", credential)
    described = kafka.run(configs, *where, *entity, "--describe")
    assert "SCRAM-SHA-256=iterations=4096" in described.out
    dave = node.command_config("SASL_SSL", "SCRAM-SHA-256", "dave", "daves-secret")

    def lets_in() -> bool:
        return node.run("topics", "list", config=dave).returncode == 0

    wait_until(lets_in, "the broker has seen the new user")
    assert "t" in kafka.run(TOPICS, *where[:2], "--command-config", str(dave), "--list").out


@pytest.mark.soak
@pytest.mark.java
@pytest.mark.timeout(660)
@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_a_java_client_authenticates_with_each_security_protocol_and_sasl_mechanism(
    node, kafka, way, tmp_path
):
    protocol, mechanism = way
    user, password = USERS.get(mechanism, ("", ""))
    config = node.command_config(protocol, mechanism, user, password)

    def listed(file: Path) -> list[str]:
        where = ("--bootstrap-server", node.address(protocol), "--command-config", str(file))
        return kafka.run(TOPICS, *where, "--list").out.split()

    assert "t" in listed(config)
    if mechanism:
        with pytest.raises(ToolFailedError, match="SaslAuthenticationException"):
            listed(node.command_config(protocol, mechanism, user, "wrong"))
        return
    expired = node.ca.issue("old", valid=timedelta(minutes=-1)).write(tmp_path / "expired.pem")
    foreign = Authority("stranger").issue("client").write(tmp_path / "foreign.pem")
    for bad in (expired, foreign):
        file = tmp_path / "bad.properties"
        file.write_text(config.read_text().replace(str(node.client_file), str(bad)))
        with pytest.raises(ToolFailedError):
            listed(file)


def write(node: SecuredNode, value: bytes) -> None:
    """Write a record to the topic `t`."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": node.address("SASL_SSL"),
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(node.ca_file),
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
        }
    )
    producer.produce("t", value)
    producer.flush()


def test_esker_records_reads_over_each_protocol(node) -> None:
    """The driver's options are Kafka's client properties. Source: docs/tables.md."""
    from tests.spark_jobs.topics_world import read_rows

    write(node, b"read by Spark")
    others = {"store": str(node.home / "objects"), "subscribe": "t", "includeHeaders": "true"}

    def read(protocol, password=PASSWORD):
        config = read_properties(node.command_config(protocol, "PLAIN", USER, password))
        named = {f"kafka.{name}": value for name, value in config.items()}
        return read_rows({"kafka.bootstrap.servers": node.address(protocol), **named, **others})

    for protocol in PROTOCOLS:
        assert b"read by Spark" in [row[6] for row in read(protocol)]
    with pytest.raises(CoordinatesError, match="not authenticated: "):
        read("SASL_SSL", "wrong")
    assert outgoing_security() is None


def test_the_logs_of_a_secured_quorum_are_read_by_any_process_with_the_readers_security(
    node,
) -> None:
    """Plans are made in one process, with `outgoing`, and read in workers, without."""
    from spark_jobs.readers.inputs import Inputs, open_logs
    from spark_jobs.source.options import parse_options

    def read(password: str) -> int:
        config = node.command_config("SASL_SSL", "PLAIN", NODE, password)
        with outgoing(read_command_config(config)):
            host, _, port = node.controller.rpartition(":")
            log = open_logs(Inputs(controllers=((host, int(port)),), timeout_ms=9_000)).log(LOG)
            spans = pickle.dumps(list(log.spans(log.end_offset())))
        assert outgoing_security() is None
        return sum(1 for span in pickle.loads(spans) for _ in span.values())

    assert read(NODE_PASSWORD) > 10
    with pytest.raises(LogsError, match="user node-1 is refused"):
        read("wrong")
    config = read_properties(node.command_config("SASL_SSL", "PLAIN", NODE, NODE_PASSWORD))
    named = {f"kafka.{name}": value for name, value in config.items()}
    options = parse_options({"bootstrapController": node.controller, **named})
    assert NODE_PASSWORD not in repr(options)
    assert open_logs(options.inputs).log(LOG).end_offset() > 10
    with pytest.raises(LogsError):
        open_logs(replace(options.inputs, security=None, timeout_ms=100))


@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=pytest.mark.soak)])
def test_a_spark_job_reads_a_secured_quorum_with_a_command_config(node, engine) -> None:
    def audit(password: str):
        config = node.command_config("SASL_SSL", "PLAIN", NODE, password)
        where = ("--bootstrap-controller", node.controller, "--command-config", str(config))
        return run("esker", "spark", "audit", *where, "--engine", engine, "--json")

    done = audit(NODE_PASSWORD)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    refused = audit("wrong")
    assert (refused.returncode, "user node-1 is refused" in refused.stderr) == (3, True), refused


def test_esker_spark_tables_asks_brokers_with_the_security_of_its_command_config(
    node, tmp_path
) -> None:
    from spark_jobs.topic_tables.catalogs import open_catalog

    write(node, b"kept")
    where = ("t", "--store", str(node.home / "objects"), "--warehouse", str(tmp_path / "lake"))

    def tables(command, *more, password=PASSWORD):
        config = node.command_config("SASL_SSL", "PLAIN", USER, password)
        return node.run("spark", "tables", command, *where, *more, config=config)

    done = tables("run", "--once", "--json")
    assert done.returncode == 0, done.stderr
    table = open_catalog(str(tmp_path / "lake"), None, {}).load_table(("kafka", "t"))
    assert b"kept" in table.scan().to_arrow()["value"].to_pylist()
    described = tables("describe", "--json")
    assert json.loads(described.stdout)["tables"][0]["lag_records"] == 0, described.stderr
    refused = tables("run", "--once", password="wrong")
    assert (refused.returncode, "authenticat" in refused.stderr.lower()) == (1, True), refused
