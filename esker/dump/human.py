"""Prints items as a table for people.

A file is a title, a line for each batch and below it an indented line for each record: its offset,
its type, its fields. Long records wrap under their fields and are cut after a few lines (`--json`
has all). Times are UTC. Colours only where the terminal has them.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Protocol

from esker.dump.fields import message_text, quoted, to_text
from esker.dump.items import BatchItem, Entry, FileEnd, FileStart, Item, RecordItem, Tally
from esker.dump.kinds import Kind
from esker.dump.lines import codec_name

MAX_LINES: Final = 6
"""Largest number of lines of one record; more lines would hide the records beside it."""

MAX_VALUE_BYTES: Final = 64
"""Shown of a value whose type is not known."""

_INDENT: Final = 15  # of a record's fields
_MIN_WIDTH: Final = 60
_EPOCH_START: Final = datetime(1970, 1, 1, tzinfo=UTC)
_HEADINGS: Final = (
    f"{'position':>10}  {'offsets':<17} {'epoch':>5}  {'records':>7}  {'bytes':>8}  "
    f"{'last written (UTC)':<23}  kind"
)


class Paint(Protocol):
    """Wraps text in the codes of a style, or returns it unchanged without colours."""

    def __call__(self, text: str, style: str) -> str: ...


def no_paint(text: str, style: str) -> str:  # noqa: ARG001 (a Paint)
    return text


class HumanPrinter:
    """Turns items into lines of text at most `width` columns wide (60 at least)."""

    def __init__(self, *, width: int, paint: Paint = no_paint) -> None:
        self._width = max(width, _MIN_WIDTH)
        self._paint = paint
        self._files = 0
        self._headed = False

    def render(self, item: Item) -> str:
        """Return an item of a log file as lines of text, without the last newline."""
        match item:
            case FileStart():
                return self._title(item)
            case BatchItem():
                return self._batch(item)
            case RecordItem():
                return self._record(item)
            case Entry():
                return self._entry(item)
            case FileEnd(start, tally):
                lines = self._wrapped(tally_text(start.kind, tally), indent=4)
                return self._paint("  " + "\n    ".join(lines), "dim")

    def _title(self, start: FileStart) -> str:
        self._files += 1
        self._headed = False
        gap = "\n" if self._files > 1 else ""
        name = printable(start.path)
        return f"{gap}{self._paint(name, 'bold')}\n  {start.kind.value}, {start.size_bytes} bytes"

    def _batch(self, item: BatchItem) -> str:
        header = item.header
        last = header.last_offset
        offsets = f"{header.base_offset}" + (f"..{last}" if last != header.base_offset else "")
        kind = ["control"] if header.is_control else []
        kind += ["transactional"] if header.is_transactional else []
        kind += [name] if (name := codec_name(header.attributes)) != "none" else []
        line = (
            f"{item.position:>10}  {offsets:<17} {header.leader_epoch:>5}  "
            f"{header.record_count:>7}  {header.size_bytes:>8}  "
            f"{time_text(header.max_timestamp):<23}  {' '.join(kind)}"
        ).rstrip()
        if header.producer_id != -1:
            line += f"\n{'':>12}producer {header.producer_id}, epoch {header.producer_epoch}, "
            line += f"sequence from {header.base_sequence}"
        if self._headed:
            return self._paint(line, "green")
        self._headed = True
        return self._paint(_HEADINGS, "dim") + "\n" + self._paint(line, "green")

    def _record(self, item: RecordItem) -> str:
        record = item.record
        if item.message is not None:
            name = type(item.message).__name__
            text = message_text(item.message, item.version)
            lead = f"v{item.version} "
        else:
            name, lead = "bytes", ""
            text = f"({item.note}) key={_sample(record.key)} value={_sample(record.value)}"
        if record.headers:
            shown = ", ".join(f"{quoted(h.key)}={_sample(h.value)}" for h in record.headers)
            text += f" headers=[{shown}]"
        first = f"{record.offset:>{_INDENT - 3}}   "
        lines = self._wrapped(f"{name} {lead}{text}".rstrip())
        lines[0] = lines[0].replace(name, self._paint(name, "cyan"), 1)
        return first + ("\n" + " " * _INDENT).join(lines)

    def _entry(self, entry: Entry) -> str:
        pairs = [f"{name}={to_text(value, 0)}" for name, value in entry.fields.items()]
        if (stamp := entry.fields.get("timestamp")) is not None:
            pairs.append(f"({time_text(stamp)})")
        return "    " + "\n      ".join(self._wrapped("  ".join(pairs), indent=6))

    def _wrapped(self, text: str, indent: int = _INDENT) -> list[str]:
        """Wrap text to the terminal's width; cut very long text and state how much is missing."""
        width = self._width - indent
        lines: list[str] = []
        start = 0
        while len(text) - start > width:
            if len(lines) == MAX_LINES - 1:
                more = f"... {len(text) - start} more characters, --json shows all"
                return [*lines, self._paint(more, "dim")]
            end = text.rfind(" ", start, start + width + 1)
            at_space = end > start
            if not at_space:
                end = start + width
            lines.append(text[start:end])
            start = end + at_space
        return [*lines, text[start:]]


def tally_text(kind: Kind, tally: Tally) -> str:
    """Return a file's counts as text: `2 batches, 7 records, offsets 0..6; 1 unknown type 999`."""
    if kind in (Kind.SEGMENT, Kind.CHECKPOINT):
        parts = []
        if tally.counted:
            parts = [_count(tally.batches, "batch", "batches"), _count(tally.records, "record")]
        if tally.end_offset is not None:
            parts.append(f"offsets {tally.first_offset}..{tally.end_offset - 1}")
    elif kind is Kind.WAL_OBJECT:
        parts = [_count(tally.entries, "partition")]
        parts += [_count(tally.batches, "batch", "batches"), _count(tally.records, "record")]
    else:
        parts = [_count(tally.entries, "entry", "entries")]
    text = ", ".join(parts)
    for reason, count in tally.opaque.items():
        text += f"; {count} x {reason}"
    return "; ".join([text, *tally.remarks])


def time_text(timestamp_ms: int) -> str:
    """Return a timestamp as UTC text, as a number if out of range, or `-` for no timestamp.

    >>> time_text(0), time_text(-1)
    ('1970-01-01 00:00:00.000', '-')
    """
    if timestamp_ms == -1:
        return "-"
    try:
        moment = _EPOCH_START + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return str(timestamp_ms)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{timestamp_ms % 1000:03d}"


def printable(path: Path | str) -> str:
    """Return a path as text for a terminal, without control characters."""
    return on_one_line(str(path))


def on_one_line(text: str) -> str:
    """Return text for a terminal, on one line and without control characters."""
    return text if text.isprintable() else quoted(text)


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _sample(data: bytes | memoryview | None) -> str:
    """Return bytes as text or hexadecimal digits, shortening long values."""
    if data is None:
        return "null"
    head = bytes(data[:MAX_VALUE_BYTES])
    try:
        text = head.decode()
        shown = quoted(text) if text.isprintable() else f"0x{head.hex()}"
    except UnicodeDecodeError:
        shown = f"0x{head.hex()}"
    return shown if len(data) <= MAX_VALUE_BYTES else f"{shown}... ({len(data)} bytes)"
