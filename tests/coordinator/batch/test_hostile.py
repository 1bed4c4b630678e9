"""Whatever is asked of a coordinator is answered, and no state comes of it that cannot be.

Requests of every kind with any numbers in them, about topics, leases and objects that are there and
some that are not, to the quorum's coordinator and the one in memory: both say the same, in the same
states, and neither fails at a decision.

Source: invariant 10 (docs/design/invariants.md).
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from msgspec import structs

from coordinator.batch.calls import CALLS
from coordinator.batch.memory import InMemoryState
from coordinator.errors import CoordinatorError
from records.rpc.batch_coordinator import CommitBatch
from records.types import ZERO_UUID
from tests.coordinator.batch.actors import OTHER_TOPIC, TOPIC, Broker, batch, create
from tests.coordinator.batch.quorum_world import QuorumWorld, Restart
from tests.coordinator.batch.subjects import KEYS, START_MS, MemoryWorld
from tests.records.strategies import Special, messages

pytestmark = pytest.mark.slow

INT8, INT16 = st.integers(-(2**7), 2**7 - 1), st.integers(-(2**15), 2**15 - 1)
INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)


@st.composite
def batches(draw: st.DrawFn) -> tuple[CommitBatch, ...]:
    """Mostly plausible batches: one behind the other, a producer's in sequence or not."""
    made, place = [], 0
    for _ in range(draw(st.integers(0, 4))):
        one = batch(
            place + draw(st.sampled_from((0, 0, 0, 7, -1))),
            draw(st.sampled_from((1, 2, 5, 2**28, 2**28 + 1, 0))),
            size=draw(st.sampled_from((1, 100, 2**31 - 1, 0))),
            time=draw(st.sampled_from((-2, -1, 0, START_MS, 2**63 - 1))),
            append_time=draw(st.booleans()),
            producer=draw(st.sampled_from((-1, -1, 3, 4, 2**63 - 1))),
            epoch=draw(st.sampled_from((0, 0, 1, 32767))),
            first=draw(st.sampled_from((0, 0, 1, 2, 2**31 - 1))),
        )
        if draw(st.integers(0, 9)) == 0:
            wild = {"producer_epoch": INT16, "base_sequence": INT32, "producer_id": INT64}
            name = draw(st.sampled_from(sorted(wild)))
            one = one._replace(**{name: draw(wild[name])})
        made.append(one)
        place = min(one.byte_offset + max(one.size, 0), 2**62)
    return tuple(made)


SMALL: Final = st.integers(-1, 3) | INT32
KEY: Final = st.sampled_from([KEYS.key(i) for i in (0, 1, 2, 5, 9, 40, 10**6)]) | st.text(
    max_size=4
)
SENSIBLE: Final[Special] = (
    ("coordinator_partition", st.just(0)),
    ("topic_id", st.sampled_from((TOPIC, TOPIC, OTHER_TOPIC, ZERO_UUID))),
    ("topic_ids", st.just(()) | st.just((OTHER_TOPIC,)) | st.just((OTHER_TOPIC, ZERO_UUID))),
    ("topic_name", st.sampled_from(("orders", "orders", "other", ""))),
    ("num_partitions", st.sampled_from((1, 2, 3, 0, -1, 2**31 - 1))),
    ("restored", st.lists(SMALL, max_size=2).map(tuple)),
    ("partition_index", st.integers(0, 2) | INT32),
    ("offset", st.sampled_from((-1, 0, 1, 3, 9)) | INT64),
    ("log_start_offset", st.sampled_from((0, 1, 3, 9)) | INT64),
    ("timestamp", st.integers(-6, 2) | INT64),
    ("from_offset", st.integers(-1, 5) | INT64),
    ("max_bytes", st.sampled_from((0, 1, 2**20)) | INT32),
    ("lease_id", st.integers(0, 3) | INT64),
    ("broker_id", st.sampled_from((1, 1, 1, 2)) | INT32),
    ("broker_epoch", st.sampled_from((1, 1, 1, 2)) | INT64),
    ("controller_epoch", st.sampled_from((1, 1, 2)) | INT32),
    ("object_count", st.sampled_from((1, 10, 10_000)) | INT32),
    ("object_id", st.integers(0, 40) | INT64),
    ("object_size", st.sampled_from((1_000, 2**40)) | INT64),
    ("object_format", st.just(1) | INT8),
    ("end_object_id", st.integers(-1, 40) | INT64),
    ("batches", batches()),
    ("object_key", KEY),
    ("object_keys", st.lists(KEY, max_size=3).map(tuple)),
    ("cluster_id", st.just(KEYS.cluster_id) | st.text(max_size=3)),
    ("expires_at_ms", st.just(START_MS + 10**6) | INT64),
    ("limit", st.sampled_from((-1, 2**62)) | INT64),
    ("reason", st.integers(0, 3) | INT8),
    ("behind_barrier", st.booleans()),
)

DECIDED: Final = tuple(call.request for call in CALLS)
REQUEST: Final = st.sampled_from(DECIDED).flatmap(lambda one: messages(one, 0, special=SENSIBLE))


async def answer(world: Any, request: Any) -> Any:
    """The response or the error code, without log offsets, which differ between coordinators."""
    try:
        said = await world.coordinator.call(request)
        return structs.replace(said, applied_offset=0) if hasattr(said, "applied_offset") else said
    except CoordinatorError as error:
        return error.code


@settings(max_examples=25, deadline=None, database=None)
@given(st.lists(REQUEST, min_size=4, max_size=25))
def test_a_batch_coordinator_keeps_serving_after_any_sequence_of_requests(asked: list[Any]) -> None:
    async def story(path: Path) -> None:
        worlds = (QuorumWorld(path, restarts=(Restart.CHECKPOINT,)), MemoryWorld())
        for world in worlds:
            await create(world)
            broker = Broker(world)
            await broker.acquire(20)
            await broker.commit(batch(0, 3), batch(100, 2, producer=3))
        quorum, memory = worlds
        for request in asked:
            note(repr(request))
            said = [await answer(world, request) for world in worlds]
            assert said[0] == said[1]
            assert memory.coordinator.state.checkpoint() == quorum.values()
        for world in worlds:
            await world.advance(1_000)
            await world.restart()
        state = memory.coordinator.state
        state.check_invariants()
        assert InMemoryState.load(state.checkpoint(), 0).checkpoint() == quorum.values()
        await quorum.close()

    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger("esker.coordinator"), "exception", _fail)
        asyncio.run(story(Path(name)))


def _fail(message: str, *details: object, **_: object) -> None:
    raise AssertionError(f"{message} {details}")
