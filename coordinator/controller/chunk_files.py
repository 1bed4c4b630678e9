"""Reads and checks the JSON files of KIP-1114's command.

    {"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2, 3]}]}
    {"chunks": [{"topic": "t", "partition": 0, "startOffset": 7, "replicas": [4, 5, 6]}]}

A file names the replicas of a chunk, not its start: that is the high watermark at the moment of the
request, read behind the read barrier. One read before, from a coordinator that no longer leads,
would cut off offsets that already belong to the chunk before.

Source: KIP-1114, Public Interfaces (ChunkCommand).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID

from records.rpc.chunks import AlterChunkAssignmentsRequest, CreateChunksRequest
from records.types import ZERO_UUID, Offset

MAX_FILE_BYTES: Final = 4 * 1024 * 1024
MAX_ENTRIES: Final = 1_000
MAX_NAME: Final = 249  # of a topic
_INT32: Final = 2**31 - 1
_INT64: Final = 2**63 - 1


class ChunkFileError(Exception):
    """The file is invalid; the message names the place."""


class NewChunk(NamedTuple):
    """A chunk to be created."""

    topic: str
    partition: int
    replicas: tuple[int, ...]


def read_create_file(text: str) -> tuple[NewChunk, ...]:
    """Parse a `--create-chunk-json-file` into new partition chunks. Raises ChunkFileError.

    >>> read_create_file('{"partitions": [{"topic": "t", "partition": 0, "replicas": [1]}]}')
    (NewChunk(topic='t', partition=0, replicas=(1,)),)
    """
    found = []
    for where, entry in _entries(text, "partitions", {"topic", "partition", "replicas"}):
        found.append(
            NewChunk(
                parse_topic(entry, where),
                parse_number(entry, "partition", where, _INT32),
                parse_replicas(entry, where),
            )
        )
    if len({chunk[:2] for chunk in found}) != len(found):
        raise ChunkFileError("partitions: a partition is listed twice")
    return tuple(found)


def read_alter_file(text: str) -> AlterChunkAssignmentsRequest:
    """Parse an `--alter-chunk-json-file` into its API request. Raises ChunkFileError."""
    chunks = []
    keys = {"topic", "partition", "startOffset", "replicas"}
    for where, entry in _entries(text, "chunks", keys):
        chunks.append(
            AlterChunkAssignmentsRequest.Assignment(
                topic_name=parse_topic(entry, where),
                partition_id=parse_number(entry, "partition", where, _INT32),
                start_offset=parse_number(entry, "startOffset", where, _INT64),
                broker_ids=parse_replicas(entry, where),
            )
        )
    if len({(c.topic_name, c.partition_id, c.start_offset) for c in chunks}) != len(chunks):
        raise ChunkFileError("chunks: a chunk is listed twice")
    return AlterChunkAssignmentsRequest(chunks=tuple(chunks))


def create_request(
    chunks: tuple[NewChunk, ...],
    high_watermarks: Mapping[tuple[str, int], Offset],
    *,
    now_ms: int,
    topic_ids: Mapping[str, UUID] | None = None,
) -> CreateChunksRequest:
    """Build a CreateChunks request for partition chunks that begin at these high watermarks.

    Args:  high_watermarks: read behind the read barrier, exclusive; `now_ms` is the clock then.
           topic_ids: by name; a topic that was recreated meanwhile has another id.
           There are no transactions, so the last stable offset is the high watermark.
    """
    entry_type = CreateChunksRequest.TopicPartition
    return CreateChunksRequest(
        topic_partitions=tuple(
            entry_type(
                topic_name=chunk.topic,
                partition_id=chunk.partition,
                broker_ids=chunk.replicas,
                start_offset=high_watermarks[chunk.topic, chunk.partition],
                start_timestamp=now_ms,
                prev_stop_offset=high_watermarks[chunk.topic, chunk.partition] - 1,
                topic_id=(topic_ids or {}).get(chunk.topic, ZERO_UUID),
            )
            for chunk in chunks
        )
    )


def parse_document(text: str, keys: set[str]) -> dict[str, Any]:
    """Parse a file that is one JSON object with these keys. Raises ChunkFileError."""
    if len(text) > MAX_FILE_BYTES:
        raise ChunkFileError(f"{len(text)} characters, the limit is {MAX_FILE_BYTES}")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of too many digits
        raise ChunkFileError(f"not JSON: {error}") from None
    if not isinstance(document, dict) or set(document) != keys:
        names = " and ".join(f'"{key}"' for key in sorted(keys))
        raise ChunkFileError(f"the file must be one object with {names}")
    return document


def _entries(text: str, key: str, keys: set[str]) -> list[tuple[str, dict[str, Any]]]:
    document = parse_document(text, {key})
    entries = document[key]
    if not isinstance(entries, list) or not 0 < len(entries) <= MAX_ENTRIES:
        raise ChunkFileError(f"{key}: a list of 1 to {MAX_ENTRIES} entries is expected")
    found = []
    for number, entry in enumerate(entries):
        where = f"{key}[{number}]"
        if not isinstance(entry, dict) or set(entry) != keys:
            raise ChunkFileError(f"{where}: the keys {', '.join(sorted(keys))} are expected")
        found.append((where, entry))
    return found


def parse_topic(entry: dict[str, Any], where: str) -> str:
    """Return the name of an entry's topic. Raises ChunkFileError naming the place."""
    topic = entry["topic"]
    if not isinstance(topic, str) or not topic.isascii() or not 0 < len(topic) <= MAX_NAME:
        raise ChunkFileError(f"{where}.topic: a topic's name is expected")
    return topic


def parse_number(entry: dict[str, Any], key: str, where: str, highest: int) -> int:
    """Return a number of an entry, from 0 to `highest`. Raises ChunkFileError naming the place."""
    number = entry[key]
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= highest:
        raise ChunkFileError(f"{where}.{key}: a number from 0 to {highest} is expected")
    return number


def parse_replicas(entry: dict[str, Any], where: str) -> tuple[int, ...]:
    """Return the broker ids of an entry. Raises ChunkFileError naming the place."""
    replicas = entry["replicas"]
    if not isinstance(replicas, list) or not replicas:
        raise ChunkFileError(f"{where}.replicas: a list of broker ids is expected")
    for replica in replicas:
        if not isinstance(replica, int) or isinstance(replica, bool) or not 0 <= replica <= _INT32:
            raise ChunkFileError(f"{where}.replicas: {replica!r} is not a broker id")
    if len(set(replicas)) != len(replicas):
        raise ChunkFileError(f"{where}.replicas: a broker is listed twice")
    return tuple(replicas)
