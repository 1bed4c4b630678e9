"""The controller beside a simple model, under leader changes, restarts and checkpoint loads."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from coordinator.controller.image import TOPIC, MetadataImage, Resource
from coordinator.controller.machine import ControllerMachine
from records.kafka_errors import ErrorCode
from records.metadata import PartitionRecord
from records.rpc.brokers import AllocateProducerIdsRequest, UnregisterBrokerRequest
from records.rpc.chunks import AlterChunkAssignmentsRequest, CreateChunksRequest
from records.rpc.configs import IncrementalAlterConfigsRequest
from records.rpc.topics import CreatePartitionsRequest, DeleteTopicsRequest
from tests.coordinator.controller.world import (
    World,
    creation,
    ended_sessions,
    load,
    records_of,
    registration,
)

pytestmark = pytest.mark.slow

NAMES = ("a", "b", "c.d", "c_d")
BROKERS = (1, 2, 3)
SETTINGS = ("retention.ms", "max.message.bytes")


@dataclass
class TopicModel:
    """The model of one topic."""

    widths: list[int]  # replicas of each partition
    settings: dict[str, str] = field(default_factory=dict)
    starts: dict[int, list[int]] = field(default_factory=dict)  # of chunks, the active one last

    @property
    def partitions(self) -> int:
        return len(self.widths)


@dataclass
class Model:
    """The expected state of the cluster."""

    topics: dict[str, TopicModel] = field(default_factory=dict)
    brokers: dict[int, int] = field(default_factory=dict)  # id -> incarnation
    next_producer_id: int = 0


class ControllerVersusModel(RuleBasedStateMachine):
    """Compares the controller with a model.

    `model` is the state after the newest decision, `committed` the state that cannot be lost.
    """

    def __init__(self) -> None:
        super().__init__()
        self.world = World(auto_commit=False)
        self.model = Model()
        self.committed = Model()
        self.waiting: list[tuple[list[Any], int | None]] = []  # answers, the code expected
        self.deleted = False  # a topic, since the last commit

    @initialize()
    def begin(self) -> None:
        self.world.log.elect()
        self.commit()

    # --- the log ------------------------------------------------------------------------------

    @rule()
    def commit(self) -> None:
        for _ in range(20):  # the answer to a commit may be another record
            self.world.log.commit()
            self.world.run()
            if self.world.log.high_watermark == self.world.log.end_offset:
                break
        for answers, code in self.waiting:
            assert len(answers) == 1, f"{len(answers)} answers at {self.world.log.end_offset}"
            got = _code(answers[0])
            if got == ErrorCode.UNKNOWN_TOPIC_ID and code == ErrorCode.NONE:
                assert self.deleted, "a new topic is gone without a deletion"
            elif code is not None:
                assert got == code, answers[0]
        self.waiting.clear()
        self.deleted = False
        self.committed = copy.deepcopy(self.model)

    @rule(lose=st.booleans())
    def change_leader(self, lose: bool) -> None:
        self.world.depose(lose=lose)
        self._lost(lose=lose)
        self.world.log.elect()
        self.commit()

    @rule()
    def restart(self) -> None:
        self.world.restart()
        self.waiting.clear()  # their connections are gone
        self.model = copy.deepcopy(self.committed)
        self.world.log.elect()
        self.commit()

    @rule()
    @precondition(lambda self: not self.waiting)
    def take_checkpoint(self) -> None:
        self.world.take_checkpoint()

    def _lost(self, *, lose: bool) -> None:
        for answers, _ in self.waiting:
            assert len(answers) == 1, "a request must be answered once"
            assert _code(answers[0]) == ErrorCode.NOT_LEADER_OR_FOLLOWER, answers[0]
        self.waiting.clear()
        if lose:
            self.model = copy.deepcopy(self.committed)

    def _ask(self, request: Any, code: int | None) -> list[Any]:
        answers = self.world.send(request)
        self.world.run()
        if self.world.log.high_watermark != self.world.log.end_offset:
            assert not answers, f"answered before it is committed: {answers[0]}"
        if answers:  # it rests on nothing that could be lost
            assert code is None or _code(answers[0]) == code, answers[0]
            self.committed = copy.deepcopy(self.model)
        else:
            self.waiting.append((answers, code))
        return answers

    # --- topics -------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES), partitions=st.integers(1, 3), factor=st.integers(1, 4))
    def create(self, name: str, partitions: int, factor: int) -> None:
        topics = self.model.topics
        code = ErrorCode.NONE
        twin = {"c.d": "c_d", "c_d": "c.d"}.get(name)
        if name in topics:
            code = ErrorCode.TOPIC_ALREADY_EXISTS
        elif twin in topics:
            code = ErrorCode.INVALID_TOPIC_EXCEPTION
        elif not self.model.brokers:
            code = ErrorCode.INVALID_REPLICATION_FACTOR
        if not code:
            topics[name] = TopicModel([min(factor, len(self.model.brokers))] * partitions)
        self._ask(creation(name, partitions, factor=factor), code)

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name: str) -> None:
        known = self.model.topics.pop(name, None)
        self.deleted = self.deleted or known is not None
        code = ErrorCode.NONE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self._ask(DeleteTopicsRequest(topic_names=(name,), timeout_ms=1_000), code)

    @rule(name=st.sampled_from(NAMES), count=st.integers(0, 6))
    def grow(self, name: str, count: int) -> None:
        topic = self.model.topics.get(name)
        entry_type = CreatePartitionsRequest.CreatePartitionsTopic
        code = ErrorCode.NONE
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif count <= topic.partitions:
            code = ErrorCode.INVALID_PARTITIONS
        elif not self.model.brokers:
            code = ErrorCode.INVALID_REPLICATION_FACTOR
        else:
            width = min(topic.widths[0], len(self.model.brokers))
            topic.widths += [width] * (count - topic.partitions)
        request = CreatePartitionsRequest(
            topics=(entry_type(name=name, count=count, assignments=None),),
            timeout_ms=1_000,
            validate_only=False,
        )
        self._ask(request, code)

    @rule(
        name=st.sampled_from(NAMES),
        key=st.sampled_from((*SETTINGS, "nonsense")),
        value=st.none() | st.integers(-5, 5).map(str),
    )
    def set_config(self, name: str, key: str, value: str | None) -> None:
        topic = self.model.topics.get(name)
        code = ErrorCode.NONE
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif key == "nonsense" or _too_low(key, value):
            code = ErrorCode.INVALID_CONFIG
        elif value is None:
            topic.settings.pop(key, None)
        else:
            topic.settings[key] = value
        self._ask(alteration(name, key, value), code)

    # --- brokers ------------------------------------------------------------------------------

    @rule(broker_id=st.sampled_from(BROKERS))
    def register(self, broker_id: int) -> None:
        self.model.brokers[broker_id] = 1
        self._ask(registration(broker_id), ErrorCode.NONE)

    @rule(broker_id=st.sampled_from(BROKERS))
    def unregister(self, broker_id: int) -> None:
        known = self.model.brokers.pop(broker_id, None)
        code = ErrorCode.NONE if known else ErrorCode.BROKER_ID_NOT_REGISTERED
        with ended_sessions(self.world.controller):
            self._ask(UnregisterBrokerRequest(broker_id=broker_id), code)

    @rule(broker_id=st.sampled_from(BROKERS))
    def allocate(self, broker_id: int) -> None:
        pending = self.world.controller._pending.image.brokers.get(broker_id)
        code = ErrorCode.BROKER_ID_NOT_REGISTERED
        if broker_id in self.model.brokers:
            code = ErrorCode.NONE
            self.model.next_producer_id += 1_000
        epoch = -1 if pending is None else pending.broker_epoch
        self._ask(AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=epoch), code)

    @rule(ms=st.integers(1, 20_000))
    def pass_time(self, ms: int) -> None:
        """Advance the clock; only silent brokers change, as they are fenced."""
        self.world.pass_ms(ms)

    # --- chunks -------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES), index=st.integers(0, 2), step=st.integers(-1, 5))
    def create_chunk(self, name: str, index: int, step: int) -> None:
        topic = self.model.topics.get(name)
        code, start = ErrorCode.NONE, 5
        if topic is None or index >= topic.partitions:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            replicas: tuple[int, ...] = (1,)
        else:
            starts = topic.starts.setdefault(index, [0])
            start = starts[-1] + step
            replicas = tuple(sorted(self.model.brokers))[: topic.widths[index]]
            if len(replicas) < topic.widths[index]:
                code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
            elif step <= 0:
                code = ErrorCode.INVALID_REQUEST
            else:
                starts.append(start)
        entry_type = CreateChunksRequest.TopicPartition
        request = CreateChunksRequest(
            topic_partitions=(
                entry_type(
                    topic_name=name,
                    partition_id=index,
                    broker_ids=replicas,
                    start_offset=start,
                    start_timestamp=self.world.wall_ms,
                    prev_stop_offset=start - 1,
                ),
            )
        )
        self._ask(request, code)

    @rule(name=st.sampled_from(NAMES), which=st.integers(0, 3))
    def alter_chunk(self, name: str, which: int) -> None:
        topic = self.model.topics.get(name)
        starts = [] if topic is None else topic.starts.get(0, [0])[:-1]
        replicas = tuple(sorted(self.model.brokers, reverse=True))
        code = ErrorCode.NONE
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif which >= len(starts):
            code = ErrorCode.INVALID_REQUEST
        elif len(replicas) < topic.widths[0]:
            code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        if topic is not None:
            replicas = replicas[: topic.widths[0]]
        entry_type = AlterChunkAssignmentsRequest.Assignment
        request = AlterChunkAssignmentsRequest(
            chunks=(
                entry_type(
                    topic_name=name,
                    partition_id=0,
                    start_offset=starts[which] if which < len(starts) else 99,
                    broker_ids=replicas or (1,),
                ),
            )
        )
        self._ask(request, code)

    # --- what must hold -----------------------------------------------------------------------

    @invariant()
    def the_pending_image_is_the_model(self) -> None:
        if self.world.controller.active_epoch is not None:
            compare(self.world.controller._pending.image, self.model)

    @invariant()
    def the_image_is_what_is_committed(self) -> None:
        compare(self.world.image, self.committed)
        assert self.world.machine.contradictions == 0, "a record that fits nothing"

    @invariant()
    def a_checkpoint_is_the_image(self) -> None:
        values = records_of(self.world.image)
        assert len(values) == self.world.image.record_count
        again = ControllerMachine()
        load(again, self.world.machine.applied, values)
        assert records_of(again.image) == values

    @invariant()
    def coordinators_have_what_is_committed(self) -> None:
        if self.waiting or self.world.controller.active_epoch is None:
            return
        assert self.world.handover.outstanding == 0
        hosted = self.world.coordinators[0].topics
        assert {
            self.world.image.topics[topic_id].name: len(partitions)
            for topic_id, partitions in hosted.items()
        } == {name: topic.partitions for name, topic in self.committed.topics.items()}


def compare(image: MetadataImage, model: Model) -> None:
    """Check that the image agrees with the model."""
    client = {t.name: t for t in image.iter_topics() if not t.is_internal}
    assert client.keys() == model.topics.keys()
    for name, expected in model.topics.items():
        topic = client[name]
        widths = [len(topic.partitions[i].replicas) for i in sorted(topic.partitions)]
        assert widths == expected.widths
        own = image.configs.get(Resource(TOPIC, name), {})
        assert dict(own) == expected.settings, name
        for index, starts in expected.starts.items():
            check_chunks(
                topic.partitions[index],
                [c.start_offset for c in topic.chunks.get(index, ())],
                [c.end_offset for c in topic.chunks.get(index, ())],
                starts,
            )
    assert set(image.brokers) == set(model.brokers)
    assert image.next_producer_id == model.next_producer_id


def check_chunks(
    partition: PartitionRecord, begins: list[int], ends: list[int], starts: list[int]
) -> None:
    """Check that chunks follow each other without a gap, and the active one after the last."""
    assert begins == starts[:-1]
    assert ends == [start - 1 for start in starts[1:]]
    assert partition.start_offset == (starts[-1] if len(starts) > 1 else -1)


def alteration(name: str, key: str, value: str | None) -> IncrementalAlterConfigsRequest:
    """Build a request that sets one topic setting, or removes it if the value is None."""
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    operation = 1 if value is None else 0
    change = resource.AlterableConfig(name=key, config_operation=operation, value=value)
    return IncrementalAlterConfigsRequest(
        resources=(resource(resource_type=TOPIC, resource_name=name, configs=(change,)),),
        validate_only=False,
    )


def _too_low(key: str, value: str | None) -> bool:
    return value is not None and int(value) < (-1 if key == "retention.ms" else 0)


def _code(answer: Any) -> int:
    """Return the error code of the only item of a response, wherever its api has it."""
    for fields in ("topics", "results", "responses"):
        items = getattr(answer, fields, None)
        if items:
            return int(items[0].error_code)
    return int(answer.error_code)


TestController = ControllerVersusModel.TestCase
TestController.settings = settings(
    max_examples=40, stateful_step_count=50, deadline=None, database=None
)
