"""`esker produce`: lines of standard input or a file into a topic, for machines without kcat."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Final

import typer

from esker.client.client import ClientError
from esker.client.producer import ACKS, Line, Producer
from esker.commands.base import CommandGroup
from esker.commands.cluster_access import Server, TimeoutMs, broker_addresses, broker_client, fail
from esker.commands.names import complete_from, topic_argument
from esker.commands.progress import counting, interruptible
from records.compression import Compression
from records.errors import RecordError

app = CommandGroup()

EXAMPLE = "Example: seq 1000 | esker produce numbers --header source=shell"

READ_BYTES: Final = 256 * 1024
CHUNKS_WAITING: Final = 8
MAX_LINE_BYTES: Final = 64 * 1024 * 1024
"""Bound of memory per line; by default, brokers refuse records over one mebibyte."""
LINGER_S: Final = 0.02  # how long a line waits for others when input comes slowly
ROUND_BYTES: Final = 4 * 1024 * 1024
TIMEOUT_MS: Final = 60_000


Topic = Annotated[
    str,
    topic_argument(
        "Name of the topic to write to, created if missing and if the cluster allows it."
    ),
]
KeySeparator = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="Text that separates key and value in each line; default: records have no keys.",
    ),
]
Partition = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Number of the partition to write to; default: the hash of each key decides, and "
        "lines without a key go to the partitions in turn.",
    ),
]
Headers = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        "--headers",
        metavar="KEY=VALUE",
        help="Header of each record, as KEY=VALUE; may be repeated; default: no headers.",
    ),
]
InputFile = Annotated[
    Path | None,
    typer.Option(
        "--file",
        metavar="FILE",
        help="Path of the file to read lines from; default: standard input.",
    ),
]
Acks = Annotated[
    str,
    typer.Option(
        metavar="0|1|all",
        autocompletion=complete_from(*ACKS),
        help="Acknowledgements to wait for: 0, 1 or all; all also makes the producer "
        "idempotent; default: all.",
    ),
]
Codec = Annotated[
    str,
    typer.Option(
        metavar="none|gzip|snappy|lz4|zstd",
        autocompletion=complete_from(*(codec.name.lower() for codec in Compression)),
        help="Compression codec of each batch: none, gzip, snappy, lz4 or zstd; default: none.",
    ),
]


@app.command(name="produce", epilog=EXAMPLE)
def produce(
    topic: Topic,
    bootstrap_server: Server = None,
    key_separator: KeySeparator = None,
    partition: Partition = None,
    header: Headers = None,
    file: InputFile = None,
    acks: Acks = "all",
    compression: Codec = "none",
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:
    """Write each line of standard input or of a file to a topic.

    The line feed is not part of the record. Ends at the end of the input or by Ctrl-C; every
    record that was counted is acknowledged by then.
    """
    if acks not in ACKS:
        raise typer.BadParameter(f"{acks!r} is not one of 0, 1, all", param_hint="--acks")
    if compression.upper() not in Compression.__members__:
        known = ", ".join(codec.name.lower() for codec in Compression)
        raise typer.BadParameter(
            f"{compression!r} is not one of {known}", param_hint="--compression"
        )
    if key_separator == "":
        raise typer.BadParameter(
            "is empty: give at least one character", param_hint="--key-separator"
        )
    separator = None if key_separator is None else key_separator.encode()
    headers = _headers(header or [])
    opened = None if file is None else _open(file)

    async def main() -> None:
        async with broker_client(broker_addresses(bootstrap_server), timeout_ms) as client:
            producer = Producer(
                client,
                topic,
                acks=ACKS[acks],
                compression=Compression[compression.upper()],
                partition=partition,
                headers=headers,
            )
            with counting("written", lambda: (producer.records, producer.bytes)):
                await producer.begin()
                source = sys.stdin.fileno() if opened is None else opened
                async for lines in _lines(source, separator):
                    await producer.send(lines)

    try:
        interruptible(main())
    except (ClientError, RecordError) as error:
        fail(str(error))


def _headers(texts: list[str]) -> list[tuple[str, bytes]]:
    """Parse the options that name every record's headers; a header key may occur twice."""
    headers = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--header")
        headers.append((key, value.encode()))
    return headers


def _open(file: Path) -> int:
    """Open the input file and return its descriptor, or end the command with 1 on an error."""
    try:
        with file.open("rb") as opened:
            return os.dup(opened.fileno())
    except OSError as error:
        fail(f"{file}: {error.strerror}")


async def _lines(source: int, separator: bytes | None) -> AsyncIterator[list[Line]]:
    """Yield lists of lines from a file descriptor, each collected for up to LINGER_S seconds."""
    chunks = _chunks(source)
    rest = b""
    while True:
        chunk = await _next(chunks)
        data, ended = [rest, chunk], not chunk
        size = len(chunk)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while not ended and size < ROUND_BYTES:
                    chunk = await _next(chunks)
                    data.append(chunk)
                    size += len(chunk)
                    ended = not chunk
        *lines, rest = b"".join(data).split(b"\n")
        if ended and rest:
            lines.append(rest)
        now_ms = time.time_ns() // 1_000_000
        taken: list[Line] = []
        wrong: ClientError | None = None
        for line in lines:
            try:
                taken.append(_line(line, separator, now_ms))
            except ClientError as error:
                wrong = error
                break
        if taken:
            yield taken
        if wrong is not None:  # only after the lines before it are yielded
            raise wrong
        if len(rest) > MAX_LINE_BYTES:
            raise ClientError(f"a line has more than {MAX_LINE_BYTES} bytes; it is not written")
        if ended:
            return


def _line(line: bytes, separator: bytes | None, now_ms: int) -> Line:
    if separator is None:
        return Line(None, line, now_ms)
    key, found, value = line.partition(separator)
    if not found:
        shown = line[:40].decode("utf-8", "backslashreplace")
        raise ClientError(
            f"no {separator.decode()!r} in the line {shown!r}; all before it is written"
        )
    return Line(key, value, now_ms)


async def _next(chunks: asyncio.Queue[bytes | OSError]) -> bytes:
    """Return the next bytes of the input, b"" at its end. Raises ClientError."""
    chunk = await chunks.get()
    if isinstance(chunk, OSError):
        raise ClientError(f"the input cannot be read on: {chunk.strerror}")
    return chunk


def _chunks(source: int) -> asyncio.Queue[bytes | OSError]:
    """Start a thread that reads a file descriptor into the returned queue; b"" marks the end.

    A daemon, because a terminal may never reach its end. The thread reads the file descriptor
    directly: a buffered reader would hold a lock that the interpreter needs at exit.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue(CHUNKS_WAITING)

    def read() -> None:
        chunk: bytes | OSError = b"begun"
        while chunk and not isinstance(chunk, OSError):
            try:
                chunk = os.read(source, READ_BYTES)
            except OSError as error:
                chunk = error
            try:
                asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result()
            except (RuntimeError, asyncio.CancelledError, TimeoutError):
                return  # the loop has ended

    threading.Thread(target=read, name="input", daemon=True).start()
    return chunks
