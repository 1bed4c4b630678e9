"""Produce and Fetch without a library in between: the error codes as the broker says them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from records.batch import iter_batches, iter_records
from records.batch_writer import build_value_batch
from records.rpc.fetch import FetchRequest, FetchResponse
from records.rpc.produce import ProduceRequest, ProduceResponse
from tests.raft.driver.client import Client as Wire
from tests.waiting import DEADLINE_S

PRODUCE_VERSION: Final = 9
FETCH_VERSION: Final = 11
MAX_BYTES: Final = 4 * 1024 * 1024


class Fetched(NamedTuple):
    """One partition's part of an answer."""

    error_code: int
    high_watermark: int
    values: tuple[tuple[int, bytes], ...]  # offset and value; checksums are verified


def produce(
    address: tuple[str, int], topic: str, values: Sequence[bytes], *, timeout_ms: int = 10_000
) -> tuple[int, int]:
    """One batch to partition 0, with acks=all and no producer id: error code and base offset."""
    now_ms = time.time_ns() // 1_000_000  # older ones are retention's
    batch = build_value_batch(values, base_offset=0, leader_epoch=-1, timestamp=now_ms)
    data = ProduceRequest.TopicProduceData
    partition = data.PartitionProduceData(index=0, records=bytes(batch))
    request = ProduceRequest(
        acks=-1, timeout_ms=timeout_ms,
        topic_data=(data(name=topic, partition_data=(partition,)),),
    )  # fmt: skip
    with Wire(*address, timeout_s=timeout_ms / 1000 + DEADLINE_S) as wire:
        answer = wire.ask(request, ProduceResponse, PRODUCE_VERSION)
    (found,) = answer.responses[0].partition_responses
    return found.error_code, found.base_offset


def fetch(
    address: tuple[str, int], topic: str, offset: int, partition: int = 0, *, max_wait_ms: int = 500
) -> Fetched:
    """One Fetch of one partition, at whichever broker."""
    asked = FetchRequest.FetchTopic
    place = asked.FetchPartition(
        partition=partition, fetch_offset=offset, partition_max_bytes=MAX_BYTES
    )
    request = FetchRequest(
        max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=MAX_BYTES,
        topics=(asked(topic=topic, partitions=(place,)),),
    )  # fmt: skip
    with Wire(*address, timeout_s=DEADLINE_S) as wire:
        answer = wire.ask(request, FetchResponse, FETCH_VERSION)
    (found,) = answer.responses[0].partitions
    records = [
        (record.offset, bytes(record.value or b""))
        for batch in iter_batches(found.records or b"")
        for record in iter_records(batch)
        if record.offset >= offset
    ]
    return Fetched(found.error_code, found.high_watermark, tuple(records))
