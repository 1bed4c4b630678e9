"""A real Kafka node lives a little, so that its metadata log holds nearly every type of record.

One combined node, started twice. A second broker exists only as requests of ours to the controller:
registered, unfenced, given replicas, fenced and unregistered, which makes the controller change
partitions as it would in a real cluster. Segments are small and a snapshot is due every 6000 bytes,
so that there are several of each.

What no request to a 4.x controller brings about: FenceBroker, UnfenceBroker and ZkMigrationState
(no longer written) and AbortTransaction (only after a crash in the middle of one).
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from tests.interop.kafka_rpc import Connection, RpcError
from tests.interop.kafka_run import Kafka, Plan, configure_node
from tests.waiting import wait_until

CLUSTER_ID: Final = "ZXNrZXIgaW50ZXJvcCAwMQ"
SNAPSHOT_BYTES: Final = 6000

_JAAS: Final = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required"
    ' username="admin" password="secret" user_admin="secret";'
)
_SETTINGS: Final = {
    "internal.metadata.log.segment.bytes": "8192",
    "metadata.log.max.record.bytes.between.snapshots": str(SNAPSHOT_BYTES),
    "metadata.max.idle.interval.ms": "250",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS;User:admin",
    "delegation.token.secret.key": "not a secret",
    "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl.plain.sasl.jaas.config": _JAAS,
    "sasl.enabled.mechanisms": "PLAIN",
    "offsets.topic.replication.factor": "1",
    "broker.rack": "rack-1",
    "log.cleaner.dedupe.buffer.size": "2097152",
}
_FORMAT: Final = ("--add-scram", "SCRAM-SHA-256=[name=alice,password=alice-secret]")

_TIMEOUT: Final = timedelta(seconds=20)
_TOPIC, _BROKER = 2, 4  # resource types of a ConfigRecord
_SET, _DELETE = 0, 1  # operations of IncrementalAlterConfigs
_FAKE_BROKER: Final = 2


def write_log(kafka: Kafka, home: Path) -> Path:
    """Have a node write a metadata log and checkpoints below `home`, and stop it.

    Returns:  `log.dirs`: `meta.properties`, `bootstrap.checkpoint`, `__cluster_metadata-0`.
    """
    plan = configure_node(
        kafka,
        home,
        node_id=1,
        listeners={"SASL": "SASL_PLAINTEXT"},
        settings=_SETTINGS,
    )
    plan.format(CLUSTER_ID, "--standalone", *_FORMAT)
    _first_life(plan)
    _second_life(plan)
    return plan.directory


def write_static_voter_log(kafka: Kafka, home: Path) -> Path:
    """The same for a lone controller whose voters are in its settings (kraft.version 0)."""
    plan = configure_node(kafka, home, node_id=3000, roles="controller", dynamic_voters=False)
    plan.format(CLUSTER_ID)
    with plan.started(["CONTROLLER"]) as node:
        log = plan.directory / "__cluster_metadata-0" / f"{0:020}.log"
        wait_until(lambda: log.exists() and log.stat().st_size > 1000, state=node.said)
    return plan.directory


def _first_life(plan: Plan) -> None:
    listeners = ["PLAINTEXT", "SASL"]
    with (
        plan.started(listeners, archive_classes=True) as node,
        Connection(node.ports["PLAINTEXT"]) as broker,
    ):
        _topics(broker)
        _configs(broker)
        _users(broker)
        with Connection(node.ports["SASL"]) as secured:
            secured.authenticate_plain("admin", "secret")
            _delegation_tokens(secured)
        with Connection(node.ports["CONTROLLER"]) as controller:
            _second_broker(broker, controller)
        update = {"feature": "streams.version", "max_version_level": 0, "upgrade_type": 2}
        broker.call("update_features", 2, timeout=_TIMEOUT, feature_updates=[update])
        producer = {"transactional_id": None, "transaction_timeout": _TIMEOUT}
        _once_it_can(broker, "init_producer_id", 5, **producer)  # fetches a block of ids first


def _second_life(plan: Plan) -> None:
    """More topics until a checkpoint exists that covers more than the bootstrap records."""
    with plan.started(["PLAINTEXT"]) as node, Connection(node.ports["PLAINTEXT"]) as broker:
        for number in range(4):
            _create_topic(broker, f"more-{number}", partitions=12)
        wait_until(
            lambda: len(list(node.metadata_log.glob("*[1-9].checkpoint"))) > 0, state=node.said
        )


def _create_topic(broker: Connection, name: str, *, partitions: int, **more: Any) -> Any:
    topic = {"name": name, "num_partitions": partitions, "replication_factor": 1}
    topic |= {"assignments": [], "configs": []} | more
    return broker.call("create_topics", 7, topics=[topic])


def _topics(broker: Connection) -> None:
    _create_topic(
        broker,
        "orders",
        partitions=3,
        configs=[
            {"name": "retention.ms", "value": "86400000"},
            {"name": "min.insync.replicas", "value": "1"},
        ],
    )
    _create_topic(broker, "doomed", partitions=1)
    more = {"name": "orders", "count": 5, "assignments": None}
    broker.call("create_partitions", 3, topics=[more], timeout=_TIMEOUT, validate_only=False)
    broker.call("delete_topics", 6, topics=[{"name": "doomed", "topic_id": None}], timeout=_TIMEOUT)


def _configs(broker: Connection) -> None:
    def alter(kind: int, name: str, config: str, operation: int, value: str | None) -> None:
        change = {"name": config, "config_operation": operation, "value": value}
        resource = {"resource_type": kind, "resource_name": name, "configs": [change]}
        broker.call("incremental_alter_configs", 1, resources=[resource], validate_only=False)

    alter(_TOPIC, "orders", "max.message.bytes", _SET, "2000000")
    alter(_TOPIC, "orders", "retention.ms", _DELETE, None)  # a null value in the log
    alter(_TOPIC, "orders", "min.insync.replicas", _SET, "2")  # clears eligible leader replicas
    alter(_BROKER, "", "log.retention.ms", _SET, "90000000")  # every broker's default
    alter(_BROKER, "1", "background.threads", _SET, "6")


def _users(broker: Connection) -> None:
    # A mechanism of his own: where Kafka 4.3.1 loads the coming and the going of a user together,
    # its image forgets everybody else of that mechanism (MetadataShell does so every other time).
    scram = {"name": "bob", "mechanism": 2}
    credential = scram | {"iterations": 4096, "salt": b"salt", "salted_password": bytes(64)}
    broker.call("alter_user_scram_credentials", 0, deletions=[], upsertions=[credential])
    broker.call("alter_user_scram_credentials", 0, deletions=[scram], upsertions=[])

    def quota(entity: list[dict[str, Any]], value: float, *, remove: bool) -> None:
        op = {"key": "request_percentage", "value": value, "remove": remove}
        entry = {"entity": entity, "ops": [op]}
        broker.call("alter_client_quotas", 1, entries=[entry], validate_only=False)

    bob = [{"entity_type": "user", "entity_name": "bob"}]
    quota(bob, 62.5, remove=False)
    quota([{"entity_type": "client-id", "entity_name": None}], 12.25, remove=False)
    quota(bob, 0.0, remove=True)

    common = {"operation": 3, "permission_type": 3}
    acl = {"resource_type": 2, "resource_name": "orders", "principal": "User:bøb", "host": "*"}
    broker.call("create_acls", 3, creations=[acl | common])
    broker.call("create_acls", 3, creations=[acl | common | {"resource_name": "gone"}])
    chosen = {"resource_type_filter": 2, "resource_name_filter": "gone"}
    chosen |= {"principal_filter": None, "host_filter": None}
    broker.call("delete_acls", 3, filters=[chosen | common])


def _delegation_tokens(broker: Connection) -> None:
    request = {"owner_principal_type": None, "owner_principal_name": None}
    renewer = {"principal_type": "User", "principal_name": "carol"}
    life = {"renewers": [renewer], "max_lifetime": timedelta(hours=1)}
    broker.call("create_delegation_token", 3, **request, **life)
    token = broker.call("create_delegation_token", 3, **request, **life)
    now = timedelta(milliseconds=-1)

    # The broker knows a token only once it has read its own log that far.
    _once_it_can(broker, "expire_delegation_token", 2, hmac=token.hmac, expiry_time_period=now)


def _second_broker(broker: Connection, controller: Connection) -> None:
    """Register a broker that nobody runs, give it replicas, and let it go."""
    names = {"metadata.version": (7, 30), "kraft.version": (0, 1), "group.version": (0, 1)}
    names |= {"transaction.version": (0, 2), "eligible.leader.replicas.version": (0, 1)}
    names |= {"share.version": (0, 1), "streams.version": (0, 1)}
    epoch = controller.call(
        "broker_registration",
        4,
        broker_id=_FAKE_BROKER,
        cluster_id=CLUSTER_ID,
        incarnation_id=UUID(int=0xE5CE2),
        listeners=[
            {"name": "PLAINTEXT", "host": "127.0.0.1", "port": 65535, "security_protocol": 0}
        ],
        features=[
            {"name": name, "min_supported_version": low, "max_supported_version": high}
            for name, (low, high) in names.items()
        ],
        rack=None,
        log_dirs=[UUID(int=0xD1), UUID(int=0xD2)],
    ).broker_epoch

    def heartbeat(*, want_fence: bool = False, want_shut_down: bool = False) -> None:
        controller.call(
            "broker_heartbeat",
            1,
            broker_id=_FAKE_BROKER,
            broker_epoch=epoch,
            current_metadata_offset=epoch + 1_000_000,
            want_fence=want_fence,
            want_shut_down=want_shut_down,
        )

    heartbeat()  # unfenced
    both = [
        {"partition_index": 0, "broker_ids": [1, _FAKE_BROKER]},
        {"partition_index": 1, "broker_ids": [_FAKE_BROKER, 1]},
    ]
    two = {"name": "min.insync.replicas", "value": "2"}
    _create_topic(
        broker, "pair", partitions=-1, replication_factor=-1, assignments=both, configs=[two]
    )
    lone = {"assignments": [{"partition_index": 0, "broker_ids": [_FAKE_BROKER]}]}
    _create_topic(broker, "lone", partitions=-1, replication_factor=-1, **lone)
    heartbeat(want_shut_down=True)  # controlled shutdown: leadership moves to broker 1
    heartbeat(want_fence=True)
    move = {"partition_index": 0, "replicas": [1]}
    reassigned = {"name": "pair", "partitions": [move]}
    broker.call("alter_partition_reassignments", 0, topics=[reassigned])
    broker.call("unregister_broker", 0, broker_id=_FAKE_BROKER)


def _once_it_can(broker: Connection, name: str, version: int, **values: Any) -> None:
    """Repeat a request that the broker refuses for a short while."""
    refusal = None

    def accepted() -> bool:
        nonlocal refusal
        try:
            broker.call(name, version, **values)
        except RpcError as error:
            refusal = error
            return False
        return True

    wait_until(accepted, state=lambda: f"{refusal}")
