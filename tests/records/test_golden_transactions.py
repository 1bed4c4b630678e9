"""Golden bytes: the records of the transaction log, and the requests of brokers to its leader.

No Kafka release knows these messages; the bytes were written by hand from the field lists, by the
rules of KIP-482 (compact lengths are one more, tagged fields come last).
"""

from __future__ import annotations

from uuid import UUID

import pytest

from records.codec import decode_message, encode_message
from records.frame import decode_record, encode_record
from records.rpc import transaction_log as rpc
from records.schema import MetadataRecord
from records.transactions import (
    TransactionalIdOwnerRecord,
    TransactionalIdRemovedRecord,
    TransactionPartitionsRecord,
    TransactionsState,
    TransactionStateRecord,
)
from tests.records.golden import Golden, golden_name

TOPIC = UUID(int=7)
TOPIC_BYTES = (
    "00000000000000000000000000000007 02 74"  # topic id, topic name
    "02 00000003"  # one partition
    "00"
)

GOLDEN: list[Golden] = [
    Golden(
        TransactionalIdOwnerRecord(
            transactional_id="x",
            ownership_epoch=5,
            broker_id=1,
            broker_epoch=9,
            acquired_at_ms=256,
        ),
        0,
        "01 9209 00"  # frame version 1, type 1170, record version 0
        "02 78"  # transactional id: x
        "0000000000000005 00000001 0000000000000009"  # ownership epoch, broker and its epoch
        "0000000000000100"  # acquired at
        "00",
    ),
    Golden(
        TransactionStateRecord(
            transactional_id="x",
            producer_id=4000,
            producer_epoch=3,
            last_producer_epoch=2,
            timeout_ms=60_000,
            state=1,
            transaction_number=8,
            epoch_began_at_ms=255,
            started_at_ms=256,
            updated_at_ms=257,
        ),
        0,
        "01 9309 00 02 78"
        "0000000000000fa0 0003 0002"  # producer id, its epoch, its last epoch
        "0000ea60 01"  # timeout, state: Ongoing
        "0000000000000008"  # number of the transaction
        "00000000000000ff 0000000000000100 0000000000000101"  # epoch, transaction, update
        "00",
    ),
    Golden(
        TransactionStateRecord(
            transactional_id="x",
            producer_id=4000,
            producer_epoch=32767,
            last_producer_epoch=32766,
            previous_producer_id=3000,
            next_producer_id=5000,
            timeout_ms=60_000,
            state=2,
            client_version=2,
            transaction_number=8,
            epoch_began_at_ms=255,
            started_at_ms=256,
            updated_at_ms=257,
        ),
        0,
        "01 9309 00 02 78 0000000000000fa0 7fff 7ffe 0000ea60 02 0000000000000008"
        "00000000000000ff 0000000000000100 0000000000000101"
        "03"  # three tagged fields
        "00 08 0000000000000bb8"  # previous producer id
        "01 08 0000000000001388"  # next producer id
        "02 01 02",  # version of the protocol
    ),
    Golden(
        TransactionPartitionsRecord(
            transactional_id="x",
            transaction_number=8,
            topics=(
                TransactionPartitionsRecord.Topic(topic_id=TOPIC, topic_name="t", partitions=(3,)),
            ),
            metadata_offset=17,
            added_at_ms=256,
        ),
        0,
        "01 9409 00 02 78 0000000000000008"
        f"02 {TOPIC_BYTES}"
        "0000000000000011 0000000000000100"  # offset of the cluster log, time
        "00",
    ),
    Golden(
        TransactionalIdRemovedRecord(transactional_id="x", reason=0), 0, "01 9509 00 02 78 00 00"
    ),
    Golden(TransactionsState(next_ownership_epoch=6), 0, "01 9609 00 0000000000000006 00"),
]

RPC_TOPIC = rpc.TransactionTopic(topic_id=TOPIC, topic_name="t", partitions=(3,))

RPCS: list[Golden] = [
    Golden(
        rpc.AcquireTransactionalIdRequest(
            transactional_id="x", broker_id=1, broker_epoch=9, create=True
        ),
        0,
        "02 78 00000001 0000000000000009 01 00",
    ),
    Golden(
        rpc.AcquireTransactionalIdResponse(ownership_epoch=5),
        0,
        "00000000 0000 00 0000000000000005 00",
    ),
    Golden(
        rpc.InitTransactionalIdRequest(
            transactional_id="x", ownership_epoch=5, timeout_ms=60_000, spare_producer_id=4000
        ),
        0,
        "02 78 0000000000000005 0000ea60"  # id, ownership epoch, timeout
        "ffffffffffffffff ffff 0000000000000fa0 00",  # no producer, the spare producer id
    ),
    Golden(
        rpc.InitTransactionalIdResponse(producer_id=4000, producer_epoch=0),
        0,
        "00000000 0000 00 0000000000000fa0 0000 00",
    ),
    Golden(
        rpc.AddTransactionPartitionsRequest(
            transactional_id="x",
            ownership_epoch=5,
            producer_id=4000,
            producer_epoch=3,
            topics=(RPC_TOPIC,),
            metadata_offset=17,
        ),
        0,
        f"02 78 0000000000000005 0000000000000fa0 0003 02 {TOPIC_BYTES} 0000000000000011 00",
    ),
    Golden(
        rpc.AddTransactionPartitionsResponse(transaction_number=8),
        0,
        "00000000 0000 00 0000000000000008 00",
    ),
    Golden(
        rpc.EndTransactionRequest(
            transactional_id="x",
            ownership_epoch=5,
            producer_id=4000,
            producer_epoch=3,
            committed=True,
            client_version=0,
        ),
        0,
        "02 78 0000000000000005 0000000000000fa0 0003 01 00 00",
    ),
    Golden(
        rpc.EndTransactionRequest(
            transactional_id="x",
            ownership_epoch=5,
            producer_id=4000,
            producer_epoch=32766,
            committed=False,
            client_version=2,
            spare_producer_id=5000,
        ),
        0,
        "02 78 0000000000000005 0000000000000fa0 7ffe 00 02 01 00 08 0000000000001388",
    ),
    Golden(
        rpc.EndTransactionResponse(producer_id=5000, producer_epoch=0),
        0,
        "00000000 0000 00 0000000000001388 0000 00",
    ),
    Golden(
        rpc.ProveTransactionRequest(
            transactional_id="x", producer_id=4000, producer_epoch=3, topics=(RPC_TOPIC,)
        ),
        0,
        f"02 78 0000000000000fa0 0003 02 {TOPIC_BYTES} 00 ffffffffffffffff 00",
    ),
    Golden(
        rpc.ProveTransactionResponse(
            error_code=120,
            transaction_number=8,
            log_offset=99,
            epoch_began_at_ms=255,
            missing=(rpc.ProveTransactionResponse.MissingTopic(topic_id=TOPIC, partitions=(3,)),),
        ),
        0,
        "00000000 0078 00"
        "0000000000000008 0000000000000063 00000000000000ff"  # number, log offset, epoch's begin
        "02 00000000000000000000000000000007 02 00000003 00 00",
    ),
    Golden(rpc.DescribeTransactionalIdsRequest(transactional_ids=("x",)), 0, "02 02 78 00"),
    Golden(
        rpc.DescribeTransactionalIdsResponse(
            states=(
                rpc.DescribeTransactionalIdsResponse.State(
                    transactional_id="x",
                    state=1,
                    producer_id=4000,
                    producer_epoch=3,
                    timeout_ms=60_000,
                    transaction_number=8,
                    started_at_ms=256,
                    topics=(RPC_TOPIC,),
                ),
            )
        ),
        0,
        "00000000 0000 00"
        "02 02 78 01 0000000000000fa0 0003 0000ea60"  # id, state, producer and epoch, timeout
        f"0000000000000008 0000000000000100 02 {TOPIC_BYTES} 00 00",
    ),
    Golden(
        rpc.CheckTransactionRequest(producer_id=4000, transaction_number=8),
        0,
        "0000000000000fa0 0000000000000008 00",
    ),
    Golden(rpc.CheckTransactionResponse(error_code=48), 0, "00000000 0030 00 00"),
]


@pytest.mark.parametrize("golden", GOLDEN, ids=golden_name)
def test_each_transaction_log_record_has_its_golden_bytes(golden: Golden) -> None:
    record = golden.message
    assert isinstance(record, MetadataRecord)
    assert encode_record(record, golden.version) == golden.encoded
    assert decode_record(golden.encoded) == record


@pytest.mark.parametrize("golden", RPCS, ids=golden_name)
def test_each_transaction_log_message_has_its_golden_bytes(golden: Golden) -> None:
    assert encode_message(golden.message, golden.version) == golden.encoded
    assert decode_message(type(golden.message), golden.encoded, golden.version) == golden.message
