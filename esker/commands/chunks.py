"""`esker chunks`: create chunks of partitions, and reassign closed chunks to other replicas.

The files are those of KIP-1114's `kafka-chunks.sh`:

    {"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2, 3]}]}                  create
    {"chunks": [{"topic": "t", "partition": 0, "startOffset": 7, "replicas": [4, 5, 6]}]}    alter

Source: KIP-1114, Public Interfaces (ChunkCommand).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from coordinator.batch.client import ClientSettings, CoordinatorClient
from coordinator.controller.chunk_creation import (
    TopicCoordinator,
    UnknownEndError,
    create_request_at_end,
)
from coordinator.controller.chunk_files import (
    ChunkFileError,
    NewChunk,
    create_request,
    read_alter_file,
    read_create_file,
)
from coordinator.errors import CoordinatorError
from esker.commands.base import CommandGroup
from esker.commands.cluster_access import (
    AsJson,
    Controller,
    Server,
    Target,
    TimeoutMs,
    ask,
    fail,
    target,
)
from esker.commands.files import read_text_or_exit
from esker.commands.text_tables import show
from raft.net.runner import run
from records.rpc.chunks import (
    AlterChunkAssignmentsResponse,
    CreateChunksRequest,
    CreateChunksResponse,
)
from records.rpc.descriptions import DescribeTopicsRequest, DescribeTopicsResponse
from records.types import Offset

app = CommandGroup("Create and move chunks of partitions: offset ranges with replicas (KIP-1114).")

CREATE_EXAMPLE = "Example: esker chunks create chunks.json"
ALTER_EXAMPLE = "Example: esker chunks alter moves.json"
TIMEOUT_MS: Final = 30_000


@app.callback(epilog=CREATE_EXAMPLE)
def chunks() -> None:
    """Create chunks of partitions (offset ranges with replicas, KIP-1114), and reassign them."""


@app.command(epilog=CREATE_EXAMPLE)
def create(
    create_chunk_json_file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="JSON file that names partitions and the replicas of each partition's new chunk.",
        ),
    ],
    bootstrap_controller: Controller = None,
    bootstrap_server: Server = None,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:
    """Close each partition's active chunk at the high watermark and start a new chunk.

    Format of FILE: {"partitions": [{"topic": "t", "partition": 0, "replicas": [101, 102]}]}
    """
    cluster = target(bootstrap_controller, bootstrap_server)
    try:
        wanted = read_create_file(read_text_or_exit(create_chunk_json_file))
    except ChunkFileError as error:
        fail(f"{create_chunk_json_file}: {error}")
    request = (
        _request_without_ends(wanted)
        if cluster.brokers
        else _request_with_ends(wanted, cluster, timeout_ms)
    )
    response = ask(cluster, request, CreateChunksResponse, timeout_ms)
    starts = {(a.topic_name, a.partition_id): a.start_offset for a in request.topic_partitions}
    results = []
    for result in response.results:
        start = starts[result.topic_name, result.partition_id]
        where = "the high watermark" if start < 0 else f"offset {start}"
        refusal = result.error_message if result.error_code else None
        name = f"{result.topic_name}-{result.partition_id}"
        fields = _fields(result.topic_name, result.partition_id, start, refusal)
        results.append(_Result(name, f"a chunk begins at {where}", refusal, fields))
    _show(results, as_json=as_json)


@app.command(epilog=ALTER_EXAMPLE)
def alter(
    alter_chunk_json_file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="JSON file that names closed chunks and the new replicas of each chunk.",
        ),
    ],
    bootstrap_controller: Controller = None,
    bootstrap_server: Server = None,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:
    """Assign closed chunks of partitions to other replicas.

    Format of FILE:
    {"chunks": [{"topic": "t", "partition": 0, "startOffset": 0, "replicas": [103]}]}
    """
    cluster = target(bootstrap_controller, bootstrap_server)
    try:
        request = read_alter_file(read_text_or_exit(alter_chunk_json_file))
    except ChunkFileError as error:
        fail(f"{alter_chunk_json_file}: {error}")
    response = ask(cluster, request, AlterChunkAssignmentsResponse, timeout_ms)
    results = []
    for result in response.results:
        start = result.start_offset
        refusal = result.error_message if result.error_code else None
        name = f"{result.topic_name}-{result.partition_id} chunk {start}"
        fields = _fields(result.topic_name, result.partition_id, start, refusal)
        results.append(_Result(name, "moved", refusal, fields))
    _show(results, as_json=as_json)


class _Result(NamedTuple):
    """The answer for one chunk: its name, the words of success, or why it is refused."""

    name: str
    success: str
    refusal: str | None
    fields: dict[str, Any]


def _fields(topic: str, partition: int, start: int, refusal: str | None) -> dict[str, Any]:
    """Return a partition's result as JSON fields; an unknown chunk start is None."""
    return {
        "topic": topic,
        "partition": partition,
        "startOffset": None if start < 0 else start,
        "error": refusal,
    }


def _show(results: list[_Result], *, as_json: bool) -> None:
    """Print the result for each requested chunk; exit with 1 after any refusal."""
    done = [f"{result.name}: {result.success}" for result in results if result.refusal is None]
    chunks = [result.fields for result in results]
    show({"chunks": chunks}, "\n".join(done), as_json=as_json)
    for result in results:
        if result.refusal is not None:
            typer.echo(f"{result.name}: refused: {result.refusal}", err=True)
    if len(done) < len(results):
        raise typer.Exit(1)


def _request_without_ends(wanted: tuple[NewChunk, ...]) -> CreateChunksRequest:
    """Build the request to create chunks without start offsets, which the broker fills in."""
    unread = dict.fromkeys(((chunk.topic, chunk.partition) for chunk in wanted), Offset(-1))
    return create_request(wanted, unread, now_ms=_now_ms())


def _request_with_ends(
    wanted: tuple[NewChunk, ...], cluster: Target, timeout_ms: int
) -> CreateChunksRequest:
    """Build the request to create chunks at the end offsets that batch coordinators report."""
    names = tuple(sorted({chunk.topic for chunk in wanted}))
    response = ask(
        cluster, DescribeTopicsRequest(topic_names=names), DescribeTopicsResponse, timeout_ms
    )
    coordinators: dict[tuple[str, int], TopicCoordinator] = {}
    for topic in response.topics:
        if topic.error_code:
            fail(f"no such topic: {topic.topic_name}; `esker topics list` prints all")
        for partition in topic.partitions:
            coordinators[topic.topic_name, partition.partition_index] = TopicCoordinator(
                topic.topic_id, partition.coordinator
            )
    for chunk in wanted:
        if (chunk.topic, chunk.partition) not in coordinators:
            fail(f"no such partition: {chunk.topic}-{chunk.partition}")
    addresses = [(endpoint.host, endpoint.port) for endpoint in cluster.addresses]
    settings = ClientSettings(timeout_ms=timeout_ms, attempt_timeout_ms=timeout_ms)

    async def exchange() -> CreateChunksRequest:
        clients = {
            topic.coordinator: CoordinatorClient(
                addresses, partition=topic.coordinator, settings=settings
            )
            for topic in coordinators.values()
        }
        try:
            return await create_request_at_end(wanted, coordinators, clients.__getitem__, _now_ms)
        finally:
            for client in clients.values():
                await client.close()

    try:
        return run(exchange())
    except (CoordinatorError, UnknownEndError) as error:
        fail(str(error))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
