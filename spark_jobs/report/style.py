"""The page's style sheet: one palette for light, dark and paper; nothing comes from elsewhere.

The colours' names are those of `spark_jobs.report.plots.TOKENS`.

Source: WCAG 2.2, 1.4.3 (contrast of text) and 1.4.11 (of shapes).
"""

from __future__ import annotations

from typing import Final

from spark_jobs.report.plots import TOKENS

DARK: Final = {
    "c1": "#58a6e8", "c2": "#f0a04b", "c3": "#3fc393", "c4": "#dd7fb8", "c5": "#9a95f5",
    "c6": "#d0b23c", "c7": "#63cbe8", "c8": "#ee8068", "other": "#6d7783",
    "ink": "#e8ecf1", "soft": "#a3adb8", "line": "#323a44", "card": "#1a2027",
    "live": "#35b98a", "dead": "#ef6b7d", "free": "#f2b53a",
}  # fmt: skip

_PAGE: Final = {"paper": "#f3f5f7", "tint": "#eaf2f9"}
_DARK_PAGE: Final = {"paper": "#12161b", "tint": "#1c2834"}


def _names(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {code};" for name, code in colours.items())


_RULES: Final = """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 var(--font);
  font-variant-numeric: tabular-nums; }
main, header, footer { max-width: 1180px; margin: 0 auto; padding: 0 20px; }
header { padding-top: 36px; }
h1 { font-size: 15px; font-weight: 600; letter-spacing: .02em; margin: 0; color: var(--soft); }
h1 b { color: var(--ink); font-weight: 650; overflow-wrap: anywhere; }
.lead { font-size: clamp(22px, 2.8vw, 31px); line-height: 1.27; font-weight: 650;
  margin: 14px 0 8px; max-width: 33em; letter-spacing: -.012em; text-wrap: balance; }
.about { color: var(--soft); font-size: 14px; margin: 0 0 22px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); gap: 12px;
  margin: 0 0 14px; }
.card, figure, .findings { background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; }
.card { padding: 13px 16px 12px; }
.card dt { font-size: 13px; color: var(--soft); }
.card dd { margin: 1px 0 0; font-size: 25px; line-height: 1.25; font-weight: 650;
  letter-spacing: -.01em; }
.card dd small { display: block; font-size: 13px; font-weight: 400; letter-spacing: 0;
  color: var(--soft); }
.findings { padding: 6px 20px; margin: 0 0 10px; list-style: none; }
.findings li { padding: 9px 0 9px 84px; position: relative; border-top: 1px solid var(--line); }
.findings li:first-child { border-top: 0; }
.findings b { position: absolute; left: 0; top: 11px; width: 62px; text-align: center;
  font-size: 12px; font-weight: 600; line-height: 20px; border-radius: 10px; color: var(--mark);
  border: 1px solid var(--mark); }
.cost { --mark: var(--c1); } .rot { --mark: var(--dead); } .risk { --mark: var(--c2); }
.good { --mark: var(--live); }
nav { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: 14px; padding: 8px 0 0; }
a { color: var(--c1); text-underline-offset: 2px; }
section { padding-top: 26px; }
h2 { font-size: 20px; margin: 0 0 12px; letter-spacing: -.01em; }
.grid { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 14px; }
figure { margin: 0; padding: 16px 18px 12px; display: flex; flex-direction: column; min-width: 0; }
figure.wide { grid-column: 1 / -1; }
h3 { font-size: 16px; line-height: 1.35; margin: 0 0 10px; font-weight: 600; text-wrap: balance;
  overflow-wrap: anywhere; }
.plot { overflow-x: auto; flex: 1; display: flex; align-items: flex-end; }
.plot svg { display: block; width: 100%; height: auto; min-width: 430px; }
figure.wide .plot svg { min-width: 760px; }
.empty { flex: 1; margin: 4px 0 8px; padding: 34px 20px; text-align: center; color: var(--soft);
  background: var(--tint); border-radius: 8px; }
figcaption { font-size: 13.5px; line-height: 1.45; color: var(--soft); margin-top: 8px; }
details { font-size: 13px; margin-top: 8px; }
summary { cursor: pointer; color: var(--c1); width: fit-content; }
.rows { overflow: auto; max-height: 340px; margin-top: 6px; }
table { border-collapse: collapse; font-size: 13px; white-space: nowrap; }
caption { text-align: left; color: var(--soft); padding: 6px 0; white-space: normal; }
th, td { text-align: left; padding: 3px 14px 3px 0; border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--soft); position: sticky; top: 0; background: var(--card); }
.n { text-align: right; }
footer { color: var(--soft); font-size: 13.5px; padding-top: 30px; padding-bottom: 44px; }
footer table { white-space: normal; margin: 8px 0 14px; }
footer th { position: static; background: none; }
code { font: .92em ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
@media screen and (max-width: 820px) { .grid { grid-template-columns: minmax(0, 1fr); } }
@media screen and (max-width: 560px) { .findings li { padding-left: 0; }
  .findings b { position: static; display: block; margin-bottom: 4px; } }
@page { margin: 12mm; }
@media print { body { background: #fff; font-size: 10pt; } header { padding-top: 0; }
  .cards { grid-template-columns: repeat(6, 1fr); gap: 6px; } .card { padding: 8px; }
  .card dd { font-size: 15px; } .card dd small { font-size: 9px; } .lead { font-size: 20px; }
  h3 { font-size: 12px; } figcaption { font-size: 10px; } .grid { gap: 8px; }
  nav, details { display: none; }
  figure, .card, .findings li { break-inside: avoid; } h2 { break-after: avoid; }
  .plot { overflow: visible; } .plot svg, figure.wide .plot svg { min-width: 0; }
  main, header, footer { max-width: none; padding: 0; } }
"""

CSS: Final = (
    ":root { color-scheme: light dark; --font: system-ui, -apple-system, 'Segoe UI', Roboto, Inter,"
    " 'Helvetica Neue', 'DejaVu Sans', sans-serif;"
    f" {_names({**TOKENS, **_PAGE})} }}\n"
    "@media screen and (prefers-color-scheme: dark) { :root { "
    f"{_names({**DARK, **_DARK_PAGE})} }} }}"
    f"{_RULES}"
)
assert DARK.keys() == TOKENS.keys(), "a colour is missing on dark"
