"""The RPCs: a request and a response class for each api key, in one file a family.

`API` finds both by api key. Numbers from 1000 on are ours: a KIP's own number plus 1000 where
upstream has given that number to something else.
"""

from typing import Final, NamedTuple

from records.rpc import (
    backup,
    brokers,
    chunks,
    cluster,
    configs,
    descriptions,
    fetch,
    group_log,
    groups,
    list_offsets,
    objects,
    partitions,
    produce,
    quorum,
    replicas,
    rewriting,
    security,
    snapshots,
    telemetry,
    topics,
    transaction_log,
    transaction_markers,
    transactions,
)
from records.rpc import batch_coordinator as coordinator
from records.rpc.base import CoordinatorRequest, Request, Response


class Api(NamedTuple):
    """The two messages of one api key."""

    request: type[Request]
    response: type[Response]


def _collect() -> dict[int, Api]:
    declared = (*Request.__subclasses__(), *CoordinatorRequest.__subclasses__())
    requests = {cls.number(): cls for cls in declared if cls is not CoordinatorRequest}
    responses = {cls.number(): cls for cls in Response.__subclasses__()}
    assert requests.keys() == responses.keys(), "a request without a response, or the reverse"
    return {
        key: Api(requests[key], responses[key])
        for key in sorted(requests, key=lambda k: k or 0)
        if key is not None
    }


API: Final = _collect()

__all__ = [
    "API",
    "Api",
    "Request",
    "Response",
    "backup",
    "brokers",
    "chunks",
    "cluster",
    "configs",
    "coordinator",
    "descriptions",
    "fetch",
    "group_log",
    "groups",
    "list_offsets",
    "objects",
    "partitions",
    "produce",
    "quorum",
    "replicas",
    "rewriting",
    "security",
    "snapshots",
    "telemetry",
    "topics",
    "transaction_log",
    "transaction_markers",
    "transactions",
]
