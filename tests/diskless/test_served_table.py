"""The table of requests in docs/broker.md is generated: `pytest --rewrite` writes it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from raft.net.handlers import Served
from records.rpc import API
from tests.diskless.broker_world import running_broker
from tests.diskless.cluster_world import ClusterWorld

PAGE = Path(__file__).parents[2] / "docs" / "broker.md"
BEGIN, END = "<!-- served: begin -->\n", "<!-- served: end -->\n"

REMARKS = {
    0: "0-2 are refused (UNSUPPORTED_VERSION); announced because librdkafka compresses only then",
    1: "by names to 12, by topic ids from 13",
    3: "chunks (KIP-1114) in tagged fields",
    10: "groups; batch coordinators (key type 3, KIP-1164) from 4",
    18: "an unknown version is answered as 0, with error 35",
    22: "6 (two-phase commit) is not announced",
    24: "4 and 5 are sent between Kafka's brokers only",
    26: "5 and later raise the epoch (TV2)",
    17: "ILLEGAL_SASL_STATE",
    36: "ILLEGAL_SASL_STATE",
    29: "SECURITY_DISABLED without an authorizer",
    30: "SECURITY_DISABLED without an authorizer",
    31: "SECURITY_DISABLED without an authorizer",
    35: "one directory: the object store",
    38: "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED; 39 to 41 likewise",
    43: "ELECTION_NOT_NEEDED",
    45: "refused with a reason",
    46: "none",
    48: "from the image",
    49: "forwarded to the controller",
    50: "from the image",
    51: "forwarded to the controller",
    65: "by the broker that owns the id, from the log's leader",
    66: "of the ids that this broker should own, from its replica of the log",
    71: "not announced; no metric is subscribed to",
    72: "not announced; dropped",
    60: "brokers; the controllers' own listener describes them",
}


def served() -> dict[int, Served]:
    async def main() -> dict[int, Served]:
        async with ClusterWorld(brokers=()) as world, running_broker(world) as broker:
            return dict(broker.dispatchers["PLAIN"].served)

    return asyncio.run(main())


def table() -> str:
    rows = ["| key | request | versions | |\n", "| --- | --- | --- | --- |\n"]
    for key, one in sorted(served().items()):
        name = API[key].request.__name__.removesuffix("Request")
        versions = str(one.lowest) if one.lowest == one.highest else f"{one.lowest}-{one.highest}"
        rows.append(f"| {key} | {name} | {versions} | {REMARKS.get(key, '')} |\n")
    return "".join(rows)


def test_the_protocol_page_lists_the_served_requests(request: pytest.FixtureRequest) -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    shown, _, after = rest.partition(END)
    if request.config.getoption("--rewrite"):
        shown = table()
        PAGE.write_text(before + BEGIN + shown + END + after)
    assert shown == table(), "run it again with --rewrite, and look at the diff"
