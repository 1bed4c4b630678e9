"""Quotas of controller mutations: buckets of tokens, strict and permissive charges."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.controller import mutation_quotas
from coordinator.controller.access import Client
from coordinator.controller.errors import RefusedError
from coordinator.controller.mutation_quotas import Charge, MutationQuotas, MutationWindow
from coordinator.controller.quotas import CONTROLLER_MUTATION_RATE as KEY
from raft.net.principal import USER, Principal
from records.kafka_errors import ErrorCode
from records.rpc.security import EnvelopeRequest
from records.rpc.topics import CreateTopicsRequest, CreateTopicsResponse
from tests.coordinator.controller.world import World, creation
from tests.interop.quota_table import ANN, ANYBODY, alter

CREATE, DELETE, GROW = 19, 20, 37
NEWEST = 100


def client(user: str = "ann", client_id: str = "app", version: int | None = NEWEST) -> Client:
    return Client(Principal(USER, user), "10.0.0.7", client_id, version)


class Quotas:
    """A controller whose user `ann` may create and delete ten partitions a second."""

    def __init__(self, samples: int = 2) -> None:
        self.world = World()
        self.world.elect()
        self.world.ask(alter((ANN, ((KEY, 10.0),))))
        self.quotas = MutationQuotas(
            MutationWindow(samples, 1),
            image=lambda: self.world.image,
            monotonic_ms=lambda: self.world.monotonic_ms,
        )

    def charge(self, **who: Any) -> Charge:
        charge = self.quotas.charge_of(CREATE, client(**who))
        assert charge is not None
        return charge


def test_a_strict_charge_overdraws_once_and_is_then_refused_until_the_debt_is_paid() -> None:
    quotas = Quotas()
    first = quotas.charge()
    first.take(25)  # of a burst of twenty
    assert first.throttle_ms() == 0
    second = quotas.charge()
    with pytest.raises(RefusedError) as refused:
        second.take(1)
    assert refused.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert second.throttle_ms() == 500
    quotas.world.jump_ms(300)
    assert second.throttle_ms() == 200, "what is left of it when the answer is sent"
    quotas.world.jump_ms(200)
    assert second.throttle_ms() == 0
    quotas.charge().take(1)


def test_a_permissive_charge_is_carried_out_and_says_how_long_to_wait() -> None:
    quotas = Quotas()
    charge = quotas.charge(version=5)
    charge.take(20)
    assert charge.throttle_ms() == 0
    charge.take(5)
    charge.take(5)
    assert charge.throttle_ms() == 1_000


@pytest.mark.parametrize(
    ("api_key", "version", "is_strict"),
    [
        (CREATE, 6, True),
        (CREATE, 5, False),
        (DELETE, 5, True),
        (DELETE, 4, False),
        (GROW, 3, True),
        (GROW, 2, False),
        (CREATE, None, True),
    ],
)
def test_clients_of_versions_that_know_the_error_are_refused(
    api_key: int, version: int | None, is_strict: bool
) -> None:
    quotas = Quotas().quotas
    for size in (30, 1):
        charge = quotas.charge_of(api_key, client(version=version))
        assert charge is not None
        if size == 1 and is_strict:
            with pytest.raises(RefusedError):
                charge.take(size)
        else:
            charge.take(size)


def test_a_bucket_saves_up_no_more_than_its_window() -> None:
    quotas = Quotas(samples=3)
    quotas.charge().take(1)
    quotas.world.jump_ms(1_000_000)
    quotas.charge().take(30)
    quotas.charge().take(1)
    with pytest.raises(RefusedError):
        quotas.charge().take(1)


def test_only_clients_with_a_quota_and_only_mutations_are_charged() -> None:
    quotas = Quotas()
    assert quotas.quotas.charge_of(CREATE, client("bob")) is None
    assert quotas.quotas.charge_of(32, client()) is None
    quotas.world.ask(alter((ANYBODY, ((KEY, 5.0),))))
    assert quotas.quotas.charge_of(CREATE, client("bob")) is not None
    quotas.charge(client_id="one").take(30)
    with pytest.raises(RefusedError):
        quotas.charge(client_id="two").take(1)
    quotas.charge(user="bob").take(1)


def test_what_is_kept_of_clients_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutation_quotas, "MAX_BUCKETS", 20)
    quotas = Quotas()
    quotas.world.ask(alter(((("client-id", None),), ((KEY, 5.0),))))
    for number in range(100):
        quotas.charge(user="bob", client_id=str(number)).take(1)
        assert len(quotas.quotas._buckets) <= 20


# --- requests -----------------------------------------------------------------------------------


def ask(world: World, request: Any, charge: Charge) -> Any:
    answers: list[Any] = []
    world.requests.ask(request, answers.append, None, charge)
    world.run()
    (answer,) = answers
    return answer


def test_each_topic_of_a_request_is_charged_and_refused_for_itself() -> None:
    quotas = Quotas()
    world = quotas.world
    world.register(1)
    topics = (*creation("a", 15).topics, *creation("b", 10).topics, *creation("c", 1).topics)
    request = CreateTopicsRequest(topics=topics, timeout_ms=30_000)
    answer = ask(world, request, quotas.charge())
    assert isinstance(answer, CreateTopicsResponse)
    codes = {topic.name: topic.error_code for topic in answer.topics}
    assert codes == {"a": 0, "b": 0, "c": ErrorCode.THROTTLING_QUOTA_EXCEEDED}
    assert answer.throttle_time_ms == 500
    assert "c" not in world.image.topic_ids


def test_a_decision_that_is_made_again_charges_once() -> None:
    """A proposal is refused if another record stands where it was to stand."""
    quotas = Quotas()
    quotas.world.register(1)
    submit = quotas.world.controller.submit

    def submit_twice(decide: Any, done: Any, **more: Any) -> None:
        def again(context: Any) -> Any:
            decide(context)
            return decide(context)

        submit(again, done, **more)

    quotas.world.controller.submit = submit_twice  # type: ignore[method-assign]
    answer = ask(quotas.world, creation("a", 15), quotas.charge())
    assert answer.topics[0].error_code == 0, answer
    quotas.charge().take(6)  # five are left
    with pytest.raises(RefusedError):
        quotas.charge().take(1)


def test_an_envelope_of_another_broker_has_no_version_of_the_client() -> None:
    """Java's brokers forward a request as the client sent it."""
    assert (
        EnvelopeRequest(
            request_data=b"", request_principal=b"", client_host_address=b""
        ).client_request_version
        == -1
    )
