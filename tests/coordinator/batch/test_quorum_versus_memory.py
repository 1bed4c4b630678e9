"""The quorum's coordinator beside the one in memory, whatever happens to leaders and files.

Both decide the same requests, at the same times. The one in memory is told what the log kept: after
a leader is lost it goes on from the committed records alone. After every step both states, written
as checkpoints, are the same bytes, and the answers were.

Source: invariants 4-8 and 11 (docs/design/invariants.md).
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from msgspec.structs import replace

from coordinator.batch.memory import InMemoryCoordinator, InMemoryState
from coordinator.batch.runs import REWRITTEN, Run, digest_runs
from coordinator.batch.settings import CoordinatorSettings
from coordinator.batch.sqlite import deferred_deletes, machine
from coordinator.errors import CoordinatorError
from raft.interfaces import draft_values
from records.batch import iter_batches, iter_records
from records.diskless import ControllerEpochRecord
from records.frame import decode_record, encode_record
from records.kafka_errors import ErrorCode
from records.rpc.batch_coordinator import (
    CommitBatch,
    CommitBatchesRequest,
    CommitBatchesResponse,
    DeleteDisklessRecordsRequest,
    DeleteDisklessTopicsRequest,
    FindBatchesRequest,
    InitDisklessTopicsRequest,
    ListDisklessOffsetsRequest,
    ReleaseDisklessPartitionsRequest,
)
from records.rpc.objects import (
    AcquireObjectLeaseRequest,
    DeleteFilesRequest,
    GetFilesToDeleteRequest,
    IsSafeToDeleteFileRequest,
    ReleaseObjectLeaseRequest,
)
from records.rpc.rewriting import (
    NewRun,
    ReplaceRunsRequest,
    ReplaceRunsResponse,
    RewriteLeaseRequest,
)
from records.types import Offset
from tests.coordinator.batch.quorum_world import QuorumWorld, Restart
from tests.coordinator.batch.subjects import KEYS
from tests.doubles.memory_log import SilentTicket
from tests.lives import live_until_seen

pytestmark = pytest.mark.slow

TOPICS: Final = tuple(UUID(int=number) for number in range(1, 4))
PARTITIONS: Final = 3
PLAN: Final = UUID(int=5)
BROKERS: Final = 2
SIZE_BYTES: Final = 100
SETTINGS: Final = CoordinatorSettings(
    keys=KEYS,
    file_delete_delay_ms=10_000,
    lease_timeout_ms=60_000,
    answer_retention_ms=30_000,
    producer_expiration_ms=120_000,
    tombstone_retention_ms=20_000,
    maintenance_limit=3,
)

seen: Counter[str] = Counter()
"""What happened in all examples together: a test that never met a duplicate proves nothing."""

batch_plans = st.tuples(
    st.integers(0, len(TOPICS) - 1),
    st.integers(0, PARTITIONS),  # the last one is not there
    st.integers(-1, 2),  # producer, -1: none
    st.sampled_from([0, 0, 0, 0, 0, 0, 1, -1, -2]),  # how far off the next sequence
    st.sampled_from([0, 0, 0, 0, 0, 1, -1]),  # epoch against the one it has
    st.integers(1, 3),  # records
    st.integers(0, 1000),  # timestamp
    st.booleans(),  # a gap before it
)
plans = st.lists(batch_plans, min_size=1, max_size=6)


rewrite_plans = st.tuples(
    st.integers(0, 8),  # partition
    st.sampled_from([0, 0, 0, 1, 2]),  # run that it begins with
    st.integers(1, 4),  # old runs
    st.integers(1, 2),  # new runs
    st.sampled_from([None, 0, 3]),  # runs from its end to the bound; None: merged
    st.sampled_from([0, 0, 1, 2]),  # flags
    st.sampled_from([0, 0, -1]),  # object, against the next one
    st.booleans(),  # closes the object
)


def told_ranges(
    answer: ReplaceRunsResponse,
) -> list[ReplaceRunsResponse.Topic.Partition]:
    """The ranges of an answer."""
    return [one for topic in answer.topics for one in topic.partitions]


class QuorumVersusMemory(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="esker-coordinator-"))
        self.loop = asyncio.new_event_loop()
        self.patches = ExitStack()
        self.controller_epoch = 1_000_000
        self.oracle = InMemoryState()  # what the log's committed records say
        self.read_offset = Offset(0)
        self.sent: list[CommitBatchesRequest] = []
        self.leases: list[tuple[int, int, int, int, int]] = []  # broker, epoch, lease, next, end
        self.sequences: dict[tuple[int, int, int], tuple[int, int]] = {}  # epoch, next sequence
        self.acknowledged: dict[tuple[UUID, int, int], tuple[int, int]] = {}  # object, records
        self.deleted_objects: set[int] = set()
        self.ends: dict[tuple[UUID, int], tuple[int, int]] = {}
        self.rewriting: list[tuple[int, int, int]] = []  # lease, next object id, end
        self.replaced: list[ReplaceRunsRequest] = []

        async def begin() -> QuorumWorld:
            return QuorumWorld(self.directory, SETTINGS)

        self.world = self.loop.run_until_complete(begin())
        self.begin_model()

    def teardown(self) -> None:
        self.patches.close()
        self.loop.run_until_complete(self.world.close())
        self.loop.close()
        shutil.rmtree(self.directory)

    @initialize(at_once=st.sampled_from([0, 0, 0, 1]), a_slice=st.sampled_from([0, 0, 1]))
    def some_runs_go_later(self, at_once: int, a_slice: int) -> None:
        """Have few runs deleted at once, as if there were millions."""
        self.patches.enter_context(patch.object(deferred_deletes, "RUNS_WITH_RECORD", at_once))
        self.patches.enter_context(patch.object(machine, "RUNS_WITH_SLICE", a_slice))

    # -- the two of them -----------------------------------------------------------------------

    def begin_model(self) -> None:
        """Start a coordinator in memory that leads from now on, with what was committed."""
        self.catch_up()
        clocks, since_ms = self.world.clocks, self.world.now_ms()
        elapsed_ms = clocks.elapsed_ms
        state = InMemoryState.load(self.oracle.checkpoint(), self.oracle.applied_offset)
        self.model = InMemoryCoordinator(
            SETTINGS,
            self.world.view,
            self.world.now_ms,
            lambda: since_ms + clocks.elapsed_ms - elapsed_ms,
            state,
        )

    def catch_up(self, *states: InMemoryState) -> None:
        """Apply to the oracle, and to other states, what the log committed since."""
        log = self.world.log
        end = log.high_watermark or Offset(0)
        while self.read_offset < end:
            for batch in iter_batches(log.read(self.read_offset, 1 << 20)):
                if not batch.header.is_control:
                    for record in iter_records(batch):
                        decoded = decode_record(record.value)
                        for state in (self.oracle, *states):
                            state.apply(record.offset, decoded)
                self.read_offset = batch.header.end_offset

    async def ask(self, coordinator: Any, request: Any) -> Any:
        try:
            return await coordinator.call(request)
        except CoordinatorError as error:
            return error

    def both(self, request: Any) -> Any:
        """Call both, require the same answer, and return it."""
        ours = self.loop.run_until_complete(self.ask(self.world.coordinator, request))
        theirs = self.loop.run_until_complete(self.ask(self.model, request))
        assert ours == theirs, f"{request}: {ours}, in memory {theirs}"
        return ours

    # -- what brokers do -----------------------------------------------------------------------

    @initialize()
    def two_topics(self) -> None:
        self.create(0)
        self.create(1)
        self.lease(0)

    @rule(topic=st.integers(0, len(TOPICS) - 1))
    def create(self, topic: int) -> None:
        self.init(topic, ())

    def init(self, topic: int, restored: tuple[int, ...]) -> None:
        wanted = InitDisklessTopicsRequest.Topic(
            topic_id=TOPICS[topic],
            topic_name=f"topic-{topic}",
            num_partitions=PARTITIONS,
            restored=restored,
        )
        self.both(
            InitDisklessTopicsRequest(controller_epoch=self.controller_epoch, topics=(wanted,))
        )

    @rule(
        broker=st.integers(0, BROKERS - 1),
        count=st.integers(1, 4),
        restarted=st.sampled_from([0, 0, 1, -1]),
    )
    def lease(self, broker: int, count: int = 4, restarted: int = 0) -> None:
        known = max((epoch for b, epoch, *_ in self.leases if b == broker), default=0)
        request = AcquireObjectLeaseRequest(
            coordinator_partition=0,
            broker_id=broker,
            broker_epoch=known + restarted,
            object_count=count,
        )
        answer = self.both(request)
        if answer.error_code:
            seen["leases refused"] += 1
            return
        first, end = answer.first_object_id, answer.first_object_id + count
        self.leases.append((broker, known + restarted, answer.lease_id, first, end))

    @rule(which=st.integers(0, 9), broker_epoch_off=st.integers(-1, 1))
    @precondition(lambda self: self.leases)
    def release(self, which: int, broker_epoch_off: int) -> None:
        broker, epoch, lease_id, _, _ = self.leases[which % len(self.leases)]
        self.both(
            ReleaseObjectLeaseRequest(
                coordinator_partition=0,
                broker_id=broker,
                broker_epoch=epoch + broker_epoch_off,
                lease_id=lease_id,
            )
        )

    def next_request(self, which: int, skip: int, plan: list[Any]) -> CommitBatchesRequest:
        """The commit of a new object of one of the last leases."""
        at = len(self.leases) - 1 - which % min(3, len(self.leases))
        if self.leases[at][3] + skip >= self.leases[at][4]:
            self.lease(self.leases[at][0])  # used up: another one, as a broker does
            at = len(self.leases) - 1
        broker, epoch, lease_id, following, end = self.leases[at]
        object_id = following + skip
        self.leases[at] = (broker, epoch, lease_id, object_id + 1, end)
        groups: dict[UUID, dict[int, list[CommitBatch]]] = {}
        place = 0
        for topic, partition, producer, off, epoch_off, count, time, gap in plan:
            place += SIZE_BYTES * gap
            key = (topic, partition, producer)
            known_epoch, sequence = self.sequences.get(key, (0, 0))
            producer_epoch = max(0, known_epoch + epoch_off)
            if producer_epoch > known_epoch and off == 0:
                sequence = 0
            base = max(0, sequence + off)
            last = base + count - 1
            idempotent = producer >= 0
            if idempotent and off == 0 and epoch_off >= 0:
                self.sequences[key] = (producer_epoch, last + 1)
            groups.setdefault(TOPICS[topic], {}).setdefault(partition, []).append(
                CommitBatch(
                    place,
                    SIZE_BYTES,
                    0,
                    count - 1,
                    time,
                    time % 2,
                    producer,
                    producer_epoch if idempotent else -1,
                    base if idempotent else -1,
                    last if idempotent else -1,
                )
            )
            place += SIZE_BYTES
        request = CommitBatchesRequest(
            broker_id=broker,
            broker_epoch=epoch,
            lease_id=lease_id,
            object_id=object_id,
            object_format=1,
            object_size=place,
            topics=tuple(
                CommitBatchesRequest.Topic(
                    topic_id=topic_id,
                    partitions=tuple(
                        CommitBatchesRequest.Topic.Partition(
                            partition_index=partition, batches=tuple(batches)
                        )
                        for partition, batches in partitions.items()
                    ),
                )
                for topic_id, partitions in groups.items()
            ),
        )
        self.sent.append(request)
        return request

    @rule(which=st.integers(0, 2), skip=st.sampled_from([0, 0, 0, 1]), plan=plans)
    @precondition(lambda self: self.leases)
    def commit(self, which: int, skip: int, plan: list[Any]) -> None:
        request = self.next_request(which, skip, plan)
        self.acknowledge(request, self.both(request))

    @rule(which=st.integers(0, 2), some=st.lists(plans, min_size=2, max_size=4))
    @precondition(lambda self: self.leases)
    def commit_several(self, which: int, some: list[Any]) -> None:
        for plan in some:
            self.commit(which, 0, plan)

    @rule(which=st.integers(0, 2), ago=st.integers(0, 3))
    @precondition(lambda self: self.leases and self.sent)
    def clients_retry(self, which: int, ago: int) -> None:
        """Commit the same batches in another object, perhaps another broker's."""
        batches = self.sent[max(0, len(self.sent) - 1 - ago)]
        fresh = self.next_request(which, 0, [(0, 0, -1, 0, 0, 1, 0, False)])
        self.sent[-1] = replace(fresh, topics=batches.topics, object_size=batches.object_size)
        self.acknowledge(self.sent[-1], self.both(self.sent[-1]))

    @rule(ago=st.integers(0, 12))
    @precondition(lambda self: self.sent)
    def commit_again(self, ago: int) -> None:
        """Repeat a commit: it gets the same answer, or a final refusal."""
        request = self.sent[max(0, len(self.sent) - 1 - ago)]
        before = self.world.log.end_offset
        answer = self.both(request)
        if not answer.error_code and self.world.log.end_offset == before:
            seen["answers kept"] += 1
        self.acknowledge(request, answer)

    def acknowledge(self, request: CommitBatchesRequest, answer: CommitBatchesResponse) -> None:
        """Record what a broker may now acknowledge to its clients."""
        if answer.error_code:
            seen["commits refused"] += 1
            return
        for topic, told in zip(request.topics, answer.topics, strict=True):
            for group, results in zip(topic.partitions, told.partitions, strict=True):
                for batch, result in zip(group.batches, results.results, strict=True):
                    if result.is_duplicate:
                        seen["duplicates answered"] += 1
                    elif not result.error_code:
                        seen["batches accepted"] += 1
                        key = (topic.topic_id, group.partition_index, result.assigned_base_offset)
                        value = (request.object_id, batch.last_offset + 1)
                        assert self.acknowledged.setdefault(key, value) == value, f"{key} twice"

    # -- what is read and deleted ----------------------------------------------------------------

    @rule(topic=st.integers(0, 2), partition=st.integers(0, 3), at=st.integers(-1, 30))
    def find(self, topic: int, partition: int, at: int) -> None:
        group = FindBatchesRequest.Topic.Partition(
            partition_index=partition, offset=at, max_bytes=350
        )
        asked = FindBatchesRequest.Topic(topic_id=TOPICS[topic], partitions=(group,))
        self.both(FindBatchesRequest(max_bytes=10_000, topics=(asked,)))

    @rule(topic=st.integers(0, 2), time=st.integers(-6, 1000), at=st.integers(-1, 30))
    def list_offsets(self, topic: int, time: int, at: int) -> None:
        groups = tuple(
            ListDisklessOffsetsRequest.Topic.Partition(
                partition_index=partition, timestamp=time, from_offset=at
            )
            for partition in range(PARTITIONS)
        )
        asked = ListDisklessOffsetsRequest.Topic(topic_id=TOPICS[topic], partitions=groups)
        self.both(ListDisklessOffsetsRequest(topics=(asked,)))

    @rule(topic=st.integers(0, 2), partition=st.integers(0, 3), quarters=st.integers(1, 5))
    def delete_records(self, topic: int, partition: int, quarters: int) -> None:
        known = self.ends.get((TOPICS[topic], partition), (0, 0))
        at = -1 if quarters == 5 else known[0] + (known[1] - known[0]) * quarters // 4
        group = DeleteDisklessRecordsRequest.Topic.Partition(partition_index=partition, offset=at)
        asked = DeleteDisklessRecordsRequest.Topic(topic_id=TOPICS[topic], partitions=(group,))
        runs = sum(map(len, self.model.state.runs.values()))
        self.both(DeleteDisklessRecordsRequest(topics=(asked,)))
        seen["runs cut"] += runs - sum(map(len, self.model.state.runs.values()))

    @rule(topic=st.integers(0, 2), partition=st.integers(0, 3), later=st.booleans())
    def let_go(self, topic: int, partition: int, later: bool) -> None:
        """Release a partition, and restore it under a later controller."""
        index = ReleaseDisklessPartitionsRequest.Topic.Partition(partition_index=partition)
        asked = ReleaseDisklessPartitionsRequest.Topic(topic_id=TOPICS[topic], partitions=(index,))
        request = ReleaseDisklessPartitionsRequest(
            controller_epoch=self.controller_epoch, topics=(asked,)
        )
        answer = self.both(request)
        seen["let go"] += not answer.responses[0].partitions[0].error_code
        self.controller_epoch += later
        self.init(topic, (partition,))

    @rule(topic=st.integers(2, 2))
    def delete_topic(self, topic: int) -> None:
        self.both(
            DeleteDisklessTopicsRequest(
                controller_epoch=self.controller_epoch, topic_ids=(TOPICS[topic],)
            )
        )

    @rule(ago=st.integers(0, 5))
    @precondition(lambda self: self.sent)
    def is_safe(self, ago: int) -> None:
        request = self.sent[max(0, len(self.sent) - 1 - ago)]
        answer = self.both(
            IsSafeToDeleteFileRequest(
                coordinator_partition=0, object_key=KEYS.key(request.object_id)
            )
        )
        if answer.is_safe:
            seen["fences"] += 1
            self.deleted_objects.add(request.object_id)

    @rule(count=st.integers(1, 5))
    def delete_files(self, count: int) -> None:
        """Delete listed objects from the store, then report them, as a broker does."""
        files = self.both(GetFilesToDeleteRequest(coordinator_partition=0, max_files=count)).files
        keys = tuple(file.object_key for file in files)
        self.deleted_objects.update(KEYS.object_id(key) for key in keys)
        seen["objects deleted"] += len(keys)
        self.both(DeleteFilesRequest(coordinator_partition=0, object_keys=keys))

    # -- what rewriters do ---------------------------------------------------------------------

    @rule(
        count=st.integers(1, 3),
        renews=st.booleans(),
        releases=st.sampled_from([False] * 3 + [True]),
    )
    def lease_for_rewriting(self, count: int, renews: bool, releases: bool) -> None:
        """Finalize the level of rewriting, and grant, renew or end a rewriter's lease."""
        self.world.view.raise_level(3)
        known = self.rewriting[-1][0] if self.rewriting and (renews or releases) else -1
        request = RewriteLeaseRequest(
            coordinator_partition=0,
            lease_id=known,
            releases=releases and known >= 0,
            plan_id=PLAN,
            object_count=count,
        )
        answer = self.both(request)
        if known < 0 and not answer.error_code:
            first = answer.first_object_id
            self.rewriting.append((answer.lease_id, first, first + count))

    @rule(work=st.lists(rewrite_plans, min_size=1, max_size=4), again=st.integers(0, 2))
    def replace_several(self, work: list[Any], again: int) -> None:
        """Rewrite live runs of some partitions, and repeat the last of the requests."""
        for plan in work:
            self.replace_runs(*plan)
        for request in self.replaced[len(self.replaced) - again :]:
            for told in told_ranges(self.both(request)):
                seen["replacements repeated"] += not told.error_code

    def replace_runs(
        self,
        which: int,
        begin: int,
        count: int,
        parts: int,
        bound: int | None,
        flags: int,
        object_off: int,
        closes: bool,
    ) -> None:
        """Rewrite a few live runs of a partition into the next object, or into the last one."""
        if not self.rewriting:
            self.lease_for_rewriting(3, renews=False, releases=False)
        state, topics = self.model.state, ()
        filled = [
            (topic_id, partition, state.runs[log_id])
            for topic_id, topic in sorted(state.topics.items())
            for partition, log_id in enumerate(topic.log_ids)
            if state.runs.get(log_id)
        ]
        if filled:
            topic_id, partition, runs = filled[which % len(filled)]
            begin = min(begin, len(runs) - 1)
            old = runs[begin : begin + count]
            end = old[-1].last_offset + 1
            removes = bound is not None and any(run.record_count for run in old)
            parts = parts if end - old[0].base_offset > 1 else 1
            row = self.rewritten_row(partition, old, parts, int(removes))
            if bound is not None:
                limit = runs[min(len(runs) - 1, begin + len(old) - 1 + bound)].last_offset + 1
                row = replace(row, bound=limit, flags=flags)
            topics = (ReplaceRunsRequest.Topic(topic_id=topic_id, partitions=(row,)),)
        lease_id, object_id, stop = self.rewriting[-1]
        object_id = max(0, object_id + object_off)
        self.rewriting[-1] = lease_id, object_id + 1, stop
        if object_id + 1 >= stop:
            self.rewriting.pop()
        request = ReplaceRunsRequest(
            coordinator_partition=0,
            lease_id=lease_id,
            plan_id=PLAN,
            object_id=object_id,
            object_format=2,
            object_size=SIZE_BYTES,
            closes_object=closes,
            topics=topics,
        )
        self.replaced.append(request)
        for told in told_ranges(self.both(request)):
            seen["ranges refused" if told.error_code else "ranges replaced"] += 1
            seen["rounds begun"] += told.cleaned_until > 0 and told.bound >= 0

    def rewritten_row(
        self, partition: int, old: list[Run], parts: int, removed: int
    ) -> ReplaceRunsRequest.Topic.Partition:
        first, end = old[0].base_offset, old[-1].last_offset + 1
        left, base, runs = sum(run.record_count for run in old) - removed, first, []
        for part in range(parts):
            last = end - 1 if part == parts - 1 else first + (end - first) // 2 - 1
            count = min(left, last - base + 1)
            times = max(run.max_timestamp for run in old), max(run.appended_at_ms for run in old)
            runs.append(NewRun(last, count, 10 * part, 10, *times, 0))
            left, base = left - count, last + 1
        return ReplaceRunsRequest.Topic.Partition(
            partition_index=partition,
            first_offset=first,
            end_offset=end,
            old_run_count=len(old),
            old_runs_digest=digest_runs(
                (run.object_id, run.byte_offset, run.byte_size) for run in old
            ),
            runs=tuple(runs),
        )

    # -- time ----------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([10, 1_000, 11_000, 40_000, 130_000]))
    def time_passes(self, ms: int) -> None:
        """And a sweep does what is due. Which of the due producers go first is its own affair, so
        the model follows the log; that nothing went too early, the contract's stories say."""
        self.world.clocks.elapsed_ms += ms
        self.loop.run_until_complete(self.world.coordinator.run_maintenance())
        self.catch_up(self.model.state)

    @rule(ms=st.sampled_from([-100_000, -500, 500, 100_000]))
    def the_clock_is_set(self, ms: int) -> None:
        self.world.jump(ms)

    # -- leaders -------------------------------------------------------------------------------

    @rule(how=st.sampled_from(Restart))
    def restart(self, how: Restart) -> None:
        """Restart as another process, on its database, on none, or from a checkpoint; then lead."""
        self.world.log.depose()
        self.loop.run_until_complete(self.world.come_back(how))
        seen[f"restarts on {how.value}"] += 1
        self.world.elect()
        self.begin_model()

    @rule(_sometimes=st.integers(0, 3))
    def step_down_and_up(self, _sometimes: int) -> None:
        self.world.log.depose()
        self.world.elect()
        self.begin_model()

    @rule(
        work=st.lists(st.tuples(st.integers(0, 2), plans), min_size=1, max_size=4),
        again=st.integers(0, 2),
        fate=st.sampled_from(["is half lost", "commits", "is lost", "is kept by the next"]),
        turns=st.sampled_from([1, 4, 4]),
        lags=st.booleans(),
    )
    @precondition(lambda self: self.leases)
    def commits_in_flight(
        self, work: list[Any], again: int, fate: str, turns: int, lags: bool
    ) -> None:
        """Several commits are decided on one another; none is answered before it is committed."""
        log, world = self.world.log, self.world
        requests = [self.next_request(which, 0, plan) for which, plan in work]
        requests += self.sent[-again:] if again else []
        log.auto_commit, world.hosting.holds_back = False, lags
        first_end = log.end_offset

        async def submit() -> list[asyncio.Future[Any]]:
            futures = []
            for request in requests:
                futures.append(asyncio.ensure_future(self.ask(world.coordinator, request)))
                if turns > 1:
                    await turn(turns)
            await turn(4)
            return futures

        async def turn(count: int) -> None:
            for _ in range(count):
                await asyncio.sleep(0)

        futures = self.loop.run_until_complete(submit())
        expected, wrote, has_written = [], [], False
        for request, future in zip(requests, futures, strict=True):
            before = len(self.model.log)
            expected.append(self.loop.run_until_complete(self.ask(self.model, request)))
            wrote.append(len(self.model.log) > before)
            has_written = has_written or wrote[-1]
            assert not (has_written and future.done()), "answered before it was committed"
            seen["answers held"] += has_written
        self.check_overlay()
        log.auto_commit = True
        if fate == "commits":
            log.commit()
            answers = self.loop.run_until_complete(asyncio.gather(*futures))
            assert answers == expected
            for request, answer in zip(requests, answers, strict=True):
                self.acknowledge(request, answer)
            world.hosting.holds_back = False
            world.hosting.apply()
            return
        if fate == "is half lost":
            ends = [stored.end_offset for stored in log._stored if stored.end_offset > first_end]
            if len(ends) > 1:
                log.commit(ends[len(ends) // 2 - 1])
                seen["half committed"] += 1
        log.depose(lose_uncommitted=fate != "is kept by the next")
        answers = self.loop.run_until_complete(asyncio.gather(*futures))
        lost = 0
        for request, answer, wanted, has in zip(requests, answers, expected, wrote, strict=True):
            if isinstance(answer, CoordinatorError):
                # What wrote no record was to be said behind the barrier: nothing has happened.
                unsaid = not has and answer.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
                assert unsaid or answer.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
                lost += 1
            else:
                assert answer == wanted
                self.acknowledge(request, answer)
        seen["leaders changed in mid-commit"] += lost > 0
        world.hosting.holds_back = False
        world.hosting.apply()
        world.elect()
        self.begin_model()

    def check_overlay(self) -> None:
        """Check that the pending state equals the state after all is applied."""
        pending, model = self.world.coordinator.leader.pending, self.model.state
        assert dict(pending.topics.items()) == model.topics
        assert dict(pending.leases.items()) == model.leases
        assert dict(pending.brokers.items()) == model.brokers
        assert pending.counters == model.counters
        for log_id, log in model.logs.items():
            assert pending.logs.get(log_id) == log
        for key, producer in model.producers.items():
            assert pending.producers.get(key) == producer
        for object_id, answer in model.answers.items():
            assert pending.answers.get(object_id) == answer

    @rule(sometimes=st.integers(0, 3))
    def a_stranger_appends(self, sometimes: int) -> None:
        """Append a record of another owner: the next proposal is refused, and decided again."""
        if sometimes:
            return
        log = self.world.log
        record = ControllerEpochRecord(controller_epoch=self.controller_epoch)
        assert log.leading_epoch is not None
        draft = draft_values([encode_record(record)], timestamp_ms=self.world.now_ms())
        log.propose(SilentTicket(), log.leading_epoch, draft)
        self.model.state.apply(self.model.state.applied_offset, record)
        seen["strangers"] += 1

    # -- always --------------------------------------------------------------------------------

    @invariant()
    def the_states_are_the_same(self) -> None:
        self.catch_up()
        self.oracle.check_invariants()
        values = self.oracle.checkpoint()
        assert self.world.values() == values
        seen["states with dead runs left"] += len(self.world.machine.store.deferred_deletes) > 0
        told = self.model.state.checkpoint()
        for ours, theirs in zip(values, told, strict=False):
            assert ours == theirs, f"{decode_record(ours)}, decided {decode_record(theirs)}"
        assert len(values) == len(told)

    @invariant()
    def nothing_goes_backwards(self) -> None:
        for topic_id, topic in self.oracle.topics.items():
            for partition, log_id in enumerate(topic.log_ids):
                log = self.oracle.logs.get(log_id)
                if log is None:
                    continue
                before = self.ends.get((topic_id, partition), (0, 0))
                assert log[0] >= before[0], f"log start {before} -> {log}"
                assert log[1] >= before[1], f"high watermark {before} -> {log}"
                self.ends[topic_id, partition] = log

    @invariant()
    def what_was_acknowledged_is_there(self) -> None:
        """Check that acknowledged batches are at their offset and stored (invariants 5, 7)."""
        for (topic_id, partition, offset), (object_id, count) in self.acknowledged.items():
            topic = self.oracle.topics.get(topic_id)
            if topic is None or topic.deleted_at_ms >= 0:
                continue
            log_id = topic.log_ids[partition]
            if offset + count <= self.oracle.logs[log_id][0]:
                continue
            run = next(
                iter(self.oracle.runs_from(log_id, max(offset, self.ends[topic_id, partition][0])))
            )
            if run.object_format == REWRITTEN:
                object_id = run.object_id
            assert run.object_id == object_id, f"{topic_id}-{partition} at {offset}: {run}"
            assert object_id not in self.deleted_objects, f"object {object_id} is deleted"


def test_the_coordinator_on_a_raft_quorum_decides_like_the_coordinator_in_memory() -> None:
    wanted = (
        "answers held",
        "answers kept",
        "batches accepted",
        "commits refused",
        "duplicates answered",
        "fences",
        "half committed",
        "leaders changed in mid-commit",
        "leases refused",
        "let go",
        "objects deleted",
        "ranges refused",
        "ranges replaced",
        "replacements repeated",
        "rounds begun",
        "runs cut",
        "states with dead runs left",
        "strangers",
        *(f"restarts on {how.value}" for how in Restart),
    )
    live_until_seen(QuorumVersusMemory, seen, wanted, lives=40, steps=50)
