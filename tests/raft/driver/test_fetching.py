"""Downloads over real sockets, from leaders that lie, die, resign or come back. KIP-630.

The follower's side is the real one: `SnapshotFetcher` on a real store. The leader is a listener
that answers what a test tells it to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest

from raft.core.effects import FetchSnapshot
from raft.core.events import SnapshotFailed, SnapshotFetched, SnapshotProgress
from raft.core.voters import Endpoint, ReplicaKey
from raft.driver import fetching
from raft.driver.counters import Counters
from raft.driver.fetching import MIN_CHUNK_BYTES, SnapshotFetcher
from raft.driver.peers import OUR_VERSIONS, DialSettings
from raft.net import (
    Answer,
    Arena,
    Frame,
    Listener,
    Reason,
    ServerConnection,
    parse_request_header,
)
from raft.net.handlers import payload
from raft.net.routes import first_flexible
from raft.segments.files import RealFileSystem
from raft.wire.responses import Group
from records.codec import decode_message
from records.rpc import cluster, fetch
from records.types import NodeId, OffsetAndEpoch
from snapshot import CheckpointWriter, list_checkpoints, list_parts
from snapshot.download import PartDownload
from snapshot.store import SnapshotStore
from tests.snapshot.checkpoints import features
from tests.waiting import DEADLINE_S, wait_until_async

GROUP = Group("t", 0, UUID(int=3))
ID = OffsetAndEpoch(1_000, 4)
Partition = fetch.FetchSnapshotResponse.TopicSnapshot.PartitionSnapshot
Told = Callable[[int, int], Partition | None]


def checkpoint(directory: Path, count: int = 20_000, snapshot_id: OffsetAndEpoch = ID) -> bytes:
    """The bytes of a checkpoint of several chunks."""
    files = RealFileSystem()
    directory.mkdir(parents=True)
    with CheckpointWriter.create(files, directory, snapshot_id, last_timestamp=0) as writer:
        writer.target_batch_bytes = 8 * 1024
        for record in features(count):
            writer.append(record)
        return writer.freeze().read_bytes()


class Leader:
    """Answers ApiVersions, and FetchSnapshot by `tell(position, max_bytes)`; None: hangs up."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.tell: Told = self.chunk
        self.asked: list[int] = []  # positions
        self.requests: list[fetch.FetchSnapshotRequest] = []
        self.connections: set[int] = set()
        self.listener = Listener(self.handle, name="leader")

    async def start(self) -> int:
        await self.listener.start("127.0.0.1", 0)
        return self.listener.port

    def chunk(self, at: int, max_bytes: int, **fields: object) -> Partition:
        values: dict = {
            "index": 0,
            "snapshot_id": Partition.SnapshotId(end_offset=ID.offset, epoch=ID.epoch),
            "size": len(self.data),
            "position": at,
            "unaligned_records": self.data[at : at + max_bytes],
            **fields,
        }
        return Partition(**values)

    def error(self, code: int) -> Told:
        return lambda position, _: self.chunk(position, 0, error_code=code, size=0)

    def handle(self, connection: ServerConnection, frame: Frame) -> Answer:
        header = parse_request_header(frame, {key: first_flexible(key) for key in OUR_VERSIONS})
        if header.api_key == 18:
            api = cluster.ApiVersionsResponse.ApiVersion
            keys = tuple(
                api(api_key=key, min_version=low, max_version=high)
                for key, (low, high) in OUR_VERSIONS.items()
            )
            return payload(header, cluster.ApiVersionsResponse(api_keys=keys))
        body = frame[header.body_at :]
        message = decode_message(fetch.FetchSnapshotRequest, body, header.api_version)
        position = message.topics[0].partitions[0].position
        self.asked.append(position)
        self.requests.append(message)
        self.connections.add(connection.id)
        told = self.tell(position, message.max_bytes)
        if told is None:
            connection.abort(Reason.LOCAL)
            return None
        topic = fetch.FetchSnapshotResponse.TopicSnapshot(name=GROUP.topic, partitions=(told,))
        return payload(header, fetch.FetchSnapshotResponse(topics=(topic,)))


class Follower:
    """A fetcher, its store, and what it reported."""

    def __init__(self, directory: Path, ports: dict[int, int]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.ports = ports
        self.events: list[object] = []
        self.faults: list[str] = []
        self.counters = Counters()
        self.store = SnapshotStore(RealFileSystem(), directory, now_ms=lambda: 0)
        self.fetcher = SnapshotFetcher(
            group=GROUP,
            cluster_id="c",
            replica=ReplicaKey(NodeId(9), UUID(int=9)),
            snapshots=self.store,
            dial_settings=DialSettings(
                client_id="f", arena=Arena(), own_endpoints=(), on_bad_answer=lambda *_: None
            ),
            endpoints=lambda node: Endpoint("C", "127.0.0.1", self.ports[node]),
            counters=self.counters,
            post=self.events.append,
            on_fault=lambda _, reason: self.faults.append(reason),
        )

    def fetch(self, leader: int = 1, epoch: int = 5, snapshot_id: OffsetAndEpoch = ID) -> None:
        self.fetcher.fetch(FetchSnapshot(NodeId(leader), epoch, snapshot_id))

    async def end(self) -> object:
        """Wait for the event that ends the download."""
        await wait_until_async(
            lambda: any(isinstance(e, SnapshotFetched | SnapshotFailed) for e in self.events)
        )
        return self.events[-1]

    async def progress(self) -> None:
        """Wait until a chunk was written."""
        await wait_until_async(lambda: any(isinstance(e, SnapshotProgress) for e in self.events))

    @property
    def whole(self) -> list[OffsetAndEpoch]:
        return list_checkpoints(RealFileSystem(), self.directory)

    @property
    def parts(self) -> list[Path]:
        return list_parts(RealFileSystem(), self.directory, ID)


@pytest.fixture(autouse=True)
def no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "RECONNECT_S", 0.0005)


Story = Callable[[Leader, Follower], Awaitable[None]]


def run(tmp_path: Path, story: Story) -> None:
    """Tell a story of one leader (node 1) and one follower."""

    async def told() -> None:
        leader = Leader(checkpoint(tmp_path / "leader"))
        follower = Follower(tmp_path / "follower", {1: await leader.start()})
        try:
            async with asyncio.timeout(DEADLINE_S):
                await story(leader, follower)
        finally:
            await follower.fetcher.close()
            await leader.listener.close()

    asyncio.run(told())


def test_a_follower_publishes_a_checkpoint_after_fetching_all_its_chunks(tmp_path: Path) -> None:
    async def story(leader: Leader, follower: Follower) -> None:
        follower.fetch()
        assert await follower.end() == SnapshotFetched(ID)
        assert follower.whole == [ID] == list(follower.store.ids)
        assert (follower.store.path(ID)).read_bytes() == leader.data
        assert follower.parts == []
        assert len(leader.asked) >= 3
        request = leader.requests[0]
        partition = request.topics[0].partitions[0]
        assert (request.cluster_id, request.replica_id) == ("c", 9)
        assert partition.replica_directory_id == UUID(int=9)
        assert partition.current_leader_epoch == 5
        progress = [e for e in follower.events if isinstance(e, SnapshotProgress)]
        assert [e.complete for e in progress] == [False] * (len(progress) - 1) + [True]

    run(tmp_path, story)


def test_a_snapshot_download_after_a_lost_connection_repeats_only_the_chunk_in_flight(
    tmp_path: Path,
) -> None:
    async def story(leader: Leader, follower: Follower) -> None:
        lost = []

        def tell(position: int, max_bytes: int) -> Partition | None:
            if position and not lost:
                lost.append(position)
                return None
            return leader.chunk(position, max_bytes)

        leader.tell = tell
        follower.fetch()
        assert await follower.end() == SnapshotFetched(ID)
        assert leader.asked.count(0) == 1  # not from the beginning again
        assert len(leader.connections) == 2

    run(tmp_path, story)


def test_a_snapshot_download_from_a_stopped_leader_fails_and_keeps_its_partial_file(
    tmp_path: Path,
) -> None:
    async def story(leader: Leader, follower: Follower) -> None:
        leader.tell = lambda position, size: None if position else leader.chunk(position, size)
        follower.fetch()
        assert await follower.end() == SnapshotFailed(ID)
        assert len(follower.parts) == 1
        assert follower.whole == []
        leader.tell = leader.chunk
        follower.events.clear()
        leader.asked.clear()
        follower.fetch()
        assert await follower.end() == SnapshotFetched(ID)
        assert 0 not in leader.asked
        assert follower.counters.snapshots_resumed == 1

    run(tmp_path, story)


def test_a_snapshot_download_that_was_interrupted_resumes_at_a_new_leader(tmp_path: Path) -> None:
    async def story(leader: Leader, follower: Follower) -> None:
        successor = Leader(leader.data)
        follower.ports[2] = await successor.start()
        leader.tell = lambda position, size: None if position else leader.chunk(position, size)
        follower.fetch()
        await follower.progress()
        follower.fetcher.abandon(ID)
        follower.fetch(leader=2, epoch=6)
        assert await follower.end() == SnapshotFetched(ID)
        assert successor.asked[0] > 0
        assert successor.requests[0].topics[0].partitions[0].current_leader_epoch == 6
        await successor.listener.close()

    run(tmp_path, story)


def test_a_restarted_follower_resumes_its_checkpoint_download(tmp_path: Path) -> None:
    async def story(leader: Leader, follower: Follower) -> None:
        leader.tell = lambda position, size: None if position else leader.chunk(position, size)
        follower.fetch()
        await follower.progress()
        await follower.fetcher.close()
        leader.tell = leader.chunk
        leader.asked.clear()
        again = Follower(follower.directory, follower.ports)
        again.fetch()
        assert await again.end() == SnapshotFetched(ID)
        assert min(leader.asked) > 0
        await again.fetcher.close()

    run(tmp_path, story)


def test_a_follower_rejects_a_checkpoint_joined_from_two_leaders_files_and_fetches_it_again(
    tmp_path: Path,
) -> None:
    """Same id, same size, other bytes: only the footer's checksum can tell.

    Mutant "resume a download from another leader's file": here it would be installed.

    Source: docs/design/snapshots.md#fetching-a-snapshot.
    """

    async def story(leader: Leader, follower: Follower) -> None:
        successor = Leader(reversed_features(tmp_path / "reversed"))
        assert len(successor.data) == len(leader.data)
        follower.ports[2] = await successor.start()
        leader.tell = lambda position, size: None if position else leader.chunk(position, size)
        follower.fetch()
        await follower.progress()
        follower.fetcher.abandon(ID)
        follower.fetch(leader=2)
        assert await follower.end() == SnapshotFailed(ID)
        assert follower.whole == [] == follower.parts
        assert follower.counters.snapshots_rejected == 1
        follower.events.clear()
        follower.fetch(leader=2)
        assert await follower.end() == SnapshotFetched(ID)
        await successor.listener.close()

    run(tmp_path, story)


def reversed_features(directory: Path) -> bytes:
    """Another checkpoint of the same id and size."""
    files = RealFileSystem()
    directory.mkdir(parents=True)
    with CheckpointWriter.create(files, directory, ID, last_timestamp=0) as writer:
        writer.target_batch_bytes = 8 * 1024
        for record in features(20_000):
            name = "feature+" + record.name.removeprefix("feature-")
            writer.append(type(record)(name=name, feature_level=record.feature_level))
        return writer.freeze().read_bytes()


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param({"position": 7}, id="another position"),
        pytest.param({"size": 10}, id="a smaller file than its bytes"),
        pytest.param({"size": -1}, id="a negative size"),
        pytest.param({"unaligned_records": b""}, id="nothing before the end"),
        pytest.param({"unaligned_records": bytes(MIN_CHUNK_BYTES + 1)}, id="more than asked for"),
        pytest.param({"index": 3}, id="another partition"),
        pytest.param(
            {"snapshot_id": Partition.SnapshotId(end_offset=1, epoch=1)}, id="another snapshot"
        ),
    ],
)
def test_a_follower_that_receives_an_invalid_chunk_deletes_its_partial_checkpoint_file(
    tmp_path: Path, lie: dict
) -> None:
    async def story(leader: Leader, follower: Follower) -> None:
        leader.tell = lambda position, size: leader.chunk(position, size, **lie)
        follower.fetch()
        assert await follower.end() == SnapshotFailed(ID)
        assert len(follower.faults) == 1
        assert follower.whole == [] == follower.parts

    run(tmp_path, story)


def test_a_follower_rejects_a_damaged_checkpoint_of_the_right_size_before_publication(
    tmp_path: Path,
) -> None:
    """Mutant "install before verifying": the name would be there, and `SnapshotFetched` told."""

    async def story(leader: Leader, follower: Follower) -> None:
        leader.data = leader.data[:-200] + bytes(200)
        follower.fetch()
        assert await follower.end() == SnapshotFailed(ID)
        assert follower.whole == [] == follower.parts
        assert follower.counters.snapshots_rejected == 1

    run(tmp_path, story)


def test_a_mutant_that_skips_verification_publishes_a_damaged_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant itself, so that the story above is known to find it."""
    unknown = SimpleNamespace(preamble=SimpleNamespace(epochs=()))
    monkeypatch.setattr(PartDownload, "verify", lambda _: unknown)
    with pytest.raises(AssertionError, match="SnapshotFetched"):
        test_a_follower_rejects_a_damaged_checkpoint_of_the_right_size_before_publication(tmp_path)


def from_store(tmp_path: Path, pin_ms: int) -> object:
    """Fetch from a leader that drops the checkpoint after the first chunk: how it ended."""
    ended: list[object] = []

    async def story(leader: Leader, follower: Follower) -> None:
        newer = OffsetAndEpoch(2_000, 4)
        store = SnapshotStore(
            RealFileSystem(), tmp_path / "leader", now_ms=lambda: 5, pin_ms=pin_ms
        )
        with CheckpointWriter.create(
            RealFileSystem(), tmp_path / "leader", newer, last_timestamp=0
        ) as writer:
            writer.freeze()
        store.added(newer)

        def tell(at: int, max_bytes: int) -> Partition:
            chunk = store.read(ID, at, max_bytes)
            store.drop_below(newer.offset)
            return leader.error(98)(at, 0) if chunk is None else leader.chunk(at, max_bytes)

        leader.tell = tell
        follower.fetch()
        ended.append(await follower.end())
        store.close()

    run(tmp_path, story)
    return ended[0]


def test_a_leader_does_not_delete_a_snapshot_while_a_follower_fetches_the_snapshot(
    tmp_path: Path,
) -> None:
    assert from_store(tmp_path, pin_ms=1_000) == SnapshotFetched(ID)


def test_a_mutant_that_does_not_pin_a_fetched_snapshot_loses_the_snapshot(tmp_path: Path) -> None:
    """The mutant: nobody's reading keeps it."""
    assert from_store(tmp_path, pin_ms=0) == SnapshotFailed(ID)


def test_a_follower_rejects_a_downloaded_checkpoint_of_another_cluster(
    tmp_path: Path,
) -> None:
    async def story(leader: Leader, follower: Follower) -> None:
        leader.data = checkpoint(tmp_path / "another", snapshot_id=OffsetAndEpoch(1_000, 5))
        follower.fetch()
        assert await follower.end() == SnapshotFailed(ID)
        assert follower.whole == []

    run(tmp_path, story)


@pytest.mark.parametrize(("code", "kept"), [(98, 0), (99, 0), (6, 1), (74, 1), (56, 1), (-1, 1)])
def test_the_error_code_of_a_refused_snapshot_download_decides_if_the_partial_file_remains(
    tmp_path: Path, code: int, kept: int
) -> None:
    """SNAPSHOT_NOT_FOUND, POSITION_OUT_OF_RANGE: rediscover by Fetch. KIP-630, Errors."""

    async def story(leader: Leader, follower: Follower) -> None:
        refuse = leader.error(code)
        leader.tell = lambda at, size: refuse(at, size) if at else leader.chunk(at, size)
        follower.fetch()
        assert await follower.end() == SnapshotFailed(ID)
        assert len(follower.parts) == kept
        assert follower.faults == []

    run(tmp_path, story)


def test_a_follower_reports_an_undecodable_fetch_snapshot_response_as_the_leaders_fault(
    tmp_path: Path,
) -> None:
    async def story(leader: Leader, follower: Follower) -> None:
        handle, garbage = leader.handle, []

        def answer(connection: ServerConnection, frame: Frame) -> Answer:
            if frame[1] == 59 and not garbage:
                garbage.append(frame)
                return bytes(frame[4:8]) + b"\x00" + b"\xff" * 40
            return handle(connection, frame)

        leader.listener.handle = answer
        follower.fetch()
        assert await follower.end() == SnapshotFetched(ID)
        assert len(follower.faults) == 1

    run(tmp_path, story)


def test_a_snapshot_download_from_an_unreachable_leader_reports_failure(tmp_path: Path) -> None:
    async def story(leader: Leader, follower: Follower) -> None:
        await leader.listener.close()
        follower.fetch()
        assert await follower.end() == SnapshotFailed(ID)

    run(tmp_path, story)


def test_a_snapshot_download_abandoned_after_its_last_chunk_is_still_published(
    tmp_path: Path,
) -> None:
    async def story(_: Leader, follower: Follower) -> None:
        def stop_at_the_end(event: object) -> None:
            follower.events.append(event)
            if event == SnapshotProgress(complete=True):
                follower.fetcher.abandon(ID)
                follower.fetch(epoch=6)  # the same one: its end is the answer

        follower.fetcher._post = stop_at_the_end  # type: ignore[method-assign]
        follower.fetch()
        assert await follower.end() == SnapshotFetched(ID)
        assert follower.fetcher.receiving is None

    run(tmp_path, story)


def test_an_abandoned_snapshot_download_reports_no_event_and_keeps_its_partial_file(
    tmp_path: Path,
) -> None:
    async def story(leader: Leader, follower: Follower) -> None:
        silent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        handle = leader.handle

        def answer_the_first(connection: ServerConnection, frame: Frame) -> Answer:
            return handle(connection, frame) if len(leader.asked) < 1 else wait()

        async def wait() -> None:
            await silent

        leader.listener.handle = answer_the_first
        follower.fetch()
        await follower.progress()
        follower.fetcher.abandon(ID)
        await wait_until_async(lambda: follower.fetcher.receiving is None)
        assert len(follower.parts) == 1
        assert all(isinstance(event, SnapshotProgress) for event in follower.events)
        silent.set_result(None)

    run(tmp_path, story)


def test_a_snapshot_download_to_a_full_disk_fails_and_deletes_its_partial_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(_: Leader, follower: Follower) -> None:
        monkeypatch.setattr(RealFileSystem, "free_bytes", lambda *_: 100)
        follower.fetch()
        assert await follower.end() == SnapshotFailed(ID)
        assert follower.parts == []
        assert follower.faults == []  # not the leader's

    run(tmp_path, story)
