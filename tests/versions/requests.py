"""What somebody would really ask, of every api key that a listener announces.

    for request in REALISTIC[3](scene): ...

In the newest form, with what older versions said otherwise beside it: `shapes.at_version` leaves
out what a version does not have. The answers are those with something in them: topics, groups,
objects and brokers that are there, and beside them some that are not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from msgspec import structs

from coordinator.controller.client import error_codes
from records.rpc import batch_coordinator as coordinator
from records.rpc import descriptions, group_log, objects, rewriting, topics
from tests.versions import requests_admin as of_admin
from tests.versions import requests_clients as of_clients
from tests.versions import requests_coordinator as of_coordinator
from tests.versions import requests_groups as of_groups
from tests.versions import requests_quorum as of_quorum
from tests.versions import requests_transactions as of_transactions
from tests.versions.nodes import BROKER, BROKER_ID, CLUSTER_ID, FOLLOWER, LEADER, Nodes
from tests.versions.requests_coordinator import by_partition, each_coordinator
from tests.versions.scene import (
    BENCH,
    MEMBERS,
    OWNED,
    YEAR_MS,
    Ask,
    Scene,
)

REALISTIC: Final[dict[int, Ask]] = {
    0: of_clients.produce_records,
    1: of_clients.fetch_records,
    2: of_clients.offsets_of,
    3: of_clients.metadata,
    8: of_groups.commit_offsets,
    9: of_groups.fetch_offsets,
    10: of_groups.find_coordinators,
    11: of_groups.join,
    12: of_groups.heartbeat,
    13: of_groups.leave,
    14: of_groups.sync,
    15: of_groups.describe_groups,
    16: of_groups.list_groups,
    17: of_admin.sasl_handshakes,
    18: of_clients.api_versions,
    19: of_clients.create_topics,
    20: of_clients.delete_topics,
    21: of_clients.delete_records,
    22: of_clients.producer_ids,
    23: of_clients.epochs,
    29: of_admin.describe_acls,
    30: of_admin.create_acls,
    31: of_admin.delete_acls,
    32: of_clients.describe_configs,
    33: of_clients.replace_configs,
    35: of_admin.log_dirs,
    36: of_admin.sasl_bytes,
    37: of_clients.create_partitions,
    38: of_admin.create_tokens,
    39: of_admin.renew_tokens,
    40: of_admin.expire_tokens,
    41: of_admin.describe_tokens,
    42: of_groups.delete_groups,
    43: of_admin.elections,
    44: of_clients.alter_configs,
    45: of_admin.reassignments,
    46: of_admin.list_reassignments,
    47: of_groups.delete_offsets,
    48: of_admin.describe_quotas,
    49: of_admin.alter_quotas,
    50: of_admin.describe_scram,
    51: of_admin.alter_scram,
    52: of_quorum.votes,
    53: of_quorum.begin_epochs,
    54: of_quorum.end_epochs,
    55: of_quorum.describe_quorum,
    57: of_quorum.update_features,
    58: of_quorum.envelopes,
    59: of_quorum.fetch_snapshots,
    60: of_quorum.describe_cluster,
    61: of_admin.describe_producers,
    62: of_quorum.registration,
    63: of_quorum.broker_heartbeat,
    64: of_quorum.unregister,
    65: of_admin.describe_transactions,
    66: of_admin.list_transactions,
    67: of_quorum.allocate_ids,
    70: of_quorum.controller_registration,
    71: of_admin.telemetry_subscriptions,
    72: of_admin.pushed_telemetry,
    74: of_admin.list_resources,
    75: of_clients.describe_partitions,
    1076: of_coordinator.create_chunks,
    1077: of_coordinator.alter_chunks,
    1093: of_coordinator.init_topics,
    1094: of_coordinator.commit_batches,
    1095: of_coordinator.delete_diskless_topics,
    1096: by_partition(coordinator.DeleteDisklessRecordsRequest, {"offset": 0}, {}),
    1097: by_partition(
        coordinator.FindBatchesRequest, {"offset": 0, "max_bytes": 1_000}, {"max_bytes": 1_000}
    ),
    1098: by_partition(
        coordinator.ListDisklessOffsetsRequest, {"timestamp": -1, "from_offset": 0}, {}
    ),
    1099: of_coordinator.assign,
    1100: of_coordinator.lease,
    1101: of_coordinator.release_lease,
    1102: each_coordinator(objects.GetFilesToDeleteRequest, lambda _: {"max_files": 10}),
    1103: each_coordinator(
        objects.DeleteFilesRequest, lambda scene: {"object_keys": (scene.object_key, "nowhere")}
    ),
    1104: each_coordinator(
        objects.IsSafeToDeleteFileRequest,
        lambda scene: {"object_key": scene.object_key},
        lambda _: {"object_key": "nowhere"},
    ),
    1105: each_coordinator(
        objects.DescribeDisklessTopicsRequest,
        lambda _: {"behind_barrier": True},
        lambda _: {"topic_names": ("t", "nowhere")},
    ),
    1106: each_coordinator(
        objects.DescribeDisklessObjectRequest,
        lambda scene: {"object_key": scene.object_key},
        lambda _: {"object_key": "nowhere"},
    ),
    1107: by_partition(coordinator.ReleaseDisklessPartitionsRequest, {}, {"controller_epoch": 0}),
    1108: by_partition(
        coordinator.ApplyRetentionRequest,
        {"log_start_offset": 1, "reason": 1, "limit": YEAR_MS},
        {"cluster_id": CLUSTER_ID, "expires_at_ms": lambda scene: scene.soon_ms},
    ),
    1109: each_coordinator(
        objects.MarkOrphansRequest,
        lambda scene: {
            "cluster_id": CLUSTER_ID,
            "expires_at_ms": scene.soon_ms,
            "object_keys": ("nowhere",),
        },
        lambda _: {"cluster_id": "another", "expires_at_ms": 0, "object_keys": ()},
    ),
    1110: of_coordinator.describe_snapshots,
    1111: of_coordinator.take_snapshot,
    1112: of_coordinator.describe_topics,
    1113: lambda _: (descriptions.DescribeBrokersRequest(),),
    1114: of_coordinator.describe_producers,
    1115: each_coordinator(objects.AcceptClockRequest, lambda _: {}),
    1116: of_coordinator.rewrite_lease,
    1117: of_coordinator.replace_runs,
    1118: of_coordinator.describe_cleaning,
    1119: each_coordinator(
        rewriting.ListDisklessObjectsRequest,
        lambda _: {"max_objects": 10},
        lambda _: {"max_objects": 0},
    ),
    24: of_transactions.add_partitions,
    25: of_transactions.add_offsets,
    26: of_transactions.end_transaction,
    27: of_admin.write_markers,
    28: of_groups.commit_transactional_offsets,
    1120: of_groups.own_group,
    1121: of_groups.log_offsets,
    1122: of_groups.log_generation,
    1123: of_groups.log_state,
    1124: of_groups.remove_group,
    1125: of_groups.remove_offsets,
    1126: of_groups.log_transactional_offsets,
    1127: of_groups.write_group_markers,
    1140: of_transactions.acquire,
    1141: of_transactions.init,
    1142: of_transactions.add,
    1143: of_transactions.end,
    1144: of_transactions.prove,
    1145: of_transactions.describe,
    1146: of_transactions.check,
    1130: of_coordinator.write_markers,
    1150: of_coordinator.report_lost_records,
}
"""By api key. What is announced and is not here fails a test."""


async def set_up(nodes: Nodes) -> Scene:
    """Make what the requests above name."""
    scene = Scene(listener=BROKER, version=0, leader_epoch=nodes.leader_epoch)
    topic = topics.CreateTopicsRequest.CreatableTopic
    made = tuple(
        topic(name=name, num_partitions=2, replication_factor=1, assignments=(), configs=())
        for name in ("t", "chunked", "grown-broker", "grown-leader", "grown-follower")
    )
    created = await nodes.ask(BROKER, topics.CreateTopicsRequest(topics=made), 7)
    scene.topic_id = next(one.topic_id for one in created.topics if one.name == "t")
    await nodes.ask(BROKER, of_clients.produce_records(scene)[0], 9)
    await nodes.ask(BROKER, of_groups.commit_offsets(scene)[0], 9)
    described = await nodes.ask(LEADER, descriptions.DescribeBrokersRequest(), 0)
    scene.broker_epoch = described.brokers[0].broker_epoch
    listed = await nodes.ask(LEADER, descriptions.DescribeTopicsRequest(), 0)
    scene.bench_id = next(one.topic_id for one in listed.topics if one.topic_name == BENCH)
    for place in (LEADER, FOLLOWER):
        leased = await nodes.ask(place, of_coordinator.lease(scene)[0], 0)
        if not leased.error_code:
            scene.lease_id, scene.object_id = leased.lease_id, leased.first_object_id
            found = await nodes.ask(place, REALISTIC[1097](scene)[0], 0)
            scene.object_key = found.responses[0].partitions[0].batches[0].object_key
        owning = group_log.AcquireGroupOwnershipRequest(
            group_id=OWNED, broker_id=BROKER_ID, broker_epoch=scene.broker_epoch,
            create=True,
        )  # fmt: skip
        owned = await nodes.ask(place, owning, 0)
        if not owned.error_code:
            scene.ownership_epoch = owned.ownership_epoch
    await _join(nodes, scene)
    await nodes.ask(LEADER, of_quorum.registration(scene)[0], 4)
    chunked = replace(scene, topic="chunked")
    await nodes.ask(BROKER, of_clients.produce_records(chunked)[0], 9)
    answer = await nodes.ask(BROKER, of_coordinator.create_chunks(chunked)[0], 0)
    assert error_codes(answer) == {0}, answer
    return scene


async def _join(nodes: Nodes, scene: Scene) -> None:
    """The members of groups that have one."""
    asked = of_groups.join(scene)[0]
    for group in (*(f"alone-{version}" for version in range(6)), MEMBERS):
        request = structs.replace(asked, group_id=group)  # type: ignore[type-var]
        joined = await nodes.ask(BROKER, request, 9)
        assert not joined.error_code, joined
        scene.member_id, scene.generation = joined.member_id, joined.generation_id
        scene.alone[group] = joined.member_id
    await nodes.ask(BROKER, of_groups.sync(scene)[0], 5)
