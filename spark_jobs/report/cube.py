"""Defines one shape for all counts of the report, so that pieces can be counted apart and merged.

A task reads one piece of a log and counts: bytes of a topic in an hour, objects of a size. Each
count is a row: a measure's name, up to five keys, and values that add up, or are a lowest or a
highest. Rows of equal keys from different pieces are *merged*, and merged rows can be merged again.
Spark and this process have to agree on nothing else.

Why this is enough: percentiles come from counts in narrow bands (`band_starts`), shares and
inequality from totals; only what needs an order (leaders over time) is read elsewhere.

Source: docs/design/pipeline.md#the-report; Gray and others, "Data Cube" (distributive and algebraic
aggregates).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.readers.logs import Span

Numbers = npt.NDArray[np.int64]

KEYS: Final = ("measure", "name", "label", "number", "time_ms", "level")
ADDED: Final = ("objects", "batches", "records", "bytes", "part_bytes")
LOWEST: Final = "lowest"
HIGHEST: Final = "highest"

_TEXT: Final = ("measure", "name", "label")
_MOST: Final = np.iinfo(np.int64).max
_DEFAULT: Final = {LOWEST: _MOST, HIGHEST: -_MOST}

CUBE: Final = pa.schema(
    [
        *(
            pa.field(key, pa.string() if key in _TEXT else pa.int64(), nullable=False)
            for key in KEYS
        ),
        *(pa.field(value, pa.int64(), nullable=False) for value in (*ADDED, LOWEST, HIGHEST)),
    ]
)
"""The meaning of a key depends on the measure; unused keys are empty, or 0."""

HOW: Final = [*((value, "sum") for value in ADDED), (LOWEST, "min"), (HIGHEST, "max")]
"""The aggregation of each value when rows of equal keys are merged."""

OTHERS: Final = "others"
"""The label of rows that stand for all keys too small to be shown by themselves."""

BAND_BITS: Final = 5
"""Bands per doubling: 32 of them, so that the middle of one is within 1.6 % of all it holds."""


@dataclass(frozen=True, slots=True)
class Work:
    """One task: a piece of the log of coordinator `log`, or of the cluster's log if it is -1."""

    log: int
    span: Span


Reduce = Callable[[Work], pa.Table]
"""Reads a piece and counts. It must be picklable, because Spark may run it elsewhere."""


class Cube(Protocol):
    """The merged rows of all pieces."""

    def largest(self, keys: Mapping[str, str], limit: int) -> dict[str, list[Any]]:
        """Return, for each measure, the `limit` keys with the most bytes, the largest first.

        Of two keys with equal bytes the smaller comes first.

        Args:  keys: measure: the key that is meant.
        """
        ...

    def fold(self, keep: Mapping[str, tuple[str, Sequence[Any]]]) -> pa.Table:
        """Return all rows, but merge rows with keys that `keep` lacks under the label OTHERS.

        Args:  keep: measure: the key it is about, and its values that are kept. The rows of all
               others become one, with that key empty and the label OTHERS.
        """
        ...

    def close(self) -> None:
        """Release the memory or Spark resources that hold the cube's rows."""
        ...


class ReportEngine(Protocol):
    """Runs the counting: in this process, or in Spark."""

    def count(self, work: Sequence[Work], reduce: Reduce) -> Cube:
        """Count the records of each span of the logs with `reduce`, and merge the rows into a cube.

        Raises:  as reading the pieces does.
        """
        ...


def rows(measure: str, count: int, **columns: Any) -> pa.Table:
    """Build `count` rows of a measure; a column given as one value has that value in every row.

    >>> rows("topic", 2, name="t", bytes=np.array([3, 4])).column("bytes").to_pylist()
    [3, 4]
    """
    arrays = []
    for field in CUBE:
        default = "" if field.type == pa.string() else _DEFAULT.get(field.name, 0)
        value = measure if field.name == "measure" else columns.pop(field.name, default)
        if isinstance(value, (str, int)):
            arrays.append(pa.repeat(pa.scalar(value, field.type), count))
        else:
            arrays.append(value if isinstance(value, pa.Array) else pa.array(value, field.type))
    assert not columns, f"no such keys or values: {sorted(columns)}"
    return pa.table(arrays, schema=CUBE)


def merge_rows(parts: Iterable[pa.Table]) -> pa.Table:
    """Merge rows with equal keys into one row for each key, in the order of the keys."""
    whole = pa.concat_tables([CUBE.empty_table(), *parts])
    found = whole.group_by(list(KEYS), use_threads=False).aggregate(HOW)
    found = found.select([*KEYS, *(f"{value}_{how}" for value, how in HOW)])
    found = found.rename_columns(CUBE.names).cast(CUBE)
    return found.sort_by([(key, "ascending") for key in KEYS])


def band_starts(values: Numbers) -> Numbers:
    """Return the lower bound of the histogram band that contains each value.

    Values below 64 have bands of their own; negative values give -1.

    >>> band_starts(np.array([-7, 0, 63, 64, 67, 1000])).tolist()
    [-1, 0, 63, 64, 66, 992]
    """
    whole = np.maximum(values, 0)
    exponent = np.frexp(whole.astype(np.float64))[1].astype(np.int64)  # bits that it needs
    shift = np.maximum(exponent - 1 - BAND_BITS, 0)
    return np.where(values < 0, -1, (whole >> shift) << shift)


def band_middle(lower: Numbers) -> npt.NDArray[np.float64]:
    """Return the value in the middle of each histogram band.

    >>> band_middle(np.array([5, 64, 992])).tolist()
    [5.0, 65.0, 1000.0]
    """
    exponent = np.frexp(np.maximum(lower, 0).astype(np.float64))[1].astype(np.int64)
    width = np.left_shift(1, np.maximum(exponent - 1 - BAND_BITS, 0))
    middle: npt.NDArray[np.float64] = np.where(width > 1, lower + width / 2, lower)
    return middle


def percentiles(lower: Numbers, counts: Numbers, wanted: Sequence[float]) -> list[float | None]:
    """Return percentiles of a histogram, or None for each if the histogram is empty.

    >>> percentiles(np.array([1, 10]), np.array([99, 1]), [50, 99, 99.5])
    [1.0, 1.0, 10.0]
    """
    order = np.argsort(lower, kind="stable")
    middles, running = band_middle(lower[order]), np.cumsum(counts[order])
    if not len(running) or running[-1] <= 0:
        return [None for _ in wanted]
    ranks = [running[-1] * percentage / 100 for percentage in wanted]
    return [float(middles[min(int(np.searchsorted(running, r)), len(middles) - 1)]) for r in ranks]


class LocalCube:
    """A cube in this process's memory."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def largest(self, keys: Mapping[str, str], limit: int) -> dict[str, list[Any]]:
        """Return, for each measure, the `limit` keys with the most bytes, the largest first."""
        return {measure: self._largest(measure, key, limit) for measure, key in keys.items()}

    def _largest(self, measure: str, key: str, limit: int) -> list[Any]:
        of_measure = self._table.filter(pc.equal(self._table["measure"], measure))
        totals = of_measure.group_by(key, use_threads=False).aggregate([("bytes", "sum")])
        order = totals.sort_by([("bytes_sum", "descending"), (key, "ascending")])
        found: list[Any] = order[key].slice(0, limit).to_pylist()
        return found

    def fold(self, keep: Mapping[str, tuple[str, Sequence[Any]]]) -> pa.Table:
        """Return all rows, but merge rows with keys that `keep` lacks under the label OTHERS."""
        table = self._table
        for measure, (key, values) in keep.items():
            known = pc.is_in(table[key], value_set=pa.array(values, CUBE.field(key).type))
            other = pc.and_(pc.equal(table["measure"], measure), pc.invert(known))
            empty = pa.scalar("" if key in _TEXT else 0, CUBE.field(key).type)
            for column, value in ((key, empty), ("label", pa.scalar(OTHERS))):
                place = table.schema.get_field_index(column)
                changed = pc.if_else(other, value, table[column])
                table = table.set_column(place, CUBE.field(column), changed)
        return merge_rows([table])

    def close(self) -> None:
        """Do nothing, because the memory is released with the cube."""


MERGE_EVERY: Final = 500_000
"""Rows that wait to be merged; this bounds the memory of counting many pieces."""


class LocalReportEngine:
    """Counts one piece after the other in this process."""

    def __init__(self, progress: Callable[[], None] = lambda: None) -> None:
        """Make an engine that calls `progress` after each counted span of a log."""
        self._progress = progress

    def count(self, work: Sequence[Work], reduce: Reduce) -> LocalCube:
        """Count the records of each span in this process, and merge the rows into a cube."""
        waiting: list[pa.Table] = []
        for piece in work:
            waiting.append(reduce(piece))
            if sum(table.num_rows for table in waiting) > MERGE_EVERY:
                waiting = [merge_rows(waiting)]
            self._progress()
        return LocalCube(merge_rows(waiting))
