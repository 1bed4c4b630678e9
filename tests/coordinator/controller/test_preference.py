"""The controller's choice of brokers that clients are not sent to, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from coordinator.controller import preference
from coordinator.controller.decide import Decision
from coordinator.controller.decide import brokers as decide_brokers
from coordinator.controller.preference import MAX_REASON, Preferences, least_preferred
from records.metadata import (
    BrokerRegistrationChangeRecord,
    FeatureLevelRecord,
    RegisterBrokerRecord,
)
from records.rpc.brokers import BrokerHeartbeatRequest
from tests.coordinator.controller.world import (
    BOOTSTRAP,
    World,
    log_batches,
    records_of,
    registration,
)
from tests.examples import seeds

LEVEL_2 = (*BOOTSTRAP, FeatureLevelRecord(name="esker.version", feature_level=2))
FULL = "the object store failed: no space left"


class Brokers:
    """A controller and brokers that heartbeat every two seconds, some of them unready."""

    def __init__(self, *ids: int, bootstrap: Any = LEVEL_2) -> None:
        self.world = World(bootstrap=bootstrap).elect()
        self.epochs = dict(zip(ids, self.world.register(*ids), strict=True))
        self.unready: dict[int, str] = {}
        self.silent: set[int] = set()

    def beat(self, broker_id: int) -> None:
        self.world.ask(
            BrokerHeartbeatRequest(
                broker_id=broker_id,
                broker_epoch=self.epochs[broker_id],
                current_metadata_offset=self.world.log.end_offset,
                want_fence=False,
                want_shut_down=False,
                unready_reason=self.unready.get(broker_id),
            )
        )

    def pass_s(self, seconds: float) -> None:
        for _ in range(round(seconds * 2)):
            for broker_id in self.epochs:
                if broker_id not in self.silent:
                    self.beat(broker_id)
            self.world.pass_ms(500, tick_ms=100)
            self.check()

    def check(self) -> None:
        """At least half of the serving brokers are preferred, by the tick after a fencing."""
        if self.is_half_preferred():
            return
        self.world.pass_ms(100, tick_ms=100)
        assert self.is_half_preferred(), f"{self.preferred}, without {self.fenced}"

    def is_half_preferred(self) -> bool:
        serving = set(preference.serving_brokers(self.world.image))
        return 2 * len(self.preferred & serving) >= len(serving)

    @property
    def preferred(self) -> set[int]:
        """The brokers that placement names, fenced ones included."""
        image = self.world.image
        return {
            number for number in image.brokers if preference.is_preferred(image.brokers[number])
        }

    @property
    def fenced(self) -> set[int]:
        image = self.world.image
        return {number for number in image.brokers if image.brokers[number].fenced}


def test_a_broker_that_is_unready_for_ten_seconds_is_not_preferred_and_not_fenced() -> None:
    cluster = Brokers(1, 2, 3)
    cluster.unready[2] = FULL
    cluster.pass_s(9)
    assert cluster.preferred == {1, 2, 3}
    cluster.pass_s(2)
    assert cluster.preferred == {1, 3}
    assert not cluster.fenced
    assert cluster.world.image.brokers[2].unpreferred_reason == FULL
    assert cluster.world.image.brokers[2].broker_epoch == cluster.epochs[2]


def test_a_broker_that_is_ready_for_thirty_seconds_is_preferred_again() -> None:
    cluster = Brokers(1, 2, 3)
    cluster.unready[2] = FULL
    cluster.pass_s(12)
    cluster.unready.clear()
    cluster.pass_s(20)
    cluster.unready[2] = FULL
    cluster.pass_s(1)  # the grace begins anew
    cluster.unready.clear()
    cluster.pass_s(29)
    assert cluster.preferred == {1, 3}
    cluster.pass_s(2)
    assert cluster.preferred == {1, 2, 3}


def test_a_short_object_store_fault_does_not_change_a_brokers_preference() -> None:
    cluster = Brokers(1, 2, 3)
    end = cluster.world.log.end_offset
    for _ in range(5):
        cluster.unready = dict.fromkeys((1, 2, 3), FULL)
        cluster.pass_s(9)
        cluster.unready.clear()
        cluster.pass_s(1)
    assert cluster.world.log.end_offset == end


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8])
def test_half_of_the_brokers_stay_preferred_if_all_brokers_are_unready(count: int) -> None:
    cluster = Brokers(*range(1, count + 1))
    cluster.unready = dict.fromkeys(cluster.epochs, FULL)
    cluster.pass_s(30)
    assert len(cluster.preferred) == least_preferred(count)


def test_the_controller_changes_the_preference_of_at_most_one_broker_per_second() -> None:
    cluster = Brokers(*range(1, 9))
    cluster.unready = dict.fromkeys(range(1, 5), FULL)
    cluster.pass_s(10)
    before = len(cluster.preferred)
    for _ in range(6):
        cluster.pass_s(1)
        assert 0 <= before - len(cluster.preferred) <= 1
        before = len(cluster.preferred)
    assert cluster.preferred == {5, 6, 7, 8}


def test_an_unready_broker_is_preferred_again_at_once_if_too_few_brokers_are_preferred() -> None:
    cluster = Brokers(1, 2, 3, 4)
    cluster.unready = {1: FULL}
    cluster.pass_s(12)
    cluster.unready = {1: FULL, 2: FULL}
    cluster.pass_s(12)
    assert cluster.preferred == {3, 4}
    cluster.silent = {3, 4}
    cluster.pass_s(10)  # the sessions of 3 and 4 end
    assert cluster.fenced == {3, 4}
    assert cluster.preferred == {2, 3, 4}, "2 has been unready for a shorter time than 1"


def test_the_controller_prefers_a_broker_that_became_ready_before_an_unready_broker() -> None:
    cluster = Brokers(1, 2, 3, 4)
    cluster.unready = {1: FULL}
    cluster.pass_s(12)
    cluster.unready = {1: FULL, 2: FULL}
    cluster.pass_s(12)
    cluster.unready = {2: FULL}
    cluster.pass_s(1)
    cluster.silent = {3, 4}
    cluster.pass_s(10)
    assert cluster.preferred == {1, 3, 4}


def test_a_new_controller_restarts_the_grace_periods_of_unready_brokers() -> None:
    cluster = Brokers(1, 2, 3)
    cluster.unready[2] = FULL
    cluster.pass_s(8)
    cluster.world.depose()
    cluster.world.elect()
    cluster.pass_s(8)
    assert cluster.preferred == {1, 2, 3}
    cluster.pass_s(3)
    assert cluster.preferred == {1, 3}


def test_a_paused_controller_restarts_the_grace_periods_of_unready_brokers() -> None:
    cluster = Brokers(1, 2, 3)
    cluster.unready[2] = FULL
    cluster.pass_s(2)
    cluster.world.jump_ms(30_000)
    cluster.pass_s(8)
    assert cluster.preferred == {1, 2, 3}


def test_a_broker_that_registers_again_keeps_its_preference() -> None:
    cluster = Brokers(1, 2, 3)
    cluster.unready[2] = FULL
    cluster.pass_s(12)
    cluster.silent = {2}
    cluster.pass_s(10)
    answer = cluster.world.ask(registration(2, incarnation_id=registration(1).incarnation_id))
    assert answer.error_code == 0
    assert cluster.world.image.brokers[2].unpreferred_reason == FULL


def test_broker_preferences_survive_a_checkpoint() -> None:
    cluster = Brokers(1, 2, 3)
    cluster.unready[2] = FULL
    cluster.pass_s(12)
    before = records_of(cluster.world.image)
    cluster.world.take_checkpoint()
    cluster.world.restart()
    assert records_of(cluster.world.image) == before
    assert cluster.preferred == {1, 3}


def test_the_controller_writes_no_broker_preference_before_every_node_supports_the_record() -> None:
    cluster = Brokers(1, 2, 3, bootstrap=BOOTSTRAP)
    cluster.unready[2] = FULL
    end = cluster.world.log.end_offset
    cluster.pass_s(30)
    assert cluster.world.log.end_offset == end


def test_the_unreadiness_reason_in_a_cluster_log_record_has_a_bounded_length() -> None:
    cluster = Brokers(1, 2)
    cluster.unready[1] = "x" * 10_000
    cluster.pass_s(12)
    assert cluster.world.image.brokers[1].unpreferred_reason == "x" * MAX_REASON


def test_a_change_of_a_brokers_preference_is_one_record_without_a_change_of_fencing() -> None:
    cluster = Brokers(1, 2)
    cluster.unready[1] = FULL
    cluster.pass_s(12)
    (record,) = log_batches(cluster.world.log)[-1]
    assert record == BrokerRegistrationChangeRecord(
        broker_id=1, broker_epoch=cluster.epochs[1], unpreferred_reason=FULL
    )


SEEDS = seeds(20)


@pytest.mark.parametrize("seed", SEEDS)
def test_at_least_half_of_the_serving_brokers_stay_preferred_in_random_fault_sequences(
    seed: int,
) -> None:
    random = Random(seed)
    cluster = Brokers(*range(1, random.randrange(2, 7)))
    for _ in range(30):
        broker_id = random.choice(tuple(cluster.epochs))
        match random.randrange(4):
            case 0:
                cluster.unready[broker_id] = FULL
            case 1:
                cluster.unready.pop(broker_id, None)
            case 2:
                cluster.silent ^= {broker_id}
            case 3:
                cluster.world.depose()
                cluster.world.elect()
        cluster.pass_s(random.choice((0.5, 3, 11)))
    cluster.unready.clear()
    cluster.silent.clear()
    cluster.pass_s(31 + len(cluster.epochs))
    assert cluster.preferred == set(cluster.epochs)


# --- mutants -------------------------------------------------------------------------------------


def fences_instead(patch: pytest.MonkeyPatch) -> None:
    """An unready broker is fenced."""

    def change(context: Any, preferences: Preferences, now_ms: int) -> Any:
        changes = preferences.choose(context.image, now_ms)
        if changes:
            preferences.note_changes(changes, now_ms)
        records = tuple(
            decide_brokers._change(
                context.image.brokers[found.broker_id], fenced=bool(found.reason), leaving=False
            )
            for found in changes
        )
        return Decision(records, tuple(changes))

    patch.setattr("coordinator.controller.leader.change_preferences", change)


def prefers_no_half(patch: pytest.MonkeyPatch) -> None:
    """All brokers may be unpreferred."""
    patch.setattr(preference, "least_preferred", lambda _: 0)


def has_no_grace_before(patch: pytest.MonkeyPatch) -> None:
    """A broker is unpreferred as soon as it is unready."""
    patch.setattr(preference, "UNREADY_MS", 0)


def has_no_grace_after(patch: pytest.MonkeyPatch) -> None:
    """A broker is preferred again as soon as it is ready."""
    patch.setattr(preference, "READY_MS", 0)


def changes_many_at_once(patch: pytest.MonkeyPatch) -> None:
    """All changes that are due are made in one second."""
    patch.setattr(preference, "PAUSE_MS", 0)


def keeps_the_reports_of_a_former_leadership(patch: pytest.MonkeyPatch) -> None:
    """A new leader goes on with what it saw as a former one."""
    patch.setattr(Preferences, "begin", lambda _self, _now_ms: None)


def writes_at_every_level(patch: pytest.MonkeyPatch) -> None:
    """A preference is written before every node reads it."""
    patch.setattr("coordinator.controller.leader.may_write_preference", lambda _: True)
    patch.setattr(preference, "may_write_preference", lambda _: True)


def forgets_at_registration(patch: pytest.MonkeyPatch) -> None:
    """A broker that registers again is preferred."""
    plain: Any = RegisterBrokerRecord

    class Forgetful:
        BrokerEndpoint, BrokerFeature = plain.BrokerEndpoint, plain.BrokerFeature

        def __new__(cls, **fields: Any) -> Any:
            return plain(**(fields | {"unpreferred_reason": ""}))

    patch.setattr(f"{decide_brokers.__name__}.RegisterBrokerRecord", Forgetful)


MUTANTS: list[tuple[Callable[[pytest.MonkeyPatch], None], Callable[[], None]]] = [
    (
        fences_instead,
        test_a_broker_that_is_unready_for_ten_seconds_is_not_preferred_and_not_fenced,
    ),
    (
        prefers_no_half,
        lambda: test_half_of_the_brokers_stay_preferred_if_all_brokers_are_unready(3),
    ),
    (has_no_grace_before, test_a_short_object_store_fault_does_not_change_a_brokers_preference),
    (has_no_grace_after, test_a_broker_that_is_ready_for_thirty_seconds_is_preferred_again),
    (
        changes_many_at_once,
        test_the_controller_changes_the_preference_of_at_most_one_broker_per_second,
    ),
    (
        keeps_the_reports_of_a_former_leadership,
        test_a_new_controller_restarts_the_grace_periods_of_unready_brokers,
    ),
    (
        writes_at_every_level,
        test_the_controller_writes_no_broker_preference_before_every_node_supports_the_record,
    ),
    (forgets_at_registration, test_a_broker_that_registers_again_keeps_its_preference),
]


@pytest.mark.parametrize(
    ("mutate", "claim"), MUTANTS, ids=[mutate.__name__ for mutate, _ in MUTANTS]
)
def test_the_broker_preference_tests_catch_each_mutant(
    mutate: Callable[[pytest.MonkeyPatch], None],
    claim: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claim()
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        claim()
