"""No step of the controller's loop handles more than a bounded number of partitions."""

from __future__ import annotations

from coordinator.controller.leader import BATCH_RECORDS
from coordinator.controller.requests import SLICE_PARTITIONS
from records.metadata import PartitionRecord
from records.rpc.topics import CreateTopicsRequest
from tests.coordinator.controller.test_leader import log_batches
from tests.coordinator.controller.world import World, creation


def partitions_of(world: World) -> list[int]:
    """Return the number of new partitions in each batch of the log."""
    return [
        sum(isinstance(record, PartitionRecord) for record in batch)
        for batch in log_batches(world.log)
    ]


def test_a_controller_step_decides_and_applies_at_most_one_slice() -> None:
    world = World().elect()
    world.register(1, 2, 3)
    before = len(partitions_of(world))
    topics = tuple(creation(f"t-{i}", 10).topics[0] for i in range(100))
    answers = world.send(CreateTopicsRequest(topics=topics))
    decided, most = sum(partitions_of(world)), 0
    while world.step():
        now = sum(partitions_of(world))
        most, decided = max(most, now - decided), now
    assert {topic.error_code for topic in answers[0].topics} == {0}
    created = partitions_of(world)[before:]
    assert sum(created) == 1_000
    assert most == max(created) == SLICE_PARTITIONS


def test_a_controller_applies_the_creation_of_a_large_topic_in_slices() -> None:
    world = World().elect()
    world.register(1)
    assert world.create("large", 2_000).topics[0].error_code == 0
    assert max(map(len, log_batches(world.log))) == BATCH_RECORDS
