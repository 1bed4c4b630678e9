"""`esker dump-log` of WAL segment objects: what they hold, whether they are sound, where they are.

Source: KIP-1163, WAL Segment Objects; docs/design/broker.md#wal-segment-objects.
"""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import msgpack
import pytest
from crc32c import crc32c

from esker.dump.wal import DamagedWalError, verify_object
from esker.dump.wal_sources import Cluster, FileObject, NoSuchObjectError, find_object
from records.batch_writer import build_batch
from records.compression import Compression
from records.object_keys import ObjectKeys
from records.rpc.objects import DescribeDisklessObjectResponse
from records.wal import MAGIC, TRAILER, PartitionBatches, build_object

CLUSTER = "xBIbbGYlSzqHPEyzl9QSWw"
TOPIC, OTHER = UUID(int=7), UUID(int=8)
TIME = 1_700_000_000_000
KEY = ObjectKeys(prefix="", cluster_id=CLUSTER, coordinator_partition=0).key(4711)


def batch(*values: bytes, codec: Compression = Compression.NONE) -> bytes:
    return bytes(
        build_batch(
            [(b"k", value, TIME, ()) for value in values],
            base_offset=0,
            leader_epoch=-1,
            compression=codec,
            producer_id=5,
            producer_epoch=0,
            base_sequence=0,
        )
    )


def whole_object(object_id: int = 4711, cluster: str = CLUSTER) -> bytes:
    """Build an object with two batches of one partition and one batch of another."""
    parts, size_bytes = build_object(
        [
            PartitionBatches(TOPIC, 0, [batch(b"a", b"b"), batch(b"c", codec=Compression.ZSTD)], 3),
            PartitionBatches(OTHER, 2, [batch(b"d")], 1),
        ],
        cluster_id=cluster,
        object_id=object_id,
        broker_id=101,
        broker_epoch=14,
    )
    data = b"".join(parts)
    assert len(data) == size_bytes
    return data


def put(directory: Path, data: bytes, key: str = KEY) -> Path:
    path = directory / "objects" / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_dump_log_prints_a_wal_objects_footer_and_on_request_its_records(esker, tmp_path):
    path = put(tmp_path, whole_object())
    shown = esker("dump-log", str(path))
    assert shown.code == 0, shown.err
    assert f'clusterId="{CLUSTER}"' in shown.out
    assert "objectId=4711" in shown.out
    assert "2 partitions, 3 batches, 4 records" in shown.out
    assert 'value="a"' not in shown.out
    full = esker("dump-log", "--print-data-log", str(path))
    for value in "abcd":
        assert f'value="{value}"' in full.out
    assert "zstd" in full.out


def test_dump_log_json_of_a_wal_object_has_a_line_for_each_partition_batch_and_record(
    esker, tmp_path
):
    path = put(tmp_path, whole_object())
    lines = esker("dump-log", "--json", "--print-data-log", str(path)).lines
    kinds = [line["type"] for line in lines]
    assert kinds == ["file", "object", "partition", "batch", "record", "record", "batch", "record",
                     "partition", "batch", "record", "end"]  # fmt: skip
    partitions = [line for line in lines if line["type"] == "partition"]
    assert [one["recordCount"] for one in partitions] == [3, 1]
    batches = [line for line in lines if line["type"] == "batch"]
    assert batches[2]["position"] == partitions[1]["byteOffset"]  # positions are the object's
    assert (lines[-1]["partitions"], lines[-1]["batches"], lines[-1]["records"]) == (2, 3, 4)


@pytest.mark.parametrize("name", ["4711", KEY])
def test_dump_log_finds_a_wal_object_by_its_id_or_key_below_a_store(esker, tmp_path, name):
    put(tmp_path, whole_object())
    found = esker("dump-log", "--verify", "--deep", "--store", str(tmp_path / "objects"), name)
    assert (found.code, found.err) == (0, "")
    assert found.out.startswith("sound")


def test_an_object_of_a_cluster_before_a_restore_is_found_by_its_id(tmp_path):
    path = put(tmp_path, whole_object())
    restored = Cluster(cluster_id="Ck3xYzPEyzl9QSWwBIbbGY", key_prefix="", place=path)
    found = find_object("4711", tmp_path / "objects", coordinator=0, cluster=restored)
    assert found.name == str(path)
    with pytest.raises(NoSuchObjectError, match="no object ends in /0/12"):
        find_object("12", tmp_path / "objects", coordinator=0, cluster=restored)


def test_dump_log_reports_an_unknown_or_ambiguous_object_id_in_one_line(esker, tmp_path):
    put(tmp_path, whole_object())
    store = str(tmp_path / "objects")
    put(tmp_path, whole_object(), key=f"other/{KEY}")
    for name, says in [
        ("4711", "2 objects end in /0/4711"),
        ("12", "no object ends in /0/12"),
        ("../secret", "is no object key"),
    ]:
        ran = esker("dump-log", "--store", store, name)
        assert (ran.code, ran.err.count("\n")) == (2, 1), ran
        assert says in ran.err
    assert esker("dump-log", "s3://bucket-without-key").code == 2


def test_dump_log_reports_every_flipped_bit_of_a_wal_object_with_its_position(tmp_path):
    data = whole_object()
    for position in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        path = put(tmp_path, bytes(damaged))
        with pytest.raises(DamagedWalError) as caught:
            verify_object(FileObject(path), deep=True)
        assert str(path) in str(caught.value), f"flipped at {position}"


def test_dump_log_reports_damage_in_a_wal_object_in_one_line_that_names_the_batch(esker, tmp_path):
    data = bytearray(whole_object())
    second = len(batch(b"a", b"b"))
    data[second + 70] ^= 4
    path = put(tmp_path, bytes(data))
    ran = esker("dump-log", "--verify", str(path))
    assert (ran.code, ran.out.count("\n"), ran.err) == (1, 1, "")
    assert ran.out.startswith(f"DAMAGED  {path}, position {second}: crc ")
    assert esker("dump-log", "--verify", "--json", str(path)).lines[0]["position"] == second


def with_footer(fields: object) -> bytes:
    """An object without batches whose footer has a valid checksum."""
    footer = msgpack.packb(fields)
    size_bytes = len(footer) + TRAILER.size
    return footer + TRAILER.pack(len(footer), crc32c(footer), size_bytes, MAGIC)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "0 bytes are too few"),
        (b"x" * 100, "it ends in"),
        (whole_object()[:-1], "it ends in"),
        (whole_object()[5:], "written as"),
        (TRAILER.pack(2**32 - 1, 0, TRAILER.size, MAGIC), "a footer of 4294967295 bytes"),
        (whole_object(object_id=4712), "stands under another one's name"),
        (whole_object(cluster="b" * 22), "stands under another one's name"),
        (with_footer([1, "c", 4711, 1, 1, [[]]]), "the footer cannot be read"),
        (with_footer([1, "c", 4711, 1, 1, [["x" * 16, 0, 0, 0, 0, 0, 0]]]), "cannot be read"),
    ],
)
def test_dump_log_reports_an_incomplete_or_misnamed_wal_object_as_damaged(
    esker, tmp_path, data, says
):
    path = put(tmp_path, data)
    for options in ([], ["--verify"], ["--json"]):
        ran = esker("dump-log", *options, str(path))
        assert ran.code == 1, ran
        assert says in ran.out + ran.err


def known(**changed) -> DescribeDisklessObjectResponse:
    owner = DescribeDisklessObjectResponse.Owner
    values = {
        "object_id": 4711,
        "size_bytes": len(whole_object()),
        "used_bytes": 100,
        "broker_id": 101,
        "owners": (
            owner(topic_id=TOPIC, topic_name="t", partition_index=0, run_count=1, used_bytes=100),
        ),
    }
    return DescribeDisklessObjectResponse(**(values | changed))


def test_dump_log_verify_compares_a_wal_object_with_its_coordinators_metadata(tmp_path):
    source = FileObject(put(tmp_path, whole_object()))
    (remark,) = verify_object(source, known=known()).remarks
    assert remark.startswith("as its coordinator has it: 100 of ")
    owner = DescribeDisklessObjectResponse.Owner
    stranger = owner(topic_id=OTHER, topic_name="t", partition_index=0, run_count=1, used_bytes=1)
    greedy = owner(topic_id=TOPIC, topic_name="t", partition_index=0, run_count=1, used_bytes=9999)
    for changed in (
        {"size_bytes": 1}, {"broker_id": 102}, {"owners": (stranger,)}, {"owners": (greedy,)},
    ):  # fmt: skip
        with pytest.raises(DamagedWalError, match="the coordinator has"):
            verify_object(source, known=known(**changed))
