"""Avro container files, written so that the same rows always make the same bytes.

An archive job that was killed does its last piece of work again. If that makes the very file that
may be there already, nothing needs to be compared, and nothing can be there twice. Two things in a
container file are not a function of its rows. The sync marker, sixteen random bytes: ours is not
random, it is a hash of the schema and the file's metadata. And the order of the keys in the
header's schema, which follows Python's hash seed, another one in each process: ours are sorted.

Rows are written by `fastavro`, blocks are deflated: of Avro's codecs the one that every reader has.

Source: Apache Avro 1.12 specification, Object Container Files.
"""

from __future__ import annotations

import hashlib
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import fastavro
from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException
from fastavro.write import Writer

CODEC: Final = "deflate"
LEVEL: Final = 1  # the next five cost three times as much for a tenth less
BLOCK_BYTES: Final = 256 * 1024  # before compression
_MARKER_BYTES: Final = 16


class AvroFileError(Exception):
    """Bytes that are not a whole Avro file, or that this schema cannot read."""


class AvroWriter:
    """Writes an Avro file in memory."""

    def __init__(self, schema: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
        """Begin to write an Avro file in memory.

        Args:    metadata: what the file is of; with the schema it decides the sync marker.
        """
        self.rows = 0
        self._out = io.BytesIO()
        of = json.dumps([schema, dict(metadata)], sort_keys=True).encode()
        self._writer = Writer(
            self._out,
            _sort_keys(fastavro.parse_schema(dict(schema))),
            codec=CODEC,
            sync_interval=BLOCK_BYTES,
            metadata=dict(metadata),
            sync_marker=hashlib.sha256(of).digest()[:_MARKER_BYTES],
            compression_level=LEVEL,
            options={"disable_tuple_notation": True},  # our arrays are tuples
        )

    def write(self, rows: Iterable[Any]) -> None:
        """Append rows to the Avro file."""
        write = self._writer.write
        for row in rows:
            write(row)
            self.rows += 1

    def finish(self) -> bytes:
        """Finish the file and return its bytes; no row may be written afterwards."""
        self._writer.flush()
        return self._out.getvalue()


def _sort_keys(parsed: Any) -> Any:
    """Return a parsed schema with sorted keys, but leave fastavro's own values unsorted."""
    if isinstance(parsed, list):
        return [_sort_keys(value) for value in parsed]
    if not isinstance(parsed, dict):
        return parsed
    return {
        key: parsed[key] if key.startswith("__") else _sort_keys(parsed[key])
        for key in sorted(parsed)
    }


def read_avro(data: bytes, schema: Mapping[str, Any] | None = None) -> Iterator[Any]:
    """Yield the rows of an Avro file, read with `schema` or, if it is None, the file's own schema.

    Raises:  AvroFileError, also after rows have been given out.
    """
    try:
        reader = fastavro.reader(
            io.BytesIO(data), None if schema is None else fastavro.parse_schema(dict(schema))
        )
        yield from reader
    except SchemaResolutionError as error:
        raise AvroFileError(f"the file's schema cannot be read with this one: {error}") from None
    except (ValueError, EOFError, KeyError, IndexError, TypeError, OverflowError) as error:
        raise AvroFileError(f"not a whole Avro file: {error}") from None
    except (
        SchemaParseException,
        zlib.error,
        MemoryError,
        UnicodeError,
        AttributeError,
        StopIteration,
    ) as error:
        raise AvroFileError(f"damaged: {error}") from None


def fingerprint(schema: Mapping[str, Any]) -> str:
    """Return a schema's fingerprint: the CRC-64-AVRO of its canonical form, as hex."""
    parsed = fastavro.schema.to_parsing_canonical_form(fastavro.parse_schema(dict(schema)))
    found: str = fastavro.schema.fingerprint(parsed, "CRC-64-AVRO")
    return found
