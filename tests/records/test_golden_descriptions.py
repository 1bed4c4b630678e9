"""Golden bytes: DescribeTopics and DescribeBrokers, field by field. They are ours alone."""

from __future__ import annotations

from uuid import UUID

import pytest

from records.codec import decode_message, encode_message
from records.rpc.descriptions import (
    DescribeBrokersRequest,
    DescribeBrokersResponse,
    DescribeTopicsRequest,
    DescribeTopicsResponse,
)
from tests.records.golden import Golden, golden_name

_topic = DescribeTopicsResponse.Topic
_broker = DescribeBrokersResponse.Broker

GOLDEN: list[Golden] = [
    Golden(DescribeTopicsRequest(), 0, "00 00"),  # null: all of them
    Golden(DescribeTopicsRequest(topic_names=("foo",)), 0, "02 04 666f6f 00"),
    Golden(
        DescribeTopicsResponse(
            image_offset=300,
            topics=(
                _topic(
                    topic_name="foo",
                    topic_id=UUID(int=1),
                    partitions=(
                        _topic.Partition(
                            partition_index=2,
                            leader_id=3,
                            replicas=(3, 4),
                            isr=(3,),
                            coordinator=1,
                            chunks=(
                                _topic.Partition.Chunk(
                                    start_offset=0,
                                    start_timestamp=5,
                                    stop_offset=8,
                                    end_offset=9,
                                    epoch=6,
                                    replicas=(7,),
                                    isr=(),
                                ),
                            ),
                        ),
                    ),
                ),
            ),
        ),
        0,
        "00000000 0000 00 000000000000012c"  # throttle time, no error, the image's offset
        "02 0000 04 666f6f"  # one topic: no error, its name
        "00000000000000000000000000000001 00"  # id, not internal
        "02 00000002 00000003"  # one partition: index, leader
        "03 00000003 00000004 02 00000003"  # replicas, ISR
        "00000001"  # coordinator
        "02 0000000000000000 0000000000000005"  # one chunk: start, its timestamp
        "0000000000000008 0000000000000009 00000006"  # stop, end, epoch
        "02 00000007 01 00"  # replicas, no ISR, no tagged fields
        "00 00 00",
    ),
    Golden(DescribeBrokersRequest(), 0, "00"),
    Golden(
        DescribeBrokersResponse(
            image_offset=300,
            image_age_ms=258,
            brokers=(
                _broker(
                    broker_id=1,
                    broker_epoch=44,
                    rack=None,
                    is_fenced=True,
                    in_controlled_shutdown=False,
                    listeners=(_broker.Listener(name="P", host="h", port=9092),),
                ),
            ),
        ),
        0,
        "00000000 0000 00 000000000000012c"  # throttle time, no error, the image's offset
        "02 00000001 000000000000002c"  # one broker: id, epoch
        "00 01 00"  # no rack, fenced, not shutting down
        "02 02 50 02 68 2384 00"  # one listener
        "00"  # no tagged fields of the broker
        "01 00 08 0000000000000102",  # the image's age
    ),
]


@pytest.mark.parametrize("golden", GOLDEN, ids=golden_name)
def test_each_description_message_has_its_golden_bytes(golden: Golden) -> None:
    assert encode_message(golden.message, golden.version) == golden.encoded
    decoded = decode_message(type(golden.message), golden.encoded, golden.version)
    assert decoded == golden.message
