"""KIP-630 checkpoints: write, verify, load.

A checkpoint is the state of a log up to some offset, as the records that build it, in a file of
record batches. Read in this order:

- `names`: the file's name is its id; what a directory holds; leftovers of a crash.
- `partfile`: how a file appears whole or not at all.
- `writer`: header, records, footer with the count and checksum of the whole.
- `framing`: what is checked, batch by batch, and that upstream checks less.
- `reader`: verify and load; `stream` cuts batches out of any file.
- `encoder`: its bytes, without a file; `generation`: written while the state machine runs on.
- `policy`, `log_start`: when to take one, and where the log may start.
- `host`: runs a state machine over one log; `scheduling`: its checkpoints; `kv`: the smallest one.
- `store`: one log's checkpoints, read, received and dropped; `download`: a checkpoint received.
- `surviving_files`: reads copies of one log without changing them; `surviving_logs`: chooses the
  copy from which a restore continues.
"""

from snapshot.download import PartDownload
from snapshot.errors import DamagedFileError, TruncatedFileError
from snapshot.framing import Checkpoint, Origin, Preamble
from snapshot.names import (
    checkpoint_name,
    list_checkpoints,
    list_parts,
    mark_deleted,
    parse_checkpoint_name,
    remove_leftovers,
)
from snapshot.partfile import PartFile
from snapshot.reader import CheckpointReader, verify_checkpoint
from snapshot.store import SnapshotStore
from snapshot.writer import CheckpointWriter

__all__ = [
    "Checkpoint",
    "CheckpointReader",
    "CheckpointWriter",
    "DamagedFileError",
    "Origin",
    "PartDownload",
    "PartFile",
    "Preamble",
    "SnapshotStore",
    "TruncatedFileError",
    "checkpoint_name",
    "list_checkpoints",
    "list_parts",
    "mark_deleted",
    "parse_checkpoint_name",
    "remove_leftovers",
    "verify_checkpoint",
]
