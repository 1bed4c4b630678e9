"""Groups under all kinds of faults at once, beside a simple model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from coordinator.groups.events import Call
from coordinator.groups.machine import GroupMachine
from coordinator.groups.state import GroupsImage
from records.rpc.group_log import FetchGroupStateRequest
from records.rpc.groups import OffsetFetchRequest
from tests.coordinator.groups.world import (
    GROUP,
    Consumer,
    World,
    commit_request,
    drive,
    load,
    records_of,
)
from tests.examples import seeds

pytestmark = pytest.mark.slow

BROKERS = (1, 2, 3)
NOBODY = "nobody"
FOREVER = 1 << 60
LOST = {25, 82}  # after these a member starts anew
AGAIN = {22, 27}  # after these a member rejoins

WHO = st.integers(0, 2)
AT = st.sampled_from((0, 0, 0, 0, *BROKERS))  # 0: the broker that is to act for the group


class Sent:
    """One commit with an offset of its own, which identifies its sender."""

    def __init__(self, number: int, member: Consumer | None, broker: int, now: int) -> None:
        self.number = number
        self.member_id = NOBODY if member is None else member.member_id
        self.generation = -1 if member is None else member.generation
        self.broker = broker
        self.sent_at = now
        self.answered_at = FOREVER
        self.code: int | None = None


class GroupsVersusModel(RuleBasedStateMachine):
    """Runs random steps on groups and a model. `steps` counts the rules: the model's only clock."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(brokers=BROKERS, checks_brokers=False)
        self.world.seen = self.seen
        self.world.holds = self.holds
        self.to_hold = self.withheld = 0
        self.steps = 0
        self.clients = [
            Consumer(self.world, "a"),
            Consumer(self.world, "b", instance_id="i"),
            Consumer(self.world, "c", version=3),
        ]
        self.working: set[int] = set()
        self.joining: dict[int, list[int]] = {0: [], 1: [], 2: []}
        self.syncing: dict[int, list[tuple[int, int]]] = {0: [], 1: [], 2: []}
        self.commits: dict[int, Sent] = {}  # by ticket
        self.sent: dict[int, Sent] = {}  # by offset
        self.fetches: dict[int, int] = {}  # ticket -> when
        self.number = 0
        self.stored = -1

    # --- what the log shows -------------------------------------------------------------------

    def seen(self, image: GroupsImage) -> None:
        """Check that the commit in an applied batch was allowed to its member and broker."""
        group = image.groups.get(GROUP)
        committed = None if group is None else group.offsets.get(("t", 0))
        if group is None or committed is None or committed.offset == self.stored:
            return
        self.stored = committed.offset
        sent = self.sent[committed.offset]
        assert group.broker_id == sent.broker, f"{sent.broker} committed, {group.broker_id} owns"
        if sent.generation < 0:
            assert not group.member_ids, "a commit without a member in a group that has members"
        else:
            assert sent.generation == group.generation_id, "a commit of another generation"
            assert sent.member_id in group.member_ids, "a commit of no member"

    def overwritten(self, offset: int, before: int) -> bool:
        """Return whether this offset must be gone after what was acknowledged before `before`."""
        answered_at = -1 if offset < 0 else self.sent[offset].answered_at
        return any(
            sent.code == 0 and sent.answered_at < before and sent.sent_at > answered_at
            for sent in self.sent.values()
        )

    # --- clients ------------------------------------------------------------------------------

    def at(self, choice: int) -> int | None:
        broker = self.world.owner() if choice == 0 else BROKERS[choice - 1]
        return broker if broker in self.world.brokers else None

    @rule(group=st.sets(WHO, min_size=1), rounds=st.integers(3, 10))
    def work(self, group: set[int], rounds: int) -> None:
        """Let these consumers do for a while what a client library does."""
        for index in group:
            self.joining[index].clear()
            self.syncing[index].clear()
        members = [self.clients[index] for index in sorted(group)]
        drive(self.world, members, rounds)
        for member in members:
            if member.generation >= 0:
                self.send_commit(member, self.world.owner())
        self.collect()

    @rule(index=WHO, choice=AT, changed=st.booleans())
    def join(self, index: int, choice: int, changed: bool) -> None:
        broker = self.at(choice)
        if broker is not None:
            client = self.clients[index]
            if changed:
                client.metadata = f"{self.steps}".encode()
            self.joining[index].append(client.send_join(broker=broker))
        self.collect()

    @rule(index=WHO, choice=AT)
    def sync(self, index: int, choice: int) -> None:
        broker, client = self.at(choice), self.clients[index]
        if broker is not None and client.generation >= 0:
            ticket = client.send_sync(broker=broker)
            self.syncing[index].append((ticket, client.generation))
        self.collect()

    @rule(index=WHO, choice=AT)
    def beat(self, index: int, choice: int) -> None:
        broker, client = self.at(choice), self.clients[index]
        if broker is not None and client.generation >= 0:
            ticket = self.world.send(client.beat_request(), broker=broker)
            if ticket in self.world.answers:
                self.note_error(index, self.world.answers[ticket].error_code)
        self.collect()

    @rule(index=WHO, choice=AT)
    def leave(self, index: int, choice: int) -> None:
        broker, client = self.at(choice), self.clients[index]
        if broker is not None and client.member_id:
            self.world.send(client.leave_request(), broker=broker)
            self.begin_anew(index)
        self.collect()

    @rule(index=WHO)
    def die(self, index: int) -> None:
        """Replace a consumer by a new process; a static member keeps its instance id."""
        self.begin_anew(index)
        self.collect()

    @rule(index=st.integers(0, 3), choice=AT, times=st.integers(1, 2))
    def commit(self, index: int, choice: int, times: int) -> None:
        """Commit as one of the members with its current view; 3 is no member."""
        broker = self.at(choice)
        client = self.clients[index] if index < 3 else None
        if broker is not None and (client is None or client.generation >= 0):
            for _ in range(times):
                self.send_commit(client, broker)
        self.collect()

    def send_commit(self, client: Consumer | None, broker: int) -> None:
        self.number += 1
        sent = self.sent[self.number] = Sent(self.number, client, broker, self.steps)
        self.commits[self.world.tickets + 1] = sent
        self.world.send(commit_request(client, self.number), version=9, broker=broker)

    @rule(choice=AT)
    def fetch(self, choice: int) -> None:
        broker = self.at(choice)
        if broker is not None:
            topic = OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=(0,))
            request = OffsetFetchRequest(group_id=GROUP, topics=(topic,))
            ticket = self.world.send(request, version=7, broker=broker)
            self.fetches[ticket] = self.steps
        self.collect()

    def begin_anew(self, index: int) -> None:
        client = self.clients[index]
        client.member_id, client.generation, client.joined = "", -1, None
        self.joining[index].clear()
        self.syncing[index].clear()
        self.working.discard(index)

    def note_error(self, index: int, code: int) -> None:
        if code in LOST:
            self.begin_anew(index)
        elif code in AGAIN:
            self.working.discard(index)

    def collect(self) -> None:
        """Deliver all answers, and advance the clock."""
        self.withheld -= 1
        if self.withheld == 0:
            self.world.log.auto_commit = True
            self.world.log.commit()
            self.world.run()
        answers = self.world.answers
        for index, client in enumerate(self.clients):
            for ticket in [ticket for ticket in self.joining[index] if ticket in answers]:
                if ticket not in self.joining[index]:
                    break
                self.joining[index].remove(ticket)
                if answers[ticket].error_code == 79:
                    client.member_id = answers[ticket].member_id
                elif client.joins(ticket) == 0:
                    self.working.discard(index)
                else:
                    self.note_error(index, answers[ticket].error_code)
            for entry in [entry for entry in self.syncing[index] if entry[0] in answers]:
                if entry not in self.syncing[index]:
                    break
                self.syncing[index].remove(entry)
                ticket, generation = entry
                code = answers[ticket].error_code
                if code == 0 and generation == client.generation:
                    client.synced(ticket)
                    assert client.assignment.startswith(f"{generation}:".encode()), (
                        client.assignment
                    )
                    self.working.add(index)
                self.note_error(index, code)
        for ticket in [ticket for ticket in self.commits if ticket in answers]:
            sent = self.commits.pop(ticket)
            sent.code = answers[ticket].topics[0].partitions[0].error_code
            sent.answered_at = self.steps
        for ticket in [ticket for ticket in self.fetches if ticket in answers]:
            asked_at, answer = self.fetches.pop(ticket), answers[ticket]
            if answer.error_code == 0:
                offset = answer.topics[0].partitions[0].committed_offset
                assert not self.overwritten(offset, asked_at), f"a stale answer: {offset}"
        self.steps += 1

    # --- brokers ------------------------------------------------------------------------------

    @rule(broker=st.sampled_from(BROKERS))
    def stop_broker(self, broker: int) -> None:
        if broker in self.world.brokers and len(self.world.unfenced - {broker}) >= 1:
            self.world.stop_broker(broker)
            for sent in self.commits.values():
                if sent.broker == broker:
                    sent.answered_at = self.steps  # its answer is lost
            for ticket in [t for t, s in self.commits.items() if s.broker == broker]:
                del self.commits[ticket]
        self.collect()

    @rule(broker=st.sampled_from(BROKERS))
    def start_broker(self, broker: int) -> None:
        if broker not in self.world.brokers:
            self.world.start_broker(broker)
        self.collect()

    @rule(broker=st.sampled_from(BROKERS))
    def fence(self, broker: int) -> None:
        """Fence a broker: the others know, it does not."""
        if broker in self.world.unfenced and len(self.world.unfenced) > 1:
            self.world.unfenced.discard(broker)
            self.world.tell_brokers(b for b in list(self.world.brokers) if b != broker)
        self.collect()

    @rule(broker=st.sampled_from(BROKERS))
    def unfence(self, broker: int) -> None:
        """Unfence a broker: it knows, the others do not yet."""
        if broker in self.world.brokers:
            self.world.unfenced.add(broker)
            self.world.tell_brokers((broker,))
        self.collect()

    # --- the log ------------------------------------------------------------------------------

    @rule(steps=st.integers(1, 6))
    def withhold(self, steps: int) -> None:
        """Commit nothing for some steps."""
        self.world.log.auto_commit = False
        self.withheld = steps
        self.collect()

    @rule(lose=st.booleans())
    def change_leader(self, lose: bool) -> None:
        self.world.change_leader(lose=lose)
        self.collect()

    @rule(checkpoint=st.booleans())
    def restart_log(self, checkpoint: bool) -> None:
        if checkpoint:
            self.world.take_checkpoint()
        self.world.restart_log()
        self.collect()

    @rule(calls=st.integers(1, 4))
    def hold(self, calls: int) -> None:
        """Hold back the next calls of the log until a rule delivers them."""
        self.to_hold = calls
        self.collect()

    def holds(self, broker: int, call: Call) -> bool:  # noqa: ARG002 (the world's)
        """Return whether this call is held back."""
        self.to_hold -= 1
        return self.to_hold >= 0

    @rule(which=st.integers(0, 5), answers=st.booleans(), copies=st.booleans())
    def deliver(self, which: int, answers: bool, copies: bool) -> None:
        """Deliver a held call; its answer may be lost, and it may arrive again later."""
        if self.world.held:
            topic_partition = which % len(self.world.held)
            broker_id, call = self.world.held[topic_partition]
            if not copies:
                del self.world.held[topic_partition]
            broker = self.world.brokers.get(broker_id)
            is_read = isinstance(call.request, FetchGroupStateRequest)
            self.world.deliver(broker_id, call, broker if answers or is_read else None)
            self.world.run()
            if not answers:
                self.world.lose_answer(broker_id, call)
        self.collect()

    @rule(which=st.integers(0, 5))
    def lose(self, which: int) -> None:
        if self.world.held:
            broker_id, call = self.world.held.pop(which % len(self.world.held))
            self.world.lose_answer(broker_id, call)
        self.collect()

    @rule(ms=st.sampled_from((10, 100, 3_000, 7_000, 70_000)))
    def pass_time(self, ms: int) -> None:
        self.world.pass_ms(ms)
        self.collect()

    # --- what must hold -----------------------------------------------------------------------

    @invariant()
    def what_was_acknowledged_is_there(self) -> None:
        group = self.world.image.groups.get(GROUP)
        committed = None if group is None else group.offsets.get(("t", 0))
        offset = -1 if committed is None else committed.offset
        assert not self.overwritten(offset, FOREVER), f"lost: {offset} is what is left"

    @invariant()
    def a_checkpoint_is_the_state(self) -> None:
        machine = self.world.machine
        values = records_of(machine)
        assert len(values) == machine.total_records
        again = GroupMachine()
        load(again, machine.applied, values)
        assert records_of(again) == values
        assert machine.contradictions == again.contradictions == 0

    def teardown(self) -> None:
        """Heal all faults; every request is answered and every member can work."""
        world = self.world
        world.holds = lambda _broker, _call: False
        world.log.auto_commit = True
        if world.log.leading_epoch is None:
            world.log.elect()
        world.log.commit()
        for broker_id, call in world.held:
            world.lose_answer(broker_id, call)
        world.held.clear()
        for broker in BROKERS:
            world.unfenced.add(broker)
            if broker not in world.brokers:
                world.start_broker(broker)
        world.tell_brokers()
        world.pass_ms(600_000)
        for ticket, (broker, _) in world.versions.items():
            assert ticket in world.answers or broker in BROKERS, f"no answer to {ticket}"
        self.collect()
        unanswered = [ticket for ticket in self.commits if ticket not in world.answers]
        assert not unanswered, f"unanswered commits: {unanswered}"
        for index in range(3):
            self.begin_anew(index)
        assert drive(world, self.clients, 60), "no generation for all"
        self.steps += 1
        for client in self.clients:
            self.number += 1
            self.sent[self.number] = Sent(self.number, client, world.owner(), self.steps)
            assert client.commit(self.number) == 0
        assert world.committed() == self.number


def run_schedule(seed: int, steps: int = 250) -> GroupsVersusModel:
    """Run weighted random steps: longer than Hypothesis does, so that more faults coincide."""
    chance = Random(seed)
    model = GroupsVersusModel()

    def flip() -> bool:
        return chance.random() < 0.5

    def index() -> int:
        return chance.randrange(3)

    def at() -> int:
        return chance.choice((0, 0, 0, 0, *BROKERS))

    def broker() -> int:
        return chance.choice(BROKERS)

    committers = (0, 0, 1, 1, 2, 2, 3)
    acts: list[tuple[int, Callable[[], None]]] = [
        (12, lambda: model.work(set(chance.sample(range(3), chance.randint(1, 3))), 6)),
        (
            16,
            lambda: model.commit(chance.choice(committers), at(), chance.randint(1, 2)),
        ),
        (6, lambda: model.fetch(at())),
        (5, lambda: model.join(index(), at(), flip())),
        (5, lambda: model.sync(index(), at())),
        (5, lambda: model.beat(index(), at())),
        (1, lambda: model.leave(index(), at())),
        (2, lambda: model.die(index())),
        (1, lambda: model.stop_broker(broker())),
        (3, lambda: model.start_broker(broker())),
        (2, lambda: model.fence(broker())),
        (3, lambda: model.unfence(broker())),
        (3, lambda: model.withhold(chance.randint(1, 4))),
        (2, lambda: model.change_leader(flip())),
        (1, lambda: model.restart_log(flip())),
        (5, lambda: model.hold(chance.randint(1, 3))),
        (9, lambda: model.deliver(chance.randrange(6), flip(), flip())),
        (2, lambda: model.lose(chance.randrange(6))),
        (4, lambda: model.pass_time(chance.choice((10, 100, 100, 3_000, 7_000)))),
    ]
    weights = [weight for weight, _ in acts]
    if seed % 2:  # owners stay, so that late copies find them
        weights[7:12] = [0] * 5
        weights[16] = 20
    try:
        for _ in range(steps):
            chance.choices(acts, weights)[0][1]()
            model.what_was_acknowledged_is_there()
            model.a_checkpoint_is_the_state()
        model.teardown()
    except AssertionError as error:
        error.add_note(
            f"reproduce: tests.coordinator.groups.test_stateful.run_schedule({seed}, {steps})"
        )
        raise
    return model


@pytest.mark.parametrize("seed", seeds(12))
def test_random_schedules_of_group_requests_match_the_group_model(seed: int) -> None:
    run_schedule(seed)


def test_the_random_group_schedules_cover_every_commit_error_and_a_rebalance() -> None:
    codes: Counter[tuple[int | None, bool]] = Counter()
    generations = owners = 0
    for seed in range(100, 106):
        model = run_schedule(seed)
        codes.update((sent.code, sent.generation >= 0) for sent in model.sent.values())
        group = model.world.image.groups[GROUP]
        generations += group.generation_id
        owners += group.ownership_epoch
    assert codes[0, True] > 100
    assert codes[0, False] > 0
    for code in (16, 22, 25, 27):
        assert codes[code, True] > 0, f"no commit was answered {code}: {codes}"
    assert generations > 50
    assert owners > 50


TestGroups = GroupsVersusModel.TestCase
TestGroups.settings = settings(
    max_examples=40, stateful_step_count=50, deadline=None, database=None
)
