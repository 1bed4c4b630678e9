"""Draws plots in one style: tables' columns in, one SVG out.

Drawn by matplotlib, without its global state, as text that a browser can select and search. Colours
are written as names of the page's own (`var(--c1)`), so that one drawing is right on light, on dark
and on paper.

The trap is in `svg`: matplotlib knows nothing of such names, so every colour here is a hex code
that stands for one, and is replaced once all is drawn.

Source: matplotlib's SVG backend; Okabe and Ito's palette for the order of hues.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from html import escape
from typing import Any, Final

import numpy as np
from matplotlib import dates as matplotlib_dates
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from spark_jobs.report.words import count, plain

TOKENS: Final = {
    "c1": "#0b6fb8", "c2": "#e08214", "c3": "#12946a", "c4": "#b8488f", "c5": "#5a55c8",
    "c6": "#9a7b0a", "c7": "#2a9fc4", "c8": "#c8553d", "other": "#9aa3ad",
    "ink": "#1b2430", "soft": "#5b6673", "line": "#d4dae1", "card": "#fefefe",
    "live": "#12956b", "dead": "#d1495b", "free": "#f0a202",
}  # fmt: skip
"""The page's colours: name in the style sheet, and code on light paper. All codes differ."""

SERIES: Final = tuple(f"c{number}" for number in range(1, 9))
FEW_POINTS: Final = 40  # of a line, which are drawn as points too: some may stand alone
WIDE: Final = (11.4, 3.1)
HALF: Final = (5.6, 3.1)

Word = Callable[[float], str]

_STYLE: Final[Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "esker",  # the same ids every time
    "text.parse_math": False,  # names may have dollars in them
    "font.size": 9.5,
    "axes.edgecolor": TOKENS["line"],
    "axes.labelcolor": TOKENS["soft"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": TOKENS["line"],
    "grid.linewidth": 0.7,
    "text.color": TOKENS["ink"],
    "xtick.color": TOKENS["line"],
    "ytick.color": TOKENS["line"],
    "xtick.labelcolor": TOKENS["soft"],
    "ytick.labelcolor": TOKENS["soft"],
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "legend.labelcolor": TOKENS["soft"],
    "legend.handlelength": 0.9,
    "legend.handleheight": 0.9,
    "legend.borderaxespad": 0,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
}

Draw = Callable[[Figure], None]


def svg(draw: Draw, shape: tuple[float, float], label: str) -> str:
    """Draw an SVG element of the page, with a text alternative.

    Args:    shape: inches, at 72 points each.
             label: plain text.
    """
    with rc_context(_STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a name's letters may not be in the font
        figure = Figure(figsize=shape, layout="constrained")
        figure.patch.set_alpha(0)
        figure.get_layout_engine().set(w_pad=0.02, h_pad=0.04)  # type: ignore[union-attr, call-arg]
        canvas: Any = FigureCanvasSVG(figure)
        draw(figure)
        for axes in figure.axes:
            axes.patch.set_alpha(0)
        out = io.StringIO()
        canvas.print_svg(
            out, metadata={"Date": None, "Creator": None, "Type": None, "Format": None}
        )
    return _element(out.getvalue(), label)


_FONT: Final = re.compile(r"'DejaVu Sans'[^;\"]*")
_HEX: Final = re.compile("|".join(TOKENS.values()))
_NAMES: Final = {code: name for name, code in TOKENS.items()}


def _element(text: str, label: str) -> str:
    """Turn an SVG file into an element of the page with named colours and unique ids."""
    text = text[text.index("<svg") :]
    start = text.index(">") + 1
    found = re.search(r'viewBox="([^"]*)"', text[:start])
    assert found is not None, "matplotlib writes a viewBox"
    body = re.sub(r"\s*<metadata>.*?</metadata>", "", text[start:], flags=re.DOTALL)
    body = _FONT.sub("var(--font)", body)
    body = _HEX.sub(lambda one: f"var(--{_NAMES[one.group()]})", body)
    mark = sha256(body.encode()).hexdigest()[:8]
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{mark}-", body)
    return f'<svg viewBox="{found.group(1)}" role="img" aria-label="{escape(label)}">{body}'


# --- axes ---------------------------------------------------------------------------------------


_DATES: Final[Any] = matplotlib_dates  # it has no types
_LATEST_S: Final = 253_402_214_400  # the end of the year 9999, and of Python's calendar


def to_dates(times_ms: Sequence[int]) -> Any:
    """Convert times to matplotlib's dates, in UTC."""
    seconds = (min(max(time_ms / 1000, 0), _LATEST_S) for time_ms in times_ms)
    return [datetime.fromtimestamp(time_ms, UTC) for time_ms in seconds]


def time_axis(axes: Axes, start_ms: int, end_ms: int) -> None:
    """Format the horizontal axis as times between `start_ms` and `end_ms`."""
    locator = _DATES.AutoDateLocator(tz=UTC, minticks=3, maxticks=8)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(_DATES.ConciseDateFormatter(locator, tz=UTC))
    begin, end = to_dates([start_ms, max(end_ms, start_ms + 1_000)])
    axes.set_xlim(begin, end)
    axes.xaxis.get_offset_text().set_color(TOKENS["soft"])


def format_axis(axes: Axes, which: str, word: Word, label: str = "") -> None:
    """Format the numbers of the axis `which` with the function `word`, and set the axis's label."""
    axis = axes.yaxis if which == "y" else axes.xaxis
    axis.set_major_formatter(FuncFormatter(lambda value, _: word(value)))
    if axis.get_scale() == "linear":
        axis.set_major_locator(
            MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10], integer=word is count)
        )
    (axes.set_ylabel if which == "y" else axes.set_xlabel)(label)


def legend_above(axes: Axes, handles: Sequence[Any] | None = None) -> None:
    """Place the legend above the plot, in as few lines as fit."""
    shown = list(handles) if handles is not None else axes.get_legend_handles_labels()[0]
    names = [str(handle.get_label()) for handle in shown]
    width = 0.86 * 72 * axes.get_figure(root=True).get_figwidth()  # type: ignore[union-attr]
    per_line = len(names)
    while per_line > 1 and per_line * (26 + 5.6 * max(map(len, names))) > width:
        per_line -= 1
    if sum(26 + 5.6 * len(name) for name in names) <= width:
        per_line = len(names)
    axes.legend(
        handles=shown, loc="lower left", bbox_to_anchor=(0, 1.02), ncols=max(per_line, 1),
        columnspacing=1.3,
    )  # fmt: skip


# --- kinds --------------------------------------------------------------------------------------

Layers = Sequence[tuple[str, str, Sequence[float]]]
"""Name, colour's name, and a value for each position on the axis."""


def stacked_over_time(
    times_ms: Sequence[int], layers: Layers, width_ms: int, word: Word, label: str
) -> Draw:
    """Draw layers as stacked areas over time, with one step for each bucket of `width_ms`."""

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        edges = _DATES.date2num(to_dates([*times_ms, times_ms[-1] + width_ms]))
        below = np.zeros(len(times_ms))
        for name, colour, values in layers:
            top = below + np.asarray(values, np.float64)
            axes.stairs(
                top, edges, baseline=below, fill=True, color=TOKENS[colour], label=plain(name)
            )
            below = top
        axes.xaxis_date(tz=UTC)
        time_axis(axes, times_ms[0], times_ms[-1] + width_ms)
        axes.set_ylim(0, max(below.max() * 1.05, 1e-9))
        format_axis(axes, "y", word, label)
        if len(layers) > 1:
            legend_above(axes)

    return draw


def lines_over_time(
    times_ms: Sequence[int], layers: Layers, word: Word, label: str, *, logarithmic: bool = False
) -> Draw:
    """Draw one line over time for each layer, with gaps where values are nan."""

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        if logarithmic:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=7))
            axes.yaxis.set_minor_formatter(NullFormatter())
        for name, colour, values in layers:
            few = np.isfinite(values).sum() < FEW_POINTS
            axes.plot(
                to_dates(times_ms), values, color=TOKENS[colour], label=name,
                marker="o" if few else None, markersize=4,
            )  # fmt: skip
        if not logarithmic:
            axes.set_ylim(0)
        time_axis(axes, times_ms[0], times_ms[-1])
        format_axis(axes, "y", word, label)
        legend_above(axes)

    return draw


def bars(names: Sequence[str], layers: Layers, word: Word, label: str) -> Draw:
    """Draw horizontal bars from top to bottom, each with its total at the end."""

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        places, total = np.arange(len(names)), np.zeros(len(names))
        for name, colour, values in layers:
            widths = np.asarray(values, np.float64)
            axes.barh(places, widths, 0.68, total, color=TOKENS[colour], label=plain(name))
            total = total + widths
        for place, value in zip(places, total, strict=True):
            axes.annotate(
                word(value), (value, place), (4, 0), textcoords="offset points", va="center",
                color=TOKENS["soft"], fontsize=8.5,
            )  # fmt: skip
        axes.set_yticks(places, [plain(name) for name in names])
        axes.tick_params(axis="y", labelcolor=TOKENS["ink"])
        axes.set_ylim(max(len(names), 4) - 0.5, -0.5)
        axes.set_xlim(0, max(total.max(), 1e-12) * 1.16)
        axes.grid(False)
        axes.spines["bottom"].set_visible(False)
        axes.set_xticks([])
        axes.set_xlabel(label)
        if len(layers) > 1:
            legend_above(axes)

    return draw


def columns(names: Sequence[str], layers: Layers, word: Word, label: str, below: str = "") -> Draw:
    """Draw stacked vertical bars; if there are many bars, label only some of them."""

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        places, total = np.arange(len(names)), np.zeros(len(names))
        for name, colour, values in layers:
            heights = np.asarray(values, np.float64)
            axes.bar(places, heights, 0.82, total, color=TOKENS[colour], label=name)
            total = total + heights
        every = max(1, -(-len(names) // (20 if figure.get_figwidth() > 8 else 9)))
        axes.set_xticks(places[::every], list(names)[::every])
        axes.set_xlim(-0.6, max(len(names), 6) - 0.4)
        format_axis(axes, "y", word, label)
        axes.set_xlabel(below)
        if len(layers) > 1:
            legend_above(axes)

    return draw


def curve(
    x: Sequence[float], y: Sequence[float], words: tuple[Word, Word], labels: tuple[str, str]
) -> Draw:
    """Draw a Lorenz curve, the diagonal of equality, and the area between both."""

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.fill_between(x, y, x, color=TOKENS["c1"], alpha=0.14, linewidth=0)
        axes.plot([0, 1], [0, 1], color=TOKENS["other"], linewidth=1, linestyle=(0, (4, 3)))
        axes.plot(x, y, color=TOKENS["c1"])
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1.005)
        format_axis(axes, "x", words[0], labels[0])
        format_axis(axes, "y", words[1], labels[1])

    return draw


def two_scales(
    x: Sequence[float], left: tuple[str, Sequence[float]], right: tuple[str, Sequence[float]],
    words: tuple[Word, Word, Word], label: str, marked: int | None,
) -> Draw:  # fmt: skip
    """Draw two lines over one logarithmic x axis, each in its own panel, with one point marked."""

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, 2, sharex=True)
        for axes, (name, values), word, colour in zip(
            panels, (left, right), words[1:], ("c1", "c2"), strict=True
        ):
            axes.set_xscale("log")
            axes.plot(x, values, color=TOKENS[colour], marker="o", markersize=4)
            if marked is not None:
                axes.plot(
                    x[marked], values[marked], "o", markersize=10, markerfacecolor="none",
                    markeredgecolor=TOKENS["ink"], markeredgewidth=1.2,
                )  # fmt: skip
                axes.annotate(
                    "now", (x[marked], values[marked]), (0, 9), textcoords="offset points",
                    ha="center", fontsize=8.5,
                )  # fmt: skip
            axes.set_ylim(0, max(max(values), 1e-12) * 1.2)
            format_axis(axes, "y", word)
            axes.set_title(name, fontsize=9, color=TOKENS["soft"], loc="left")
            axes.set_xticks(x[:: max(1, (len(x) + 1) // 3)])
            axes.minorticks_off()
            format_axis(axes, "x", words[0], label)

    return draw


def heat(
    grid: Sequence[Sequence[float]], columns_: Sequence[str], rows: Sequence[str],
    labels: tuple[str, str],
) -> Draw:  # fmt: skip
    """Draw counts over two dimensions as a heat map that shows each count as text."""

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        values = np.asarray(grid, np.float64)
        most = max(values.max(), 1.0)
        axes.set_xlim(-0.5, max(len(columns_), 6) - 0.5)
        axes.set_ylim(-0.5, max(len(rows), 4) - 0.5)
        for (row, column), value in np.ndenumerate(values):
            if not value:
                continue
            strength = 0.12 + 0.7 * (value / most) ** 0.5
            axes.bar(
                column, 0.94, 0.94, row - 0.47, color=TOKENS["c1"], alpha=strength, linewidth=0
            )
            axes.annotate(
                count(value),
                (column, row),
                ha="center",
                va="center",
                fontsize=8,
                color=TOKENS["ink"],
            )
        axes.grid(False)
        axes.set_xticks(range(len(columns_)), list(columns_))
        axes.set_yticks(range(len(rows)), list(rows))
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])

    return draw


Bar = tuple[int, float, float, str, str]
"""Row, beginning, length, the colour's name, and the text in the bar."""


def spans(
    rows: Sequence[str], drawn: Sequence[Bar], legend: Sequence[tuple[str, str]], *,
    times: tuple[int, int] | None = None, word: Word = count, label: str = "",
) -> Draw:  # fmt: skip
    """Draw intervals in rows, over time or over offsets."""

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for row, begin, length, colour, text in drawn:
            left: Any = to_dates([int(begin)])[0] if times else begin
            width = length / 86_400_000 if times else length
            if text:
                axes.annotate(
                    text, (left, row), (5, 0), textcoords="offset points", va="center",
                    fontsize=8, color=TOKENS["card"],
                )  # fmt: skip
            axes.barh(
                row, width, 0.6, left, color=TOKENS[colour], edgecolor=TOKENS["card"], linewidth=0.8
            )
        axes.set_yticks(range(len(rows)), [plain(row) for row in rows])
        axes.tick_params(axis="y", labelcolor=TOKENS["ink"])
        axes.set_ylim(max(len(rows), 3) - 0.4, -0.6)
        axes.grid(False)
        if times:
            time_axis(axes, *times)
        else:
            format_axis(axes, "x", word, label)
            axes.set_xlim(0)
        handles = [Patch(color=TOKENS[colour], label=name) for name, colour in legend]
        if handles:
            legend_above(axes, handles)

    return draw
