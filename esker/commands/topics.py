"""`esker topics`: create, list, describe, grow and delete topics, as Kafka's `kafka-topics` does.

A description also shows KIP-1114's chunks: ranges of a partition's offsets, each with its own
replicas.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final

import typer

from esker.commands.base import CommandGroup
from esker.commands.cluster_access import (
    AsJson,
    Controller,
    Server,
    Target,
    TimeoutMs,
    ask,
    fail,
    pairs,
    stop_on,
    target,
    warn_of_age,
)
from esker.commands.configs import TOPIC, settings_of
from esker.commands.names import TopicName, TopicNames
from esker.commands.text_tables import show
from records.rpc.descriptions import DescribeTopicsRequest, DescribeTopicsResponse
from records.rpc.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from records.uuids import encode_uuid

app = CommandGroup("Create, list, describe, alter and delete the topics of a running cluster.")

CREATE_EXAMPLE = "Example: esker topics create orders --partitions 3 --config retention.ms=60000"
LIST_EXAMPLE = "Example: esker topics list --diskless"
DESCRIBE_EXAMPLE = "Example: esker topics describe orders --json"
ALTER_EXAMPLE = "Example: esker topics alter orders --partitions 6"
DELETE_EXAMPLE = "Example: esker topics delete orders"

TIMEOUT_MS: Final = 30_000
_Partition = DescribeTopicsResponse.Topic.Partition


@app.callback(epilog=LIST_EXAMPLE)
def topics() -> None:
    """Create, list, describe, alter and delete the topics of a running cluster."""


@app.command(epilog=CREATE_EXAMPLE)
def create(
    topic: TopicName,
    bootstrap_controller: Controller = None,
    bootstrap_server: Server = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of partitions; default: the cluster's setting num.partitions."
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of brokers to list as replicas, without effect on durability; "
            "default: the cluster's setting default.replication.factor.",
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Setting of the topic, as KEY=VALUE; may be repeated; default: the cluster's "
            "settings.",
        ),
    ] = None,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:
    """Create a topic and wait until its batch coordinators have its partitions."""
    cluster = target(bootstrap_controller, bootstrap_server)
    creatable = CreateTopicsRequest.CreatableTopic
    request = CreateTopicsRequest(
        topics=(
            creatable(
                name=topic,
                num_partitions=partitions or -1,  # the cluster's default
                replication_factor=replication_factor or -1,
                assignments=(),
                configs=tuple(
                    creatable.CreatableTopicConfig(name=key, value=value)
                    for key, value in pairs(config or [], "--config").items()
                ),
            ),
        ),
        timeout_ms=timeout_ms,
    )
    (result,) = ask(cluster, request, CreateTopicsResponse, timeout_ms).topics
    stop_on(topic, result.error_code, result.error_message)
    topic_id = encode_uuid(result.topic_id)
    created = {"topic": topic, "topicId": topic_id}
    if result.error_message:  # a remark: the topic is created
        typer.echo(f"esker: {result.error_message}", err=True)
    show(created, f"Created topic {topic} with id {topic_id}.", as_json=as_json)


@app.command(name="list", epilog=LIST_EXAMPLE)
def list_(
    bootstrap_controller: Controller = None,
    bootstrap_server: Server = None,
    diskless: Annotated[
        bool,
        typer.Option(
            "--diskless",
            help="Print only topics whose data is in object storage; default: all topics.",
        ),
    ] = False,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:
    """Print the names of all topics, including the quorum's internal topics."""
    cluster = target(bootstrap_controller, bootstrap_server)
    response = _describe(cluster, None, timeout_ms)
    names = [topic.topic_name for topic in response.topics if not (diskless and topic.is_internal)]
    show({"topics": names}, "\n".join(names), as_json=as_json)


@app.command(epilog=DESCRIBE_EXAMPLE)
def describe(
    topic: TopicNames = None,
    bootstrap_controller: Controller = None,
    bootstrap_server: Server = None,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:
    """Print partitions, leaders and chunks of topics.

    Leader is the broker that serves a partition now to clients without a rack, none if no broker
    is active; replicas are the leaders for clients of all racks. Offsets of chunks are inclusive.
    Readers stop at Stop and replicas at End; the active chunk has neither. Coordinator is the
    partition of __diskless-metadata that holds the topic's batches.
    """
    cluster = target(bootstrap_controller, bootstrap_server)
    response = _describe(cluster, tuple(topic) if topic else None, timeout_ms)
    known = [found for found in response.topics if not found.error_code]
    settings = settings_of(cluster, TOPIC, [found.topic_name for found in known], timeout_ms)
    described = [_as_json(found, settings[found.topic_name]) for found in known]
    text = "\n".join(_as_text(found, settings[found.topic_name]) for found in known)
    show({"topics": described}, text, as_json=as_json)
    unknown = [found.topic_name for found in response.topics if found.error_code]
    if unknown:
        fail(f"no such topic: {', '.join(unknown)}; `esker topics list` prints all")


@app.command(epilog=ALTER_EXAMPLE)
def alter(
    topic: TopicName,
    partitions: Annotated[
        int, typer.Option(min=1, help="Total number of partitions after the change.")
    ],
    bootstrap_controller: Controller = None,
    bootstrap_server: Server = None,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:
    """Add partitions to a topic; partitions of __diskless-metadata are new batch coordinators."""
    cluster = target(bootstrap_controller, bootstrap_server)
    request = CreatePartitionsRequest(
        topics=(
            CreatePartitionsRequest.CreatePartitionsTopic(
                name=topic, count=partitions, assignments=None
            ),
        ),
        timeout_ms=timeout_ms,
        validate_only=False,
    )
    (result,) = ask(cluster, request, CreatePartitionsResponse, timeout_ms).results
    stop_on(topic, result.error_code, result.error_message)
    altered = {"topic": topic, "partitionCount": partitions}
    show(altered, f"Topic {topic} has {partitions} partitions now.", as_json=as_json)


@app.command(epilog=DELETE_EXAMPLE)
def delete(
    topic: TopicName,
    bootstrap_controller: Controller = None,
    bootstrap_server: Server = None,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:
    """Delete a topic; brokers delete its objects from the store later."""
    cluster = target(bootstrap_controller, bootstrap_server)
    request = DeleteTopicsRequest(
        topics=(DeleteTopicsRequest.DeleteTopicState(name=topic),), timeout_ms=timeout_ms
    )
    (result,) = ask(cluster, request, DeleteTopicsResponse, timeout_ms).responses
    stop_on(topic, result.error_code, result.error_message)
    show({"topic": topic}, f"Deleted topic {topic}.", as_json=as_json)


def _describe(
    cluster: Target, names: tuple[str, ...] | None, timeout_ms: int
) -> DescribeTopicsResponse:
    request = DescribeTopicsRequest(topic_names=names)
    response = ask(cluster, request, DescribeTopicsResponse, timeout_ms)
    stop_on("topics", response.error_code, response.error_message)
    warn_of_age(response.image_age_ms)
    return response


# --- what is printed ----------------------------------------------------------------------------


def _ids(ids: Iterable[int]) -> str:
    return ",".join(map(str, ids)) or "-"


def _leader(partition: _Partition) -> str:
    return "none" if partition.leader_id < 0 else str(partition.leader_id)


def _as_text(topic: DescribeTopicsResponse.Topic, settings: dict[str, str | None]) -> str:
    configs = ",".join(f"{key}={value}" for key, value in sorted(settings.items()))
    lines = [
        f"Topic: {topic.topic_name}  TopicId: {encode_uuid(topic.topic_id)}  "
        f"PartitionCount: {len(topic.partitions)}  Configs: {configs or '-'}"
    ]
    for partition in topic.partitions:
        lines.append(
            f"  Partition: {partition.partition_index}  Leader: {_leader(partition)}  "
            f"Replicas: {_ids(partition.replicas)}  Isr: {_ids(partition.isr)}  "
            f"Coordinator: {partition.coordinator}"
        )
        for chunk in partition.chunks:
            active = chunk.end_offset < 0
            stop, end = ("-", "-") if active else (str(chunk.stop_offset), str(chunk.end_offset))
            lines.append(
                f"    Chunk: {chunk.start_offset}  Stop: {stop}  End: {end}  "
                f"Replicas: {_ids(chunk.replicas)}  Isr: {_ids(chunk.isr)}"
            )
    return "\n".join(lines)


def _as_json(
    topic: DescribeTopicsResponse.Topic, settings: dict[str, str | None]
) -> dict[str, Any]:
    return {
        "topic": topic.topic_name,
        "topicId": encode_uuid(topic.topic_id),
        "internal": topic.is_internal,
        "configs": settings,
        "partitions": [_partition_json(partition) for partition in topic.partitions],
    }


def _partition_json(partition: _Partition) -> dict[str, Any]:
    return {
        "partition": partition.partition_index,
        "leader": partition.leader_id,
        "replicas": partition.replicas,
        "isr": partition.isr,
        "coordinator": partition.coordinator,
        "chunks": [
            {
                "startOffset": chunk.start_offset,
                "startTimestamp": chunk.start_timestamp,
                "stopOffset": chunk.stop_offset if chunk.end_offset >= 0 else None,
                "endOffset": chunk.end_offset if chunk.end_offset >= 0 else None,
                "chunkEpoch": chunk.epoch,
                "replicas": chunk.replicas,
                "isr": chunk.isr,
            }
            for chunk in partition.chunks
        ],
    }
