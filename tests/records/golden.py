"""What the golden tests share: a message, its version, and the bytes it must have."""

from __future__ import annotations

from records.schema import Message


class Golden:
    """A message at a version and its bytes, given as hex that spaces may divide."""

    def __init__(self, message: Message, version: int, hex_digits: str) -> None:
        self.message = message
        self.version = version
        self.encoded = bytes.fromhex(hex_digits)


def golden_name(golden: Golden) -> str:
    """How a parametrised test names a case."""
    return f"{type(golden.message).__name__}-v{golden.version}"
