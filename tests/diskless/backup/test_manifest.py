"""The bytes of a manifest, and what is refused.

Source: docs/design/backup.md#format-of-a-manifest.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskless.backup.manifest import (
    BackedUpCheckpoint,
    BackedUpLog,
    BackedUpRange,
    BackupError,
    DataPart,
    Manifest,
    NewerFormatError,
    OldestCut,
)

PART = DataPart("00000000000000000007-ab", 16, 5, "cd")
LOG = BackedUpLog(
    topic="__diskless-metadata",
    partition=0,
    topic_id=UUID(int=2),
    end=30,
    epoch=4,
    checkpoint=BackedUpCheckpoint(10, 3, (PART,)),
    ranges=(BackedUpRange(10, 20, PART), BackedUpRange(20, 30, PART)),
)
MANIFEST = Manifest(
    number=7,
    cluster_id="AAAAAAAAAAAAAAAAAAAAAQ",
    broker_id=101,
    release="0.2",
    cut=7,
    began_ms=1_700_000_000_000,
    oldest=OldestCut(3, {"__diskless-metadata-0": 12}),
    logs=(LOG,),
)
LINE = (
    b'{"format":1,"release":"0.2","cluster":"AAAAAAAAAAAAAAAAAAAAAQ","number":7,"cut":7,'
    b'"broker":101,"began_ms":1700000000000,'
    b'"oldest":{"number":3,"ends":{"__diskless-metadata-0":12}},'
    b'"logs":[{"topic":"__diskless-metadata","partition":0,'
    b'"topic_id":"00000000-0000-0000-0000-000000000002","end":30,"epoch":4,'
    b'"checkpoint":{"end":10,"epoch":3,"parts":['
    b'{"object":"00000000000000000007-ab","position":16,"bytes":5,"sha256":"cd"}]},'
    b'"ranges":['
    b'{"start":10,"end":20,"object":"00000000000000000007-ab","position":16,"bytes":5,"sha256":"cd"},'
    b'{"start":20,"end":30,"object":"00000000000000000007-ab","position":16,"bytes":5,"sha256":"cd"}'
    b"]}]}"
)


def signed(line: bytes) -> bytes:
    return line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n"


def test_the_bytes_of_a_manifest() -> None:
    assert MANIFEST.to_bytes() == signed(LINE)
    assert Manifest.from_bytes(signed(LINE), "m") == MANIFEST


def test_members_of_later_releases_are_ignored() -> None:
    found = json.loads(LINE) | {"later": [1]}
    found["logs"][0]["later"] = 2
    assert Manifest.from_bytes(signed(json.dumps(found).encode()), "m") == MANIFEST


@given(st.data())
def test_every_cut_and_every_changed_byte_is_refused(data: st.DataObject) -> None:
    whole = MANIFEST.to_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = bytearray(whole)
    changed[at] ^= data.draw(st.integers(1, 255))
    for damaged in (whole[:at], bytes(changed)):
        with pytest.raises(BackupError, match=r"^m is damaged.*--at$"):
            Manifest.from_bytes(damaged, "m")


def test_a_manifest_from_the_future_is_refused_by_its_release() -> None:
    line = json.dumps({"format": 2, "release": "9.9", "entirely": "different"}).encode()
    with pytest.raises(NewerFormatError, match=r"format 2, written by Esker 9\.9"):
        Manifest.from_bytes(signed(line), "m")


@pytest.mark.parametrize("name", sorted(set(json.loads(LINE)) - {"format"}))
@pytest.mark.parametrize("value", [None, True, -1, 2**63, 0.5, [], [1], {}, {"ends": 1}, [[]]])
def test_signed_nonsense_is_refused_by_a_sentence(name: str, value: object) -> None:
    found = json.loads(LINE) | {name: value}
    if (name, value) == ("logs", []):
        return  # a cluster without a log
    with pytest.raises(BackupError, match=r"^m is no manifest of a backup: "):
        Manifest.from_bytes(signed(json.dumps(found).encode()), "m")


@pytest.mark.parametrize(
    ("log", "fault"),
    [
        (replace(LOG, checkpoint=None), "offsets from 0 to 10 are missing"),
        (replace(LOG, ranges=LOG.ranges[:1]), "it ends at 20, not at 30"),
        (replace(LOG, ranges=LOG.ranges[1:]), "offsets from 10 to 20 are missing"),
        (
            replace(LOG, ranges=(LOG.ranges[0], BackedUpRange(25, 30, PART))),
            "a range ends at 20, and the next begins at 25",
        ),
        (replace(LOG, end=31), "it ends at 30, not at 31"),
        (replace(LOG, checkpoint=BackedUpCheckpoint(10, 3, ())), "the checkpoint has no parts"),
        (replace(LOG, ranges=(BackedUpRange(10, 10, PART),), end=10), "a range is empty"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(log: BackedUpLog, fault: str) -> None:
    data = replace(MANIFEST, logs=(log,)).to_bytes()
    with pytest.raises(BackupError, match=f"m contradicts itself: {log.name}: {fault}"):
        Manifest.from_bytes(data, "m")
