"""Decides about creating and deleting topics.

Each topic of a request succeeds or fails alone; what succeeds is written together. A topic that
exists cannot be written to yet: its batch coordinator has to be informed first, and the response
waits for that (`coordinator.controller.handover`).

Source: KIP-4, KIP-195, KIP-464, KIP-516; upstream's ReplicationControlManager, whose codes and
order of checks these are. Any replication factor is accepted
(docs/design/broker.md#any-broker-leads).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final
from uuid import UUID

from coordinator.controller.apply import metric_name
from coordinator.controller.config_defs import TOPIC_CONFIGS, check_combination, check_config
from coordinator.controller.decide.configs import described_configs
from coordinator.controller.decide.context import Context, Decision, Limits
from coordinator.controller.decide.placement import (
    assign_round_robin,
    check_replicas,
    coordinator_loads,
    new_partition,
)
from coordinator.controller.errors import RefusedError
from coordinator.controller.image import TOPIC, MetadataImage, TopicImage
from records.chunks import TopicPartitionToBatchCoordinatorMapping
from records.internal_topics import INTERNAL_TOPICS
from records.kafka_errors import ErrorCode
from records.metadata import ConfigRecord, RemoveTopicRecord, TopicRecord
from records.rpc import topics as rpc
from records.schema import MetadataRecord
from records.types import ZERO_UUID

MAX_TOPIC_NAME: Final = 249
MAX_TOPIC_CONFIGS: Final = 200
_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")

_Topic = rpc.CreateTopicsRequest.CreatableTopic
_Result = rpc.CreateTopicsResponse.CreatableTopicResult
_Config = _Result.CreatableTopicConfigs


def check_topic_name(name: str) -> None:
    """Check that a topic name is valid. Raises RefusedError (INVALID_TOPIC_EXCEPTION).

    Source: upstream's Topic.validate.
    """
    shown = repr(name[:MAX_TOPIC_NAME])
    if not name:
        raise _bad_name("A topic's name must not be empty.")
    if name in (".", ".."):
        raise _bad_name(f"A topic cannot be named {shown}.")
    if len(name) > MAX_TOPIC_NAME:
        raise _bad_name(f"{shown}... is longer than {MAX_TOPIC_NAME} characters.")
    if not _LEGAL_NAME.fullmatch(name):
        raise _bad_name(
            f"Topic name is invalid: {shown} contains one or more characters other than ASCII "
            "alphanumerics, '.', '_' and '-'"
        )


def _bad_name(message: str) -> RefusedError:
    return RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)


def named_twice(what: str) -> RefusedError:
    """Build the error for an item that the request names twice."""
    return RefusedError(ErrorCode.INVALID_REQUEST, f"{what[:MAX_TOPIC_NAME]} is named twice.")


def create_topics(request: rpc.CreateTopicsRequest, context: Context) -> Decision:
    """Create the topics that are valid; each topic has its own result."""
    limits = context.limits
    if len(request.topics) > limits.max_items_of_request:
        message = f"{len(request.topics)} topics; the limit is {limits.max_items_of_request}."
        refused = RefusedError(ErrorCode.POLICY_VIOLATION, message)
        return Decision((), _answer(_refuse(topic.name, refused) for topic in request.topics))
    records: list[MetadataRecord] = []
    results: list[_Result] = []
    builder = _Builder(context)
    names = [topic.name for topic in request.topics]
    repeated = {name for name, count in Counter(names).items() if count > 1}
    reported: set[str] = set()
    for topic in request.topics:
        if topic.name in repeated:
            if topic.name not in reported:  # one answer for all of them, as upstream
                reported.add(topic.name)
                results.append(_refuse(topic.name, named_twice(topic.name)))
            continue
        try:
            made = builder.create(topic, len(records))
        except RefusedError as refused:
            results.append(_refuse(topic.name, refused))
            continue
        records += made
        results.append(builder.result(topic, made))
    kept = () if request.validate_only else tuple(records)
    return Decision(kept, _answer(results))


def check_partition_cap(name: str, partitions: int, limits: Limits) -> None:
    """Raise RefusedError if the cluster would exceed its configured number of partitions."""
    if partitions > limits.max_partitions:
        message = (
            f"{name}: the cluster would have {partitions} partitions, more than "
            f"esker.max.partitions={limits.max_partitions}."
        )
        raise RefusedError(ErrorCode.POLICY_VIOLATION, message)


def _repeats(names: list[str]) -> bool:
    return len(set(names)) != len(names)


def _answer(results: Iterable[_Result]) -> rpc.CreateTopicsResponse:
    return rpc.CreateTopicsResponse(topics=tuple(results))


def _refuse(name: str, refused: RefusedError) -> _Result:
    return _Result(name=name, error_code=refused.code, error_message=refused.message)


class _Builder:
    """Builds the records of a request's topics; checks each against those built before."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._image = context.image
        self._brokers = sorted(context.image.brokers)
        self._similar: dict[str, str] = {}  # made by this request
        self._loads = coordinator_loads(context.image)
        self._default_configs = self._shown_configs({})  # of topics without settings of their own
        names = context.image.topic_ids
        self._topics = len(names) - sum(name in names for name in INTERNAL_TOPICS)
        self._partitions = sum(self._loads)

    def create(self, topic: _Topic, records_so_far: int) -> list[MetadataRecord]:
        """Build the records of a new topic. Raises RefusedError."""
        self._check_name(topic.name)
        topic_id = self._new_id()
        assignment = self._assignment(topic, topic_id)
        if len(assignment) + records_so_far > self._context.limits.max_records_of_request:
            raise RefusedError(
                ErrorCode.POLICY_VIOLATION,
                f"{topic.name}: the request makes too many partitions; send several.",
            )
        configs = self._configs(topic)
        self._context.take(len(assignment))
        self._check_caps(topic.name, len(assignment))
        coordinator = min(range(len(self._loads)), key=self._loads.__getitem__)
        self._loads[coordinator] += len(assignment)
        metric = metric_name(topic.name)
        if metric is not None:
            self._similar[metric] = topic.name
        records: list[MetadataRecord] = [TopicRecord(name=topic.name, topic_id=topic_id)]
        records += [new_partition(topic_id, i, replicas) for i, replicas in enumerate(assignment)]
        if coordinator:
            records += mappings(topic_id, range(len(assignment)), coordinator)
        records += configs
        return records

    def result(self, requested: _Topic, made: list[MetadataRecord]) -> _Result:
        """Build the CreateTopics result of a created topic from the topic's records."""
        topic = made[0]
        assert isinstance(topic, TopicRecord)
        settings = {r.name: r.value for r in made if isinstance(r, ConfigRecord)}
        partitions = [r for r in made if hasattr(r, "replicas")]
        return _Result(
            name=topic.name,
            topic_id=topic.topic_id,
            error_message=_meaning_of_replicas(requested, len(self._brokers)),
            num_partitions=len(partitions),
            replication_factor=len(partitions[0].replicas),
            configs=self._shown_configs(settings) if settings else self._default_configs,
        )

    def _shown_configs(self, settings: Mapping[str, str | None]) -> tuple[_Config, ...]:
        return tuple(
            _Config(name=name, value=value, read_only=False, config_source=source)
            for name, value, source in described_configs(self._image, settings)
        )

    def _check_caps(self, name: str, partitions: int) -> None:
        """Count a new topic and its partitions; raise RefusedError if a limit is exceeded."""
        limits = self._context.limits
        if self._topics >= limits.max_topics:
            message = (
                f"{name}: the cluster has {self._topics} topics, the most by esker.max.topics."
            )
            raise RefusedError(ErrorCode.POLICY_VIOLATION, message)
        check_partition_cap(name, self._partitions + partitions, limits)
        self._topics += 1
        self._partitions += partitions

    def _check_name(self, name: str) -> None:
        check_topic_name(name)
        if name in self._image.topic_ids:
            raise RefusedError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        if name in INTERNAL_TOPICS:
            raise _bad_name(f"{name} is reserved for the quorum.")
        metric = metric_name(name)
        if metric is None:
            return
        others = {*self._image.similar.get(metric, ())}
        if metric in self._similar:
            others.add(self._similar[metric])
        if others:
            raise _bad_name(f"{name} collides with {min(others)}: metrics replace '.' by '_'.")

    def _new_id(self) -> UUID:
        while True:
            topic_id = self._context.new_id()
            if topic_id.int > 1 and topic_id not in self._image.topics:  # 0 and 1 are reserved
                return topic_id

    def _assignment(self, topic: _Topic, topic_id: UUID) -> list[tuple[int, ...]]:
        if topic.assignments:
            return self._assign_replicas(topic)
        count, factor = topic.num_partitions, topic.replication_factor
        limits = self._context.limits
        if count == -1:
            count = limits.default_partitions
        if factor == -1:
            factor = limits.default_replication_factor
        if not 0 < count <= limits.max_partitions_of_topic:
            raise RefusedError(
                ErrorCode.INVALID_PARTITIONS,
                f"{topic.name}: {count} partitions, not in 1..{limits.max_partitions_of_topic}.",
            )
        if factor <= 0:
            raise RefusedError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"{topic.name}: replication factor {factor}; it must be at least 1.",
            )
        if not self._brokers:
            raise RefusedError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"{topic.name}: no broker is registered that could be a replica.",
            )
        return assign_round_robin(
            self._brokers, factor, count, first=topic_id.int % len(self._brokers)
        )

    def _assign_replicas(self, topic: _Topic) -> list[tuple[int, ...]]:
        if topic.num_partitions != -1 or topic.replication_factor != -1:
            raise RefusedError(
                ErrorCode.INVALID_REQUEST,
                f"{topic.name}: replicas are assigned, so partitions and factor must be -1.",
            )
        by_index = {entry.partition_index: entry.broker_ids for entry in topic.assignments}
        if len(by_index) > self._context.limits.max_partitions_of_topic:
            raise RefusedError(
                ErrorCode.INVALID_PARTITIONS, f"{topic.name}: {len(by_index)} partitions."
            )
        if len(by_index) != len(topic.assignments) or sorted(by_index) != [*range(len(by_index))]:
            raise RefusedError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{topic.name}: partitions must be 0, 1, 2 and so on, each once.",
            )
        assignment = [
            check_replicas(by_index[index], self._image, f"{topic.name}-{index}")
            for index in range(len(by_index))
        ]
        if len({len(replicas) for replicas in assignment}) != 1:
            raise RefusedError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{topic.name}: every partition must have as many replicas as the others.",
            )
        return assignment

    def _configs(self, topic: _Topic) -> list[MetadataRecord]:
        names = [config.name for config in topic.configs]
        if _repeats(names) or len(names) > MAX_TOPIC_CONFIGS:
            raise RefusedError(
                ErrorCode.INVALID_CONFIG,
                f"{topic.name}: settings repeat, or exceed {MAX_TOPIC_CONFIGS}.",
            )
        values = {
            config.name: check_config(config.name, config.value, TOPIC_CONFIGS)
            for config in topic.configs
        }
        check_combination(values)
        return [
            ConfigRecord(resource_type=TOPIC, resource_name=topic.name, name=name, value=value)
            for name, value in values.items()
        ]


def mappings(
    topic_id: UUID, partitions: Iterable[int], coordinator: int
) -> list[TopicPartitionToBatchCoordinatorMapping]:
    """Build the records that assign a topic's partitions to a batch coordinator.

    Coordinator 0 is the default and needs no record at first, so Java can read a log without them.
    """
    return [
        TopicPartitionToBatchCoordinatorMapping(
            partition_index=index,
            topic_id=topic_id,
            batch_coordinator_partition_index=coordinator,
        )
        for index in partitions
    ]


def delete_topics(request: rpc.DeleteTopicsRequest, context: Context) -> Decision:
    """Delete topics by name or id; the batch coordinators are informed afterwards."""
    named = [(name, ZERO_UUID) for name in request.topic_names]
    named += [(topic.name or "", topic.topic_id) for topic in request.topics]
    result = rpc.DeleteTopicsResponse.DeletableTopicResult
    records: list[MetadataRecord] = []
    results = []
    gone: set[UUID] = set()
    too_many = len(named) > context.limits.max_items_of_request
    for name, topic_id in named:
        try:
            if too_many:
                raise RefusedError(ErrorCode.POLICY_VIOLATION, f"{len(named)} topics at once.")
            topic = _find(name, topic_id, context.image)
            if topic.topic_id in gone:
                raise named_twice(topic.name)
            if topic.is_internal:
                raise _bad_name(f"{topic.name} is internal and cannot be deleted.")
            context.take(len(topic.partitions))
        except RefusedError as refused:
            results.append(
                result(
                    name=name or (None if topic_id.int else ""),
                    topic_id=topic_id,
                    error_code=refused.code,
                    error_message=refused.message,
                )
            )
            continue
        gone.add(topic.topic_id)
        records.append(RemoveTopicRecord(topic_id=topic.topic_id))
        results.append(result(name=topic.name, topic_id=topic.topic_id))
    return Decision(tuple(records), rpc.DeleteTopicsResponse(responses=tuple(results)))


def _find(name: str, topic_id: UUID, image: MetadataImage) -> TopicImage:
    """Return the topic that a deletion names by name or id. Raises RefusedError."""
    if bool(name) == (topic_id != ZERO_UUID):
        raise RefusedError(ErrorCode.INVALID_REQUEST, "A topic is named by its name or by its id.")
    if name:
        if name in INTERNAL_TOPICS and name not in image.topic_ids:
            raise _bad_name(f"{name} is internal and cannot be deleted.")
        topic = image.topic(name)
        if topic is None:
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"There is no topic {name[:MAX_TOPIC_NAME]!r}.",
            )
        return topic
    found: TopicImage | None = image.topics.get(topic_id)
    if found is None:
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_ID, f"There is no topic with id {topic_id}.")
    return found


def _meaning_of_replicas(requested: _Topic, brokers: int) -> str | None:
    """Return a note on replicas if a request assigns them or asks for too many, else None."""
    if not requested.assignments and requested.replication_factor <= max(1, brokers):
        return None
    return (
        "The object store keeps the copies of records, not brokers: replicas do not make them more "
        "durable, and the brokers that serve a partition are computed from those that are active."
    )
