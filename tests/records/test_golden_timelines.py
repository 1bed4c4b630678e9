"""Golden bytes: the records of a restored cluster's log.

No Kafka release knows these messages; the bytes were written by hand from the field lists, by the
rules of KIP-482 (compact lengths are one more, tagged fields come last).
"""

from __future__ import annotations

from uuid import UUID

import pytest

from records.frame import decode_record, encode_record
from records.schema import MetadataRecord
from records.timelines import PartitionTimelinesRecord, TimelineRecord
from tests.records.golden import Golden, golden_name

GOLDEN: list[Golden] = [
    Golden(
        TimelineRecord(
            timeline=2,
            ancestors=(
                TimelineRecord.Ancestor(cluster_id="a", object_ids_below=(5,)),
                TimelineRecord.Ancestor(cluster_id="bc", object_ids_below=(9, 256)),
            ),
        ),
        0,
        "01 9c09 00"  # frame version 1, type 1180, record version 0
        "00000002"  # timeline
        "03"  # two ancestors
        "02 61 02 0000000000000005 00"  # a: objects below 5 of the first coordinator
        "03 6263 03 0000000000000009 0000000000000100 00"
        "00",
    ),
    Golden(
        PartitionTimelinesRecord(
            topic_id=UUID(int=7), partition_index=3, timelines=(0, 1), first_offsets=(0, 256)
        ),
        0,
        "01 9d09 00"  # frame version 1, type 1181, record version 0
        "00000000000000000000000000000007 00000003"  # topic id, partition
        "03 00000000 00000001"  # timelines
        "03 0000000000000000 0000000000000100"  # first offsets
        "00",
    ),
]


@pytest.mark.parametrize("golden", GOLDEN, ids=golden_name)
def test_each_record_of_a_restored_cluster_has_its_golden_bytes(golden: Golden) -> None:
    assert isinstance(golden.message, MetadataRecord)
    assert encode_record(golden.message) == golden.encoded
    assert decode_record(golden.encoded) == golden.message
