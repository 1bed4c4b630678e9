"""Holds the start of the logs that a running archive reads, until they are archived.

    with Hold(quorum, about.archive_id) as hold:
        hold.set_archived("__diskless-metadata-0", end_offset, last_epoch)

A thread announces to each leader, every two seconds, how far the archive has its log *durably*. It
uses an observer's Fetch with a field of Esker's own that other leaders skip; the leader then keeps
the log that is not archived yet, up to `esker.archive.max.lag.bytes`. It remembers the archive
while Fetches come, and stores nothing: a stopped archive soon holds no log.

The trap: the Fetches that read the log cannot do this. Their offset says what was read, and that is
not archived yet: a killed archive would find those offsets deleted.

Source: KIP-595 (a Fetch acknowledges), KIP-630 (what a log's start waits for);
docs/design/snapshots.md#an-archive-holds-the-log-start.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Final, NamedTuple, Self
from uuid import UUID
from zlib import crc32

from records.rpc.fetch import FetchRequest, FetchResponse
from spark_jobs.readers.logs import Logs, LogsError
from spark_jobs.readers.quorum_link import Quorum, QuorumLink, partition_of
from spark_jobs.readers.quorum_logs import QuorumLogs

log = logging.getLogger("spark_jobs.archive")

FIRST_REPLICA_ID: Final = 2_000_000_000
"""Archives use replica ids from here on, which no node and no other job uses."""

_REPLICA_IDS: Final = 100_000_000
EVERY_S: Final = 2.0  # a new leader waits ten seconds for archives unknown to it
_TIMEOUT_MS: Final = 2_000
_FETCH_VERSION: Final = 12  # the last that names a log by topic


def replica_id_of(archive_id: UUID) -> int:
    """Return the replica id that an archive fetches with, derived from the archive's id."""
    return FIRST_REPLICA_ID + crc32(archive_id.bytes) % _REPLICA_IDS


def fetched_as(logs: Logs, archive_id: UUID) -> Logs:
    """Make fetches from a quorum carry the archive's replica id; return the same logs.

    With another id, each pass would leave an observer behind that the log's start waits for, as for
    a replica, until it was silent for long enough.
    """
    if isinstance(logs, QuorumLogs):
        logs.quorum = replace(logs.quorum, replica_id=replica_id_of(archive_id))
    return logs


class _Archived(NamedTuple):
    offset: int
    epoch: int | None  # of the record before it; None: not known here


class Hold:
    """Announces to leaders how far their logs are archived, in a thread, until it is closed."""

    def __init__(self, quorum: Quorum, archive_id: UUID, *, every_s: float = EVERY_S) -> None:
        """Start the thread that announces archived offsets.

        Args:    quorum: how to reach the quorum; its replica id is replaced.
        """
        self._quorum = replace(quorum, replica_id=replica_id_of(archive_id), timeout_ms=_TIMEOUT_MS)
        self._every_s = every_s
        self._links: dict[str, QuorumLink] = {}
        self._held: dict[str, _Archived] = {}
        self._announced: dict[str, _Archived] = {}
        self._lock = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="archive-hold", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop announcing archived offsets, and close the connections to leaders."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        self._thread.join()
        for link in self._links.values():
            link.close()

    def set_archived(self, name: str, offset: int, epoch: int | None = None) -> None:
        """Set the offset up to which a log is archived durably; 0 if nothing is archived yet."""
        with self._lock:
            self._held[name] = _Archived(offset, epoch)
            self._lock.notify_all()

    def wait_until_announced(self, name: str, offset: int, timeout_s: float) -> bool:
        """Wait until the leader knows that the log is archived up to `offset`, or time out."""

        def is_announced() -> bool:
            announced = self._announced.get(name)
            return announced is not None and announced.offset >= offset

        with self._lock:
            return self._lock.wait_for(is_announced, timeout_s)

    def _run(self) -> None:
        while True:
            with self._lock:
                due = dict(self._held)
            for name, archived in due.items():
                if self._closed:
                    return
                self._announce(name, archived)
            if self._wait_for_change(due):
                return

    def _wait_for_change(self, announced: dict[str, _Archived]) -> bool:
        """Wait for a changed or due archived offset; return whether this hold was closed."""
        with self._lock:
            self._lock.wait_for(lambda: self._closed or self._held != announced, self._every_s)
            return self._closed

    def _announce(self, name: str, archived: _Archived) -> None:
        link = self._links.get(name)
        if link is None:
            link = self._links[name] = QuorumLink(self._quorum, name)
        try:
            answer = link.call(
                lambda epoch: _request(self._quorum, name, archived, epoch),
                FetchResponse,
                _error_of,
                _FETCH_VERSION,
            )
        except LogsError as error:  # said again in a moment
            log.warning("log=%s action=hold error=%r", name, str(error))
            return
        if _error_of(answer):
            log.warning("log=%s action=hold error=%d", name, _error_of(answer))
            return
        with self._lock:
            self._announced[name] = archived
            self._lock.notify_all()


def _request(quorum: Quorum, name: str, archived: _Archived, epoch: int) -> FetchRequest:
    """Build a Fetch request that carries the archived offset and asks for at most one byte."""
    topic, number = partition_of(name)
    partition = FetchRequest.FetchTopic.FetchPartition(
        partition=number,
        current_leader_epoch=epoch,
        fetch_offset=archived.offset,
        last_fetched_epoch=archived.epoch or 0,
        partition_max_bytes=1,
        archived_offset=archived.offset,
    )
    return FetchRequest(
        cluster_id=quorum.cluster_id or None,
        replica_id=quorum.replica_id,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1,
        topics=(FetchRequest.FetchTopic(topic=topic, partitions=(partition,)),),
    )


def _error_of(answer: FetchResponse) -> int:
    if answer.error_code or not answer.responses or not answer.responses[0].partitions:
        return answer.error_code
    return answer.responses[0].partitions[0].error_code
