"""The forms in which `esker consume` prints a record: line, JSON, raw bytes, a format as kcat's.

    form = formatter("orders", "%p %o %k: %s\\n")
    sys.stdout.buffer.write(form(found))

Source: kcat's manual, "Format string tokens".
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Final

from esker.client.consumer import Found
from records.compression import Buffer

Formatter = Callable[[Found], bytes]
"""Returns the bytes to print for a record."""

FIELDS_HELP: Final = (
    "%s value, %k key, %h headers, %t topic, %p partition, %o offset, %T timestamp, "
    "%S and %K sizes in bytes (-1: none), \\n and \\t"
)
_TOKEN: Final = re.compile(r"%(.?)|\\(.?)", re.DOTALL)
_ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\"}
_FIELDS: Final[dict[str, Formatter]] = {
    "s": lambda item: bytes(item.record.value or b""),
    "k": lambda item: bytes(item.record.key or b""),
    "S": lambda item: _size(item.record.value),
    "K": lambda item: _size(item.record.key),
    "p": lambda item: b"%d" % item.partition,
    "o": lambda item: b"%d" % item.record.offset,
    "T": lambda item: b"%d" % item.record.timestamp,
    "h": lambda item: b",".join(
        header.key.encode() + b"=" + bytes(header.value or b"") for header in item.record.headers
    ),
}


def formatter(topic: str, output: str | None, key_separator: str | None = None) -> Formatter:
    """Return the formatter that `--output` names, by default of one line for each record.

    Raises:  ValueError for an unknown format.
    """
    match output:
        case None:
            return _lines(key_separator)
        case "raw":
            return _FIELDS["s"]
        case "json":
            return lambda item: _json(topic, item)
        case _ if "%" in output:
            return _compile(topic, output)
    raise ValueError(f"{output!r} is neither json, raw nor a format with %s, %k and others")


def _lines(key_separator: str | None) -> Formatter:
    if key_separator is None:
        return lambda item: bytes(item.record.value or b"") + b"\n"
    separator = key_separator.encode()
    return lambda item: b"".join(
        (bytes(item.record.key or b""), separator, bytes(item.record.value or b""), b"\n")
    )


def _compile(topic: str, text: str) -> Formatter:
    """Compile a format string into a function that formats records."""
    parts: list[bytes | Formatter] = []
    end = 0
    for token in _TOKEN.finditer(text):
        parts.append(text[end : token.start()].encode())
        end = token.end()
        name, escape = token[1], token[2]
        if name == "%":
            parts.append(b"%")
        elif name == "t":
            parts.append(topic.encode())
        elif name is not None and name in _FIELDS:
            parts.append(_FIELDS[name])
        elif escape is not None and escape in _ESCAPES:
            parts.append(_ESCAPES[escape])
        else:
            raise ValueError(f"{token[0]!r} has no meaning: known are {FIELDS_HELP}")
    parts.append(text[end:].encode())
    return lambda item: b"".join(part if isinstance(part, bytes) else part(item) for part in parts)


def _size(data: Buffer | None) -> bytes:
    return b"%d" % (-1 if data is None else len(data))


def _json(topic: str, item: Found) -> bytes:
    record = item.record
    line = {
        "topic": topic,
        "partition": item.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **_text("key", record.key),
        **_text("value", record.value),
        "headers": [{"name": h.key, **_text("value", h.value)} for h in record.headers],
    }
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _text(name: str, data: Buffer | None) -> dict[str, str | None]:
    """Return bytes as a JSON field: UTF-8 text as `name`, other bytes as base64 in `nameBase64`."""
    if data is None:
        return {name: None}
    try:
        return {name: bytes(data).decode()}
    except UnicodeDecodeError:
        return {f"{name}Base64": base64.b64encode(data).decode()}
