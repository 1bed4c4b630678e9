"""Replicas that only read: the leader's state a moment later, and how old it says it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import pytest

from bench import bench_coordinator_core, bench_coordinator_state
from coordinator.batch.leader import QuorumCoordinator
from coordinator.batch.replica import ReadOnlyCoordinator
from coordinator.batch.sqlite import database
from coordinator.batch.sqlite.machine import CoordinatorMachine
from coordinator.errors import CoordinatorError
from raft.interfaces import CommittedAsOf
from records.batch import iter_batches
from records.kafka_errors import ErrorCode
from records.rpc.batch_coordinator import FindBatchesRequest, ListDisklessOffsetsRequest
from records.rpc.objects import DescribeDisklessObjectRequest, DescribeDisklessTopicsRequest
from records.types import Offset
from tests.coordinator.batch.actors import Broker, create
from tests.coordinator.batch.quorum_world import IDENTITY, QuorumWorld, Restart, checkpoint_batches
from tests.coordinator.batch.subjects import SETTINGS
from tests.doubles.memory_log import MemoryLog
from tests.waiting import DEADLINE_S


def find(world: QuorumWorld) -> FindBatchesRequest:
    """FindBatches of everything in the first partition of the only topic."""
    (topic_id,) = world.machine.store.topics
    group = FindBatchesRequest.Topic.Partition(partition_index=0, offset=0, max_bytes=1 << 20)
    return FindBatchesRequest(
        max_bytes=1 << 20,
        topics=(FindBatchesRequest.Topic(topic_id=topic_id, partitions=(group,)),),
    )


def speak(world: QuorumWorld) -> None:
    """Make the leader's statement of what is committed reach all replicas."""
    end_offset = world.log.high_watermark or Offset(0)
    world.log.committed_as_of = CommittedAsOf(end_offset, world.clocks.monotonic())


class BehindLog(MemoryLog):
    """A follower's log: nothing has arrived yet, but the read barrier answers."""

    def __init__(self, leaders: MemoryLog) -> None:
        super().__init__()
        self._leaders = leaders
        self.barriers = 0

    def barrier(self) -> Awaitable[Offset]:
        self.barriers += 1
        return self._leaders.barrier()


async def begin(path: Path) -> tuple[QuorumWorld, Broker]:
    directory = path / "leader"
    directory.mkdir()
    world = QuorumWorld(directory)
    await create(world)
    broker = Broker(world)
    await broker.acquire()
    return world, broker


def follow(path: Path) -> CoordinatorMachine:
    directory = path / "follower"
    directory.mkdir()
    return CoordinatorMachine(directory, IDENTITY, in_process=True)


def apply_to(machine: CoordinatorMachine, world: QuorumWorld, end: int) -> None:
    """Apply what the log has up to `end`, a batch at a time."""
    while machine.applied.offset < end:
        data = world.log.read(Offset(machine.applied.offset), 1)
        machine.apply(iter_batches(data))


def test_a_coordinator_replica_answers_reads_from_applied_records_and_reports_its_age(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        world, broker = await begin(tmp_path)
        machine = follow(tmp_path)
        replica = ReadOnlyCoordinator(
            world.log, machine, SETTINGS, monotonic=world.clocks.monotonic
        )

        assert replica.age_ms is None
        replica.start()
        speak(world)
        apply_to(machine, world, world.log.end_offset)
        assert (replica.age_ms, replica.lag) == (0, 0)
        world.clocks.elapsed_ms += 3_000
        assert replica.age_ms == 3_000  # level, as far as it knows; but nobody has told it so
        speak(world)
        assert replica.age_ms == 0
        world.clocks.elapsed_ms += 3_000
        await broker.commit()
        speak(world)
        assert replica.lag == 1  # it knows of a commit, and has not applied it
        assert replica.age_ms == 3_000
        finding = asyncio.ensure_future(replica.call(find(world)))
        await asyncio.sleep(0)
        assert not finding.done()
        apply_to(machine, world, world.log.end_offset)
        assert await finding == await world.coordinator.call(find(world))
        assert (replica.age_ms, replica.lag) == (0, 0)

    asyncio.run(story())


def test_a_coordinator_replica_whose_log_may_have_forked_serves_no_read(tmp_path: Path) -> None:
    """Its records may not be those that the others have: docs/design/forks.md."""

    async def story() -> None:
        world, _ = await begin(tmp_path)
        machine = follow(tmp_path)
        replica = ReadOnlyCoordinator(
            world.log, machine, SETTINGS, monotonic=world.clocks.monotonic
        )
        replica.start()
        speak(world)
        apply_to(machine, world, world.log.end_offset)
        assert replica.age_ms == 0
        world.log.in_doubt = True
        assert replica.age_ms is None
        with pytest.raises(CoordinatorError) as caught:
            await replica.call(find(world))
        assert caught.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE

    asyncio.run(story())


def test_a_waiting_read_makes_a_coordinator_replica_apply_committed_records_at_once(
    tmp_path: Path,
) -> None:
    """A host may delay applying as long as no read waits."""

    async def story() -> None:
        world, broker = await begin(tmp_path)
        machine = follow(tmp_path)
        machine.on_wanted = lambda: apply_to(machine, world, world.log.end_offset)
        replica = ReadOnlyCoordinator(
            world.log, machine, SETTINGS, monotonic=world.clocks.monotonic
        )
        replica.start()
        speak(world)
        await broker.commit()
        assert replica.lag
        finding = asyncio.ensure_future(replica.call(find(world)))
        for _ in range(10):
            await asyncio.sleep(0)
        assert finding.done(), "it waits for a host that lingers"
        found = finding.result()
        assert (replica.lag, len(found.responses[0].partitions[0].batches)) == (0, 1)
        machine.on_wanted = lambda: pytest.fail("nobody waits")
        assert await replica.call(find(world)) == found

    asyncio.run(story())


def test_a_coordinator_replica_removes_a_waiting_read_when_it_is_cancelled(tmp_path: Path) -> None:
    """Otherwise a replica that applies nothing would collect cancelled waits without bound."""

    async def story() -> None:
        world, _ = await begin(tmp_path)
        machine = follow(tmp_path)
        replica = ReadOnlyCoordinator(
            world.log, machine, SETTINGS, monotonic=world.clocks.monotonic
        )
        replica.start()
        asked = FindBatchesRequest(topics=(), max_bytes=1)
        calls = [asyncio.ensure_future(replica.call(asked)) for _ in range(20)]
        await asyncio.sleep(0)
        assert len(replica._waiters) == 20
        for call in calls[1:]:
            call.cancel()
        await asyncio.wait(calls[1:])
        assert len(replica._waiters) == 1
        apply_to(machine, world, world.log.end_offset)
        assert (await asyncio.wait_for(calls[0], timeout=DEADLINE_S)).responses == ()
        await replica.close()
        machine.close()
        await world.close()

    asyncio.run(story())


def test_a_coordinator_replica_without_a_leader_answers_find_batches_but_not_list_offsets(
    tmp_path: Path,
) -> None:
    """FindBatches may be old; what ListOffsets says must not be.

    Source: docs/design/broker.md#staleness-is-bounded.
    """

    async def story() -> None:
        world, broker = await begin(tmp_path)
        await broker.commit()
        speak(world)
        world.log.depose()
        found = await world.coordinator.call(find(world))
        assert len(found.responses[0].partitions[0].batches) == 1
        with pytest.raises(CoordinatorError) as caught:
            await world.coordinator.call(ListDisklessOffsetsRequest(topics=()))
        assert caught.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        with pytest.raises(CoordinatorError):
            await broker.commit()

    asyncio.run(story())


def test_a_coordinator_replica_without_a_high_watermark_returns_no_unknown_topic_errors(
    tmp_path: Path,
) -> None:
    """After a crash without its database: nothing is applied, and no leader has been heard."""

    async def story() -> None:
        world, broker = await begin(tmp_path)
        await broker.commit()
        asked, told = find(world), await world.coordinator.call(find(world))
        assert told.responses[0].partitions[0].high_watermark == 1
        high_watermark, world.log.high_watermark = world.log.high_watermark, None
        world.log.depose(lose_uncommitted=False)
        await world.come_back(Restart.NO_FILE)
        coordinator = world.coordinator
        for question in (
            lambda: coordinator.call(asked),
            lambda: coordinator.call(DescribeDisklessTopicsRequest(coordinator_partition=0)),
            lambda: coordinator.call(
                DescribeDisklessObjectRequest(coordinator_partition=0, object_key="x")
            ),
        ):
            with pytest.raises(CoordinatorError) as caught:
                await question()
            assert caught.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        world.elect()
        assert high_watermark is not None
        assert await world.coordinator.call(asked) == told

    asyncio.run(story())


def test_a_lagging_coordinator_replica_returns_errors_only_after_the_read_barrier(
    tmp_path: Path,
) -> None:
    """It lacks a topic and an offset, and waits at the read barrier before it denies them."""

    async def story() -> None:
        world, broker = await begin(tmp_path)
        await broker.commit()
        directory = tmp_path / "behind"
        directory.mkdir()
        machine = CoordinatorMachine(directory, IDENTITY, in_process=True)
        log = BehindLog(world.log)
        behind = QuorumCoordinator(log, machine, SETTINGS, world.view, world.clocks)
        log.committed_as_of = CommittedAsOf(Offset(0), 0.0)
        assert behind.age_ms == 0, "it was level once, long ago"
        finding = asyncio.ensure_future(behind.call(find(world)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert log.barriers == 1
        assert not finding.done()
        apply_to(machine, world, world.log.end_offset)
        assert await finding == await world.coordinator.call(find(world))
        assert log.barriers == 1, "what is found costs none"
        await behind.close()
        machine.close()

    asyncio.run(story())


def test_describe_topics_waits_for_the_coordinators_read_barrier_only_on_request(
    tmp_path: Path,
) -> None:
    """An operator may read an old state; a controller must not compare with one."""

    async def story() -> None:
        world, _ = await begin(tmp_path)
        speak(world)
        world.log.depose()
        seen = await world.coordinator.call(DescribeDisklessTopicsRequest(coordinator_partition=0))
        assert len(seen.topics) == 1
        with pytest.raises(CoordinatorError) as caught:
            await world.coordinator.call(
                DescribeDisklessTopicsRequest(coordinator_partition=0, behind_barrier=True)
            )
        assert caught.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE

    asyncio.run(story())


def test_a_follower_that_loads_a_checkpoint_over_older_state_has_the_leaders_state(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        world, broker = await begin(tmp_path)
        for _ in range(3):
            await broker.commit()
        machine = follow(tmp_path)
        apply_to(machine, world, world.log.end_offset - 1)
        before = machine.total_records
        for _ in range(3):
            await broker.commit()
        values, applied = world.values(), world.machine.applied
        for _ in range(2):
            await broker.commit()
        for _ in machine.load(applied, checkpoint_batches(values, applied, 0)):
            assert machine.total_records == before, "half a state is shown"
        assert machine.applied == applied
        apply_to(machine, world, world.log.end_offset)
        follower = list(machine.freeze().values())
        assert follower == world.values()

    asyncio.run(story())


def test_the_write_ahead_log_of_sqlite_stays_below_its_limit_under_continuous_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a thousandth of the real sizes the thread copies, and commits wait for its last part."""
    monkeypatch.setattr(database, "COPY_AT_BYTES", 64 * 1024)
    monkeypatch.setattr(database, "STOP_AT_BYTES", 256 * 1024)

    async def story() -> None:
        world, broker = await begin(tmp_path)
        wal = Path(f"{world.machine.path}-wal")
        longest = 0
        for _ in range(60):
            await broker.commit()
            world.machine.store.count_written(10_000)
            world.machine.store.flush_if_full()
            longest = max(longest, wal.stat().st_size)
        assert longest > 64 * 1024
        assert world.machine.store.wal.copies > 0
        assert longest < 2 * 1024 * 1024
        await world.close()

    asyncio.run(story())


def test_the_coordinator_benchmarks_run_at_a_small_size_without_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "--objects", "8", "--partitions", "3"])
    bench_coordinator_core.main()
    monkeypatch.setattr(bench_coordinator_state, "LOOKUPS", 10)
    bench_coordinator_state.measure(tmp_path, 5_000, 50)
    printed = capsys.readouterr().out
    assert "follower" in printed
    assert "findBatches" in printed
