"""A client of one log's leader: it finds the leader, keeps a connection to it, and retries.

The leader of a partition of `__diskless-metadata` is that partition's batch coordinator; the leader
of `__cluster_metadata-0` is the active controller. Only a leader answers DescribeQuorum without an
error, so the client sends it to all known nodes at once and takes the node that answers: it follows
no redirect and trusts no cached name. The answer names the voters' endpoints, which are known from
then on. A follower names the controllers (DescribeCluster), so one address of any of them is enough
to begin with.

`attempt` sends a request once and says whether it may have been carried out; `call` repeats it with
growing pauses. Services word their refusals differently, so each client passes a `read_refusal`.

The trap: a node that is found not to lead is released, not cut off. Other requests on its
connection still wait for their answers.

Source: KIP-595, KIP-836 (DescribeQuorum), KIP-919 (any controller as a bootstrap server).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from coordinator.errors import CoordinatorError, OutcomeUnknownError
from raft.net.errors import NetError, Reason
from raft.net.rpc import Rpc, open_rpc
from records.internal_topics import DISKLESS_METADATA
from records.kafka_errors import ErrorCode
from records.rpc.base import Request, Response
from records.rpc.cluster import DescribeClusterRequest, DescribeClusterResponse
from records.rpc.quorum import DescribeQuorumRequest, DescribeQuorumResponse

R = TypeVar("R", bound=Response)

Address: TypeAlias = tuple[str, int]
"""Host and port."""

Send: TypeAlias = Callable[[Rpc], Awaitable[R]]
"""Sends a request on a connection to the leader, and returns the response."""


CONTROLLERS: Final = 2  # DescribeCluster's endpoint type

SILENCE_S: Final = 1.0
"""How long to wait for silent nodes once another has answered that it does not lead. A silent node
may be a leader that stands still; then the others will soon elect one, and are contacted again."""

MAX_ADDRESSES: Final = 64
"""Known nodes: a bound on the addresses that answers can add."""


class NobodyListensError(CoordinatorError):
    """Every known node's machine says that no process listens there: none runs, for now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """The time for which a request is repeated, and the pauses. All in seconds."""

    timeout_s: float  # of all attempts together
    alone_s: float | None = None  # of attempts that find no known node running; None: no less
    retry_s: float = 0.02  # the first pause; each next one is twice as long
    retry_max_s: float = 0.5

    def pauses(self) -> Iterator[float]:
        """Yield the pauses in seconds between attempts, each twice the previous up to a limit.

        >>> from itertools import islice
        >>> list(islice(Patience(timeout_s=30, retry_s=1.0, retry_max_s=5.0).pauses(), 5))
        [1.0, 2.0, 4.0, 5.0, 5.0]
        """
        pause_s = self.retry_s
        while True:
            yield pause_s
            pause_s = min(self.retry_max_s, 2 * pause_s)


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt without an answer."""

    error: CoordinatorError | NetError
    in_doubt: bool  # whether the request may have been carried out
    refusal: Response | None = None  # the response, where the error was read from one

    @property
    def reason(self) -> str:
        """Return the error message of the failed attempt without its error code."""
        error = self.error
        return error.message if isinstance(error, CoordinatorError) else str(error)


class LeaderClient:
    """A client of a log's leader, shared by all calls of its owner; belongs to the event loop."""

    def __init__(
        self,
        bootstrap: Iterable[Address],
        partition: int,
        *,
        client_id: str,
        timeout_ms: int,
        topic: str = DISKLESS_METADATA,
    ) -> None:
        self._known: dict[Address, None] = dict.fromkeys(bootstrap)  # in this order
        if not self._known:
            raise ValueError("no bootstrap servers")
        self._topic = topic
        self._partition = partition
        self._client_id = client_id
        self._timeout_ms = timeout_ms
        self._current: Rpc | None = None
        self._ids: dict[Rpc, int] = {}  # of the nodes that say they lead
        self._finding: asyncio.Task[Rpc] | None = None
        self._released: set[Rpc] = set()
        self._refused = 0  # nodes of the present search whose machine refused the connection
        self.closed = False

    async def leader(self) -> Rpc:
        """Return a connection to the leader; concurrent callers share one search for the leader.

        Raises:  CoordinatorError (COORDINATOR_NOT_AVAILABLE) if no known node leads just now;
                 NobodyListensError, one of these, if none of them runs.
        """
        if self.closed:
            raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the client is closed")
        if self._current is not None and not self._current.connection.closed:
            return self._current
        if self._finding is None:
            self._finding = asyncio.get_running_loop().create_task(self._find())
            self._finding.add_done_callback(self._found)
        try:
            return await asyncio.shield(self._finding)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self.closed or (task is not None and task.cancelling()):
                raise
            closed = "the client was closed"  # which cancelled the search, not this caller
            raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, closed) from None

    async def attempt(
        self,
        request: Request,
        response: type[R],
        read_refusal: Callable[[R], CoordinatorError | None],
        send: Send[R] | None = None,
    ) -> R | Failure:
        """Send a request to the leader once; return the response, or a Failure.

        Args:  send: sends the request otherwise than as it is.
               read_refusal: the error in a response that means: this node does not lead, or does
               not know what became of the request. None if the response is an answer.
        """
        try:
            rpc = await self.leader()
        except (CoordinatorError, NetError) as error:
            return Failure(error, in_doubt=False)
        is_sent = False
        try:
            version = rpc.version_for(type(request))
            is_sent = True
            if send is None:
                answer = await rpc.call(request, response, version)
            else:
                answer = await send(rpc)
        except NetError as error:
            if error.reason is Reason.BAD_ANSWER:  # other answers on it may be wrong, too
                rpc.connection.close()
            self.release(rpc)
            return Failure(error, in_doubt=is_sent)
        refusal = read_refusal(answer)
        if refusal is None:
            return answer
        self.release(rpc)
        in_doubt = refusal.code != ErrorCode.COORDINATOR_NOT_AVAILABLE
        return Failure(refusal, in_doubt=in_doubt, refusal=answer)

    async def call(
        self,
        request: Request,
        response: type[R],
        read_refusal: Callable[[R], CoordinatorError | None],
        patience: Patience,
        *,
        label: str,
        tracks_doubt: bool = False,
        is_repeatable: bool = True,
        send: Send[R] | None = None,
    ) -> R:
        """Send a request to the leader, and repeat it until a response arrives or time is up.

        Args:    label: what an error's message begins with.
                 tracks_doubt: whether to tell a request that may have been carried out from one
                 that was not; of no use for a read, or where a repetition is answered alike.
                 is_repeatable: if not, a request in doubt is not sent again.
                 send: sends the request otherwise than as it is.
        Raises:  OutcomeUnknownError if an attempt is in doubt, else CoordinatorError
                 (COORDINATOR_NOT_AVAILABLE), or NobodyListensError if at last no node ran.
        """
        loop = asyncio.get_running_loop()
        began = ran_at = loop.time()
        alone_s = patience.timeout_s if patience.alone_s is None else patience.alone_s
        in_doubt = False
        for pause_s in patience.pauses():
            answer = await self.attempt(request, response, read_refusal, send)
            if not isinstance(answer, Failure):
                return answer
            in_doubt = in_doubt or (tracks_doubt and answer.in_doubt)
            now = loop.time()
            is_alone = isinstance(answer.error, NobodyListensError)
            if not is_alone:
                ran_at = now
            is_over = now + pause_s >= min(began + patience.timeout_s, ran_at + alone_s)
            if self.closed or is_over or (in_doubt and not is_repeatable):
                text = f"{label}: {answer.reason}"
                if in_doubt:
                    raise OutcomeUnknownError(ErrorCode.REQUEST_TIMED_OUT, text) from answer.error
                kind = NobodyListensError if is_alone else CoordinatorError
                raise kind(ErrorCode.COORDINATOR_NOT_AVAILABLE, text) from answer.error
            await asyncio.sleep(pause_s)
        raise AssertionError("the pauses have ended")

    def release(self, rpc: Rpc) -> None:
        """Stop using a connection whose node does not lead or is unreachable."""
        if self._current is rpc:
            self._current = None
            if not rpc.connection.closed:
                self._released.add(rpc)
        for old in [old for old in self._released if not old.connection.in_flight]:
            old.connection.close()
            self._released.discard(old)

    def note_leader(self, node_id: int) -> None:
        """Close the current connection unless its node is the leader, `node_id`.

        A leader that stands still closes nothing, and would be waited for until the timeout.
        """
        current = self._current
        if current is not None and self._ids.get(current, node_id) != node_id:
            self._current = None
            current.connection.close()

    def close(self) -> None:
        """Close the client, its connections, and a search for the leader in progress."""
        self.closed = True
        if self._finding is not None:
            self._finding.cancel()
        for rpc in (*self._released, *([self._current] if self._current else [])):
            rpc.connection.close()
        self._released.clear()
        self._current = None

    def _found(self, task: asyncio.Task[Rpc]) -> None:
        self._finding = None
        if task.cancelled() or task.exception() is not None:
            return
        found = task.result()
        if self.closed:
            found.connection.close()
        else:
            self._current = found
            self._ids = {found: self._ids[found]}

    async def _find(self) -> Rpc:
        """Search the known nodes for the leader, and then the nodes that their responses name."""
        contacted: set[Address] = set()
        failures: list[str] = []
        self._refused = 0
        while remaining := [address for address in self._known if address not in contacted]:
            contacted.update(remaining)
            leader = await self._first_leader(remaining, failures)
            if leader is not None:
                return leader
        answered = len(contacted) - len(failures)
        kind = NobodyListensError if self._refused == len(contacted) else CoordinatorError
        raise kind(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            f"{self._topic}-{self._partition} has no leader: {answered} of {len(contacted)} nodes "
            f"answer{''.join(f'; {failure}' for failure in failures)}",
        )

    async def _first_leader(self, addresses: list[Address], failures: list[str]) -> Rpc | None:
        """Return a connection to the first node of `addresses` that claims to lead, else None.

        None once all that answer have said that they do not lead, and the others are silent.
        """
        loop = asyncio.get_running_loop()
        asking = [asyncio.ensure_future(self._ask(address)) for address in addresses]
        leader: Rpc | None = None
        waiting, until = set(asking), None
        try:
            while waiting and leader is None:
                left_s = None if until is None else max(0.0, until - loop.time())
                done, waiting = await asyncio.wait(
                    waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    failures.append(f"{len(waiting)} silent")
                    break
                for task in done:
                    try:
                        leader = leader or task.result()
                    except NetError as error:
                        self._refused += error.reason is Reason.REFUSED
                        failures.append(str(error))
                    else:
                        until = until or loop.time() + SILENCE_S
            return leader
        finally:
            for task in asking:
                if not task.cancel() and not task.cancelled() and task.exception() is None:
                    late = task.result()
                    if late is not None and late is not leader:
                        late.connection.close()

    async def _ask(self, address: Address) -> Rpc | None:
        """Connect to a node and return the connection if the node leads, else None.

        The nodes that it names are remembered.
        """
        rpc = await open_rpc(*address, client_id=self._client_id, timeout_ms=self._timeout_ms)
        leads = False
        try:
            answer = await rpc.call(self._question(), DescribeQuorumResponse)
            found = answer.topics[0].partitions[0] if _has_partition(answer) else None
            leads = found is not None and not (answer.error_code or found.error_code)
            if leads and found is not None:
                self._ids[rpc] = found.leader_id
                self._learn(answer)
            else:
                with contextlib.suppress(NetError):  # it need not know them; it has answered
                    await self._learn_from_follower(rpc)
        finally:
            if not leads:
                rpc.connection.close()
        return rpc if leads else None

    def _question(self) -> DescribeQuorumRequest:
        topic = DescribeQuorumRequest.TopicData
        partition = topic.PartitionData(partition_index=self._partition)
        return DescribeQuorumRequest(
            topics=(topic(topic_name=self._topic, partitions=(partition,)),)
        )

    def _learn(self, answer: DescribeQuorumResponse) -> None:
        for node in answer.nodes:
            for listener in node.listeners:
                self._remember((listener.host, listener.port))

    async def _learn_from_follower(self, rpc: Rpc) -> None:
        """Ask a follower for the controllers' addresses, and remember them.

        Its DescribeQuorum response is an error and names none.
        """
        request = DescribeClusterRequest(
            include_cluster_authorized_operations=False, endpoint_type=CONTROLLERS
        )
        answer = await rpc.call(request, DescribeClusterResponse)
        for node in answer.brokers:
            self._remember((node.host, node.port))

    def _remember(self, address: Address) -> None:
        if len(self._known) < MAX_ADDRESSES:
            self._known.setdefault(address)


def _has_partition(answer: DescribeQuorumResponse) -> bool:
    return bool(answer.topics and answer.topics[0].partitions)
