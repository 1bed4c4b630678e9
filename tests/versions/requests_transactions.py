"""Requests of producers to brokers, and of brokers to the transaction log, as they really ask."""

from __future__ import annotations

from records.rpc import transaction_log as rpc
from records.rpc import transactions
from records.rpc.base import Request
from tests.versions.scene import Scene

ID = "transactional"


def _topics(scene: Scene) -> tuple[rpc.TransactionTopic, ...]:
    return (rpc.TransactionTopic(topic_id=scene.topic_id, topic_name="t", partitions=(0,)),)


def acquire(scene: Scene) -> tuple[Request, ...]:
    return tuple(
        rpc.AcquireTransactionalIdRequest(
            transactional_id=ID, broker_id=1, broker_epoch=scene.broker_epoch, create=create
        )
        for create in (True, False)
    )


def init(_: Scene) -> tuple[Request, ...]:
    return (
        rpc.InitTransactionalIdRequest(
            transactional_id=ID, ownership_epoch=1, timeout_ms=60_000, spare_producer_id=4000
        ),
    )


def add(scene: Scene) -> tuple[Request, ...]:
    return (
        rpc.AddTransactionPartitionsRequest(
            transactional_id=ID,
            ownership_epoch=1,
            producer_id=4000,
            producer_epoch=0,
            topics=_topics(scene),
            metadata_offset=10,
        ),
    )


def end(_: Scene) -> tuple[Request, ...]:
    return (
        rpc.EndTransactionRequest(
            transactional_id=ID,
            ownership_epoch=1,
            producer_id=4000,
            producer_epoch=0,
            committed=True,
            client_version=0,
        ),
    )


def prove(scene: Scene) -> tuple[Request, ...]:
    return tuple(
        rpc.ProveTransactionRequest(
            transactional_id=ID,
            producer_id=4000,
            producer_epoch=0,
            topics=_topics(scene),
            adds=adds,
            metadata_offset=10,
        )
        for adds in (True, False)
    )


def describe(_: Scene) -> tuple[Request, ...]:
    return (rpc.DescribeTransactionalIdsRequest(transactional_ids=(ID, "nobody")),)


def check(_: Scene) -> tuple[Request, ...]:
    return (rpc.CheckTransactionRequest(producer_id=4000, transaction_number=1),)


def add_partitions(scene: Scene) -> tuple[Request, ...]:
    topic = transactions.AddPartitionsToTxnTopic
    return tuple(
        transactions.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=4000,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=(topic(name=scene.topic, partitions=(0, 9)),),
        )
        for name in (ID, "")
    )


def add_offsets(_: Scene) -> tuple[Request, ...]:
    return tuple(
        transactions.AddOffsetsToTxnRequest(
            transactional_id=name, producer_id=4000, producer_epoch=0, group_id=group
        )
        for name, group in ((ID, "group"), (ID, ""), ("", "group"))
    )


def end_transaction(_: Scene) -> tuple[Request, ...]:
    return tuple(
        transactions.EndTxnRequest(
            transactional_id=name, producer_id=4000, producer_epoch=0, committed=committed
        )
        for name, committed in ((ID, True), (ID, False), ("", True))
    )
