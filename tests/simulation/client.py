"""A client of the simulated quorum: appends unique values, reads, and remembers what it was told.

An append-only log with unique values needs no search to be judged linearizable: offsets are the
order. So each answer is checked the moment it comes. Whatever an operation returns must lie at or
past the *floor*, the longest prefix that any operation had seen complete before it was invoked
(an append acknowledged up to 7, a read of length 9: nobody who asks later may see less). The whole
history is kept too, for `tests.simulation.history` to judge again at the end.

Source: Herlihy and Wing, "Linearizability" (1990); Raft dissertation, section 6.4.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final, TypeAlias

from raft.core.effects import Accepted, ReadReady, ReadRefused, Refused
from raft.core.events import NewBatch, Proposal, Propose, Read
from records.batch_writer import build_batch
from tests.simulation.checks import HEADER_BYTES, Checker
from tests.simulation.history import LogAppend, LogRead
from tests.simulation.state import BEGIN, END
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.machine import Machine
    from tests.simulation.node import Pending, Process

Headers: TypeAlias = tuple[tuple[str, bytes], ...]

PROPOSE_SHARE: Final = 0.75
TO_A_LEADER: Final = 0.85


class Append:
    """An append under way, or over."""

    __slots__ = ("batches", "end_offset", "floor", "invoked_us", "returned_us", "token")

    def __init__(self, token: int, batches: list[bytes], floor: int, invoked_us: int) -> None:
        self.token = token
        self.batches = batches  # records only, without the header
        self.floor = floor
        self.invoked_us = invoked_us
        self.returned_us: int | None = None
        self.end_offset: int | None = None


class Client:
    """Many clients in one: operations are independent of each other."""

    def __init__(
        self, world: World, random: Random, checker: Checker, machines: list[Machine], pause_us: int
    ) -> None:
        self._world = world
        self._random = random
        self._checker = checker
        self._machines = machines
        self._pause_us = pause_us
        self._keys = Random(random.getrandbits(64))
        self._next = 0
        self._stopped = False
        self.floor = 0
        self.appends: dict[int, Append] = {}
        self.reads: dict[int, tuple[int, int, bool]] = {}  # token -> floor, invoked, at a leader
        self.history: list[LogAppend | LogRead] = []
        self.acknowledged_count = 0
        self.newest_acknowledged_us = -1  # when the newest acknowledged append was invoked
        for machine in machines:
            machine.client = self
        world.after(pause_us, self._act)

    def stop(self) -> None:
        """No operation any more."""
        self._stopped = True

    def _act(self) -> None:
        """One operation, and the next one soon."""
        if self._stopped:
            return
        random = self._random
        self._world.after(1 + int(random.random() * 2 * self._pause_us), self._act)
        process = self._choose()
        if process is None:
            return
        self._next += 1
        if random.random() < PROPOSE_SHARE:
            self._propose(process)
        else:
            leads = process.lead_epoch is not None
            self.reads[self._next] = (self.floor, self._world.now_us, leads)
            process.handle(Read(self._next))

    def _choose(self) -> Process | None:
        """A node that thinks it leads, if there is one, mostly."""
        alive = [machine.process for machine in self._machines if machine.process is not None]
        leaders = [process for process in alive if process.lead_epoch is not None]
        if leaders and self._random.random() < TO_A_LEADER:
            return self._random.choice(leaders)
        return self._random.choice(alive) if alive else None

    def _propose(self, process: Process) -> None:
        random, token = self._random, self._next
        batches, records = [], []
        for number in range(1 if random.random() < 0.8 else 2):
            count = 1 if random.random() < 0.7 else random.randrange(2, 5)
            padding = bytes(random.randrange(500)) if random.random() < 0.1 else b""
            values = [b"%d/%d/%d" % (token, number, i) + padding for i in range(count)]
            data = build_batch(
                [self._record(value) for value in values], base_offset=0, leader_epoch=0
            )
            batches.append(NewBatch(count, len(data), data))
            records.append(bytes(data[HEADER_BYTES:]))
        self.appends[token] = Append(token, records, self.floor, self._world.now_us)
        epoch = process.lead_epoch if process.lead_epoch is not None else process.quorum.epoch
        expected = process.quorum.log.end_offset if random.random() < 0.1 else None
        process.handle(Propose((Proposal(token, epoch, expected, tuple(batches)),)))

    def _record(self, value: bytes) -> tuple[bytes | None, bytes | None, int, Headers]:
        """It sets one of a few keys, or deletes one, or is a transaction's end or beginning."""
        draw, now_ms = self._keys.randrange(100), self._world.now_us // 1000
        if draw < 80:
            return b"key %d" % (draw % 32), value, now_ms, ()
        if draw < 88:
            return b"key %d" % (draw % 32), None, now_ms, (("token", value),)
        kind = BEGIN if draw == 99 else END if draw > 95 else b""
        return None, kind + value, now_ms, ()

    # -- answers -----------------------------------------------------------------------------------

    def accepted(self, effect: Accepted) -> None:
        """Appended; whether it stays is not known."""
        append = self.appends[effect.token]  # type: ignore[index]
        append.end_offset = effect.end_offset

    def refused(self, effect: Refused) -> None:
        """Never appended."""
        del self.appends[effect.token]  # type: ignore[arg-type]

    def acknowledged(self, process: Process, pending: Pending) -> None:
        """The node says that it is committed for good: it must be, exactly where it was put."""
        append = self.appends[pending.token]  # type: ignore[index]
        places = self._checker.places
        offset = pending.base_offset
        for records in append.batches:
            where = places.get(records)
            assert where is not None, (
                f"{process} acknowledges {append.token} at {offset}; it is not committed"
            )
            assert where >= offset, f"{append.token} is at {where}, acknowledged at {offset}"
            offset = where  # type: ignore[assignment]
        assert places[append.batches[0]] == pending.base_offset, (
            f"{process} acknowledges {append.token} at {pending.base_offset}, it is at"
            f" {places[append.batches[0]]}"
        )
        assert pending.base_offset >= append.floor, (
            f"{append.token} was appended at {pending.base_offset}, below {append.floor}, which"
            " was complete before it began: not linearizable"
        )
        append.returned_us = self._world.now_us
        self.floor = max(self.floor, pending.end_offset)
        self.acknowledged_count += 1
        self.newest_acknowledged_us = max(self.newest_acknowledged_us, append.invoked_us)
        self.history.append(
            LogAppend(append.invoked_us, self._world.now_us, append.token, pending.base_offset)
        )

    def read(self, effect: ReadReady) -> None:
        """The log has this length, says a read."""
        floor, invoked_us, _ = self.reads.pop(effect.token)  # type: ignore[arg-type]
        assert effect.offset >= floor, (
            f"a read of length {effect.offset}, though {floor} was complete before it began:"
            " not linearizable"
        )
        assert effect.offset <= self._checker.committed.end, f"{effect} reads the future"
        self.floor = max(self.floor, effect.offset)
        self.history.append(LogRead(invoked_us, self._world.now_us, effect.offset))

    def read_refused(self, effect: ReadRefused) -> None:
        """No answer, which is none that could be wrong."""
        _, _, at_a_leader = self.reads.pop(effect.token)  # type: ignore[arg-type]
        if at_a_leader:
            self._checker.rare["read rounds refused"] += 1
