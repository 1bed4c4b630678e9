"""Several brokers of one properties file: what each gets, and what is refused with a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from esker.settings.config import HostSettings, NodeSettings, load_host, parse_config, parse_host
from esker.settings.errors import ConfigError
from esker.settings.processes import DIVIDED

FOUR: Final = {
    "process.roles": "broker",
    "esker.broker.processes": "4",
    "esker.broker.ids": "101-103,107",
    "controller.quorum.voters": "1@10.0.0.1:9093",
    "listeners": "PLAINTEXT://0.0.0.0:9092",
    "advertised.listeners": "PLAINTEXT://host-a:{9101+i}",
    "log.dirs": "/var/lib/esker",
    "esker.storage.directory.path": "/objects",
}


def refusal(**changes: str | None) -> str:
    """The error of these settings with some changed; None takes one away. `__` is a dot."""
    found: dict[str, str] = dict(FOUR)
    for name, text in changes.items():
        key = name.replace("__", ".")
        found.pop(key, None)
        if text is not None:
            found[key] = text
    with pytest.raises(ConfigError) as caught:
        parse_host(found)
    return str(caught.value)


def test_each_process_has_its_own_id_port_and_directory() -> None:
    host = parse_host(FOUR)
    assert {name: str(place) for name, place in host.shared.items()} == {
        "PLAINTEXT": "0.0.0.0:9092"
    }
    own = [
        (broker.node_id, str(place.bind), str(place.advertised), str(broker.log_dir))
        for broker in host.brokers
        for place in broker.addresses.clients
    ]
    assert own == [
        (101, "0.0.0.0:9101", "host-a:9101", "/var/lib/esker/101"),
        (102, "0.0.0.0:9102", "host-a:9102", "/var/lib/esker/102"),
        (103, "0.0.0.0:9103", "host-a:9103", "/var/lib/esker/103"),
        (107, "0.0.0.0:9104", "host-a:9104", "/var/lib/esker/107"),
    ]


def test_advertised_addresses_may_be_written_out() -> None:
    several = {
        **FOUR,
        "esker.broker.processes": "2",
        "esker.broker.ids": "101,102",
        "listeners": "PLAINTEXT://0.0.0.0:9092,TWO://10.0.0.5:9092",
        "advertised.listeners": "PLAINTEXT://a:9105,TWO://in:{9101+i},PLAINTEXT://b:9109",
    }
    found = [
        [f"{place.name} {place.bind} {place.advertised}" for place in broker.addresses.clients]
        for broker in parse_host(several).brokers
    ]
    assert found == [
        ["PLAINTEXT 0.0.0.0:9105 a:9105", "TWO 10.0.0.5:9101 in:9101"],
        ["PLAINTEXT 0.0.0.0:9109 b:9109", "TWO 10.0.0.5:9102 in:9102"],
    ]


def test_memory_and_budgets_of_the_file_are_divided_by_its_processes() -> None:
    whole = parse_config(
        {
            **{key: text for key, text in FOUR.items() if not key.startswith("esker.broker")},
            "node.id": "101",
            "advertised.listeners": "PLAINTEXT://host-a:9101",
        }
    ).values
    for broker in parse_host(FOUR).brokers:
        parts = {key: broker.values[key] for key in DIVIDED}
        assert parts.pop("esker.append.objects.per.second") == 16  # of 64 with a directory
        assert parts == {key: whole[key] // 4 for key in parts}
    s3 = {"diskless.storage.class.name": "diskless.stores.s3.S3Storage"}
    bucket = {"esker.storage.s3.bucket": "b"}
    of_s3 = parse_host({**FOUR, **s3, **bucket}).brokers
    assert {one.values["esker.append.objects.per.second"] for one in of_s3} == {2}


def test_each_process_has_a_directory_of_its_own_for_local_segments_and_none_without_one() -> None:
    found = parse_host({**FOUR, "esker.cache.dir": "/cache"}).brokers
    assert [one.values["esker.cache.dir"] for one in found] == [
        f"/cache/{node_id}" for node_id in (101, 102, 103, 107)
    ]
    assert {one.values["esker.cache.dir"] for one in parse_host(FOUR).brokers} == {""}


def test_a_small_budget_leaves_each_process_something_and_zero_stays_zero() -> None:
    small = {"esker.append.objects.per.second": "2", "esker.append.runs.per.second": "0"}
    for broker in parse_host({**FOUR, **small}).brokers:
        assert broker.values["esker.append.objects.per.second"] == 1
        assert broker.values["esker.append.runs.per.second"] == 0


def test_impossible_processes_and_ids_are_refused_with_a_sentence() -> None:
    assert refusal(esker__broker__processes="0") == (
        "esker.broker.processes: 0 is not between 1 and 64"
    )
    assert refusal(esker__broker__ids="101-103") == (
        "esker.broker.ids: has 3 ids for 4 processes (esker.broker.processes): write one for each"
    )
    assert refusal(esker__broker__ids="101-103,102") == "esker.broker.ids: 102 stands twice"
    assert "ends before it begins" in refusal(esker__broker__ids="104-101")
    assert "neither ID nor FIRST-LAST" in refusal(esker__broker__ids="101..104")
    assert "must be set, because esker.broker.processes is" in refusal(esker__broker__ids=None)
    assert refusal(node__id="101").startswith("node.id: leave it out: esker.broker.ids has")
    assert "a controller is one process" in refusal(process__roles="broker,controller")
    voter = refusal(controller__quorum__voters="102@10.0.0.1:9093")
    assert voter == (
        "esker.broker.ids: 102 is a voter's (controller.quorum.voters): a broker needs its own"
    )


def test_overlapping_ports_are_refused_with_a_sentence() -> None:
    assert refusal(advertised__listeners="PLAINTEXT://host-a:{9090+i}") == (
        "advertised.listeners: broker 103 would bind 0.0.0.0:9092, and so does the bootstrap port "
        "of PLAINTEXT"
    )
    assert "has 1 addresses for 4 processes" in refusal(advertised__listeners="PLAINTEXT://a:9101")
    assert "has 0 addresses for 4 processes" in refusal(advertised__listeners=None)
    assert "is not in listeners" in refusal(advertised__listeners="EXTERNAL://a:{9101+i}")
    assert "'a:65536' is not HOST:PORT" in refusal(advertised__listeners="PLAINTEXT://a:{65533+i}")
    twice = "PLAINTEXT://a:1,PLAINTEXT://b:2,PLAINTEXT://c:2,PLAINTEXT://d:3"
    assert "so does broker 102 for PLAINTEXT" in refusal(advertised__listeners=twice)
    metrics = refusal(esker__metrics__listener="127.0.0.1:9104")
    assert metrics.endswith("would bind 0.0.0.0:9104, and so does esker.metrics.listener")


@pytest.mark.parametrize(
    ("controller", "is_refused"),
    [
        ("127.0.0.1:9103", True),  # on this machine, at the port of a child
        ("host-a:9103", True),  # this machine by its advertised name
        ("127.0.0.1:9092", True),  # the bootstrap port
        ("10.0.0.1:9103", False),  # another machine
    ],
)
def test_a_controllers_port_in_the_range_is_refused(controller: str, is_refused: bool) -> None:
    settings = {**FOUR, "controller.quorum.voters": f"1@{controller}"}
    if not is_refused:
        parse_host(settings)
        return
    with pytest.raises(ConfigError, match=f"has port .* of controller 1 at {controller}"):
        parse_host(settings)


def test_a_command_for_one_node_refuses_a_file_of_several() -> None:
    with pytest.raises(ConfigError, match="describes several brokers"):
        parse_config(FOUR)
    lone = {key: text for key, text in FOUR.items() if key != "esker.broker.processes"}
    with pytest.raises(ConfigError, match=r"or needs esker.broker.processes"):
        parse_config(lone)


def test_a_file_without_processes_is_one_node(tmp_path: Path) -> None:
    file = tmp_path / "node.properties"
    one = {
        **{key: text for key, text in FOUR.items() if not key.startswith("esker.broker")},
        "node.id": "101",
        "advertised.listeners": "PLAINTEXT://host-a:9101",
    }
    file.write_text("".join(f"{key}={text}\n" for key, text in one.items()))
    assert isinstance(load_host(file), NodeSettings)
    file.write_text("".join(f"{key}={text}\n" for key, text in FOUR.items()) + "log.dirs=/twice\n")
    loaded = load_host(file)
    assert isinstance(loaded, HostSettings)
    assert "log.dirs" in loaded.brokers[0].warnings[-1]
