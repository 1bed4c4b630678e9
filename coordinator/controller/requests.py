"""Answers the controller's requests: decide, wait for the commit, then for the batch coordinators.

    requests.ask(message, send)      # `send` is called once, with the response

A topic exists once it is committed, and can be written to once its coordinators have committed it
too; the client that created it is answered then. If that takes longer than the request allows, the
answer is REQUEST_TIMED_OUT, the topic stays, and the calls to its coordinators continue.

A record that is committed proves that this node led. A decision that wrote none is answered behind
the read barrier: otherwise a controller that was deposed, and does not know it, could answer that a
topic exists, or does not exist, after the next one has changed that. Only a heartbeat that is not
refused is answered at once: it means no more than that this node, while it leads, extends the
broker's session.

Nothing here uses sockets; `coordinator.controller.service` does.

Source: docs/design/controller.md; KIP-631; KIP-1114; KIP-1164.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, cast
from uuid import UUID

import msgspec

from coordinator.controller.decide.acls import create_acls, delete_acls
from coordinator.controller.decide.brokers import (
    heartbeat,
    register_broker,
    register_controller,
    unregister_broker,
)
from coordinator.controller.decide.chunks import alter_chunks, create_chunks
from coordinator.controller.decide.configs import (
    alter_configs,
    describe_configs,
    replace_configs,
)
from coordinator.controller.decide.context import Charge, Context, Decision
from coordinator.controller.decide.features import update_features
from coordinator.controller.decide.mapping import Move, Verdicts, check_moves
from coordinator.controller.decide.partitions import create_partitions
from coordinator.controller.decide.producer_ids import allocate_producer_ids
from coordinator.controller.decide.quotas import alter_quotas
from coordinator.controller.decide.scram import alter_scram
from coordinator.controller.decide.topics import create_topics, delete_topics
from coordinator.controller.handover import HandOver
from coordinator.controller.image import MetadataImage
from coordinator.controller.leader import Controller
from coordinator.controller.partition_moves import PartitionMoves
from coordinator.controller.reconciliation import hosted_counts
from coordinator.controller.refusals import refuse
from coordinator.controller.sessions import Connection
from coordinator.errors import CoordinatorError
from records.chunks import TopicPartitionToBatchCoordinatorMapping
from records.internal_topics import DISKLESS_METADATA
from records.kafka_errors import ErrorCode
from records.metadata import PartitionRecord, RemoveTopicRecord, TopicRecord
from records.rpc import brokers
from records.rpc import topics as rpc
from records.rpc.base import Request, Response
from records.rpc.batch_coordinator import AssignPartitionToBatchCoordinatorRequest
from records.rpc.chunks import AlterChunkAssignmentsRequest, CreateChunksRequest
from records.rpc.configs import (
    AlterConfigsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from records.rpc.security import (
    AlterClientQuotasRequest,
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    DeleteAclsRequest,
)
from records.schema import MetadataRecord

MAX_WAIT_S: Final = 300.0

MOVE_WAIT_S: Final = 4.0
"""Time-out of calls to two coordinators, as the request has none: a client waits five seconds."""

SLICE_PARTITIONS: Final = 50
"""New partitions decided in one step, of a request that can be decided in slices."""

MAX_SPLIT_PARTITIONS: Final = 100_000

Send = Callable[[Response], None]
Barrier = Callable[[Callable[[BaseException | None], None]], object]
"""Calls back with None if this node still led when it was called, else with the reason."""

_Created = rpc.CreateTopicsResponse.CreatableTopicResult
NewPartitions = dict[UUID, tuple[str, dict[int, int]]]
"""Topics with new partitions: id -> (name, number of partitions at each coordinator)."""


class Requests:
    """Answers the requests of the active controller."""

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
        """Create the request handlers of this controller.

        Args:  barrier: of the cluster log.
               served: counts requests by api key, for KIP-631's ControllerRequestsRate.
               leader_name: returns the leader that this node knows, for messages.
        """
        self._controller = controller
        self._handover = handover
        self._call_later = call_later
        self._monotonic_ms = monotonic_ms
        self._barrier = barrier
        self._leader_name = leader_name
        self.served: Counter[int] = Counter() if served is None else served

    def ask(
        self,
        request: Request,
        send: Send,
        connection: Connection | None = None,
        charge: Charge | None = None,
    ) -> None:
        """Process a request; call `send` exactly once, either before returning or afterwards.

        Args:  connection: of the request; the end of a broker's session may follow from its end.
               charge: of the client's quota of mutations; None: it has none.
        """
        key = request.schema().key
        assert key is not None
        self.served[key] += 1
        if isinstance(request, brokers.BrokerHeartbeatRequest):
            self._heartbeat(request, send, connection)
        elif charge is not None:
            _CHARGED[type(request)](self, request, _with_throttle_time(send, charge), charge)
        else:
            _HANDLERS[type(request)](self, request, send)

    def _decide(
        self,
        request: Request,
        send: Send,
        decide: Callable[[Context], Decision],
        then: Callable[[Any], None] | None = None,
        *,
        is_beat: bool = False,
        charge: Charge | None = None,
    ) -> None:
        """Decide a request; pass the committed response to `then`, or to `send` if `then` is None.

        Args:  is_beat: urgent, and certain unless it is a refusal.
        """
        on_certain = send if then is None else then
        wrote, taken = False, 0

        def decide_and_note(context: Context) -> Decision:
            nonlocal wrote, taken
            if charge is not None:
                charge.give_back(taken)  # of a former decision, whose proposal was refused
                before = charge.taken
                context = dataclasses.replace(context, charge=charge)
                decision = decide(context)
                taken = charge.taken - before
            else:
                decision = decide(context)
            wrote = bool(decision.records)
            return decision

        def done(outcome: Any) -> None:
            if isinstance(outcome, CoordinatorError):
                send(self._not_decided(request, outcome))
            elif wrote or (is_beat and not outcome.error_code):
                on_certain(outcome)
            else:
                self._barrier(lambda lost: on_barrier(outcome, lost))

        def on_barrier(outcome: Any, lost: BaseException | None) -> None:
            if lost is None:
                on_certain(outcome)
            else:
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE
                error = CoordinatorError(code, f"no read barrier: {lost}")
                send(self._not_decided(request, error))

        self._controller.submit(decide_and_note, done, name=type(request).__name__, urgent=is_beat)

    def _not_decided(self, request: Request, error: CoordinatorError) -> Response:
        if error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            text = "The controller changed: the outcome is unknown."
            return refuse(request, ErrorCode.NOT_LEADER_OR_FOLLOWER, text)
        text = f"This node is not the active controller; the leader is {self._leader_name()}."
        if self._controller.active_epoch is not None:
            text = f"Nothing was done, try again: {error.message}."
        return refuse(request, ErrorCode.NOT_CONTROLLER, text)

    # --- topics -------------------------------------------------------------------------------

    def _create_topics(
        self, request: rpc.CreateTopicsRequest, send: Send, charge: Charge | None = None
    ) -> None:
        """Create topics; decide a large request in several parts, with heartbeats in between."""
        slices = split_creation(request)
        answers: dict[int, Any] = {}

        def gather(index: int) -> Send:
            def on_answer(answer: Response) -> None:
                answers[index] = answer
                if len(answers) == len(slices):
                    every = (answers[i].topics for i in range(len(slices)))
                    topics = tuple(chain.from_iterable(every))
                    send(rpc.CreateTopicsResponse(topics=_merge_results(topics)))

            return on_answer

        for index, slice_request in enumerate(slices):
            self._create_slice(slice_request, gather(index), charge)

    def _create_slice(
        self, request: rpc.CreateTopicsRequest, send: Send, charge: Charge | None
    ) -> None:
        created: NewPartitions = {}

        def decide(context: Context) -> Decision:
            decision = create_topics(request, context)
            created.clear()
            created.update(new_partitions(decision.records, context.image))
            return decision

        def then(response: Any) -> None:
            def finish(errors: dict[str, ErrorCode]) -> None:
                send(_with_errors(response, "topics", errors))

            self._hand_over(created, request.timeout_ms, finish)

        self._decide(request, send, decide, then, charge=charge)

    def _create_partitions(
        self, request: rpc.CreatePartitionsRequest, send: Send, charge: Charge | None = None
    ) -> None:
        created: NewPartitions = {}

        def decide(context: Context) -> Decision:
            decision = create_partitions(request, context)
            created.clear()
            created.update(new_partitions(decision.records, context.image))
            return decision

        def then(response: Any) -> None:
            def finish(errors: dict[str, ErrorCode]) -> None:
                send(_with_errors(response, "results", errors))

            self._hand_over(created, request.timeout_ms, finish)

        self._decide(request, send, decide, then, charge=charge)

    def _hand_over(
        self,
        created: NewPartitions,
        timeout_ms: int,
        finish: Callable[[dict[str, ErrorCode]], None],
    ) -> None:
        """Create partitions at their coordinators; call `finish` with each failed topic's error.

        A topic that is not there in time has an error.
        """
        waiting = {name for name, _ in created.values()}
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

        def make_callback(name: str) -> Callable[[ErrorCode], None]:
            def on_done(error: ErrorCode) -> None:
                waiting.discard(name)
                if error:
                    errors[name] = error
                if not waiting:
                    end()

            return on_done

        for topic_id, (name, counts) in list(created.items()):
            self._handover.create(topic_id, counts, name, make_callback(name))
        if not waiting:
            end()
        elif not finished:
            timer.append(self._call_later(min(MAX_WAIT_S, max(0, timeout_ms) / 1_000), late))

    def _delete_topics(
        self, request: rpc.DeleteTopicsRequest, send: Send, charge: Charge | None = None
    ) -> None:
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

        self._decide(request, send, decide, then, charge=charge)

    # --- brokers ------------------------------------------------------------------------------

    def _register_broker(self, request: brokers.BrokerRegistrationRequest, send: Send) -> None:
        sessions = self._controller.sessions

        def decide(context: Context) -> Decision:
            sessions.update_clock(self._monotonic_ms())
            decision = register_broker(request, context)
            if not decision.response.error_code:
                epoch = decision.response.broker_epoch
                sessions.record_registration(request.broker_id, epoch)
                self._note_readiness(request.broker_id, epoch, request.unready_reason)
            return decision

        self._decide(request, send, decide)

    def _heartbeat(
        self,
        request: brokers.BrokerHeartbeatRequest,
        send: Send,
        connection: Connection | None = None,
    ) -> None:
        """Answer a heartbeat immediately, unless a record of the broker is needed or pending.

        Only pending records of this broker matter.
        """
        sessions = self._controller.sessions
        context = self._controller.settled_context(request.broker_id)
        if context is not None and not request.want_shut_down:
            sessions.update_clock(self._monotonic_ms())
            decision = self._beat(request, context, connection)
            if not decision.records and not decision.response.error_code:
                send(decision.response)
                return

        def decide(context: Context) -> Decision:
            sessions.update_clock(self._monotonic_ms())
            return self._beat(request, context, connection)

        self._decide(request, send, decide, is_beat=True)

    def _beat(
        self,
        request: brokers.BrokerHeartbeatRequest,
        context: Context,
        connection: Connection | None,
    ) -> Decision:
        """Decide a heartbeat; if it is accepted, record its connection and broker readiness."""
        sessions = self._controller.sessions
        decision = heartbeat(request, context, sessions)
        if not decision.response.error_code:
            if connection is not None:
                sessions.note_connection(request.broker_id, request.broker_epoch, connection)
            self._note_readiness(request.broker_id, request.broker_epoch, request.unready_reason)
        return decision

    def _note_readiness(self, broker_id: int, broker_epoch: int, reason: str | None) -> None:
        self._controller.preferences.note(broker_id, broker_epoch, reason, self._monotonic_ms())

    def _unregister_broker(self, request: brokers.UnregisterBrokerRequest, send: Send) -> None:
        def then(response: Any) -> None:
            if not response.error_code:
                self._controller.sessions.forget(request.broker_id)
            send(response)

        def decide(context: Context) -> Decision:
            self._controller.sessions.update_clock(self._monotonic_ms())
            return unregister_broker(request, context)

        self._decide(request, send, decide, then)

    # --- coordinators ---------------------------------------------------------------------------

    def _assign(self, request: AssignPartitionToBatchCoordinatorRequest, send: Send) -> None:
        """Check requested moves of partitions between coordinators; start those allowed.

        See `partition_moves`.
        """

        def checked(outcome: tuple[list[Move], Verdicts]) -> None:
            to_move, verdicts = outcome
            moves = PartitionMoves(
                self._controller, self._handover, request, to_move, verdicts, send
            )
            self._call_later(MOVE_WAIT_S, moves.on_timeout)
            moves.release()

        def decide(context: Context) -> Decision:
            return Decision((), check_moves(request, context.image))

        self._decide(request, send, decide, checked)


def _with_throttle_time(send: Send, charge: Charge) -> Send:
    """Return a function that sends a response with the throttle time of its charge."""

    def send_charged(response: Response) -> None:
        throttle_ms = charge.throttle_ms()
        if throttle_ms:
            response = msgspec.structs.replace(cast(Any, response), throttle_time_ms=throttle_ms)
        send(response)

    return send_charged


def split_creation(request: rpc.CreateTopicsRequest) -> list[rpc.CreateTopicsRequest]:
    """Split a large CreateTopics request into smaller requests with the same overall result.

    Topics with the same name are refused together, and a validation is not split.
    """
    if request.validate_only:
        return [request]
    names = Counter(topic.name for topic in request.topics)
    slices: list[list[Any]] = [[topic for topic in request.topics if names[topic.name] > 1]]
    size = total = 0
    for topic in request.topics:
        if names[topic.name] > 1:
            continue
        count = len(topic.assignments) or max(1, topic.num_partitions)
        if slices[-1] and size + count > SLICE_PARTITIONS:
            slices.append([])
            size = 0
        slices[-1].append(topic)
        size += count
        total += count
    if len(slices) == 1 or total > MAX_SPLIT_PARTITIONS:
        return [request]  # small, or so large that most of it is refused
    return [
        msgspec.structs.replace(cast(Any, request), topics=tuple(slice_request))
        for slice_request in slices
    ]


def _merge_results(topics: tuple[_Created, ...]) -> tuple[_Created, ...]:
    """Replace NOT_CONTROLLER by NOT_LEADER_OR_FOLLOWER, unless all topics have NOT_CONTROLLER."""
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


def new_partitions(records: Sequence[MetadataRecord], image: MetadataImage) -> NewPartitions:
    """Return the partitions that coordinators must create if these records are committed."""
    names: dict[UUID, str] = {}
    coordinators: dict[UUID, dict[int, int]] = {}
    for record in records:
        match record:
            case TopicRecord(name=name, topic_id=topic_id):
                names[topic_id] = name
            case PartitionRecord(topic_id=topic_id, partition_id=index):
                coordinators.setdefault(topic_id, {})[index] = 0
            case TopicPartitionToBatchCoordinatorMapping(topic_id=topic_id, partition_index=index):
                coordinators[topic_id][index] = record.batch_coordinator_partition_index
    found: NewPartitions = {}
    for topic_id, indexes in coordinators.items():
        name = names.get(topic_id) or image.topics[topic_id].name
        if name == DISKLESS_METADATA:
            continue  # its partitions are the coordinators
        counts: dict[int, int] = {}
        for index, coordinator in indexes.items():
            counts[coordinator] = max(counts.get(coordinator, 0), index + 1)
        found[topic_id] = (name, counts)
    return found


def _with_errors(response: Any, field: str, errors: Mapping[str, ErrorCode]) -> Response:
    """Return the response with coordinators' `errors` set in the named topics' results."""
    if not errors:
        return response  # type: ignore[no-any-return]
    results = tuple(
        msgspec.structs.replace(
            result, error_code=errors[result.name], error_message=_UNCONFIRMED[errors[result.name]]
        )
        if not result.error_code and result.name in errors
        else result
        for result in getattr(response, field)
    )
    changed: Response = msgspec.structs.replace(response, **{field: results})
    return changed


class _UnconfirmedTexts(dict[ErrorCode, str]):
    """Messages for topics that are committed but not confirmed by their batch coordinators."""

    def __missing__(self, code: ErrorCode) -> str:
        return f"It is created, but its batch coordinator refused it ({code.name})."


_UNCONFIRMED: Final = _UnconfirmedTexts(
    {
        ErrorCode.REQUEST_TIMED_OUT: (
            "It is created; its batch coordinator has not confirmed it: check before writing to it."
        ),
        ErrorCode.NOT_LEADER_OR_FOLLOWER: (
            "It is created; the next controller informs its batch coordinator."
        ),
        ErrorCode.UNKNOWN_TOPIC_ID: "It was deleted meanwhile.",
    }
)


def _decide_only(
    decide: Callable[[Any, Context], Decision],
) -> Callable[[Requests, Any, Send], None]:
    """Return a handler of requests that need nothing but the decision function `decide`."""

    def ask(requests: Requests, request: Any, send: Send) -> None:
        requests._decide(request, send, lambda context: decide(request, context))

    return ask


def _describe_configs(request: DescribeConfigsRequest, context: Context) -> Decision:
    return Decision((), describe_configs(request, context.image))


_HANDLERS: Final[dict[type[Request], Callable[[Requests, Any, Send], None]]] = {
    rpc.CreateTopicsRequest: Requests._create_topics,
    rpc.DeleteTopicsRequest: Requests._delete_topics,
    rpc.CreatePartitionsRequest: Requests._create_partitions,
    DescribeConfigsRequest: _decide_only(_describe_configs),
    AlterConfigsRequest: _decide_only(replace_configs),
    IncrementalAlterConfigsRequest: _decide_only(alter_configs),
    AlterClientQuotasRequest: _decide_only(alter_quotas),
    AlterUserScramCredentialsRequest: _decide_only(alter_scram),
    CreateAclsRequest: _decide_only(create_acls),
    DeleteAclsRequest: _decide_only(delete_acls),
    brokers.BrokerRegistrationRequest: Requests._register_broker,
    brokers.BrokerHeartbeatRequest: Requests._heartbeat,
    brokers.UnregisterBrokerRequest: Requests._unregister_broker,
    brokers.ControllerRegistrationRequest: _decide_only(register_controller),
    brokers.AllocateProducerIdsRequest: _decide_only(allocate_producer_ids),
    brokers.UpdateFeaturesRequest: _decide_only(update_features),
    CreateChunksRequest: _decide_only(create_chunks),
    AlterChunkAssignmentsRequest: _decide_only(alter_chunks),
    AssignPartitionToBatchCoordinatorRequest: Requests._assign,
}

_CHARGED: Final[dict[type[Request], Callable[[Requests, Any, Send, Charge], None]]] = {
    rpc.CreateTopicsRequest: Requests._create_topics,
    rpc.DeleteTopicsRequest: Requests._delete_topics,
    rpc.CreatePartitionsRequest: Requests._create_partitions,
}
"""Requests that count for a client's quota of mutations."""

SERVED: Final = tuple(_HANDLERS)
"""Every request that the active controller answers."""
