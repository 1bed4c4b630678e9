"""Clients that append and read at once, and remember what they were told.

Every client is a thread with one connection, one request at a time. It appends values that nobody
else appends, asks for the linearizable end, and reads the end of the log. Times are of one clock
(`time.monotonic_ns`). An append that was not acknowledged is recorded as unknown, whatever the
answer said: it may be in the log, or not. A read that failed says nothing, and is not recorded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Final

from raft.segments.files import RealFileSystem
from raft.segments.log import Log, LogConfig
from records.batch import Batch, iter_batches, iter_records
from records.rpc import fetch
from tests.raft.driver.client import Client, ClientError
from tests.simulation.history import NEVER, LogAppend, LogFetch, LogRead, NotLinearizable, check_log

TOPIC: Final = "esker-bench-log"
PATIENCE_S: Final = 1.0  # a client's, for one answer
PAUSE_S: Final = 0.005  # the longest that a client thinks between two requests
READ_BACK: Final = 20  # offsets before the end, as far as the reader knows it
OFFSET_OUT_OF_RANGE: Final = 1
READ_BYTES: Final = 8 * 1024 * 1024

Values = list[bytes | None]
"""By offset; None is a record of the log itself (a leader's change)."""


def values_of(batches: Iterable[Batch], offset: int) -> Values:
    """The values at `offset` and after it, gapless."""
    values: Values = []
    for batch in batches:
        header = batch.header
        if header.end_offset <= offset:
            continue
        found: dict[int, bytes] = {}
        if not header.is_control:
            found = {one.offset: bytes(one.value or b"") for one in iter_records(batch)}
        for at in range(max(offset, header.base_offset), header.end_offset):
            assert at == offset + len(values), f"a gap at {offset + len(values)}, before {at}"
            values.append(found.get(at))
    return values


class LogClient(Client):
    """Also reads what a consumer is not shown: the log's own records, and the high watermark."""

    def read_log(self, offset: int) -> tuple[Values, int]:
        """All committed values from `offset` on (at most READ_BYTES), and the end as read."""
        data = fetch.FetchRequest.FetchTopic
        partition = data.FetchPartition(
            partition=0, fetch_offset=offset, partition_max_bytes=READ_BYTES
        )
        topics = (data(topic=TOPIC, partitions=(partition,)),)
        request = fetch.FetchRequest(max_wait_ms=0, min_bytes=1, topics=topics)
        response = self.ask(request, fetch.FetchResponse, 12)
        answer = response.responses[0].partitions[0] if response.responses else None
        error = response.error_code or (answer.error_code if answer else 0)
        if error or answer is None:
            raise ClientError(error)
        return values_of(iter_batches(answer.records or b""), offset), answer.high_watermark


def read_all(port: int) -> Values:
    """The whole committed log, as its leader serves it."""
    values: Values = []
    with LogClient("127.0.0.1", port) as client:
        while True:
            more, end_offset = client.read_log(len(values))
            values += more
            if len(values) == end_offset:
                return values
            assert more, f"nothing at {len(values)}, but the log ends at {end_offset}"


def read_disk(log_dir: Path) -> Values:
    """A stopped node's whole log, committed or not. It is recovered as a starting node would."""
    log = Log.open(RealFileSystem(), log_dir / f"{TOPIC}-0", LogConfig())
    try:
        values: Values = []
        while (records := log.read(len(values), max_bytes=READ_BYTES)) is not None:
            values += values_of(records.batches, len(values))
        return values
    finally:
        log.close()


class Workload:
    """A few clients against a few nodes; runs inside its `with` block."""

    def __init__(
        self, ports: Mapping[int, int], *, seed: int, clients: int = 4, value_bytes: int = 64
    ) -> None:
        self.leader: int | None = None  # the node that acknowledged last
        self.acknowledged = 0  # about right while clients run, exact afterwards
        self.last_acknowledged_at = 0
        self.longest_silence_ns = 0
        self.history: list[LogAppend | LogRead] = []
        self.seen: list[LogFetch] = []
        self._ports = dict(ports)
        self._value_bytes = value_bytes
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._client, args=(name, Random(f"{seed}-{name}")))
            for name in range(clients)
        ]

    def __enter__(self) -> Workload:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if error is None and self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Let every client finish its request, and no more."""
        self._stop.set()

    def append(self, client: Client, node: int, value: bytes) -> bool:
        """Append one value; was it acknowledged? Raises nothing of the network's."""
        invoked = time.monotonic_ns()
        offset, returned = None, NEVER
        try:
            offset = self._produce(client, value)
            returned = time.monotonic_ns()
        except (ClientError, OSError):
            client.close()
        with self._lock:
            self.history.append(LogAppend(invoked, returned, value, offset))
            if offset is None:
                return False
            self.acknowledged += 1
            self.leader = node
            if self.last_acknowledged_at:
                silence = returned - self.last_acknowledged_at
                self.longest_silence_ns = max(self.longest_silence_ns, silence)
            self.last_acknowledged_at = returned
        return True

    def _produce(self, client: Client, value: bytes) -> int:
        """Append one value; its offset. Raises ClientError, OSError."""
        return client.produce([value])

    def ask_end(self, client: Client) -> int:
        """A linearizable read of the log's end. Raises ClientError, OSError."""
        invoked = time.monotonic_ns()
        length = client.end_offset()
        self._record(LogRead(invoked, time.monotonic_ns(), length))
        return length

    def check(self, final: Sequence[bytes | None]) -> None:
        """Was it all one log that never lost anything?

        Args:    final: the whole log, as it was read after everything.
        Raises:  NotLinearizable.
        """
        check_log([*self.history, *self.seen], final=final)

    # --- a client -----------------------------------------------------------------------------

    def _client(self, name: int, random: Random) -> None:
        try:
            self._work(name, random)
        except BaseException as error:
            self._failure = error

    def _work(self, name: int, random: Random) -> None:
        nodes = sorted(self._ports)
        node, number, end = random.choice(nodes), 0, 0
        while not self._stop.is_set():
            try:
                client = LogClient("127.0.0.1", self._ports[node], timeout_s=PATIENCE_S)
            except OSError:
                self._stop.wait(random.random() * 0.05)
                node = random.choice(nodes)
                continue
            with client:
                while not self._stop.is_set():
                    self._stop.wait(random.random() * PAUSE_S)
                    kind = random.random()
                    try:
                        if kind < 0.7:
                            number += 1
                            value = b"%d-%d" % (name, number)
                            if not self.append(client, node, value.ljust(self._value_bytes, b".")):
                                break
                        elif kind < 0.9:
                            end = self.ask_end(client)
                        else:
                            self._read(client, max(0, end - READ_BACK))
                    except (ClientError, OSError):
                        break
            node = random.choice(nodes)

    def _read(self, client: LogClient, offset: int) -> None:
        invoked = time.monotonic_ns()
        try:
            values, high_watermark = client.read_log(offset)
        except ClientError as error:
            if error.error != OFFSET_OUT_OF_RANGE:
                raise
            self._out_of_range(client, offset)
            return
        returned = time.monotonic_ns()
        self._record(LogRead(invoked, returned, high_watermark))
        with self._lock:
            self.seen.append(LogFetch(invoked, returned, offset, tuple(values)))

    def _out_of_range(self, client: LogClient, offset: int) -> None:  # noqa: ARG002
        """An offset that was below the end cannot be read."""
        raise NotLinearizable(f"{offset} was below the end, and is out of range now")

    def _record(self, operation: LogRead) -> None:
        with self._lock:
            self.history.append(operation)
