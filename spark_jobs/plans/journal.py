"""Files that lines are added to, one after each step: what was done, for whoever goes on.

    for line in whole_lines(path): ...

Whoever is killed while he writes leaves half a line. It says nothing, and is taken off before
another is written behind it.

Source: docs/design/pipeline.md#applying-a-plan.
"""

from __future__ import annotations

from pathlib import Path


def whole_lines(path: Path) -> list[bytes]:
    """Those that were written to their end; none if there is no file. Raises OSError."""
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        path.write_bytes(whole)
    return whole.splitlines()
