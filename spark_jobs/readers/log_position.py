"""The position of a record in a log, which every row of every table begins with.

Source: docs/design/pipeline.md#spark-deletes-nothing.
"""

from __future__ import annotations

from typing import NamedTuple


class LogPosition(NamedTuple):
    """Position of a record: in the log, or in a checkpoint that the log begins with.

    In a checkpoint the offset is the last that it stands for, and the epoch is its own.
    """

    from_checkpoint: bool
    offset: int
    epoch: int
    timestamp_ms: int  # of its batch, ms since 1970
