"""A node's settings: Kafka's names, and an error that names the key for whatever cannot be."""

import pytest

from coordinator.transactions.settings import TransactionSettings
from esker.server.node import controller_settings, limits_of
from esker.settings.addresses import INSECURE, Place
from esker.settings.config import SETTINGS, ConfigError, Endpoint, load_config, parse_config
from esker.settings.properties import PropertiesError, parse_properties

GOOD = {
    "process.roles": "controller",
    "node.id": "2",
    "controller.quorum.voters": "1@127.0.0.1:9093,2@127.0.0.1:9094,3@127.0.0.1:9095",
    "listeners": "CONTROLLER://127.0.0.1:9094",
    "log.dirs": "/var/lib/esker",
}


def test_a_node_starts_with_a_minimal_properties_file_and_kafkas_defaults():
    config = parse_config(GOOD)
    assert config.node_id == 2
    assert config.voters[3] == Endpoint("127.0.0.1", 9095)
    own = Place(
        name="CONTROLLER", bind=Endpoint("127.0.0.1", 9094), advertised=Endpoint("127.0.0.1", 9094)
    )
    assert config.addresses.controller == own
    assert config.addresses.clients == ()
    assert (config.election_timeout_ms, config.fetch_timeout_ms) == (1000, 2000)
    assert config.max_idle_interval_ms == 500
    assert config.metrics is None
    assert not config.bench_log
    assert config.warnings == ()


@pytest.mark.parametrize("key", [key for key in GOOD if key != "log.dirs"])
def test_the_error_for_a_missing_required_setting_names_the_setting(key):
    settings = {k: v for k, v in GOOD.items() if k != key}
    with pytest.raises(ConfigError, match="must be set") as caught:
        parse_config(settings)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("node.id", "minus one", "not a whole number"),
        ("node.id", "-1", "not between"),
        ("process.roles", "voter", "is `controller`, `broker`"),
        ("controller.quorum.voters", "1@127.0.0.1", "not HOST:PORT"),
        ("controller.quorum.voters", "x@127.0.0.1:1", "not ID@HOST:PORT"),
        ("controller.quorum.voters", "1@a:1,1@b:1", "stands twice"),
        ("controller.quorum.voters", "4294967296@a:1", "not between"),
        ("controller.quorum.voters", "\u00b2@a:1", "not ID@HOST:PORT"),
        ("controller.quorum.voters", "1@a:" + "9" * 5000, "not HOST:PORT"),
        ("controller.quorum.voters", "2@0.0.0.0:9094", "cannot connect"),
        ("controller.quorum.voters", "2@127.0.0.1:9999", "listens at"),
        ("controller.quorum.voters", "", "no voters"),
        ("max.connections.per.ip", "-1", "not between"),
        ("max.connections.per.ip.overrides", "localhost:5", "is not ADDRESS:COUNT"),
        ("max.connections.per.ip.overrides", "10.0.0.7", "is not ADDRESS:COUNT"),
        ("max.connections.per.ip.overrides", "::1:2,0:0:0:0:0:0:0:1:3", "stands twice"),
        ("max.connections.per.ip.overrides", "10.0.0.7:many", "not a whole number"),
        ("listeners", "127.0.0.1:9094", "not NAME://HOST:PORT"),
        ("listeners", "CONTROLLER://127.0.0.1:99999", "not HOST:PORT"),
        ("listeners", "OTHER://127.0.0.1:9094", "not in controller.listener.names"),
        ("listener.security.protocol.map", "CONTROLLER:TLS", "no protocol of PLAINTEXT"),
        ("controller.quorum.fetch.timeout.ms", "0", "not between"),
        (
            "controller.quorum.fetch.timeout.ms",
            "500",
            "not between 501",
        ),  # as long as a Fetch waits
        ("socket.request.max.bytes", "268435457", "not between"),
        ("metadata.snapshot.min.changed_records.ratio", "nan", "not between 0 and 1"),
        ("metadata.snapshot.min.changed_records.ratio", "1.5", "not between 0 and 1"),
        ("metadata.log.max.record.bytes.between.snapshots", "0", "not between"),
        ("metadata.log.max.snapshot.interval.ms", "-1", "not between"),
        ("metadata.start.offset.lag.time.max.ms", "-1", "not between"),
        ("metadata.max.retention.bytes", "-2", "not between"),
        ("esker.bench.log.enable", "yes", "neither true nor false"),
        ("advertised.listeners", "ELSE://h:1", "not in listeners"),
        ("esker.metrics.listener", "::1:9", "brackets"),
    ],
)
def test_the_error_for_an_invalid_value_names_the_setting(key, value, reason):
    with pytest.raises(ConfigError, match=reason) as caught:
        parse_config({**GOOD, key: value})
    assert caught.value.key == key
    assert str(caught.value).startswith(f"{key}: ")


BROKER = {
    "process.roles": "broker",
    "node.id": "11",
    "controller.quorum.voters": GOOD["controller.quorum.voters"],
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "log.dirs": "/var/lib/esker",
    "esker.storage.directory.path": "/objects",
}


def test_a_broker_binds_its_client_listeners_but_no_controller_listener():
    config = parse_config({**BROKER, "listeners": "A://127.0.0.1:1,B://127.0.0.1:2"})
    assert config.roles == {"broker"}
    assert config.addresses.controller is None
    assert [place.name for place in config.addresses.clients] == ["A", "B"]
    assert config.values["broker.heartbeat.interval.ms"] == 500


def test_a_node_with_both_roles_has_client_and_controller_listeners():
    both = {"process.roles": "broker,controller", "node.id": "2"}
    own = "CONTROLLER://127.0.0.1:9094,PLAINTEXT://0.0.0.0:9092"
    told = "PLAINTEXT://broker.example:9092"
    config = parse_config({**BROKER, **both, "listeners": own, "advertised.listeners": told})
    assert config.addresses.controller is not None
    (clients,) = config.addresses.clients
    assert clients.advertised == Endpoint("broker.example", 9092)
    assert len(config.warnings) == 1, "the open one"


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("process.roles", "broker,broker", "is `controller`, `broker`"),
        ("node.id", "2", "a broker needs its own"),
        ("listeners", "CONTROLLER://127.0.0.1:9094", "only a broker has none"),
        ("listeners", "", "names no listener for clients"),
        ("advertised.listeners", "PLAINTEXT://0.0.0.0:9092", "cannot connect"),
        ("advertised.listeners", "PLAINTEXT://h:0", "no client can connect to port 0"),
        ("diskless.system.enable", "false", "no other topics"),
        (
            "diskless.batch.coordinator.class.name",
            "coordinator.batch.memory.InMemoryCoordinator",
            ".",
        ),
        ("esker.storage.directory.path", "", "must be set"),
        ("broker.heartbeat.interval.ms", "5000", "more than half of broker.session.timeout.ms"),
        ("esker.object.lease.timeout.ms", "1000", "does not outlive an upload"),
        ("diskless.file.delete.delay.ms", "1999", "hears of an idle log every 500 ms"),
        ("esker.delete.physical.max.ms", "479999", "is below 480000, four times"),
    ],
)
def test_a_broker_configuration_error_names_the_setting_that_prevents_the_start(key, value, reason):
    with pytest.raises(ConfigError, match=reason) as caught:
        parse_config({**BROKER, key: value})
    assert caught.value.key == key


def test_a_node_checks_a_setting_of_a_role_that_it_lacks_and_ignores_the_value():
    assert parse_config({**GOOD, "broker.rack": "a", "diskless.system.enable": "false"})
    with pytest.raises(ConfigError, match="not a whole number"):
        parse_config({**GOOD, "broker.heartbeat.interval.ms": "soon"})


def test_the_error_for_an_unknown_setting_suggests_the_likely_setting():
    with pytest.raises(ConfigError, match=r"did you mean controller\.quorum\.voters\?"):
        parse_config({**GOOD, "controller.quorum.voter": "1@h:1"})


def test_a_node_refuses_a_properties_file_without_log_dirs():
    settings = {k: v for k, v in GOOD.items() if k != "log.dirs"}
    with pytest.raises(ConfigError) as caught:
        parse_config(settings)
    assert caught.value.key == "log.dirs"


def test_a_node_binds_a_listener_on_a_wildcard_address_but_never_advertises_the_address():
    own = {**GOOD, "listeners": "CONTROLLER://0.0.0.0:9094", INSECURE: "true"}
    config = parse_config(own)
    assert config.addresses.controller is not None
    assert config.addresses.controller.advertised == Endpoint("127.0.0.1", 9094), (
        "the voters' entry says who we are"
    )
    observer = {**own, "node.id": "9"}
    with pytest.raises(ConfigError) as caught:
        parse_config(observer)
    assert caught.value.key == "advertised.listeners"


def test_a_node_warns_of_a_listener_that_other_machines_can_reach():
    config = parse_config({**GOOD, "listeners": "CONTROLLER://0.0.0.0:9094", INSECURE: "true"})
    assert "every host that can reach it is let in" in config.warnings[0]


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "[::]", "quorum-1.example", ""])
@pytest.mark.parametrize("insecure", [None, "false"])
def test_a_node_refuses_a_controller_listener_beyond_loopback_unless_declared_insecure(
    host, insecure
):
    settings = {
        **GOOD,
        "listeners": f"CONTROLLER://{host}:9094",
        "advertised.listeners": "CONTROLLER://127.0.0.1:9094",
    }
    if insecure is not None:
        settings[INSECURE] = insecure
    with pytest.raises(ConfigError) as caught:
        parse_config(settings)
    assert caught.value.key == "listeners"
    assert f"{INSECURE}=true" in str(caught.value)
    assert parse_config({**settings, INSECURE: "true"}).addresses.controller is not None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "[::1]", "localhost"])
def test_a_node_accepts_a_controller_listener_on_loopback_without_a_declaration(host):
    config = parse_config({**GOOD, "listeners": f"CONTROLLER://{host}:9094"})
    assert not config.warnings


def test_every_setting_has_a_description_of_one_sentence():
    for setting in SETTINGS.values():
        assert setting.help.endswith("."), setting.key


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1", {"a": "1"}),
        ("  a : 1  \n\n! note\nb 2", {"a": "1", "b": "2"}),
        ("a=1,\\\n   2", {"a": "1,2"}),
        (r"path=C\:\\x", {"path": r"C:\x"}),
        (r"a=\u0041\tb", {"a": "A\tb"}),
        ("a=", {"a": ""}),
        ("a=b=c", {"a": "b=c"}),
        ("a=last\\", {"a": "last"}),
    ],
)
def test_esker_parses_properties_files_as_java_does(text, expected):
    assert parse_properties(text, source="test") == expected


@pytest.mark.parametrize("text", ["=1", "a=1\n: 2"])
def test_the_error_for_an_invalid_line_of_a_properties_file_names_the_line_number(text):
    with pytest.raises(PropertiesError, match="line"):
        parse_properties(text, source="test")


def test_a_node_uses_the_last_value_of_a_repeated_setting_and_warns_of_the_setting(tmp_path):
    path = tmp_path / "server.properties"
    lines = [f"{key}={value}" for key, value in GOOD.items()]
    path.write_text(
        "\r\n".join(["num.partitions=x", *lines, "num.partitions=2", "num.partitions=3"])
    )
    config = load_config(path)
    assert config.default_partitions == 3
    assert config.warnings[-1].endswith("of which the last value holds: num.partitions")
    path.write_text("\n".join(lines))
    assert not any("more than once" in warning for warning in load_config(path).warnings)


def test_a_node_refuses_a_properties_file_that_is_not_text(tmp_path):
    path = tmp_path / "server.properties"
    path.write_bytes(b"a=\xff\xfe")
    with pytest.raises(PropertiesError, match="not UTF-8 at byte 2"):
        load_config(path)


STOCK = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=2
offsets.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
#log.flush.interval.messages=10000
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""
"""The settings of config/server.properties of Apache Kafka 4.x."""


def stock(**changes: str) -> dict[str, str]:
    properties = parse_properties(STOCK, source="server.properties")
    return properties | {key.replace("_", "."): value for key, value in changes.items()}


def test_a_node_accepts_the_properties_file_that_kafka_ships():
    config = parse_config(stock())
    assert config.roles == {"broker", "controller"}
    assert config.voters == {1: Endpoint("localhost", 9093)}
    assert config.values["esker.storage.directory.path"] == "/tmp/kraft-combined-logs/esker-objects"
    controller = config.addresses.controller
    assert controller is not None
    assert controller.bind == Endpoint("localhost", 9093), "its quorum has no other machine"
    assert config.addresses.clients[0].bind == Endpoint("", 9092)
    without_effect = config.warnings[-1]
    assert without_effect.startswith("settings of Kafka without effect here: ")
    for key in ("num.io.threads", "transaction.state.log.replication.factor"):
        assert key in without_effect
    for key in (
        "log.retention.hours",
        "num.partitions",
        "controller.quorum.bootstrap.servers",
        "socket.send.buffer.bytes",
    ):
        assert key not in without_effect
    assert limits_of(config).send_buffer_bytes == 102_400
    assert limits_of(parse_config(stock(socket_send_buffer_bytes="-1"))).send_buffer_bytes is None


def test_a_node_uses_the_setting_broker_id_if_the_setting_node_id_is_missing():
    properties = {key: value for key, value in stock(broker_id="7").items() if key != "node.id"}
    config = parse_config(properties)
    assert (config.node_id, set(config.voters)) == (7, {7})


def test_a_properties_file_with_several_quorum_addresses_must_name_voter_ids():
    with pytest.raises(ConfigError, match="must be set") as caught:
        parse_config(stock(controller_quorum_bootstrap_servers="a:1,b:1"))
    assert caught.value.key == "controller.quorum.voters"


@pytest.mark.parametrize(
    ("given", "default"),
    [
        ({}, "604800000"),
        ({"log_retention_hours": "1"}, "3600000"),
        ({"log_retention_minutes": "2"}, "120000"),
        ({"log_retention_ms": "3"}, "3"),
        ({"log_retention_hours": "-1"}, "-1"),
    ],
)
def test_retention_settings_in_the_properties_file_are_defaults_of_topics(given, default):
    assert parse_config(stock(**given)).topic_defaults["log.retention.ms"] == default


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("ssl.cipher.suites", "x", "not supported"),
        ("sasl.kerberos.service.name", "kafka", "not supported"),
        ("ssl.protocol", "SSLv3", "not supported"),
        ("authorizer.class.name", "org.A", "StandardAuthorizer"),
        ("super.users", "User:a;b", "is not a principal"),
        ("esker.controller.identity", "log", "needs authorizer.class.name"),
        ("esker.controller.identity", "enforce", "no peer has an identity"),
        ("esker.controller.identity", "on", "none of off, log, enforce"),
        ("esker.node.principals", "User:*", "one `*`"),
        ("esker.node.principals", "User:a*b*", "one `*`"),
        ("allow.everyone.if.no.acl.found", "perhaps", "neither true nor false"),
        ("zookeeper.connect", "a:2181", "no ZooKeeper"),
        ("config.providers", "file", "config providers"),
        ("create.topic.policy.class.name", "org.P", "Java"),
        ("delete.topic.enable", "false", "can always be deleted"),
        ("remote.log.storage.system.enable", "true", "tiered storage"),
        ("transaction.two.phase.commit.enable", "true", "two-phase commit"),
        ("log.retention.ms", "x", "Not a number"),
        ("num.io.treads", "8", "not a setting"),
        ("broker.rack", "${env:RACK}", "config providers"),
        ("num.io.threads", "${file:/threads:n}", "config providers"),
        ("zookeeper.session.timeout.ms", "18000", "no ZooKeeper"),
        ("zookeeper.clientCnxnSocket", "x", "no ZooKeeper"),
        ("esker.append.quiet.ms", f"{10**12}", "no more than 60000"),
        ("esker.append.objects.per.second", f"{10**12}", "no more than 100000"),
        ("esker.append.runs.per.second", f"{10**12}", "no more than 10000000"),
        ("esker.append.runs.per.second", "-1", "at least 0"),
        ("diskless.append.commit.interval.ms", "0", "at least 1"),
        ("diskless.append.commit.interval.ms", f"{10**12}", "no more than"),
        ("diskless.append.buffer.max.bytes", f"{10**12}", "no more than 1073741824"),
    ],
)
def test_a_node_refuses_a_kafka_setting_that_esker_lacks_and_may_not_ignore(key, value, reason):
    with pytest.raises(ConfigError, match=reason) as caught:
        parse_config({**GOOD, key: value})
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("delete.topic.enable", "true"),
        ("security.inter.broker.protocol", "SASL_SSL"),
        ("sasl.mechanism.inter.broker.protocol", "PLAIN"),
        ("ssl.protocol", "TLSv1.3"),
        ("ssl.keystore.location", ""),
        ("remote.log.storage.system.enable", "false"),
        ("transaction.two.phase.commit.enable", "false"),
    ],
)
def test_a_node_accepts_a_kafka_setting_that_esker_lacks_with_a_value_without_effect(key, value):
    assert parse_config({**GOOD, key: value})


def test_one_configuration_error_names_every_wrong_setting_of_a_node():
    with pytest.raises(ConfigError) as caught:
        parse_config({**GOOD, "node.id": "x", "nonsense": "1", "zookeeper.connect": "a"})
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == [
        "node.id",
        "nonsense",
        "zookeeper.connect",
    ]
    with pytest.raises(ConfigError) as caught:
        parse_config({**BROKER, "diskless.system.enable": "false", "log.dirs": ""})
    assert {line.partition(":")[0] for line in str(caught.value).splitlines()} == {
        "diskless.system.enable",
        "log.dirs",
    }


def test_a_node_reads_a_properties_file_with_carriage_returns():
    crlf = STOCK.replace("\n", "\r\n")
    assert parse_properties(crlf, source="x") == parse_properties(STOCK, source="x")


def test_the_controller_and_the_coordinators_get_the_configured_maximum_counts():
    given = {
        **GOOD,
        "esker.max.topics": "11",
        "esker.max.partitions": "12",
        "esker.max.producers": "13",
    }
    config = parse_config(given)
    limits = controller_settings(config, cluster_id="c", bootstrap=()).controller.limits
    assert (limits.max_topics, limits.max_partitions) == (11, 12)
    assert config.coordinators.settings("c", 0).max_producers == 13


def test_the_transaction_log_gets_the_configured_times_and_maximum_count():
    given = {
        **GOOD,
        "transaction.max.timeout.ms": "11",
        "transactional.id.expiration.ms": "12",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "13",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "14",
        "esker.max.transactional.ids": "15",
    }
    assert TransactionSettings.of(parse_config(given).values) == TransactionSettings(
        max_timeout_ms=11,
        id_expiration_ms=12,
        abort_interval_ms=13,
        expiry_interval_ms=14,
        max_ids=15,
    )


def test_a_node_refuses_to_forget_producers_sooner_than_a_batch_can_be_committed():
    late_ms = 15 * 60_000 + 60_000  # the defaults of the lease and of the upload
    assert parse_config({**GOOD, "producer.id.expiration.ms": f"{late_ms + 1}"})
    with pytest.raises(ConfigError, match=f"not above {late_ms}, esker.object.lease") as caught:
        parse_config({**GOOD, "producer.id.expiration.ms": f"{late_ms}"})
    assert caught.value.key == "producer.id.expiration.ms"
