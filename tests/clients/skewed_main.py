"""`esker start` with a wall clock that is wrong: by ESKER_TEST_CLOCK_MINUTES minutes."""

from __future__ import annotations

import os
import sys
import time
from typing import Final

MINUTES: Final = "ESKER_TEST_CLOCK_MINUTES"


def skew(minutes: float) -> None:
    """From here on `time.time` and `time.time_ns` are off; the monotonic clock is not."""
    right_s, right_ns = time.time, time.time_ns
    time.time = lambda: right_s() + 60 * minutes
    time.time_ns = lambda: right_ns() + int(60e9 * minutes)


if __name__ == "__main__":
    skew(float(os.environ[MINUTES]))
    from esker.cli import main

    sys.argv[1:1] = ["start"]
    sys.exit(main())
