"""From a request to its answer: decide, wait for the commit, then for the batch coordinators.

    requests.ask(message, send)      # `send` is called once, with the response

A topic exists once it is committed, and can be written to once its coordinators have committed it
too; whoever creates one is answered then. If that takes longer than the request allows, the answer
is REQUEST_TIMED_OUT, the topic stays, and its coordinators are told on.

A record that is committed proves that this node led. What wrote none is said behind the read
barrier: else a controller that was deposed, and has not heard of it, would say "it exists" or
"there is no such topic" of what the next one has changed. Only a heartbeat that is not refused is
answered at once: it says no more than that this node, while it leads, counts the broker's session.

Nothing here knows of sockets; `coordinator.controller.service` does.

Source: docs/design/controller.md; KIP-631; KIP-1114; KIP-1164.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, cast
from uuid import UUID

import msgspec

from coordinator.controller.decide.brokers import (
    heartbeat,
    register_broker,
    register_controller,
    unregister_broker,
)
from coordinator.controller.decide.chunks import alter_chunks, create_chunks
from coordinator.controller.decide.configs import alter_configs, describe_configs
from coordinator.controller.decide.context import Context, Decision
from coordinator.controller.decide.features import update_features
from coordinator.controller.decide.mapping import Move, Verdicts, check_moves
from coordinator.controller.decide.partitions import create_partitions
from coordinator.controller.decide.producer_ids import allocate_producer_ids
from coordinator.controller.decide.topics import create_topics, delete_topics
from coordinator.controller.handover import HandOver
from coordinator.controller.image import DISKLESS_METADATA, MetadataImage
from coordinator.controller.leader import Controller
from coordinator.controller.partition_moves import Moving
from coordinator.controller.reconciliation import hosted_counts
from coordinator.controller.refusals import refuse
from coordinator.errors import CoordinatorError
from records.chunks import TopicPartitionToBatchCoordinatorMapping
from records.kafka_errors import ErrorCode
from records.metadata import PartitionRecord, RemoveTopicRecord, TopicRecord
from records.rpc import brokers
from records.rpc import topics as rpc
from records.rpc.base import Request, Response
from records.rpc.batch_coordinator import AssignPartitionToBatchCoordinatorRequest
from records.rpc.chunks import AlterChunkAssignmentsRequest, CreateChunksRequest
from records.rpc.configs import DescribeConfigsRequest, IncrementalAlterConfigsRequest
from records.schema import MetadataRecord

MAX_WAIT_S: Final = 300.0

MOVE_WAIT_S: Final = 4.0
"""For two coordinators, where the request names no time itself: a client waits five seconds."""

PART_PARTITIONS: Final = 50
"""New partitions decided in one go, of a request that can be decided in parts."""

MAX_SPLIT_PARTITIONS: Final = 100_000

Send = Callable[[Response], None]
Barrier = Callable[[Callable[[BaseException | None], None]], object]
"""Tells, later, why this node is not known to lead still; None: it led when it was asked."""

_Created = rpc.CreateTopicsResponse.CreatableTopicResult
New = dict[UUID, tuple[str, dict[int, int]]]
"""Topics that got partitions: id -> (name, partitions at each coordinator)."""


class Requests:
    """Answers what the active controller is asked."""

    def __init__(
        self,
        controller: Controller,
        handover: HandOver,
        *,
        call_later: Callable[[float, Callable[[], None]], Any],
        monotonic_ms: Callable[[], int],
        barrier: Barrier,
        served: Counter[int] | None = None,
        leader_name: Callable[[], str] = lambda: "unknown",
    ) -> None:
        """
        Args:  barrier: of the cluster log.
               served: counts requests by api key, for KIP-631's ControllerRequestsRate.
               leader_name: who leads as far as this node knows, for messages.
        """
        self._controller = controller
        self._handover = handover
        self._call_later = call_later
        self._monotonic_ms = monotonic_ms
        self._barrier = barrier
        self._leader_name = leader_name
        self.served: Counter[int] = Counter() if served is None else served

    def ask(self, request: Request, send: Send) -> None:
        """Answer a request, now or later. `send` hears the response, exactly once."""
        key = request.schema().key
        assert key is not None
        self.served[key] += 1
        _ASK[type(request)](self, request, send)

    def _decide(
        self,
        request: Request,
        send: Send,
        decide: Callable[[Context], Decision],
        then: Callable[[Any], None] | None = None,
        *,
        is_beat: bool = False,
    ) -> None:
        """Decide; once that is certain, `then` goes on with the response, or it is sent.

        Args:  is_beat: urgent, and certain unless it is a refusal.
        """
        go_on = send if then is None else then
        wrote = False

        def judge(context: Context) -> Decision:
            nonlocal wrote
            decision = decide(context)
            wrote = bool(decision.records)
            return decision

        def done(outcome: Any) -> None:
            if isinstance(outcome, CoordinatorError):
                send(self._not_decided(request, outcome))
            elif wrote or (is_beat and not outcome.error_code):
                go_on(outcome)
            else:
                self._barrier(lambda lost: led(outcome, lost))

        def led(outcome: Any, lost: BaseException | None) -> None:
            if lost is None:
                go_on(outcome)
            else:
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE
                error = CoordinatorError(code, f"no read barrier: {lost}")
                send(self._not_decided(request, error))

        self._controller.submit(judge, done, name=type(request).__name__, urgent=is_beat)

    def _not_decided(self, request: Request, error: CoordinatorError) -> Response:
        if error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            text = "The controller changed: it is not known whether this was done."
            return refuse(request, ErrorCode.NOT_LEADER_OR_FOLLOWER, text)
        text = f"This node is not the active controller; the leader is {self._leader_name()}."
        if self._controller.active_epoch is not None:
            text = f"Nothing was done, ask again: {error.message}."
        return refuse(request, ErrorCode.NOT_CONTROLLER, text)

    # --- topics -------------------------------------------------------------------------------

    def _create_topics(self, request: rpc.CreateTopicsRequest, send: Send) -> None:
        """A large request is decided in parts, so that heartbeats are answered in between."""
        parts = split_creation(request)
        answers: dict[int, Any] = {}

        def gather(part: int) -> Send:
            def one(answer: Response) -> None:
                answers[part] = answer
                if len(answers) == len(parts):
                    every = (answers[i].topics for i in range(len(parts)))
                    topics = tuple(chain.from_iterable(every))
                    send(rpc.CreateTopicsResponse(topics=_as_one(topics)))

            return one

        for index, part in enumerate(parts):
            self._create_part(part, gather(index))

    def _create_part(self, request: rpc.CreateTopicsRequest, send: Send) -> None:
        made: New = {}

        def decide(context: Context) -> Decision:
            decision = create_topics(request, context)
            made.clear()
            made.update(new_partitions(decision.records, context.image))
            return decision

        def then(response: Any) -> None:
            def finish(errors: dict[str, ErrorCode]) -> None:
                send(_with_errors(response, "topics", errors))

            self._hand_over(made, request.timeout_ms, finish)

        self._decide(request, send, decide, then)

    def _create_partitions(self, request: rpc.CreatePartitionsRequest, send: Send) -> None:
        made: New = {}

        def decide(context: Context) -> Decision:
            decision = create_partitions(request, context)
            made.clear()
            made.update(new_partitions(decision.records, context.image))
            return decision

        def then(response: Any) -> None:
            def finish(errors: dict[str, ErrorCode]) -> None:
                send(_with_errors(response, "results", errors))

            self._hand_over(made, request.timeout_ms, finish)

        self._decide(request, send, decide, then)

    def _hand_over(
        self, made: New, timeout_ms: int, finish: Callable[[dict[str, ErrorCode]], None]
    ) -> None:
        """Tell the coordinators; `finish` hears which topics they do not have in time."""
        waiting = {name for name, _ in made.values()}
        errors: dict[str, ErrorCode] = {}
        timer: list[Any] = []
        finished = False

        def end() -> None:
            nonlocal finished
            if not finished:
                finished = True
                for handle in timer:
                    handle.cancel()
                finish(errors)

        def late() -> None:
            errors.update(dict.fromkeys(waiting, ErrorCode.REQUEST_TIMED_OUT))
            end()

        def teller(name: str) -> Callable[[ErrorCode], None]:
            def told(error: ErrorCode) -> None:
                waiting.discard(name)
                if error:
                    errors[name] = error
                if not waiting:
                    end()

            return told

        for topic_id, (name, counts) in list(made.items()):
            self._handover.create(topic_id, counts, name, teller(name))
        if not waiting:
            end()
        elif not finished:
            timer.append(self._call_later(min(MAX_WAIT_S, max(0, timeout_ms) / 1_000), late))

    def _delete_topics(self, request: rpc.DeleteTopicsRequest, send: Send) -> None:
        gone: dict[UUID, set[int]] = {}

        def decide(context: Context) -> Decision:
            decision = delete_topics(request, context)
            gone.clear()
            for record in decision.records:
                assert isinstance(record, RemoveTopicRecord)
                gone[record.topic_id] = set(hosted_counts(context.image.topics[record.topic_id]))
            return decision

        def then(response: Any) -> None:
            for topic_id, coordinators in gone.items():
                self._handover.delete(topic_id, coordinators)
            send(response)

        self._decide(request, send, decide, then)

    # --- brokers ------------------------------------------------------------------------------

    def _register_broker(self, request: brokers.BrokerRegistrationRequest, send: Send) -> None:
        sessions = self._controller.sessions

        def decide(context: Context) -> Decision:
            sessions.see(self._monotonic_ms())
            decision = register_broker(request, context)
            if not decision.response.error_code:
                sessions.registered(request.broker_id, decision.response.broker_epoch)
            return decision

        self._decide(request, send, decide)

    def _heartbeat(self, request: brokers.BrokerHeartbeatRequest, send: Send) -> None:
        """At once, if nothing is to be written and nothing that waits concerns this broker."""
        sessions = self._controller.sessions
        context = self._controller.settled(request.broker_id)
        if context is not None and not request.want_shut_down:
            sessions.see(self._monotonic_ms())
            decision = heartbeat(request, context, sessions)
            if not decision.records and not decision.response.error_code:
                send(decision.response)
                return

        def decide(context: Context) -> Decision:
            sessions.see(self._monotonic_ms())
            return heartbeat(request, context, sessions)

        self._decide(request, send, decide, is_beat=True)

    def _unregister_broker(self, request: brokers.UnregisterBrokerRequest, send: Send) -> None:
        def then(response: Any) -> None:
            if not response.error_code:
                self._controller.sessions.forget(request.broker_id)
            send(response)

        self._decide(request, send, lambda context: unregister_broker(request, context), then)

    # --- coordinators ---------------------------------------------------------------------------

    def _assign(self, request: AssignPartitionToBatchCoordinatorRequest, send: Send) -> None:
        """Check, let the old coordinators go, write it down, tell the new ones, answer."""

        def checked(outcome: tuple[list[Move], Verdicts]) -> None:
            moves, verdicts = outcome
            moving = Moving(self._controller, self._handover, request, moves, verdicts, send)
            self._call_later(MOVE_WAIT_S, moving.late)
            moving.release()

        def decide(context: Context) -> Decision:
            return Decision((), check_moves(request, context.image))

        self._decide(request, send, decide, checked)


def split_creation(request: rpc.CreateTopicsRequest) -> list[rpc.CreateTopicsRequest]:
    """The same topics as several requests of a few partitions each, where that means the same.

    Names that are there twice are refused together, and what is only tried is tried as a whole.
    """
    if request.validate_only:
        return [request]
    names = Counter(topic.name for topic in request.topics)
    parts: list[list[Any]] = [[topic for topic in request.topics if names[topic.name] > 1]]
    size = total = 0
    for topic in request.topics:
        if names[topic.name] > 1:
            continue
        count = len(topic.assignments) or max(1, topic.num_partitions)
        if parts[-1] and size + count > PART_PARTITIONS:
            parts.append([])
            size = 0
        parts[-1].append(topic)
        size += count
        total += count
    if len(parts) == 1 or total > MAX_SPLIT_PARTITIONS:
        return [request]  # small, or so large that most of it is refused
    return [msgspec.structs.replace(cast(Any, request), topics=tuple(part)) for part in parts]


def _as_one(topics: tuple[_Created, ...]) -> tuple[_Created, ...]:
    """Parts' results: NOT_CONTROLLER says that nothing at all was done, so it must be true."""
    not_controller = ErrorCode.NOT_CONTROLLER
    if all(topic.error_code == not_controller for topic in topics):
        return topics
    return tuple(
        msgspec.structs.replace(
            cast(Any, topic),
            error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
            error_message="The controller changed before this was done.",
        )
        if topic.error_code == not_controller
        else topic
        for topic in topics
    )


def new_partitions(records: Sequence[MetadataRecord], image: MetadataImage) -> New:
    """What coordinators have to be told of, if these records are committed on that image."""
    names: dict[UUID, str] = {}
    places: dict[UUID, dict[int, int]] = {}
    for record in records:
        match record:
            case TopicRecord(name=name, topic_id=topic_id):
                names[topic_id] = name
            case PartitionRecord(topic_id=topic_id, partition_id=index):
                places.setdefault(topic_id, {})[index] = 0
            case TopicPartitionToBatchCoordinatorMapping(topic_id=topic_id, partition_index=index):
                places[topic_id][index] = record.batch_coordinator_partition_index
    found: New = {}
    for topic_id, indexes in places.items():
        name = names.get(topic_id) or image.topics[topic_id].name
        if name == DISKLESS_METADATA:
            continue  # its partitions are the coordinators
        counts: dict[int, int] = {}
        for index, coordinator in indexes.items():
            counts[coordinator] = max(counts.get(coordinator, 0), index + 1)
        found[topic_id] = (name, counts)
    return found


def _with_errors(response: Any, field: str, errors: Mapping[str, ErrorCode]) -> Response:
    """The response, with what the coordinators said in its results."""
    if not errors:
        return response  # type: ignore[no-any-return]
    results = tuple(
        msgspec.structs.replace(
            result, error_code=errors[result.name], error_message=_LATE[errors[result.name]]
        )
        if not result.error_code and result.name in errors
        else result
        for result in getattr(response, field)
    )
    changed: Response = msgspec.structs.replace(response, **{field: results})
    return changed


class _Late(dict[ErrorCode, str]):
    def __missing__(self, code: ErrorCode) -> str:
        return f"It is there, but its batch coordinator refused it ({code.name})."


_LATE: Final = _Late(
    {
        ErrorCode.REQUEST_TIMED_OUT: (
            "It is there, and its batch coordinator is being told; ask again before writing to it."
        ),
        ErrorCode.NOT_LEADER_OR_FOLLOWER: (
            "It is there, and the next controller tells its batch coordinator."
        ),
        ErrorCode.UNKNOWN_TOPIC_ID: "It was deleted meanwhile.",
    }
)


def _plain(
    decide: Callable[[Any, Context], Decision],
) -> Callable[[Requests, Any, Send], None]:
    """Whoever is decided and no more."""

    def ask(requests: Requests, request: Any, send: Send) -> None:
        requests._decide(request, send, lambda context: decide(request, context))

    return ask


def _described(request: DescribeConfigsRequest, context: Context) -> Decision:
    return Decision((), describe_configs(request, context.image))


_ASK: Final[dict[type[Request], Callable[[Requests, Any, Send], None]]] = {
    rpc.CreateTopicsRequest: Requests._create_topics,
    rpc.DeleteTopicsRequest: Requests._delete_topics,
    rpc.CreatePartitionsRequest: Requests._create_partitions,
    DescribeConfigsRequest: _plain(_described),
    IncrementalAlterConfigsRequest: _plain(alter_configs),
    brokers.BrokerRegistrationRequest: Requests._register_broker,
    brokers.BrokerHeartbeatRequest: Requests._heartbeat,
    brokers.UnregisterBrokerRequest: Requests._unregister_broker,
    brokers.ControllerRegistrationRequest: _plain(register_controller),
    brokers.AllocateProducerIdsRequest: _plain(allocate_producer_ids),
    brokers.UpdateFeaturesRequest: _plain(update_features),
    CreateChunksRequest: _plain(create_chunks),
    AlterChunkAssignmentsRequest: _plain(alter_chunks),
    AssignPartitionToBatchCoordinatorRequest: Requests._assign,
}

SERVED: Final = tuple(_ASK)
"""Every request that the active controller answers."""
