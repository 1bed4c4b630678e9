"""Control records: what the Raft layer writes between the records of its users.

A control record's key is four bytes, version and type, not flexible; its value is the message bare,
with no frame, and carries its version once more as its first field. LeaderChangeMessage has a
version 1 in the schemas that upstream neither writes nor reads: write version 0.

Source: KIP-595 (leader change), KIP-630 (snapshot header and footer), KIP-853 (voters).
"""

from typing import Annotated

from records.schema import ControlRecord, Message
from records.types import ZERO_UUID
from records.wire import Array, Int16, Int32, Int64, String, UInt16, Uuid, since, tag


class Voter(Message):
    """A voter, by id and (in version 1) directory."""

    voter_id: Int32
    voter_directory_id: Annotated[Uuid, since(1)] = ZERO_UUID


class LeaderChangeMessage(ControlRecord, key=2, versions="0-1"):
    """The first record of an epoch: who leads, and who voted. Source: KIP-595."""

    version: Int16 = 0
    leader_id: Int32
    voters: Array[Voter]
    granting_voters: Array[Voter]


class SnapshotHeaderRecord(ControlRecord, key=3, versions="0"):
    """The first record of a checkpoint. Source: KIP-630, Snapshot Format.

    The tagged field is ours: docs/design/forks.md#what-is-a-fork.
    """

    class EpochStart(Message):
        epoch: Int32
        start_offset: Int64

    version: Int16 = 0
    last_contained_log_timestamp: Int64  # ms since 1970, of the last record it covers
    epochs: Annotated[Array[EpochStart], tag(1000)] = ()  # of the log it covers, oldest first


class SnapshotFooterRecord(ControlRecord, key=4, versions="0"):
    """The last record of a checkpoint. Source: KIP-630, Snapshot Format.

    The tagged fields are ours: they let a reader prove that the file is whole. Upstream writes none
    and skips what it does not know.
    """

    version: Int16 = 0
    record_count: Annotated[Int64, tag(1000)] = -1  # before the footer, control records included
    content_crc: Annotated[Int64, tag(1001)] = -1  # CRC-32C of every byte before the footer's batch


class KRaftVersionRecord(ControlRecord, key=5, versions="0"):
    """The finalized kraft.version. Source: KIP-853."""

    version: Int16 = 0
    k_raft_version: Int16


class VotersRecord(ControlRecord, key=6, versions="0"):
    """The voter set in force from this offset on. Source: KIP-853."""

    class Voter(Message):
        class Endpoint(Message):
            name: String
            host: String
            port: UInt16

        class KRaftVersionFeature(Message):
            min_supported_version: Int16
            max_supported_version: Int16

        voter_id: Int32
        voter_directory_id: Uuid
        endpoints: Array[Endpoint]
        k_raft_version_feature: KRaftVersionFeature

    version: Int16 = 0
    voters: Array[Voter]
