"""How much can one controller decide, and how much does it hold up?

    python -m bench.bench_controller [--tiny]

One process, no disk and no network: the real machine, leader and requests on a log in memory, so
what is measured is the controller's own Python. Requests are encoded and decoded as on the wire.

- create: topics of 10 partitions in requests of 100, with a heartbeat in every turn between; topics
  a second, and the p99 of a heartbeat meanwhile beside the p99 of one on an idle controller
- load: their checkpoint into a new machine; the longest slice
- image: bytes of it (tracemalloc), and one change of one partition
- heartbeats: CPU of the leader for 1,000 brokers that beat every 2 s

Times are CPU time of the one thread: what others on the machine do does not show.
"""

from __future__ import annotations

import argparse
import gc
import platform
import subprocess
import time
import tracemalloc
from typing import Any, Final
from uuid import UUID

from coordinator.controller.apply import ImageEdit
from coordinator.controller.checkpoint import image_records
from coordinator.controller.machine import ControllerMachine
from raft.driver.node import GC_THRESHOLDS
from records.codec import decode_message, encode_message
from records.frame import encode_record
from records.metadata import PartitionChangeRecord
from records.rpc.base import Request
from records.rpc.brokers import BrokerHeartbeatRequest
from records.rpc.topics import CreateTopicsRequest
from tests.coordinator.controller.world import World, batches_of, creation, load, registration

TOPICS: Final = 10_000
PARTITIONS: Final = 10
TOPICS_OF_REQUEST: Final = 100
BROKERS: Final = 1_000
BEAT_INTERVAL_S: Final = 2.0
IDLE_BEATS: Final = 2_000


def travel(request: Request) -> Request:
    """Encode a request and decode it again, as if it came from the network."""
    version = request.schema().versions.last
    return decode_message(type(request), encode_message(request, version), version)


def ask(world: World, request: Request) -> Any:
    """Send a request to the controller, encode the response, and return the response."""
    answer = world.ask(travel(request))
    encode_message(answer, answer.schema().versions.last)
    return answer


def beat(broker_id: int, epoch: int) -> BrokerHeartbeatRequest:
    return BrokerHeartbeatRequest(
        broker_id=broker_id,
        broker_epoch=epoch,
        current_metadata_offset=2**40,
        want_fence=False,
        want_shut_down=False,
    )


def p99(times: list[float]) -> float:
    return sorted(times)[int(len(times) * 0.99)]


def create(topics: int) -> World:
    """Create topics with heartbeats in between, and print the topics per second."""
    world = World().elect()
    (epoch, *_) = world.register(1, 2, 3)
    idle = []
    for _ in range(IDLE_BEATS):
        begin = time.thread_time()
        ask(world, beat(1, epoch))
        idle.append(time.thread_time() - begin)
    busy: list[float] = []
    requests = []
    for first in range(0, topics, TOPICS_OF_REQUEST):
        named = range(first, min(topics, first + TOPICS_OF_REQUEST))
        entries = tuple(creation(f"topic-{i}", PARTITIONS, factor=3).topics[0] for i in named)
        requests.append(CreateTopicsRequest(topics=entries))
    begin = time.thread_time()
    for request in requests:
        sent = world.send(travel(request))
        while not sent:
            started = time.thread_time()
            world.step()  # what the heartbeat comes in the middle of, and waits for
            answered = world.send(travel(beat(1, epoch)))
            while not answered and world.step():
                pass
            busy.append(time.thread_time() - started)
        encode_message(sent[0], 7)
    seconds = time.thread_time() - begin
    print(f"create    {topics / seconds:10,.0f} topics/s, {PARTITIONS} partitions each")
    print(
        f"heartbeat p99 {p99(idle) * 1e3:.2f} ms idle, {p99(busy) * 1e3:.2f} ms while creating "
        "(a turn of creation among them)"
    )
    return world


def measure_load(world: World) -> None:
    """Measure and print the time to load a checkpoint of the world's metadata image."""
    values = [encode_record(record) for record in image_records(world.image)]
    batches = batches_of(values)
    machine = ControllerMachine()
    slices = []
    begin = started = time.thread_time()
    for _ in machine.load(world.machine.applied, batches):
        now = time.thread_time()
        slices.append(now - started)
        started = now
    slices.append(time.thread_time() - started)  # the last one publishes the image
    seconds = time.thread_time() - begin
    size = sum(map(len, values))
    print(
        f"load      {len(values):10,} records ({size / 1e6:.1f} MB) in {seconds:.2f} s, "
        f"longest slice {max(slices, default=0) * 1e3:.1f} ms"
    )
    gc.collect()
    tracemalloc.start()
    held = ControllerMachine()
    load(held, world.machine.applied, values)
    partitions = sum(len(topic.partitions) for topic in held.image.iter_topics())
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    print(f"image     {size / 1e6:10.1f} MB for {partitions:,} partitions")


def measure_change(world: World) -> None:
    """Measure and print the time to change one partition in a large metadata image."""
    image = world.image
    topic_id: UUID = next(t.topic_id for t in image.iter_topics() if not t.is_internal)
    rounds = 2_000
    begin = time.thread_time()
    for _ in range(rounds):
        edit = ImageEdit(image)
        edit.apply(PartitionChangeRecord(partition_id=0, topic_id=topic_id, isr=(1,)))
        image = edit.publish(image.offset, image.epoch)
    print(f"change    {(time.thread_time() - begin) / rounds * 1e6:10.1f} us for one partition")


def measure_heartbeats(brokers: int) -> None:
    """Measure and print the controller's CPU time for heartbeats of idle brokers."""
    world = World().elect()
    epochs = [ask(world, registration(i)).broker_epoch for i in range(brokers)]
    for i, epoch in enumerate(epochs):
        ask(world, beat(i, epoch))
    rounds = 5
    begin = time.thread_time()
    for _ in range(rounds):
        answers = [world.send(travel(beat(i, epoch))) for i, epoch in enumerate(epochs)]
        world.run()
        for (answer,) in answers:
            encode_message(answer, 1)
        world.pass_ms(int(BEAT_INTERVAL_S * 1_000), tick_ms=100)
    used = (time.thread_time() - begin) / rounds
    print(
        f"beats     {used / BEAT_INTERVAL_S:10.1%} of a core for {brokers:,} brokers "
        f"every {BEAT_INTERVAL_S:.0f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="small sizes, to see that it runs")
    tiny = parser.parse_args().tiny
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)  # as in a node
    print(f"commit {commit or 'unknown'}, Python {platform.python_version()}, {platform.machine()}")
    world = create(200 if tiny else TOPICS)
    measure_load(world)
    measure_change(world)
    measure_heartbeats(20 if tiny else BROKERS)


if __name__ == "__main__":
    main()
