"""`esker diskless`: describe topics and objects from the batch coordinators' metadata.

The figures are those of KIP-1163's `kafka-diskless-metadata.sh`. Any node may be named: the request
reaches the coordinator's leader. With several coordinators, the command sends a request to each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final
from uuid import UUID

import typer

from esker.commands.base import CommandGroup
from esker.commands.cluster_access import (
    AsJson,
    Controller,
    Server,
    Target,
    TimeoutMs,
    ask_coordinator,
    coordinators,
    fail,
    target,
)
from esker.commands.names import TopicNames
from esker.commands.text_tables import show
from records.kafka_errors import error_name
from records.rpc.objects import (
    DescribeDisklessObjectRequest,
    DescribeDisklessObjectResponse,
    DescribeDisklessTopicsRequest,
    DescribeDisklessTopicsResponse,
)
from records.uuids import encode_uuid

app = CommandGroup("Describe diskless topics and the objects that store them.")

DESCRIBE_EXAMPLE = "Example: esker diskless describe orders --json"
OBJECT_EXAMPLE = "Example: esker diskless object esker/f6/xBIbbGYlSzqHPEyzl9QSWw/0/4711"

_Topic = DescribeDisklessTopicsResponse.Topic
COORDINATOR_IN_KEY: Final = re.compile(r"/(0|[1-9][0-9]{0,8})/[0-9]+$")


@app.callback(epilog=DESCRIBE_EXAMPLE)
def diskless() -> None:
    """Describe diskless topics and the objects that store them."""


@app.command(epilog=DESCRIBE_EXAMPLE)
def describe(
    topic: TopicNames = None,
    bootstrap_controller: Controller = None,
    bootstrap_server: Server = None,
    coordinator: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Number of the partition of __diskless-metadata to read; default: all partitions.",
        ),
    ] = None,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = 5000,
) -> None:
    """Print the offsets and bytes of diskless topics.

    StoredBytes is the size of the topic's live batches. ObjectBytes is the total size of the
    objects that hold them; PastObjectBytes, that of objects which hold none of them any more and
    are not deleted yet. DeadBytes is the part of ObjectBytes that no topic uses. An object counts
    for each of its topics.
    """
    cluster = target(bootstrap_controller, bootstrap_server)
    names = tuple(dict.fromkeys(topic or ()))
    numbers = coordinators(cluster, timeout_ms) if coordinator is None else [coordinator]
    responses = {number: _describe(cluster, number, names, timeout_ms) for number in numbers}
    known = merge_topics(found for response in responses.values() for found in response.topics)
    text = "\n".join(_topic_text(found) for found in known)
    show(_topics_json(responses, known), text, as_json=as_json)
    unknown = sorted(set(names) - {found.topic_name for found in known})
    if unknown:
        names_text = ", ".join(unknown)
        fail(f"no such diskless topic: {names_text}; `esker topics list --diskless` prints all")


def _describe(
    cluster: Target, coordinator: int, names: tuple[str, ...], timeout_ms: int
) -> DescribeDisklessTopicsResponse:
    """Return a batch coordinator's description of the topics, or end the command on an error."""
    request = DescribeDisklessTopicsRequest(
        coordinator_partition=coordinator, topic_names=names or None
    )
    response = ask_coordinator(cluster, coordinator, request, timeout_ms)
    _stop_on(response.error_code, response.error_message)
    return response


def merge_topics(topics: Iterable[_Topic]) -> list[_Topic]:
    """Merge coordinators' topic descriptions, each with some of a topic's partitions.

    No object belongs to two coordinators, so the sizes are added.
    """
    found: dict[UUID, _Topic] = {}
    for topic in topics:
        if topic.error_code:
            continue
        other = found.get(topic.topic_id)
        if other is None:
            found[topic.topic_id] = topic
            continue
        partitions = sorted((*other.partitions, *topic.partitions), key=lambda p: p.partition_index)
        found[topic.topic_id] = _Topic(
            topic_id=topic.topic_id,
            topic_name=topic.topic_name,
            object_bytes=other.object_bytes + topic.object_bytes,
            past_object_bytes=other.past_object_bytes + topic.past_object_bytes,
            dead_bytes=other.dead_bytes + topic.dead_bytes,
            partitions=tuple(partitions),
        )
    return sorted(found.values(), key=lambda topic: topic.topic_name)


@app.command(name="object", epilog=OBJECT_EXAMPLE)
def object_(
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY", help="Key of the object to describe, as the object store lists it."
        ),
    ],
    bootstrap_controller: Controller = None,
    bootstrap_server: Server = None,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = 5000,
) -> None:
    """Print an object's size, its used bytes, and the partitions that use them."""
    cluster = target(bootstrap_controller, bootstrap_server)
    named = COORDINATOR_IN_KEY.search(key)
    if named is None:
        raise typer.BadParameter(
            f"{key!r} does not end in /COORDINATOR/OBJECT-ID", param_hint="KEY"
        )
    coordinator = int(named[1])
    request = DescribeDisklessObjectRequest(coordinator_partition=coordinator, object_key=key)
    found = ask_coordinator(cluster, coordinator, request, timeout_ms)
    _stop_on(found.error_code, found.error_message)
    show(_object_json(key, found), _object_text(key, found), as_json=as_json)


def _stop_on(error_code: int, message: str | None) -> None:
    if error_code:
        fail(message or f"the coordinator returned error {error_name(error_code)}")


# --- what is printed ----------------------------------------------------------------------------


def _columns(values: dict[str, Any]) -> str:
    return "  ".join(f"{name}: {value}" for name, value in values.items())


def _camel(values: dict[str, Any]) -> dict[str, Any]:
    return {name[0].lower() + name[1:]: value for name, value in values.items()}


def _topic(topic: DescribeDisklessTopicsResponse.Topic) -> dict[str, Any]:
    return {
        "Topic": topic.topic_name,
        "TopicId": encode_uuid(topic.topic_id),
        "PartitionCount": len(topic.partitions),
        "StoredBytes": sum(partition.stored_bytes for partition in topic.partitions),
        "ObjectBytes": topic.object_bytes,
        "PastObjectBytes": topic.past_object_bytes,
        "DeadBytes": topic.dead_bytes,
    }


def _partition(
    partition: DescribeDisklessTopicsResponse.Topic.Partition,
) -> dict[str, Any]:
    return {
        "Partition": partition.partition_index,
        "LogStartOffset": partition.log_start_offset,
        "HighWatermark": partition.high_watermark,
        "Runs": partition.run_count,
        "StoredBytes": partition.stored_bytes,
    }


def _topic_text(topic: DescribeDisklessTopicsResponse.Topic) -> str:
    lines = [_columns(_topic(topic))]
    lines += [f"  {_columns(_partition(partition))}" for partition in topic.partitions]
    return "\n".join(lines)


def _topics_json(
    responses: Mapping[int, DescribeDisklessTopicsResponse], topics: Iterable[_Topic]
) -> dict[str, Any]:
    return {
        "coordinators": [
            {"coordinator": number, "appliedOffset": response.applied_offset}
            for number, response in responses.items()
        ],
        "topics": [
            _camel(_topic(topic))
            | {"partitions": [_camel(_partition(partition)) for partition in topic.partitions]}
            for topic in topics
        ],
    }


def _object(key: str, found: DescribeDisklessObjectResponse) -> dict[str, Any]:
    return {
        "Key": key,
        "ObjectId": found.object_id,
        "Format": found.object_format,
        "SizeBytes": found.size_bytes,
        "UsedBytes": found.used_bytes,
        "BrokerId": found.broker_id,
    }


def _owner(owner: DescribeDisklessObjectResponse.Owner) -> dict[str, Any]:
    return {
        "Topic": owner.topic_name,
        "Partition": owner.partition_index,
        "Runs": owner.run_count,
        "UsedBytes": owner.used_bytes,
    }


def _object_text(key: str, found: DescribeDisklessObjectResponse) -> str:
    rows = _object(key, found)
    rows["CommittedAt"] = _time(found.committed_at_ms)
    if found.marked_at_ms >= 0:
        rows["MarkedForDeletionAt"] = _time(found.marked_at_ms)
    lines = [f"{name + ':':<24}{value}" for name, value in rows.items()]
    lines += [f"  {_columns(_owner(owner))}" for owner in found.owners]
    return "\n".join(lines)


def _object_json(key: str, found: DescribeDisklessObjectResponse) -> dict[str, Any]:
    return _camel(_object(key, found)) | {
        "committedAtMs": found.committed_at_ms,
        "markedAtMs": found.marked_at_ms,
        "owners": [
            _camel(_owner(owner)) | {"topicId": encode_uuid(owner.topic_id)}
            for owner in found.owners
        ],
    }


def _time(timestamp_ms: int) -> str:
    moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return moment.isoformat(sep=" ", timespec="milliseconds")
