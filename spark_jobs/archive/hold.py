"""A running archive's hold on the logs it reads: so that a log's head waits for it.

    with Hold(quorum, about.archive_id) as hold:
        hold.archived("__diskless-metadata-0", end_offset, last_epoch)

Each leader is told, every two seconds, how far the archive has its log *durably*. That travels with
a Fetch, as an observer sends them, in a field of ours that other leaders skip; and the leader keeps
what the archive has not got, up to `esker.archive.max.lag.bytes` of it. It remembers this for as
long as Fetches come, and writes it down nowhere: an archive that has stopped costs nobody anything.

The surprise is that what the jobs fetch for themselves cannot do this. A Fetch's offset says what
was read, and what was read is not archived yet: killed at that moment, the archive would find it
cut off.

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
"""Archives fetch under ids from here on: no node is numbered so, and no other job's reader."""

_REPLICA_IDS: Final = 100_000_000
EVERY_S: Final = 2.0  # a new leader waits ten seconds for archives that it has not heard of
_TIMEOUT_MS: Final = 2_000
_FETCH_VERSION: Final = 12  # the last that names a log by topic


def replica_id_of(archive_id: UUID) -> int:
    """As whom an archive fetches, always the same."""
    return FIRST_REPLICA_ID + crc32(archive_id.bytes) % _REPLICA_IDS


def fetched_as(logs: Logs, archive_id: UUID) -> Logs:
    """Let a quorum's logs be read under the archive's own id.

    Under another one each pass would leave a stranger behind, for whom as for a replica the log's
    start waits until it was silent for long enough.
    """
    if isinstance(logs, QuorumLogs):
        logs.quorum = replace(logs.quorum, replica_id=replica_id_of(archive_id))
    return logs


class _Archived(NamedTuple):
    offset: int
    epoch: int | None  # of the record before it; None: not known here


class Hold:
    """Tells leaders, from a thread of its own, until it is closed."""

    def __init__(self, quorum: Quorum, archive_id: UUID, *, every_s: float = EVERY_S) -> None:
        """
        Args:    quorum: how it is reached; not as whom.
        """
        self._quorum = replace(quorum, replica_id=replica_id_of(archive_id), timeout_ms=_TIMEOUT_MS)
        self._every_s = every_s
        self._links: dict[str, QuorumLink] = {}
        self._held: dict[str, _Archived] = {}
        self._told: dict[str, _Archived] = {}
        self._lock = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="archive-hold", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Say nothing more; leaders forget us."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        self._thread.join()
        for link in self._links.values():
            link.close()

    def archived(self, name: str, offset: int, epoch: int | None = None) -> None:
        """A log is archived up to here, durably; 0: nothing of it, and all of it is wanted."""
        with self._lock:
            self._held[name] = _Archived(offset, epoch)
            self._lock.notify_all()

    def wait_until_told(self, name: str, offset: int, timeout_s: float) -> bool:
        """Does the log's leader know that so much is archived? Waits for it."""

        def is_told() -> bool:
            told = self._told.get(name)
            return told is not None and told.offset >= offset

        with self._lock:
            return self._lock.wait_for(is_told, timeout_s)

    def _run(self) -> None:
        while True:
            with self._lock:
                due = dict(self._held)
            for name, archived in due.items():
                if self._closed:
                    return
                self._tell(name, archived)
            if self._wait_for_news(due):
                return

    def _wait_for_news(self, told: dict[str, _Archived]) -> bool:
        """Until there is something to tell, or it is time to tell it again; True: no more."""
        with self._lock:
            self._lock.wait_for(lambda: self._closed or self._held != told, self._every_s)
            return self._closed

    def _tell(self, name: str, archived: _Archived) -> None:
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
            self._told[name] = archived
            self._lock.notify_all()


def _request(quorum: Quorum, name: str, archived: _Archived, epoch: int) -> FetchRequest:
    """Reads nothing to speak of: what it says is what it is sent for."""
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
