"""A workload whose whole history survives the cutting of logs, and the audit of it.

Every value is appended under a key of its own, so the key-value state that the nodes checkpoint is
the log itself, in order, without its offsets: a checkpoint and the log after it tell all that was
ever committed. Where the log is gone, offsets are known from acknowledgements and from what was
read in time; the few values of which nobody was told anything take the places that are left.

Source: invariants 2, 4 and 5 (docs/design/invariants.md).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import count, islice, repeat
from pathlib import Path
from typing import Final, NamedTuple

from raft.segments.files import RealFileSystem
from raft.segments.log import Log, LogConfig
from records.key_value import KeyValueState
from records.rpc import list_offsets
from snapshot import CheckpointReader, checkpoint_name, list_checkpoints
from tests.nemesis.cluster import NemesisCluster
from tests.nemesis.workload import READ_BYTES, TOPIC, LogClient, Values, Workload, values_of
from tests.raft.driver.client import Client, ClientError
from tests.simulation.history import NEVER, LogAppend, NotLinearizable, check_log
from tests.waiting import wait_until

GROUP: Final = f"{TOPIC}-0"
EARLIEST: Final = -2
FILES: Final = RealFileSystem()
FILL_BATCH: Final = 256


def key_of(value: bytes) -> bytes:
    """A value's own key: what it says before the padding."""
    return value.partition(b".")[0]


class KeyedWorkload(Workload):
    """Appends each value under its own key; a log may be cut below what it reads."""

    def fill(self, cluster: NemesisCluster, size_bytes: int, *, value_bytes: int = 1024) -> None:
        """Put so much into the state before anything else happens.

        On a busy machine leaders change meanwhile: what was under way then may be there or not.
        """
        numbers, left = count(), size_bytes // value_bytes
        while left:
            with (
                contextlib.suppress(ClientError, OSError),
                Client("127.0.0.1", cluster.ports[cluster.wait_for_leader()]) as client,
            ):
                while left:
                    values = [
                        b"fill-%d." % number + os.urandom(value_bytes // 2).hex().encode()
                        for number in islice(numbers, min(left, FILL_BATCH))
                    ]
                    self._fill_with(client, values)
                    left -= len(values)

    def _fill_with(self, client: Client, values: Sequence[bytes]) -> None:
        """Append a batch. Raises ClientError and OSError: then nobody knows whether it is there."""
        invoked, returned = time.monotonic_ns(), NEVER
        offsets: Iterable[int | None] = repeat(None)
        try:
            first = client.produce_keyed([(key_of(value), value) for value in values])
            returned, offsets = time.monotonic_ns(), count(first)
        finally:
            self.history += [
                LogAppend(invoked, returned, value, offset)
                for value, offset in zip(values, offsets, strict=False)
            ]

    def _produce(self, client: Client, value: bytes) -> int:
        return client.produce_keyed([(key_of(value), value)])

    def _out_of_range(self, client: LogClient, offset: int) -> None:
        start = earliest(client)
        if offset >= start:
            super()._out_of_range(client, offset)

    def check(self, final: Sequence[bytes | None]) -> None:
        """Check all operations, without the offsets that `whole_log` had to guess.

        It places a value of unknown offset as early as possible, which real time may contradict.
        """
        known = set(self.known().values())
        history = [
            one._replace(invoked=0)
            if isinstance(one, LogAppend) and one.value not in known
            else one
            for one in self.history
        ]
        check_log([*history, *self.seen], final=final)

    def known(self) -> dict[int, bytes | None]:
        """What was acknowledged or read, by offset. Raises NotLinearizable."""
        known: dict[int, bytes | None] = {}
        for one in self.history:
            if isinstance(one, LogAppend) and one.offset is not None:
                _learn(known, one.offset, one.value)
        for seen in self.seen:
            for place, value in enumerate(seen.values):
                _learn(known, seen.offset + place, value)
        return known


def _learn(known: dict[int, bytes | None], offset: int, value: object) -> None:
    assert value is None or isinstance(value, bytes), value
    if known.setdefault(offset, value) != value:
        raise NotLinearizable(f"offset {offset} holds {known[offset]!r} and {value!r}")


def earliest(client: LogClient) -> int:
    """Where the leader's log begins. Raises ClientError, OSError."""
    data = list_offsets.ListOffsetsRequest.ListOffsetsTopic
    partition = data.ListOffsetsPartition(partition_index=0, timestamp=EARLIEST)
    request = list_offsets.ListOffsetsRequest(
        replica_id=-1, topics=(data(name=TOPIC, partitions=(partition,)),)
    )
    answer = client.ask(request, list_offsets.ListOffsetsResponse, 6).topics[0].partitions[0]
    if answer.error_code:
        raise ClientError(answer.error_code)
    return answer.offset


# --- what a disk tells ---------------------------------------------------------------------------


class Told(NamedTuple):
    """A stopped node's history: the state in its newest checkpoint, and the log after it."""

    state: tuple[bytes, ...]  # values, in the order in which they were appended
    end_offset: int  # of the checkpoint; 0: there is none
    tail: Values  # from `end_offset` on

    def sequence(self, end_offset: int) -> list[bytes]:
        """Every value below `end_offset`, in order."""
        tail = self.tail[: max(0, end_offset - self.end_offset)]
        return [*self.state, *(value for value in tail if value is not None)]


def read_history(log_dir: Path) -> Told:
    """Read a stopped node's disk; its log is recovered as a starting node would.

    Raises:  AssertionError if a log begins past 0 without a checkpoint at or after its start.
    """
    directory = log_dir / GROUP
    found = list_checkpoints(FILES, directory)
    state: tuple[bytes, ...] = ()
    if found:
        with CheckpointReader(FILES, directory / checkpoint_name(found[-1])) as reader:
            records = [record for _, record in reader.records()]
        assert all(isinstance(record, KeyValueState) for record in records)
        state = tuple(bytes(record.value) for record in records)  # type: ignore[attr-defined]
    end_offset = int(found[-1].offset) if found else 0
    log = Log.open(FILES, directory, LogConfig())
    try:
        start = log.log_start_offset
        assert start <= end_offset, f"{directory}: begins at {start}, checkpoints: {found}"
        tail: Values = []
        while end_offset + len(tail) < log.log_end_offset:
            records_read = log.read(end_offset + len(tail), max_bytes=READ_BYTES)
            assert records_read is not None, f"{directory}: nothing at {end_offset + len(tail)}"
            tail += values_of(records_read.batches, end_offset + len(tail))
    finally:
        log.close()
    return Told(state, end_offset, tail)


def whole_log(told: Told, end_offset: int, known: Mapping[int, bytes | None]) -> Values:
    """The log as it was before it was cut. Raises NotLinearizable where that is impossible."""
    placed: Values = [None] * told.end_offset
    offset_of = {value: offset for offset, value in known.items() if value is not None}
    offset = -1
    for value in told.state:
        at = offset_of.get(value)
        if at is None:
            at = offset + 1
            while at in known:
                at += 1
        if not offset < at < told.end_offset:
            raise NotLinearizable(
                f"{value[:40]!r} is at {at}, but in the state after what is at {offset}"
            )
        placed[at] = value
        offset = at
    tail = told.tail[: max(0, end_offset - told.end_offset)]
    return [*placed, *tail]


def audit(cluster: NemesisCluster, workload: KeyedWorkload) -> Sequence[bytes | None]:
    """Nothing was lost or moved, in the eyes of clients and on each disk, checkpoints included.

    Everything must be healed, and the workload at its end. Kills the nodes. Returns the log.
    """
    wait_until(cluster.caught_up, "all nodes hold what is committed")
    with cluster.client(cluster.wait_for_leader()) as client:
        end_offset = client.end_offset()
    cluster.kill()
    told = {node: read_history(cluster.log_dir(node)) for node in cluster.ids}
    sequences = {node: one.sequence(end_offset) for node, one in told.items()}
    first, *others = cluster.ids
    for node in others:
        if sequences[node] != sequences[first]:
            raise NotLinearizable(_difference(first, node, sequences))
    final = whole_log(told[first], end_offset, workload.known())
    workload.check(final)
    return final


def _difference(first: int, other: int, sequences: Mapping[int, Sequence[bytes]]) -> str:
    ours, theirs = sequences[first], sequences[other]
    pairs = zip(ours, theirs, strict=False)
    at = next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))
    return (
        f"nodes {first} and {other} differ from value {at} on: "
        f"{[value[:20] for value in ours[at : at + 2]]}, "
        f"{[value[:20] for value in theirs[at : at + 2]]}"
    )
