"""Generated codecs: one pair of plain Python functions per message class and version.

A declaration is turned into source text once, at first use, and compiled: neighbouring fixed-size
fields share one `struct` call, nested structures are unrolled into loops, and fields that a version
lacks cost nothing. That is several times faster than walking a schema for every message.

The generated functions check every length against the bytes at hand before they use it, but they do
not say what was wrong: they raise `ValueError`, `IndexError` or `struct.error`, and `records.codec`
asks the slow, readable `records.reference_decoder` to explain.

To see what is generated: `python -m records.codegen TopicRecord 0`.

Source: KIP-482 (compact encodings, tagged fields); upstream's protocol guide for the older ones.
"""

from records.codegen.decoder import make_decoder
from records.codegen.encoder import make_encoder
from records.codegen.runtime import MAX_STRING_BYTES, MAX_UVARINT, read_uvarint, uvarint
from records.codegen.source import min_size

__all__ = [
    "MAX_STRING_BYTES",
    "MAX_UVARINT",
    "make_decoder",
    "make_encoder",
    "min_size",
    "read_uvarint",
    "uvarint",
]
