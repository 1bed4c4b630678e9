"""Metrics by topic, partition and group: what they count, who tells them, how many there are."""

from __future__ import annotations

from uuid import UUID

from prometheus_client import CollectorRegistry, generate_latest

from diskless.topic_metrics import TopicCollector
from records.rpc import group_log as rpc
from records.rpc.topics import DeleteTopicsRequest, DeleteTopicsResponse
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.records_world import RecordsBroker, batch
from tests.diskless.virtual_time import run


def samples(broker: RecordsBroker, max_series: int = 1_000) -> dict[str, float]:
    """Return what a broker exports, by name and labels."""
    registry = CollectorRegistry()
    registry.register(TopicCollector(broker.cluster, broker.traffic, max_series))
    lines = generate_latest(registry).decode().splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in pairs if "_created" not in name}


def of(found: dict[str, float], name: str) -> dict[str, float]:
    """Return the samples of one metric by their labels."""
    return {key.removeprefix(name): value for key, value in found.items() if key.startswith(name)}


def test_traffic_is_counted_by_topic_and_a_deleted_topic_is_forgotten() -> None:
    async def story() -> None:
        async with ClusterWorld() as world:
            for name in ("orders", "clicks"):
                await world.create(name)
            broker = RecordsBroker(world, 1)
            await broker.produce("orders", 0, batch(1, 2, now_ms=world.wall_ms()))
            await broker.produce("clicks", 0, batch(3, now_ms=world.wall_ms()))
            read = await broker.fetch("orders", 0, 0)
            found = samples(broker)
            prefix = "kafka_server_broker_topic_metrics_"
            assert of(found, prefix + "messages_in_total") == {
                '{topic="orders"}': 2, '{topic="clicks"}': 1,
            }  # fmt: skip
            assert of(found, prefix + "bytes_out_total")['{topic="orders"}'] == len(
                read.records or b""
            )
            state = DeleteTopicsRequest.DeleteTopicState(name="clicks")
            deletion = DeleteTopicsRequest(topics=(state,), timeout_ms=1_000)
            await world.ask(deletion, DeleteTopicsResponse)
            assert list(of(samples(broker), prefix + "messages_in_total")) == ['{topic="orders"}']
            assert len(broker.traffic.bytes_in) == 1
            await broker.end()

    run(story)


def test_a_partitions_offsets_are_told_by_one_broker() -> None:
    async def story() -> None:
        async with ClusterWorld() as world:
            await world.register(2)
            await world.unfence(2)
            await world.create("t", 20)
            brokers = [RecordsBroker(world, number) for number in (1, 2)]
            await brokers[0].produce("t", 7, batch(1, 2, 3, now_ms=world.wall_ms()))
            told = [of(samples(broker), "kafka_log_log_log_end_offset") for broker in brokers]
            assert all(told), "each broker leads some"
            assert told[0].keys() & told[1].keys() == set()
            ends = told[0] | told[1]
            assert len(ends) == 20
            assert ends.pop('{partition="7",topic="t"}') == 3
            assert set(ends.values()) == {0}
            for broker in brokers:
                await broker.end()

    run(story)


def test_a_groups_lag_is_told_by_its_coordinator_and_not_for_a_topic_created_anew() -> None:
    async def story() -> None:
        async with ClusterWorld() as world:
            await world.register(2)
            topic, _ = await world.create("t"), await world.create("anew")
            owner, other = RecordsBroker(world, 1), RecordsBroker(world, 2)
            await owner.produce("t", 0, batch(1, 2, 3, now_ms=world.wall_ms()))
            acquired = await owner.cluster.ask_groups(
                rpc.AcquireGroupOwnershipRequest(
                    group_id="g",
                    broker_id=1,
                    broker_epoch=world.image.brokers[1].broker_epoch,
                    create=True,
                )
            )
            assert isinstance(acquired, rpc.AcquireGroupOwnershipResponse)
            commit = rpc.CommitGroupOffsetsRequest.Commit
            partition = commit.Topic.Partition(
                partition_index=0, committed_offset=1, leader_epoch=-1, metadata="",
                expire_at_ms=-1,
            )  # fmt: skip
            committed = await owner.cluster.ask_groups(
                rpc.CommitGroupOffsetsRequest(
                    group_id="g",
                    ownership_epoch=acquired.ownership_epoch,
                    sequence=1,
                    commits=(
                        commit(
                            generation=-1,
                            member_id="",
                            topics=(
                                commit.Topic(
                                    topic_name="t", topic_id=topic.topic_id, partitions=(partition,)
                                ),
                                commit.Topic(
                                    topic_name="anew",
                                    topic_id=UUID(int=9),
                                    partitions=(partition,),
                                ),
                            ),
                        ),
                    ),
                )
            )
            assert isinstance(committed, rpc.CommitGroupOffsetsResponse)
            assert committed.commit_errors == (0,), committed
            labels = '{group="g",partition="0",topic="t"}'
            found = samples(owner)
            assert of(found, "esker_group_lag") == {labels: 2}
            assert of(found, "esker_group_committed_offset") == {labels: 1}
            assert of(samples(other), "esker_group_lag") == {}
            await owner.end()
            await other.end()

    run(story)


def test_series_above_the_limit_are_left_out_and_said_to_be() -> None:
    async def story() -> None:
        async with ClusterWorld() as world:
            for name in ("quiet", "busy"):
                await world.create(name)
            broker = RecordsBroker(world, 1)
            await broker.produce("quiet", 0, batch(1, now_ms=world.wall_ms()))
            await broker.produce("busy", 0, batch(1, 2, 3, now_ms=world.wall_ms()))
            found = samples(broker, max_series=1)
            traffic = of(found, "kafka_server_broker_topic_metrics_messages_in_total")
            assert traffic == {'{topic="busy"}': 3}
            assert found['esker_broker_series_left_out{of="topics"}'] == 1
            assert found['esker_broker_series_left_out{of="groups"}'] == 0
            assert samples(broker, max_series=0) == {}
            await broker.end()

    run(story)
