"""A small blocking client, for tests: one connection, one request at a time."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from types import TracebackType
from typing import Self, TypeVar

from raft.driver.peers import kind_of
from raft.net import request_header
from records.batch import iter_batches, iter_records
from records.batch_writer import build_batch, build_value_batch
from records.codec import decode_message, encode_message
from records.rpc import (
    API,
    Request,
    Response,
    cluster,
    fetch,
    list_offsets,
    produce,
    quorum,
    snapshots,
)
from records.rpc.snapshots import TakeSnapshotResponse

R = TypeVar("R", bound=Response)


class ClientError(Exception):
    """An answer with an error code."""

    def __init__(self, error: int) -> None:
        super().__init__(f"error {error}")
        self.error = error


class Client:
    """A connection to one node. Its methods raise OSError if the connection ends."""

    def __init__(
        self, host: str, port: int, *, timeout_s: float = 20, client_id: str = "test"
    ) -> None:
        self.socket = socket.create_connection((host, port), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation = 0
        self._client_id = client_id

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def ask(self, request: Request, answer: type[R], version: int) -> R:
        """Send a request, wait for its answer."""
        key = type(request).schema().key
        assert key is not None, request
        assert API[key].response is answer, request
        kind = kind_of(key, version)
        self._correlation += 1
        head = request_header(kind, self._correlation, self._client_id)
        body = head + encode_message(request, version)
        self.socket.sendall(struct.pack(">i", len(body)) + body)
        frame = self.receive_frame()
        assert struct.unpack_from(">i", frame)[0] == self._correlation, "answers out of order"
        return decode_message(answer, frame[5 if kind.answer_flexible else 4 :], version)

    def receive_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._receive(4))
        return self._receive(size)

    def _receive(self, size: int) -> bytes:
        parts = []
        while size:
            part = self.socket.recv(size)
            if not part:
                raise ConnectionResetError("closed by the server")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    # --- what tests ask -----------------------------------------------------------------------

    def produce(
        self, values: Sequence[bytes], topic: str = "esker-bench-log", *, version: int = 9
    ) -> int:
        """Append values as one batch; the offset of the first, once committed."""
        batch = build_value_batch(values, base_offset=0, leader_epoch=-1, timestamp=0)
        return self.produce_batch(bytes(batch), topic, version=version)

    def produce_keyed(
        self,
        records: Sequence[tuple[bytes | None, bytes | None]],
        topic: str = "esker-bench-log",
    ) -> int:
        """The same of records with keys; a value of None deletes its key."""
        rows = [(key, value, 0, ()) for key, value in records]
        batch = build_batch(rows, base_offset=0, leader_epoch=-1)
        return self.produce_batch(bytes(batch), topic)

    def produce_batch(
        self, batch: bytes, topic: str = "esker-bench-log", *, version: int = 9
    ) -> int:
        """Append a batch as it is; the offset of its first record, once committed."""
        data = produce.ProduceRequest.TopicProduceData
        request = produce.ProduceRequest(
            acks=-1,
            timeout_ms=5_000,
            topic_data=(
                data(
                    name=topic,
                    partition_data=(data.PartitionProduceData(index=0, records=batch),),
                ),
            ),
        )
        response = self.ask(request, produce.ProduceResponse, version)
        partition = response.responses[0].partition_responses[0]
        if partition.error_code:
            raise ClientError(partition.error_code)
        return partition.base_offset

    def end_offset(self, topic: str = "esker-bench-log") -> int:
        """The linearizable end of a group."""
        data = list_offsets.ListOffsetsRequest.ListOffsetsTopic
        partition = data.ListOffsetsPartition(partition_index=0, timestamp=-1)
        request = list_offsets.ListOffsetsRequest(
            replica_id=-1, topics=(data(name=topic, partitions=(partition,)),)
        )
        response = self.ask(request, list_offsets.ListOffsetsResponse, 6)
        answer = response.topics[0].partitions[0]
        if answer.error_code:
            raise ClientError(answer.error_code)
        return answer.offset

    def read(
        self, offset: int, topic: str = "esker-bench-log", *, max_wait_ms: int = 0
    ) -> list[tuple[int, bytes]]:
        """Committed records from an offset on, as a consumer: (offset, value)."""
        data = fetch.FetchRequest.FetchTopic
        partition = data.FetchPartition(
            partition=0, fetch_offset=offset, partition_max_bytes=8 * 1024 * 1024
        )
        request = fetch.FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            topics=(data(topic=topic, partitions=(partition,)),),
        )
        response = self.ask(request, fetch.FetchResponse, 12)
        if response.error_code:
            raise ClientError(response.error_code)
        answer = response.responses[0].partitions[0]
        if answer.error_code:
            raise ClientError(answer.error_code)
        return [
            (record.offset, bytes(record.value or b""))
            for batch in iter_batches(answer.records or b"")
            if not batch.header.is_control
            for record in iter_records(batch)
            if record.offset >= offset
        ]

    def describe(
        self, topic: str = "__cluster_metadata"
    ) -> quorum.DescribeQuorumResponse.TopicData.PartitionData:
        """Return the DescribeQuorum answer of a group."""
        data = quorum.DescribeQuorumRequest.TopicData
        request = quorum.DescribeQuorumRequest(
            topics=(data(topic_name=topic, partitions=(data.PartitionData(partition_index=0),)),)
        )
        response = self.ask(request, quorum.DescribeQuorumResponse, 2)
        return response.topics[0].partitions[0]

    def snapshots(
        self, topic: str = "esker-bench-log"
    ) -> snapshots.DescribeSnapshotsResponse.Group:
        """What this node has of a group's checkpoints."""
        asked = snapshots.DescribeSnapshotsRequest.Topic(topic_name=topic, partitions=(0,))
        request = snapshots.DescribeSnapshotsRequest(topics=(asked,))
        return self.ask(request, snapshots.DescribeSnapshotsResponse, 0).groups[0]

    def take_snapshot(
        self, topic: str = "esker-bench-log", timeout_ms: int = 30_000
    ) -> TakeSnapshotResponse:
        """Have this node take a checkpoint now."""
        request = snapshots.TakeSnapshotRequest(
            topic_name=topic, partition_index=0, timeout_ms=timeout_ms
        )
        return self.ask(request, snapshots.TakeSnapshotResponse, 0)

    def fetch_snapshot(self, *asked: tuple[str, dict], **fields: object) -> list:
        """FetchSnapshot of several partitions, `(topic, fields of the partition)` each."""
        topic = fetch.FetchSnapshotRequest.TopicSnapshot
        partition = topic.PartitionSnapshot
        topics = tuple(
            topic(
                name=name,
                partitions=(
                    partition(
                        partition=values.get("partition", 0),
                        current_leader_epoch=values["epoch"],
                        snapshot_id=partition.SnapshotId(
                            end_offset=values["id"][0], epoch=values["id"][1]
                        ),
                        position=values.get("position", 0),
                    ),
                ),
            )
            for name, values in asked
        )
        request = fetch.FetchSnapshotRequest(topics=topics, **{"replica_id": 77, **fields})
        response = self.ask(request, fetch.FetchSnapshotResponse, 1)
        if response.error_code:
            raise ClientError(response.error_code)
        return [topic.partitions[0] for topic in response.topics]

    def versions(self) -> cluster.ApiVersionsResponse:
        """What the node speaks."""
        request = cluster.ApiVersionsRequest(
            client_software_name="test", client_software_version="1"
        )
        return self.ask(request, cluster.ApiVersionsResponse, 4)
