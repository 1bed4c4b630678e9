"""Finding a group's leader, and keeping a connection to it.

Whoever leads the group of a partition of `__diskless-metadata` is its batch coordinator; whoever
leads `__cluster_metadata-0` is the active controller. DescribeQuorum
is answered without an error by the leader alone, so all known nodes are asked at once, and the one
that answers is it: no redirect is followed, no cached name is trusted. The answer names the voters'
endpoints, which are asked as well from then on. A follower names the controllers, too, so that one
address of any of them is enough to begin with.

Surprise: a leader that turns out to be none is let go of, not cut off. Other requests on that
connection still wait for their answers.

Source: KIP-595, KIP-836 (DescribeQuorum), KIP-919 (any controller as a bootstrap server).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Final, TypeAlias

from coordinator.errors import CoordinatorError
from raft.net.errors import NetError, Reason
from raft.net.rpc import Rpc, open_rpc
from records.kafka_errors import ErrorCode
from records.rpc.cluster import DescribeClusterRequest, DescribeClusterResponse
from records.rpc.quorum import DescribeQuorumRequest, DescribeQuorumResponse

Address: TypeAlias = tuple[str, int]
"""Host and port."""

DISKLESS_METADATA: Final = "__diskless-metadata"

CONTROLLERS: Final = 2  # DescribeCluster's endpoint type

SILENCE_S: Final = 1.0
"""How long silent nodes are waited for once another has said that it does not lead. One of them may
be a leader that stands still; then those who answer will soon have another, and are asked again."""

MAX_ADDRESSES: Final = 64
"""Known nodes: a bound on what answers can make us remember and ask."""


class NobodyListensError(CoordinatorError):
    """Every known node's machine says that no process listens there: none runs, for now."""


class LeaderFinder:
    """The way to one group's leader. Shared by all calls of a client."""

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
        self._let_go: set[Rpc] = set()
        self._refused = 0  # of those who are asked just now
        self.closed = False

    async def leader(self) -> Rpc:
        """A connection to the leader; whoever asks while it is being looked for waits along.

        Raises:  CoordinatorError (COORDINATOR_NOT_AVAILABLE) if nobody known leads just now;
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
            closed = "the client was closed"  # which cancelled the search, not whoever asked
            raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, closed) from None

    def lost(self, rpc: Rpc) -> None:
        """This one does not lead any more, or cannot be reached."""
        if self._current is rpc:
            self._current = None
            if not rpc.connection.closed:
                self._let_go.add(rpc)
        for old in [old for old in self._let_go if not old.connection.in_flight]:
            old.connection.close()
            self._let_go.discard(old)

    def leads(self, node_id: int) -> None:
        """Somebody has learned who leads: if that is not whom we ask, wait there no longer.

        A leader that stands still closes nothing, and would be waited for until the time is over.
        """
        current = self._current
        if current is not None and self._ids.get(current, node_id) != node_id:
            self._current = None
            current.connection.close()

    def close(self) -> None:
        """Close all connections."""
        self.closed = True
        if self._finding is not None:
            self._finding.cancel()
        for rpc in (*self._let_go, *([self._current] if self._current else [])):
            rpc.connection.close()
        self._let_go.clear()
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
        """Ask everybody at once; the first that leads wins. Then whom they named, if nobody did."""
        asked: set[Address] = set()
        unheard: list[str] = []
        self._refused = 0
        while unasked := [address for address in self._known if address not in asked]:
            asked.update(unasked)
            leader = await self._first_leader(unasked, unheard)
            if leader is not None:
                return leader
        heard = len(asked) - len(unheard)
        kind = NobodyListensError if self._refused == len(asked) else CoordinatorError
        raise kind(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            f"{self._topic}-{self._partition} has no leader: {heard} of {len(asked)} nodes "
            f"answer{''.join(f'; {why}' for why in unheard)}",
        )

    async def _first_leader(self, addresses: list[Address], unheard: list[str]) -> Rpc | None:
        """The leader among these; None once nobody who answers leads, and the others are silent."""
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
                    unheard.append(f"{len(waiting)} silent")
                    break
                for task in done:
                    try:
                        leader = leader or task.result()
                    except NetError as error:
                        self._refused += error.reason is Reason.REFUSED
                        unheard.append(str(error))
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
        """A connection to this node if it leads; None, and whom it knows, if it does not."""
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
                with contextlib.suppress(NetError):  # it need not know; it has answered
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
            for at in node.listeners:
                self._remember((at.host, at.port))

    async def _learn_from_follower(self, rpc: Rpc) -> None:
        """Its DescribeQuorum is an error and names nobody; who the controllers are it does say."""
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
