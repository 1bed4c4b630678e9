"""A small checkpoint, byte by byte. Source: KIP-630, Snapshot Format; KIP-853."""

from __future__ import annotations

from uuid import UUID

from records.control import SnapshotFooterRecord
from records.frame import decode_control_record, encode_control_record
from records.metadata import FeatureLevelRecord, TopicRecord
from snapshot import CheckpointWriter
from tests.snapshot.checkpoints import DIRECTORY, ID, PATH, TIME, VOTERS, new_disk

UNPRODUCED = "ffffffffffffffff ffff ffffffff"  # producer id, producer epoch, base sequence

HEADER_BATCH = f"""
    0000000000000000 00000081  # base offset 0, length 129
    00000003 02 edaf68be  # leader epoch: the snapshot's; magic; crc
    0020 00000002  # attributes: control; last offset delta
    0000018bcfe56800 0000018bcfe56800  # base and max timestamp
    {UNPRODUCED} 00000003  # 3 records
    2a 00 00 00  # record: length 21, attributes, timestamp delta, offset delta 0
    08 0000 0003  # key: 4 bytes, version 0, type 3: SnapshotHeader
    16 0000 0000018bcfe56800 00  # value: 11 bytes, version 0, last contained timestamp, no tags
    00  # no headers
    1e 00 00 02  # record: length 15, offset delta 1
    08 0000 0005  # type 5: KRaftVersion
    0a 0000 0001 00  # value: version 0, kraft.version 1, no tags
    00
    52 00 00 04  # record: length 41, offset delta 2
    08 0000 0006  # type 6: Voters
    3e 0000 02  # value: 31 bytes, version 0, one voter
    00000001 00000000000000000000000000000000 01  # id, directory id, no endpoints
    0000 0001 00 00 00  # kraft.version 0 to 1; no tags of it, of the voter, of the record
    00
"""
DATA_BATCH = f"""
    0000000000000003 0000005f  # base offset 3: counted on from the header batch
    00000003 02 8822f746
    0000 00000001  # attributes: none
    0000018bcfe56800 0000018bcfe56800
    {UNPRODUCED} 00000002
    3c 00 00 00 01  # record: length 30, offset delta 0, no key
    30 01 02 00  # value: 24 bytes, frame version 1, type 2: Topic, version 0
    04 666f6f 00000000000000000000000000000007 00  # "foo", topic id, no tags
    00
    1c 00 00 02 01
    10 01 0c 00  # value: 8 bytes, type 12: FeatureLevel
    02 78 0007 00  # "x", level 7
    00
"""
FOOTER_BATCH = f"""
    0000000000000005 00000055
    00000003 02 7bf84d62
    0020 00000000
    0000018bcfe56800 0000018bcfe56800
    {UNPRODUCED} 00000001
    46 00 00 00
    08 0000 0004  # type 4: SnapshotFooter
    32 0000 02  # value: 25 bytes, version 0, two tagged fields
    e807 08 0000000000000005  # tag 1000, 8 bytes: 5 records before the footer
    e907 08 000000003afb316a  # tag 1001, 8 bytes: CRC-32C of all bytes before this batch
    00
"""


def from_annotated(text: str) -> bytes:
    return bytes.fromhex("".join(line.partition("#")[0] for line in text.splitlines()))


def test_a_checkpoint_has_its_golden_bytes():
    disk = new_disk()
    with CheckpointWriter.create(
        disk, DIRECTORY, ID, last_timestamp=TIME, kraft_version=1, voters=VOTERS
    ) as writer:
        writer.append(TopicRecord(name="foo", topic_id=UUID(int=7)))
        writer.append(FeatureLevelRecord(name="x", feature_level=7))
        assert writer.freeze() == PATH
    assert disk.content(PATH) == from_annotated(HEADER_BATCH + DATA_BATCH + FOOTER_BATCH)


def test_a_checkpoint_footer_without_eskers_fields_equals_kafkas_byte_for_byte():
    key, value = encode_control_record(SnapshotFooterRecord())
    assert (key.hex(), value.hex()) == ("00000004", "000000")
    assert decode_control_record(key, value) == SnapshotFooterRecord(
        record_count=-1, content_crc=-1
    )
