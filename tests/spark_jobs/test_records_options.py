"""The options of `esker_records`: those of Spark's Kafka source; what cannot be done is refused.

Source: docs/tables.md.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from coordinator.controller.authorizer import Operation, ResourceType
from coordinator.controller.guarding import Asked
from diskless.access.gate import GUARDS
from records.kafka_errors import ErrorCode
from records.rpc.batch_coordinator import FindBatchesRequest, FindBatchesResponse
from spark_jobs.source.option_error import OptionError
from spark_jobs.topics.coordinates import Found, FoundRun, Runs, TopicPartition, Wanted
from spark_jobs.topics.options import OPTIONS, Edge, Options, Times, parse_options
from spark_jobs.topics.planning import cut, split_ranges

DOCS = Path(__file__).parents[2] / "docs"
LEAST = {"kafka.bootstrap.servers": "b:9092", "subscribe": "orders", "store": "/objects"}


def parsed(**options: str) -> Options:
    return parse_options({**LEAST, **options})


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"subscribe": ""}, "give one of subscribe, subscribePattern and assign"),
        ({"subscribePattern": "x"}, "give one of subscribe, subscribePattern and assign"),
        ({"subscribe": ","}, "subscribe: no topic"),
        ({"subscribe": "", "subscribePattern": "("}, "subscribePattern: "),
        ({"subscribe": "", "assign": "[1]"}, "assign: not a JSON object"),
        ({"subscribe": "", "assign": '{"a":[-1]}'}, "assign: not of the form"),
        ({"store": ""}, "store: name the object store"),
        ({"store": "http://x"}, "store: .* is neither a directory nor"),
        ({"kafka.bootstrap.servers": ""}, "name the source of coordinates"),
        ({"kafka.bootstrap.servers": "b"}, "'b' is not HOST:PORT"),
        ({"logDir": "/logs"}, "logDir: give kafka.bootstrap.servers or logs, not both"),
        ({"kafka.security.protocol": "TLS"}, "kafka.security.protocol: 'TLS' is none of"),
        ({"kafka.ssl.provider": "x"}, "kafka.ssl.provider: has no effect here: leave it out"),
        (
            {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "PLAIN"},
            "kafka.sasl.jaas.config: ",
        ),
        (
            {"kafka.bootstrap.servers": "", "logDir": "/x", "kafka.security.protocol": "SSL"},
            "kafka.security.protocol: only brokers and controllers are asked with TLS or SASL",
        ),
        ({"startingOffsets": "now"}, "startingOffsets: no JSON"),
        ({"startingOffsets": '{"a":{"x":1}}'}, "startingOffsets: not of the form"),
        ({"endingOffsets": '{"a":{"0":-3}}'}, "endingOffsets: a-0: -3 is no offset"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp: 'yesterday' is no number"),
        ({"minPartitions": "0"}, "minPartitions: '0' is no number from 1 on"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss: 'maybe' is none of true, false"),
        ({"kafka.isolation.level": "dirty"}, "kafka.isolation.level: 'dirty' is none of"),
        ({"columns": "values"}, "columns: there is no values"),
        ({"topics": "orders"}, "topics: no such option"),
    ],
)
def test_impossible_options_are_refused_by_name(options: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        parsed(**options)


def test_passwords_of_brokers_are_not_printed_with_the_options() -> None:
    jaas = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="alice" password="hidden";'
    )
    options = parsed(
        **{
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": jaas,
        }
    )
    assert options.security["sasl.jaas.config"] == jaas
    assert "hidden" not in repr(options)


def test_options_are_those_of_sparks_kafka_source_in_any_case() -> None:
    options = parse_options({name.upper(): value for name, value in LEAST.items()})
    assert options.brokers == (("b", 9092),)
    assert options.topics == ("orders",)
    assert options.columns[-1] == "timestampType"
    assert (options.fail_on_data_loss, options.committed) == (True, False)
    assert options.starting is options.ending is None
    options = parsed(
        includeHeaders="true",
        failOnDataLoss="FALSE",
        startingOffsets="Earliest",
        endingOffsets='{"orders":{"0":7,"1":-1}}',
        **{"kafka.isolation.level": "read_committed"},
    )
    assert options.columns[-1] == "headers"
    assert (options.fail_on_data_loss, options.committed) == (False, True)
    assert options.starting is Edge.EARLIEST
    assert options.ending == {
        TopicPartition("orders", 0): 7,
        TopicPartition("orders", 1): Edge.LATEST,
    }


def test_a_time_of_all_partitions_comes_before_times_of_each_and_before_offsets() -> None:
    each = {"startingOffsetsByTimestamp": '{"orders":{"0":5}}', "startingOffsets": "earliest"}
    assert parsed(startingTimestamp="9", **each).starting == Times(9, {}, False)
    assert parsed(**each).starting == Times(None, {TopicPartition("orders", 0): 5}, False)
    assert parsed(endingTimestamp="9").ending == Times(9, {}, True)


def test_options_about_consumers_are_kept_for_a_warning() -> None:
    options = {"kafka.max.poll.records": "9", "fetchOffset.numRetries": "3", "groupIdPrefix": "x"}
    assert parsed(**options).ignored == tuple(options)


def test_paths_are_absolute_before_a_worker_sees_them() -> None:
    options = parse_options({**LEAST, "store": "objects"})
    assert options.store == str(Path("objects").absolute())
    logs = {"logDir": "logs", "subscribe": "orders", "store": "objects"}
    source = parse_options(logs).logs
    assert source is not None
    assert source.log_dir == Path("logs").absolute()


def test_every_option_is_documented() -> None:
    text = (DOCS / "tables.md").read_text()
    assert [name for name in OPTIONS if f"`{name}`" not in text] == []


def test_ranges_are_cut_into_as_many_parts_as_asked_for() -> None:
    wanted = [Wanted(TopicPartition("t", 0), 0, 1000), Wanted(TopicPartition("t", 1), 7, 8)]
    for most, least in ((None, None), (300, None), (None, 9), (300, 9), (1, None), (None, 5000)):
        parts = split_ranges(wanted, most, least)
        for one in wanted:
            mine = [part for part in parts if part.partition == one.partition]
            assert mine[0].first_offset == one.first_offset
            assert mine[-1].end_offset == one.end_offset
            assert all(a.end_offset == b.first_offset for a, b in pairwise(mine))
        sizes = [part.end_offset - part.first_offset for part in parts]
        assert max(sizes) <= (most or 1000)
        assert min(sizes) > 0
        assert len(parts) >= min(least or 0, 1001)


def test_what_is_found_is_cut_between_runs_unless_transactions_were_aborted() -> None:
    sizes = [3, 3, 9, 1, 1, 1, 4]
    runs = Runs.of(
        FoundRun("key", 0, size, 10 * index, 10 * index + 10, False, None)
        for index, size in enumerate(sizes)
    )
    found = Found(TopicPartition("t", 0), 5, 65, runs, ())
    pieces = list(cut(found, 6))
    assert [[run.size_bytes for run in piece.runs] for piece in pieces] == [
        [3, 3], [9], [1, 1, 1], [4],
    ]  # fmt: skip
    assert [(piece.first_offset, piece.end_offset) for piece in pieces] == [
        (5, 20), (20, 30), (30, 60), (60, 65),
    ]  # fmt: skip
    aborted = found._replace(aborted=((7, 5),))
    assert list(cut(aborted, 6)) == [aborted]
    empty = found._replace(runs=Runs.of([]))
    assert list(cut(empty, 6)) == [empty]


def test_a_client_that_may_not_read_a_topic_does_not_find_its_batches() -> None:
    class Reads:
        def allows(self, operation: Operation, kind: ResourceType, name: str) -> bool:
            assert (operation, kind) == (Operation.READ, ResourceType.TOPIC)
            return name == "open"

    ids = {name: UUID(int=number) for number, name in enumerate(("secret", "open"), 1)}
    image: Any = SimpleNamespace(topics={ids[name]: SimpleNamespace(name=name) for name in ids})
    topic = FindBatchesRequest.Topic
    request = FindBatchesRequest(
        topics=tuple(
            topic(
                topic_id=topic_id,
                partitions=(topic.Partition(partition_index=0, offset=0, max_bytes=1),),
            )
            for topic_id in (*ids.values(), UUID(int=9))
        ),
        max_bytes=1,
    )
    access: Any = Reads()
    guarded = GUARDS[1097](request, Asked(access, 0, image))
    assert guarded is not None
    left: Any = guarded.request
    assert [one.topic_id for one in left.topics] == [ids["open"], UUID(int=9)]
    answer: Any = guarded.finish(FindBatchesResponse(responses=()))
    (denied,) = answer.responses
    assert denied.topic_id == ids["secret"]
    assert denied.partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert denied.partitions[0].batches == ()
