"""Guards of the requests that the controller decides, for brokers and for the controller itself.

Source: upstream's ControllerApis; `coordinator.controller.guarding` for what a guard is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final
from uuid import UUID

from coordinator.controller.api_operations import CHECKS
from coordinator.controller.authorizer import ResourceType
from coordinator.controller.guarding import (
    AUTHORIZATION_FAILED,
    DENIED_CLUSTER,
    DENIED_GROUP,
    DENIED_TOPIC,
    Asked,
    Guard,
    Guarded,
    is_allowed,
    is_allowed_on_cluster,
    needs,
    refused,
    replace,
    without_denied,
)
from coordinator.controller.image import TOPIC
from coordinator.controller.refusals import refuse
from records.kafka_errors import ErrorCode
from records.rpc import topics
from records.rpc.base import Request, Response
from records.types import ZERO_UUID

CREATE_TOPICS: Final = 19
DELETE_TOPICS: Final = 20
DESCRIBE_CONFIGS: Final = 32
CREATE_PARTITIONS: Final = 37
GROUP: Final = 32  # the type of a group's settings

Refuse = Callable[[Any, int, str], Response]
"""Builds the response to a request that is refused as a whole, from an error and a message."""

_DENIED: Final = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def create_topics(request: topics.CreateTopicsRequest, asked: Asked) -> Guarded | None:
    """Deny topics that the client may not create, and hide settings that it may not describe."""
    creates = needs(CREATE_TOPICS, ResourceType.TOPIC)
    describes = needs(CREATE_TOPICS, ResourceType.TOPIC, 1)
    result = topics.CreateTopicsResponse.CreatableTopicResult
    times = Counter(topic.name for topic in request.topics)
    names = [topic.name for topic in request.topics if times[topic.name] == 1]
    denied = [name for name in names if not is_allowed(creates, asked.access, name)]
    hidden = {
        name
        for name in names
        if not asked.access.allows(describes.operation, describes.kind, name, logs=False)
    }.difference(denied)
    if not denied and not hidden:
        return None

    def hide(topic: Any) -> Any:
        if topic.error_code or topic.name not in hidden:
            return topic
        return replace(
            topic,
            topic_config_error_code=_DENIED,
            num_partitions=-1,
            replication_factor=-1,
            configs=(),
        )

    def finish(response: Any) -> Response:
        refusals = (
            result(name=name, error_code=_DENIED, error_message=DENIED_TOPIC) for name in denied
        )
        made: Response = replace(response, topics=(*map(hide, response.topics), *refusals))
        return made

    names_denied = set(denied)
    allowed = tuple(topic for topic in request.topics if topic.name not in names_denied)
    return Guarded(replace(request, topics=allowed), finish)


def delete_topics(request: topics.DeleteTopicsRequest, asked: Asked) -> Guarded | None:
    """Deny topics that the client may not delete, and hide names that it may not describe."""
    deletes = needs(DELETE_TOPICS, ResourceType.TOPIC)
    describes = needs(DELETE_TOPICS, ResourceType.TOPIC, 1)
    image, access = asked.image, asked.access
    result = topics.DeleteTopicsResponse.DeletableTopicResult
    denied: list[Any] = []

    def deny(name: str | None, topic_id: UUID = ZERO_UUID) -> None:
        denied.append(
            result(name=name, topic_id=topic_id, error_code=_DENIED, error_message=DENIED_TOPIC)
        )

    def is_name_allowed(name: str) -> bool:
        """Return whether the handler may say something about a name, existing or not."""
        if is_allowed(deletes, access, name):
            return True
        if image.topic(name) is None and is_allowed(describes, access, name):
            return True
        deny(name)
        return False

    def is_state_allowed(state: Any) -> bool:
        if state.name is not None:
            return bool(state.topic_id.int) or is_name_allowed(state.name)
        topic = image.topics.get(state.topic_id)
        if topic is None or is_allowed(deletes, access, topic.name):
            return True
        deny(topic.name if is_allowed(describes, access, topic.name) else None, state.topic_id)
        return False

    times = Counter(request.topic_names)
    by_name = tuple(n for n in request.topic_names if times[n] > 1 or is_name_allowed(n))
    by_state = tuple(state for state in request.topics if is_state_allowed(state))
    if not denied:
        return None

    def finish(response: Any) -> Response:
        made: Response = replace(response, responses=(*response.responses, *denied))
        return made

    return Guarded(replace(request, topic_names=by_name, topics=by_state), finish)


def create_partitions(request: topics.CreatePartitionsRequest, asked: Asked) -> Guarded | None:
    """Deny partitions of topics that the client may not alter."""
    check = needs(CREATE_PARTITIONS, ResourceType.TOPIC)
    result = topics.CreatePartitionsResponse.CreatePartitionsTopicResult
    times = Counter(topic.name for topic in request.topics)
    return without_denied(
        request,
        "topics",
        "results",
        lambda topic: times[topic.name] > 1 or is_allowed(check, asked.access, topic.name),
        lambda topic: result(name=topic.name, error_code=_DENIED, error_message=DENIED_TOPIC),
    )


_CONFIG_KINDS: Final = {TOPIC: ResourceType.TOPIC, GROUP: ResourceType.GROUP}
_CONFIG_TEXTS: Final = {
    ResourceType.TOPIC: DENIED_TOPIC,
    ResourceType.GROUP: DENIED_GROUP,
    ResourceType.CLUSTER: DENIED_CLUSTER,
}


def _configs(api_key: int) -> Guard:
    """Return the guard of an API about settings: each resource is of a topic, group or cluster."""
    response_field = "results" if api_key == DESCRIBE_CONFIGS else "responses"

    def kind_of(resource: Any) -> ResourceType:
        return _CONFIG_KINDS.get(resource.resource_type, ResourceType.CLUSTER)

    def guard(request: Any, asked: Asked) -> Guarded | None:
        def is_resource_allowed(resource: Any) -> bool:
            check = needs(api_key, kind_of(resource))
            if check.kind is ResourceType.CLUSTER:
                return is_allowed_on_cluster(check, asked.access)
            return is_allowed(check, asked.access, resource.resource_name)

        def deny(resource: Any) -> Any:
            kind = kind_of(resource)
            single = replace(request, resources=(resource,))
            response: Any = refuse(single, AUTHORIZATION_FAILED[kind], _CONFIG_TEXTS[kind])
            return getattr(response, response_field)[0]

        return without_denied(request, "resources", response_field, is_resource_allowed, deny)

    return guard


def cluster_guard(api_key: int, refuse_all: Refuse = refuse) -> Guard:
    """Return the guard of an API that needs one operation on the cluster.

    Args:  refuse_all: builds the response that refuses the whole request.
    """
    (check,) = CHECKS[api_key]

    def guard(request: Request, asked: Asked) -> Guarded | None:
        if is_allowed_on_cluster(check, asked.access):
            return None
        return refused(refuse_all(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, DENIED_CLUSTER))

    return guard


_CLUSTER: Final = (30, 31, 49, 51, 57, 64, 1076, 1077)

GUARDS: Final[Mapping[int, Guard]] = {
    CREATE_TOPICS: create_topics,
    DELETE_TOPICS: delete_topics,
    CREATE_PARTITIONS: create_partitions,
    **{key: _configs(key) for key in (DESCRIBE_CONFIGS, 33, 44)},
    **{key: cluster_guard(key) for key in _CLUSTER},
}
"""The guards of requests of clients, by api key."""
