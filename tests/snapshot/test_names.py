"""Names of checkpoints, and what a directory holds. Source: KIP-630."""

from __future__ import annotations

import pytest

from records.types import OffsetAndEpoch
from snapshot import (
    CheckpointReader,
    PartFile,
    checkpoint_name,
    list_checkpoints,
    list_parts,
    mark_deleted,
    parse_checkpoint_name,
    remove_leftovers,
)
from snapshot.names import part_name
from tests.snapshot.checkpoints import DIRECTORY, ID, PATH, new_disk, written

LARGEST = OffsetAndEpoch((1 << 63) - 1, (1 << 31) - 1)


@pytest.mark.parametrize("snapshot_id", [OffsetAndEpoch(0, 0), ID, LARGEST])
def test_a_checkpoint_id_survives_formatting_and_parsing_of_its_file_name(snapshot_id):
    assert parse_checkpoint_name(checkpoint_name(snapshot_id)) == snapshot_id


@pytest.mark.parametrize(
    "name",
    [
        "",
        "57-3.checkpoint",
        "00000000000000000057-00000000000000000003.checkpoint",  # the KIP's width of the epoch
        "00000000000000000057-0000000003.checkpoint.part",
        "00000000000000000057-0000000003.checkpoint.deleted",
        "00000000000000000057-0000000003-1.checkpoint",
        "99999999999999999999-0000000003.checkpoint",  # past int64
        "00000000000000000057-9999999999.checkpoint",  # past int32
        "٠0000000000000000057-0000000003.checkpoint",  # a digit, but not an ASCII one
        "00000000000000000057-0000000003.checkpoint\n",
        "bootstrap.checkpoint",
    ],
)
def test_the_parser_of_checkpoint_names_refuses_a_malformed_file_name(name):
    assert parse_checkpoint_name(name) is None


def test_list_checkpoints_returns_complete_checkpoints_oldest_first_without_partial_files():
    disk = new_disk()
    ids = [OffsetAndEpoch(9, 1), OffsetAndEpoch(10, 1), OffsetAndEpoch(10, 2)]
    for snapshot_id in reversed(ids):
        disk.replace(DIRECTORY / checkpoint_name(snapshot_id), b"")
    disk.replace(DIRECTORY / part_name(ID, 5), b"")
    disk.replace(DIRECTORY / "00000000000000000000.log", b"")
    assert list_checkpoints(disk, DIRECTORY) == ids


def test_remove_leftovers_deletes_partial_and_deleted_checkpoints():
    disk = new_disk()
    resumable = DIRECTORY / part_name(ID, 5)
    leftovers = [
        resumable.name,
        part_name(OffsetAndEpoch(60, 3), 18446744073709551615),
        "00000000000000000012-0000000001.checkpoint.part",  # as the KIP names it
        "00000000000000000012-0000000001.checkpoint.deleted",
        "bootstrap.checkpoint.tmp",
    ]
    others = [PATH.name, "00000000000000000000.log", "quorum-state.tmp", "notes.part"]
    for name in leftovers + others:
        disk.replace(DIRECTORY / name, b"")
    assert list_parts(disk, DIRECTORY, ID) == [resumable]
    assert remove_leftovers(disk, DIRECTORY, keep=[resumable]) == len(leftovers) - 1
    assert disk.listdir(DIRECTORY) == sorted([*others, resumable.name])


def test_a_deleted_checkpoint_is_not_listed_and_its_open_reader_continues():
    disk = new_disk()
    disk.replace(PATH, written())
    with CheckpointReader(disk, PATH) as reader:
        disk.unlink(mark_deleted(disk, DIRECTORY, ID))
        assert list_checkpoints(disk, DIRECTORY) == []
        assert len(list(reader.records())) == 2


def test_a_partial_checkpoint_file_grows_by_chunks_and_can_be_resumed_after_a_restart():
    data = written(5)
    disk = new_disk()
    disk.replace(PATH, data)
    fetched = new_disk()
    part = PartFile.create(fetched, DIRECTORY, ID, unique=1)
    with CheckpointReader(disk, PATH) as source:
        assert source.size_bytes == len(data)
        part.append(source.read(part.size_bytes, 100))
        part.keep()
        (left,) = list_parts(fetched, DIRECTORY, ID)
        part = PartFile.resume(fetched, left)
        while chunk := source.read(part.size_bytes, 100):
            part.append(chunk)
        assert source.read(len(data) + 1, 100) == b""
    assert part.publish() == PATH
    assert fetched.content(PATH) == data
    assert fetched.listdir(DIRECTORY) == [PATH.name]
