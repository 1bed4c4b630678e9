"""Costs by topic, GETs of readers, forecast and trend: each against a sum made another way.

Source: docs/report.md.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from diskless.compaction.planner import SMALL_RUN_BYTES as PLANNERS
from records.final_batches import MAX_RUN_BYTES
from spark_jobs.prices import Prices
from spark_jobs.report.counting import SMALL_RUN_BYTES
from spark_jobs.report.cube import LocalReportEngine
from spark_jobs.report.history import NAME, HistoryError, history_text, read_history
from spark_jobs.report.job import Question, Report, make_report
from spark_jobs.report.outlook import forecast, reads
from spark_jobs.report.page import SECTIONS, page
from spark_jobs.report.summary import summarise
from spark_jobs.report.writing import write_report
from spark_jobs.tables.log_state import state_at
from tests.spark_jobs.report_world import LOG, World

DAY_MS = 86_400_000
GB = 10**9


@pytest.fixture(scope="module")
def report(harbour: World) -> Report:
    return make_report(harbour.logs, LocalReportEngine(), Question(now_ms=harbour.now_ms))


def test_the_costs_of_topics_add_up_to_the_costs_of_the_cluster_without_footers(
    report: Report,
) -> None:
    costs = {row["item"]: row["amount"] for row in report.tables["costs"].to_pylist()}
    topics = report.tables["topic_costs"].to_pylist()
    assert len(topics) > 3
    assert [row["amount"] for row in topics] == sorted(row["amount"] for row in topics)[::-1]
    assert sum(row["amount"] for row in topics) == pytest.approx(
        sum(costs.values()) - costs["footers of objects"]
    )
    assert sum(row["live_amount"] for row in topics) == pytest.approx(costs["live bytes"])
    uploads = sum(row["upload_amount"] for row in topics)
    assert uploads == pytest.approx(costs["uploads of objects"])


def test_the_gets_of_readers_are_the_live_runs_of_the_coordinators_state(
    report: Report, harbour: World
) -> None:
    assert SMALL_RUN_BYTES == PLANNERS
    runs = state_at(harbour.logs.log(LOG)).runs.to_pylist()
    names = {row["topic_id"]: row["topic"] for row in report.tables["topics"].to_pylist()}
    told = {row["topic"]: row for row in report.tables["reads"].to_pylist()}
    assert sum(row["runs"] for row in told.values()) == len(runs)
    for topic_id, topic in names.items():
        sizes = [run["byte_size"] for run in runs if run["topic_id"] == topic_id]
        if sizes:
            small = [size for size in sizes if size < SMALL_RUN_BYTES]
            assert (told[topic]["runs"], told[topic]["bytes"]) == (len(sizes), sum(sizes))
            assert (told[topic]["small_runs"], told[topic]["small_bytes"]) == (
                len(small), sum(small)
            )  # fmt: skip


def test_merging_leaves_large_runs_and_fills_others_up() -> None:
    sizes = {"bytes": 10 * MAX_RUN_BYTES, "small_bytes": MAX_RUN_BYTES + 1}
    (row,) = reads([{"topic": "t", "runs": 100, "small_runs": 93, **sizes}], Prices())
    assert row["merged_runs"] == 7 + 2
    assert row["gets_per_mib"] == pytest.approx(100 / 40)
    assert row["amount"] == pytest.approx(100 / 1000 * 0.0004)


def topic(**values: object) -> dict[str, object]:
    return {
        "live_bytes": 0, "dead_bytes": 0, "bytes": 0, "partitions": 2, "deleted": False,
        "retention_ms": -1, "retention_bytes": -1, **values,
    }  # fmt: skip


def test_a_forecast_fills_retention_and_lets_topics_without_limits_grow() -> None:
    """A day's window with 1 GB: each topic writes 1 GB a day."""
    day_s = DAY_MS / 1000

    def ahead(**values: object) -> list[float]:
        rows = forecast([topic(bytes=GB, **values)], day_s, 0.0, Prices(gb_month=1.0))
        assert all(
            row["amount"] == pytest.approx((row["live_bytes"] + row["dead_bytes"]) / GB)
            for row in rows
        )
        return [row["live_bytes"] / GB for row in rows]  # after 0, 7, 30, 90, 180, 365 days

    assert ahead(live_bytes=GB) == [1, 8, 31, 91, 181, 366]
    assert ahead(live_bytes=GB, retention_ms=30 * DAY_MS) == pytest.approx(
        [1, 7.767, 30, 30, 30, 30], abs=1e-3
    )
    assert ahead(live_bytes=GB, retention_bytes=5 * GB) == [1, 8, 10, 10, 10, 10]
    assert ahead(live_bytes=9 * GB, retention_ms=7 * DAY_MS) == [9, 7, 7, 7, 7, 7], "it wrote more"
    assert ahead(live_bytes=GB, deleted=True, retention_ms=None) == [1] * 6
    dead = forecast([topic(live_bytes=GB, dead_bytes=GB // 2, bytes=GB)], day_s, 2.0, Prices())
    assert [row["dead_bytes"] for row in dead[:2]] == [GB // 2, 4 * GB]
    assert dead[0]["amount"] > 2.0, "uploads are in it"


def test_a_later_report_in_the_same_directory_shows_the_trend(
    report: Report, harbour: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outlook = [section for section in SECTIONS if section[0] == "outlook"]
    monkeypatch.setattr("spark_jobs.report.page.SECTIONS", outlook)  # the others take seconds
    write_report(report, summarise(report), tmp_path, engine="local")
    write_report(report, summarise(report), tmp_path, engine="local")
    other = {**report.tables["history"].to_pylist()[0], "as_of_ms": 1}
    (tmp_path / NAME).write_text(history_text(tmp_path, "another cluster", other))
    assert len((tmp_path / NAME).read_text().splitlines()) == 2, "the same report counts once"
    later_ms = harbour.now_ms + 2 * DAY_MS
    earlier = read_history(tmp_path, report.cluster_id, before_ms=later_ms)
    assert read_history(tmp_path, report.cluster_id, before_ms=harbour.now_ms) == ()
    assert [row["as_of_ms"] for row in earlier] == [harbour.now_ms]
    half = {**earlier[0], "live_bytes": earlier[0]["live_bytes"] // 2, "amount": 0.01}
    question = Question(now_ms=later_ms, earlier=(half,))
    later = make_report(harbour.logs, LocalReportEngine(), question)
    found = summarise(later)
    grew = found.numbers["stored_change_bytes"]
    assert grew == earlier[0]["live_bytes"] - half["live_bytes"]
    assert found.numbers["since_last_report_s"] == 2 * DAY_MS / 1000
    (trend,) = (one.text for one in found.findings if one.text.startswith("Since the report 2 d"))
    assert "the store grew by" in trend
    assert "instead of" in trend
    text = page(later, found, engine="local")
    assert "needs an earlier report" not in text
    assert "The store went from" in text
    in_euros = replace(later, tables=dict(later.tables))
    rows = later.tables["history"].to_pylist()
    rows[0]["currency"] = "EUR"
    in_euros.tables["history"] = later.tables["history"].from_pylist(  # type: ignore[index]
        rows, schema=later.tables["history"].schema
    )
    assert not any(
        "instead of" in one.text and "Since" in one.text for one in summarise(in_euros).findings
    )


def test_a_store_that_grows_a_little_each_day_is_told_by_the_month(
    report: Report, harbour: World
) -> None:
    """The trap: no report finds much more than the one of the day before."""
    row = report.tables["history"].to_pylist()[0]

    def told(days: int) -> list[str]:
        """Return what a report says after daily ones, between which the store grew by 3 %."""
        earlier = tuple(
            {
                **row,
                "as_of_ms": row["as_of_ms"] - day * DAY_MS,
                **{name: round(row[name] / 1.03**day) for name in ("live_bytes", "dead_bytes")},
            }
            for day in range(days, 0, -1)
        )
        question = Question(now_ms=harbour.now_ms, earlier=earlier)
        findings = summarise(make_report(harbour.logs, LocalReportEngine(), question)).findings
        return [one.text for one in findings if one.text.startswith("Since the report")]

    assert told(0) == told(1) == []
    assert [text.startswith("Since the report 20 d before") for text in told(20)] == [True]
    assert [text.startswith("Since the report 30 d before") for text in told(40)] == [True]


@pytest.mark.parametrize(
    "line", ["{", "[]", "{}", json.dumps({"cluster_id": "x", "as_of_ms": "yesterday"})]
)
def test_a_damaged_line_of_the_history_is_named(line: str, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(line + "\n")
    with pytest.raises(HistoryError, match=r"history\.jsonl, line 1: not a report's numbers"):
        read_history(tmp_path, "x", before_ms=5)
