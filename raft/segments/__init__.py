"""The log on disk: segments, their indexes and the small files beside them, in Kafka's layout.

A tour, from the disk upwards:

- `files`: the only door to the disk; a test puts another disk behind it.
- `index`, `scan`, `segment`: one file of batches, its sparse indexes, reading it with suspicion.
- `epochs`, `recovery_point`, `properties`, `high_watermarks`: the small files, and what losing each
  would mean.
- `durability`: what is flushed, and what a failed flush ends. `recovery`: opening a log after
  anything.
- `log`: what the rest of the project uses; `settings`: what an operator chooses of it.

    log = Log.create(RealFileSystem(), directory)      # or Log.open(...), which recovers
    log.append(batch)                                  # bytes final; on the event loop's thread
    log.flush()                                        # in another thread: then it may be promised
    log.read(offset, max_bytes=1 << 20)                # whole batches, or None at the end
    log.truncate_to(offset)                            # durable on return
    log.reset_to(offset)                               # after a snapshot was installed
    log.delete(log.cut_prefix(new_start_offset))       # durable first, unlinked after
    log.record_recovery_point()                        # once a second while idle
    log.close()

It knows nothing of elections: any room may use it. Imports `records` only.
"""

from raft.segments.epochs import EpochStart
from raft.segments.errors import (
    CorruptFileError,
    CorruptLogError,
    DiskFullError,
    FlushFailedError,
    LogFailedError,
    MissingLogError,
    OffsetOutOfRangeError,
    StorageError,
    UnexpectedBatchError,
    WriteFailedError,
)
from raft.segments.files import File, FileSystem, Mode, RealFileSystem
from raft.segments.log import Log
from raft.segments.properties import (
    MetaProperties,
    QuorumState,
    read_meta_properties,
    read_partition_metadata,
    read_quorum_state,
    write_meta_properties,
    write_partition_metadata,
    write_quorum_state,
)
from raft.segments.segment import Records
from raft.segments.settings import Appended, LogConfig

__all__ = [
    "Appended",
    "CorruptFileError",
    "CorruptLogError",
    "DiskFullError",
    "EpochStart",
    "File",
    "FileSystem",
    "FlushFailedError",
    "Log",
    "LogConfig",
    "LogFailedError",
    "MetaProperties",
    "MissingLogError",
    "Mode",
    "OffsetOutOfRangeError",
    "QuorumState",
    "RealFileSystem",
    "Records",
    "StorageError",
    "UnexpectedBatchError",
    "WriteFailedError",
    "read_meta_properties",
    "read_partition_metadata",
    "read_quorum_state",
    "write_meta_properties",
    "write_partition_metadata",
    "write_quorum_state",
]
