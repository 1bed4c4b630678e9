"""Writes lines as record batches: partitioned, in order, and without duplicates.

Records are collected for a moment, a batch for each partition, and sent together; the next batches
leave when these are answered. So order within a partition holds whatever fails between, at the
price of one batch of each partition in flight. With acks=all the producer is idempotent: a batch
whose answer was lost is sent again under the same sequence number, and the broker knows it.

Keys choose their partition by murmur2, as the Java clients do: a key's records lie together
whichever of the two wrote them. Records without a key fill one partition's batch at a time.

Source: KIP-98 (idempotent producers), KIP-480 (sticky partitions); upstream's Utils.murmur2.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from esker.client.client import ClientError, KafkaClient, no_such_partition
from raft.net.errors import NetError
from raft.net.rpc import request_kind
from records.batch_writer import build_batch
from records.codec import encode_parts
from records.compression import Compression
from records.kafka_errors import ErrorCode, error_name
from records.rpc.cluster import MetadataRequest, MetadataResponse
from records.rpc.partitions import InitProducerIdRequest, InitProducerIdResponse
from records.rpc.produce import ProduceRequest, ProduceResponse

PRODUCE_VERSION: Final = 12  # the last that names topics
BATCH_BYTES: Final = 512 * 1024
"""Bytes of keys and values at which a batch is full; brokers accept a mebibyte by default."""
RECORD_OVERHEAD_BYTES: Final = 16
MAX_SEQUENCE: Final = 2**31 - 1
ACKS: Final = {"0": 0, "1": 1, "all": -1}

_UNKNOWN: Final = frozenset(
    {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
)
"""Timed out, or too few replicas after it was appended: it may be there."""


class Line(NamedTuple):
    """A record to be written."""

    key: bytes | None
    value: bytes
    timestamp: int  # ms since 1970


def murmur2(data: bytes) -> int:
    """Return Kafka's murmur2 hash of a key, as an unsigned 32-bit number.

    >>> murmur2(b"21") == -973932308 % 2**32
    True
    """
    multiplier, mask = 0x5BD1E995, 0xFFFFFFFF
    size = len(data)
    hashed = 0x9747B28C ^ size
    whole = size - size % 4
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * multiplier & mask
        word = (word ^ word >> 24) * multiplier & mask
        hashed = (hashed * multiplier & mask) ^ word
    if rest := data[whole:]:
        hashed = (hashed ^ int.from_bytes(rest, "little")) * multiplier & mask
    hashed = (hashed ^ hashed >> 13) * multiplier & mask
    return hashed ^ hashed >> 15


def partition_of(key: bytes, count: int) -> int:
    """Return the partition of a key, by the key's hash among `count` partitions.

    >>> partition_of(b"21", 1), partition_of(b"foobar", 4)
    (0, 2)
    """
    return (murmur2(key) & 0x7FFFFFFF) % count


class Producer:
    """Writes to one topic. `records` and `bytes` count the acknowledged records."""

    def __init__(
        self,
        client: KafkaClient,
        topic: str,
        *,
        acks: int = -1,
        compression: Compression = Compression.NONE,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """Prepare a producer for one topic; `acks` is 0, 1 or -1 (all).

        Args:    partition: of all records; None: by key, or in turn. headers: of each record.
        """
        self.records = 0
        self.bytes = 0
        self._client = client
        self._topic = topic
        self._acks = acks
        self._compression = compression
        self._partition = partition
        self._headers = tuple(headers)
        self._overhead_bytes = RECORD_OVERHEAD_BYTES + sum(
            len(name) + len(value) for name, value in self._headers
        )
        self._leaders: dict[int, int] = {}
        self._producer: tuple[int, int] = (-1, -1)  # id and epoch
        self._sequences: dict[int, int] = {}
        self._turn = 0

    async def begin(self) -> None:
        """Find the topic, or create it if the cluster allows, and request a producer id.

        Raises:  ClientError.
        """
        self._leaders = await self._client.leaders(self._topic, create=True)
        if self._partition is not None and self._partition not in self._leaders:
            raise ClientError(no_such_partition(self._topic, self._partition, self._leaders))
        if self._acks == -1:
            self._producer = await self._client.patiently(self._producer_id)

    async def _producer_id(self) -> tuple[int, int]:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        answer = await self._client.ask_any(request, InitProducerIdResponse)
        if answer.error_code:
            name = error_name(answer.error_code)
            raise ClientError(f"no producer id: {name}", answer.error_code)
        return answer.producer_id, answer.producer_epoch

    async def send(self, lines: Sequence[Line]) -> None:
        """Write lines to the topic as batches, in order per partition. Raises ClientError."""
        waiting = self._by_partition(lines)
        while waiting:
            batches = {}
            for partition, some in list(waiting.items()):
                batches[partition] = some[0]
                if len(some) == 1:
                    del waiting[partition]
                else:
                    waiting[partition] = some[1:]
            await asyncio.gather(*(self._write(one, some) for one, some in batches.items()))

    def _by_partition(self, lines: Iterable[Line]) -> dict[int, list[list[Line]]]:
        """Group lines by partition, in order, into the batches to write."""
        found: dict[int, list[list[Line]]] = {}
        sizes: dict[int, int] = {}
        fixed = self._partition
        keyless = self._turn
        for line in lines:
            partition = keyless if fixed is None else fixed
            if line.key is not None and fixed is None:
                partition = partition_of(line.key, len(self._leaders))
            batches = found.setdefault(partition, [[]])
            size = len(line.value) + len(line.key or b"") + self._overhead_bytes
            if batches[-1] and sizes[partition] + size > BATCH_BYTES:
                if line.key is None and fixed is None:  # the next partition's turn
                    self._turn = keyless = (keyless + 1) % len(self._leaders)
                    partition = keyless
                    batches = found.setdefault(partition, [[]])
                if batches[-1]:
                    batches.append([])
                sizes[partition] = 0
            batches[-1].append(line)
            sizes[partition] = sizes.get(partition, 0) + size
        self._turn = (keyless + 1) % len(self._leaders)
        return found

    async def _write(self, partition: int, lines: list[Line]) -> None:
        """Write one batch, retrying until a broker answers."""
        sequence = self._sequences.get(partition, 0)
        producer_id, producer_epoch = self._producer
        batch = build_batch(
            [(line.key, line.value, line.timestamp, self._headers) for line in lines],
            base_offset=0,
            leader_epoch=-1,
            compression=self._compression,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence if producer_id >= 0 else -1,
        )
        wanted = ProduceRequest.TopicProduceData
        data = wanted.PartitionProduceData(index=partition, records=bytes(batch))
        request = ProduceRequest(
            acks=self._acks,
            timeout_ms=min(self._client.timeout_ms, 30_000),
            topic_data=(wanted(name=self._topic, partition_data=(data,)),),
        )
        if self._acks == 0:
            await self._unanswered(partition, request)
        else:
            await self._client.patiently(lambda: self._attempt(partition, request))
        self._sequences[partition] = (sequence + len(lines)) % (MAX_SEQUENCE + 1)
        self.records += len(lines)
        self.bytes += sum(len(line.value) + len(line.key or b"") for line in lines)

    async def _attempt(self, partition: int, request: ProduceRequest) -> None:
        leader = self._leaders.get(partition)
        if leader is None:  # the topic was made anew, smaller
            raise ClientError(f"{self._topic} has no partition {partition} any more")
        try:
            answer = await self._client.ask(leader, request, ProduceResponse, most=PRODUCE_VERSION)
        except NetError:
            self._leaders = await self._client.leaders(self._topic)
            if self._producer[0] < 0:  # it may be there, and nobody would know it again
                raise self._doubt(partition, "no answer") from None
            raise
        (found,) = answer.responses[0].partition_responses
        if found.error_code and found.error_code != ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            said = f": {found.error_message}" if found.error_message else ""
            if self._producer[0] < 0 and found.error_code in _UNKNOWN:
                raise self._doubt(partition, error_name(found.error_code))
            message = f"{self._topic}-{partition}: {error_name(found.error_code)}{said}"
            self._leaders = await self._client.leaders(self._topic)
            raise ClientError(message, found.error_code)

    def _doubt(self, partition: int, why: str) -> ClientError:
        where = f"{self._topic}-{partition}"
        return ClientError(f"{where}: {why}; the last batch may be written or not")

    async def _unanswered(self, partition: int, request: ProduceRequest) -> None:
        """Send a Produce with acks=0, then wait for the response to a later request."""
        try:
            rpc = await self._client.connection(self._leaders[partition])
            version = min(rpc.version_for(ProduceRequest), PRODUCE_VERSION)
            kind = request_kind(ProduceRequest, version)
            rpc.connection.send(kind, tuple(encode_parts(request, version)), None)
            await rpc.call(MetadataRequest(topics=()), MetadataResponse)
        except NetError as error:
            raise ClientError(f"{error}: batches without acknowledgement may be lost") from error
