"""Requests of members of groups, and of brokers that keep groups, as they really ask."""

from __future__ import annotations

from typing import Any

from records.groups import GroupGenerationRecord
from records.rpc import (
    group_log,
    groups,
    topics,
)
from records.rpc.base import Request
from tests.versions.nodes import BROKER_ID
from tests.versions.scene import (
    GROUP,
    MEMBERS,
    NOWHERE,
    OWNED,
    Scene,
)


def commit_offsets(scene: Scene) -> tuple[Request, ...]:
    topic = groups.OffsetCommitRequest.OffsetCommitRequestTopic

    def asking(group: str, generation: int, member: str) -> Request:
        return groups.OffsetCommitRequest(
            group_id=group, generation_id_or_member_epoch=generation, member_id=member,
            topics=tuple(
                topic(
                    name=name, topic_id=topic_id,
                    partitions=(
                        topic.OffsetCommitRequestPartition(
                            partition_index=0, committed_offset=1, committed_metadata="note"
                        ),
                    ),
                )
                for name, topic_id in (("t", scene.topic_id), ("nowhere", NOWHERE))
            ),
        )  # fmt: skip

    return (
        asking(GROUP, -1, ""),
        asking(MEMBERS, scene.generation, scene.member_id),
        asking(MEMBERS, 99, scene.member_id),
        asking(GROUP, 3, "nobody"),
        asking(f"unwanted-{scene.version}", -1, ""),
    )


def commit_transactional_offsets(_: Scene) -> tuple[Request, ...]:
    topic = groups.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    partition = topic.TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata="note"
    )
    return tuple(
        groups.TxnOffsetCommitRequest(
            transactional_id="x", group_id=group, producer_id=1, producer_epoch=0,
            topics=tuple(topic(name=name, partitions=(partition,)) for name in ("t", "nowhere")),
        )
        for group in (GROUP, "")
    )  # fmt: skip


def fetch_offsets(scene: Scene) -> tuple[Request, ...]:
    asked = groups.OffsetFetchRequest
    old, one = asked.OffsetFetchRequestTopic, asked.OffsetFetchRequestGroup
    named: Any = one.OffsetFetchRequestTopics
    new_topics = tuple(
        named(name=name, topic_id=topic_id, partition_indexes=(0, 9))
        for name, topic_id in (("t", scene.topic_id), ("nowhere", NOWHERE))
    )
    old_topics = tuple(old(name=name, partition_indexes=(0, 9)) for name in ("t", "nowhere"))
    everything: Any = None if scene.version >= 2 else ()
    return (
        *(
            asked(
                group_id=group, topics=old_topics, groups=(one(group_id=group, topics=new_topics),)
            )
            for group in (GROUP, MEMBERS, "nobody")
        ),
        asked(group_id=GROUP, topics=everything, groups=(one(group_id=GROUP, topics=None),)),
        asked(
            group_id=MEMBERS, topics=old_topics, require_stable=scene.version >= 7,
            groups=(
                one(group_id=GROUP, topics=None),
                one(group_id="nobody", topics=None),
                one(group_id=MEMBERS, member_id="stranger", member_epoch=5, topics=new_topics),
            ),
        ),
    )  # fmt: skip


def find_coordinators(scene: Scene) -> tuple[Request, ...]:
    ask = topics.FindCoordinatorRequest
    batch = tuple(f"{how}:{scene.topic_id}:0" for how in ("read", "write"))
    return (
        ask(key=GROUP, key_type=0, coordinator_keys=(GROUP, "")),
        ask(key="transactional", key_type=1, coordinator_keys=("transactional",)),
        ask(key="", key_type=3, coordinator_keys=(*batch, f"read:{NOWHERE}:0", "nonsense")),
        ask(key="what", key_type=9, coordinator_keys=("what",)),
    )


def join(scene: Scene) -> tuple[Request, ...]:
    protocol = groups.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"topics")

    def asking(group: str, **more: Any) -> Request:
        values: dict[str, Any] = {"member_id": "", "protocol_type": "consumer"} | more
        return groups.JoinGroupRequest(
            group_id=group, session_timeout_ms=60_000, rebalance_timeout_ms=60_000,
            protocols=(protocol,), **values,
        )  # fmt: skip

    return (
        asking(scene.new, group_instance_id="static"),
        asking(scene.new + "-dynamic"),
        asking(MEMBERS, protocol_type="other"),
        asking(MEMBERS, member_id="nobody"),
    )


def heartbeat(scene: Scene) -> tuple[Request, ...]:
    ask = groups.HeartbeatRequest
    return (
        ask(group_id=MEMBERS, generation_id=scene.generation, member_id=scene.member_id),
        ask(group_id=MEMBERS, generation_id=99, member_id=scene.member_id),
        ask(group_id="nobody", generation_id=1, member_id="nobody", group_instance_id="static"),
    )


def leave(scene: Scene) -> tuple[Request, ...]:
    ask = groups.LeaveGroupRequest
    member: Any = ask.MemberIdentity
    static = member(member_id="", group_instance_id="static", reason="enough")
    alone = f"alone-{scene.version}"
    return (
        ask(group_id=scene.new, member_id="nobody", members=(static, member(member_id="nobody"))),
        ask(group_id=alone, member_id=scene.alone.get(alone, ""), members=(static,)),
        ask(group_id="nobody", member_id="nobody", members=(static,)),
    )


def sync(scene: Scene) -> tuple[Request, ...]:
    assignment = groups.SyncGroupRequest.SyncGroupRequestAssignment

    def asking(generation: int, **more: Any) -> Request:
        return groups.SyncGroupRequest(
            group_id=MEMBERS, generation_id=generation, member_id=scene.member_id,
            assignments=(assignment(member_id=scene.member_id, assignment=b"mine"),), **more,
        )  # fmt: skip

    return (
        asking(scene.generation, protocol_type="consumer", protocol_name="range"),
        asking(scene.generation, protocol_type="other", protocol_name="range"),
        asking(99),
    )


def describe_groups(_: Scene) -> tuple[Request, ...]:
    asked = (GROUP, MEMBERS, "nobody", "")
    return (groups.DescribeGroupsRequest(groups=asked, include_authorized_operations=True),)


def delete_groups(scene: Scene) -> tuple[Request, ...]:
    unwanted = f"unwanted-{scene.version + 2}"  # committed to by that version of OffsetCommit
    return (groups.DeleteGroupsRequest(groups_names=("nobody", MEMBERS, unwanted, "nobody")),)


def list_groups(_: Scene) -> tuple[Request, ...]:
    ask = groups.ListGroupsRequest
    return ask(), ask(states_filter=("Stable",), types_filter=("classic",))


def own_group(scene: Scene) -> tuple[Request, ...]:
    return tuple(
        group_log.AcquireGroupOwnershipRequest(
            group_id=group, broker_id=BROKER_ID, broker_epoch=epoch, create=create
        )
        for group, epoch, create in (
            (scene.new, scene.broker_epoch, True), ("nobody", scene.broker_epoch, False),
            (scene.new, 0, True),
        )
    )  # fmt: skip


def log_offsets(scene: Scene) -> tuple[Request, ...]:
    ask = group_log.CommitGroupOffsetsRequest
    partition = ask.Commit.Topic.Partition(
        partition_index=0, committed_offset=1, leader_epoch=-1, metadata="note", expire_at_ms=-1
    )
    topic = ask.Commit.Topic(topic_name="t", topic_id=scene.topic_id, partitions=(partition,))
    commit = ask.Commit(generation=-1, member_id="", topics=(topic,))
    return tuple(
        ask(group_id=group, ownership_epoch=epoch, sequence=1, commits=(commit,))
        for group, epoch in ((OWNED, scene.ownership_epoch), ("nobody", 5))
    )


def log_generation(scene: Scene) -> tuple[Request, ...]:
    ask = group_log.CommitGroupGenerationRequest
    one = GroupGenerationRecord.Member(
        member_id="m", group_instance_id=None, client_id="c", client_host="/127.0.0.1",
        session_timeout_ms=10_000, rebalance_timeout_ms=10_000, subscription=b"s", assignment=b"a",
    )  # fmt: skip
    return tuple(
        ask(
            group_id=group, ownership_epoch=epoch, sequence=2, generation=1,
            protocol_type="consumer", protocol_name="range", leader="m", members=(one,),
        )
        for group, epoch in ((OWNED, scene.ownership_epoch), ("nobody", 5))
    )  # fmt: skip


def log_state(_: Scene) -> tuple[Request, ...]:
    ask = group_log.FetchGroupStateRequest
    topic = ask.Topic(topic_name="t", partitions=(0, 9))
    return (
        ask(group_id=GROUP, topics=(topic,)),
        ask(group_id=OWNED, topics=None, with_members=True),
        ask(group_id="nobody", topics=None),
    )


def remove_group(scene: Scene) -> tuple[Request, ...]:
    ask = group_log.RemoveGroupRequest
    return tuple(ask(group_id=group) for group in ("nobody", OWNED, scene.new))


def delete_offsets(_: Scene) -> tuple[Request, ...]:
    topic = groups.OffsetDeleteRequest.OffsetDeleteRequestTopic
    topics = tuple(
        topic(
            name=name,
            partitions=tuple(topic.OffsetDeleteRequestPartition(partition_index=i) for i in (1, 9)),
        )
        for name in ("t", "nowhere")
    )
    return tuple(
        groups.OffsetDeleteRequest(group_id=group, topics=topics)
        for group in (GROUP, MEMBERS, "nobody", "")
    )


def remove_offsets(scene: Scene) -> tuple[Request, ...]:
    ask = group_log.RemoveGroupOffsetsRequest
    topics = (ask.Topic(topic_name="t", partitions=(0,)),)
    return tuple(
        ask(group_id=OWNED, ownership_epoch=epoch, sequence=1_000, topics=topics)
        for epoch in (scene.ownership_epoch, 0)
    )


def log_transactional_offsets(scene: Scene) -> tuple[Request, ...]:
    ask = group_log.CommitTransactionalOffsetsRequest
    kind = group_log.CommitGroupOffsetsRequest.Commit.Topic
    partition = kind.Partition(
        partition_index=0, committed_offset=1, leader_epoch=-1, metadata="note", expire_at_ms=-1
    )
    commit = ask.Commit(
        producer_id=1, producer_epoch=0, transaction_number=0, generation=-1, member_id="",
        topics=(kind(topic_name="t", topic_id=scene.topic_id, partitions=(partition,)),),
    )  # fmt: skip
    return tuple(
        ask(group_id=OWNED, ownership_epoch=epoch, sequence=2_000, commits=(commit,))
        for epoch in (scene.ownership_epoch, 0)
    )


def write_group_markers(_: Scene) -> tuple[Request, ...]:
    return (
        group_log.WriteGroupMarkersRequest(
            producer_ids=(1, 2), transaction_numbers=(0, 5), committed=(True, False)
        ),
    )
