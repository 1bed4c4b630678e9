"""The language of the conformance table: what is done to a coordinator, and what it must answer.

A row is a short story about one topic. Each `Put` is one object; what a step must answer stands in
the step itself, so the table can be read, printed and run.

Source: docs/design/batch-coordinator.md#idempotence.
"""

from __future__ import annotations

from typing import Final, NamedTuple

NEW: Final = 1
"""A producer id that was handed out a moment ago: no state of it can have expired."""

OTHER: Final = 2
"""Another one."""

ANCIENT: Final = 3
"""A producer id handed out so long ago that nobody remembers: its state can have expired."""

AGEING: Final = 4
"""A producer id handed out when the row begins."""

NOBODY: Final = -1
"""Not idempotent."""

LAST: Final = 2**31 - 1
"""The greatest sequence."""


class At(NamedTuple):
    """Accepted at this offset."""

    offset: int


class Duplicate(NamedTuple):
    """Written before: the answer has the offset it had then."""

    offset: int


class Refused(NamedTuple):
    """Refused with Kafka's error code; the log did not grow."""

    error_code: int


OUT_OF_ORDER: Final = Refused(45)
OLD_EPOCH: Final = Refused(47)
BAD_RECORD: Final = Refused(87)

Outcome = At | Duplicate | Refused


class Batch(NamedTuple):
    """A batch of so many records from sequence `first` on, and its expected result."""

    first: int
    records: int
    outcome: Outcome
    epoch: int = 0
    producer: int = NEW
    partition: int = 0  # the topic has two: 0 and 1
    time: int = 0  # its greatest timestamp
    append_time: bool = False


class Put(NamedTuple):
    """One object with these batches, back to back, grouped by partition."""

    batches: tuple[Batch, ...]


class Wait(NamedTuple):
    """Time passes, and the leader's maintenance runs."""

    ms: int


class Delete(NamedTuple):
    """DeleteRecords of partition 0."""

    offset: int
    low_watermark: int
    error_code: int = 0


class Lookup(NamedTuple):
    """ListOffsets of a partition."""

    timestamp: int
    offset: int
    found: int = -1  # the timestamp that is answered
    error_code: int = 0
    partition: int = 0


class Find(NamedTuple):
    """FindBatches of partition 0: the first and last offset of each run."""

    offset: int
    runs: tuple[tuple[int, int], ...]
    error_code: int = 0
    max_bytes: int = 1_000_000


Step = Put | Wait | Delete | Lookup | Find


class Row(NamedTuple):
    """A line of the table: its claim, the claim's source, and the steps that show it."""

    claim: str
    source: str
    steps: tuple[Step, ...]


def put(*batches: Batch) -> Put:
    """Make a step that commits an object."""
    return Put(batches)


def one(
    first: int, outcome: Outcome, *, count: int = 1, epoch: int = 0, producer: int = NEW
) -> Put:
    """An object with a single batch."""
    return Put((Batch(first, count, outcome, epoch, producer),))


def describe(step: Step) -> str:
    """A step as the printed table has it.

    >>> describe(one(7, OUT_OF_ORDER))
    '7 → error 45'
    >>> describe(one(0, At(3), count=2, epoch=1, producer=ANCIENT))
    'ancient e1 0-1 → 3'
    """
    match step:
        case Put(batches):
            return ", ".join(_describe_batch(batch) for batch in batches)
        case Wait(ms):
            return f"wait {ms / 3_600_000:g} h"
        case Delete(offset, low, error):
            return f"delete to {offset} → {f'error {error}' if error else low}"
        case Lookup(timestamp, offset, found, error, partition):
            where = f" of {partition}" if partition else ""
            answer = (
                f"error {error}" if error else f"{offset}" + (f"@{found}" if found >= 0 else "")
            )
            return f"offset for {timestamp}{where} → {answer}"
        case Find(offset, runs, error, _):
            answer = f"error {error}" if error else " ".join(f"{a}-{b}" for a, b in runs) or "none"
            return f"find {offset} → {answer}"


_NAMES: Final = {
    NEW: "",
    OTHER: "other ",
    ANCIENT: "ancient ",
    AGEING: "ageing ",
    NOBODY: "nobody ",
}


def _describe_batch(batch: Batch) -> str:
    name = _NAMES.get(batch.producer, f"producer {batch.producer} ")
    epoch = f"e{batch.epoch} " if batch.epoch else ""
    place = f"p{batch.partition} " if batch.partition else ""
    last = (batch.first + batch.records - 1) & LAST
    span = f"{batch.first}" if batch.records == 1 else f"{batch.first}-{last}"
    time = f" t{batch.time}" if batch.time else ""
    kind = " append" if batch.append_time else ""
    match batch.outcome:
        case At(offset):
            answer = f"{offset}"
        case Duplicate(offset):
            answer = f"duplicate of {offset}"
        case Refused(code):
            answer = f"error {code}"
    return f"{place}{name}{epoch}{span}{time}{kind} → {answer}"
