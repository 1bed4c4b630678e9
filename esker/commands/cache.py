"""`esker cache`: what is in a broker's directory of local segments.

Source: docs/design/local-segments.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from diskless.fetch.local_segments.format import KIND_NAMES
from diskless.fetch.local_segments.inspection import (
    DescribedSegment,
    NoCacheDirectoryError,
    read_owner,
    read_segments,
)
from esker.commands.base import CommandGroup
from esker.commands.cluster_access import AsJson, fail
from esker.commands.text_tables import show, table
from records.uuids import encode_uuid

app = CommandGroup("Describe a broker's local segments: batches on its own disk.")

EXAMPLE: Final = "Example: esker cache describe /var/lib/esker-cache --verify"
HEADINGS: Final = (
    "TopicId", "Partition", "Kind", "FirstOffset", "EndOffset", "Missing", "Ranges", "Bytes",
    "State",
)  # fmt: skip


@app.callback(epilog=EXAMPLE)
def cache() -> None:
    """Describe a broker's local segments: batches on its own disk."""


@app.command(epilog=EXAMPLE)
def describe(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Directory of local segments: a broker's esker.cache.dir."
        ),
    ],
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Read all bytes and compare their checksums; default: read the indexes only.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the segments of each partition, of a running broker or a stopped one.

    Missing is the number of offsets between FirstOffset and EndOffset that a consumer gets from the
    object store. A damaged segment is, too: the broker drops it when it is read. The exit code is 1
    if one is damaged.
    """
    try:
        owner = read_owner(directory)
        segments = list(read_segments(directory, owner.cluster_id, verify=verify))
    except NoCacheDirectoryError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{directory}: {error.strerror or error}")
    result = {
        "clusterId": owner.cluster_id,
        "nodeId": owner.node_id,
        "bytes": sum(segment.size_bytes for segment in segments),
        "segments": [_json(segment, is_verified=verify) for segment in segments],
    }
    lines = [
        f"Node {owner.node_id} of cluster {owner.cluster_id}: {len(segments)} segments, "
        f"{result['bytes']} bytes"
    ]
    if segments:
        lines.append(table(HEADINGS, [_row(segment, is_verified=verify) for segment in segments]))
    show(result, "\n".join(lines), as_json=as_json)
    if any(segment.is_damaged for segment in segments):
        raise typer.Exit(1)


def _state(segment: DescribedSegment, *, is_verified: bool) -> str:
    if segment.kind is None:
        return "damaged"
    if segment.damaged_ranges:
        return f"{segment.damaged_ranges} ranges damaged"
    return "sound" if is_verified else "not verified"


def _json(segment: DescribedSegment, *, is_verified: bool) -> dict[str, Any]:
    return {
        "topicId": encode_uuid(segment.partition.topic_id),
        "partition": segment.partition.partition,
        "kind": None if segment.kind is None else KIND_NAMES[segment.kind],
        "firstOffset": segment.base_offset,
        "endOffset": segment.end_offset,
        "missingOffsets": segment.missing_offsets,
        "ranges": segment.ranges,
        "bytes": segment.size_bytes,
        "state": _state(segment, is_verified=is_verified),
    }


def _row(segment: DescribedSegment, *, is_verified: bool) -> list[str]:
    return [
        "-" if value is None else str(value)
        for value in _json(segment, is_verified=is_verified).values()
    ]
