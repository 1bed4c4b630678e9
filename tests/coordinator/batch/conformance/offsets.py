"""The offsets table: where a log begins and ends, and what is found in it.

Source: docs/design/batch-coordinator.md#runs, docs/design/broker.md#fetch; KIP-1164 (findBatches,
listOffsets, deleteRecords); upstream's ListOffsets.
"""

from __future__ import annotations

from typing import Final

from tests.coordinator.batch.conformance.steps import (
    NOBODY,
    OUT_OF_ORDER,
    At,
    Batch,
    Delete,
    Duplicate,
    Find,
    Lookup,
    Put,
    Refused,
    Row,
    one,
    put,
)

_LIST: Final = "ListOffsets"
_FIND: Final = "KIP-1164, findBatches"
_DELETE: Final = "ReplicaManager.deleteRecords"
_RUNS: Final = "docs/design/batch-coordinator.md#runs"


def _records(offset: int, count: int, time: int = 0, *, append_time: bool = False) -> Put:
    batch = Batch(0, count, At(offset), producer=NOBODY, time=time, append_time=append_time)
    return put(batch)


_TWO: Final = (_records(0, 10, 100), _records(10, 10, 200))
_THREE: Final = (_records(0, 10, 300), _records(10, 10, 100), _records(20, 10, 200))

ROWS: Final = (
    Row("an empty log ends at 0", _LIST, (Lookup(-1, 0),)),
    Row("and begins there", _LIST, (Lookup(-2, 0), Lookup(-4, 0))),
    Row("it has no greatest timestamp", _LIST, (Lookup(-3, -1),)),
    Row("nor any other", _LIST, (Lookup(0, -1),)),
    Row("offsets have no gaps", "KIP-1164", (_records(0, 3), _records(3, 4), Lookup(-1, 7))),
    Row("the log ends after the last record", _LIST, (*_TWO, Lookup(-1, 20))),
    Row("it begins at 0 until something is deleted", _LIST, (*_TWO, Lookup(-2, 0))),
    Row("nothing is tiered", _LIST, (*_TWO, Lookup(-5, -1))),
    Row("other negative timestamps mean nothing", _LIST, (*_TWO, Lookup(-7, -1, error_code=35))),
    Row(
        "a partition that is not there has no offsets",
        _LIST,
        (Lookup(-1, -1, error_code=3, partition=2), Lookup(-1, -1, error_code=3, partition=-1)),
    ),
    Row("a timestamp finds the first run that reaches it", _LIST, (*_TWO, Lookup(100, 0, 100))),
    Row("one between two finds the later", _LIST, (*_TWO, Lookup(101, 10, 200))),
    Row("one before all finds the first", _LIST, (*_TWO, Lookup(0, 0, 100))),
    Row("one after all finds nothing", _LIST, (*_TWO, Lookup(201, -1))),
    Row("timestamps need not rise", _LIST, (*_THREE, Lookup(150, 0, 300), Lookup(301, -1))),
    Row("the greatest timestamp is found", _LIST, (*_THREE, Lookup(-3, 0, 300))),
    Row(
        "of equal ones the first",
        _LIST,
        (_records(0, 1, 7), _records(1, 1, 9), _records(2, 1, 9), Lookup(-3, 1, 9)),
    ),
    Row("DeleteRecords moves the log's start", _DELETE, (*_TWO, Delete(5, 5), Lookup(-2, 5))),
    Row("and not its end", _DELETE, (*_TWO, Delete(5, 5), Lookup(-1, 20))),
    Row("-1 is the high watermark", _DELETE, (*_TWO, Delete(-1, 20), Lookup(-2, 20))),
    Row("so is its offset", _DELETE, (*_TWO, Delete(20, 20), Lookup(-2, 20))),
    Row("past it is out of range", _DELETE, (*_TWO, Delete(21, -1, 1), Lookup(-2, 0))),
    Row("so is -2", _DELETE, (*_TWO, Delete(-2, -1, 1), Lookup(-2, 0))),
    Row("the start never goes back", _DELETE, (*_TWO, Delete(5, 5), Delete(3, 5), Lookup(-2, 5))),
    Row("an empty log may be emptied", _DELETE, (Delete(-1, 0), Delete(0, 0))),
    Row(
        "offsets go on after all is deleted",
        _DELETE,
        (*_TWO, Delete(-1, 20), _records(20, 5), Lookup(-1, 25), Lookup(-2, 20)),
    ),
    Row(
        "a run that begins before the start is found from the start on",
        _LIST,
        (*_TWO, Delete(5, 5), Lookup(100, 5, 100), Lookup(-3, 10, 200)),
    ),
    Row(
        "a run before the start is not found",
        _LIST,
        (*_THREE, Delete(10, 10), Lookup(150, 20, 200), Lookup(-3, 20, 200)),
    ),
    Row("what is at an offset is found", _FIND, (*_TWO, Find(0, ((0, 9), (10, 19))))),
    Row("from inside a run the whole run", _FIND, (*_TWO, Find(5, ((0, 9), (10, 19))))),
    Row("and from the last offset", _FIND, (*_TWO, Find(19, ((10, 19),)))),
    Row("at the end there is nothing", _FIND, (*_TWO, Find(20, ()))),
    Row("past the end is out of range", _FIND, (*_TWO, Find(21, (), 1))),
    Row("so is a negative offset", _FIND, (*_TWO, Find(-1, (), 1))),
    Row("an empty log has nothing at 0", _FIND, (Find(0, ()),)),
    Row(
        "below the start is out of range, and not skipped",
        _FIND,
        (*_TWO, Delete(5, 5), Find(4, (), 1), Find(5, ((0, 9), (10, 19)))),
    ),
    Row("a dead run is not found", _FIND, (*_TWO, Delete(10, 10), Find(10, ((10, 19),)))),
    Row("after deleting all there is nothing", _FIND, (*_TWO, Delete(-1, 20), Find(20, ()))),
    Row("the first run is told however large", _FIND, (*_TWO, Find(0, ((0, 9),), max_bytes=1))),
    Row(
        "a run that crosses the limit is told",
        _FIND,
        (*_THREE, Find(0, ((0, 9), (10, 19)), max_bytes=101)),
    ),
    Row(
        "neighbours in an object are one run",
        _RUNS,
        (put(Batch(0, 2, At(0)), Batch(2, 3, At(2))), Find(0, ((0, 4),))),
    ),
    Row(
        "neighbours in two objects are not",
        _RUNS,
        (one(0, At(0)), one(1, At(1)), Find(0, ((0, 0), (1, 1)))),
    ),
    Row(
        "a refused batch cuts a run",
        _RUNS,
        (
            put(Batch(0, 2, At(0)), Batch(9, 1, OUT_OF_ORDER), Batch(2, 3, At(2))),
            Find(0, ((0, 1), (2, 4))),
        ),
    ),
    Row(
        "so does a duplicate",
        _RUNS,
        (
            put(Batch(0, 2, At(0)), Batch(0, 2, Duplicate(0)), Batch(2, 3, At(2))),
            Find(0, ((0, 1), (2, 4))),
        ),
    ),
    Row(
        "and another timestamp type",
        _RUNS,
        (
            put(Batch(0, 2, At(0)), Batch(2, 3, At(2), append_time=True)),
            Find(0, ((0, 1), (2, 4))),
        ),
    ),
    Row(
        "an object of which nothing is accepted leaves nothing",
        _RUNS,
        (put(Batch(5, 1, OUT_OF_ORDER)), Lookup(-1, 0), Find(0, ())),
    ),
    Row(
        "a run's greatest timestamp is that of its batches",
        _LIST,
        (
            put(
                Batch(0, 1, At(0), producer=NOBODY, time=5),
                Batch(0, 1, At(1), producer=NOBODY, time=9),
                Batch(0, 1, At(2), producer=NOBODY, time=7),
            ),
            Lookup(6, 0, 9),
            Lookup(-3, 0, 9),
            Lookup(10, -1),
        ),
    ),
    Row(
        "a refused batch's timestamp counts for nothing",
        _LIST,
        (
            put(Batch(0, 1, At(0), time=5), Batch(0, 1, Refused(3), partition=2, time=99)),
            Lookup(-3, 0, 5),
        ),
    ),
)
