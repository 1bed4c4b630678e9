"""The batch coordinator's calls: one table with a row for each.

A row says which request it is, how it is answered and who may send it. Every coordinator dispatches
by this table, and every client reads from it what may be sent again. A request's class names its
response's (`records.rpc.base.CoordinatorRequest`), so mypy knows what `call(request)` returns. How
a call is added: docs/coordinator-clients.md#adding-a-call.

A coordinator that cannot answer raises CoordinatorError; over a socket that has to be a response.
Some responses have an error of their own, others only one for each topic or partition: there
`refuse` puts the same error everywhere, and `read_refusal` finds it again on the other side.

Source: KIP-1164, Public Interfaces;
docs/design/batch-coordinator.md#one-interface-three-implementations.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast
from uuid import UUID

from coordinator.batch import decide, slices
from coordinator.batch.decide import Context, Decision
from coordinator.batch.describe import (
    Described,
    describe_object,
    describe_topics,
    list_objects,
)
from coordinator.batch.reads import (
    AppliedState,
    State,
    Turns,
    denies,
    find_in_turns,
    list_in_turns,
)
from coordinator.batch.settings import CoordinatorSettings
from coordinator.batch.state import Tables
from coordinator.errors import CoordinatorError
from records.kafka_errors import ErrorCode
from records.rpc import API, objects, rewriting, transaction_markers
from records.rpc import batch_coordinator as rpc
from records.rpc.base import CoordinatorRequest, Response
from records.schema import ArrayOf, Message, StructOf

R = TypeVar("R", bound=Response)

HIGH_WATERMARK: Final = -1
"""Stands for the high watermark as the offset up to which records are deleted."""


@dataclass(frozen=True, slots=True)
class Write(Generic[R]):
    """The leader decides; the records it wrote are committed before the answer goes out."""

    decide: Callable[[Any, Tables, AppliedState, Context], Decision[R]]
    in_slices: Callable[[Any, Callable[[Any], Awaitable[R]]], Awaitable[R]] | None = None


@dataclass(frozen=True, slots=True)
class Lookup(Generic[R]):
    """Any replica answers from its applied state, some partitions in each turn of the loop.

    Without `denies` every answer is read behind the read barrier. With it, an answer may be old,
    unless `denies` holds for it: the leader repeats such a one behind the barrier.
    """

    turns: Callable[[Any, State, CoordinatorSettings], Turns[R]]
    denies: Callable[[R], bool] | None = None


@dataclass(frozen=True, slots=True)
class Report(Generic[R]):
    """Any replica reads whole tables of its applied state, off the event loop."""

    read: Callable[[Any, Described, CoordinatorSettings], R]
    behind_barrier: Callable[[Any], bool] = lambda _: False


@dataclass(frozen=True, slots=True)
class LeaderLookup(Generic[R]):
    """The leader answers from its applied state: it alone knows how long a delay has lasted."""

    read: Callable[[Any, Tables, AppliedState, Context], R]


Kind: TypeAlias = Write[R] | Lookup[R] | Report[R] | LeaderLookup[R]


@dataclass(frozen=True, slots=True)
class Call(Generic[R]):
    """A row of the table of calls: a request and the way in which it is answered."""

    request: type[CoordinatorRequest[R]]
    kind: Kind[R]
    for_clients: bool = False  # brokers pass it on for any client; else for brokers and controllers
    is_repeatable: Callable[[Any], bool] = lambda _: True  # also when an attempt is in doubt

    @property
    def api_key(self) -> int:
        """Return the api key of this call's request."""
        return cast(int, self.request.number())

    @property
    def response(self) -> type[R]:
        """Return the response class of this call's request."""
        return cast(type[R], API[self.api_key].response)


def _of_tables(
    decide: Callable[[Any, Tables, Context], Decision[R]],
) -> Callable[[Any, Tables, AppliedState, Context], Decision[R]]:
    """Add an unused parameter for the applied state to a decision function that lacks it."""
    return lambda request, tables, _, context: decide(request, tables, context)


def _of_controller(
    decide: Callable[[Any, Tables, Context], Decision[R]],
) -> Callable[[Any, Tables, AppliedState, Context], Decision[R]]:
    """Wrap a decision function to refuse controller epochs above the cluster log's last epoch.

    The refusal is retriable.

    Why: the coordinator keeps the highest epoch that has called and refuses lower ones, so a
    made-up epoch of 2^31 - 1 would shut out every controller for good. A controller calls only
    after a record of its epoch is committed; if this node's copy lacks it, the caller asks again.
    """

    def judge_and_decide(
        request: Any, tables: Tables, _: AppliedState, context: Context
    ) -> Decision[R]:
        committed = context.view.controller_epoch()
        if committed is not None and request.controller_epoch > committed:
            message = f"controller epoch {request.controller_epoch}; {committed} is committed here"
            raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
        return decide(request, tables, context)

    return judge_and_decide


def _names_its_offsets(request: rpc.DeleteDisklessRecordsRequest) -> bool:
    """Return whether every offset in a request is explicit, not -1 for the high watermark."""
    return not any(
        partition.offset == HIGH_WATERMARK
        for topic in request.topics
        for partition in topic.partitions
    )


CALLS: Final[tuple[Call[Any], ...]] = (
    # Let these topics have at least so many partitions. Idempotent.
    Call(rpc.InitDisklessTopicsRequest, Write(_of_controller(decide.decide_init_topics))),
    # Commit an uploaded object: give each of its batches offsets, or refuse it. Idempotent by
    # object id: a retry gets exactly one of the first answer; error 46, committed, answer no longer
    # kept; an error of NEVER_COMMITTED. Any other error changed nothing.
    Call(rpc.CommitBatchesRequest, Write(decide.decide_commit)),
    # Delete topics: nothing of them is found from now on. Idempotent.
    Call(rpc.DeleteDisklessTopicsRequest, Write(_of_controller(decide.decide_delete_topics))),
    # Move log starts forward; -1 is the high watermark.
    Call(
        rpc.DeleteDisklessRecordsRequest,
        Write(_of_tables(decide.decide_delete_records), slices.delete_records),
        is_repeatable=_names_its_offsets,
    ),
    # Find where the batches from an offset on lie. What is found may be old, and costs no call over
    # the network. A no is certain: it is said behind the read barrier, or not at all.
    Call(rpc.FindBatchesRequest, Lookup(find_in_turns, denies), for_clients=True),
    # List offsets by timestamp or ListOffsets' sentinels, behind the read barrier.
    Call(
        rpc.ListDisklessOffsetsRequest,
        Lookup(lambda request, state, _: list_in_turns(request, state)),
    ),
    # Hand out object ids; close the leases of the broker's lower epochs. A lease whose answer was
    # lost stays open until it is too old.
    Call(objects.AcquireObjectLeaseRequest, Write(_of_tables(decide.decide_acquire))),
    # Close a lease: ids of it that were not committed never will be. Idempotent.
    Call(objects.ReleaseObjectLeaseRequest, Write(_of_tables(decide.decide_release))),
    # List objects that nothing refers to, and orphans, after the delay.
    Call(objects.GetFilesToDeleteRequest, LeaderLookup(decide.files_to_delete)),
    # Forget objects that are gone from the store. Idempotent.
    Call(objects.DeleteFilesRequest, Write(decide.decide_removals, slices.delete_files)),
    # Is the object not committed? Yes also means: it never will be.
    Call(objects.IsSafeToDeleteFileRequest, Write(decide.decide_safe_to_delete)),
    # Offsets and bytes of topics (KIP-1163, Command line tools).
    Call(
        objects.DescribeDisklessTopicsRequest,
        Report(
            lambda request, state, _: describe_topics(request, state),
            behind_barrier=lambda request: request.behind_barrier,
        ),
        for_clients=True,
    ),
    # One object, and which partitions have runs in it (KIP-1163, Command line tools).
    Call(
        objects.DescribeDisklessObjectRequest,
        Report(lambda request, state, settings: describe_object(request, state, settings.keys)),
        for_clients=True,
    ),
    # The producers that partitions know (KIP-664), as the leader has applied them.
    Call(rpc.DescribeDisklessProducersRequest, LeaderLookup(decide.describe_producers)),
    # Release partitions that never had a commit: they take none from now on. Idempotent.
    Call(
        rpc.ReleaseDisklessPartitionsRequest,
        Write(_of_controller(decide.decide_release_partitions)),
    ),
    # Apply the rows of a retention plan made elsewhere, those that still hold. Idempotent.
    Call(rpc.ApplyRetentionRequest, Write(decide.decide_apply_retention), for_clients=True),
    # Take over objects that a listing found: those that nothing needs are to be deleted. Each key
    # is judged as IsSafeToDeleteFile would, but nothing is fenced: an object that can still be
    # committed is refused, and goes, if it must, when its lease is over. Idempotent.
    Call(objects.MarkOrphansRequest, Write(decide.decide_found_orphans), for_clients=True),
    # Set steady time to the leader's wall clock, forward or back: an operator's word.
    Call(
        objects.AcceptClockRequest,
        Write(_of_tables(decide.decide_accept_clock)),
        for_clients=True,
    ),
    # Grant, renew or end a lease of object ids for rewritten objects. A grant whose answer was lost
    # stays open until it is too old.
    Call(
        rewriting.RewriteLeaseRequest,
        Write(_of_tables(decide.decide_rewrite_lease)),
        for_clients=True,
    ),
    # Replace the runs of ranges by runs in a rewritten object, each range if its live runs are the
    # ones it names. Idempotent: no answer is kept, a repeat finds its runs in the state.
    Call(
        rewriting.ReplaceRunsRequest,
        Write(decide.decide_replace_runs),
        for_clients=True,
    ),
    # How far partitions are cleaned, as the leader has applied it.
    Call(
        rewriting.DescribeCleaningRequest,
        LeaderLookup(decide.describe_cleaning),
        for_clients=True,
    ),
    # Objects by rising id, and how much of them is used.
    Call(
        rewriting.ListDisklessObjectsRequest,
        Report(lambda request, state, _: list_objects(request, state)),
        for_clients=True,
    ),
    # End transactions in partitions. Idempotent by the number of the transaction.
    Call(
        transaction_markers.WriteTransactionMarkersRequest,
        Write(_of_tables(decide.decide_markers)),
    ),
)
"""Every call, by rising api key."""

BY_REQUEST: Final = {call.request: call for call in CALLS}
"""The same, by request class."""


def call_of(request: CoordinatorRequest[R]) -> Call[R]:
    """Return the entry of the table `CALLS` for the class of this request."""
    return BY_REQUEST[type(request)]


# --- errors as responses ------------------------------------------------------------------------

RAISED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    }
)
"""Codes that are no answer: what was raised on the other side."""


def refuse(request: CoordinatorRequest[R], code: int, message: str) -> R:
    """Return a response that refuses the whole request with this error.

    The error stands for each topic or partition where the response has no error code of its own.
    Other fields of the response are -1, or empty.
    """
    response: type[Any] = call_of(request).response
    if _has(response, "error_code"):
        return cast(R, response(error_code=int(code), error_message=message))
    topic_type = _element(response, "responses")
    topics = []
    for topic_id, partitions in _topics(request):
        if _has(topic_type, "error_code"):
            text = {"error_message": message} if _has(topic_type, "error_message") else {}
            topics.append(topic_type(topic_id=topic_id, error_code=int(code), **text))
            continue
        partition_type = _element(topic_type, "partitions")
        unknown = _unknown(partition_type)
        refused_partitions = tuple(
            partition_type(**{**unknown, "partition_index": index, "error_code": int(code)})
            for index in partitions
        )
        topics.append(topic_type(topic_id=topic_id, partitions=refused_partitions))
    return cast(R, response(responses=tuple(topics)))


def read_refusal(response: Response) -> CoordinatorError | None:
    """Return a CoordinatorError if the response refuses the whole request, else None."""
    found = set(_error_codes(response))
    code = found.pop() if len(found) == 1 else 0
    if code not in RAISED:
        return None
    message = getattr(response, "error_message", None)
    return CoordinatorError(ErrorCode(code), message or "the coordinator says so")


def _error_codes(response: Any) -> Iterator[int]:
    """Yield a response's own error code, or else the codes of its topics or partitions."""
    if hasattr(response, "error_code"):
        yield response.error_code
        return
    for item in response.responses if hasattr(response, "responses") else response.partitions:
        yield from _error_codes(item)


def _topics(request: Any) -> Iterable[tuple[UUID, list[int]]]:
    """Return the topic ids that a request names, each with its partition indexes."""
    if hasattr(request, "topic_ids"):
        return ((topic_id, []) for topic_id in request.topic_ids)
    return (
        (topic.topic_id, [p.partition_index for p in getattr(topic, "partitions", ())])
        for topic in request.topics
    )


def _has(message: type[Message], name: str) -> bool:
    return any(field.name == name for field in message.schema().fields)


def _element(message: type[Message], name: str) -> type[Any]:
    """Return the message class of the elements of the array field `name`."""
    (array,) = (field.type for field in message.schema().fields if field.name == name)
    assert isinstance(array, ArrayOf), f"{message}.{name} is no array"
    assert isinstance(array.element, StructOf), f"{message}.{name} has no structures"
    return array.element.message


def _unknown(message: type[Message]) -> dict[str, object]:
    """Return placeholder values for a message's required fields: -1, or empty for arrays."""
    fields = (field for field in message.schema().fields if field.required)
    return {field.name: () if isinstance(field.type, ArrayOf) else -1 for field in fields}
