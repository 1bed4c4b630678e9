"""A broker with local segments, whose answers are compared with those of a broker without.

    def story(work): ...      # runs work(World) on a virtual loop, in a directory of its own

Both brokers share one store and one coordinator. `forget` empties the memory cache of the first, so
that a read is either from the disk or a GET.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

from diskless.compaction.service import Rewriting
from diskless.fetch.local_segments.cache import LocalSegments
from diskless.fetch.local_segments.format import TopicPartition
from records.batch_writer import build_batch
from records.compression import Compression
from records.rpc.topics import DeleteTopicsRequest, DeleteTopicsResponse
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.compaction.test_service import SETTINGS, InProcess
from tests.diskless.compaction.test_service import World as RewritingWorld
from tests.diskless.records_world import RecordsBroker
from tests.diskless.virtual_time import run

SETTLED_S = 2.0  # for what was written to be filled


class World(RewritingWorld):
    """Broker 1 has local segments and rewrites; broker 2 has neither."""

    def __init__(self, cluster: ClusterWorld, directory: Path, **settings: Any) -> None:
        super().__init__(cluster)
        self.directory = directory
        self.settings = settings
        self.plain = RecordsBroker(cluster, 2, self.broker.memory)
        self.others = Rewriting(
            self.plain.cluster, InProcess(self.plain), SETTINGS, wall_ms=cluster.wall_ms,
            random=Random(2),
        )  # fmt: skip
        self.others.begin(cluster.image.brokers[2].broker_epoch)

    @property
    def segments(self) -> LocalSegments:
        assert self.broker.segments is not None
        return self.broker.segments

    @property
    def gets(self) -> int:
        """The GETs that broker 1 has sent."""
        return self.broker.cache.counters.gets

    async def begin(self) -> None:
        await self.broker.begin_segments(self.directory, **self.settings)

    async def restart(self) -> None:
        """End and begin to serve from local segments, with an empty memory cache."""
        await self.broker.end_segments()
        self.forget()
        await self.begin()

    async def rewrite(self) -> None:
        """Let both brokers merge and compact what is theirs to rewrite."""
        await self.rewriting.run_pass()
        await self.others.run_pass()

    async def delete_topic(self, name: str) -> None:
        topic = DeleteTopicsRequest.DeleteTopicState(name=name)
        request = DeleteTopicsRequest(topics=(topic,), timeout_ms=5_000)
        answer = await self.cluster.ask(request, DeleteTopicsResponse)
        assert not answer.responses[0].error_code, answer

    def forget(self) -> None:
        """Empty broker 1's memory cache."""
        for key in self.broker.memory.objects:
            self.broker.cache.forget(key)

    async def write(
        self, *sizes: int, topic: str = "t", partition: int = 0, broker: RecordsBroker | None = None
    ) -> None:
        """Append a batch of so many records for each size, in one object if they are buffered."""
        now = self.cluster.wall_ms()
        batches = [
            bytes(
                build_batch(
                    [(b"k%d" % (i % 3), b"%d" % i * 9, now + i, ()) for i in range(size)],
                    base_offset=0,
                    leader_epoch=-1,
                    compression=list(Compression)[size % 5],
                )
            )
            for size in sizes
        ]
        chosen = broker or self.broker
        answers = await asyncio.gather(
            *(chosen.produce(topic, partition, data) for data in batches)
        )
        assert not any(answer.error_code for answer in answers), answers

    async def bytes_of(
        self, broker: RecordsBroker, offset: int, max_bytes: int = 1 << 20, topic: str = "t"
    ) -> bytes:
        """Fetch from partition 0; return the batches of the answer."""
        answer = await broker.fetch(topic, 0, offset, max_bytes=max_bytes)
        assert not answer.error_code, answer
        return bytes(answer.records or b"")

    async def compare(self, topic: str = "t", step: int = 1) -> None:
        """Check that broker 1's answers at each `step`th offset begin like those of broker 2."""
        answer = await self.plain.fetch(topic, 0, 0)
        for offset in range(answer.log_start_offset, answer.high_watermark, step):
            expected = await self.bytes_of(self.plain, offset, topic=topic)
            found = await self.bytes_of(self.broker, offset, topic=topic)
            assert found, (topic, offset)
            assert found == expected[: len(found)], (topic, offset)

    async def check_no_get(self, topic: str = "t") -> None:
        """Check that broker 1 answers all of a topic without a GET, and as broker 2 does."""
        self.forget()
        before = self.gets
        await self.compare(topic)
        assert self.gets == before

    def partition(self, topic: str = "t", index: int = 0) -> TopicPartition:
        return TopicPartition(self.cluster.image.topic(topic).topic_id, index)

    def files(self, topic: str = "t", suffix: str = ".log") -> list[Path]:
        directory = self.directory / self.partition(topic).directory_name
        return sorted(directory.glob(f"*{suffix}"))


def story(work: Callable[[World], Awaitable[None]], **settings: Any) -> None:
    """Run a story with the topic `t` of one partition, and brokers 1 and 2."""

    async def on_loop() -> None:
        with tempfile.TemporaryDirectory() as directory:
            async with ClusterWorld(brokers=(1, 2), esker_version=3) as cluster:
                world = World(cluster, Path(directory) / "cache", **settings)
                await world.begin()
                await cluster.create("t")
                await work(world)
                await world.rewriting.close()
                await world.others.close()
                await world.broker.end()
                await world.plain.end()

    run(on_loop)
