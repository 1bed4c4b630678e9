"""Builds the response to a request that is refused as a whole: an error for each item it names.

A client reads errors where its api has them: at the top, or beside each topic, setting or chunk. So
NOT_CONTROLLER has as many forms as there are apis.

Source: the message schemas; upstream's `AbstractRequest.getErrorResponse`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from records.rpc import brokers
from records.rpc import topics as rpc
from records.rpc.base import Request, Response
from records.rpc.batch_coordinator import AssignPartitionToBatchCoordinatorResponse
from records.rpc.chunks import AlterChunkAssignmentsResponse, CreateChunksResponse
from records.rpc.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsResponse,
    IncrementalAlterConfigsResponse,
)
from records.rpc.security import (
    AlterClientQuotasResponse,
    AlterUserScramCredentialsResponse,
    CreateAclsResponse,
    DeleteAclsResponse,
)

_Form = Callable[[Any, int, str], Response]


def refuse(request: Request, code: int, message: str) -> Response:
    """Build the response that refuses every item of the request with this error."""
    key = request.schema().key
    assert key in _FORMS, f"no refusal of api key {key}"
    return _FORMS[key](request, code, message)


def _create_topics(request: Any, code: int, message: str) -> Response:
    result = rpc.CreateTopicsResponse.CreatableTopicResult
    return rpc.CreateTopicsResponse(
        topics=tuple(
            result(name=topic.name, error_code=code, error_message=message)
            for topic in request.topics
        )
    )


def _delete_topics(request: Any, code: int, message: str) -> Response:
    result = rpc.DeleteTopicsResponse.DeletableTopicResult
    by_name = [
        result(name=name, error_code=code, error_message=message) for name in request.topic_names
    ]
    by_state = [
        result(name=t.name, topic_id=t.topic_id, error_code=code, error_message=message)
        for t in request.topics
    ]
    return rpc.DeleteTopicsResponse(responses=(*by_name, *by_state))


def _create_partitions(request: Any, code: int, message: str) -> Response:
    result = rpc.CreatePartitionsResponse.CreatePartitionsTopicResult
    return rpc.CreatePartitionsResponse(
        results=tuple(
            result(name=topic.name, error_code=code, error_message=message)
            for topic in request.topics
        )
    )


def _describe_configs(request: Any, code: int, message: str) -> Response:
    result = DescribeConfigsResponse.DescribeConfigsResult
    return DescribeConfigsResponse(
        results=tuple(
            result(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=(),
            )
            for resource in request.resources
        )
    )


def _alter_configs(request: Any, code: int, message: str) -> Response:
    replaces = isinstance(request, AlterConfigsRequest)
    kind: Any = AlterConfigsResponse if replaces else IncrementalAlterConfigsResponse
    response: Response = kind(
        responses=tuple(
            kind.AlterConfigsResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in request.resources
        )
    )
    return response


def _create_chunks(request: Any, code: int, message: str) -> Response:
    result = CreateChunksResponse.TopicPartitionResult
    return CreateChunksResponse(
        results=tuple(
            result(
                topic_name=item.topic_name,
                partition_id=item.partition_id,
                error_code=code,
                error_message=message,
            )
            for item in request.topic_partitions
        )
    )


def _alter_chunks(request: Any, code: int, message: str) -> Response:
    result = AlterChunkAssignmentsResponse.AssignmentResult
    return AlterChunkAssignmentsResponse(
        results=tuple(
            result(
                topic_name=item.topic_name,
                partition_id=item.partition_id,
                start_offset=item.start_offset,
                error_code=code,
                error_message=message,
            )
            for item in request.chunks
        )
    )


def _assign(request: Any, code: int, message: str) -> Response:
    response = AssignPartitionToBatchCoordinatorResponse
    return response(
        responses=tuple(
            response.Topic(
                topic_id=topic.topic_id,
                partitions=tuple(
                    response.Topic.Partition(
                        partition_index=item.partition_index,
                        error_code=code,
                        error_message=message,
                    )
                    for item in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _alter_quotas(request: Any, code: int, message: str) -> Response:
    result = AlterClientQuotasResponse.EntryData
    return AlterClientQuotasResponse(
        entries=tuple(
            result(
                error_code=code,
                error_message=message,
                entity=tuple(
                    result.EntityData(entity_type=part.entity_type, entity_name=part.entity_name)
                    for part in entry.entity
                ),
            )
            for entry in request.entries
        )
    )


def _alter_scram(request: Any, code: int, message: str) -> Response:
    result = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
    names = dict.fromkeys(one.name for one in (*request.deletions, *request.upsertions))
    return AlterUserScramCredentialsResponse(
        results=tuple(result(user=name, error_code=code, error_message=message) for name in names)
    )


def _create_acls(request: Any, code: int, message: str) -> Response:
    result = CreateAclsResponse.AclCreationResult(error_code=code, error_message=message)
    return CreateAclsResponse(results=(result,) * len(request.creations))


def _delete_acls(request: Any, code: int, message: str) -> Response:
    result = DeleteAclsResponse.DeleteAclsFilterResult(
        error_code=code, error_message=message, matching_acls=()
    )
    return DeleteAclsResponse(filter_results=(result,) * len(request.filters))


_FORMS: Final[dict[int | None, _Form]] = {
    19: _create_topics,
    20: _delete_topics,
    30: _create_acls,
    31: _delete_acls,
    32: _describe_configs,
    33: _alter_configs,
    37: _create_partitions,
    44: _alter_configs,
    49: _alter_quotas,
    51: _alter_scram,
    57: lambda _, code, text: brokers.UpdateFeaturesResponse(error_code=code, error_message=text),
    62: lambda _, code, __: brokers.BrokerRegistrationResponse(error_code=code),
    63: lambda _, code, __: brokers.BrokerHeartbeatResponse(
        error_code=code, should_shut_down=False
    ),
    64: lambda _, code, text: brokers.UnregisterBrokerResponse(error_code=code, error_message=text),
    67: lambda _, code, __: brokers.AllocateProducerIdsResponse(
        error_code=code, producer_id_start=0, producer_id_len=0
    ),
    70: lambda _, code, text: brokers.ControllerRegistrationResponse(
        error_code=code, error_message=text
    ),
    1076: _create_chunks,
    1077: _alter_chunks,
    1099: _assign,
}
