"""`esker consume`: records of a topic to standard output, for machines without kcat."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from esker.client.client import EARLIEST, LATEST, ClientError, KafkaClient
from esker.client.consumer import Found, Reader
from esker.client.group_member import HEARTBEAT_S, Member, RebalanceNeededError
from esker.commands.base import CommandGroup
from esker.commands.cluster_access import Server, TimeoutMs, broker_addresses, fail
from esker.commands.names import TopicName
from esker.commands.progress import counting, interruptible, still_trying, stop_if_unread
from records.compression import Buffer

app = CommandGroup()

EXAMPLE = "Example: esker consume numbers --from-beginning --until-end | sort -n | tail"

COMMIT_S: Final = 1.0
LEAVING_S: Final = 5.0
TIMEOUT_MS: Final = 60_000

Take = Callable[[list[Found]], bool]
"""Prints records, and returns true once --max-messages of them are printed."""


@app.command(name="consume", epilog=EXAMPLE)
def consume(
    topic: TopicName,
    bootstrap_server: Server = None,
    from_beginning: Annotated[
        bool,
        typer.Option(
            "--from-beginning",
            help="Start at the earliest offset, with --group only in partitions without a "
            "committed offset; default: start at the end offset.",
        ),
    ] = False,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP",
            help="Consumer group to join and to commit offsets for; default: no group, no commits.",
        ),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(min=0, help="Number of the partition to read; default: all partitions."),
    ] = None,
    offset: Annotated[
        int | None,
        typer.Option(
            help="Offset to start at in every partition; -N means N offsets before the end; "
            "default: the end."
        ),
    ] = None,
    timestamp: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Timestamp from which to read each partition, in ms since 1970 UTC; "
            "default: the end offset.",
        ),
    ] = None,
    max_messages: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of records to print before the command stops; default: no limit."
        ),
    ] = None,
    until_end: Annotated[
        bool,
        typer.Option(
            "--until-end",
            help="Stop at the partitions' end offsets; default: wait for new records.",
        ),
    ] = False,
    key_separator: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Separator to print between each record's key and value; default: keys are "
            "not printed.",
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print each record as one JSON object; default: only the record's value."
        ),
    ] = False,
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:
    """Print the value of each record of a topic as a line, until Ctrl-C.

    With --group, ending the command commits the offsets of the printed records.
    """
    chosen = [offset is not None, timestamp is not None, from_beginning]
    if sum(chosen) > 1:
        raise typer.BadParameter(
            "--from-beginning, --offset and --timestamp exclude each other: give one of them"
        )
    if group is not None and (partition is not None or offset is not None or timestamp is not None):
        raise typer.BadParameter(
            "excludes --partition, --offset and --timestamp: "
            "the group assigns partitions and stores offsets",
            param_hint="--group",
        )
    printer = _Printer(topic, max_messages, key_separator, as_json=as_json)

    async def main() -> None:
        async with KafkaClient(broker_addresses(bootstrap_server), timeout_ms=timeout_ms) as client:
            client.on_wait = still_trying
            with counting("read", lambda: (printer.records, printer.bytes)):
                if group is not None:
                    member = Member(client, group, topic)
                    await _in_group(
                        client, member, topic, printer.take, first=from_beginning, stop=until_end
                    )
                    return
                begin = await _start_offsets(
                    client, topic, partition, offset, timestamp, from_beginning
                )
                reader = Reader(client, topic, begin)
                ends = await _ends(client, topic, begin) if until_end else None
                async for found in reader.poll():
                    if printer.take(found) or (
                        ends is not None and _reached_ends(reader, found, ends)
                    ):
                        return

    try:
        interruptible(main())
    except ClientError as error:
        sys.stdout.flush()
        fail(str(error))


# --- without a group ----------------------------------------------------------------------------


async def _start_offsets(
    client: KafkaClient,
    topic: str,
    partition: int | None,
    offset: int | None,
    timestamp: int | None,
    from_beginning: bool,
) -> dict[int, int]:
    """Return the offset at which to start each partition. Raises ClientError."""
    partitions = [partition] if partition is not None else list(await client.leaders(topic))
    if offset is not None and offset >= 0:
        return dict.fromkeys(partitions, offset)
    ends = await _ends(client, topic, partitions)
    first = await client.offsets(topic, dict.fromkeys(partitions, EARLIEST))
    if offset is not None:
        return {index: max(first[index], ends[index] + offset) for index in partitions}
    if timestamp is not None:
        found = await client.offsets(topic, dict.fromkeys(partitions, timestamp))
        return {index: found[index] if found[index] >= 0 else ends[index] for index in partitions}
    return first if from_beginning else ends


async def _ends(client: KafkaClient, topic: str, partitions: Any) -> dict[int, int]:
    return await client.offsets(topic, dict.fromkeys(partitions, LATEST))


def _reached_ends(reader: Reader, found: list[Found], ends: dict[int, int]) -> bool:
    """Return whether every partition's end offset is reached after the records in `found`."""
    reached = dict(reader.positions)
    for item in found:
        reached[item.partition] = item.record.offset + 1
    return all(reached[partition] >= ends[partition] for partition in reached)


# --- in a group ---------------------------------------------------------------------------------


async def _in_group(
    client: KafkaClient, member: Member, topic: str, take: Take, *, first: bool, stop: bool
) -> None:
    """Consume in each group generation until the record limit or the end offsets, then leave."""
    try:
        while True:
            partitions = await member.join()
            committed = await member.committed(partitions)
            unset = [partition for partition in partitions if partition not in committed]
            timestamp = EARLIEST if first else LATEST
            starts = await client.offsets(topic, dict.fromkeys(unset, timestamp)) if unset else {}
            ends = await _ends(client, topic, partitions) if stop else None
            reader = Reader(client, topic, committed | starts)
            if await _generation(member, reader, take, ends):
                return
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVING_S):
                await member.leave()


async def _generation(
    member: Member, reader: Reader, take: Take, ends: dict[int, int] | None
) -> bool:
    """Consume until a rebalance (return False), or the record limit or the end offsets (True)."""
    printed: dict[int, int] = {}
    heartbeats = asyncio.get_running_loop().create_task(_send_heartbeats(member))
    committed_at = time.monotonic()
    try:
        if ends is not None and _reached_ends(reader, [], ends):
            return True
        async for found in reader.poll():
            if heartbeats.done():
                heartbeats.result()
            enough = take(found)
            for item in found:
                printed[item.partition] = item.record.offset + 1
            if enough or (ends is not None and _reached_ends(reader, found, ends)):
                return True
            if printed and time.monotonic() - committed_at > COMMIT_S:
                await member.commit(printed)
                printed, committed_at = {}, time.monotonic()
        raise AssertionError("reading does not end by itself")
    except RebalanceNeededError:
        return False
    finally:
        heartbeats.cancel()
        # Another member rereads records without a commit, so leaving waits a bounded time for it.
        with contextlib.suppress(RebalanceNeededError, TimeoutError):
            async with asyncio.timeout(LEAVING_S):
                await member.commit(printed)


async def _send_heartbeats(member: Member) -> None:
    while True:
        await asyncio.sleep(HEARTBEAT_S)
        await member.heartbeat()


# --- what is printed ----------------------------------------------------------------------------


class _Printer:
    def __init__(
        self, topic: str, most: int | None, key_separator: str | None, *, as_json: bool
    ) -> None:
        self.records = 0
        self.bytes = 0
        self._topic = topic
        self._most = most
        self._separator = None if key_separator is None else key_separator.encode()
        self._as_json = as_json

    def take(self, found: list[Found]) -> bool:
        """Print records up to --max-messages; return whether that number is reached."""
        if self._most is not None:
            del found[self._most - self.records :]
        out = sys.stdout.buffer
        for item in found:
            line = self._json(item) if self._as_json else self._plain(item)
            out.write(line)
            out.write(b"\n")
            self.bytes += len(line)
        self.records += len(found)
        if found:
            out.flush()
        else:
            stop_if_unread()
        return self._most is not None and self.records >= self._most

    def _plain(self, item: Found) -> bytes:
        value = bytes(item.record.value or b"")
        if self._separator is None:
            return value
        return bytes(item.record.key or b"") + self._separator + value

    def _json(self, item: Found) -> bytes:
        record = item.record
        line = {
            "topic": self._topic,
            "partition": item.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            **_text("key", record.key),
            **_text("value", record.value),
            "headers": [{"name": h.key, **_text("value", h.value)} for h in record.headers],
        }
        return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode()


def _text(name: str, data: Buffer | None) -> dict[str, str | None]:
    """Return bytes as a JSON field: UTF-8 text as `name`, other bytes as base64 in `nameBase64`."""
    if data is None:
        return {name: None}
    try:
        return {name: bytes(data).decode()}
    except UnicodeDecodeError:
        return {f"{name}Base64": base64.b64encode(data).decode()}
