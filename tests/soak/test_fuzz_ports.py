"""Damaged requests of every api at every version, sent to both ports of whole nodes.

    ESKER_SOAK_SECONDS=600 pytest -m soak -s tests/soak/test_fuzz_ports.py

A request that decodes is answered, each other one closes its own connection. No node ends, no task
of a node fails, and afterwards a topic can be created and written to. `ESKER_FIRST_SEED` selects
other damage.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

import pytest

from coordinator.controller.client import error_codes
from raft.net import NetError, connect
from raft.net.rpc import request_kind
from records.codec import encode_message
from records.rpc.topics import CreateTopicsRequest
from tests.examples import first_seed
from tests.fuzz.mutation import mutated
from tests.versions.nodes import BROKER, LEADER, Nodes
from tests.versions.requests import REALISTIC, set_up
from tests.versions.requests_clients import produce_records
from tests.versions.scene import Scene
from tests.versions.shapes import at_version

pytestmark = pytest.mark.soak

SECONDS: Final = float(os.environ.get("ESKER_SOAK_SECONDS", "60"))
ANSWER_MS: Final = 200  # some requests wait for more than a test has time for
LEFT_OUT: Final = {52, 53, 54}  # votes: a right one, sent as a peer, may depose the leader
SHARE_AS_IT_IS: Final = 0.1


async def send_damaged(nodes: Nodes, scene: Scene, rng: Random, seconds: float) -> int:
    """Send damaged requests until the time is over, and return how many."""
    asked = {
        listener: [
            (key, version)
            for key, versions in (await nodes.announced(listener)).items()
            for version in versions
            if key in REALISTIC and key not in LEFT_OUT
        ]
        for listener in (BROKER, LEADER)
    }
    count, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        listener = rng.choice((BROKER, LEADER))
        connection = await connect("127.0.0.1", nodes.ports[listener])
        waiting = []
        for _ in range(20):
            key, version = rng.choice(asked[listener])
            here = replace(scene, listener=listener, version=version)
            request = rng.choice(REALISTIC[key](here))
            if version not in request.schema().versions:
                continue  # Produce is announced from version 0 on, for old clients of librdkafka
            request = at_version(request, version)
            body = encode_message(request, version)
            if rng.random() > SHARE_AS_IT_IS:
                body = mutated(body, rng)
            if connection.closed:
                break
            kind = request_kind(type(request), version)
            waiting.append(connection.request(kind, body, timeout_ms=ANSWER_MS))
            count += 1
        for answer in waiting:
            with contextlib.suppress(NetError):
                await answer
        connection.close()
        assert not nodes.dead(), nodes.dead()
    return count


@pytest.mark.timeout(SECONDS + 240)
def test_nodes_still_serve_requests_after_damaged_requests_of_every_api_version(
    tmp_path: Path,
) -> None:
    seed = first_seed()
    print(f"seed {seed}")

    async def main() -> int:
        async with Nodes(tmp_path) as nodes:
            scene = await set_up(nodes)
            count = await send_damaged(nodes, scene, Random(seed), SECONDS)
            topic = CreateTopicsRequest.CreatableTopic(
                name="afterwards",
                num_partitions=1,
                replication_factor=1,
                assignments=(),
                configs=(),
            )
            created = await nodes.ask(BROKER, CreateTopicsRequest(topics=(topic,)), 7)
            assert error_codes(created) == {0}, created
            after = replace(scene, topic="afterwards")
            produced = await nodes.ask(BROKER, produce_records(after)[0], 9)
            assert error_codes(produced) == {0}, produced
            assert not nodes.dead(), nodes.dead()
        return count

    print(f"{asyncio.run(main())} requests in {SECONDS:.0f} s")
