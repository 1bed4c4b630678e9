"""The users of `esker storage format --add-scram`."""

from __future__ import annotations

import base64

import pytest
import typer

from esker.commands.scram_users import parse_users

SALT = "eDhpN21pdzVnY2o0bDNhZmpwcDd4NHpuNA=="


def test_format_writes_the_same_record_of_a_scram_user_as_kafkas_format_tool():
    text = f"SCRAM-SHA-256=[name=alice,password=alice-secret,iterations=4096,salt={SALT}]"
    (record,) = parse_users([text], "cluster")
    assert record.name == "alice"
    assert base64.b64encode(record.stored_key) == b"/fVqjHQQvGBPRWbsyWQ2sbUCj9/sex46C9SX/4OUwIM="


def test_format_writes_the_same_scram_record_on_every_controller_with_a_salt_per_user(tmp_path):
    (tmp_path / "password").write_text("se cret\n")
    users = [f'SCRAM-SHA-512=[name="{u}",password-file={tmp_path}/password]' for u in "ab"]
    assert parse_users(users, "c1") == parse_users(users, "c1")
    first, second = parse_users(users, "c1")
    assert first.salt != second.salt
    assert first.salt != parse_users(users, "c2")[0].salt
    other = [users[0].replace(f"password-file={tmp_path}/password", "password=other")]
    assert parse_users(other, "c1")[0].salt == first.salt, "a salt is told to everybody"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("PLAIN=[name=a,password=hidden]", "MECHANISM"),
        ("SCRAM-SHA-256=[password=hidden]", "names no user"),
        ("SCRAM-SHA-256=[name=a]", "either password"),
        ("SCRAM-SHA-256=[name=a,password=hidden,password-file=x]", "either password"),
        ("SCRAM-SHA-256=[name=a,password=]", "empty password"),
        ("SCRAM-SHA-256=[name=a,password-file=/nowhere/x]", "No such file"),
        ("SCRAM-SHA-256=[name=a,password=hidden,iterations=1]", "4096 to 16384"),
        ("SCRAM-SHA-256=[name=a,password=hidden,salt=?]", "base64"),
        ("SCRAM-SHA-256=[name=a,password=hidden,name=b]", "each once"),
    ],
)
def test_format_refuses_an_invalid_scram_user_without_printing_the_password(text, reason):
    with pytest.raises(typer.BadParameter, match=reason) as refused:
        parse_users([text], "cluster")
    assert "hidden" not in str(refused.value)


def test_format_refuses_a_scram_user_given_twice_for_one_mechanism():
    text = "SCRAM-SHA-256=[name=a,password=b]"
    with pytest.raises(typer.BadParameter, match="twice"):
        parse_users([text, text], "cluster")
