"""Serves ReportLostRecords: a leader compares its log with what the newest backup holds of it.

A backup has committed records only. A leader whose log is shorter, or has another epoch there, was
elected by a majority that lost committed records. The node is unready then for as long as it leads;
where peers prove who they are (`NodeConfig.ends_on_lost_records`), it ends, and the next leader is
told in turn.

The trap: a report proves nothing by itself. The leader judges by its own log, and only its own
word ends it.

Source: docs/design/backup.md#the-leader-is-told.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, Protocol

from raft.driver.config import NodeConfig
from raft.driver.errors import LostRecordsError
from raft.driver.group import GroupDriver
from raft.interfaces import Degradation
from raft.net import Frame, Payload, RequestHeader, ServerConnection
from raft.net.handlers import Served, payload
from raft.wire.responses import GroupRef
from records.codec import decode_message
from records.kafka_errors import ErrorCode
from records.rpc.backup import ReportLostRecordsRequest, ReportLostRecordsResponse
from records.types import Epoch, Offset

log = logging.getLogger("raft.driver")

REPORT_LOST_RECORDS: Final = 1150

REMEDY: Final = (
    "the quorum has lost committed records. Stop the cluster, and restore it from the backup "
    "(esker restore plan --backup FILE; docs/operations.md#backing-up-the-logs)"
)


class LostRecordsHost(Protocol):
    """The part of a node that judges reports of lost records."""

    config: NodeConfig

    def find(self, ref: GroupRef) -> GroupDriver | None: ...

    def fail(self, error: BaseException) -> None: ...


class _Found(NamedTuple):
    """A report that was true."""

    group: GroupDriver
    epoch: Epoch  # that this node led then
    sentence: str


class LostRecords:
    """The reports that were true of the logs that this node leads."""

    def __init__(self, host: LostRecordsHost) -> None:
        self._host = host
        self._found: dict[str, _Found] = {}  # by the group's name

    @property
    def handlers(self) -> Mapping[int, Served]:
        """Return the handler of ReportLostRecords by its api key."""
        return {REPORT_LOST_RECORDS: Served(0, 0, self._report)}

    def degradations(self) -> Iterator[Degradation]:
        """Yield a degradation for each log that this node still leads and that lost records."""
        for found in self._found.values():
            if found.group.leading_epoch == found.epoch:
                yield Degradation("lost_records", found.sentence)

    def _report(
        self,
        connection: ServerConnection,  # noqa: ARG002 (a handler's)
        header: RequestHeader,
        body: Frame,
    ) -> Payload:
        request = decode_message(ReportLostRecordsRequest, body, header.api_version)
        return payload(header, self._judge(request))

    def _judge(self, request: ReportLostRecordsRequest) -> ReportLostRecordsResponse:
        """Compare the reported end with this leader's own log; note a loss, and end if so set."""
        group = self._host.find(GroupRef(request.topic_name, request.partition_index))
        if group is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return ReportLostRecordsResponse(error_code=error)
        if min(request.end_offset, request.epoch) < 0:
            return ReportLostRecordsResponse(error_code=ErrorCode.INVALID_REQUEST)
        epoch = group.leading_epoch
        if epoch is None:
            return ReportLostRecordsResponse(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        lacks = describe_loss(group, Offset(request.end_offset), Epoch(request.epoch))
        if lacks is None:
            return ReportLostRecordsResponse()
        sentence = f"{group.name}, which this node leads in epoch {epoch}, {lacks}: {REMEDY}"
        before = self._found.get(group.name)
        if before is None or before.epoch != epoch:
            log.critical("group=%s lost_records=%r", group.name, sentence)
        self._found[group.name] = _Found(group, epoch, sentence)
        if self._host.config.ends_on_lost_records:
            self._host.fail(LostRecordsError(sentence))
        return ReportLostRecordsResponse(is_lost=True)


def describe_loss(group: GroupDriver, end: Offset, epoch: Epoch) -> str | None:
    """Return in which way a log lacks the committed records below `end`, or None if it has them.

    Args:  epoch: of the record before `end`.
    """
    if group.end_offset < end:
        return f"ends at offset {group.end_offset}, and its backup at {end}"
    known = group.epochs_below(end)
    if not known:
        return None
    ours, _ = known[-1]
    if ours == epoch:
        return None
    return f"has epoch {ours} before offset {end}, and its backup epoch {epoch}"
