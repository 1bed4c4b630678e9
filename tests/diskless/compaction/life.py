"""A random life of compacted and merged partitions, judged after each operation by a naive model.

    life = Life(seed)
    run(life.run)

The broker's produce, fetch and rewriting services, the planner, the rewriter and the coordinator
are the product's own; the process that rewrites is in memory. The model is a dict of the records
that were appended, and what each reader may miss of them:

- a record is as it was appended, at its offset, with its timestamp and headers, and its batch has
  the codec, the producer, the sequence and the last offset that it had;
- a record is gone only if it lies below the log start, or if a compaction ran while the topic was
  compacted, and it has no key, or a newer record has its key, or it is a tombstone whose batch had
  a delete horizon in the past, set by the time of an earlier compaction;
- a record of an aborted transaction counts for nothing, and is gone below the cleaned offset;
- the newest value of each key is there, and of a deleted key no older one; below the offset that
  the coordinator calls cleaned, a key has one record; the last batch of a producer is there;
- with a deadline of physical deletion, no run has records below the log start in the end;
- the high watermark and the log start never move back; the coordinator's runs tile the partition,
  and count the records and bytes that are in the store.

In the end everything is compacted: exactly the survivors of the dict are left, and exactly the
objects that hold runs. While a task rewrites, other operations happen before its replacement; one
of them is that another process with the same broker epoch rewrites the same runs.

Source: docs/design/compaction.md.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple
from uuid import UUID

from coordinator.batch.memory import InMemoryState
from coordinator.transactions.state import State
from diskless.compaction.service import Rewriting
from records.batch import DELETE_HORIZON, TRANSACTIONAL, Batch, iter_batches, iter_records
from records.batch_writer import build_batch
from records.compression import Compression
from records.rpc.batch_coordinator import DeleteDisklessRecordsRequest
from records.rpc.configs import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse
from records.rpc.rewriting import DescribeCleaningRequest
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.compaction.test_service import SETTINGS, InProcess, World, clean_up
from tests.diskless.test_transactional_producers import ID as TRANSACTIONAL_ID
from tests.diskless.test_transactional_producers import Broker

STEPS: Final = 26
KEYS: Final = 7
RETENTION_MS: Final = 100_000  # delete.retention.ms
DEADLINE_MS: Final = 300_000  # esker.delete.physical.max.ms, of half of the lives
INVALID_RECORD: Final = 87
CONFIGS: Final = {
    "cleanup.policy": "compact",
    "delete.retention.ms": str(RETENTION_MS),
    "min.cleanable.dirty.ratio": "0",
    "retention.ms": "-1",
}
POLICIES: Final = ("compact", "delete", "compact,delete")


class Row(NamedTuple):
    """A record as a reader got it."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Any, ...]


class Form(NamedTuple):
    """The parts of a batch that no rewriting changes."""

    base_offset: int
    codec: int
    producer_id: int
    producer_epoch: int
    base_sequence: int


@dataclass
class Model:
    """A partition: each record that was appended, and the records that readers still got."""

    topic: str
    index: int
    rows: dict[int, Row] = field(
        repr=False, default_factory=dict
    )  # by offset, all that were appended
    present: set[int] = field(
        repr=False, default_factory=set
    )  # offsets of those that were not removed yet
    forms: dict[int, Form] = field(
        repr=False, default_factory=dict
    )  # by the last offset of a batch
    batch_of: dict[int, int] = field(
        repr=False, default_factory=dict
    )  # offset: its batch's last offset
    horizons: dict[int, int] = field(default_factory=dict)  # ms, by the last offset of a batch
    last_batches: dict[int, int] = field(
        repr=False, default_factory=dict
    )  # producer: its newest last offset
    aborted: set[int] = field(repr=False, default_factory=set)  # offsets of aborted records
    markers: dict[int, set[int]] = field(repr=False, default_factory=dict)
    """By offset of each control batch: the offsets of its transaction's records."""
    sequences: Counter[int] = field(repr=False, default_factory=Counter)
    log_start: int = 0
    end: int = 0

    def newest(self) -> dict[bytes, int]:
        """Return the offset of each key's newest record, if it is at or above the log start."""
        found = {
            row.key: offset
            for offset, row in self.rows.items()
            if row.key is not None and offset not in self.aborted
        }
        return {key: offset for key, offset in found.items() if offset >= self.log_start}


class Life:
    """A life drawn from a seed. `run` on a new virtual loop raises AssertionError at a mistake."""

    def __init__(self, seed: int, segments: Path | None = None) -> None:
        """Draw a life; the broker has local segments in this directory, if there is one."""
        self.random = Random(seed)
        self._segments = segments
        self.seen: Counter[str] = Counter()
        self.note = f"reproduce: Life({seed}), tests/diskless/compaction/test_life.py"
        self._skew_ms = 0
        self._policies = {"t": "compact", "a": "compact", "o": "delete"}
        self._had_compact: set[str] = (
            set()
        )  # topics that were compacted at a replacement of this pass
        self._in_pass = False
        self._is_calm = False  # nothing happens inside of tasks
        self._passes: list[int] = []  # when passes began and ended, ms since 1970

    async def run(self) -> None:
        """Perform random operations, then compact everything, and compare what is left."""
        random = self.random
        settings = {
            "object_bytes": random.choice((300, 2_000, 1 << 20)),
            "map_bytes": random.choice((48, 96, 1 << 20)),
            "physical_max_ms": random.choice((-1, DEADLINE_MS)),
        }
        self._has_deadline = settings["physical_max_ms"] > 0
        try:
            async with ClusterWorld(esker_version=3) as cluster:
                await cluster.create("t", 2, configs=CONFIGS)
                times = {"message.timestamp.type": "LogAppendTime"}
                await cluster.create("a", configs=CONFIGS | times)
                await cluster.create("o", configs=CONFIGS | {"cleanup.policy": "delete"})
                self.world = World(cluster, **settings)
                if self._segments is not None:
                    await self.world.broker.begin_segments(self._segments)
                self.world.rewriting._wall_ms = self._wall_ms
                process = InProcess(self.world.broker)
                self._second = Rewriting(
                    self.world.broker.cluster,
                    process,
                    SETTINGS._replace(**settings),
                    wall_ms=self._wall_ms,
                    random=Random(2),
                )
                process.before_replace = self._before_second
                self._second.begin(cluster.image.brokers[1].broker_epoch)
                await cluster.finalize(esker_version=4, transaction_version=1)
                self._transactions = Broker(cluster, records=self.world.broker)
                assert await self._transactions.init() == 0
                self.models = [Model("t", 0), Model("t", 1), Model("a", 0), Model("o", 0)]
                for _ in range(STEPS):
                    await self._step()
                await self._finish()
                if self._segments is not None:
                    await self._end_segments()
                await self.world.broker.end()
                await self._transactions.producers.close()
        except BaseException as error:
            error.add_note(self.note)
            raise

    def _wall_ms(self) -> int:
        """Return the time by which the broker rewrites: its clock jumps, in both directions."""
        return self.world.cluster.wall_ms() + self._skew_ms

    # --- operations -----------------------------------------------------------------------------

    async def _step(self) -> None:
        operations: list[Callable[[], Awaitable[None]]] = [self._produce] * 10
        operations += [self._pass] * 4 + [self._sleep, self._delete, self._flip, self._restart]
        operations += [self._jump, self._read, self._transact, self._transact]
        await self.random.choice(operations)()

    async def _produce(self) -> None:
        for _ in range(self.random.randint(1, 6)):
            await self._append(self.random.choice(self.models))

    async def _transact(self) -> None:
        """Append batches of a transaction among others, maybe while a pass runs, and end it."""
        random, transactions = self.random, self._transactions
        models = random.sample(self.models, random.randint(1, 3))
        outcomes = await transactions.add(*((model.topic, model.index) for model in models))
        assert not any(outcomes.values()), outcomes
        offsets: list[tuple[Model, int]] = []
        for _ in range(random.randint(0, 5)):
            model = random.choice(models)
            before = model.end
            await self._append(model, is_transactional=True)
            offsets += [(model, at) for at in range(before, model.end)]
            if random.random() < 0.4:
                await self._append(random.choice(self.models))
        if random.random() < 0.3:
            await self._pass()
        is_committed = random.random() < 0.5
        assert await transactions.end(committed=is_committed) == 0
        await transactions.completed(
            State.COMPLETE_COMMIT if is_committed else State.COMPLETE_ABORT
        )
        for model in models:
            model.markers[model.end] = {at for one, at in offsets if one is model}
            model.end += 1
        if not is_committed:
            for model, at in offsets:
                model.aborted.add(at)
        self.seen["commits" if is_committed else "aborts"] += bool(offsets)

    async def _append(self, model: Model, *, is_transactional: bool = False) -> None:
        random, now = self.random, self.world.cluster.wall_ms()
        compacted = "compact" in self._policies[model.topic]
        has_keyless = random.random() < 0.15
        rows = [
            (
                None if has_keyless and random.random() < 0.5 else b"k%d" % random.randrange(KEYS),
                random.choice((None, b"", b"v%d" % random.getrandbits(40), bytes(90))),
                now - random.randrange(50_000),
                (("h", random.choice((None, b"x"))),) * random.randrange(2),
            )
            for _ in range(random.randint(1, 4))
        ]
        producer_id, epoch = random.choice(((-1, -1), (900_001, 0), (900_002, 0)))
        if is_transactional:
            producer_id, epoch = self._transactions.producer
        sequence = model.sequences[producer_id] if producer_id >= 0 else -1
        codec = random.choice(list(Compression))
        data = build_batch(
            rows, base_offset=0, leader_epoch=-1, compression=codec, producer_id=producer_id,
            producer_epoch=epoch, base_sequence=sequence,
            attributes=TRANSACTIONAL if is_transactional else 0,
        )  # fmt: skip
        answer = await self.world.broker.produce(
            model.topic,
            model.index,
            bytes(data),
            version=11,
            transactional_id=TRANSACTIONAL_ID if is_transactional else None,
        )
        if compacted and any(key is None for key, *_ in rows):
            assert answer.error_code == INVALID_RECORD, answer
            self.seen["keyless refused"] += 1
            return
        assert (answer.error_code, answer.base_offset) == (0, model.end), answer
        base, model.end = model.end, model.end + len(rows)
        if producer_id >= 0:
            model.sequences[producer_id] += len(rows)
            model.last_batches[producer_id] = model.end - 1
        model.forms[model.end - 1] = Form(base, int(codec), producer_id, epoch, sequence)
        (batch,) = await self._fetch(model, base)
        for record, (key, value, timestamp, headers) in zip(iter_records(batch), rows, strict=True):
            row = _row(record)
            appended = now if model.topic == "a" else timestamp
            expected = Row(appended, key, value, headers)
            # An append takes virtual time, so LogAppendTime is as the first reader got it.
            assert row._replace(timestamp=appended) == expected, (row, expected)
            assert model.topic == "a" or row.timestamp == timestamp, (row, timestamp)
            offset = int(record.offset)
            model.rows[offset] = row
            model.batch_of[offset] = model.end - 1
            model.present.add(offset)
            self.seen["tombstones"] += value is None

    async def _sleep(self) -> None:
        await asyncio.sleep(self.random.choice((1, 70, 150, 700)))
        self.world.cluster.leaders[0].run_maintenance()
        await self.world.broker.cleaner.clean()

    async def _jump(self) -> None:
        self._skew_ms = self.random.choice((-1, 1)) * self.random.randrange(500_000)
        self.seen["clock jumps"] += 1

    async def _delete(self) -> None:
        model = self.random.choice(self.models)
        topic = DeleteDisklessRecordsRequest.Topic
        offset = self.random.randint(model.log_start, model.end)
        if self.random.random() < 0.5:
            offset = min(offset, model.log_start + 3)
        partition = topic.Partition(partition_index=model.index, offset=offset)
        request = DeleteDisklessRecordsRequest(
            topics=(topic(topic_id=self._topic_id(model), partitions=(partition,)),)
        )
        await self.world.cluster.leaders[0].call(request)
        model.log_start = offset
        self.seen["deletions"] += 1

    async def _flip(self) -> None:
        await self._set_policy(self.random.choice(("t", "a")), self.random.choice(POLICIES))
        self.seen["policy flips"] += 1

    async def _set_policy(self, topic: str, value: str) -> None:
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource
        config = resource.AlterableConfig(name="cleanup.policy", config_operation=0, value=value)
        named = resource(resource_type=2, resource_name=topic, configs=(config,))
        request = IncrementalAlterConfigsRequest(resources=(named,), validate_only=False)
        answer = await self.world.cluster.ask(request, IncrementalAlterConfigsResponse)
        assert not answer.responses[0].error_code, answer
        self._policies[topic] = value

    async def _before_second(self) -> None:
        self._note_policies()

    def _note_policies(self) -> None:
        """Note which topics are compacted just before runs are replaced."""
        self._had_compact |= {name for name, value in self._policies.items() if "compact" in value}

    async def _restart(self) -> None:
        """Have another coordinator lead, which knows what is in a checkpoint."""
        leader = self.world.cluster.leaders[0]
        values = leader.state.checkpoint()
        leader.state = InMemoryState.load(map(bytes, values), leader.state.applied_offset)
        assert list(map(bytes, leader.state.checkpoint())) == list(map(bytes, values))
        self.seen["restarts"] += 1
        if self._segments is not None:
            await self._end_segments()
            await self.world.broker.begin_segments(self._segments)

    async def _end_segments(self) -> None:
        """Stop to serve from local segments, and note what they did."""
        counters = self.world.broker.segments.counters
        self.seen["local reads"] += counters.hits
        self.seen["stale segments"] += counters.discarded["stale"]
        await self.world.broker.end_segments()

    async def _read(self) -> None:
        model = self.random.choice(self.models)
        if model.end > model.log_start:
            await self._check(model, self.random.randint(model.log_start, model.end))

    async def _pass(self) -> None:
        """Run a pass of merging and compaction; other operations come before its replacements."""
        worker, random = self.world.worker, self.random
        self._had_compact.clear()

        async def meanwhile() -> None:
            if not self._is_calm and random.random() < 0.25:
                others = (self._produce, self._delete, self._restart, self._read)
                await random.choice((*others, *[self._flip] * 3, self._second.run_pass))()
                self.seen["operations inside tasks"] += 1
            self._note_policies()

        worker.before_replace = meanwhile
        dies = not self._is_calm and random.random() < 0.2
        worker.dies_at = worker.steps + random.randint(1, 6) if dies else -1
        self._in_pass = True
        self._passes.append(self._wall_ms())
        await self.world.rewriting.run_pass()
        self._passes.append(self._wall_ms())
        self.seen["abandoned tasks"] += worker.dies_at == worker.steps
        worker.dies_at, worker.before_replace = -1, None
        for model in self.models:
            await self._check(model, model.log_start)
            await self._check_runs(model)
        self._in_pass = False
        self.world.cluster.leaders[0].state.check_invariants()

    async def _finish(self) -> None:
        """Compact everything until it is clean; only the newest values may be left."""
        for topic in ("t", "a"):
            await self._set_policy(topic, "compact")
        self._skew_ms, self._is_calm = 0, True
        for _ in range(2):  # the second time, horizons of all tombstones have passed
            await asyncio.sleep(RETENTION_MS / 1_000 + 500)
            for model in self.models:
                before = model.end
                while model.end == before:
                    await self._append(model)
            for _ in range(60):
                await self._pass()
                if all([await self._is_clean(model) for model in self.models[:3]]):
                    break
            else:
                raise AssertionError("partitions are not clean after 60 passes")
        for model in self.models[:3]:
            expected = {
                offset
                for offset in model.newest().values()
                if model.rows[offset].value is not None or not self._was_expired(model, offset)
            }
            assert model.present == expected, (model.present ^ expected, model)
        self.seen["removed records"] += sum(len(m.rows) - len(m.present) for m in self.models)
        if self._has_deadline:
            await self._keep_deadline()
        await self.world.rewriting.close()
        await self._second.close()
        await clean_up(self.world)

    async def _keep_deadline(self) -> None:
        """Let the deadline pass, after which no run has records below the log start."""
        for _ in range(4):
            self.world.cluster.leaders[0].run_maintenance()
            await self._pass()
            await asyncio.sleep(DEADLINE_MS / 2_000)
        for model in self.models:
            runs = self.world.runs_of(self._topic_id(model), model.index)
            assert not runs or runs[0].base_offset >= model.log_start, (runs[0], model)
        self.seen["deadlines"] += 1

    # --- judging --------------------------------------------------------------------------------

    async def _fetch(self, model: Model, offset: int, max_bytes: int = 1 << 20) -> list[Batch]:
        """Return the batches that a reader gets from an offset to the high watermark."""
        batches: list[Batch] = []
        while True:
            answer = await self.world.broker.fetch(
                model.topic, model.index, offset, max_bytes=max_bytes
            )
            assert answer.error_code == 0, answer
            assert answer.high_watermark == model.end, (answer, model.end)
            assert answer.log_start_offset == model.log_start, (answer, model.log_start)
            found = list(iter_batches(answer.records or b""))
            assert found or offset >= model.end, f"nothing at {offset} of {model.end}"
            if not found:
                return batches
            batches += found
            assert found[-1].header.end_offset > offset, f"{offset} was read again"
            offset = found[-1].header.end_offset

    async def _check(self, model: Model, offset: int) -> None:
        """Read from an offset, and compare all records and batches with the model."""
        may_remove = self._in_pass and model.topic in self._had_compact
        max_bytes = self.random.choice((100, 700, 1 << 20))
        batches = await self._fetch(model, offset, max_bytes)
        found: dict[int, Row] = {}
        self._check_markers(model, batches, offset, may_remove=may_remove)
        batches = [batch for batch in batches if not batch.header.is_control]
        for batch in batches:
            self._check_form(model, batch)
            for record in iter_records(batch):
                assert not found or max(found) < record.offset, f"{record.offset} after {found}"
                if record.offset >= offset:
                    found[int(record.offset)] = _row(record)
        for at, row in found.items():
            assert row == model.rows[at], (at, row, model.rows[at])
        newest = model.newest()
        wanted = {at for at in model.present if at >= offset}
        assert found.keys() <= wanted, f"came back: {found.keys() - wanted}"
        for at in wanted - found.keys():
            key = model.rows[at].key
            assert may_remove, f"removed by nobody: {at} {model}"
            is_replaced = at in model.aborted or key is None or newest.get(key, model.end) > at
            assert is_replaced or self._was_expired(model, at), f"lost: {at} {model}"
            self.seen["expired tombstones"] += not is_replaced
        model.present -= wanted - found.keys()
        model.present = {at for at in model.present if at >= model.log_start}
        if offset == model.log_start:
            self._check_keys(model, found, newest)
            ends = {batch.header.last_offset for batch in batches}
            lasts = {at for at in model.last_batches.values() if at >= model.log_start}
            assert lasts <= ends, f"the last batch of a producer is gone: {lasts - ends}"
        for batch in batches:  # horizons that were set count from the next pass on
            header = batch.header
            if header.attributes & DELETE_HORIZON:
                horizon = model.horizons.setdefault(header.last_offset, header.base_timestamp)
                assert horizon == header.base_timestamp, f"the horizon of {header} was {horizon}"
                set_at = horizon - RETENTION_MS
                is_known = any(abs(time - set_at) <= 1_000 for time in self._passes)
                assert is_known, f"no compaction set the horizon of {header}"

    def _check_markers(
        self, model: Model, batches: list[Batch], offset: int, *, may_remove: bool
    ) -> None:
        """Check that only markers of transactions without batches are gone, and for good."""
        controls = {int(each.header.base_offset) for each in batches if each.header.is_control}
        wanted = {at for at in model.markers if at >= offset}
        assert controls <= wanted, f"came back: {controls - wanted}"
        left = {
            at
            for each in batches
            if not each.header.is_control
            for at in range(each.header.base_offset, each.header.end_offset)
        }
        for at in wanted - controls:
            assert may_remove, f"marker removed by nobody: {at} {model}"
            assert not model.markers[at] & left, f"marker {at} is gone before its batches: {model}"
            del model.markers[at]
            self.seen["removed markers"] += 1

    def _check_keys(self, model: Model, found: dict[int, Row], newest: dict[bytes, int]) -> None:
        """Compare the reader's map of last values with the model's."""
        last = {
            row.key: row.value
            for at, row in found.items()
            if row.key is not None and at not in model.aborted
        }
        held = {key: value for key, value in last.items() if value is not None}
        values = {key: model.rows[at].value for key, at in newest.items()}
        assert held == {key: value for key, value in values.items() if value is not None}

    def _check_form(self, model: Model, batch: Batch) -> None:
        """Compare a batch's header with that of the batch that was appended."""
        header = batch.header
        base, codec, *producer, sequence = model.forms[header.last_offset]
        cut = header.base_offset - base
        assert cut == 0 or 0 < cut <= model.log_start - base, (header, base)
        assert header.record_count == 0 or header.compression == codec, header
        assert [header.producer_id, header.producer_epoch] == producer, header
        assert header.base_sequence == (sequence + cut if sequence >= 0 else -1), header

    def _was_expired(self, model: Model, offset: int) -> bool:
        """Whether a tombstone's delete horizon was seen, and passed before the last pass ended."""
        horizon = model.horizons.get(model.batch_of[offset])
        return (
            model.rows[offset].value is None
            and horizon is not None
            and bool(self._passes)
            and horizon <= self._passes[-1]
        )

    async def _check_runs(self, model: Model) -> None:
        """Compare the coordinator's runs with the objects in the store, and its sums with them."""
        runs = self.world.runs_of(self._topic_id(model), model.index)
        at = runs[0].base_offset if runs else model.end
        assert at <= model.log_start or not runs, (at, model.log_start)
        for run in runs:
            assert run.base_offset == at, f"{run} after {at}"
            at = run.last_offset + 1
            if run.marker is not None:
                continue
            data = self.world.object(run.object_id)[run.byte_offset :][: run.byte_size]
            batches = list(iter_batches(data))
            assert sum(batch.header.record_count for batch in batches) == run.record_count, run
            assert not run.object_format > 1 or batches[-1].header.last_offset == at - 1, run
        assert at == model.end, (at, model.end)
        listed = self.world.markers_of_aborted(self._topic_id(model), model.index)
        assert set(listed) <= model.markers.keys(), f"entries without markers: {listed} {model}"
        cleaning = await self._cleaning(model)
        assert cleaning.run_count in (-1, len(runs)), (cleaning, runs)
        assert cleaning.stored_bytes in (-1, sum(run.byte_size for run in runs)), (cleaning, runs)
        left = [at for at in model.present & model.aborted if at < cleaning.cleaned_until]
        assert not left, f"aborted records below {cleaning.cleaned_until}: {left}"
        clean = [model.rows[at].key for at in model.present if at < cleaning.cleaned_until]
        assert len(clean) == len(set(clean)), f"keys below {cleaning.cleaned_until}: {clean}"

    async def _is_clean(self, model: Model) -> bool:
        return bool((await self._cleaning(model)).cleaned_until == model.end)

    async def _cleaning(self, model: Model) -> Any:
        asked = DescribeCleaningRequest.Topic
        request = DescribeCleaningRequest(
            coordinator_partition=0,
            topics=(asked(topic_id=self._topic_id(model), partitions=(model.index,)),),
        )
        answer = await self.world.cluster.leaders[0].call(request)
        return answer.responses[0].partitions[0]

    def _topic_id(self, model: Model) -> UUID:
        found = self.world.cluster.image.topic(model.topic)
        assert found is not None, model.topic
        return found.topic_id


def _row(record: Any) -> Row:
    key, value = (None if each is None else bytes(each) for each in (record.key, record.value))
    headers = tuple((name, None if each is None else bytes(each)) for name, each in record.headers)
    return Row(record.timestamp, key, value, headers)
