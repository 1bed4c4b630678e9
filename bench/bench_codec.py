"""How fast are our generated codecs, beside libraries that do the same in C or Rust?

    python -m bench.bench_codec [--tiny]

Records: a million PartitionRecords, and a million batch coordinates in ObjectCommitRecords, against
fastavro (schemaless, ids as fixed bytes) and msgpack (tuples of the same fields, ids as bytes).
Both of them skip what we do on top: ids as UUIDs, frozen objects, versions, frames.
"rows" adds what a state machine needs: the decoded columns turned into one tuple for each batch.

RPCs: against kio (encoder in Python, decoder in Rust). "whole" gives one `bytes`; "parts" is what
a connection is handed, record batches not copied; kio gets a list to write to there as well.

Everything runs in one process, taking turns; CPU time, the least of the rounds. A ratio is their
time / our time: above 1 we are faster. Musts: 500,000 coordinates/s decoded, 400,000 encoded, RPCs
encoded 5 times as fast as by kio, Produce and Fetch of 1 MiB decoded 10 times as fast.
"""

from __future__ import annotations

import argparse
import io
import os
import platform
import random
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

import fastavro
import msgpack
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from bench.codec_messages import rpc_messages
from records.codec import decode_message, encode_message, encode_parts
from records.diskless import ObjectCommitRecord
from records.frame import decode_record, encode_record
from records.metadata import PartitionRecord
from records.rpc import API
from records.schema import ArrayOf, Message
from records.wire import UUID16

SEED: Final = 7
RECORDS: Final = 1_000_000  # partition records; as many coordinates
DISTINCT: Final = 10_000  # of them built, then used again and again
BATCHES_PER_OBJECT: Final = 1_000
ROUNDS: Final = 5
RPC_SECONDS: Final = 0.03  # CPU time for one round of one message
LARGE_COPIES: Final = 16  # of a message of 1 MiB, in turn: what arrives is not in the near caches
MUST_DECODE_PER_S: Final = 500_000
MUST_ENCODE_PER_S: Final = 400_000


class Contender(NamedTuple):
    """A codec: values to bytes and back."""

    name: str
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    values: Sequence[Any]


def cpu_seconds(work: Callable[[Any], Any], items: Sequence[Any], times: int) -> float:
    start = time.process_time()
    for _ in range(times):
        for item in items:
            work(item)
    return time.process_time() - start


# --- records -------------------------------------------------------------------------------------


def partition_records(count: int) -> list[PartitionRecord]:
    rng = random.Random(SEED)
    topics = [UUID(int=rng.getrandbits(128)) for _ in range(200)]
    disks = [UUID(int=rng.getrandbits(128)) for _ in range(9)]
    made = []
    for number in range(count):
        replicas = tuple(rng.sample(range(9), 3))
        made.append(
            PartitionRecord(
                partition_id=number % 100,
                topic_id=rng.choice(topics),
                replicas=replicas,
                isr=replicas,
                removing_replicas=(),
                adding_replicas=(),
                leader=replicas[0],
                leader_epoch=rng.randrange(1000),
                partition_epoch=rng.randrange(1000),
                directories=tuple(disks[broker] for broker in replicas),
            )
        )
    return made


def commit_records(count: int) -> list[ObjectCommitRecord]:
    rng = random.Random(SEED)
    topics = tuple(UUID(int=rng.getrandbits(128)) for _ in range(10))
    width = range(BATCHES_PER_OBJECT)
    return [
        ObjectCommitRecord(
            object_id=object_id,
            object_format=1,
            size_bytes=BATCHES_PER_OBJECT * 8192,
            broker_id=3,
            broker_epoch=77,
            lease_id=9,
            committed_at_ms=1_700_000_000_000 + object_id,
            topic_ids=topics,
            topic_indexes=tuple(rng.randrange(10) for _ in width),
            partitions=tuple(rng.randrange(100) for _ in width),
            batch_counts=(1,) * BATCHES_PER_OBJECT,
            byte_offsets=tuple(batch * 8192 for batch in width),
            byte_sizes=tuple(rng.randrange(100, 8192) for _ in width),
            base_offsets=tuple(rng.randrange(10**12) for _ in width),
            record_counts=tuple(rng.randrange(1, 500) for _ in width),
            max_timestamps=tuple(1_700_000_000_000 + rng.randrange(10**6) for _ in width),
            timestamp_types=(0,) * BATCHES_PER_OBJECT,
            producer_ids=tuple(rng.randrange(10**6) for _ in width),
            producer_epochs=(0,) * BATCHES_PER_OBJECT,
            base_sequences=tuple(rng.randrange(2**31) for _ in width),
            error_codes=(0,) * BATCHES_PER_OBJECT,
            duplicates=(0,) * BATCHES_PER_OBJECT,
        )
        for object_id in range(count)
    ]


def coordinate_rows(record: ObjectCommitRecord) -> list[tuple[int, ...]]:
    """Return the columns of a commit record as one tuple for each batch."""
    return list(
        zip(
            record.topic_indexes,
            record.partitions,
            record.batch_counts,
            record.byte_offsets,
            record.byte_sizes,
            record.base_offsets,
            record.record_counts,
            record.max_timestamps,
            record.timestamp_types,
            record.producer_ids,
            record.producer_epochs,
            record.base_sequences,
            record.error_codes,
            record.duplicates,
            strict=True,
        )
    )


def plain(record: Message, version: int) -> dict[str, Any]:
    """Return the record's fields at a version as numbers, bytes and tuples of these."""
    fields, _ = record.schema().fields_at(version, flexible=True)
    values = {field.name: getattr(record, field.name) for field in fields}
    for field in fields:
        if field.type is UUID16:
            values[field.name] = values[field.name].bytes
        elif isinstance(field.type, ArrayOf) and field.type.element is UUID16:
            values[field.name] = tuple(item.bytes for item in values[field.name])
    return values


def avro_schema(record: Message, version: int) -> Any:
    def avro(wire_type: Any) -> Any:
        if isinstance(wire_type, ArrayOf):
            return {"type": "array", "items": avro(wire_type.element)}
        if wire_type is UUID16:
            return "id"
        return "long" if wire_type.size == 8 else "int"

    identity = {"type": "fixed", "name": "id", "size": 16}
    fields, _ = record.schema().fields_at(version, flexible=True)
    described = [{"name": field.name, "type": avro(field.type)} for field in fields]
    first_id = next(f for f in described if "id" in (f["type"], dict_items(f["type"])))
    first_id["type"] = (
        identity if first_id["type"] == "id" else {"type": "array", "items": identity}
    )
    return fastavro.parse_schema(
        {"type": "record", "name": type(record).__name__, "fields": described}
    )


def dict_items(avro_type: Any) -> Any:
    return avro_type.get("items") if isinstance(avro_type, dict) else None


def contenders(records: Sequence[Any], version: int) -> list[Contender]:
    schema = avro_schema(records[0], version)
    as_dicts = [plain(record, version) for record in records]

    def avro_encode(value: Any) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, value)
        return out.getvalue()

    return [
        Contender("ours", lambda record: encode_record(record, version), decode_record, records),
        Contender(
            "fastavro",
            avro_encode,
            lambda data: fastavro.schemaless_reader(io.BytesIO(data), schema),
            as_dicts,
        ),
        Contender(
            "msgpack",
            msgpack.packb,
            lambda data: msgpack.unpackb(data, use_list=False),
            [tuple(value.values()) for value in as_dicts],
        ),
    ]


def compare_records(title: str, parties: list[Contender], per_record: int, total: int) -> None:
    """Print each codec's rate in units per second, and its ratio to the rate of Esker's codec."""
    times = max(1, total // (len(parties[0].values) * per_record * ROUNDS))
    units = len(parties[0].values) * per_record * times
    least: dict[tuple[str, str], float] = {}
    encoded = {party.name: [party.encode(value) for value in party.values] for party in parties}
    for round_number in range(ROUNDS):
        for shift in range(len(parties)):
            party = parties[(round_number + shift) % len(parties)]
            for what, work, items in (
                ("encode", party.encode, party.values),
                ("decode", party.decode, encoded[party.name]),
            ):
                spent = cpu_seconds(work, items, times)
                least[party.name, what] = min(spent, least.get((party.name, what), spent))
    print(f"\n{title}: {units * ROUNDS:,} of them in {ROUNDS} rounds")
    ours = parties[0].name
    for party in parties:
        size = sum(map(len, encoded[party.name])) / len(party.values) / per_record
        rates = "  ".join(
            f"{what} {units / least[party.name, what]:>11,.0f}/s"
            f" ({least[party.name, what] / least[ours, what]:5.2f}x)"
            for what in ("encode", "decode")
        )
        print(f"  {party.name:<9} {rates}  {size:6.1f} bytes each")


def compare_coordinates(objects: int) -> None:
    commits = commit_records(objects)
    parties = contenders(commits, 0)
    rows = Contender(
        "rows", parties[0].encode, lambda data: coordinate_rows(decode_record(data)), commits
    )
    compare_records(
        "batch coordinates, in ObjectCommitRecords of 1,000",
        [*parties, rows],
        BATCHES_PER_OBJECT,
        RECORDS if objects > 1 else BATCHES_PER_OBJECT,
    )
    print(
        f"  must      encode {MUST_ENCODE_PER_S:>11,}/s          decode {MUST_DECODE_PER_S:>11,}/s"
    )


# --- RPCs ----------------------------------------------------------------------------------------


class _Sink(list[bytes]):
    """A list that kio can write to."""

    write = list.append


def compare_rpcs(seconds: float) -> None:
    print("\nRPCs: our microseconds (kio's time / ours)")
    print(f"  {'':<27} {'encode whole':>18} {'encode parts':>18} {'decode':>18}")
    for title, message, version in rpc_messages():
        cls = type(message)
        key = cls.schema().key
        assert key is not None, "an RPC has a key"
        load = load_request_schema if cls is API[key].request else load_response_schema
        kio_class = load(key, version)
        write, read = entity_writer(kio_class), entity_reader(kio_class)
        data = encode_message(message, version)
        copies = [bytes(bytearray(data)) for _ in range(LARGE_COPIES if len(data) > 2**19 else 1)]
        mine = [decode_message(cls, copy, version) for copy in copies]
        theirs = [read(copy, 0)[0] for copy in copies]

        def kio_whole(value: Any, write: Any = write) -> bytes:
            out = io.BytesIO()
            write(out, value)
            return out.getvalue()

        def kio_parts(value: Any, write: Any = write) -> None:
            write(_Sink(), value)

        assert kio_whole(theirs[0]) == data, f"{title}: not the same bytes"
        contests: list[tuple[Callable[[Any], Any], Sequence[Any], Callable[[Any], Any], Any]] = [
            (lambda m, v=version: encode_message(m, v), mine, kio_whole, theirs),
            (lambda m, v=version: encode_parts(m, v), mine, kio_parts, theirs),
            (
                lambda d, c=cls, v=version: decode_message(c, d, v),
                copies,
                lambda d, read=read: read(d, 0),
                copies,
            ),
        ]
        cells = []
        for our_work, our_items, kio_work, kio_items in contests:
            ours = microseconds(our_work, our_items, seconds)
            kio = microseconds(kio_work, kio_items, seconds)
            cells.append(f"{ours:8.2f} ({kio / ours:6.1f}x)")
        print(f"  {title:<27} " + " ".join(f"{cell:>18}" for cell in cells))


def microseconds(work: Callable[[Any], Any], items: Sequence[Any], seconds: float) -> float:
    """Return the CPU time of one call of `work` in microseconds, the least of all rounds."""
    times = 1
    while (spent := cpu_seconds(work, items, times)) < seconds / 4:
        times *= 2
    best = min(spent, *(cpu_seconds(work, items, times) for _ in range(ROUNDS)))
    return best / times / len(items) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="a few of each, to see that it runs")
    tiny = parser.parse_args().tiny
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(f"commit {commit or '?'}, Python {platform.python_version()}, {os.cpu_count()} cores")
    partitions = partition_records(10 if tiny else DISTINCT)
    total = 10 if tiny else RECORDS
    compare_records("PartitionRecord v1", contenders(partitions, 1), 1, total)
    compare_coordinates(1 if tiny else 20)
    compare_rpcs(0.0005 if tiny else RPC_SECONDS)


if __name__ == "__main__":
    main()
