"""Decodes the values of a checkpoint's records, three times as fast as record by record.

Loading is what a restart waits for, and nearly every batch of a checkpoint has the one form that
our writer gives it: no time of its own, offsets that count up, no key, no headers. What stands
before a record's value is then known in advance, and is compared in one go instead of being
decoded. The first record that looks otherwise is left, with all after it, to
`records.batch.iter_records`, which knows every form and says what is wrong.

Source: KIP-98 (record layout); docs/design/performance.md#rows-not-objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from records.batch import Batch, iter_records, records_of
from records.errors import CorruptBatchError
from records.varint import decode_varint, encode_varint
from snapshot.framing import MAX_DECOMPRESSED_BYTES
from snapshot.reader import strangeness

_MOST_PREFIXES: Final = 1 << 16
_prefixes: Final[list[bytes]] = []


def iter_values(batch: Batch) -> Iterator[bytes]:
    """Yield a copy of the value of each record of a batch.

    Raises:  CorruptBatchError, CompressionError; values before the damage have been yielded.

    >>> from records.batch import read_batch
    >>> from records.batch_writer import build_value_batch
    >>> batch = build_value_batch([b"a", b"bc"], base_offset=7, leader_epoch=3, timestamp=0)
    >>> list(iter_values(read_batch(batch)))
    [b'a', b'bc']
    """
    total = batch.header.record_count
    if not 0 < total <= _MOST_PREFIXES:
        yield from _any_form(batch, 0)
        return
    for count in range(len(_prefixes), total):  # attributes, time, offset, null key
        _prefixes.append(b"\x00\x00%b\x01" % encode_varint(count))
    body = bytes(records_of(batch, limit_bytes=MAX_DECOMPRESSED_BYTES))
    count = position = 0
    try:
        for count in range(total):
            length, start = decode_varint(body, position)
            prefix = _prefixes[count]
            if not body.startswith(prefix, start):
                break
            size, value_at = decode_varint(body, start + len(prefix))
            value_end = value_at + size
            end = start + length
            if size <= 0 or value_end + 1 != end or body[value_end]:
                break
            yield body[value_at:value_end]
            position = end
        else:
            if position == len(body):
                return
            count = total
    except (IndexError, ValueError):
        pass
    yield from _any_form(batch, count)


def _any_form(batch: Batch, done: int) -> Iterator[bytes]:
    """Yield the values of a batch, in any valid encoding, without the first `done` records."""
    for record in islice(iter_records(batch, limit_bytes=MAX_DECOMPRESSED_BYTES), done, None):
        reason = strangeness(batch, record)
        if reason is not None or record.value is None:
            raise CorruptBatchError(
                position=batch.position, offset=record.offset, reason=f"{reason}"
            )
        yield bytes(record.value)
