"""The table of access control of a node: when it is taken, what it keeps, what it logs."""

from __future__ import annotations

import logging
from uuid import UUID

import pytest

from coordinator.controller import access
from coordinator.controller.access import Access, AccessSettings, AccessTable
from coordinator.controller.authorizer import (
    ALLOW,
    DENY,
    Authorizer,
    Operation,
    PatternType,
    ResourceType,
)
from coordinator.controller.image import MetadataImage
from coordinator.controller.security import SecurityEdit
from raft.net.principal import Principal
from records.metadata import AccessControlEntryRecord, RemoveAccessControlEntryRecord

TOPIC = ResourceType.TOPIC
ANN, ADMIN = Principal("User", "ann"), Principal("User", "admin")


def acl(
    name="orders", operation=Operation.READ, permission=ALLOW, pattern=PatternType.LITERAL, n=0
):
    return AccessControlEntryRecord(
        id=UUID(int=n),
        resource_type=TOPIC,
        resource_name=name,
        pattern_type=pattern,
        principal="User:ann",
        host="*",
        operation=operation,
        permission_type=permission,
    )


class World:
    """A node whose image and clock a test sets."""

    def __init__(self, *acls: AccessControlEntryRecord, allow_everyone: bool = False) -> None:
        self.is_complete = False
        self.now_s = 100.0
        self.set(*acls)
        self.table = AccessTable(
            AccessSettings(frozenset({"User:admin"}), allow_everyone),
            lambda: self.image,
            lambda: self.is_complete,
            lambda: self.now_s,
        )

    def set(self, *acls: AccessControlEntryRecord) -> None:
        edit = SecurityEdit(MetadataImage().security)
        for number, record in enumerate(acls):
            edit.apply(record if record.id.int else acl_with_id(record, number + 1))
        self.image = MetadataImage(security=edit.freeze())

    def of(self, principal: Principal = ANN) -> Access:
        return self.table.of(principal, "10.0.0.7")

    def reads(self, name: str = "orders") -> bool:
        return self.of().allows(Operation.READ, TOPIC, name)


def acl_with_id(record: AccessControlEntryRecord, number: int) -> AccessControlEntryRecord:
    values = {field.name: getattr(record, field.name) for field in record.schema().fields}
    return AccessControlEntryRecord(**values | {"id": UUID(int=number)})


def test_only_super_users_pass_before_the_first_complete_image() -> None:
    world = World(acl(), allow_everyone=True)
    assert not world.reads()
    assert not world.reads("of no entry")
    assert world.of(ADMIN).allows(Operation.READ, TOPIC, "orders")
    world.is_complete = True
    assert world.reads()
    assert world.reads("of no entry")


def test_a_replica_that_begins_anew_keeps_the_table_it_had() -> None:
    world = World(acl(permission=DENY), allow_everyone=True)
    world.is_complete = True
    assert not world.reads()
    world.is_complete = False
    world.set()
    assert not world.reads()
    world.is_complete = True
    assert world.reads()


def test_a_change_of_the_entries_ends_the_decisions_of_a_client() -> None:
    world = World()
    world.is_complete = True
    assert not world.reads()
    world.set(acl())
    assert world.reads()
    assert world.of() is world.of()
    world.set(acl(permission=DENY))
    assert not world.reads()


def test_a_change_of_one_entry_of_many_reads_few_others(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    class Counted(Authorizer):
        def add(self, record: AccessControlEntryRecord) -> None:
            read.append(record.resource_name)
            super().add(record)

        def remove(self, record: AccessControlEntryRecord) -> None:
            read.append(record.resource_name)
            super().remove(record)

    monkeypatch.setattr(access, "Authorizer", Counted)
    many = [acl(f"topic-{number}", n=number + 1) for number in range(1_000)]
    world = World(*many)
    world.is_complete = True
    assert not world.reads("new")
    assert len(read) == len(many)
    edit = SecurityEdit(world.image.security)
    edit.apply(acl("new", n=5_000))
    edit.apply(RemoveAccessControlEntryRecord(id=UUID(int=7)))
    edit.apply(acl("other", n=8))
    world.image = MetadataImage(security=edit.freeze())
    assert world.reads("new")
    assert not world.reads("topic-6")
    assert not world.reads("topic-7")
    assert world.reads("other")
    assert sorted(read[len(many) :]) == ["new", "other", "topic-6", "topic-7"]


def test_decisions_and_clients_are_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "MAX_CLIENTS", 3)
    monkeypatch.setattr(access, "MAX_DECISIONS", 5)
    world = World()
    world.is_complete = True
    first = world.table.of(ANN, "1")
    for host in "23":
        world.table.of(ANN, host)
    assert world.table.of(ANN, "1") is first
    world.table.of(ANN, "4")
    first = world.table.of(ANN, "1")
    assert first is world.table.of(ANN, "1")
    for number in range(5):
        first.allows(Operation.READ, TOPIC, str(number))
    world.table.of(ANN, "5")
    assert world.table.of(ANN, "1") is not first


def test_decisions_about_many_resources_are_those_about_each_of_them() -> None:
    world = World(acl(), acl("ord", permission=DENY, pattern=PatternType.PREFIXED), acl("*"))
    world.is_complete = True
    names = ["orders", "a", None, "order", "a"]
    assert world.of().denied(Operation.READ, TOPIC, names) == [0, 3]
    assert world.table.denials == 2
    assert world.table._decisions == 3
    other = World(acl(), acl("ord", permission=DENY, pattern=PatternType.PREFIXED), acl("*"))
    other.is_complete = True
    allowed = [other.reads(name) for name in names if name is not None]
    assert allowed == [False, True, False, True]
    assert world.of().denied(Operation.READ, TOPIC, names) == [0, 3]  # as they are kept
    assert world.table.denials == 2


def test_a_denial_is_one_line_of_the_audit_log_however_often_it_happens(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "esker.audit")
    world = World()
    world.is_complete = True
    for _ in range(3):
        world.reads("o\n" + "r" * 32_000)
        world.of().allows(Operation.WRITE, TOPIC, "filtered", logs=False)
    (line,) = caplog.messages
    assert line.startswith(
        "decision=denied principal='User:ann' host=10.0.0.7 operation=READ resource_type=TOPIC "
        "resource='o\\nrrr"
    )
    assert len(line) < 500
    assert "\n" not in line


def test_the_audit_log_has_a_limited_number_of_lines_a_second(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "esker.audit")
    monkeypatch.setattr(access, "LINES_PER_S", 2)
    world = World()
    world.is_complete = True
    for number in range(10):
        world.reads(str(number))
    assert len(caplog.messages) == 2
    world.now_s += 1
    world.reads("next")
    assert caplog.messages[-1].endswith("resource='next' left_out=8")
    assert world.table.denials == 11


def test_authorized_operations_are_the_bits_that_a_client_may_do() -> None:
    world = World(acl(), acl("x", Operation.ALL))
    world.is_complete = True
    assert world.of().operations(TOPIC, "orders") == 1 << 3 | 1 << 8
    assert world.of().operations(TOPIC, "x") == sum(1 << n for n in (3, 4, 5, 6, 7, 8, 10, 11))
    assert world.of().operations(ResourceType.CLUSTER) == 0
    assert world.of(ADMIN).operations(ResourceType.CLUSTER) == sum(
        1 << n for n in (5, 7, 8, 9, 10, 11, 12)
    )


WRITE, PREFIXED = Operation.WRITE, PatternType.PREFIXED


@pytest.mark.parametrize(
    ("acls", "allowed"),
    [
        ([], False),
        ([acl("a", WRITE)], True),
        ([acl("a", Operation.ALL)], True),
        ([acl("a", Operation.READ)], False),
        ([acl("a", WRITE), acl("a", WRITE, DENY)], False),
        ([acl("ab", WRITE), acl("a", WRITE, DENY, PREFIXED)], False),
        ([acl("ab", WRITE, pattern=PREFIXED), acl("a", WRITE, DENY, PREFIXED)], False),
        ([acl("ab", WRITE, pattern=PREFIXED), acl("ab", WRITE, DENY)], True),
        ([acl("a", WRITE, pattern=PREFIXED), acl("ab", WRITE, DENY, PREFIXED)], True),
        ([acl("a", WRITE), acl("*", WRITE, DENY)], False),
        ([acl("*", WRITE), acl("a", WRITE, DENY, PREFIXED)], True),
    ],
)
def test_a_client_may_write_to_any_topic_if_no_denial_covers_an_allowed_pattern(
    acls: list[AccessControlEntryRecord], allowed: bool
) -> None:
    world = World(*acls)
    world.is_complete = True
    assert world.of().allows_any(WRITE, TOPIC) is allowed
    assert world.of(ADMIN).allows_any(WRITE, TOPIC)
