"""Batches get their place in the log."""

from __future__ import annotations

from raft.driver.batch_builder import new_batch, stamp_batches
from raft.interfaces import Draft
from records.batch import iter_batches
from records.batch_writer import build_value_batch
from records.types import Epoch, Offset


def test_the_leader_stamps_the_batches_of_a_proposal_with_consecutive_offsets() -> None:
    """Offsets and epoch are outside the checksum, so the batches stay valid."""
    batches = [
        build_value_batch([b"v"] * count, base_offset=0, leader_epoch=-1, timestamp=0)
        for count in (1, 3, 2)
    ]
    draft = Draft(batches, (1, 3, 2))
    assert new_batch(draft).record_count == 6
    data = stamp_batches(draft, Offset(40), Epoch(7))
    headers = [batch.header for batch in iter_batches(data)]
    assert [(h.base_offset, h.end_offset, h.leader_epoch) for h in headers] == [
        (40, 41, 7),
        (41, 44, 7),
        (44, 46, 7),
    ]
    assert bytes(batches[0][:8]) == bytes(8)  # the proposer's own bytes are left alone
