"""The table: scenarios by client, and what a client cannot do.

A new scenario is a function of a client and a world, and a row here. What is not tried for a client
stands in its row with the reason; there are no other gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

from tests.clients import scenarios_admin as admin
from tests.clients import scenarios_consume as consume
from tests.clients import scenarios_produce as produce
from tests.clients import scenarios_transactions as transactions
from tests.clients.aio import Aiokafka
from tests.clients.client import Client
from tests.clients.confluent import Confluent
from tests.clients.kafka_python import KafkaPython
from tests.clients.kcat import Kcat
from tests.clients.world import World

Scenario: TypeAlias = Callable[[Client, World], None]

CLIENTS: Final[tuple[type[Client], ...]] = (Confluent, Aiokafka, KafkaPython, Kcat)
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")

NO_ADMIN: Final = {Kcat.name: "kcat administers nothing"}
ONE_ADMIN: Final = NO_ADMIN | dict.fromkeys(
    (Aiokafka.name, KafkaPython.name), "asked with confluent-kafka only"
)
EAGER: Final = {Aiokafka.name: "aiokafka has eager assignors only"}
NO_TRANSACTIONS: Final = {Kcat.name: "kcat writes in no transactions"}
NO_TIMESTAMPS: Final = {Kcat.name: "kcat gives no timestamps"}


@dataclass(frozen=True, slots=True)
class Row:
    """One scenario."""

    name: str
    scenario: Scenario
    cannot: Mapping[str, str] = field(default_factory=dict)  # by client, and why
    of_kafka: bool = True  # whether Apache Kafka does it as well
    transaction_version: int | None = None  # that Esker's cluster is finalized at; None: any


ROWS: Final = (
    *(Row(f"codec {name}", partial(produce.codec, name=name)) for name in CODECS),
    Row("acks", produce.acks),
    Row("idempotent", produce.idempotent),
    Row("keyed", produce.keyed),
    Row("headers and nulls", produce.headers_and_nulls),
    Row("timestamps", produce.timestamps, NO_TIMESTAMPS),
    Row("impossible timestamps", produce.impossible_timestamps, NO_TIMESTAMPS),
    Row("large at the limit", produce.large_at_the_limit),
    Row("large over the limit", produce.large_over_the_limit),
    Row("auto created", produce.auto_created),
    Row("from the earliest", consume.from_the_earliest),
    Row("from the latest", consume.from_the_latest),
    Row("from an offset", consume.from_an_offset),
    Row("from a time", consume.from_a_time),
    Row("large messages", consume.large_messages),
    Row("alone", consume.alone),
    Row("group of two", consume.group_of_two),
    Row("commit and resume", consume.commit_and_resume),
    Row("static members", consume.static_members),
    Row("cooperative members", consume.cooperative_members, EAGER),
    Row("read committed", consume.read_committed),
    Row("out of range", consume.out_of_range),
    Row("several brokers", consume.several_brokers),
    Row("topic made anew", consume.topic_made_anew),
    Row("list topics", admin.list_topics),
    Row("create topic", admin.create_topic, NO_ADMIN),
    Row("create partitions", admin.create_partitions, NO_ADMIN),
    Row("delete topic", admin.delete_topic, NO_ADMIN),
    Row("delete records", admin.delete_records, NO_ADMIN),
    Row("describe configs", admin.describe_configs, NO_ADMIN),
    Row("alter configs", admin.alter_configs, NO_ADMIN),
    Row("replace configs", admin.replace_configs, ONE_ADMIN),
    Row("elections", admin.elections, ONE_ADMIN),
    Row("no security", admin.no_security, ONE_ADMIN),
    Row("groups", admin.groups, NO_ADMIN),
    Row("group offsets", admin.group_offsets, NO_ADMIN),
    Row(
        "delete groups",
        admin.delete_groups,
        NO_ADMIN | {Aiokafka.name: "aiokafka cannot delete groups"},
    ),
    Row("refused topics", admin.refused_topics, NO_ADMIN, of_kafka=False),
    Row("internal topics", admin.internal_topics, NO_ADMIN, of_kafka=False),
    Row("no transactions", admin.no_transactions, of_kafka=False, transaction_version=0),
    *(
        Row(scenario.__name__.replace("_", " "), scenario, NO_TRANSACTIONS, transaction_version=1)
        for scenario in (
            transactions.committed_transaction,
            transactions.aborted_transaction,
            transactions.open_transaction,
            transactions.empty_transactions,
            transactions.fenced_producer,
            transactions.timed_out_transaction,
            transactions.transactional_offsets,
        )
    ),
)

CELLS: Final = [
    (row, client) for row in ROWS for client in CLIENTS if client.name not in row.cannot
]


def cell_id(cell: tuple[Row, type[Client]]) -> str:
    row, client = cell
    return f"{row.name}, {client.name}"
