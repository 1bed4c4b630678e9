"""Golden bytes: DescribeSnapshots and TakeSnapshot, field by field. They are ours alone."""

from __future__ import annotations

import pytest

from records.codec import decode_message, encode_message
from records.rpc.snapshots import (
    DescribeSnapshotsRequest,
    DescribeSnapshotsResponse,
    TakeSnapshotRequest,
    TakeSnapshotResponse,
)
from tests.records.golden import Golden, golden_name

_group = DescribeSnapshotsResponse.Group

GOLDEN: list[Golden] = [
    Golden(
        DescribeSnapshotsRequest(
            topics=(DescribeSnapshotsRequest.Topic(topic_name="foo", partitions=(0, 1)),)
        ),
        0,
        "02"  # one topic: length + 1
        "04 666f6f"  # its name
        "03 00000000 00000001"  # two partitions
        "00 00",  # no tagged fields of the topic, of the request
    ),
    Golden(
        DescribeSnapshotsResponse(
            cluster_id="c",
            node_id=3,
            groups=(
                _group(
                    topic_name="foo",
                    partition_index=0,
                    leader_id=1,
                    leader_epoch=7,
                    log_start_offset=10,
                    log_end_offset=31,
                    high_watermark=30,
                    log_size=4096,
                    applied_offset=29,
                    generating=True,
                    snapshots=(_group.Snapshot(end_offset=20, epoch=6, size=512),),
                ),
            ),
        ),
        0,
        "00000000 0000 00"  # throttle time, error code, no error message
        "02 63 00000003"  # cluster id, node id
        "02"  # one group
        "04 666f6f 00000000 0000"  # topic, partition, error code
        "00000001 00000007"  # leader, epoch
        "000000000000000a 000000000000001f 000000000000001e"  # log start, log end, high watermark
        "0000000000001000 000000000000001d"  # log size, applied
        "01 00"  # generating, not receiving
        "02 0000000000000014 00000006 0000000000000200 00"  # one snapshot
        "00 00",
    ),
    Golden(
        TakeSnapshotRequest(topic_name="foo", partition_index=2, timeout_ms=5_000),
        0,
        "04 666f6f 00000002 00001388 00",
    ),
    Golden(
        TakeSnapshotResponse(error_code=0, end_offset=20, epoch=6, size=512),
        0,
        "00000000 0000 00"  # throttle time, error code, no error message
        "0000000000000014 00000006 0000000000000200 00",
    ),
]


@pytest.mark.parametrize("golden", GOLDEN, ids=golden_name)
def test_each_snapshot_rpc_has_its_golden_bytes(golden: Golden) -> None:
    assert encode_message(golden.message, golden.version) == golden.encoded
    decoded = decode_message(type(golden.message), golden.encoded, golden.version)
    assert decoded == golden.message
