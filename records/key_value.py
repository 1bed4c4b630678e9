"""The record of the small key-value state machine, which its checkpoints contain.

Source: ours (docs/design/snapshots.md#generation-never-blocks-commits,
docs/design/state-machines.md#decide-and-apply): a state for benches, tests and users who try the
quorum out.
"""

from records.schema import MetadataRecord
from records.wire import Bytes


class KeyValueState(MetadataRecord, key=1190, versions="0"):
    """A key and its value. In checkpoints only: the log has ordinary records with a key."""

    key: Bytes
    value: Bytes
