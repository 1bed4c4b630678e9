"""The errors of damaged bytes that came from a disk or a network.

Every reader of bytes in this project raises a subclass of `RecordError` and nothing else, so that a
caller can tell "these bytes are bad" from "we have a bug" (an assertion). The errors carry fields,
because a program that stops on a damaged file must be able to say which file, where, and why.
"""

from __future__ import annotations


class RecordError(Exception):
    """The bytes are bad. A retry with the same bytes will not help."""


class CorruptBatchError(RecordError):
    """A batch whose bytes contradict each other or its checksum. Reading stops here.

    `position` counts bytes from the start of the buffer or file that was being read; `offset` is
    the base offset the batch claims, or None where its header could not be believed that far.
    """

    def __init__(self, *, position: int, reason: str, offset: int | None = None) -> None:
        where = f"batch at position {position}"
        if offset is not None:
            where += f" (offset {offset})"
        super().__init__(f"{where}: {reason}")
        self.position = position
        self.offset = offset
        self.reason = reason


class BatchChecksumError(CorruptBatchError):
    """The CRC-32C in the header is not the one of the bytes after it."""

    def __init__(self, *, position: int, offset: int, expected_crc: int, actual_crc: int) -> None:
        super().__init__(
            position=position,
            offset=offset,
            reason=f"crc {actual_crc:#010x}, header says {expected_crc:#010x}",
        )
        self.expected_crc = expected_crc
        self.actual_crc = actual_crc


class IncompleteBatchError(RecordError):
    """The buffer ends inside a batch: more bytes might complete it, so it is not called corrupt."""

    def __init__(self, *, position: int, needed_bytes: int, available_bytes: int) -> None:
        super().__init__(
            f"batch at position {position}: needs {needed_bytes} bytes, has {available_bytes}"
        )
        self.position = position
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes


class BatchTooLargeError(RecordError):
    """A batch that was to be written is larger than its readers accept."""

    def __init__(self, *, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"a batch of {size_bytes} bytes, the limit is {limit_bytes}")
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class CompressionError(RecordError):
    """Compressed bytes that cannot be turned back into records."""


class UnknownCodecError(CompressionError):
    """The attributes name a compression codec that Kafka has not defined."""

    def __init__(self, *, codec_id: int) -> None:
        super().__init__(f"unknown compression codec {codec_id}")
        self.codec_id = codec_id


class CorruptCompressionError(CompressionError):
    """The codec refused the bytes."""

    def __init__(self, *, codec: str, reason: str) -> None:
        super().__init__(f"{codec}: {reason}")
        self.codec = codec
        self.reason = reason


class DecompressedTooLargeError(CompressionError):
    """The bytes would expand past what the caller allows: a bomb, or a wrong limit."""

    def __init__(self, *, codec: str, limit_bytes: int) -> None:
        super().__init__(f"{codec}: expands to more than {limit_bytes} bytes")
        self.codec = codec
        self.limit_bytes = limit_bytes


class UnsupportedVersionError(RecordError):
    """A message at a version that its declaration does not have."""

    def __init__(self, *, message: str, version: int, supported: str) -> None:
        super().__init__(f"{message} has versions {supported}, not {version}")
        self.message = message
        self.version = version


class MalformedMessageError(RecordError):
    """Bytes that are not the message they should be.

    `path` names the field (`topics[2].partitions[0].isr`), `position` counts bytes from the start
    of the message to where that field begins.
    """

    def __init__(
        self, *, message: str, version: int, path: str, position: int, reason: str
    ) -> None:
        super().__init__(f"{message} v{version}, {path or 'end'} at byte {position}: {reason}")
        self.message = message
        self.version = version
        self.path = path
        self.position = position
        self.reason = reason


class UnknownRecordError(RecordError):
    """A metadata or control record whose type this code does not know."""

    def __init__(self, *, kind: str, key: int) -> None:
        super().__init__(f"unknown {kind} record type {key}")
        self.kind = kind
        self.key = key
