"""Two real brokers and a real quorum, and half a minute of requests of any content.

`tests/diskless/test_hostile_clients.py` sends each request once to a broker whose cluster is in
memory; here they come as they please, to both, and what they ask for is really done: topics are
made and deleted, settings changed, groups joined.

Source: invariant 10 (docs/design/invariants.md).
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from random import Random
from typing import Final

import pytest

from records.codec import encode_message
from records.rpc import API
from records.rpc.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from records.rpc.produce import ProduceResponse
from tests.clients.cluster import EskerCluster
from tests.diskless.broker_world import ask_at
from tests.diskless.nonsense import Nonsense
from tests.diskless.test_hostile_clients import UNREGISTER_BROKER, framed, produce
from tests.examples import seeds
from tests.waiting import wait_until_async

pytestmark = pytest.mark.soak

REQUESTS: Final = 6_000
LOOK_EVERY: Final = 100
OURS: Final = re.compile(r"handler_failed|closed=invariant|Traceback")
RETRIABLE: Final = {0, 3, 5, 6, 7, 19, 100}  # the topic may just have been deleted

_named = MetadataRequest.MetadataRequestTopic


async def still_served(port: int) -> None:
    """A well-behaved client gets metadata, and its record in, at the first or a later attempt."""
    metadata = MetadataRequest(topics=(_named(name="t"),))

    async def taken() -> bool:
        await ask_at(port, metadata, MetadataResponse, 12)
        answer = await ask_at(port, produce(b"good"), ProduceResponse, 9)
        code = answer.responses[0].partition_responses[0].error_code
        assert code in RETRIABLE, f"error {code}"
        return not code

    await wait_until_async(taken, "a record is taken")


async def throw(port: int, frame: bytes, patience_s: float) -> None:
    """Send it, maybe hear what is answered, and go."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(frame)
        await asyncio.wait_for(reader.read(4), patience_s)
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.close()


async def storm(ports: list[int], random: Random) -> None:
    versions = await ask_at(ports[0], ApiVersionsRequest(), ApiVersionsResponse, 0)
    served = [one for one in versions.api_keys if one.api_key != UNREGISTER_BROKER]
    metadata = MetadataRequest(topics=(_named(name="t"),))
    found = await ask_at(ports[0], metadata, MetadataResponse, 12)
    nonsense = Nonsense(random, ("t", "g"), (found.topics[0].topic_id,))
    for number in range(REQUESTS):
        api = random.choice(served)
        kind = API[api.api_key].request
        first = max(api.min_version, kind.schema().versions.first)
        version = random.randint(first, api.max_version)
        body = encode_message(nonsense.request(kind, version), version)
        if random.random() < 0.4:
            body = nonsense.damaged(body)
        frames = framed(api.api_key, version, body) * random.choice((1, 1, 3))
        await throw(random.choice(ports), frames, random.choice((0.01, 0.1)))
        if number % LOOK_EVERY == 0:
            for port in ports:
                await still_served(port)


@pytest.mark.parametrize("seed", seeds(1))
def test_brokers_and_controllers_keep_running_after_malformed_client_requests(
    seed: int, tmp_path: Path
) -> None:
    print(f"reproduce: ESKER_FIRST_SEED={seed} pytest -m soak {__file__}")
    with EskerCluster(tmp_path / "cluster", brokers=2) as cluster:
        cluster.start()
        asyncio.run(storm([port for _, port in cluster.brokers], Random(seed)))
        cluster.check_alive()
        for node in cluster.ports:
            bad = [line for line in cluster.output(node).splitlines() if OURS.search(line)]
            assert not bad, f"node {node}: {bad[:5]}"
