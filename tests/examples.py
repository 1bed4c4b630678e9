"""How many examples a random test draws: few in `make test`, many in `make soak`."""

from __future__ import annotations

import os


def examples(count: int) -> int:
    """So many, times ESKER_EXAMPLES. Every run draws others, so that small numbers add up."""
    return count * int(os.environ.get("ESKER_EXAMPLES", "1"))
