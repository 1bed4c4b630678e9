"""Tests the page: it needs no other file, states its findings, and survives hostile names."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raft.segments.files import RealFileSystem
from raft.segments.properties import MetaProperties, write_meta_properties
from raft.segments.segment import segment_name
from spark_jobs.prices import Prices
from spark_jobs.readers.logs import CLUSTER_METADATA, ReplicaLogs
from spark_jobs.report.cluster import ClusterHistory
from spark_jobs.report.cube import LocalReportEngine, rows
from spark_jobs.report.job import Question, Report, make_report
from spark_jobs.report.page import SECTIONS, page
from spark_jobs.report.plots import TOKENS, bars, svg
from spark_jobs.report.schemas import TABLES, documentation, schema
from spark_jobs.report.summary import estimate_basis, summarise
from spark_jobs.report.tables import Facts, commit_latency, puts_at
from spark_jobs.report.window import Window
from spark_jobs.report.words import count
from spark_jobs.report.writing import write_report
from tests.spark_jobs.report_world import LOG, TOPICS, World

PAGE = Path(__file__).parents[2] / "docs" / "report.md"
BEGIN, END = "<!-- tables: generated -->", "<!-- /tables -->"


@pytest.fixture(scope="module")
def report(harbour: World) -> Report:
    return make_report(harbour.logs, LocalReportEngine(), Question(now_ms=harbour.now_ms))


@pytest.fixture(scope="module")
def html(report: Report) -> str:
    return page(report, summarise(report), engine="local")


@pytest.fixture
def empty(tmp_path: Path) -> Report:
    """Return the report of a cluster that has just been formatted."""
    meta = MetaProperties(cluster_id="new", node_id=1)  # type: ignore[arg-type]
    write_meta_properties(RealFileSystem(), tmp_path, meta)
    for name in (CLUSTER_METADATA, LOG):
        (tmp_path / name).mkdir()
        (tmp_path / name / segment_name(0)).touch()  # type: ignore[arg-type]
    logs = ReplicaLogs(tmp_path, {CLUSTER_METADATA: 0, LOG: 0})
    return make_report(logs, LocalReportEngine(), Question(now_ms=1_700_000_000_000))


class Elements(HTMLParser):
    """Collects every tag with its attributes, and checks that each is closed."""

    VOID = ("meta", "img", "br", "link", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag


def test_the_report_page_refers_to_no_other_file(html: str) -> None:
    elements = Elements(html).found
    tags = {tag for tag, _ in elements}
    assert not tags & {"script", "link", "iframe", "object", "img", "base", "form"}
    for tag, attributes in elements:
        for name, value in attributes.items():
            assert not name.startswith("on"), f"{tag} runs something: {name}={value}"
            if name in ("href", "src", "xlink:href"):
                assert value is not None
                assert value.startswith("#"), f"{tag} refers to {value}"
    assert "@import" not in html
    assert "@font-face" not in html
    assert not re.search(r"url\((?!#)", html)


def test_ids_on_the_report_page_are_unique_and_every_reference_has_a_target(html: str) -> None:
    elements = Elements(html).found
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in elements:
        for name in ("href", "xlink:href", "aria-labelledby"):
            if name in attributes:
                assert (attributes[name] or "").removeprefix("#") in ids
    assert set(re.findall(r"url\(#([^)]*)\)", html)) <= set(ids)


def test_every_figure_of_the_report_has_a_text_alternative(html: str) -> None:
    drawings = [attributes for tag, attributes in Elements(html).found if tag == "svg"]
    without_data = 2  # of transactions and earlier reports: the harbour has none
    assert len(drawings) == sum(len(drawn) for _, _, drawn in SECTIONS) - without_data
    assert all(one["role"] == "img" and len(one["aria-label"] or "") > 40 for one in drawings)


def test_report_drawings_use_only_colours_of_the_style_sheet(html: str) -> None:
    body = html[html.index("<main>") :]
    assert not re.search(r"(fill|stroke): ?#", body)
    assert set(re.findall(r"var\(--([\w]+)\)", body)) <= {*TOKENS, "font"}


def test_the_report_page_escapes_names_from_the_log(html: str) -> None:
    assert TOPICS[4].name == "billing <eu> & more"
    assert "billing <eu>" not in html
    assert html.count("billing &lt;eu&gt; &amp; more") > 3


HOSTILE = (
    "</style><script>alert(1)</script>", "$\\frac{1}{0}$ _^", "\x00\x1b[31m\u202e", "x" * 300,
    '" onload="alert(1)', "日本語テーマ", "]]>", "",
)  # fmt: skip


def test_hostile_names_in_the_log_add_no_markup_to_the_report_page(report: Report) -> None:
    """A log may hold any topic name."""
    tables: dict[str, pa.Table] = {}
    for name, table in report.tables.items():
        changed = table.to_pylist()
        for number, row in enumerate(changed):
            for key in row.keys() & {"topic", "producer", "log", "type", "what", "outcome"}:
                if row[key] not in ("object", "batch", "others"):
                    row[key] = HOSTILE[number % len(HOSTILE)]
        tables[name] = pa.Table.from_pylist(changed, schema=schema(name))
    made = replace(report, tables=tables, cluster_id=HOSTILE[0], ends={HOSTILE[0]: 1})
    made = replace(
        made, question=replace(made.question, prices=Prices(source=HOSTILE[0], currency=HOSTILE[4]))
    )
    text = page(made, summarise(made), engine="local")
    elements = Elements(text).found
    assert {"script", "eu"}.isdisjoint(tag for tag, _ in elements)
    assert not any(name.startswith("on") for _, attributes in elements for name in attributes)
    assert "\x00" not in text
    assert "\x1b" not in text
    assert "x" * 60 not in text


def test_the_report_page_of_an_empty_cluster_states_that_the_cluster_is_empty(
    empty: Report, tmp_path: Path
) -> None:
    assert empty.is_empty
    summary = summarise(empty)
    assert summary.lead == "The logs hold no record yet: there is nothing to report on."
    assert [one.about for one in summary.findings] == ["good"]
    text = page(empty, summary, engine="local")
    figures = sum(len(drawn) for _, _, drawn in SECTIONS)
    assert text.count('class="empty"') == figures
    assert "<svg" not in text
    assert write_report(empty, summary, tmp_path / "out", engine="local").exists()


def test_the_first_screen_of_a_report_shows_costs_and_dead_bytes(report: Report) -> None:
    summary = summarise(report)
    n = summary.numbers
    assert summary.lead.startswith("Your data costs ")
    rot = next(one.text for one in summary.findings if one.about == "rot")
    assert "customs-filings alone keeps" in rot
    assert "which it keeps for ever" in rot
    stored = (n["live_bytes"] or 0) + (n["pinned_bytes"] or 0) + (n["free_bytes"] or 0)
    assert 0 < stored < (n["stored_bytes"] or 0)  # footers
    assert n["commit_latency_negative"]
    assert n["elections"] == 2
    assert n["fencings"] == 3


def test_batches_with_old_timestamps_are_counted_apart_from_the_latency_of_commits() -> None:
    levels, days_5 = [100] * 98, 5 * 86_400_000
    counts = pa.table(
        {
            "measure": ["latency"] * 100,
            "time_ms": [0] * 100,
            "level": [*levels, days_5, days_5],
            "batches": [1] * 100,
        }
    )
    whole, _ = commit_latency(SimpleNamespace(counts=counts))  # type: ignore[arg-type]
    assert (whole["batches"], whole["backdated"], whole["p99_ms"]) == (100, 2, 101)  # of a band


@pytest.mark.parametrize(
    ("window_s", "words"), [(1800, " if they go on as in these 30 min"), (86_400, "")]
)
def test_the_first_sentence_says_from_how_short_a_time_uploads_were_estimated(
    window_s: int, words: str
) -> None:
    assert estimate_basis(window_s) == words


def test_reported_costs_are_bytes_and_requests_times_prices(harbour: World) -> None:
    prices = Prices(put_per_1000=1.0, gb_month=2.0, currency="EUR")
    question = Question(now_ms=harbour.now_ms, prices=prices)
    found = make_report(harbour.logs, LocalReportEngine(), question)
    for row in found.tables["costs"].to_pylist():
        rate = 2e-9 if row["unit"] == "bytes" else 1e-3
        assert row["amount"] == pytest.approx(row["quantity"] * rate)
    assert " EUR a month" in summarise(found).lead


def test_the_estimated_uploads_at_the_current_interval_equal_the_real_uploads(
    report: Report,
) -> None:
    uploads = next(row for row in report.tables["costs"].to_pylist() if row["unit"] == "requests")
    tried = report.tables["what_if"].to_pylist()
    now = next(row for row in tried if row["current"])
    assert now["puts_per_month"] == pytest.approx(uploads["quantity"])
    puts = [row["puts_per_month"] for row in tried]
    assert puts == sorted(puts, reverse=True), "longer intervals never mean more uploads"
    assert len(tried) == 7


def test_the_upload_estimate_adds_the_interval_to_the_idle_time_of_a_broker() -> None:
    """100 s with an object every 500 ms at an interval of 250 ms; then an interval of 750 ms."""
    over = Window(0, 99_999, 100_000)
    counts = rows("broker", 1, number=1, objects=200, bytes=200)
    facts = Facts(
        window=over, first=counts, counts=counts, history=ClusterHistory(over), topics={},
        names={}, checkpoints=(), prices=Prices(), commit_interval_ms=250, buffer_bytes=1 << 20,
    )  # fmt: skip
    assert puts_at(facts, 250) == pytest.approx(200)
    assert puts_at(facts, 500) == pytest.approx(100_000 / 750)
    with np.errstate(all="raise"):  # objects came twice as fast as the interval in force
        assert puts_at(replace(facts, commit_interval_ms=1_000), 500) == pytest.approx(400)


def test_the_written_report_files_have_the_same_numbers_as_the_report(
    report: Report, html: str, tmp_path: Path
) -> None:
    summary = summarise(report)
    written = write_report(report, summary, tmp_path / "out", engine="local")
    told = json.loads((tmp_path / "out" / "report.json").read_text())
    assert told["numbers"] == json.loads(json.dumps(dict(summary.numbers)))
    for name, table in report.tables.items():
        read = pq.read_table(tmp_path / "out" / "tables" / f"{name}.parquet")
        assert read.equals(table)
        assert read.schema.equals(schema(name))
    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert files == ["history.jsonl", "report.html", "report.json", "tables"]
    assert written.read_text() == html, "drawn alike each time"


def test_the_report_page_of_a_huge_cluster_has_a_bounded_size(report: Report) -> None:
    wide: dict[str, Any] = dict(report.tables)
    row = report.tables["partitions"].to_pylist()[0]
    many = [{**row, "partition": number, "bytes": 1 + number % 97} for number in range(50_000)]
    wide["partitions"] = pa.Table.from_pylist(many, schema=schema("partitions"))
    broker = {"state": "fenced", "from_ms": report.window.start_ms, "to_ms": None}
    wide["brokers"] = pa.Table.from_pylist(
        [{**broker, "broker_id": number} for number in range(3_000)], schema=schema("brokers")
    )
    made = replace(report, tables=wide)
    few = [section for section in SECTIONS if section[0] in ("load", "cluster")]
    with patch("spark_jobs.report.page.SECTIONS", few):
        assert 50_000 < len(page(made, summarise(made), engine="local")) < 300_000


def test_a_report_drawing_contains_text_instead_of_glyph_shapes() -> None:
    drawn = svg(bars(["a$b$c"], [("", "c1", [3])], count, ""), (4, 2), "a label")
    assert ">a$b$c</text>" in drawn
    assert ">3</text>" in drawn


def test_the_docs_page_of_the_report_describes_every_table(request: pytest.FixtureRequest) -> None:
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    written, _, after = rest.partition(END)
    if request.config.getoption("--rewrite"):
        PAGE.write_text(f"{before}{BEGIN}\n\n{documentation()}\n{END}{after}")
    else:
        assert written.strip() == documentation().strip(), "run it again with --rewrite"


def test_every_table_of_the_report_is_named_on_the_page(report: Report, html: str) -> None:
    assert report.tables.keys() == TABLES.keys()
    for name in TABLES:
        assert f"tables/{name}.parquet" in html
