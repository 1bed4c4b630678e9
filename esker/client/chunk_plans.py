"""Plans of chunks: which closed chunks move to other brokers, and which active ones are closed.

    plan = make_plan(brokers, partitions, PlanSettings(cut_bytes=10 * 2**30))
    checked = check_plan(plan, brokers, partitions)     # again, right before it is sent

Pure functions of what the cluster describes. A plan names topic ids, epochs and starts, so that it
changes nothing if the cluster has changed since, and nothing twice.

Source: docs/design/chunks.md#plans.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID

from coordinator.controller.chunk_files import (
    ChunkFileError,
    parse_document,
    parse_number,
    parse_replicas,
    parse_topic,
)
from records.rpc.descriptions import DescribeTopicsResponse

MAX_ENTRIES: Final = 1_000  # of a plan: of one request, the controller's limit
_INT32: Final = 2**31 - 1
_INT64: Final = 2**63 - 1


class PlanBroker(NamedTuple):
    """A registered broker, and whether it may get chunks."""

    broker_id: int
    rack: str | None
    is_serving: bool


class PlanChunk(NamedTuple):
    """A chunk, with an estimate of its bytes."""

    start_offset: int
    epoch: int
    replicas: tuple[int, ...]
    size_bytes: int


class PlanPartition(NamedTuple):
    """A partition with its closed chunks and its active one; uncut, that begins at 0."""

    topic: str
    topic_id: UUID
    partition: int
    closed: tuple[PlanChunk, ...]
    active: PlanChunk


class Sizes(NamedTuple):
    """Offsets and size of a partition, from its batch coordinator."""

    log_start_offset: int  # inclusive
    high_watermark: int  # exclusive
    stored_bytes: int


def plan_partitions(
    topics: Iterable[DescribeTopicsResponse.Topic], sizes: Mapping[tuple[UUID, int], Sizes]
) -> Iterator[PlanPartition]:
    """Yield the described partitions with the estimated bytes of their chunks.

    A node of an older release does not tell the replicas of a partition that was never cut; such
    a partition is left out.
    """
    for topic in topics:
        for found in topic.partitions:
            size = sizes.get((topic.topic_id, found.partition_index), Sizes(0, 0, 0))
            cut = [
                _chunk(one.start_offset, one.end_offset, one.epoch, one.replicas, size)
                for one in found.chunks
            ]
            if not cut and found.assigned:
                cut = [_chunk(0, -1, 0, found.assigned, size)]
            if cut:
                name, index = topic.topic_name, found.partition_index
                yield PlanPartition(name, topic.topic_id, index, tuple(cut[:-1]), cut[-1])


def _chunk(start: int, last: int, epoch: int, replicas: tuple[int, ...], size: Sizes) -> PlanChunk:
    """Describe a chunk; its bytes are the partition's by the share of its offsets.

    Args:  last: its last offset; -1: it is the active chunk.
    """
    end = size.high_watermark if last == -1 else last + 1
    offsets = max(0, end - max(start, size.log_start_offset))
    whole = max(1, size.high_watermark - size.log_start_offset)
    return PlanChunk(start, epoch, replicas, size.stored_bytes * offsets // whole)


class Move(NamedTuple):
    """New replicas of a closed chunk."""

    topic: str
    topic_id: UUID
    partition: int
    start_offset: int
    chunk_epoch: int
    replicas: tuple[int, ...]


class Cut(NamedTuple):
    """A new chunk, in which the active one that begins at `active_start` ends."""

    topic: str
    topic_id: UUID
    partition: int
    active_start: int
    replicas: tuple[int, ...]


class ChunkPlan(NamedTuple):
    """Moves and cuts; applied in this order."""

    moves: tuple[Move, ...] = ()
    cuts: tuple[Cut, ...] = ()

    @property
    def entries(self) -> list[Move | Cut]:
        """Return all entries, in the order in which they are applied."""
        return [*self.moves, *self.cuts]


class PlanSettings(NamedTuple):
    """Goals of a plan."""

    cut_bytes: int  # an active chunk of so many bytes is closed
    max_moves: int = 100  # that even out
    excluded: frozenset[int] = frozenset()  # brokers that are to lose their chunks


@dataclass(slots=True)
class CheckedPlan:
    """Steps of a plan that are not sent yet."""

    moves: list[Move] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    done: list[str] = field(default_factory=list)  # was applied before
    refused: dict[str, str] = field(default_factory=dict)  # reason, by entry


class PlanError(Exception):
    """A plan cannot be made or applied; the message says why and what to do."""


def _join_ids(ids: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ids)))


def name_of(entry: Move | Cut) -> str:
    """Return the words for an entry in messages."""
    start = entry.start_offset if isinstance(entry, Move) else entry.active_start
    return f"{entry.topic}-{entry.partition} chunk {start}"


# --- making ---------------------------------------------------------------------------------------


class _Loads:
    """The bytes of chunks that each usable broker keeps, as the plan goes on."""

    def __init__(self, brokers: Mapping[int, PlanBroker]) -> None:
        self.brokers = brokers
        self.bytes = Counter[int](dict.fromkeys(brokers, 0))

    def choose(self, count: int, kept: Sequence[int], size_bytes: int) -> tuple[int, ...]:
        """Complete replicas to `count`: first other racks, then the fewest bytes.

        Raises:  PlanError without enough brokers.
        """
        chosen = list(kept)
        while len(chosen) < count:
            racks = {self.brokers[one].rack for one in chosen}
            free = [broker for one, broker in self.brokers.items() if one not in chosen]
            if not free:
                raise PlanError(
                    f"{count} replicas need as many brokers that serve and are not excluded; "
                    f"there are {len(self.brokers)}"
                )
            best = min(free, key=lambda one: (one.rack in racks, self.bytes[one.broker_id], one))
            chosen.append(best.broker_id)
            self.bytes[best.broker_id] += size_bytes
        return tuple(chosen)


def make_plan(
    brokers: Iterable[PlanBroker], partitions: Sequence[PlanPartition], settings: PlanSettings
) -> ChunkPlan:
    """Plan moves away from brokers that are gone, cuts, and moves that even out, in this order.

    Raises:  PlanError if an excluded broker is not registered, or replicas cannot be placed.
    """
    known = sorted(brokers)
    ids = [broker.broker_id for broker in known]
    if unknown := settings.excluded.difference(ids):
        raise PlanError(f"no such broker: {_join_ids(unknown)}; there are {_join_ids(ids)}")
    usable = {
        broker.broker_id: broker
        for broker in known
        if broker.is_serving and broker.broker_id not in settings.excluded
    }
    loads = _Loads(usable)
    for partition in partitions:
        for chunk in (*partition.closed, partition.active):
            loads.bytes.update({one: chunk.size_bytes for one in chunk.replicas if one in usable})
    replicas: dict[tuple[UUID, int, int], tuple[int, ...]] = {}
    for partition in partitions:
        for chunk in partition.closed:
            kept = [one for one in chunk.replicas if one in usable]
            chosen = loads.choose(len(chunk.replicas), kept, chunk.size_bytes)
            replicas[partition.topic_id, partition.partition, chunk.start_offset] = chosen
    cuts = [cut for cut in (_cut(one, loads, settings) for one in partitions) if cut is not None]
    _even_out(partitions, replicas, loads, settings.max_moves)
    moves = [
        Move(one.topic, one.topic_id, one.partition, chunk.start_offset, chunk.epoch, chosen)
        for one in partitions
        for chunk in one.closed
        if (chosen := replicas[one.topic_id, one.partition, chunk.start_offset]) != chunk.replicas
    ]
    return ChunkPlan(tuple(moves[:MAX_ENTRIES]), tuple(cuts[:MAX_ENTRIES]))


def _cut(partition: PlanPartition, loads: _Loads, settings: PlanSettings) -> Cut | None:
    active = partition.active
    is_cut = active.start_offset > 0
    has_gone = is_cut and any(one not in loads.brokers for one in active.replicas)
    if not active.size_bytes or not (active.size_bytes >= settings.cut_bytes or has_gone):
        return None
    # The next chunk will be about as large as this one was.
    replicas = loads.choose(len(active.replicas), (), active.size_bytes)
    start = active.start_offset
    return Cut(partition.topic, partition.topic_id, partition.partition, start, replicas)


def _even_out(
    partitions: Sequence[PlanPartition],
    replicas: dict[tuple[UUID, int, int], tuple[int, ...]],
    loads: _Loads,
    max_moves: int,
) -> None:
    """Move replicas from the fullest broker to the emptiest while their difference shrinks."""
    sizes = {
        (one.topic_id, one.partition, chunk.start_offset): chunk.size_bytes
        for one in partitions
        for chunk in one.closed
    }
    for _ in range(max_moves):
        if len(loads.bytes) < 2:
            return
        full = max(loads.bytes, key=lambda one: (loads.bytes[one], one))
        empty = min(loads.bytes, key=lambda one: (loads.bytes[one], one))
        gap = loads.bytes[full] - loads.bytes[empty]
        fitting = [
            key
            for key, chosen in replicas.items()
            if full in chosen
            and empty not in chosen
            and 0 < sizes[key] < gap
            and _keeps_racks(loads, chosen, full, empty)
        ]
        if not fitting:
            return
        key = min(fitting, key=lambda one: (abs(gap - 2 * sizes[one]), str(one[0]), one[1:]))
        replicas[key] = tuple(empty if one == full else one for one in replicas[key])
        loads.bytes[full] -= sizes[key]
        loads.bytes[empty] += sizes[key]


def _keeps_racks(loads: _Loads, chosen: Sequence[int], full: int, empty: int) -> bool:
    """Return whether a chunk has replicas in as many racks after one of them was moved."""
    racks = {loads.brokers[one].rack for one in chosen}
    after = {loads.brokers[empty if one == full else one].rack for one in chosen}
    return len(after) >= len(racks)


# --- checking -------------------------------------------------------------------------------------


def check_plan(
    plan: ChunkPlan, brokers: Iterable[PlanBroker], partitions: Sequence[PlanPartition]
) -> CheckedPlan:
    """Compare a plan with the cluster as it is now.

    Raises:  PlanError if a broker of the plan does not serve.
    """
    serving = {broker.broker_id for broker in brokers if broker.is_serving}
    named = {one for entry in plan.entries for one in entry.replicas}
    if named - serving:
        raise PlanError(
            "the plan gives chunks to brokers that are not registered or are fenced: "
            f"{_join_ids(named - serving)}; make a new plan"
        )
    known = {(one.topic, one.partition): one for one in partitions}
    checked = CheckedPlan()
    for entry in plan.entries:
        partition = known.get((entry.topic, entry.partition))
        if partition is None or partition.topic_id != entry.topic_id:
            checked.refused[name_of(entry)] = "the topic was deleted since the plan was made"
        elif isinstance(entry, Move):
            _check_move(entry, partition, checked)
        else:
            _check_cut(entry, partition, checked)
    return checked


def _check_move(move: Move, partition: PlanPartition, checked: CheckedPlan) -> None:
    chunk = next((one for one in partition.closed if one.start_offset == move.start_offset), None)
    if chunk is None:
        checked.refused[name_of(move)] = "the chunk was removed since the plan was made"
    elif chunk.replicas == move.replicas:
        checked.done.append(name_of(move))
    elif chunk.epoch != move.chunk_epoch:
        words = f"its epoch is {chunk.epoch}, the plan's is {move.chunk_epoch}: make a new plan"
        checked.refused[name_of(move)] = words
    else:
        checked.moves.append(move)


def _check_cut(cut: Cut, partition: PlanPartition, checked: CheckedPlan) -> None:
    active = partition.active
    if active.start_offset == cut.active_start:
        checked.cuts.append(cut)
    elif any(one.start_offset == cut.active_start for one in partition.closed):
        after = [*partition.closed, active]
        starts = [one.start_offset for one in after]
        following = after[starts.index(cut.active_start) + 1]
        if following.replicas == cut.replicas:
            checked.done.append(name_of(cut))
        else:
            checked.refused[name_of(cut)] = "it was closed since the plan was made"
    else:
        checked.refused[name_of(cut)] = "it was removed since the plan was made"


# --- the file -------------------------------------------------------------------------------------


def plan_text(plan: ChunkPlan) -> str:
    """Return a plan as the text of its file."""
    document = {
        "moves": [_fields(move) for move in plan.moves],
        "cuts": [_fields(cut) for cut in plan.cuts],
    }
    return json.dumps(document, indent=2) + "\n"


_NAMES: Final = {
    "topic_id": "topicId",
    "start_offset": "startOffset",
    "chunk_epoch": "chunkEpoch",
    "active_start": "activeStart",
}


def _fields(entry: Move | Cut) -> dict[str, Any]:
    found = {_NAMES.get(name, name): value for name, value in entry._asdict().items()}
    return found | {"topicId": str(entry.topic_id), "replicas": list(entry.replicas)}


def read_plan(text: str) -> ChunkPlan:
    """Parse a plan's file. Raises ChunkFileError, which names the place of the fault."""
    document = parse_document(text, {"moves", "cuts"})
    moves = [
        Move(
            **_common(entry, where),
            start_offset=parse_number(entry, "startOffset", where, _INT64),
            chunk_epoch=parse_number(entry, "chunkEpoch", where, _INT32),
        )
        for entry, where in _listed(document, "moves", Move)
    ]
    cuts = [
        Cut(**_common(entry, where), active_start=parse_number(entry, "activeStart", where, _INT64))
        for entry, where in _listed(document, "cuts", Cut)
    ]
    plan = ChunkPlan(tuple(moves), tuple(cuts))
    if len(set(map(name_of, plan.entries))) != len(plan.entries):
        raise ChunkFileError("a chunk is listed twice")
    return plan


def _listed(
    document: Mapping[str, Any], key: str, kind: type[Move] | type[Cut]
) -> list[tuple[dict[str, Any], str]]:
    entries = document[key]
    if not isinstance(entries, list) or len(entries) > MAX_ENTRIES:
        raise ChunkFileError(f"{key}: a list of at most {MAX_ENTRIES} entries is expected")
    keys = {_NAMES.get(name, name) for name in kind._fields}
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict) or set(entry) != keys:
            names = ", ".join(sorted(keys))
            raise ChunkFileError(f"{key}[{number}]: the keys {names} are expected")
    return [(entry, f"{key}[{number}]") for number, entry in enumerate(entries)]


def _common(entry: dict[str, Any], where: str) -> dict[str, Any]:
    try:
        topic_id = UUID(entry["topicId"])
    except (AttributeError, TypeError, ValueError):
        raise ChunkFileError(f"{where}.topicId: a topic's id is expected") from None
    return {
        "topic": parse_topic(entry, where),
        "topic_id": topic_id,
        "partition": parse_number(entry, "partition", where, _INT32),
        "replicas": parse_replicas(entry, where),
    }
