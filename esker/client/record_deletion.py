"""Deletes the first records of partitions, by DeleteRecords requests to their leaders.

Source: KIP-107; upstream's kafka-delete-records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from esker.client.client import PASSING, ClientError, KafkaClient, no_such_partition
from records.kafka_errors import error_name
from records.rpc.partitions import DeleteRecordsRequest, DeleteRecordsResponse

TO_END: Final = -1  # deletes everything below the high watermark
VERSION: Final = 1  # of the file
_KEYS: Final = {"topic": str, "partition": int, "offset": int}


class Deleted(NamedTuple):
    """The new log start of a partition, or the error that the broker answered."""

    topic: str
    partition: int
    low_watermark: int
    error: str | None


def parse_offsets(text: str) -> dict[tuple[str, int], int]:
    """Parse JSON of kafka-delete-records into the offset of each partition. Raises ValueError.

    >>> parse_offsets('{"partitions": [{"topic": "t", "partition": 0, "offset": 3}], "version": 1}')
    {('t', 0): 3}
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    entries = document.get("partitions") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not entries:
        raise ValueError('not {"partitions": [{"topic": ..., "partition": ..., "offset": ...}]}')
    if document.get("version", VERSION) != VERSION:
        raise ValueError(f"version {document['version']} is not {VERSION}")
    found: dict[tuple[str, int], int] = {}
    for index, entry in enumerate(entries):
        where = f"partitions[{index}]"
        if not isinstance(entry, dict) or set(entry) != set(_KEYS):
            raise ValueError(f"{where} does not have topic, partition and offset alone")
        if any(type(entry[key]) is not kind for key, kind in _KEYS.items()):
            raise ValueError(f"{where}: topic is not a string, or a number is not whole")
        if not 0 <= entry["partition"] < 2**31 or not TO_END <= entry["offset"] < 2**63:
            raise ValueError(f"{where}: a number is out of bounds; offset -1 means the end")
        if (entry["topic"], entry["partition"]) in found:
            raise ValueError(f"{where}: {entry['topic']}-{entry['partition']} is there twice")
        found[entry["topic"], entry["partition"]] = entry["offset"]
    return found


async def delete_records(
    client: KafkaClient, offsets: Mapping[tuple[str, int], int]
) -> list[Deleted]:
    """Delete each partition's records below the given offset. Raises ClientError."""

    async def attempt() -> list[Deleted]:
        by_leader: dict[int, dict[str, dict[int, int]]] = {}
        leaders = {topic: await client.leaders(topic) for topic, _ in offsets}
        for (topic, partition), offset in offsets.items():
            if partition not in leaders[topic]:
                raise ClientError(no_such_partition(topic, partition, leaders[topic]))
            of_node = by_leader.setdefault(leaders[topic][partition], {})
            of_node.setdefault(topic, {})[partition] = offset
        found = []
        for node, topics in by_leader.items():
            request = _request(topics, client.timeout_ms)
            answer = await client.ask(node, request, DeleteRecordsResponse)
            found += [
                _deletion_result(topic.name, one)
                for topic in answer.topics
                for one in topic.partitions
            ]
        return sorted(found)

    return await client.patiently(attempt)


def _request(topics: Mapping[str, Mapping[int, int]], timeout_ms: int) -> DeleteRecordsRequest:
    named = DeleteRecordsRequest.DeleteRecordsTopic
    return DeleteRecordsRequest(
        topics=tuple(
            named(
                name=topic,
                partitions=tuple(
                    named.DeleteRecordsPartition(partition_index=partition, offset=offset)
                    for partition, offset in offsets.items()
                ),
            )
            for topic, offsets in topics.items()
        ),
        timeout_ms=timeout_ms,
    )


def _deletion_result(topic: str, result: Any) -> Deleted:
    code = result.error_code
    if code in PASSING:
        raise ClientError(f"{topic}-{result.partition_index}: {error_name(code)}", code)
    name = error_name(code) if code else None
    return Deleted(topic, result.partition_index, result.low_watermark, name)
