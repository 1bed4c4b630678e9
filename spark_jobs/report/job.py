"""Makes a report: two passes over the coordinators' logs, one over the cluster's, then tables.

    report = make_report(logs, LocalReportEngine(), now_ms=now)
    report.tables["topics"]

Committed ends are read once and hold for all passes: a report is about one moment. Everything
that grows with the data is counted in tasks; only merged counts reach this process.

Source: docs/design/pipeline.md#the-report.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from records.diskless import RunsReplacedRecord
from records.types import OffsetAndEpoch
from snapshot.names import checkpoint_name
from spark_jobs.prices import Prices
from spark_jobs.readers.log_files import SPLIT_BYTES
from spark_jobs.readers.logs import (
    CLUSTER_METADATA,
    DISKLESS_METADATA,
    CommittedFiles,
    Log,
    Logs,
    coordinators_of,
)
from spark_jobs.report.cluster import history_of
from spark_jobs.report.counting import Counting, count_rewritten
from spark_jobs.report.cube import Cube, Reduce, ReportEngine, Work, merge_rows
from spark_jobs.report.first_pass import FirstPass, first_pass_result, names_of
from spark_jobs.report.tables import Checkpoint, Facts, log_name, tables_of
from spark_jobs.report.window import Window, ends_of, window
from spark_jobs.tables.coordinator_log import REPLACEMENT_KEYS, CoordinatorLog, fold
from spark_jobs.tables.schemas import table_name
from spark_jobs.tables.topics import topics_of

TOP: Final = 8
"""Topics and producers that are shown by themselves over time; more lines would look alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The settings of a report."""

    now_ms: int  # ms since 1970, that ages are counted from
    prices: Prices = field(default_factory=Prices)
    commit_interval_ms: int = 250  # diskless.append.commit.interval.ms
    buffer_bytes: int = 8 * 1024 * 1024  # diskless.append.buffer.max.bytes
    earlier: Sequence[Mapping[str, Any]] = ()  # reports, as rows of the table `history`


@dataclass(frozen=True, slots=True)
class Report:
    """The result: tables, and the moment and settings that they are of."""

    cluster_id: str
    question: Question
    window: Window
    ends: Mapping[str, int]  # how far each log was read, exclusive
    tables: Mapping[str, pa.Table]
    is_empty: bool  # no log had any record


def make_report(
    logs: Logs,
    engine: ReportEngine,
    question: Question,
    *,
    split_bytes: int = SPLIT_BYTES,
    progress: Callable[[str], None] = lambda _: None,
) -> Report:
    """Read all committed records of a cluster's logs, and compute the report's tables.

    Args:    progress: called with the name of each step as it begins.
    Raises:  LogsError; LostRangeError, DamagedFileError, RecordError; OSError.
    """
    progress("finding the ends of the logs")
    names = [log_name(number) for number in (-1, *coordinators_of(logs))]
    found = {name: logs.log(name) for name in names}
    ends = {name: log.end_offset() for name, log in found.items()}
    both = ends_of((log, ends[name]) for name, log in found.items())
    over = window(*(both or (question.now_ms, question.now_ms)))
    work = list(_work(found, ends, split_bytes))
    cluster = [piece.span for piece in work if piece.log < 0]
    progress("the cluster's log")
    history, settings = history_of(cluster, over), topics_of(cluster)
    progress("first pass: where logs start")
    first = _count_all(engine, work, FirstPass(over), top=False)
    progress("second pass: written, live and dead bytes")
    replaced = {number: _replacements(work, number) for number in _rewritten_logs(first)}
    ranges = {number: log.replaced for number, log in replaced.items()}
    counting = Counting(over, first_pass_result(first), question.now_ms, ranges)
    counts = _count_all(engine, [piece for piece in work if piece.log >= 0], counting, top=True)
    rewritten = [count_rewritten(counting, number, log) for number, log in replaced.items()]
    counts = merge_rows([counts, *rewritten])
    progress("tables")
    facts = Facts(
        window=over,
        first=first,
        counts=counts,
        history=history,
        topics=settings,
        names=names_of(first),
        checkpoints=list(_checkpoints(found, work, first)),
        prices=question.prices,
        commit_interval_ms=question.commit_interval_ms,
        buffer_bytes=question.buffer_bytes,
        now_ms=question.now_ms,
        earlier=question.earlier,
    )
    return Report(logs.cluster_id, question, over, ends, tables_of(facts), both is None)


def _work(logs: Mapping[str, Log], ends: Mapping[str, int], split_bytes: int) -> Iterator[Work]:
    for name, log in logs.items():
        number = -1 if name == CLUSTER_METADATA else int(name.removeprefix(DISKLESS_METADATA))
        for span in log.spans(ends[name], split_bytes=split_bytes):
            yield Work(number, span)


def _rewritten_logs(first: pa.Table) -> list[int]:
    """Return the coordinators in whose logs runs were replaced, from the rows of the first pass."""
    name = table_name(RunsReplacedRecord)
    is_replaced = pc.and_(pc.equal(first["measure"], "log"), pc.equal(first["name"], name))
    numbers: set[int] = set(np.unique(first.filter(is_replaced)["number"].to_numpy()).tolist())
    return sorted(numbers)


def _replacements(work: Sequence[Work], number: int) -> CoordinatorLog:
    """Collect the replaced runs from the records of one coordinator's log.

    Why here: of two replacements of one range the later one counts, so pieces cannot be read apart.
    """
    log = CoordinatorLog()
    for piece in work:
        if piece.log == number:
            fold(piece.span.values(), log.handlers(REPLACEMENT_KEYS))
    return log


def _count_all(
    engine: ReportEngine, work: Sequence[Work], reduce: Reduce, *, top: bool
) -> pa.Table:
    """Count records of all spans; with `top`, merge all but the largest topics and producers."""
    cube = engine.count(work, reduce)
    try:
        return cube.fold(_largest(cube) if top else {})
    finally:
        cube.close()


def _largest(cube: Cube) -> dict[str, tuple[str, list[object]]]:
    keys = {"topic": "name", "producer": "number"}
    found = cube.largest(keys, TOP)
    return {measure: (key, found[measure]) for measure, key in keys.items()}


def _checkpoints(
    logs: Mapping[str, Log], work: Sequence[Work], first: pa.Table
) -> Iterator[Checkpoint]:
    """Yield each log's checkpoints: all files on disk, or else the checkpoint that the job read."""
    sizes = first.filter(pc.equal(first["label"], "checkpoint"))
    for name, log in logs.items():
        if isinstance(log, CommittedFiles):
            for snapshot_id in log.files.checkpoints():
                path = log.files.directory / checkpoint_name(snapshot_id)
                with suppress(FileNotFoundError):  # it went meanwhile, as they do
                    yield _checkpoint(name, snapshot_id, path.stat())
            continue
        for piece in work:
            if log_name(piece.log) == name and piece.span.is_checkpoint:
                size = pc.sum(sizes.filter(pc.equal(sizes["number"], piece.log))["bytes"]).as_py()
                epoch = next((place.epoch for place, _ in piece.span.values()), -1)
                yield Checkpoint(name, piece.span.end_offset, epoch, size or 0, None)


def _checkpoint(name: str, snapshot_id: OffsetAndEpoch, file: os.stat_result) -> Checkpoint:
    written_ms = file.st_mtime_ns // 1_000_000
    return Checkpoint(name, snapshot_id.offset, snapshot_id.epoch, file.st_size, written_ms)
