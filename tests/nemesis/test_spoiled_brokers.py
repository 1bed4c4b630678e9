"""Brokers with a mistake in them have anomalies in the histories of their clients.

The clients are librdkafka's, the broker runs in this process on a cluster in memory. Mistakes that
need deaths or pauses to show are in `test_brokers.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest

from coordinator.groups.outbox import GroupOutbox
from diskless.apis.partition_offsets import LATEST, ListedOffset, OffsetQuery, list_offsets
from diskless.fetch.runs_reader import read_runs_in_place
from records.batch import iter_batches
from records.kafka_errors import ErrorCode
from tests.diskless.broker_world import running_broker
from tests.diskless.cluster_world import ClusterWorld
from tests.nemesis.anomalies import Kind, find_anomalies
from tests.nemesis.broker_faults import read_partition
from tests.nemesis.group_traffic import GroupTraffic
from tests.nemesis.record_history import RecordHistory
from tests.nemesis.record_traffic import CALM, HASTY, Traffic
from tests.waiting import wait_until

TOPIC: Final = "records"
GROUP: Final = "readers"
PARTITIONS: Final = 2
RECORDS: Final = 300
LOOK_UPS: Final = 5


def histories_of(port: int) -> RecordHistory:
    """Let clients work against a broker until some records are acknowledged and read."""
    address = ("127.0.0.1", port)
    bootstrap = f"127.0.0.1:{port}"
    traffic = Traffic(bootstrap, TOPIC, PARTITIONS, (HASTY, CALM), watched=[address])
    history = traffic.history
    with GroupTraffic(bootstrap, TOPIC, GROUP, history) as group:
        group.settle()
        with traffic:
            wait_until(
                lambda: traffic.acknowledged > RECORDS and len(history.end_reads[0]) > LOOK_UPS,
                "clients work",
                state=lambda: (traffic.acknowledged, dict(history.end_reads), traffic.failed),
            )
        logs = {at: read_partition(address, TOPIC, at) for at in range(PARTITIONS)}
        # A broker that tells former ends may tell that a partition is empty.
        ends = {at: log[-1][0] + 1 for at, log in logs.items() if log}
        history.logs["the broker"] = logs
        traffic.read_up_to(ends)
        wait_until(lambda: group.has_had(ends), "the group has had everything")
    return history


def kinds_of_a_run() -> set[Kind]:
    async def story() -> RecordHistory:
        async with ClusterWorld(brokers=()) as world, running_broker(world) as broker:
            # The clients have a real clock, and the cluster a virtual one.
            await world.create(
                TOPIC, PARTITIONS, configs={"message.timestamp.type": "LogAppendTime"}
            )
            return await asyncio.to_thread(histories_of, broker.listeners["PLAIN"].port)

    return {anomaly.kind for anomaly in find_anomalies(asyncio.run(story()))}


def skip_the_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    async def spoiled(*words: Any, **named: Any) -> memoryview:
        data = await read_runs_in_place(*words, **named)
        assert isinstance(data, memoryview), "the batches of this traffic are small"
        first, *others = iter_batches(data)
        return data[first.header.size_bytes :] if others else data

    monkeypatch.setattr("diskless.fetch.service.read_runs_in_place", spoiled)


def tell_former_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    former: dict[Any, ListedOffset] = {}

    async def spoiled(
        cluster: Any, wanted: Sequence[OffsetQuery], *words: Any
    ) -> list[ListedOffset]:
        answers = []
        for query, found in zip(wanted, await list_offsets(cluster, wanted, *words), strict=True):
            is_end = query.timestamp == LATEST
            answers.append(former.get(query.place, found) if is_end else found)
            if is_end:
                former[query.place] = found
        return answers

    monkeypatch.setattr("diskless.apis.offsets.list_offsets", spoiled)


def forget_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled(
        _outbox: GroupOutbox, _commit: object, on_done: Callable[[ErrorCode], None]
    ) -> None:
        on_done(ErrorCode.NONE)

    monkeypatch.setattr(GroupOutbox, "commit_offsets", spoiled)


def test_the_anomaly_checker_finds_no_anomaly_in_the_client_history_of_an_unchanged_broker() -> (
    None
):
    assert kinds_of_a_run() == set()


@pytest.mark.parametrize(
    ("spoil", "kinds"),
    [
        (skip_the_first_batch, {Kind.POLL_SKIP, Kind.HOLE}),
        (tell_former_ends, {Kind.NOT_LINEARIZABLE}),
        (forget_commits, {Kind.OFFSETS_BACK}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_anomaly_checker_finds_the_anomalies_that_each_broken_broker_causes(
    monkeypatch: pytest.MonkeyPatch, spoil: Callable[[pytest.MonkeyPatch], None], kinds: set[Kind]
) -> None:
    spoil(monkeypatch)

    assert kinds_of_a_run() & kinds
