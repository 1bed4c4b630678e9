"""Builds the responses to requests of a broker that are refused as a whole.

Requests that the controller or a batch coordinator answers have theirs there
(`coordinator.controller.refusals`, `coordinator.batch.calls`), group requests theirs too.

Source: upstream's `AbstractRequest.getErrorResponse`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from coordinator.batch.calls import CALLS
from coordinator.batch.calls import refuse as refuse_call
from coordinator.controller import refusals
from records.rpc import configs, descriptions, quorum, replicas, security, transactions
from records.rpc.base import Request, Response

_OF_CALLS: Final = frozenset(call.api_key for call in CALLS)


def refuse(request: Request, code: int, message: str) -> Response:
    """Build the response that refuses the whole request with this error."""
    key = request.schema().key
    assert key is not None, f"not a request: {request}"
    if key in _OF_CALLS:
        call: Any = request
        refusal: Response = refuse_call(call, code, message)
        return refusal
    form = _FORMS.get(key)
    return refusals.refuse(request, code, message) if form is None else form(request, code, message)


def _elect(request: Any, code: int, message: str) -> Response:
    result = replicas.ElectLeadersResponse.ReplicaElectionResult
    return replicas.ElectLeadersResponse(
        error_code=code,
        replica_election_results=tuple(
            result(
                topic=topic.topic,
                partition_result=tuple(
                    result.PartitionResult(
                        partition_id=index, error_code=code, error_message=message
                    )
                    for index in topic.partitions
                ),
            )
            for topic in request.topic_partitions or ()
        ),
    )


def _reassign(request: Any, code: int, message: str) -> Response:
    response = replicas.AlterPartitionReassignmentsResponse
    topic_type = response.ReassignableTopicResponse
    return response(
        error_code=code,
        error_message=message,
        responses=tuple(
            topic_type(
                name=topic.name,
                partitions=tuple(
                    topic_type.ReassignablePartitionResponse(
                        partition_index=partition.partition_index,
                        error_code=code,
                        error_message=message,
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


def _describe_scram(request: Any, code: int, message: str) -> Response:
    response = security.DescribeUserScramCredentialsResponse
    result = response.DescribeUserScramCredentialsResult(  # without a name, as in Kafka
        user="", error_code=code, error_message=message, credential_infos=()
    )
    return response(
        error_code=code, error_message=message, results=(result,) * len(request.users or ())
    )


def _write_markers(request: Any, code: int, _: str) -> Response:
    result = transactions.WriteTxnMarkersResponse.WritableTxnMarkerResult
    topic_type = result.WritableTxnMarkerTopicResult
    return transactions.WriteTxnMarkersResponse(
        markers=tuple(
            result(
                producer_id=marker.producer_id,
                topics=tuple(
                    topic_type(
                        name=topic.name,
                        partitions=tuple(
                            topic_type.WritableTxnMarkerPartitionResult(
                                partition_index=index, error_code=code
                            )
                            for index in topic.partition_indexes
                        ),
                    )
                    for topic in marker.topics
                ),
            )
            for marker in request.markers
        )
    )


_FORMS: Final[dict[int, Callable[[Any, int, str], Response]]] = {
    27: _write_markers,
    29: lambda _, code, text: security.DescribeAclsResponse(
        error_code=code, error_message=text, resources=()
    ),
    35: lambda _, code, __: replicas.DescribeLogDirsResponse(error_code=code, results=()),
    43: _elect,
    45: _reassign,
    46: lambda _, code, text: replicas.ListPartitionReassignmentsResponse(
        error_code=code, error_message=text, topics=()
    ),
    48: lambda _, code, text: security.DescribeClientQuotasResponse(
        error_code=code, error_message=text, entries=None
    ),
    50: _describe_scram,
    55: lambda _, code, text: quorum.DescribeQuorumResponse(
        error_code=code, error_message=text, topics=()
    ),
    74: lambda _, code, __: configs.ListConfigResourcesResponse(
        error_code=code, config_resources=()
    ),
    1112: lambda _, code, text: descriptions.DescribeTopicsResponse(
        error_code=code, error_message=text
    ),
    1113: lambda _, code, text: descriptions.DescribeBrokersResponse(
        error_code=code, error_message=text
    ),
}
