"""No record type goes without golden bytes, at its first and at its last version."""

from __future__ import annotations

from records.frame import CONTROL_RECORDS, METADATA_RECORDS
from tests.records import (
    test_golden_brokers,
    test_golden_chunks,
    test_golden_control,
    test_golden_diskless,
    test_golden_groups,
    test_golden_key_value,
    test_golden_rewriting,
    test_golden_security,
    test_golden_timelines,
    test_golden_topics,
    test_golden_transactions,
    test_golden_transactions_batches,
)

FAMILIES = (
    test_golden_brokers,
    test_golden_chunks,
    test_golden_control,
    test_golden_diskless,
    test_golden_groups,
    test_golden_key_value,
    test_golden_rewriting,
    test_golden_security,
    test_golden_timelines,
    test_golden_topics,
    test_golden_transactions,
    test_golden_transactions_batches,
)


def test_every_record_type_has_golden_bytes_at_its_first_and_last_version() -> None:
    golden = {
        (type(case.message).__name__, case.version) for family in FAMILIES for case in family.GOLDEN
    }
    expected = {
        (cls.__name__, version)
        for cls in (*METADATA_RECORDS.values(), *CONTROL_RECORDS.values())
        for version in (cls.schema().versions.first, cls.schema().versions.last)
    }
    assert expected - golden == set()


def test_the_golden_bytes_cover_every_tagged_field() -> None:
    set_somewhere = {
        (type(case.message).__name__, field.name)
        for family in FAMILIES
        for case in family.GOLDEN
        for field in case.message.schema().fields
        if field.tag is not None and getattr(case.message, field.name) != field.default
    }
    declared = {
        (cls.__name__, field.name)
        for cls in (*METADATA_RECORDS.values(), *CONTROL_RECORDS.values())
        for field in cls.schema().fields
        if field.tag is not None
    }
    assert declared - set_somewhere == set()
