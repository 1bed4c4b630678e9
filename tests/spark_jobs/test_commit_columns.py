"""Many commits walked together give the same columns and errors as one by one."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from records.diskless import ObjectCommitRecord
from records.errors import MalformedMessageError
from records.frame import encode_record, read_frame
from spark_jobs.tables.commit_columns import Columns, CommitPile
from spark_jobs.tables.commits import COLUMNS, HEAD, OF_BATCHES, CommitColumns, width_of
from tests.spark_jobs.test_tables import PLACE, commits, one_commit

NAMES = tuple(COLUMNS[i] for i in OF_BATCHES)


def piled(values: list[bytes]) -> Columns:
    pile = CommitPile(NAMES)
    for value in values:
        _, version, body = read_frame(value)
        pile.add(PLACE, value, version, body)
    return pile.take()


def one_by_one(values: list[bytes]) -> dict[str, list[object]]:
    columns = CommitColumns()
    for value in values:
        columns.add(PLACE, value)
    found: dict[str, list[object]] = columns.take().to_pydict()
    return found


@settings(deadline=None, max_examples=100)
@given(st.lists(commits(), max_size=6))
def test_commit_records_decoded_into_columns_equal_separately_decoded_commit_records(
    records: list[ObjectCommitRecord],
) -> None:
    values = [encode_record(record) for record in records]
    found, expected = piled(values), one_by_one(values)
    for name in NAMES:
        numbers = [-1 if one is None else one for one in expected[name.removesuffix("s")]]
        assert found.batches[name].tolist() == numbers, name
    topics = np.repeat(found.topics, found.batch_counts).tolist()
    assert [found.topic_ids[topic] for topic in topics] == expected["topic_id"]
    assert np.repeat(found.partitions, found.batch_counts).tolist() == expected["partition"]
    for name, column in found.heads.items():
        assert np.repeat(column, found.rows_of).tolist() == expected[name]


@settings(deadline=None, max_examples=200)
@given(st.lists(commits(), min_size=1, max_size=4), st.data())
def test_damaged_commits_decoded_together_or_one_by_one_raise_the_same_error(
    records: list[ObjectCommitRecord], data: st.DataObject
) -> None:
    values = [bytearray(encode_record(record)) for record in records]
    hurt = values[data.draw(st.integers(0, len(values) - 1))]
    frame = read_frame(bytes(hurt))[2]
    if data.draw(st.booleans()):
        del hurt[data.draw(st.integers(frame, len(hurt) - 1)) :]
    else:
        hurt[data.draw(st.integers(frame, len(hurt) - 1))] = data.draw(st.integers(0, 255))
    whole = [bytes(value) for value in values]
    try:
        expected = one_by_one(whole)
    except MalformedMessageError as error:
        with pytest.raises(MalformedMessageError, match=f"^{re.escape(str(error))}$"):
            piled(whole)
    else:
        assert piled(whole).batches["base_offsets"].tolist() == expected["base_offset"]


def test_decoding_a_commit_record_with_an_overlong_varint_raises_an_error() -> None:
    """One varint never ends, and one counts more entries than there are."""
    sound = one_commit()
    head = read_frame(sound)[2] + sum(width_of(field) for field in HEAD)
    for length in (b"\xff" * 12, b"\xff\xff\xff\xff\x7f", b"\x00", b"\x7f"):
        with pytest.raises(MalformedMessageError):
            piled([sound, sound[:head] + length + sound[head + 1 :], sound])
