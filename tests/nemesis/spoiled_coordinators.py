"""Batch coordinators with a mistake in them, to be found out by a run.

A node is told of them as of any other implementation, by `diskless.batch.coordinator.class.name`.
Each is ours but for one line that somebody could have got wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from coordinator.batch.decide import commit
from coordinator.batch.log_records import records_of
from coordinator.batch.sqlite import machine
from coordinator.proposer import Proposer
from esker.server.coordinators import Group, HostedInQuorum
from records.batch import Batch
from records.diskless import LogStartOffsetsRecord
from records.schema import MetadataRecord
from records.types import Offset

FORGETFUL_NODE = 2
ON_REQUEST = 0  # LogStartOffsetsRecord's reason


class HastyProposer(Proposer):
    """Answers as soon as its own log has what it decided."""

    def _settle(self) -> None:
        while self._in_flight and self._in_flight[0].is_accepted:
            self._answer(self._in_flight.popleft().answers, None)
        self.applied()


class AnswersAtOnce(HostedInQuorum):
    """Waits for no majority."""

    @classmethod
    def for_group(cls, group: Group) -> AnswersAtOnce:
        hosted = cls(group)
        hosted.coordinator.leader.proposer.__class__ = HastyProposer
        return hosted


class CommitsDuplicates(HostedInQuorum):
    """Does not look whether a batch was there before."""

    @classmethod
    def for_group(cls, group: Group) -> CommitsDuplicates:
        judge = commit._Commit._judge_batch

        def accept(self: Any, *batch: Any) -> commit.Refused | None:
            refused = judge(self, *batch)
            return None if refused is not None and refused.duplicate_of else refused

        commit._Commit._judge_batch = accept  # type: ignore[method-assign, assignment]
        return cls(group)


class ForgetsOnOneReplica(HostedInQuorum):
    """On one node, DeleteRecords has no effect."""

    @classmethod
    def for_group(cls, group: Group) -> ForgetsOnOneReplica:
        if group.host.node_id == FORGETFUL_NODE:
            machine.records_of = _most_records_of  # type: ignore[attr-defined]
        return cls(group)


def _most_records_of(batch: Batch) -> Iterator[tuple[Offset, MetadataRecord]]:
    for offset, record in records_of(batch):
        if not isinstance(record, LogStartOffsetsRecord) or record.reason != ON_REQUEST:
            yield offset, record
