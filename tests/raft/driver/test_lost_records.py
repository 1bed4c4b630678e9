"""A leader that is told where the backup of its log ends judges by its own log.

Source: docs/design/backup.md#the-leader-is-told.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raft.core.log import EpochStart, LogState
from raft.driver.errors import LostRecordsError
from raft.driver.lost_records import REPORT_LOST_RECORDS, LostRecords
from raft.net import RequestHeader
from records.codec import decode_message, encode_message
from records.kafka_errors import ErrorCode
from records.rpc.backup import ReportLostRecordsRequest, ReportLostRecordsResponse
from records.types import Epoch, Offset, OffsetAndEpoch

NAME = "__diskless-metadata-0"


class Host:
    """A node with one group, whose log has epochs 1 [0, 10), 3 [10, 20), 5 [20, 30)."""

    def __init__(self, *, ends: bool = False, starts_at: int = 0) -> None:
        epochs = [
            EpochStart(Epoch(epoch), Offset(start)) for epoch, start in ((1, 0), (3, 10), (5, 20))
        ]
        self.state = LogState(
            start_offset=Offset(starts_at),
            start_epoch=Epoch(3 if starts_at else 0),
            end_offset=Offset(30),
            epochs=[pair for pair in epochs if pair.start_offset >= starts_at],
            snapshot_id=OffsetAndEpoch(Offset(20), Epoch(3)) if starts_at else None,
            snapshot_epochs=epochs[:2] if starts_at else (),
        )
        self.group = SimpleNamespace(
            name=NAME,
            leading_epoch=5,
            end_offset=self.state.end_offset,
            epochs_below=self.state.epochs_below,
        )
        self.config = SimpleNamespace(ends_on_lost_records=ends)
        self.failures: list[BaseException] = []
        self.lost_records = LostRecords(self)  # type: ignore[arg-type]

    def find(self, ref: Any) -> Any:
        return self.group if ref == ("__diskless-metadata", 0) else None

    def fail(self, error: BaseException) -> None:
        self.failures.append(error)

    def report(
        self, end: int, epoch: int, topic: str = "__diskless-metadata"
    ) -> ReportLostRecordsResponse:
        request = ReportLostRecordsRequest(
            topic_name=topic, partition_index=0, end_offset=end, epoch=epoch
        )
        header = RequestHeader(REPORT_LOST_RECORDS, 0, 7, "broker-101", True, 0)
        served = self.lost_records.handlers[REPORT_LOST_RECORDS]
        answer: Any = served.serve(None, header, encode_message(request, 0))  # type: ignore[arg-type]
        return decode_message(ReportLostRecordsResponse, b"".join(answer[1:]), 0)

    @property
    def reasons(self) -> list[str]:
        return [each.reason for each in self.lost_records.degradations()]


@pytest.mark.parametrize("starts_at", [0, 20])
@pytest.mark.parametrize(("end", "epoch"), [(0, 0), (5, 1), (10, 1), (11, 3), (20, 3), (30, 5)])
def test_a_log_that_has_the_records_of_its_backup_has_lost_nothing(
    end: int, epoch: int, starts_at: int
) -> None:
    host = Host(ends=True, starts_at=starts_at)
    assert host.report(end, epoch) == ReportLostRecordsResponse()
    assert not host.reasons
    assert not host.failures


@pytest.mark.parametrize("starts_at", [0, 20])
@pytest.mark.parametrize(
    ("end", "epoch", "sentence"),
    [
        (31, 5, "ends at offset 30, and its backup at 31"),
        (20, 2, "has epoch 3 before offset 20, and its backup epoch 2"),
        (30, 4, "has epoch 5 before offset 30, and its backup epoch 4"),
        (10, 2, "has epoch 1 before offset 10, and its backup epoch 2"),
    ],
)
def test_a_leader_without_records_of_the_backup_is_unready_while_it_leads(
    end: int, epoch: int, sentence: str, starts_at: int
) -> None:
    host = Host(starts_at=starts_at)
    assert host.report(end, epoch).is_lost
    (reason,) = host.reasons
    assert reason.startswith(f"{NAME}, which this node leads in epoch 5, {sentence}: the quorum")
    assert not host.failures
    host.group.leading_epoch = 6  # it was elected again, and knows nothing of that epoch yet
    assert not host.reasons
    host.group.leading_epoch = None
    assert host.report(end, epoch).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_leader_that_lost_records_ends_if_peer_identities_are_enforced() -> None:
    host = Host(ends=True)
    host.report(31, 5)
    (failure,) = host.failures
    assert isinstance(failure, LostRecordsError)
    assert str(failure) == host.reasons[0]
    assert "esker restore plan --backup FILE" in str(failure)


@pytest.mark.parametrize(
    ("end", "epoch", "topic", "error"),
    [
        (-1, 5, "__diskless-metadata", ErrorCode.INVALID_REQUEST),
        (31, -1, "__diskless-metadata", ErrorCode.INVALID_REQUEST),
        (31, 5, "nowhere", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_nonsense_ends_no_leader(end: int, epoch: int, topic: str, error: ErrorCode) -> None:
    host = Host(ends=True)
    assert host.report(end, epoch, topic) == ReportLostRecordsResponse(error_code=error)
    assert not host.reasons
    assert not host.failures
