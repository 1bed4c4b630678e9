"""`esker records`: delete the first records of partitions, as `kafka-delete-records` does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from esker.client.client import MAX_INT64
from esker.client.record_deletion import TO_END, Deleted, delete_records, parse_offsets
from esker.commands.base import CommandGroup
from esker.commands.cluster_access import (
    AsJson,
    Server,
    TimeoutMs,
    broker_addresses,
    broker_client,
    run_or_fail,
)
from esker.commands.files import read_text_or_exit
from esker.commands.names import topic_argument
from esker.commands.text_tables import show, table

app = CommandGroup("Delete records of topics.")

DELETE_EXAMPLE = "Example: esker records delete orders --partition 0 --before-offset 1000"
TIMEOUT_MS: Final = 30_000


@app.callback(epilog=DELETE_EXAMPLE)
def records() -> None:
    """Delete records of topics by partition and offset."""


@app.command(epilog=DELETE_EXAMPLE)
def delete(
    topic: Annotated[str | None, topic_argument("Name of the topic; not with --from-file.")] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(
            min=0, help="Number of a partition of TOPIC to delete records from; may be repeated."
        ),
    ] = None,
    before_offset: Annotated[
        int | None,
        typer.Option(
            min=TO_END,
            max=MAX_INT64,
            help="Offset below which records are deleted; -1 means the end offset of each "
            "partition.",
        ),
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option(
            "--from-file",
            "--offset-json-file",
            metavar="FILE",
            help="Path of a JSON file with topics, partitions and offsets; default: TOPIC, "
            "--partition and --before-offset name them.",
        ),
    ] = None,
    bootstrap_server: Server = None,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:
    """Delete the records of partitions below an offset permanently.

    Format of FILE: {"partitions": [{"topic": "t", "partition": 0, "offset": 3}], "version": 1}
    """
    if from_file is not None:
        if topic is not None or partition or before_offset is not None:
            raise typer.BadParameter(
                "excludes TOPIC, --partition and --before-offset", param_hint="--from-file"
            )
        try:
            offsets = parse_offsets(read_text_or_exit(from_file))
        except ValueError as error:
            raise typer.BadParameter(f"{from_file}: {error}", param_hint="--from-file") from None
    elif topic is None or not partition or before_offset is None:
        raise typer.BadParameter("give TOPIC, --partition and --before-offset, or --from-file")
    else:
        offsets = {(topic, number): before_offset for number in partition}

    async def exchange() -> list[Deleted]:
        async with broker_client(broker_addresses(bootstrap_server), timeout_ms) as client:
            return await delete_records(client, offsets)

    _show(run_or_fail(exchange()), as_json=as_json)


def _show(deleted: list[Deleted], *, as_json: bool) -> None:
    """Print each partition's new log start or error, and exit with 1 after any error."""
    done = [one for one in deleted if one.error is None]
    rows = [(one.topic, str(one.partition), str(one.low_watermark)) for one in done]
    partitions = [
        {
            "topic": one.topic,
            "partition": one.partition,
            "lowWatermark": None if one.error else one.low_watermark,
            "error": one.error,
        }
        for one in deleted
    ]
    text = table(("Topic", "Partition", "LowWatermark"), rows) if rows else ""
    show({"partitions": partitions}, text, as_json=as_json)
    for one in deleted:
        if one.error is not None:
            typer.echo(f"{one.topic}-{one.partition}: refused: {one.error}", err=True)
    if len(done) < len(deleted):
        raise typer.Exit(1)
