"""The client and the service over real sockets: order, doubt, and what is repeated.

The coordinator behind them is a few lines that remember what they were asked; a real one is tried
over the same sockets in the contract suite.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from coordinator.batch.calls import CALLS, Call, read_refusal, refuse
from coordinator.batch.client import ClientSettings, CoordinatorClient
from coordinator.batch.service import MAX_CALL_BYTES, MAX_COMMIT_BYTES
from coordinator.errors import CoordinatorError, OutcomeUnknownError
from raft.net import run
from raft.net.errors import ConnectionLostError
from raft.net.rpc import open_rpc, request_kind
from records.codec import decode_message, encode_message
from records.kafka_errors import ErrorCode
from records.rpc.base import CoordinatorRequest, Response
from records.rpc.batch_coordinator import (
    CommitBatch,
    CommitBatchesRequest,
    CommitBatchesResponse,
    DeleteDisklessRecordsRequest,
    FindBatchesRequest,
)
from records.rpc.objects import (
    GetFilesToDeleteRequest,
    GetFilesToDeleteResponse,
    IsSafeToDeleteFileRequest,
)
from records.schema import ArrayOf, Message, RowOf, StructOf, zero
from tests.coordinator.batch.served import Node, never, nodes
from tests.waiting import DEADLINE_S, wait_until_async

TOPIC = UUID(int=7)
FAST = ClientSettings(timeout_ms=10_000, attempt_timeout_ms=2_000, retry_ms=1, retry_max_ms=5)


def commit(object_id: int) -> CommitBatchesRequest:
    return CommitBatchesRequest(
        broker_id=1, broker_epoch=1, lease_id=1, object_id=object_id, object_format=1,
        object_size=100,
        topics=(
            CommitBatchesRequest.Topic(
                topic_id=TOPIC,
                partitions=(
                    CommitBatchesRequest.Topic.Partition(
                        partition_index=0,
                        batches=(CommitBatch(0, 100, 0, 9, 1, 0, -1, -1, -1, -1),),
                    ),
                ),
            ),
        ),
    )  # fmt: skip


def delete_records(offset: int) -> DeleteDisklessRecordsRequest:
    topic = DeleteDisklessRecordsRequest.Topic
    partition = topic.Partition(partition_index=0, offset=offset)
    return DeleteDisklessRecordsRequest(topics=(topic(topic_id=TOPIC, partitions=(partition,)),))


class Recorder:
    """A coordinator that records every call and answers by `then`, or with an empty response."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.then: Callable[[Any], Awaitable[Response] | None] = lambda _: None

    async def call(self, request: CoordinatorRequest[Any]) -> Any:
        self.calls.append(request)
        given = self.then(request)
        return await given if given is not None else refuse(request, 0, "")

    async def close(self) -> None: ...

    @property
    def committed(self) -> list[int]:
        """Object ids, in the order in which their commits came."""
        commits = (r for r in self.calls if isinstance(r, CommitBatchesRequest))
        return [request.object_id for request in commits]


async def fail(code: ErrorCode) -> Response:
    raise CoordinatorError(code, "told to")


def served(
    story: Callable[[Recorder, list[Node], CoordinatorClient], Awaitable[None]],
    *,
    settings: ClientSettings = FAST,
    count: int = 1,
) -> None:
    """Run a story with nodes around one recorder, and a client that knows the first of them."""

    async def main() -> None:
        recorder = Recorder()
        started = await nodes(*[recorder] * count)
        client = CoordinatorClient([started[0].address], settings=settings)
        try:
            await story(recorder, started, client)
        finally:
            await client.close()
            for node in started:
                await node.stop()

    run(main())


def test_the_coordinator_client_sends_every_request_unchanged_and_returns_its_response() -> None:
    async def story(recorder: Recorder, _: list[Node], client: CoordinatorClient) -> None:
        asked = []
        for call in CALLS:
            fields = {
                field.name: () if "array" in type(field.type).__name__.lower() else 0
                for field in call.request.schema().fields
                if field.required
            }
            for name in fields.keys() & {"object_key", "cluster_id"}:
                fields[name] = "text"  # type: ignore[assignment]
            request = call.request(**fields)
            assert isinstance(await client.call(request), call.response)
            asked.append(request)
        assert recorder.calls == asked

    served(story)


def test_a_clients_commits_reach_the_batch_coordinator_in_the_order_of_its_calls() -> None:
    async def story(recorder: Recorder, _: list[Node], client: CoordinatorClient) -> None:
        await asyncio.gather(*(client.call(commit(i)) for i in range(200)))
        assert recorder.committed == list(range(200))

    served(story)


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT])
def test_a_coordinator_client_sends_unanswered_commits_again_in_order_after_a_refusal(
    code: ErrorCode,
) -> None:
    """A lower object id that comes after a higher one is dead: 3 may never overtake 2."""

    async def story(recorder: Recorder, _: list[Node], client: CoordinatorClient) -> None:
        refusals = iter([2, 5, 2])
        refuse = next(refusals)

        def then(request: Any) -> Awaitable[Response] | None:
            nonlocal refuse
            if request.object_id == refuse:
                refuse = next(refusals, -1)
                return fail(code)
            return None

        recorder.then = then
        answers = [client.submit(commit(i)) for i in range(10)]
        late = [client.submit(commit(i)) for i in range(10, 20)]
        await asyncio.gather(*answers, *late)
        first_pass = recorder.committed.index(9) + 1
        assert recorder.committed[:first_pass] == list(range(10))
        last = {object_id: at for at, object_id in enumerate(recorder.committed)}
        unanswered = [i for i in recorder.committed[first_pass:] if i < 10]
        assert unanswered[0] == 2, recorder.committed
        assert list(last) == sorted(last), "a new commit overtook one that was sent again"

    served(story)


def test_a_coordinator_client_on_a_new_connection_awaits_one_response_before_further_commits() -> (
    None
):
    """The leader begins to decide between two commits: else 1 would be refused, and 2 accepted."""

    async def story(recorder: Recorder, _: list[Node], client: CoordinatorClient) -> None:
        def then(_: object) -> Awaitable[Response] | None:
            not_yet = len(recorder.committed) <= 3
            return fail(ErrorCode.COORDINATOR_NOT_AVAILABLE) if not_yet else None

        recorder.then = then
        await asyncio.gather(*(client.submit(commit(i)) for i in range(1, 6)))
        assert recorder.committed == [1, 1, 1, 1, 2, 3, 4, 5]

    served(story)


def test_after_a_refused_commit_a_coordinator_client_awaits_all_responses_before_a_new_commit() -> (
    None
):
    """1 is refused while 2 waits; 3 is submitted then, and may not reach the coordinator yet."""

    async def story(recorder: Recorder, started: list[Node], client: CoordinatorClient) -> None:
        released = asyncio.Event()

        async def wait() -> Response:
            await released.wait()
            return CommitBatchesResponse()

        def then(_: object) -> Awaitable[Response] | None:
            if len(recorder.committed) == 2:
                return fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return wait() if len(recorder.committed) == 3 else None

        recorder.then = then
        await client.submit(commit(0))
        answers = [client.submit(commit(1)), client.submit(commit(2))]
        await wait_until_async(lambda: len(recorder.committed) == 3)
        async with await open_rpc(*started[0].address):
            pass  # several round trips later the refusal has certainly arrived
        answers.append(client.submit(commit(3)))
        async with await open_rpc(*started[0].address):
            pass
        assert recorder.committed == [0, 1, 2]
        released.set()
        await asyncio.gather(*answers)
        assert recorder.committed == [0, 1, 2, 1, 3]

    served(story)


def test_a_coordinator_client_sends_commits_of_a_lost_connection_again_to_the_next_leader() -> None:
    async def story(recorder: Recorder, started: list[Node], client: CoordinatorClient) -> None:
        old, new = started
        await client.call(commit(0))

        def fall_silent(*_: object) -> Any:
            return never()

        old.before = fall_silent
        answers = [client.submit(commit(i)) for i in range(1, 6)]
        await wait_until_async(lambda: old.seen.count(1094) >= 6)
        old.leads, new.leads = False, True
        await old.stop()
        await asyncio.gather(*answers)
        assert recorder.committed == list(range(6))
        assert new.seen.count(1094) == 5

    served(story, count=2)


PATIENT = ClientSettings(timeout_ms=60_000, attempt_timeout_ms=60_000, retry_ms=1)


def test_a_coordinator_client_drops_its_connection_when_it_learns_of_another_leader() -> None:
    """A process that stands still closes no connection."""

    async def story(recorder: Recorder, started: list[Node], client: CoordinatorClient) -> None:
        old, new = started
        await client.call(commit(0))

        def fall_silent(*_: object) -> Any:
            return never()

        old.before = fall_silent
        answers = [client.submit(commit(i)) for i in range(1, 4)]
        await wait_until_async(lambda: old.seen.count(1094) >= 4)
        client.note_leader(0)  # no news
        old.leads, new.leads = False, True
        client.note_leader(1)
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*answers)
        assert recorder.committed == list(range(4))
        before = new.seen.count(18)
        client.note_leader(1)
        await client.call(commit(4))
        assert new.seen.count(18) == before, "it has no reason to connect again"

    served(story, count=2, settings=PATIENT)


def test_a_coordinator_client_delays_its_requests_until_the_coordinator_has_a_leader() -> None:
    async def story(recorder: Recorder, started: list[Node], client: CoordinatorClient) -> None:
        started[0].leads = False
        answer = client.submit(commit(1))
        await wait_until_async(lambda: started[0].seen.count(55) >= 3)
        assert not answer.done()
        started[0].leads = True
        await answer
        assert recorder.committed == [1]

    served(story)


# Its time is over in the middle of a pause, not while an answer is awaited.
PAUSING = ClientSettings(
    timeout_ms=1_500, attempt_timeout_ms=5_000, retry_ms=1_000, retry_max_ms=1_000
)


def test_a_coordinator_clients_error_states_whether_the_request_may_have_been_decided() -> None:
    async def story(recorder: Recorder, started: list[Node], client: CoordinatorClient) -> None:
        safe = IsSafeToDeleteFileRequest(coordinator_partition=0, object_key="key")
        recorder.then = lambda _: fail(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        for asked in (client.call(commit(1)), client.call(safe)):
            with pytest.raises(CoordinatorError, match="told to") as caught:
                await asked
            assert caught.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert not isinstance(caught.value, OutcomeUnknownError)
        recorder.then = lambda _: fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        for asked in (client.call(commit(2)), client.call(safe)):
            with pytest.raises(OutcomeUnknownError):
                await asked
        files = GetFilesToDeleteRequest(coordinator_partition=0, max_files=1)
        with pytest.raises(CoordinatorError) as caught:
            await client.call(files)
        assert not isinstance(caught.value, OutcomeUnknownError), "reading leaves nothing in doubt"
        started[0].leads = False
        with pytest.raises(CoordinatorError, match="has no leader: 1 of 1 nodes answer") as caught:
            await client.call(commit(3))
        assert not isinstance(caught.value, OutcomeUnknownError)

    served(story, settings=PAUSING)


@pytest.mark.parametrize(("offset", "times"), [(-1, 1), (5, 2)])
def test_a_coordinator_client_does_not_repeat_a_deletion_of_all_records_with_an_unknown_outcome(
    offset: int, times: int
) -> None:
    """The first attempt may arrive late, and would delete what was written since."""

    async def story(recorder: Recorder, _: list[Node], client: CoordinatorClient) -> None:
        recorder.then = lambda _: (
            fail(ErrorCode.NOT_LEADER_OR_FOLLOWER) if len(recorder.calls) == 1 else None
        )
        if offset == -1:
            with pytest.raises(OutcomeUnknownError):
                await client.call(delete_records(offset))
        else:
            await client.call(delete_records(offset))
        assert len(recorder.calls) == times

    served(story)


def test_closing_a_coordinator_client_with_abandoned_commits_logs_no_error() -> None:
    """A caller that still waits gets its error all the same."""
    noise: list[dict[str, Any]] = []

    async def story(recorder: Recorder, _: list[Node], client: CoordinatorClient) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: noise.append(context))
        recorder.then = lambda _: never()
        for object_id in range(1, 4):
            client.submit(commit(object_id))
        waited = asyncio.ensure_future(client.call(commit(4)))
        gone = client.submit(commit(5))
        gone.cancel()
        await wait_until_async(lambda: recorder.calls)
        await client.close()
        client.submit(commit(6))
        with pytest.raises(CoordinatorError, match="closed"):
            await waited
        gc.collect()

    served(story)
    gc.collect()
    assert noise == []


def test_closing_a_coordinator_client_that_searches_for_a_leader_fails_its_pending_call() -> None:
    """Not a cancellation, which the caller would take for its own."""

    async def story() -> None:
        asked = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.set()
            await reader.read()
            writer.close()

        async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
            client = CoordinatorClient([server.sockets[0].getsockname()], settings=FAST)
            read = asyncio.ensure_future(client.call(FindBatchesRequest(topics=(), max_bytes=1)))
            written = client.submit(commit(1))
            await asyncio.wait_for(asked.wait(), timeout=DEADLINE_S)
            await client.close()
            for call in (read, written):
                with pytest.raises(CoordinatorError, match="closed"):
                    await asyncio.wait_for(call, timeout=DEADLINE_S)

    asyncio.run(story())


def test_closing_a_coordinator_client_ends_every_pending_call_with_an_error() -> None:
    async def story(recorder: Recorder, _: list[Node], client: CoordinatorClient) -> None:
        recorder.then = lambda _: never()
        answer = client.submit(commit(1))
        await wait_until_async(lambda: recorder.calls)
        await client.close()
        with pytest.raises(OutcomeUnknownError, match="closed"):
            await answer
        with pytest.raises(CoordinatorError, match="closed") as caught:
            await client.call(commit(2))
        assert not isinstance(caught.value, OutcomeUnknownError)

    served(story)


def test_a_coordinator_client_refuses_a_request_that_names_another_coordinator() -> None:
    async def story(_: Recorder, __: list[Node], client: CoordinatorClient) -> None:
        with pytest.raises(ValueError, match="for coordinator 3, this client's is 0"):
            await client.call(GetFilesToDeleteRequest(coordinator_partition=3, max_files=1))

    served(story)


# --- the service --------------------------------------------------------------------------------


def sample(message: type[Message]) -> Any:
    """A message with one element in each array, and zeros."""
    fields: dict[str, Any] = {}
    for field in message.schema().fields:
        match field.type:
            case ArrayOf(StructOf(element)):
                fields[field.name] = (sample(element),)
            case ArrayOf(element) if not isinstance(element, RowOf):
                fields[field.name] = (zero(element),)
            case kind:
                fields[field.name] = zero(kind)
    return message(**fields)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.request.__name__)
def test_a_refusal_of_a_coordinator_call_survives_encoding_and_decoding_in_every_response(
    call: Call[Any],
) -> None:
    request = sample(call.request)
    refusal = refuse(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, "why")
    decoded = decode_message(call.response, encode_message(refusal, 0), 0)
    assert decoded == refusal
    error = read_refusal(decoded)
    assert error is not None
    assert error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert read_refusal(refuse(request, 0, "")) is None


def test_a_node_without_the_requested_coordinator_answers_coordinator_not_available() -> None:
    async def main() -> None:
        (node,) = await nodes(Recorder())
        async with await open_rpc(*node.address) as rpc:
            request = GetFilesToDeleteRequest(coordinator_partition=9, max_files=1)
            answer = await rpc.call(request, GetFilesToDeleteResponse)
            assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert "partition 9" in answer.error_message
        await node.stop()

    run(main())


def test_a_coordinator_refuses_an_oversized_commit_request_before_it_decodes_the_request() -> None:
    """Its bytes would not even decode."""

    async def main() -> None:
        recorder = Recorder()
        (node,) = await nodes(recorder)
        async with await open_rpc(*node.address) as rpc:
            kind = request_kind(CommitBatchesRequest, 0)
            body = await rpc.connection.request(kind, b"\xff" * (MAX_COMMIT_BYTES + 1))
            assert int.from_bytes(body[4:6], "big") == ErrorCode.MESSAGE_TOO_LARGE
            largest = tuple(
                CommitBatchesRequest.Topic(
                    topic_id=UUID(int=i),
                    partitions=(
                        CommitBatchesRequest.Topic.Partition(
                            partition_index=0,
                            batches=(CommitBatch(i, 1, 0, 0, 1, 0, -1, -1, -1, -1),),
                        ),
                    ),
                )
                for i in range(10_000)
            )
            request = CommitBatchesRequest(
                broker_id=1, broker_epoch=1, lease_id=1, object_id=1, object_format=1,
                object_size=10_000, topics=largest,
            )  # fmt: skip
            assert (await rpc.call(request, CommitBatchesResponse)).error_code == 0
            assert recorder.committed == [1]
        await node.stop()

    run(main())


@pytest.mark.parametrize(
    "body", [b"\xff" * 40, b"", b"\x00" * (MAX_CALL_BYTES + 1)], ids=["nonsense", "empty", "long"]
)
def test_malformed_requests_to_a_coordinator_close_only_the_connection_of_the_sender(
    body: bytes,
) -> None:
    async def main() -> None:
        recorder = Recorder()
        (node,) = await nodes(recorder)
        other = await open_rpc(*node.address)
        async with await open_rpc(*node.address) as rpc:
            with pytest.raises(ConnectionLostError):
                await rpc.connection.request(request_kind(GetFilesToDeleteRequest, 0), body)
        request = GetFilesToDeleteRequest(coordinator_partition=0, max_files=1)
        await other.call(request, GetFilesToDeleteResponse)
        assert recorder.calls == [request]
        other.connection.close()
        await node.stop()

    run(main())
