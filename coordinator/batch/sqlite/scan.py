"""The child process that reads a copied database and sends a checkpoint's records to its parent.

    python -m coordinator.batch.sqlite.scan COPY

Standard output has each value behind its length, and a length of 0 at the end; output without that
is incomplete. A special exit status means that the database is damaged. The process runs at the
lowest priority, because no request waits for a checkpoint.

Source: coordinator.batch.sqlite.frozen, which reads it.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from pathlib import Path

from coordinator.batch.sqlite import database
from coordinator.batch.sqlite.frozen import DAMAGED_STATUS, LENGTH_BYTES
from coordinator.batch.sqlite.source import checkpoint_of

NICENESS = 10


def main() -> None:
    """Write a database's checkpoint records to standard output, each after its length."""
    os.nice(NICENESS)
    out = sys.stdout.buffer
    try:
        for value in checkpoint_of(Path(sys.argv[1])):
            out.write(len(value).to_bytes(LENGTH_BYTES, "big"))
            out.write(value)
    except sqlite3.Error as error:
        if not database.is_damage(error):
            raise
        sys.exit(DAMAGED_STATUS)  # our parent knows what to do about it, and says so
    out.write(bytes(LENGTH_BYTES))
    out.flush()


if __name__ == "__main__":
    main()
