"""What does the protocol itself cost a leader, without disk, wire and codec?

    python -m bench.bench_quorum_core [--tiny]

A leader of three voters takes proposals, some together; after each step its own flush is reported
and both followers fetch, acknowledging everything, so every proposal commits. The clock stands
still. Beside it, as a limit, the cost of building the values that must be built for each proposal
(an accepted batch and its answer), which no protocol on NamedTuples can avoid. CPU time per
proposal.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import time
from random import Random
from typing import Final

from raft.core import (
    ElectionState,
    Epoch,
    LogState,
    NodeId,
    Offset,
    Quorum,
    ReplicaKey,
    VoterSet,
    VoterSetHistory,
)
from raft.core.effects import Accepted, Send
from raft.core.events import (
    AppendDurable,
    ElectionStateDurable,
    NewBatch,
    Proposal,
    Propose,
    Received,
    ResponseReceived,
    Start,
    Tick,
)
from raft.core.messages import Batch, FetchRequest, VoteRequest, VoteResponse

PROPOSALS: Final = 200_000
TOGETHER: Final = (1, 10, 100, 1000)
EPOCH: Final = Epoch(1)


def elect() -> Quorum:
    """Return the Raft core of a leader of epoch 1 whose first record is committed."""
    quorum = Quorum(
        identity=ReplicaKey(NodeId(1)),
        cluster_id=None,
        voters=VoterSetHistory(VoterSet.of_ids(1, 2, 3)),
        log=LogState(),
        election=ElectionState(epoch=Epoch(0)),
        random=Random(1),
    )
    quorum.step(Start(), 0)
    effects = quorum.step(Tick(), 5000)
    for sequence in (1, 2):  # pre-vote, then vote
        sent = next(
            effect
            for effect in effects
            if isinstance(effect, Send) and isinstance(effect.request, VoteRequest)
        )
        granted = VoteResponse(leader_id=None, epoch=quorum.epoch, granted=True)
        quorum.step(ResponseReceived(sent.request_id, granted), 5000)
        effects = quorum.step(ElectionStateDurable(sequence), 5000)
    quorum.step(AppendDurable(Offset(1), 0), 5000)
    fetch(quorum, 2, 0)
    assert quorum.log.high_watermark == 1, quorum.log
    return quorum


def fetch(quorum: Quorum, node: int, correlation: int) -> None:
    """Give the leader a follower's Fetch request from the end of the leader's log."""
    log = quorum.log
    request = FetchRequest(
        cluster_id=None,
        replica=ReplicaKey(NodeId(node)),
        epoch=EPOCH,
        fetch_offset=log.end_offset,
        last_fetched_epoch=EPOCH,
        high_watermark=log.high_watermark,
        max_wait_ms=500,
    )
    quorum.step(Received(node, correlation, request), 5000)


def commit(together: int, proposals: int) -> float:
    """Return the CPU microseconds per proposal, with `together` proposals in each step."""
    quorum = elect()
    batch = (NewBatch(1, 100, b""),)
    event = Propose(tuple(Proposal(i, EPOCH, None, batch) for i in range(together)))
    began = time.process_time()
    for step in range(proposals // together):
        quorum.step(event, 5000)
        quorum.step(AppendDurable(quorum.log.end_offset, 0), 5000)
        fetch(quorum, 2, step)
        fetch(quorum, 3, step)
    elapsed = time.process_time() - began
    assert quorum.log.high_watermark == quorum.log.end_offset
    return elapsed / proposals * 1e6


def values_alone(proposals: int) -> float:
    """Return the lower bound in CPU microseconds: two tuples and two list appends per proposal."""
    batches: list[Batch] = []
    answers: list[Accepted] = []
    began = time.process_time()
    for i in range(proposals):
        start, end = Offset(i), Offset(i + 1)
        batches.append(Batch(start, end, EPOCH, 100, b""))
        answers.append(Accepted(i, EPOCH, start, end))
        if len(batches) == 1000:  # as a step lets go of them
            batches.clear()
            answers.clear()
    return (time.process_time() - began) / proposals * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="seconds less, figures worthless")
    proposals = 2000 if parser.parse_args().tiny else PROPOSALS
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    print(f"{described.stdout.strip()}  Python {platform.python_version()}  {platform.machine()}")
    limit_us = values_alone(proposals)
    print(f"values alone                    {limit_us:6.2f} us")
    for together in TOGETHER:
        cost_us = commit(together, proposals)
        print(
            f"{together:5d} proposals in a step       {cost_us:6.2f} us   "
            f"{limit_us / cost_us:5.2f} of the limit   {1e6 / cost_us:9,.0f} commits/s"
        )


if __name__ == "__main__":
    main()
