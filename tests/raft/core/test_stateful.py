"""Safety holds in random histories of three or five members, drawn by Hypothesis.

The members check their own invariants after every step (invariants 1 and 11,
docs/design/invariants.md); the cluster checks that no epoch has two leaders and that nobody commits
anything else than was committed before (invariants 1 to 3). When everything is healed, a record
must commit.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from raft.core.effects import Effect, Respond, RespondFetch, Send
from raft.core.quorum import Quorum
from raft.core.roles import Leader
from records.types import NodeId
from tests.raft.core.transcript import Story

pytestmark = pytest.mark.slow


def nothing_leaves_before_it_is_durable(
    node_id: NodeId, quorum: Quorum, effects: list[Effect]
) -> None:
    """Invariant 11: no message leaves while the election state is being written."""
    if quorum._context.gate.is_closed:
        said = [e for e in effects if isinstance(e, Send | Respond | RespondFetch)]
        assert not said, f"{node_id} says {said} while it writes its election state"


class Upheaval(RuleBasedStateMachine):
    """Any node may crash, stall, or be cut off at any time; disks are never lost."""

    story: Story
    size: int

    @initialize(size=st.sampled_from([3, 3, 5]), seed=st.integers(0, 2**32))
    def begin(self, size: int, seed: int) -> None:
        self.story, self.size = Story(), size
        self.story.play([f"cluster voters={size} observers=1 seed={seed}"])
        self.story.cluster.recorder = nothing_leaves_before_it_is_durable
        self.story.play(["start"])

    def do(self, command: str, node: int) -> None:
        self.story.play([f"{command} {node % self.size + 1}"])

    def up(self, node: int) -> bool:
        return self.story.cluster.nodes[NodeId(node % self.size + 1)].quorum is not None

    @rule(duration_ms=st.sampled_from([1, 2, 3, 5, 10, 50, 300, 1500]))
    def time_passes(self, duration_ms: int) -> None:
        self.story.play([f"run {duration_ms}"])

    @rule(node=st.integers(0, 4))
    def loses_patience(self, node: int) -> None:
        if self.up(node):
            self.do("timeout", node)

    @rule(node=st.integers(0, 4), records=st.integers(1, 3))
    def append(self, node: int, records: int) -> None:
        if self.up(node):
            self.story.play([f"append {node % self.size + 1}" + " x" * records])

    @rule(node=st.integers(0, 4))
    def crashes(self, node: int) -> None:
        if self.up(node):
            self.do("crash", node)

    @rule(node=st.integers(0, 4))
    def restarts(self, node: int) -> None:
        if not self.up(node):
            self.do("restart", node)

    @rule(node=st.integers(0, 4), stalled=st.booleans())
    def disk_stalls_or_goes_on(self, node: int, stalled: bool) -> None:
        if self.up(node):
            self.do("hold-disk" if stalled else "release-disk", node)

    @rule(one=st.integers(0, 4), other=st.integers(0, 4))
    def link_breaks(self, one: int, other: int) -> None:
        self.story.play([f"oneway {one % self.size + 1} {other % self.size + 1}"])

    @rule(one=st.integers(0, 4), other=st.integers(0, 4))
    def connection_is_reset(self, one: int, other: int) -> None:
        if one % self.size != other % self.size:
            self.story.play([f"reset {one % self.size + 1} {other % self.size + 1}"])

    @rule()
    def links_heal(self) -> None:
        self.story.play(["heal"])

    @rule(node=st.integers(0, 4))
    def is_asked_to_resign(self, node: int) -> None:
        if self.up(node):
            self.do("resign", node)

    @rule(node=st.integers(0, 4), trim=st.booleans())
    def takes_a_snapshot(self, node: int, trim: bool) -> None:
        if not self.up(node):
            return
        log = self.story.cluster.nodes[NodeId(node % self.size + 1)].quorum.log
        newest = log.snapshot_id.offset if log.snapshot_id else 0
        if (log.high_watermark or 0) > newest:
            self.do_with("snapshot", node, log.high_watermark)
            if trim and log.flushed_end_offset >= log.high_watermark:
                self.do_with("trim", node, log.high_watermark)

    @rule(node=st.integers(0, 4), well=st.booleans())
    def a_download_ends(self, node: int, well: bool) -> None:
        if self.up(node):
            quorum = self.story.cluster.nodes[NodeId(node % self.size + 1)].quorum
            if quorum._context.follower.fetching_snapshot is not None:
                self.do("fetched" if well else "failed", node)

    @rule(node=st.integers(0, 4), crash=st.booleans())
    def a_download_ends_late(self, node: int, crash: bool) -> None:
        disk = self.story.cluster.nodes[NodeId(node % self.size + 1)].disk
        if disk.late and self.up(node):
            offset, epoch = disk.late.pop()
            if not crash:
                self.do_with("fetched", node, offset, epoch)
            elif disk.snapshot_id is None or disk.snapshot_id < (offset, epoch):
                self.do_with("checkpoint", node, offset, epoch)
                self.do("crash", node)

    def do_with(self, command: str, node: int, *numbers: object) -> None:
        self.story.play([f"{command} {node % self.size + 1} " + " ".join(map(str, numbers))])

    @invariant()
    def logs_that_agree_on_an_epoch_agree_before_it(self) -> None:
        """Invariant 3, over all pairs of logs, compared as a whole."""
        if not hasattr(self, "story"):
            return
        logs = [node.disk.log for node in self.story.cluster.nodes.values()]
        for one in logs:
            for other in logs:
                here = {batch.base_offset: batch for batch in one}
                there = {batch.base_offset: batch for batch in other}
                both = sorted(here.keys() & there.keys())
                for at in reversed(both):
                    if here[at].epoch == there[at].epoch:
                        below = [offset for offset in both if offset <= at]
                        assert all(here[o] == there[o] for o in below), f"logs part before {at}"
                        break

    def teardown(self) -> None:
        """Heal everything; within ten election timeouts a record commits on all nodes."""
        if not hasattr(self, "story"):
            return
        cluster = self.story.cluster
        self.story.play(["heal"])
        for node_id, node in cluster.nodes.items():
            if node.quorum is None:
                cluster.start(node_id)
            elif node.held is not None:
                cluster.release_disk(node_id)
        for _ in range(8):
            cluster.run(1000)
            self.let_downloads_end()
        leaders = [n for n in cluster.nodes.values() if n.quorum and type(n.quorum.role) is Leader]
        assert len(leaders) == 1, [cluster.state_line(node) for node in cluster.nodes]
        before = leaders[0].committed
        self.story.play([f"append {leaders[0].id} last", "run 1000"])
        self.let_downloads_end()
        cluster.run(1000)
        committed = [node.committed for node in cluster.nodes.values()]
        assert min(committed) > before, [cluster.state_line(node) for node in cluster.nodes]

    def let_downloads_end(self) -> None:
        for node_id, node in self.story.cluster.nodes.items():
            if node.quorum and node.quorum._context.follower.fetching_snapshot is not None:
                self.story.play([f"fetched {node_id}"])


TestUpheaval = Upheaval.TestCase
TestUpheaval.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
