"""Brokers with local segments, whose topic `t` has one partition that is cut into chunks.

    def story(work): ...      # runs work(Chunks) on a virtual loop

`Chunks.read` is a consumer that goes where it is led, as Java's and librdkafka's do.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from diskless.apis import chunks
from diskless.apis.metadata import ClientView, describe
from diskless.fetch.local_segments.format import TopicPartition
from diskless.stores.memory import MemoryStore
from records.rpc import chunks as rpc
from records.rpc.cluster import MetadataRequest
from tests.diskless.calling import Caller, call
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.records_world import RecordsBroker, batch, values
from tests.diskless.virtual_time import run

SETTLED_S: Final = 40.0  # for warming and one pass of the filler
MOVES: Final = 20  # between brokers; more is a circle

_Asked = rpc.CreateChunksRequest.TopicPartition
_Move = rpc.AlterChunkAssignmentsRequest.Assignment


class Chunks:
    """Brokers over one store, each with a directory of local segments."""

    def __init__(self, world: ClusterWorld, broker_ids: tuple[int, ...], directory: Path) -> None:
        self.world = world
        self.memory = MemoryStore(world.wall_ms)
        self.brokers = {one: RecordsBroker(world, one, self.memory) for one in broker_ids}
        self.directory = directory
        self.handlers = chunks.handlers(world.cluster(broker_ids[0]), world.wall_ms)
        self.written = 0

    async def begin(self, **settings: Any) -> None:
        for broker_id, broker in self.brokers.items():
            await broker.begin_segments(self.directory / str(broker_id), **settings)

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.world.image.topic("t").topic_id, 0)

    async def write(self, count: int, broker_id: int, size: int = 1) -> None:
        """Write records through a broker, each in an object of its own."""
        for number in range(self.written, self.written + count):
            data = batch(number, now_ms=self.world.wall_ms(), size=size)
            assert not (await self.brokers[broker_id].produce("t", 0, data)).error_code
        self.written += count

    async def create(self, *replicas: int, active_start: int = -1) -> int:
        """Create a chunk at the partition's end; return the error code."""
        asked = _Asked(
            topic_name="t", partition_id=0, broker_ids=replicas, start_offset=-1,
            start_timestamp=-1, prev_stop_offset=-1, active_start_offset=active_start,
        )  # fmt: skip
        request = rpc.CreateChunksRequest(topic_partitions=(asked,))
        answer = await call(self.handlers, request, rpc.CreateChunksResponse, 0)
        return answer.results[0].error_code

    async def move(self, start: int, *replicas: int) -> None:
        """Give a closed chunk to other replicas."""
        asked = _Move(topic_name="t", partition_id=0, start_offset=start, broker_ids=replicas)
        request = rpc.AlterChunkAssignmentsRequest(chunks=(asked,))
        answer = await call(self.handlers, request, rpc.AlterChunkAssignmentsResponse, 0)
        assert not answer.results[0].error_code, answer

    async def metadata(self, rack: str | None = None) -> Any:
        """Describe the partition to a client of a rack."""
        topic = MetadataRequest.MetadataRequestTopic(name="t")
        view = ClientView("c-1", "PLAIN", rack)
        answer = await describe(MetadataRequest(topics=(topic,)), 12, self.world.image, view)
        return answer.topics[0].partitions[0]

    async def read(
        self, offset: int = 0, *, host: str = "10.0.0.7", rack: str = "", version: int = 12
    ) -> list[tuple[int, tuple[int, ...]]]:
        """Read to the end from the leader on; return each broker that answered, with its offsets.

        A hop from broker to broker is not in the list; too many of them in a row fail.
        """
        leader_id = (await self.metadata(rack or None)).leader_id
        here, found, moves = leader_id, [], 0
        while offset < self.written:
            answer = await self.brokers[here].fetch(
                "t", 0, offset, rack=rack, version=version, caller=Caller(f"{host}:1")
            )
            assert not answer.error_code, answer
            if answer.preferred_read_replica != -1:
                assert not answer.records
                here, moves = answer.preferred_read_replica, moves + 1
                assert moves < MOVES, f"sent in circles at offset {offset}"
                continue
            offsets = tuple(at for at, _ in values(answer.records) if at >= offset)
            assert offsets, f"nothing at offset {offset} from broker {here}"
            assert offsets == tuple(range(offset, offset + len(offsets)))
            found.append((here, offsets))
            offset, moves = offsets[-1] + 1, 0
        return found

    async def settle(self) -> None:
        await asyncio.sleep(SETTLED_S)

    def kept(self, broker_id: int) -> set[int]:
        """Return the offsets that a broker has in local segments."""
        segments = self.brokers[broker_id].segments
        assert segments is not None
        return {
            offset
            for segment in segments.segments(self.partition)
            for entry in segment.ranges()
            for offset in range(entry.first_offset, entry.last_offset + 1)
        }

    def forget(self) -> None:
        """Empty all memory caches."""
        for broker in self.brokers.values():
            for key in self.memory.objects:
                broker.cache.forget(key)

    @property
    def gets(self) -> int:
        return sum(broker.cache.counters.gets for broker in self.brokers.values())

    async def end(self) -> None:
        for broker in self.brokers.values():
            await broker.end()


def story(
    work: Callable[[Chunks], Awaitable[None]],
    *,
    brokers: tuple[int, ...] = (0, 1, 2),
    replicas: tuple[int, ...] = (0,),
    racks: Mapping[int, str] | None = None,
    **settings: Any,
) -> None:
    """Run a story; the partition starts on `replicas`."""

    async def on_loop() -> None:
        with tempfile.TemporaryDirectory() as directory:
            async with ClusterWorld(brokers=brokers, racks=racks) as world:
                await world.create("t", -1, factor=-1, assignments={0: replicas})
                for broker_id in brokers:
                    (Path(directory) / str(broker_id)).mkdir()
                made = Chunks(world, brokers, Path(directory))
                await made.begin(**settings)
                await work(made)
                await made.end()

    run(on_loop)
