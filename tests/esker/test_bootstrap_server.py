"""Our own commands at a broker: `--bootstrap-server`, and produce, consume and groups.

A cluster of `esker dev`, asked as a person would. KIP-590 (brokers that forward);
docs/design/running.md#commands.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer import BadParameter

from esker.cli import app
from esker.commands.cluster_access import Target, target
from esker.settings.values import Endpoint
from tests.esker.commands.test_front_door import on_a_terminal
from tests.esker.test_dev import HOST, Dev, free_port, runner, running
from tests.waiting import DEADLINE_S, wait_until


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """One broker, and commits every 20 ms."""
    directory = tmp_path_factory.mktemp("dev") / "data"
    setting = "diskless.append.commit.interval.ms=20"
    with running(directory, free_port(), "--set", setting) as dev:
        yield dev
        dev.process.send_signal(signal.SIGINT)
        dev.process.wait(DEADLINE_S)


def as_json(dev: Dev, *words: str) -> Any:
    return json.loads(dev.esker(*words, "--json"))


def numbers(count: int) -> str:
    return "".join(f"{number}\n" for number in range(count))


def test_topic_commands_create_describe_alter_and_delete_a_topic_through_a_broker(dev: Dev) -> None:
    created = dev.esker("topics", "create", "--topic", "t", "--partitions", "2",
                        "--config", "retention.ms=60000")  # fmt: skip
    assert created.startswith("Created topic t with id ")
    assert "t" in dev.esker("topics", "list", "--diskless").split()
    (topic,) = as_json(dev, "topics", "describe", "--topic", "t")["topics"]
    assert topic["configs"] == {"retention.ms": "60000"}
    assert "4 partitions" in dev.esker("topics", "alter", "--topic", "t", "--partitions", "4")
    dev.esker("configs", "alter", "--entity-type", "topics", "--entity-name", "t",
              "--add-config", "retention.bytes=1000")  # fmt: skip
    shown = dev.esker("configs", "describe", "--entity-type", "topics", "--entity-name", "t")
    assert "retention.bytes" in shown
    assert "exists" in dev.esker("topics", "create", "--topic", "t", code=1)
    assert dev.esker("topics", "delete", "--topic", "t") == "Deleted topic t.\n"
    assert "no such topic" in dev.esker("topics", "describe", "--topic", "t", code=1)


def test_the_brokers_and_quorum_commands_accept_the_address_of_a_broker(dev: Dev) -> None:
    (broker,) = as_json(dev, "brokers", "list")["brokers"]
    assert broker["id"] == 101
    assert "2000" in dev.esker("brokers", "unregister", "--id", "2000", code=1)
    quorum = as_json(dev, "quorum", "describe")
    voters = [one["nodeId"] for one in quorum["replicas"] if one["status"] != "Observer"]
    assert sorted(voters) == [1, 2, 3]
    assert "LeaderId" in dev.esker("quorum", "describe")
    assert "Observer" in dev.esker("quorum", "describe", "--replication")
    other = ("quorum", "describe", "--group", "__diskless-metadata-0")
    assert "ask with --bootstrap-controller" in dev.esker(*other, code=1)


def test_the_diskless_and_dump_log_commands_describe_and_verify_objects_through_a_broker(
    dev: Dev,
) -> None:
    dev.esker("topics", "create", "--topic", "stored")
    dev.esker("produce", "--topic", "stored", text=numbers(100))
    (topic,) = as_json(dev, "diskless", "describe", "stored")["topics"]
    assert topic["partitions"][0]["highWatermark"] == 100
    found = [
        path for path in (dev.directory / "objects").rglob("[0-9]*")
        if path.is_file() and topic["topicId"] in dev.esker("dump-log", str(path))
    ]  # fmt: skip
    assert found
    key = str(found[0].relative_to(dev.directory / "objects"))
    assert f"ObjectId:               {found[0].name}" in dev.esker("diskless", "object", key)
    for name in (key, found[0].name, str(found[0])):  # all that a broker is needed for, it tells
        said = dev.esker("dump-log", "--verify", name)
        assert said.startswith("sound"), said
        assert "as its coordinator has it: " in said
    assert "no object ends in" in dev.esker("dump-log", "--verify", "999999", code=2)


def test_chunks_create_starts_a_chunk_at_the_partitions_high_watermark(
    dev: Dev, tmp_path: Path
) -> None:
    dev.esker("topics", "create", "--topic", "cut")
    dev.esker("produce", "--topic", "cut", text=numbers(10))
    file = tmp_path / "create.json"
    entry = {"topic": "cut", "partition": 0, "replicas": [101]}
    file.write_text(json.dumps({"partitions": [entry]}))
    words = ("chunks", "create", "--create-chunk-json-file", str(file))
    assert dev.esker(*words) == "cut-0: a chunk begins at the high watermark\n"
    (topic,) = as_json(dev, "topics", "describe", "--topic", "cut")["topics"]
    assert [one["startOffset"] for one in topic["partitions"][0]["chunks"]] == [0, 10]


def test_a_command_given_both_broker_and_controller_addresses_exits_with_a_usage_error() -> None:
    for words in (["topics", "list"], ["quorum", "describe"], ["diskless", "describe"]):
        both = ["--bootstrap-controller", "h:1", "--bootstrap-server", "h:2"]
        ran = runner.invoke(app, [*words, *both], env={"COLUMNS": "200"})
        assert ran.exit_code == 2
        assert "exclude each other" in ran.stderr


def test_the_default_bootstrap_server_is_the_broker_of_esker_dev() -> None:
    assert target(None, None) == target(None, "127.0.0.1:9092")
    for wrong in ("", "PLAINTEXT://127.0.0.1:9092"):  # an empty variable is not nobody
        with pytest.raises(BadParameter, match="is not HOST:PORT"):
            target(None, wrong)


def test_a_command_refuses_a_topic_name_that_is_not_utf_8_in_one_line(dev: Dev) -> None:
    words = [b"topics", b"create", b"--topic", b"caf\xe9", b"--bootstrap-server"]
    at = f"{HOST}:{dev.port}".encode()
    ran = subprocess.run(
        [sys.executable, "-m", "esker", *words, at],
        capture_output=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (2, b"esker: 'caf\\udce9' is not UTF-8\n")


# --- produce and consume ------------------------------------------------------------------------


def test_the_produce_and_consume_commands_transfer_lines_with_every_codec(dev: Dev) -> None:
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        topic = f"codec-{codec}"
        dev.esker("produce", "--topic", topic, "--compression", codec, text=numbers(300))
        words = ("consume", "--topic", topic, "--from-beginning", "--until-end")
        assert dev.esker(*words) == numbers(300)


def test_the_produce_command_sends_equal_keys_to_one_partition(dev: Dev) -> None:
    dev.esker("topics", "create", "--topic", "keyed", "--partitions", "3")
    text = "".join(f"k{number % 5}={number}\n" for number in range(50))
    dev.esker("produce", "--topic", "keyed", "--key-separator", "=", text=text)
    read = dev.esker("consume", "--topic", "keyed", "--from-beginning", "--until-end", "--json")
    records = [json.loads(line) for line in read.splitlines()]
    assert len(records) == 50
    for key in {record["key"] for record in records}:
        mine = [record for record in records if record["key"] == key]
        assert len({record["partition"] for record in mine}) == 1
        assert [int(one["value"]) for one in mine] == sorted(int(one["value"]) for one in mine)
    assert "no '='" in dev.esker(
        "produce", "--topic", "keyed", "--key-separator", "=", text="nothing\n", code=1
    )


def test_the_produce_command_writes_a_file_with_headers_to_one_partition(
    dev: Dev, tmp_path: Path
) -> None:
    dev.esker("topics", "create", "filed", "--partitions", "3")
    (tmp_path / "lines").write_text("a=1\nb=2\n")
    words = ("produce", "filed", "--file", str(tmp_path / "lines"), "--partition", "2")
    dev.esker(*words, "--header", "from=file", "--headers", "x=", "--key-separator", "=")
    read = ("consume", "filed", "--from-beginning", "--until-end")
    shown = dev.esker(*read, "--output", "%t/%p %k=%s %h;")
    assert shown == "filed/2 a=1 from=file,x=;filed/2 b=2 from=file,x=;"
    assert dev.esker(*read, "--output", "raw") == "12"
    assert dev.esker(*read, "--output", "json") == dev.esker(*read, "--json")
    assert "filed has no partition 9" in dev.esker(*words[:4], "--partition", "9", code=1)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("produce", "t", "--header", "x"), "--header: 'x' is not KEY=VALUE"),
        (("produce", "t", "--file", "away"), "away: No such file or directory"),
        (("produce", "t", "--file", "."), ".: Is a directory"),
        (("consume", "t", "--output", "xml"), "--output: 'xml' is neither json, raw nor a format"),
        (("consume", "t", "--output", "%s%x"), "--output: '%x' has no meaning: known are %s"),
        (("consume", "t", "--output", "raw", "--json"), "--output: excludes --key-separator"),
        (("consume", "t", "--json", "--key-separator", ":"), "--key-separator: excludes --json"),
        (("consume", "t", "--offset", str(2**63)), "less than or equal to 9223372036854775807"),
        (("consume", "t", "--timestamp", str(2**63)), "less than or equal to 9223372036854775807"),
    ],
)
def test_the_produce_and_consume_commands_refuse_invalid_options_before_they_connect(
    words: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = runner.invoke(app, words, env={"COLUMNS": "250"})
    assert ran.exit_code in (1, 2)
    assert says in ran.stderr


def test_the_consume_command_starts_at_the_given_offset_or_time(dev: Dev) -> None:
    dev.esker("produce", "--topic", "begin", text=numbers(10))
    time.sleep(0.01)  # of the wall clock: what follows is later by some milliseconds
    now_ms = int(time.time() * 1000)
    dev.esker("produce", "--topic", "begin", "--acks", "1", text="late\n")
    read = ("consume", "--topic", "begin", "--until-end")
    assert dev.esker(*read, "--offset", "9") == "9\nlate\n"
    assert dev.esker(*read, "--offset", "-2") == "9\nlate\n"
    assert dev.esker(*read, "--timestamp", str(now_ms)) == "late\n"
    assert dev.esker(*read, "--from-beginning", "--max-messages", "3") == numbers(3)
    assert dev.esker(*read) == "", "from now on, and that is the end"
    assert "beyond its end" in dev.esker(*read[:-1], "--offset", "99", code=1)
    assert "no such topic: nowhere" in dev.esker("consume", "--topic", "nowhere", code=1)
    for start in (("--from-beginning",), ("--offset", "0")):
        words = ("consume", "--topic", "begin", "--partition", "7", *start)
        assert "begin has no partition 7: its partitions are" in dev.esker(*words, code=1)


def test_the_consume_command_resumes_a_group_at_its_committed_offsets(dev: Dev) -> None:
    dev.esker("produce", "--topic", "shared", text=numbers(20))
    words = ("consume", "--topic", "shared", "--group", "g", "--from-beginning")
    assert dev.esker(*words, "--max-messages", "5") == numbers(5)
    assert dev.esker(*words, "--max-messages", "3") == "5\n6\n7\n"
    assert "g" in dev.esker("groups", "list").split()
    found = as_json(dev, "groups", "describe", "--group", "g")
    assert (found["state"], found["members"]) == ("Empty", [])
    (partition,) = found["partitions"]
    assert (partition["committed"], partition["endOffset"], partition["lag"]) == (8, 20, 12)
    assert "12" in dev.esker("groups", "describe", "--group", "g")
    assert "no such group: nobody" in dev.esker("groups", "describe", "--group", "nobody", code=1)
    assert dev.esker(*words, "--until-end").splitlines()[-1] == "19"


def test_ctrl_c_makes_the_consume_command_commit_its_offsets_and_leave_its_group(dev: Dev) -> None:
    dev.esker("produce", "--topic", "endless", text=numbers(20))
    words = ("consume", "--topic", "endless", "--group", "leaver", "--from-beginning")
    with subprocess.Popen(
        [sys.executable, "-m", "esker", *words, "--bootstrap-server", f"{HOST}:{dev.port}"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        read = [process.stdout.readline() for _ in range(20)]
        (member,) = as_json(dev, "groups", "describe", "--group", "leaver")["members"]
        assert member["partitions"] == [{"topic": "endless", "partition": 0}]
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130
        assert process.stderr.read() == ""
    assert "".join(read) == numbers(20)
    found = as_json(dev, "groups", "describe", "--group", "leaver")
    assert (found["state"], found["partitions"][0]["lag"]) == ("Empty", 0)


def test_two_consume_commands_share_a_topic_until_one_ends_and_the_other_reads_all(
    dev: Dev,
) -> None:
    dev.esker("topics", "create", "--topic", "pair", "--partitions", "2")
    at = ["--bootstrap-server", f"{HOST}:{dev.port}"]
    words = ["consume", "--topic", "pair", "--group", "pair", "--from-beginning", "--json", *at]
    command = [sys.executable, "-m", "esker", *words]
    keyed = "".join(f"k{number}:{number}\n" for number in range(20))
    write = ("produce", "--topic", "pair", "--key-separator", ":")

    def shares() -> list[int]:
        return [len(member["partitions"]) for member in described(dev, "pair")["members"]]

    def of(text: str) -> list[tuple[int, str]]:
        found = [json.loads(line) for line in text.splitlines()]
        return [(one["partition"], one["value"]) for one in found]

    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    second = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: shares() == [1, 1], "each has a partition", state=shares)
        dev.esker(*write, text=keyed)
        wait_until(lambda: lag(dev) == 0, "all is read", state=lambda: lag(dev))
        second.send_signal(signal.SIGINT)
        theirs = of(second.communicate(timeout=DEADLINE_S)[0])
        wait_until(lambda: shares() == [2], "one has both", state=shares)
        dev.esker(*write, text=keyed.replace(":", ":again "))
        wait_until(lambda: lag(dev) == 0, "all is read", state=lambda: lag(dev))
        first.send_signal(signal.SIGINT)
        ours = of(first.communicate(timeout=DEADLINE_S)[0])
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()
    assert {partition for partition, _ in theirs} in ({0}, {1})
    expected = [str(n) for n in range(20)] + [f"again {n}" for n in range(20)]
    assert sorted(value for _, value in ours + theirs) == sorted(expected)


def described(dev: Dev, group: str) -> Any:
    """What a group is, which may not be there yet."""
    at = ["--bootstrap-server", f"{HOST}:{dev.port}"]
    ran = runner.invoke(app, ["groups", "describe", "--group", group, "--json", *at])
    return json.loads(ran.stdout) if ran.exit_code == 0 else {"members": [], "partitions": []}


def lag(dev: Dev) -> int:
    lags = [one["lag"] for one in described(dev, "pair")["partitions"]]
    return -1 if None in lags or len(lags) < 2 else sum(lags)


def test_the_groups_delete_command_deletes_a_group_without_members(dev: Dev) -> None:
    dev.esker("produce", "--topic", "left", text=numbers(3))
    at = ("--bootstrap-server", f"{HOST}:{dev.port}")
    words = ("consume", "--topic", "left", "--group", "leavers", "--from-beginning")
    delete = ("groups", "delete", "--group", "leavers")
    with subprocess.Popen(
        [sys.executable, "-m", "esker", *words, *at], stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.read(6) == numbers(3).encode()
        assert "group leavers has members" in dev.esker(*delete, code=1)
        reader.send_signal(signal.SIGINT)
        assert reader.wait(DEADLINE_S) == 130
    assert dev.esker(*delete) == "Deleted group leavers.\n"
    assert "leavers" not in dev.esker("groups", "list").split()
    assert "no such group: leavers" in dev.esker(*delete, code=1)


def test_the_reset_offsets_command_prints_new_offsets_and_commits_them_only_with_execute(
    dev: Dev, tmp_path: Path
) -> None:
    dev.esker("produce", "reset", text=numbers(20))
    dev.esker("consume", "reset", "--group", "rewind", "--from-beginning", "--max-messages", "9")
    words = ("groups", "reset-offsets", "rewind")
    shown = as_json(dev, *words, "--all-topics", "--shift-by", "-4")
    row = {"group": "rewind", "topic": "reset", "partition": 0, "committed": 9, "newOffset": 5}
    assert shown == {"groups": ["rewind"], "executed": False, "partitions": [row]}
    assert as_json(dev, *words, "--all-topics", "--shift-by", "-4") == shown, "nothing is committed"
    plan = dev.esker(*words, "--topic", "reset:0", "--to-earliest", "--export")
    assert plan == "reset,0,0\n"
    (tmp_path / "plan.csv").write_text(plan)
    assert "NewOffset" in dev.esker(*words, "--from-file", str(tmp_path / "plan.csv"), "--execute")
    read = ("consume", "reset", "--group", "rewind", "--until-end")
    assert dev.esker(*read) == numbers(20)
    fresh = ("groups", "reset-offsets", "--group", "fresh", "--topic", "reset", "--execute")
    assert as_json(dev, *fresh, "--to-latest")["partitions"][0]["newOffset"] == 20
    (partition,) = as_json(dev, "groups", "describe", "fresh")["partitions"]
    assert (partition["committed"], partition["lag"]) == (20, 0)
    assert "no such topic" in dev.esker(*words, "--topic", "away", "--to-latest", code=1)
    both = ("groups", "reset-offsets", "fresh", "rewind", "--topic", "reset")
    plan = dev.esker(*both, "--to-offset", "7", "--export", "--execute")
    assert plan == "fresh,reset,0,7\nrewind,reset,0,7\n"
    (tmp_path / "plan.csv").write_text(plan.replace("7", "8"))
    from_file = as_json(dev, *both[:4], "--from-file", str(tmp_path / "plan.csv"), "--execute")
    assert [(one["group"], one["newOffset"]) for one in from_file["partitions"]] == [
        ("fresh", 8), ("rewind", 8),
    ]  # fmt: skip
    every = as_json(dev, "groups", "reset-offsets", "--all-groups", "--all-topics", "--to-current")
    assert {"fresh", "rewind"} <= set(every["groups"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--to-latest",), "One of the reset scopes should be defined: --all-topics, --topic."),
        (("--all-topics", "--topic", "t", "--to-latest"), "--all-topics, --topic."),
        (("--all-topics",), "give one of --to-earliest, --to-latest"),
        (("--all-topics", "--to-latest", "--shift-by", "0"), "--to-latest and --shift-by exclude"),
        (("--all-topics", "--to-latest", "--dry-run", "--execute"), "exclude each other"),
        (("--all-topics", "--to-datetime", "now"), "--to-datetime: 'now' is not YYYY-MM-DD"),
        (("--topic", "t:x", "--to-latest"), "--topic: 't:x' is neither TOPIC nor"),
        (("--topic", "t", "--from-file", "plan"), "plan: No such file"),
        (("--all-groups", "--all-topics", "--to-latest"), "Either --all-groups or at least one"),
    ],
)
def test_the_reset_offsets_command_refuses_invalid_options_before_it_connects_to_a_broker(
    words: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = runner.invoke(app, ["groups", "reset-offsets", "g", *words], env={"COLUMNS": "250"})
    assert ran.exit_code in (1, 2)
    assert says in ran.stderr


def test_the_records_delete_command_moves_the_log_start_of_the_named_partitions(
    dev: Dev, tmp_path: Path
) -> None:
    dev.esker("topics", "create", "cropped", "--partitions", "2")
    text = "".join(f"k{number}:{number}\n" for number in range(20))
    dev.esker("produce", "cropped", "--key-separator", ":", text=text)
    ends = as_json(dev, "diskless", "describe", "cropped")["topics"][0]["partitions"]
    words = ("records", "delete", "cropped", "--partition", "0", "--before-offset")
    (row,) = as_json(dev, *words, "3")["partitions"]
    assert row == {"topic": "cropped", "partition": 0, "lowWatermark": 3, "error": None}
    assert "cropped-0: refused: OFFSET_OUT_OF_RANGE" in dev.esker(*words, "1000", code=1)
    assert "has no partition 7" in dev.esker(
        "records", "delete", "cropped", "--partition", "7", "--before-offset", "1", code=1
    )
    file = tmp_path / "offsets.json"
    entries = [{"topic": "cropped", "partition": number, "offset": -1} for number in (0, 1)]
    file.write_text(json.dumps({"partitions": entries, "version": 1}))
    deleted = as_json(dev, "records", "delete", "--offset-json-file", str(file))["partitions"]
    assert [one["lowWatermark"] for one in deleted] == [one["highWatermark"] for one in ends]
    assert dev.esker("consume", "cropped", "--from-beginning", "--until-end") == ""


def test_the_records_delete_command_refuses_incomplete_or_contradictory_options(
    tmp_path: Path,
) -> None:
    file = tmp_path / "offsets.json"
    file.write_text("{}")
    for words, says in (
        (["t"], "give TOPIC, --partition and --before-offset, or --from-file"),
        (["t", "--from-file", str(file)], "--from-file: excludes TOPIC"),
        (
            ["t", "--partition", "0", "--before-offset", str(2**63)],
            "less than or equal to 9223372036854775807",
        ),
        (["--from-file", str(file)], f'--from-file: {file}: not {{"partitions"'),
    ):
        ran = runner.invoke(app, ["records", "delete", *words], env={"COLUMNS": "250"})
        assert ran.exit_code == 2
        assert says in ran.stderr


def test_the_cluster_describe_command_prints_quorum_brokers_and_features(
    dev: Dev,
) -> None:
    found = as_json(dev, "cluster", "describe")
    assert [broker["id"] for broker in found["brokers"]] == [101]
    assert found["controllerId"] == found["quorum"]["leaderId"]
    assert {voter["id"] for voter in found["quorum"]["voters"]} == {1, 2, 3}
    assert {one["name"] for one in found["features"]} >= {"esker.version", "metadata.version"}
    text = dev.esker("cluster", "describe")
    assert text.startswith(f"ClusterId:     {found['clusterId']}\nController:    ")
    endpoint = found["quorum"]["voters"][0]["endpoints"][0]
    at = f"{endpoint['host']}:{endpoint['port']}"
    ran = runner.invoke(app, ["cluster", "describe", "--json", "--bootstrap-controller", at])
    assert json.loads(ran.stdout)["brokers"] == found["brokers"]


def test_shell_completion_offers_the_names_of_a_clusters_topics_and_groups(dev: Dev) -> None:
    dev.esker("topics", "create", "completed-a")
    dev.esker("groups", "reset-offsets", "completer", "--topic", "completed-a", "--to-latest",
              "--execute")  # fmt: skip
    for command, partial, expected in (
        ("topics describe", "comp", "completed-a"),
        ("consume", "comp", "completed-a"),
        ("topics describe --topic", "comp", "completed-a"),
        ("groups describe", "comp", "completer"),
    ):
        words = f"esker {command} --bootstrap-server {HOST}:{dev.port} {partial}"
        if command.endswith("--topic"):
            words = f"esker topics describe --bootstrap-server {HOST}:{dev.port} --topic {partial}"
        variables = {
            "_ESKER_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        }
        ran = runner.invoke(app, env=variables, prog_name="esker")
        assert ran.stdout.split() == [expected], (words, ran.stdout, ran.stderr)


def test_the_consume_command_ends_without_an_error_when_its_output_pipe_closes(dev: Dev) -> None:
    dev.esker("produce", "--topic", "piped", text=numbers(5_000))
    ran = subprocess.run(
        f"{sys.executable} -m esker consume --topic piped --from-beginning "
        f"--bootstrap-server {HOST}:{dev.port} | head -n 1",
        shell=True, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert (ran.stdout, ran.stderr) == ("0\n", "")


def test_the_produce_command_sends_each_typed_line_before_its_input_ends(dev: Dev) -> None:
    dev.esker("topics", "create", "--topic", "typed")
    at = ("--bootstrap-server", f"{HOST}:{dev.port}")
    with subprocess.Popen(
        [sys.executable, "-m", "esker", "produce", "--topic", "typed", *at],
        stdin=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"first\n")
        process.stdin.flush()
        read = ("consume", "--topic", "typed", "--from-beginning", "--until-end")
        wait_until(lambda: dev.esker(*read) == "first\n", "the first line is there")
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130
        assert process.stderr.read() == b""


def test_the_consume_command_shows_a_counter_of_records_only_on_a_terminal(
    dev: Dev, tmp_path: Path
) -> None:
    dev.esker("produce", "--topic", "counted", text=numbers(500))
    at = ("--bootstrap-server", f"{HOST}:{dev.port}")
    read = ("consume", "--topic", "counted", "--from-beginning", "--until-end", *at)
    assert "500 records read" in on_a_terminal(*read, cwd=tmp_path, stream="stderr")
    assert on_a_terminal(*read, cwd=tmp_path) == numbers(500), "records alone, where they are seen"


def test_a_command_with_an_unreachable_controller_address_fails_at_once() -> None:
    at = ["--bootstrap-controller", f"{HOST}:1"]
    for words in (["topics", "list"], ["diskless", "describe"], ["quorum", "describe"]):
        started = time.monotonic()
        ran = runner.invoke(app, [*words, *at])
        assert ran.exit_code == 1
        assert f"no controller answers ({HOST}:1: " in ran.stderr
        assert "is a node running there?" in ran.stderr
        assert time.monotonic() - started < 5, "not after half a minute"


def test_an_environment_variable_names_the_brokers_if_no_option_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ESKER_BOOTSTRAP_SERVERS", "h:1,h:2")
    assert target(None, None) == target(None, "h:1,h:2")
    assert target(None, "other:3") == Target((Endpoint("other", 3),), brokers=True)
    assert target("c:9", None) == Target((Endpoint("c", 9),), brokers=False)
    ran = runner.invoke(
        app, ["produce", "--topic", "t"], env={"ESKER_BOOTSTRAP_SERVERS": "no-port"}
    )
    assert ran.exit_code == 2
    assert "is not HOST:PORT" in ran.stderr
