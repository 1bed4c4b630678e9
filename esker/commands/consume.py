"""`esker consume`: records of a topic to standard output, for machines without kcat."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from esker.client.client import (
    EARLIEST,
    LATEST,
    MAX_INT64,
    ClientError,
    KafkaClient,
    no_such_partition,
)
from esker.client.consumer import Found, Reader
from esker.client.group_member import HEARTBEAT_S, Member, RebalanceNeededError
from esker.commands.base import CommandGroup
from esker.commands.cluster_access import Server, TimeoutMs, broker_addresses, broker_client, fail
from esker.commands.names import TopicName, complete_from, complete_groups
from esker.commands.progress import counting, interruptible, stop_if_unread
from esker.commands.record_formats import FIELDS_HELP, Formatter, formatter

app = CommandGroup()

EXAMPLE = "Example: esker consume numbers --from-beginning --until-end | sort -n | tail"

COMMIT_S: Final = 1.0
LEAVING_S: Final = 5.0
TIMEOUT_MS: Final = 60_000

Take = Callable[[list[Found]], bool]
"""Prints records, and returns true once --max-messages of them are printed."""


FromBeginning = Annotated[
    bool,
    typer.Option(
        "--from-beginning",
        help="Start partitions without a committed offset of --group at their earliest "
        "offset; default: at their end offset.",
    ),
]
Group = Annotated[
    str | None,
    typer.Option(
        metavar="GROUP",
        autocompletion=complete_groups,
        help="Id of the consumer group to join and to commit offsets for; default: no group is "
        "joined.",
    ),
]
Partition = Annotated[
    int | None,
    typer.Option(min=0, help="Number of the partition to read; default: all partitions."),
]
Offset = Annotated[
    int | None,
    typer.Option(
        max=MAX_INT64,
        help="Offset to start at in every partition, or -N for N offsets before the end; "
        "default: the end offset.",
    ),
]
Timestamp = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=MAX_INT64,
        help="Timestamp from which to read each partition, in ms since 1970 UTC; "
        "default: the end offset.",
    ),
]
MaxMessages = Annotated[
    int | None,
    typer.Option(
        min=1, help="Number of records to print before the command stops; default: no limit."
    ),
]
UntilEnd = Annotated[
    bool,
    typer.Option(
        "--until-end",
        help="Stop at the partitions' end offsets; default: wait for new records.",
    ),
]
KeySeparator = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="Separator to print between each record's key and value; default: keys are "
        "not printed.",
    ),
]
Output = Annotated[
    str | None,
    typer.Option(
        metavar="json|raw|FORMAT",
        autocompletion=complete_from("json", "raw"),
        help="Format of each record: json, raw (only the bytes of the value), or a format string "
        f"as in kcat, with {FIELDS_HELP}; default: print the value as a line.",
    ),
]
JsonRecords = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print each record as one JSON object, as --output json does; default: print values "
        "as lines.",
    ),
]


@app.command(name="consume", epilog=EXAMPLE)
def consume(
    topic: TopicName,
    bootstrap_server: Server = None,
    from_beginning: FromBeginning = False,
    group: Group = None,
    partition: Partition = None,
    offset: Offset = None,
    timestamp: Timestamp = None,
    max_messages: MaxMessages = None,
    until_end: UntilEnd = False,
    key_separator: KeySeparator = None,
    output: Output = None,
    as_json: JsonRecords = False,
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:
    """Print the value of each record of a topic as a line, until Ctrl-C.

    With --group, ending the command commits the offsets of the printed records.
    """
    start = _Start(partition, offset, timestamp, from_beginning)
    start.check(in_group=group is not None)
    printer = _Printer(max_messages, _formatter(topic, key_separator, output, as_json=as_json))

    async def main() -> None:
        async with broker_client(broker_addresses(bootstrap_server), timeout_ms) as client:
            with counting("read", lambda: (printer.records, printer.bytes)):
                if group is None:
                    await _alone(client, topic, printer.take, start, stop=until_end)
                    return
                member = Member(client, group, topic)
                await _in_group(
                    client, member, topic, printer.take, first=from_beginning, stop=until_end
                )

    try:
        interruptible(main())
    except ClientError as error:
        sys.stdout.flush()
        fail(str(error))


# --- without a group ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Start:
    """The partition to read, or None for all, and the option that says where to start."""

    partition: int | None
    offset: int | None
    timestamp: int | None
    from_beginning: bool

    def check(self, *, in_group: bool) -> None:
        """Raise typer.BadParameter if the options of the start position exclude each other."""
        named = self.offset is not None, self.timestamp is not None
        if sum((*named, self.from_beginning)) > 1:
            raise typer.BadParameter(
                "--from-beginning, --offset and --timestamp exclude each other: give one of them"
            )
        if in_group and (self.partition is not None or any(named)):
            raise typer.BadParameter(
                "excludes --partition, --offset and --timestamp: "
                "the group assigns partitions and stores offsets",
                param_hint="--group",
            )

    async def offsets(self, client: KafkaClient, topic: str) -> dict[int, int]:
        """Return the offset at which to start each partition. Raises ClientError."""
        leaders = await client.leaders(topic)
        one = self.partition
        if one is not None and one not in leaders:
            raise ClientError(no_such_partition(topic, one, leaders))
        partitions = list(leaders) if one is None else [one]
        if self.offset is not None and self.offset >= 0:
            return dict.fromkeys(partitions, self.offset)
        ends = await _ends(client, topic, partitions)
        first = await client.offsets(topic, dict.fromkeys(partitions, EARLIEST))
        if self.offset is not None:
            return {index: max(first[index], ends[index] + self.offset) for index in partitions}
        if self.timestamp is not None:
            found = await client.offsets(topic, dict.fromkeys(partitions, self.timestamp))
            return {index: found[index] if found[index] >= 0 else ends[index] for index in found}
        return first if self.from_beginning else ends


async def _alone(client: KafkaClient, topic: str, take: Take, start: _Start, *, stop: bool) -> None:
    """Consume partitions without a consumer group, until the record limit or the end offsets."""
    begin = await start.offsets(client, topic)
    reader = Reader(client, topic, begin)
    ends = await _ends(client, topic, begin) if stop else None
    async for found in reader.poll():
        if take(found) or (ends is not None and _reached_ends(reader, found, ends)):
            return


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
    """Consume as a group member until the record limit or end offsets; then leave the group."""
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
    """Consume until a rebalance (return False), the record limit or the end offsets (True)."""
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


def _formatter(
    topic: str, key_separator: str | None, output: str | None, *, as_json: bool
) -> Formatter:
    """Return the function that formats records as the options say. Raises typer.BadParameter."""
    if output is not None and (key_separator is not None or as_json):
        raise typer.BadParameter("excludes --key-separator and --json", param_hint="--output")
    if as_json and key_separator is not None:
        raise typer.BadParameter("excludes --json", param_hint="--key-separator")
    try:
        return formatter(topic, "json" if as_json else output, key_separator)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--output") from None


class _Printer:
    def __init__(self, most: int | None, form: Formatter) -> None:
        self.records = 0
        self.bytes = 0
        self._most = most
        self._form = form

    def take(self, found: list[Found]) -> bool:
        """Print records up to --max-messages; return whether that number is reached."""
        if self._most is not None:
            del found[self._most - self.records :]
        out = sys.stdout.buffer
        for item in found:
            data = self._form(item)
            out.write(data)
            self.bytes += len(data)
        self.records += len(found)
        if found:
            out.flush()
        else:
            stop_if_unread()
        return self._most is not None and self.records >= self._most
