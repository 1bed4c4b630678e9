"""Reads journals: files to which a line is added after each step, so that a later run can continue.

    for line in whole_lines(path): ...

A process that is killed while it writes leaves an incomplete line. It is ignored, and cut off
before another line is added.

Source: docs/design/pipeline.md#applying-a-plan.
"""

from __future__ import annotations

from pathlib import Path


def whole_lines(path: Path) -> list[bytes]:
    """Return a journal's complete lines, and cut off an incomplete last line.

    A missing file has no lines.

    Raises:  OSError.
    """
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        path.write_bytes(whole)
    return whole.splitlines()
