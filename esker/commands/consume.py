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
from esker.commands.cluster_access import (
    DEFAULT_SERVER,
    BrokerBootstrap,
    TimeoutMs,
    brokers_at,
    fail,
)
from esker.commands.progress import counting, interruptible, still_trying, stop_if_unread
from records.compression import Buffer

app = typer.Typer(add_completion=False)

EXAMPLE = (
    "Example: esker consume --topic numbers --from-beginning --until-end"
    " --bootstrap-server 127.0.0.1:9092 | sort -n | tail"
)

COMMIT_S: Final = 1.0
LEAVING_S: Final = 5.0
TIMEOUT_MS: Final = 60_000

Take = Callable[[list[Found]], bool]
"""Prints records; true once enough were."""


@app.command(name="consume", epilog=EXAMPLE)
def consume(
    topic: Annotated[str, typer.Option(metavar="TOPIC", help="What to read.")],
    bootstrap_server: BrokerBootstrap = DEFAULT_SERVER,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Where nothing else says; default: from now.")
    ] = False,
    group: Annotated[
        str | None,
        typer.Option(metavar="GROUP", help="Share the topic with this group; commits offsets."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="One partition; default: all.")
    ] = None,
    offset: Annotated[
        int | None, typer.Option(help="Begin here, in every partition; -N: N before the end.")
    ] = None,
    timestamp: Annotated[
        int | None, typer.Option(min=0, help="Begin with records of this time, ms since 1970.")
    ] = None,
    max_messages: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many records.")
    ] = None,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="Stop at the end, instead of waiting for more.")
    ] = False,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Print the key, this, and the value.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a record, for programs.")
    ] = False,
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:
    """Print each record's value as a line. Ends by Ctrl-C, which commits what was printed."""
    chosen = [offset is not None, timestamp is not None, from_beginning]
    if sum(chosen) > 1:
        raise typer.BadParameter("give one of --from-beginning, --offset, --timestamp")
    if group is not None and (partition is not None or offset is not None or timestamp is not None):
        raise typer.BadParameter(
            "a group deals out partitions and keeps offsets by itself", param_hint="--group"
        )
    printer = _Printer(topic, max_messages, key_separator, as_json=as_json)

    async def main() -> None:
        async with KafkaClient(brokers_at(bootstrap_server), timeout_ms=timeout_ms) as client:
            client.on_wait = still_trying
            with counting("read", lambda: (printer.records, printer.bytes)):
                if group is not None:
                    member = Member(client, group, topic)
                    await _in_group(
                        client, member, topic, printer.take, first=from_beginning, stop=until_end
                    )
                    return
                begin = await _begin(client, topic, partition, offset, timestamp, from_beginning)
                reader = Reader(client, topic, begin)
                ends = await _ends(client, topic, begin) if until_end else None
                async for found in reader.poll():
                    if printer.take(found) or (ends is not None and _past(reader, found, ends)):
                        return

    try:
        interruptible(main())
    except ClientError as error:
        sys.stdout.flush()
        fail(str(error))


# --- alone --------------------------------------------------------------------------------------


async def _begin(
    client: KafkaClient,
    topic: str,
    partition: int | None,
    offset: int | None,
    timestamp: int | None,
    from_beginning: bool,
) -> dict[int, int]:
    """The offset to begin with, by partition. Raises ClientError."""
    partitions = [partition] if partition is not None else list(await client.leaders(topic))
    if offset is not None and offset >= 0:
        return dict.fromkeys(partitions, offset)
    ends = await _ends(client, topic, partitions)
    first = await client.offsets(topic, dict.fromkeys(partitions, EARLIEST))
    if offset is not None:
        return {one: max(first[one], ends[one] + offset) for one in partitions}
    if timestamp is not None:
        found = await client.offsets(topic, dict.fromkeys(partitions, timestamp))
        return {one: found[one] if found[one] >= 0 else ends[one] for one in partitions}
    return first if from_beginning else ends


async def _ends(client: KafkaClient, topic: str, partitions: Any) -> dict[int, int]:
    return await client.offsets(topic, dict.fromkeys(partitions, LATEST))


def _past(reader: Reader, found: list[Found], ends: dict[int, int]) -> bool:
    """With these records, is every partition read up to where it ended when we began?"""
    reached = dict(reader.positions)
    for one in found:
        reached[one.partition] = one.record.offset + 1
    return all(reached[partition] >= ends[partition] for partition in reached)


# --- in a group ---------------------------------------------------------------------------------


async def _in_group(
    client: KafkaClient, member: Member, topic: str, take: Take, *, first: bool, stop: bool
) -> None:
    """Generations, one after the other, until enough was read; then leave."""
    try:
        while True:
            partitions = await member.join()
            committed = await member.committed(partitions)
            unset = [partition for partition in partitions if partition not in committed]
            at = EARLIEST if first else LATEST
            begun = await client.offsets(topic, dict.fromkeys(unset, at)) if unset else {}
            ends = await _ends(client, topic, partitions) if stop else None
            reader = Reader(client, topic, committed | begun)
            if await _generation(member, reader, take, ends):
                return
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVING_S):
                await member.leave()


async def _generation(
    member: Member, reader: Reader, take: Take, ends: dict[int, int] | None
) -> bool:
    """Read until enough was (true), or the group wants another generation (false)."""
    printed: dict[int, int] = {}
    beating = asyncio.get_running_loop().create_task(_beat(member))
    committed_at = time.monotonic()
    try:
        if ends is not None and _past(reader, [], ends):
            return True
        async for found in reader.poll():
            if beating.done():
                beating.result()
            enough = take(found)
            for one in found:
                printed[one.partition] = one.record.offset + 1
            if enough or (ends is not None and _past(reader, found, ends)):
                return True
            if printed and time.monotonic() - committed_at > COMMIT_S:
                await member.commit(printed)
                printed, committed_at = {}, time.monotonic()
        raise AssertionError("reading does not end by itself")
    except RebalanceNeededError:
        return False
    finally:
        beating.cancel()
        # What is not committed, somebody reads again; and nobody who leaves wants to wait for it.
        with contextlib.suppress(RebalanceNeededError, TimeoutError):
            async with asyncio.timeout(LEAVING_S):
                await member.commit(printed)


async def _beat(member: Member) -> None:
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
        """Print these, or as many as are wanted still, which then is what `found` holds."""
        if self._most is not None:
            del found[self._most - self.records :]
        out = sys.stdout.buffer
        for one in found:
            line = self._json(one) if self._as_json else self._plain(one)
            out.write(line)
            out.write(b"\n")
            self.bytes += len(line)
        self.records += len(found)
        if found:
            out.flush()
        else:
            stop_if_unread()
        return self._most is not None and self.records >= self._most

    def _plain(self, one: Found) -> bytes:
        value = bytes(one.record.value or b"")
        if self._separator is None:
            return value
        return bytes(one.record.key or b"") + self._separator + value

    def _json(self, one: Found) -> bytes:
        record = one.record
        line = {
            "topic": self._topic,
            "partition": one.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            **_text("key", record.key),
            **_text("value", record.value),
            "headers": [{"name": h.key, **_text("value", h.value)} for h in record.headers],
        }
        return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode()


def _text(name: str, data: Buffer | None) -> dict[str, str | None]:
    """Bytes as text; as base64, under a name that says so, where they are none."""
    if data is None:
        return {name: None}
    try:
        return {name: bytes(data).decode()}
    except UnicodeDecodeError:
        return {f"{name}Base64": base64.b64encode(data).decode()}
