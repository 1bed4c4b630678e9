"""After a run: is the state of every replica what the log says, and what people are told?

Checkpoints taken at one offset must be the same bytes on all replicas, the one that came up by
somebody else's checkpoint included; and a state that a fresh `InMemoryState` builds from the whole
log, record by record, must be that checkpoint.

A log is cut by moving its start; the file stays while it is the only one. So the bytes from offset
0 on are still there, on nodes that never lost their disks.

Source: invariant 4 (docs/design/invariants.md); KIP-1163, Command line tools.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

from coordinator.batch.log_records import records_of
from coordinator.batch.memory import InMemoryState
from raft.segments.files import RealFileSystem
from records.batch import iter_batches
from records.frame import decode_record, encode_record
from records.types import Epoch, Offset, OffsetAndEpoch
from records.uuids import decode_uuid
from snapshot import CheckpointReader, checkpoint_name
from tests.nemesis.batch_history import Partition, Place
from tests.nemesis.coordinators import GROUP, NODES, CommandError, CoordinatorQuorum, esker
from tests.nemesis.uploads import Uploads
from tests.waiting import Deadline, wait_until


class ReplicasDifferError(Exception):
    """Two replicas, or a replica and the log, have different states at one offset."""


def take_checkpoints(quorum: CoordinatorQuorum) -> OffsetAndEpoch:
    """One on each node, all at the same offset: sweeps go on for a moment after the last commit."""
    found: list[OffsetAndEpoch] = []

    def at_one_offset() -> bool:
        quorum.check_alive()
        try:
            taken = quorum.ask("snapshot", "take", "--group", GROUP)
        except CommandError:
            return False  # a node is still starting
        found[:] = {OffsetAndEpoch(Offset(t["endOffset"]), Epoch(t["epoch"])) for t in taken}
        return len(taken) == len(NODES) and len(found) == 1

    wait_until(at_one_offset, "checkpoints of all replicas at one offset")
    return found[0]


def check_replicas(quorum: CoordinatorQuorum, taken: OffsetAndEpoch) -> InMemoryState:
    """The nodes' checkpoints are the same bytes, and the state of the log. Raises."""
    name = checkpoint_name(taken)
    files = {node: (quorum.group_directory(node) / name).read_bytes() for node in NODES}
    first, *others = NODES
    for node in others:
        if files[node] != files[first]:
            raise ReplicasDifferError(
                _difference(quorum.group_directory(first) / name,
                            quorum.group_directory(node) / name)
            )  # fmt: skip
    state = replay(quorum, int(taken.offset))
    state.check_invariants()
    ours, theirs = state.checkpoint(), _values(quorum.group_directory(first) / name)
    if ours != theirs:
        at = next((at for at, pair in enumerate(zip(ours, theirs, strict=False))
                   if pair[0] != pair[1]), min(len(ours), len(theirs)))  # fmt: skip
        raise ReplicasDifferError(
            f"the log says {[decode_record(value) for value in ours[at : at + 1]]}, "
            f"the nodes say {[decode_record(value) for value in theirs[at : at + 1]]}"
        )
    return state


def _values(path: Path) -> list[bytes]:
    """The framed records of a checkpoint, verified."""
    with CheckpointReader(RealFileSystem(), path) as reader:
        return [encode_record(record) for _, record in reader.records()]


def _difference(ours: Path, theirs: Path) -> str:
    for one, other in zip(_values(ours), _values(theirs), strict=False):
        if one != other:
            return f"{ours}: {decode_record(one)}; {theirs}: {decode_record(other)}"
    return f"{ours} and {theirs} differ in length or in framing"


def replay(quorum: CoordinatorQuorum, end_offset: int) -> InMemoryState:
    """A state built from every record below `end_offset`, as a stopped node's disk has them."""
    logs = {node: _whole_log(quorum.group_directory(node), end_offset) for node in NODES}
    whole = [node for node in NODES if logs[node] is not None]
    if not whole:
        raise ReplicasDifferError("no node has the log from its beginning")
    for node in whole[1:]:
        if logs[node] != logs[whole[0]]:
            raise ReplicasDifferError(f"the logs of nodes {whole[0]} and {node} differ")
    state = InMemoryState()
    for batch in iter_batches(logs[whole[0]] or b""):
        if batch.header.is_control:
            state.applied_offset = batch.header.end_offset
            continue
        for offset, record in records_of(batch):
            state.apply(int(offset), record)
    return state


def _whole_log(directory: Path, end_offset: int) -> bytes | None:
    """The bytes of all batches below `end_offset`, or None if they do not begin at 0."""
    found: list[bytes] = []
    offset = 0
    data = b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))
    for batch in iter_batches(data):
        if batch.header.base_offset != offset:
            return None
        if offset == end_offset:
            break
        offset = batch.header.end_offset
        found.append(bytes(batch.view))
    return b"".join(found) if offset == end_offset else None


# --- what people are told ------------------------------------------------------------------------


def check_descriptions(quorum: CoordinatorQuorum, uploads: Uploads) -> None:
    """`esker diskless describe` and `object` say what FindBatches found, in both their forms."""
    (found,) = quorum.ask("diskless", "describe")
    topics = {decode_uuid(topic["topicId"]): topic for topic in found["topics"]}
    by_topic: Mapping[UUID, dict[int, Partition]] = defaultdict(dict)
    for (topic_id, index), partition in uploads.final.items():
        by_topic[topic_id][index] = partition
    assert topics.keys() >= by_topic.keys(), (topics.keys(), by_topic.keys())
    for topic_id in topics.keys() - by_topic.keys():  # nobody was told that it was created
        assert topic_id not in uploads.history.deleted_topics, topics[topic_id]
        assert not any(one["highWatermark"] for one in topics[topic_id]["partitions"])
    text = esker("diskless", "describe", "--bootstrap-controller", quorum.bootstrap)
    for topic_id, partitions in by_topic.items():
        described = topics[topic_id]
        stored = {at: sum(run.size for run in one.runs) for at, one in partitions.items()}
        assert described["storedBytes"] == sum(stored.values()), described
        assert f"StoredBytes: {sum(stored.values())}" in text, text
        for line in described["partitions"]:
            one = partitions[line["partition"]]
            said = (line["logStartOffset"], line["highWatermark"], line["storedBytes"])
            assert said == (one.log_start_offset, one.high_watermark, stored[line["partition"]])
    _check_objects(quorum, uploads)


def _check_objects(quorum: CoordinatorQuorum, uploads: Uploads, most: int = 3) -> None:
    """A few objects that have live runs: whose they are, and how much of them is used."""
    owners: dict[int, dict[Place, int]] = defaultdict(lambda: defaultdict(int))
    for place, partition in uploads.final.items():
        for run in partition.runs:
            owners[run.object_id][place] += run.size
    sizes = {one.object_id: one.batches for one in uploads.history.committed}
    for object_id in sorted(owners)[:most]:
        key = uploads.keys.key(object_id)
        used = sum(owners[object_id].values())
        deadline = Deadline(f"object {object_id} has {used} used bytes")
        (said,) = quorum.ask("diskless", "object", key)
        while said["usedBytes"] > used:  # runs of deleted topics go in steps, and count until then
            time.sleep(deadline.pause_s(said))
            (said,) = quorum.ask("diskless", "object", key)
        assert (said["objectId"], said["usedBytes"]) == (object_id, used), said
        assert said["sizeBytes"] >= sum(batch.size for batch in sizes[object_id])
        found = {(decode_uuid(one["topicId"]), one["partition"]): one["usedBytes"]
                 for one in said["owners"]}  # fmt: skip
        assert found == dict(owners[object_id]), said
        text = esker("diskless", "object", key, "--bootstrap-controller", quorum.bootstrap)
        assert f"{'UsedBytes:':<24}{used}" in text.splitlines(), text
