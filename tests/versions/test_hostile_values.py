"""What a stranger has written can be read at every version.

The longest strings, counters at the end of their range, times and offsets that nobody means: each
is refused or stored. Then everything is asked at every version, as in `test_every_version`.

Source: docs/design/hostile-input.md#values-that-cannot-be-read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest
from msgspec import structs

from diskless.produce import service as produce
from raft.net import NetError
from records.errors import RecordError
from records.groups import GroupGenerationRecord
from records.rpc import brokers, configs, group_log, groups, topics
from records.rpc.base import Request
from tests.versions import requests_clients as of_clients
from tests.versions import requests_coordinator as of_coordinator
from tests.versions import requests_groups as of_groups
from tests.versions import requests_quorum as of_quorum
from tests.versions.nodes import BROKER, BROKER_ID, FOLLOWER, LEADER, LISTENERS, MisreadError, Nodes
from tests.versions.requests import set_up
from tests.versions.scene import OWNED, Scene
from tests.versions.test_every_version import hear

pytestmark = pytest.mark.slow

LONG: Final = "x" * 32_767
"""The longest string of versions before the flexible ones; our codec takes no longer one in any."""

INT32, INT64 = 2**31 - 1, 2**63 - 1
GROUPS: Final = ("long-type", "long-name", "long-metadata")


def changed(request: Any, **more: Any) -> Any:
    return structs.replace(request, **more)


def hostile(scene: Scene) -> Iterator[tuple[str, Request, int]]:
    """Yield requests with hostile values: the listener, the request, its version."""
    join = of_groups.join(scene)[1]
    protocol = groups.JoinGroupRequest.JoinGroupRequestProtocol
    for group, more in (
        (GROUPS[0], {"protocol_type": LONG}),
        (GROUPS[1], {"protocols": (protocol(name=LONG, metadata=b""),)}),
        (GROUPS[2], {"reason": LONG, "rebalance_timeout_ms": INT32}),
    ):
        yield BROKER, changed(join, group_id=group, group_instance_id=group, **more), 9
    registered = changed(
        of_quorum.registration(scene)[0], broker_id=103, incarnation_id=UUID(int=103)
    )
    listener = registered.listeners[0]
    for more in (
        {"rack": LONG},
        {"listeners": (changed(listener, host=LONG),)},
        {"listeners": (changed(listener, name=LONG),)},
        {"previous_broker_epoch": INT64},
        {"features": (changed(registered.features[0], name=LONG),)},
    ):
        yield LEADER, changed(registered, **more), 4
    beat = of_quorum.broker_heartbeat(scene)[0]
    yield LEADER, changed(beat, current_metadata_offset=INT64), 1
    yield LEADER, changed(beat, broker_epoch=INT64), 1
    yield LEADER, brokers.AllocateProducerIdsRequest(broker_id=BROKER_ID, broker_epoch=INT64), 0
    topic = topics.CreateTopicsRequest.CreatableTopic
    for name, value in (("leader.replication.throttled.replicas", LONG), ("retention.ms", LONG)):
        made = topic(
            name=f"long-{name}", num_partitions=1, replication_factor=1, assignments=(),
            configs=(topic.CreatableTopicConfig(name=name, value=value),),
        )  # fmt: skip
        yield BROKER, topics.CreateTopicsRequest(topics=(made,), timeout_ms=5_000), 7
        resource = configs.IncrementalAlterConfigsRequest.AlterConfigsResource
        change = resource.AlterableConfig(name=name, config_operation=0, value=value)
        for kind, where in ((2, "t"), (4, str(BROKER_ID)), (4, "")):
            altered = resource(resource_type=kind, resource_name=where, configs=(change,))
            yield (
                BROKER,
                configs.IncrementalAlterConfigsRequest(resources=(altered,), validate_only=False),
                1,
            )
    (chunk, _) = of_coordinator.create_chunks(replace(scene, topic="chunked"))
    for more in ({"start_offset": INT64}, {"start_timestamp": INT64}, {"prev_stop_offset": INT64}):
        named = (changed(chunk.topic_partitions[0], **more),)  # type: ignore[attr-defined]
        yield BROKER, changed(chunk, topic_partitions=named), 0
    for producer_id, epoch in ((5, 32_767), (INT64, 0), (INT64, 32_767)):
        ids = of_clients.producer_ids(scene)[1]
        yield BROKER, changed(ids, producer_id=producer_id, producer_epoch=epoch), 4
    (offsets, *_) = of_groups.commit_offsets(scene)
    wanted = offsets.topics[0]  # type: ignore[attr-defined]
    for more in (
        {"committed_offset": INT64, "committed_leader_epoch": INT32},
        {"committed_offset": -INT64, "committed_leader_epoch": -INT32},
        {"committed_metadata": LONG},
    ):
        partition = changed(wanted.partitions[0], **more)
        yield BROKER, changed(offsets, topics=(changed(wanted, partitions=(partition,)),)), 9
    yield from hostile_owner(scene)


def hostile_owner(scene: Scene) -> Iterator[tuple[str, Request, int]]:
    """Yield what an owner of a group could write into its log."""
    member = GroupGenerationRecord.Member(
        member_id="m", group_instance_id=None, client_id="c", client_host="/127.0.0.1",
        session_timeout_ms=10_000, rebalance_timeout_ms=10_000, subscription=b"s", assignment=b"a",
    )  # fmt: skip
    generation = group_log.CommitGroupGenerationRequest(
        group_id=OWNED, ownership_epoch=scene.ownership_epoch, sequence=1, generation=1,
        protocol_type="consumer", protocol_name="range", leader="m", members=(member,),
    )  # fmt: skip
    topic = group_log.CommitGroupOffsetsRequest.Commit.Topic
    partition = topic.Partition(
        partition_index=0, committed_offset=1, leader_epoch=-1, metadata="", expire_at_ms=-1
    )
    sequence = 1
    for where in (LEADER, FOLLOWER):  # one of them leads the groups' log
        for more in (
            {"protocol_type": LONG},
            {"protocol_name": LONG},
            {"leader": LONG},
            *(
                {"members": (changed(member, **{name: LONG}),)}
                for name in ("member_id", "group_instance_id", "client_id", "client_host")
            ),
            {"members": (changed(member, session_timeout_ms=-1, rebalance_timeout_ms=INT32),)},
            {"generation": INT32, "members": ()},
        ):
            sequence += 1
            yield where, changed(generation, sequence=sequence, **more), 0
        for name, more in ((LONG, {}), ("t", {"metadata": LONG}), ("t", {"partition_index": -1})):
            sequence += 1
            named = topic(topic_name=name, partitions=(changed(partition, **more),))
            commit = group_log.CommitGroupOffsetsRequest.Commit(
                generation=-1, member_id="", topics=(named,)
            )
            yield (
                where,
                group_log.CommitGroupOffsetsRequest(
                    group_id=OWNED, ownership_epoch=scene.ownership_epoch, sequence=sequence,
                    commits=(commit,),
                ),
                0,
            )  # fmt: skip


def reads(version_of: dict[int, range]) -> Iterator[tuple[Request, int]]:
    """Yield what would show the groups and offsets above, at every version."""
    names = (*GROUPS, OWNED)
    for version in version_of[15]:
        yield groups.DescribeGroupsRequest(groups=names), version
    for version in version_of[9]:
        one = groups.OffsetFetchRequest.OffsetFetchRequestGroup
        for name in names:
            if version >= 2:
                yield (
                    groups.OffsetFetchRequest(
                        group_id=name if version < 8 else "",
                        topics=None if version < 8 else (),
                        groups=(one(group_id=name, topics=None),) if version >= 8 else (),
                    ),
                    version,
                )


@pytest.mark.parametrize("listeners", [(), pytest.param(LISTENERS, marks=pytest.mark.soak)])
def test_a_node_answers_requests_with_extreme_values_at_every_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listeners: tuple[str, ...]
) -> None:
    """`make test` reads what the groups have; `make soak` asks all listeners everything."""
    monkeypatch.setattr(produce, "TOPIC_WAIT_S", 0.01)

    async def main() -> list[str]:
        async with Nodes(tmp_path) as nodes:
            scene = await set_up(nodes)
            for listener, request, version in hostile(scene):
                try:
                    async with asyncio.timeout(5):
                        await nodes.ask(listener, request, version)
                except (NetError, RecordError, MisreadError) as error:
                    return [f"{str(request)[:300]}: {error}"]
                except TimeoutError:  # a member that waits for others
                    nodes.forget(listener)
                if nodes.dead():
                    return [f"{str(request)[:300]} ended a node: {nodes.dead()}"]
            again = changed(
                of_groups.join(scene)[1], group_id=OWNED, group_instance_id="after-the-last"
            )
            joined = await nodes.ask(BROKER, again, 9)
            assert (joined.error_code, joined.generation_id) == (0, 1), joined
            announced = await nodes.announced(BROKER)
            problems = []
            for request, version in reads(announced):
                try:
                    await nodes.ask(BROKER, request, version)
                except (NetError, RecordError, MisreadError) as error:
                    problems.append(f"{str(request)[:200]} v{version}: {error}")
                if nodes.dead():
                    return [*problems, f"{str(request)[:200]} v{version}: {nodes.dead()}"]
            for listener in listeners:
                problems += (await hear(nodes, replace(scene, listener=listener))).problems
            return problems

    problems = asyncio.run(main())
    assert not problems, "\n".join(problems[:20])
