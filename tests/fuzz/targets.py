"""The decoders: what feeds each with bytes, what it may raise, and bytes that it accepts."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Final
from uuid import UUID

import fastavro
from hypothesis import HealthCheck, Phase, given, seed, settings

from diskless.produce.validation import Accepted, Refusal, TopicRules, validate
from esker.settings.config import ConfigError, parse_config
from esker.settings.properties import PropertiesError, parse_properties
from raft.net import BadHeaderError, NetError, parse_request_header
from raft.net.frames import Arena, FrameReader
from raft.net.principal import ANONYMOUS
from raft.segments import (
    Log,
    LogConfig,
    StorageError,
    read_meta_properties,
    read_partition_metadata,
    read_quorum_state,
)
from raft.segments.epochs import read_epochs
from raft.segments.high_watermarks import read_high_watermarks
from raft.segments.recovery_point import RecoveryPointFile
from records.batch import iter_batches, iter_records
from records.batch_writer import build_batch
from records.codec import decode_message, encode_message
from records.compression import Compression
from records.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from records.errors import MalformedMessageError, RecordError
from records.frame import decode_record, encode_record
from records.rpc import API, security
from records.rpc.cluster import ApiVersionsRequest, MetadataRequest
from records.schema import Message
from records.wal import PartitionBatches, build_object, read_footer, verify_partition
from snapshot.reader import verify_checkpoint
from spark_jobs.plans.retention_plan import PlanError, read_plan
from spark_jobs.readers.avro_files import AvroFileError, read_avro
from tests.fuzz.mutation import with_batch_checksums, with_footer_checksum
from tests.raft.net.sasl_world import PASSWORD, USER, frame_of
from tests.raft.net.sasl_world import World as SaslWorld
from tests.records.strategies import CASES, messages
from tests.simulation.disk import SimulatedDisk

LIMIT_BYTES: Final = 1 << 20
RECORDED: Final = Path(__file__).parents[1] / "data" / "kafka"
DIRECTORY: Final = Path("/fuzz")

Errors = tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One decoder."""

    decode: Callable[[bytes], object]
    may_raise: Errors
    samples: Callable[[], list[bytes]]
    repair: Callable[[bytes], bytes] | None = None  # checksums, after damage


# --- messages ------------------------------------------------------------------------------------

_CASES: Final = sorted(CASES, key=lambda case: (case[0].__name__, case[1]))


def _decode_message(data: bytes) -> None:
    """Decode the message whose number stands in the first two bytes."""
    cls, version = _CASES[int.from_bytes(data[:2]) % len(_CASES)]
    decode_message(cls, data[2:], version)


def encoded_messages(cls: type[Message], version: int, number: int, count: int) -> list[bytes]:
    """Encode random messages of a class at a version, the same for the same number."""
    found: list[bytes] = []

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(messages(cls, version))
    def draw(message: Message) -> None:
        found.append(encode_message(message, version))

    draw()
    return found


def _messages() -> list[bytes]:
    return [
        number.to_bytes(2) + data
        for number in Random(1).sample(range(len(_CASES)), 60)
        for data in encoded_messages(*_CASES[number], number, 2)
    ]


_FLEXIBLE: Final = {
    api: pair.request.schema().flexible.first if pair.request.schema().flexible else None
    for api, pair in API.items()
}


def _decode_frames(data: bytes) -> None:
    """Feed a frame reader in pieces, granting what it asks for up to a limit."""
    reader = FrameReader(Arena(), max_frame_bytes=1 << 16)
    rest = memoryview(data)
    while rest and reader.error is None:
        if reader.wanted:
            reader.grant()
        room = reader.lend()
        size = min(len(rest), len(room), 1 + len(rest) // 3)
        room[:size] = rest[:size]
        rest = rest[size:]
        for frame in reader.received(size):
            parse_request_header(frame, _FLEXIBLE)


# --- batches and objects -------------------------------------------------------------------------


def _batches() -> list[bytes]:
    rows = [
        (b"key", b"value" * 5, 1_700_000_000_000 + i, [("header", b"x"), ("none", None)][: i % 3])
        for i in range(8)
    ]
    return [
        bytes(build_batch(rows, base_offset=0, leader_epoch=0, compression=codec))
        for codec in Compression
    ]


def _read_batches(data: bytes) -> None:
    for batch in iter_batches(data):
        for _ in iter_records(batch, limit_bytes=LIMIT_BYTES):
            pass


def _validate(data: bytes) -> None:
    for version in (3, 9):
        outcome = validate(data, version, TopicRules(keys_required=True), 1_700_000_000_000)
        assert isinstance(outcome, Accepted | Refusal)


def _objects() -> list[bytes]:
    parts, _ = build_object(
        [PartitionBatches(UUID(int=1), 0, [memoryview(data) for data in _batches()], 40)],
        cluster_id="x",
        object_id=7,
        broker_id=1,
        broker_epoch=3,
    )
    return [b"".join(parts)]


def _read_object(data: bytes) -> None:
    for row in read_footer(data).partitions:
        verify_partition(row, memoryview(data)[row.byte_offset : row.byte_offset + row.size_bytes])


# --- files ---------------------------------------------------------------------------------------


def _on_disk(name: str, read: Callable[[SimulatedDisk, Path], object]) -> Callable[[bytes], None]:
    def decode(data: bytes) -> None:
        disk = SimulatedDisk()
        disk.make_directory(DIRECTORY)
        disk.replace(DIRECTORY / name, data)
        read(disk, DIRECTORY)

    return decode


def _recorded(pattern: str) -> Callable[[], list[bytes]]:
    def samples() -> list[bytes]:
        found = [path.read_bytes() for path in sorted(RECORDED.rglob(pattern))]
        assert found, f"no {pattern} in {RECORDED}"
        return found[:5]

    return samples


_CHECKPOINT: Final = "00000000000000000100-0000000003.checkpoint"


_LOG: Final = LogConfig(segment_bytes=2_500, index_interval_bytes=100)
_SEGMENT: Final = "00000000000000000000"


@cache
def _log_files() -> dict[str, bytes]:
    """Return the files of a log with one segment of several batches, indexed."""
    disk = SimulatedDisk()
    log = Log.create(disk, DIRECTORY, _LOG)
    for number in range(12):
        rows = [(b"key", b"value" * 5, 1_700_000_000_000 + number, [])] * 3
        log.append(build_batch(rows, base_offset=log.log_end_offset, leader_epoch=number // 5))
    log.flush()
    log.record_recovery_point()
    log.close()
    return {name: disk.content(DIRECTORY / name) for name in disk.listdir(DIRECTORY)}


def _in_a_log(suffix: str) -> Callable[[bytes], None]:
    """Return a function that reads a whole log whose file of this suffix has the given bytes."""

    def decode(data: bytes) -> None:
        disk = SimulatedDisk()
        disk.make_directory(DIRECTORY)
        for name, content in (_log_files() | {_SEGMENT + suffix: data}).items():
            disk.replace(DIRECTORY / name, content)
        log = Log.open(disk, DIRECTORY, _LOG)
        offset = log.log_start_offset
        while found := log.read(offset, max_bytes=500):
            assert found.base_offset <= offset < found.end_offset, f"no progress at {offset}"
            offset = found.end_offset
        log.close()

    return decode


def _recovery_points() -> list[bytes]:
    from raft.segments.recovery_point import LogState
    from records.types import Offset

    disk = SimulatedDisk()
    disk.make_directory(DIRECTORY)
    RecoveryPointFile.create(disk, DIRECTORY, LogState(Offset(0), Offset(9))).close()
    (name,) = disk.listdir(DIRECTORY)
    return [disk.content(DIRECTORY / name)]


def _in_a_file(read: Callable[[Path], object]) -> Callable[[bytes], None]:
    @cache
    def path() -> Path:
        return Path(tempfile.mkdtemp(prefix="esker-fuzz-")) / "file"

    def decode(data: bytes) -> None:
        path().write_bytes(data)
        read(path())

    return decode


def _avro_files() -> list[bytes]:
    schema = {
        "type": "record",
        "name": "r",
        "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": ["null", "string"]}],
    }
    out = io.BytesIO()
    fastavro.writer(out, schema, [{"a": 1, "b": "x"}, {"a": -5, "b": None}], codec="deflate")
    return [out.getvalue()]


def _read_configuration(data: bytes) -> None:
    parse_config(parse_properties(data.decode("latin-1"), source="fuzz"))


def _configurations() -> list[bytes]:
    from tests.esker.test_config import STOCK

    return [STOCK.encode()]


def _records() -> list[bytes]:
    from records.metadata import ConfigRecord, TopicRecord

    return [
        encode_record(TopicRecord(name="t", topic_id=UUID(int=5))),
        encode_record(ConfigRecord(resource_type=2, resource_name="t", name="a", value="b")),
    ]


FILE_ERRORS: Final[Errors] = (RecordError, StorageError, FileNotFoundError)

# --- before authentication ------------------------------------------------------------------------


def _authenticate(data: bytes) -> None:
    """Feed the gate of a SASL listener with the frames of one connection, each after its length."""
    world, at = SaslWorld(enabled=("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER")), 0
    while at + 2 <= len(data) and not world.connection.closed:
        end = at + 2 + int.from_bytes(data[at : at + 2], "big")
        world.send(data[at + 2 : end])
        at = end
        known = world.connection.principal
        assert known is ANONYMOUS or PASSWORD.encode() in data, "let in without the password"
        assert known is not ANONYMOUS or set(world.handled) <= {18}, "handled for a stranger"


def _conversations() -> list[bytes]:
    versions = frame_of(
        ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3
    )
    metadata = frame_of(MetadataRequest(topics=None), 1)
    plain = b"\0" + USER.encode() + b"\0" + PASSWORD.encode()
    first = b"n,,n=alice,r=nonce"
    found = []
    for mechanism, data in (
        ("PLAIN", plain),
        ("SCRAM-SHA-256", first),
        ("OAUTHBEARER", b"n,a=alice,\x01auth=Bearer a.b.c\x01x=y\x01\x01"),
    ):
        shake = security.SaslHandshakeRequest(mechanism=mechanism)
        wrapped = frame_of(security.SaslAuthenticateRequest(auth_bytes=data), 2)
        end = [metadata] if mechanism == "PLAIN" else []
        found.append([versions, frame_of(shake, 1), wrapped, *end])
        found.append([frame_of(shake, 0), data, *end])
    return [b"".join(len(one).to_bytes(2, "big") + one for one in frames) for frames in found]


TARGETS: Final[dict[str, Target]] = {
    "message": Target(
        decode=_decode_message, may_raise=(MalformedMessageError,), samples=_messages
    ),
    "frame": Target(
        decode=_decode_frames,
        may_raise=(BadHeaderError,),
        samples=lambda: [b"\0\0\0\x0e\0\x12\0\x03\0\0\0\x07\0\x02me\0\0" * 3],
    ),
    "record": Target(decode=decode_record, may_raise=(RecordError,), samples=_records),
    "batch": Target(
        decode=_read_batches,
        may_raise=(RecordError,),
        samples=_batches,
        repair=with_batch_checksums,
    ),
    "produce": Target(
        decode=_validate, may_raise=(), samples=_batches, repair=with_batch_checksums
    ),
    "object": Target(
        decode=_read_object,
        may_raise=(RecordError,),
        samples=_objects,
        repair=with_footer_checksum,
    ),
    "sasl": Target(decode=_authenticate, may_raise=(RecordError, NetError), samples=_conversations),
    "subscription": Target(
        decode=lambda data: (decode_subscription(data), decode_assignment(data)),
        may_raise=(RecordError, ValueError),
        samples=lambda: [encode_subscription(["a", "b"]), encode_assignment([("a", 1)])],
    ),
    "checkpoint": Target(
        decode=_on_disk(
            _CHECKPOINT, lambda disk, directory: verify_checkpoint(disk, directory / _CHECKPOINT)
        ),
        may_raise=FILE_ERRORS,
        samples=_recorded("*.checkpoint"),
        repair=with_batch_checksums,
    ),
    "segment": Target(
        decode=_in_a_log(".log"),
        may_raise=FILE_ERRORS,
        samples=lambda: [_log_files()[f"{_SEGMENT}.log"]],
        repair=with_batch_checksums,
    ),
    "offset-index": Target(
        decode=_in_a_log(".index"),
        may_raise=FILE_ERRORS,
        samples=lambda: [_log_files()[f"{_SEGMENT}.index"]],
    ),
    "time-index": Target(
        decode=_in_a_log(".timeindex"),
        may_raise=FILE_ERRORS,
        samples=lambda: [_log_files()[f"{_SEGMENT}.timeindex"]],
    ),
    "quorum-state": Target(
        decode=_on_disk("quorum-state", read_quorum_state),
        may_raise=FILE_ERRORS,
        samples=_recorded("quorum-state"),
    ),
    "leader-epochs": Target(
        decode=_on_disk("leader-epoch-checkpoint", read_epochs),
        may_raise=FILE_ERRORS,
        samples=_recorded("leader-epoch-checkpoint"),
    ),
    "meta-properties": Target(
        decode=_on_disk("meta.properties", read_meta_properties),
        may_raise=FILE_ERRORS,
        samples=_recorded("meta.properties"),
    ),
    "partition-metadata": Target(
        decode=_on_disk("partition.metadata", read_partition_metadata),
        may_raise=FILE_ERRORS,
        samples=_recorded("partition.metadata"),
    ),
    "high-watermarks": Target(
        decode=_on_disk("replication-offset-checkpoint", read_high_watermarks),
        may_raise=FILE_ERRORS,
        samples=lambda: [b"0\n2\n__cluster_metadata 0 17\nt 1 5\n"],
    ),
    "recovery-point": Target(
        decode=_on_disk("recovery-point", RecoveryPointFile.open),
        may_raise=FILE_ERRORS,
        samples=_recovery_points,
    ),
    "properties": Target(
        decode=_read_configuration,
        may_raise=(PropertiesError, ConfigError),
        samples=_configurations,
    ),
    "avro": Target(
        decode=lambda data: list(read_avro(data)), may_raise=(AvroFileError,), samples=_avro_files
    ),
    "plan": Target(
        decode=_in_a_file(read_plan),
        may_raise=(PlanError,),
        samples=lambda: [json.dumps({"kind": "retention plan", "version": 1}).encode() + b"\n{}\n"],
    ),
}


def samples_of(name: str) -> list[bytes]:
    """Return a target's samples and the inputs that `tests.fuzz.guided` found for it."""
    kept = Path(__file__).parent / "seeds" / f"{name}.txt"
    lines = kept.read_text().split() if kept.exists() else []
    return [*TARGETS[name].samples(), *map(bytes.fromhex, lines)]


def feed(target: Target, data: bytes) -> bool:
    """Decode the bytes; return whether they were accepted.

    Raises:  every error that the decoder may not raise.
    """
    try:
        target.decode(data)
    except target.may_raise:
        return False
    return True


def repaired(target: Target, data: bytes) -> Iterable[bytes]:
    """Yield the bytes, and the same with checksums that are right."""
    yield data
    if target.repair is not None:
        yield target.repair(data)
