"""The forms in which `esker consume` prints a record."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esker.client.consumer import Found
from esker.commands.record_formats import formatter
from records.batch import iter_batches, iter_records
from records.batch_writer import build_batch


def found(key: bytes | None = b"k", value: bytes | None = b"v") -> Found:
    headers = (("h", b"1"), ("i", None))
    batch = build_batch([(key, value, 1234, headers)], base_offset=7, leader_epoch=0)
    ((record,),) = (list(iter_records(one)) for one in iter_batches(bytes(batch)))
    return Found(3, record)


@pytest.mark.parametrize(
    ("output", "separator", "printed"),
    [
        (None, None, b"v\n"),
        (None, ": ", b"k: v\n"),
        ("raw", None, b"v"),
        ("%k %s", None, b"k v"),
        (r"%t\t%p\t%o\t%T\n", None, b"t\t3\t7\t1234\n"),
        (r"%h %K %S %% \\", None, b"h=1,i= 1 1 % \\"),
    ],
)
def test_each_output_format_of_the_consume_command_prints_its_fields(
    output: str | None, separator: str | None, printed: bytes
) -> None:
    assert formatter("t", output, separator)(found()) == printed


def test_the_consume_command_prints_a_null_key_or_value_as_empty_text_with_size_minus_1() -> None:
    assert formatter("t", "[%k|%s|%K|%S]")(found(None, None)) == b"[||-1|-1]"


def test_the_json_output_of_the_consume_command_has_bytes_that_are_not_utf_8_as_base64() -> None:
    line = json.loads(formatter("t", "json")(found(b"\xff", None)))
    assert line == {
        "topic": "t", "partition": 3, "offset": 7, "timestamp": 1234, "keyBase64": "/w==",
        "value": None, "headers": [{"name": "h", "value": "1"}, {"name": "i", "value": None}],
    }  # fmt: skip


@given(st.text("%\\skn x", max_size=8))
def test_the_consume_command_accepts_a_format_string_or_names_its_invalid_token(text: str) -> None:
    try:
        form = formatter("t", f"%s{text}")
    except ValueError:
        with pytest.raises(ValueError, match="has no meaning: known are %s value"):
            formatter("t", f"%s{text}")
    else:
        assert form(found()).startswith(b"v")
