"""Two brokers and a caretaker at work at once, in a thread of their own.

with Uploads(addresses, cluster_id, prefix, seed=seed) as uploads:
    ...  # the nemesis at work
uploads.history.check(uploads.final)
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from types import TracebackType

from raft.net import run
from records.object_keys import ObjectKeys
from tests.nemesis.batch_history import History, Partition, Place
from tests.nemesis.brokers import PARTITIONS, Broker, Shared
from tests.nemesis.caretaker import Caretaker, find_all
from tests.waiting import Deadline


class Uploads:
    """Everybody at work, in a thread, while the block lasts; then everybody has its answers."""

    def __init__(
        self, addresses: Sequence[tuple[str, int]], cluster_id: str, prefix: str, *, seed: int
    ) -> None:
        keys = ObjectKeys(prefix=prefix, cluster_id=cluster_id, coordinator_partition=0)
        self.keys = keys
        self.final: dict[Place, Partition] = {}  # known when the block is left
        self.failed: BaseException | None = None
        self._seed = seed
        self._addresses = list(addresses)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="uploads")

    @property
    def history(self) -> History:
        return self._shared.history

    @property
    def acknowledged(self) -> int:
        """Commits that were answered."""
        return sum(broker.acknowledged for broker in self._brokers)

    @property
    def in_flight(self) -> int:
        return sum(broker.in_flight for broker in self._brokers)

    def check_alive(self) -> None:
        """Raises what ended somebody's work."""
        if self.failed is not None:
            raise self.failed

    def __enter__(self) -> Uploads:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        stop = self._shared.stop.set if error is None else self._group.cancel
        with suppress(RuntimeError):  # the loop is closed: work has ended by a failure
            self._loop.call_soon_threadsafe(stop)
        self._thread.join()
        if error is None:
            self.check_alive()

    def _run(self) -> None:
        try:
            run(self._work())
        except BaseExceptionGroup as group:
            self.failed = group.exceptions[0]
        except BaseException as error:
            self.failed = error

    async def _work(self) -> None:
        shared = self._shared = Shared(self._addresses, self.keys)
        self._loop = asyncio.get_running_loop()
        self._brokers = [
            Broker(shared, one, 3 - one, Random(f"{self._seed}-{one}")) for one in (1, 2)
        ]
        caretaker = Caretaker(shared, Random(f"{self._seed}-caretaker"))
        work = asyncio.current_task()
        assert work is not None
        self._group = work
        self._ready.set()
        async with asyncio.TaskGroup() as group:
            for broker in self._brokers:
                group.create_task(broker.work())
            group.create_task(caretaker.work())
        client = shared.client()
        deadline = Deadline("topics are deleted and log starts moved", clock=self._loop.time)
        places = {(topic_id, at) for topic_id in shared.topics for at in range(PARTITIONS)}
        for place in sorted(places | set(shared.ends)):
            found = await find_all(client, self.keys, place)
            while isinstance(found, Partition) and self._is_due(place, found):
                await asyncio.sleep(deadline.pause_s((place, found)))
                found = await find_all(client, self.keys, place)
            if isinstance(found, Partition):
                self.final[place] = found
        await client.close()

    def _is_due(self, place: Place, found: Partition) -> bool:
        """Is its topic yet to be deleted, or retention to move its log start?"""
        history = self.history
        bound = history.retention_bytes.get(place[0])
        sizes = [run.size for run in found.runs]
        is_too_large = bound is not None and sum(sizes[1:]) >= bound
        return is_too_large or place[0] in history.deleted_topics
