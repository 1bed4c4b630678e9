"""`esker chunks`: create chunks of partitions, and reassign closed chunks to other replicas.

The files are those of KIP-1114's `kafka-chunks.sh`:

    {"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2, 3]}]}                  create
    {"chunks": [{"topic": "t", "partition": 0, "startOffset": 7, "replicas": [4, 5, 6]}]}    alter

`plan` writes a file that `apply` sends: `esker.client.chunk_plans`.

Source: KIP-1114, Public Interfaces (ChunkCommand).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Protocol
from uuid import UUID

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
from coordinator.controller.guarding import replace
from coordinator.errors import CoordinatorError
from esker.client.chunk_plans import (
    Cut,
    Move,
    PlanBroker,
    PlanError,
    PlanPartition,
    PlanSettings,
    Sizes,
    check_plan,
    make_plan,
    name_of,
    plan_partitions,
    plan_text,
    read_plan,
)
from esker.commands.base import CommandGroup
from esker.commands.cluster_access import (
    AsJson,
    Controller,
    Server,
    Target,
    TimeoutMs,
    ask,
    ask_coordinator,
    fail,
    stop_on,
    target,
)
from esker.commands.files import read_text_or_exit, write_text_or_exit
from esker.commands.text_tables import show, table
from raft.net.runner import run
from records.kafka_errors import error_name
from records.rpc.chunks import (
    AlterChunkAssignmentsRequest,
    AlterChunkAssignmentsResponse,
    CreateChunksRequest,
    CreateChunksResponse,
)
from records.rpc.descriptions import (
    DescribeBrokersRequest,
    DescribeBrokersResponse,
    DescribeTopicsRequest,
    DescribeTopicsResponse,
)
from records.rpc.objects import DescribeDisklessTopicsRequest
from records.types import Offset

app = CommandGroup("Create and move chunks of partitions: offset ranges with replicas (KIP-1114).")

CREATE_EXAMPLE = "Example: esker chunks create chunks.json"
ALTER_EXAMPLE = "Example: esker chunks alter moves.json"
PLAN_EXAMPLE = "Example: esker chunks plan --out plan.json --exclude 103"
APPLY_EXAMPLE = "Example: esker chunks apply plan.json"
CUT_BYTES: Final = 10 * 2**30
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
    request = _create_request(wanted, cluster, timeout_ms)
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


@app.command(epilog=PLAN_EXAMPLE)
def plan(
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="File to write the plan to; no default.")
    ],
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", help="Topic to plan for; repeat it for more; default: all topics."),
    ] = None,
    cut_bytes: Annotated[
        int,
        typer.Option(
            min=1, help="Size of an active chunk, in bytes, from which on it is closed; "
            "default: 10737418240 (10 GiB).",
        ),
    ] = CUT_BYTES,
    exclude: Annotated[
        list[int] | None,
        typer.Option(
            "--exclude", min=0, help="Id of a broker that is to lose its chunks; repeat it for "
            "more; default: none.",
        ),
    ] = None,
    max_moves: Annotated[
        int,
        typer.Option(
            min=0, help="Largest number of moves that only even out the brokers' bytes; "
            "default: 100.",
        ),
    ] = 100,
    bootstrap_controller: Controller = None,
    bootstrap_server: Server = None,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:  # fmt: skip
    """Write a file with the chunks to close and to move. It changes nothing in the cluster."""
    cluster = target(bootstrap_controller, bootstrap_server)
    brokers, partitions = _describe(cluster, tuple(topic or ()), timeout_ms)
    missing = set(topic or ()) - {partition.topic for partition in partitions}
    if missing:
        fail(f"no such topic: {min(missing)}; `esker topics list` prints all")
    settings = PlanSettings(cut_bytes, max_moves, frozenset(exclude or ()))
    try:
        made = make_plan(brokers, partitions, settings)
    except PlanError as error:
        fail(str(error))
    write_text_or_exit(out, plan_text(made))
    rows = [(name_of(one), "move", _ids(one.replicas)) for one in made.moves]
    rows += [(name_of(one), "close, go on with", _ids(one.replicas)) for one in made.cuts]
    text = table(("Chunk", "Do", "Brokers"), rows) if rows else "Nothing to do."
    document = {"file": str(out), "moves": len(made.moves), "cuts": len(made.cuts)}
    show(document, f"{text}\nWritten to {out}", as_json=as_json)


@app.command("apply", epilog=APPLY_EXAMPLE)
def apply_plan(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Plan that `plan` has written.")],
    bootstrap_controller: Controller = None,
    bootstrap_server: Server = None,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:
    """Close and move the chunks of a plan, as far as they are still as the plan found them."""
    cluster = target(bootstrap_controller, bootstrap_server)
    try:
        planned = read_plan(read_text_or_exit(file))
    except ChunkFileError as error:
        fail(f"{file}: {error}")
    topics = tuple(sorted({entry.topic for entry in planned.entries}))
    brokers, partitions = _describe(cluster, topics, timeout_ms) if topics else ((), ())
    try:
        checked = check_plan(planned, brokers, partitions)
    except PlanError as error:
        fail(f"{file}: {error}")
    results = [
        _Result(name, "done before", None, {"chunk": name, "done": False, "error": None})
        for name in checked.done
    ]
    results += [
        _Result(name, "", reason, {"chunk": name, "done": False, "error": reason})
        for name, reason in checked.refused.items()
    ]
    results += _send_moves(checked.moves, cluster, timeout_ms)
    results += _send_cuts(checked.cuts, cluster, timeout_ms)
    _show(results, as_json=as_json)
    if not results and not as_json:
        typer.echo("Nothing to do.")


def _send_moves(moves: list[Move], cluster: Target, timeout_ms: int) -> list[_Result]:
    if not moves:
        return []
    entry = AlterChunkAssignmentsRequest.Assignment
    request = AlterChunkAssignmentsRequest(
        chunks=tuple(
            entry(
                topic_name=move.topic,
                partition_id=move.partition,
                start_offset=move.start_offset,
                chunk_epoch=move.chunk_epoch,
                broker_ids=move.replicas,
            )
            for move in moves
        )
    )
    response = ask(cluster, request, AlterChunkAssignmentsResponse, timeout_ms)
    return _results(moves, response.results)


def _send_cuts(cuts: list[Cut], cluster: Target, timeout_ms: int) -> list[_Result]:
    if not cuts:
        return []
    wanted = tuple(NewChunk(cut.topic, cut.partition, cut.replicas) for cut in cuts)
    request = _create_request(wanted, cluster, timeout_ms)
    named = {(cut.topic, cut.partition): cut for cut in cuts}
    request = replace(
        request,
        topic_partitions=tuple(
            replace(
                entry,
                active_start_offset=named[entry.topic_name, entry.partition_id].active_start,
            )
            for entry in request.topic_partitions
        ),
    )
    response = ask(cluster, request, CreateChunksResponse, timeout_ms)
    return _results(cuts, response.results)


def _results(entries: Sequence[Move | Cut], answers: Sequence[_Answered]) -> list[_Result]:
    """Return the results of a plan's entries, in the order of the requests."""
    found = []
    for entry, answer in zip(entries, answers, strict=True):
        refusal = answer.error_message if answer.error_code else None
        if answer.error_code and refusal is None:
            refusal = error_name(answer.error_code)
        success = "moved" if isinstance(entry, Move) else "closed"
        fields = {"chunk": name_of(entry), "done": refusal is None, "error": refusal}
        words = f"{success}, on {_ids(entry.replicas)}"
        found.append(_Result(name_of(entry), words, refusal, fields))
    return found


def _ids(broker_ids: Sequence[int]) -> str:
    return ",".join(map(str, broker_ids))


def _describe(
    cluster: Target, names: tuple[str, ...], timeout_ms: int
) -> tuple[tuple[PlanBroker, ...], tuple[PlanPartition, ...]]:
    """Ask for the brokers, and for the chunks of topics with their estimated bytes."""
    answer = ask(cluster, DescribeBrokersRequest(), DescribeBrokersResponse, timeout_ms)
    brokers = tuple(
        PlanBroker(
            broker.broker_id,
            broker.rack,
            not broker.is_fenced and not broker.in_controlled_shutdown,
        )
        for broker in answer.brokers
    )
    described = ask(
        cluster, DescribeTopicsRequest(topic_names=names or None), DescribeTopicsResponse,
        timeout_ms,
    )  # fmt: skip
    stop_on("the topics", described.error_code, described.error_message)
    topics = [one for one in described.topics if not one.is_internal and not one.error_code]
    sizes: dict[tuple[UUID, int], Sizes] = {}
    for coordinator in sorted({one.coordinator for topic in topics for one in topic.partitions}):
        request = DescribeDisklessTopicsRequest(
            coordinator_partition=coordinator, topic_names=names or None, include_objects=False
        )
        for topic in ask_coordinator(cluster, coordinator, request, timeout_ms).topics:
            for one in topic.partitions:
                sizes[topic.topic_id, one.partition_index] = Sizes(
                    one.log_start_offset, one.high_watermark, one.stored_bytes
                )
    return brokers, tuple(plan_partitions(topics, sizes))


class _Answered(Protocol):
    """The controller's answer for one chunk."""

    @property
    def error_code(self) -> int: ...
    @property
    def error_message(self) -> str | None: ...


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


def _create_request(
    wanted: tuple[NewChunk, ...], cluster: Target, timeout_ms: int
) -> CreateChunksRequest:
    """Build the request to create chunks; a broker reads their starts, controllers need them."""
    if cluster.brokers:
        return _request_without_ends(wanted)
    return _request_with_ends(wanted, cluster, timeout_ms)


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
