"""New offsets of groups, and files that name offsets, against a cluster in memory.

Real clusters: tests/esker/test_bootstrap_server.py; against Kafka's own tool:
tests/interop/test_kafka_tools.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esker.client.client import EARLIEST, LATEST, ClientError, KafkaClient
from esker.client.offset_resets import (
    Plan,
    Rule,
    To,
    TopicPartition,
    commit_reset,
    existing_partitions,
    is_resettable,
    parse_datetime,
    parse_duration,
    parse_plan,
    parse_topics,
    plan_reset,
    require_inactive,
)
from esker.client.record_deletion import parse_offsets
from esker.settings.values import Endpoint
from raft.net.runner import run
from records.rpc.groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)


class Cluster(KafkaClient):
    """Topic `t` with logs from 10 to 20 and 0 to 5, one record per ms, and one group."""

    logs = ((10, 20), (0, 5))

    def __init__(self, committed: dict[int, int] | None = None, state: str = "Empty") -> None:
        super().__init__([Endpoint("nowhere", 1)], timeout_ms=2_000)
        self.committed = {("t", index): offset for index, offset in (committed or {}).items()}
        self.state = state

    async def leaders(self, topic: str, *, create: bool = False) -> dict[int, int]:  # noqa: ARG002
        return dict.fromkeys(range(len(self.logs)), 1)

    async def offsets(self, topic: str, timestamps: dict[int, int]) -> dict[int, int]:
        assert topic == "t"
        return {index: self._offset(*self.logs[index], at) for index, at in timestamps.items()}

    @staticmethod
    def _offset(first: int, end: int, timestamp: int) -> int:
        if timestamp in (EARLIEST, LATEST):
            return first if timestamp == EARLIEST else end
        return max(first, timestamp) if timestamp < end else -1

    async def group_coordinator(self, group: str) -> int:  # noqa: ARG002
        return 1

    async def ask(self, node: Any, request: Any, response: Any, **_: Any) -> Any:  # noqa: ARG002
        match request:
            case OffsetFetchRequest():
                topic = OffsetFetchResponse.OffsetFetchResponseGroup.OffsetFetchResponseTopics
                partitions = tuple(
                    topic.OffsetFetchResponsePartitions(
                        partition_index=index, committed_offset=offset, metadata=""
                    )
                    for (_, index), offset in self.committed.items()
                )
                group = OffsetFetchResponse.OffsetFetchResponseGroup(
                    group_id="g", topics=(topic(name="t", partitions=partitions),)
                )
                return OffsetFetchResponse(groups=(group,))
            case OffsetCommitRequest():
                assert (request.generation_id_or_member_epoch, request.member_id) == (-1, "")
                for named in request.topics:
                    for one in named.partitions:
                        self.committed[named.name, one.partition_index] = one.committed_offset
                return OffsetCommitResponse(topics=())
            case DescribeGroupsRequest():
                described = DescribeGroupsResponse.DescribedGroup(
                    error_code=0, group_id="g", group_state=self.state, protocol_type="consumer",
                    protocol_data="", members=(),
                )  # fmt: skip
                return DescribeGroupsResponse(groups=(described,))
        raise AssertionError(request)


BOTH = (("t", 0), ("t", 1))


def planned(
    rule: Rule,
    committed: dict[int, int] | None = None,
    partitions: Iterable[TopicPartition] | None = BOTH,
) -> Plan:
    return run(plan_reset(Cluster(committed), "g", partitions, rule))


@pytest.mark.parametrize(
    ("rule", "offsets"),
    [
        (Rule(To.EARLIEST), (10, 0)),
        (Rule(To.LATEST), (20, 5)),
        (Rule(To.CURRENT), (12, 5)),
        (Rule(To.OFFSET, 4), (10, 4)),
        (Rule(To.OFFSET, 13), (13, 5)),
        (Rule(To.TIMESTAMP, 3), (10, 3)),
        (Rule(To.TIMESTAMP, 15), (15, 5)),
        (Rule(To.FILE, offsets={("t", 0): 99, ("t", 1): 1}), (20, 1)),
    ],
)
def test_each_rule_of_reset_offsets_plans_the_same_offsets_as_kafkas_tool(
    rule: Rule, offsets: tuple[int, int]
) -> None:
    assert tuple(planned(rule, {0: 12}).offsets.values()) == offsets


def test_a_reset_by_a_shift_counts_from_the_committed_offset_and_stays_inside_the_log() -> None:
    plan = planned(Rule(To.SHIFT, -3), {0: 12, 1: 4})
    assert (plan.offsets, plan.committed) == (
        {("t", 0): 10, ("t", 1): 1},
        dict(zip(BOTH, (12, 4), strict=True)),
    )
    assert plan.warnings == (
        "New offset (9) is lower than earliest offset for topic partition t-0. "
        "Value will be set to 10.",
    )
    (warning,) = planned(Rule(To.SHIFT, 9), {0: 12}, BOTH[:1]).warnings
    assert "New offset (21) is higher than latest offset" in warning
    with pytest.raises(ClientError, match="Cannot shift offset for partition t-1 since"):
        planned(Rule(To.SHIFT, 1), {0: 12})


@given(
    st.sampled_from([To.OFFSET, To.SHIFT, To.TIMESTAMP]),
    st.integers(-(2**62), 2**62),
    st.integers(0, 2**62),
)
def test_an_offset_reset_never_plans_an_offset_outside_of_the_partitions_log(
    to: To, value: int, committed: int
) -> None:
    plan = planned(Rule(to, value if to is To.SHIFT else abs(value)), {0: committed, 1: committed})
    for (_, partition), offset in plan.offsets.items():
        first, end = Cluster.logs[partition]
        assert first <= offset <= end


def test_an_offset_reset_of_all_topics_covers_the_partitions_with_a_committed_offset() -> None:
    assert planned(Rule(To.EARLIEST), {1: 3}, None).offsets == {("t", 1): 0}
    with pytest.raises(ClientError, match="group g has no committed offsets: name partitions"):
        planned(Rule(To.EARLIEST), {}, None)


def test_reset_offsets_refuses_a_group_with_members_with_kafkas_message() -> None:
    run(require_inactive(Cluster(state="Dead"), "g"))
    says = (
        "Assignments can only be reset if the group 'g' is inactive, "
        "but the current state is Stable."
    )
    with pytest.raises(ClientError, match=says):
        run(require_inactive(Cluster(state="Stable"), "g"))


def test_reset_offsets_of_all_groups_skips_groups_with_members_or_without_offsets() -> None:
    for committed, state, expected in (({0: 1}, "Empty", True), ({0: 1}, "Stable", False)):
        cluster = Cluster(committed, state)
        assert run(is_resettable(cluster, "g", all_topics=True)) is expected
    assert not run(is_resettable(Cluster(), "g", all_topics=True))
    assert run(is_resettable(Cluster(), "g", all_topics=False))


def test_reset_offsets_of_several_groups_requires_the_group_in_each_line_of_the_file() -> None:
    assert parse_plan("g,t,0,7\nh,t,0,9", "h", of_several=True) == {("t", 0): 9}
    with pytest.raises(ValueError, match="line 2: not group,topic,partition,offset"):
        parse_plan("g,t,0,7\nt,0,9", "g", of_several=True)


def test_reset_offsets_refuses_a_missing_partition() -> None:
    assert run(existing_partitions(Cluster(), {"t": None})) == [("t", 0), ("t", 1)]
    with pytest.raises(ClientError, match='The partitions "t-2,t-9" do not exist'):
        run(existing_partitions(Cluster(), {"t": (2, 1, 9)}))


def test_reset_offsets_commits_the_offsets_that_it_planned() -> None:
    cluster = Cluster({0: 12})
    run(commit_reset(cluster, "g", {("t", 1): 2}))
    assert cluster.committed == {("t", 0): 12, ("t", 1): 2}


def test_reset_offsets_parses_dates_and_durations_as_kafkas_tool_does() -> None:
    assert parse_datetime("2024-02-29T12:00:00.000") == parse_datetime(
        "2024-02-29T13:00:00.000+01:00"
    )
    assert parse_duration("P7D") == 7 * parse_duration("PT24H") == 604_800_000
    for wrong in ("", "2024-02-30T00:00:00.000", "now", "2024-02-03"):
        with pytest.raises(ValueError, match="is not YYYY-MM-DDThh:mm:ss"):
            parse_datetime(wrong)
    for wrong in ("", "P", "PT", "P1Y", "1D", "-P1D", "P999999999999D"):
        with pytest.raises(ValueError, match="is not PnDTnHnMnS"):
            parse_duration(wrong)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "No reset plan for group g found."),
        ("other,t,0,1", "No reset plan for group g found."),
        ("t,0", "line 1: not topic,partition,offset: t,0"),
        ("t,0,1\nt,0,2", "line 2: t-0 is there twice"),
        ("t" * 200_000, "field larger than field limit"),
        ("t,-1,1", "line 1: partition and offset are not numbers"),
        ("t,0,9999999999999999999", "line 1: partition and offset are not numbers"),
    ],
)
def test_the_error_for_an_invalid_reset_offsets_file_names_the_line(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_plan(text, "g")


@pytest.mark.parametrize("texts", [["t:"], ["t:0,"], [":0"], ["t:a"], ["t:-1"], ["t", "t:0"]])
def test_reset_offsets_refuses_a_malformed_or_repeated_topic(texts: list[str]) -> None:
    with pytest.raises(ValueError, match=r"is neither TOPIC nor TOPIC:PARTITION|is given twice"):
        parse_topics(texts)


ENTRY = {"topic": "t", "partition": 0, "offset": 1}


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ([], "not {"),
        ({"partitions": []}, "not {"),
        ({"partitions": [ENTRY], "version": 2}, "version 2 is not 1"),
        ({"partitions": [1]}, r"partitions\[0\] does not have"),
        ({"partitions": [ENTRY | {"x": 1}]}, r"partitions\[0\] does not have"),
        ({"partitions": [ENTRY | {"offset": True}]}, r"partitions\[0\]: topic is not"),
        ({"partitions": [ENTRY | {"offset": -2}]}, r"partitions\[0\]: a number is out of bounds"),
        ({"partitions": [ENTRY, ENTRY]}, r"partitions\[1\]: t-0 is there twice"),
    ],
)
def test_the_error_for_an_invalid_records_delete_file_names_the_entry(
    document: Any, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        parse_offsets(json.dumps(document))


@given(st.text(max_size=60))
def test_the_parsers_of_offset_files_dates_and_durations_raise_only_value_errors(text: str) -> None:
    for parse in (parse_offsets, parse_datetime, parse_duration, lambda one: parse_plan(one, "g")):
        try:
            parse(text)
        except ValueError:
            continue
