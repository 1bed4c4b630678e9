"""Feature gates: which levels are finalized, which are refused and why, and what a node may write.

The sentences before the remedy are those of Apache Kafka 4.3; tests/interop/test_kafka_features.py
compares them with Kafka's own.
"""

from __future__ import annotations

import logging
from random import Random
from typing import Final, NamedTuple
from uuid import UUID

import pytest

from coordinator.batch.cluster_view import StaticView
from coordinator.controller.cluster_view import ImageView
from coordinator.controller.decide.features import FAILED_FOR_ALL, MAX_UPDATES
from coordinator.controller.machine import ControllerMachine
from coordinator.features import (
    Features,
    UnsupportedLevelError,
    has_transactions,
    may_write_format,
)
from coordinator.persistent_map import Map
from records.features import (
    ESKER_VERSION,
    IMPLIED,
    METADATA_VERSION,
    NEW_FORMATS,
    SUPPORTED,
    TRANSACTION_VERSION,
    new_levels,
)
from records.frame import encode_record
from records.kafka_errors import ErrorCode
from records.metadata import FeatureLevelRecord
from records.rpc import brokers as rpc
from records.rpc.base import Request
from tests.coordinator.controller.test_image import applied
from tests.coordinator.controller.world import (
    BOOTSTRAP,
    VOTERS,
    World,
    records_of,
    registration,
)

UPGRADE, SAFE, UNSAFE = 1, 2, 3
TEST: Final = "esker.test"  # a feature of three levels, without formats
LEVELS: Final = {**SUPPORTED, TEST: (0, 3)}

_Update = rpc.UpdateFeaturesRequest.FeatureUpdateKey


def update(
    *levels: tuple[str, int], kind: int = UPGRADE, validate_only: bool = False
) -> rpc.UpdateFeaturesRequest:
    return rpc.UpdateFeaturesRequest(
        feature_updates=tuple(
            _Update(feature=name, max_version_level=level, upgrade_type=kind)
            for name, level in levels
        ),
        validate_only=validate_only,
    )


def broker(broker_id: int, **levels: tuple[int, int]) -> rpc.BrokerRegistrationRequest:
    """Build a registration that supports metadata.version, and these besides."""
    feature = rpc.BrokerRegistrationRequest.Feature
    supported = {METADATA_VERSION: (15, 27)} | {_name(key): value for key, value in levels.items()}
    return registration(
        broker_id,
        features=tuple(
            feature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in supported.items()
        ),
    )


def controller(controller_id: int, **levels: tuple[int, int]) -> rpc.ControllerRegistrationRequest:
    feature = rpc.ControllerRegistrationRequest.Feature
    supported = {METADATA_VERSION: (15, 27)} | {_name(key): value for key, value in levels.items()}
    return rpc.ControllerRegistrationRequest(
        controller_id=controller_id,
        incarnation_id=UUID(int=controller_id),
        zk_migration_ready=False,
        listeners=(
            rpc.ControllerRegistrationRequest.Listener(
                name="C", host="h", port=1, security_protocol=0
            ),
        ),
        features=tuple(
            feature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in supported.items()
        ),
    )


def _name(key: str) -> str:
    return TRANSACTION_VERSION if key == "transactions" else f"esker.{key}"


def upgraded(*finalized: tuple[str, int]) -> World:
    """Return a cluster of 0.1 whose voters and broker 1 all run this release."""
    more = (FeatureLevelRecord(name=name, feature_level=level) for name, level in finalized)
    world = World(bootstrap=(*BOOTSTRAP, *more), features=LEVELS, voters=frozenset(VOTERS)).elect()
    for voter in VOTERS:
        assert world.ask(controller(voter, version=(1, 2), test=(0, 3))).error_code == 0
    assert world.ask(broker(1, version=(1, 2), test=(0, 3))).error_code == 0
    return world


# --- finalizing ---------------------------------------------------------------------------------


def test_the_controller_finalizes_a_feature_level_that_every_node_supports_by_one_record() -> None:
    world = upgraded()
    end = world.log.end_offset
    assert world.image.features.level(ESKER_VERSION) == 1
    answer = world.ask(update((ESKER_VERSION, 2)))
    assert (answer.error_code, answer.error_message) == (0, None)
    assert world.image.features.level(ESKER_VERSION) == 2
    assert world.log.end_offset == end + 1
    record = FeatureLevelRecord(name=ESKER_VERSION, feature_level=2)
    assert encode_record(record) in records_of(world.image)


def test_a_finalized_feature_level_survives_a_restart_and_a_checkpoint() -> None:
    world = upgraded()
    world.ask(update((ESKER_VERSION, 2)))
    world.restart()
    world.elect()
    assert world.image.features.level(ESKER_VERSION) == 2, "from the log"
    world.take_checkpoint()
    world.restart()
    assert world.image.features.level(ESKER_VERSION) == 2, "from the checkpoint"


def test_the_controller_checks_a_validate_only_feature_update_and_writes_no_record() -> None:
    world = upgraded()
    end = world.log.end_offset
    assert world.ask(update((ESKER_VERSION, 2), validate_only=True)).error_code == 0
    refused = world.ask(update((ESKER_VERSION, 4), validate_only=True))
    assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert world.log.end_offset == end
    assert world.image.features.level(ESKER_VERSION) == 1


def test_an_update_features_request_for_the_current_level_writes_no_record() -> None:
    world = upgraded()
    end = world.log.end_offset
    for kind in (UPGRADE, SAFE, UNSAFE):
        answer = world.ask(update((ESKER_VERSION, 1), (METADATA_VERSION, 27), kind=kind))
        assert answer.error_code == 0, answer
    assert world.log.end_offset == end


def test_update_features_makes_either_all_feature_updates_of_a_request_or_none() -> None:
    world = upgraded((TEST, 1))
    end = world.log.end_offset
    refused = world.ask(update((TEST, 2), (METADATA_VERSION, 99)))
    assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "feature metadata.version" in refused.error_message
    assert (world.image.features.level(TEST), world.log.end_offset) == (1, end)
    assert world.ask(update((TEST, 2), (ESKER_VERSION, 2))).error_code == 0
    assert (world.image.features.level(TEST), world.image.features.level(ESKER_VERSION)) == (2, 2)


def test_the_controller_lowers_and_removes_a_feature_level_that_introduced_no_format() -> None:
    world = upgraded((TEST, 3))
    assert world.ask(update((TEST, 1), kind=SAFE)).error_code == 0
    assert world.image.features.level(TEST) == 1
    assert world.ask(update((TEST, 0), kind=UNSAFE)).error_code == 0
    assert world.image.features.level(TEST) == 0
    assert TEST not in world.image.features.finalized


def test_the_downgrade_flag_of_version_0_requests_a_safe_downgrade() -> None:
    world = upgraded((TEST, 3))
    down = _Update(feature=TEST, max_version_level=1, allow_downgrade=True)
    assert world.ask(rpc.UpdateFeaturesRequest(feature_updates=(down,))).error_code == 0
    assert world.image.features.level(TEST) == 1


def test_the_controller_lowers_metadata_version_only_to_the_level_of_its_last_format_change() -> (
    None
):
    world = upgraded()
    assert world.ask(update((METADATA_VERSION, 23), kind=SAFE)).error_code == 0
    refused = world.ask(update((METADATA_VERSION, 22), kind=SAFE))
    assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "downgrade from 23 to 22" in refused.error_message


# --- levels that depend on others ---------------------------------------------------------------


def of_this_release(*finalized: tuple[str, int]) -> World:
    """Return a cluster of this release in which these levels are finalized."""
    more = (FeatureLevelRecord(name=name, feature_level=level) for name, level in finalized)
    world = World(bootstrap=(*BOOTSTRAP, *more), voters=frozenset(VOTERS)).elect()
    supported = {
        "version": SUPPORTED[ESKER_VERSION],
        "transactions": SUPPORTED[TRANSACTION_VERSION],
    }
    for voter in VOTERS:
        assert world.ask(controller(voter, **supported)).error_code == 0
    assert world.ask(broker(1, **supported)).error_code == 0
    return world


def test_the_controller_refuses_transactions_below_the_esker_version_of_their_formats() -> None:
    world = of_this_release((ESKER_VERSION, 3))
    end = world.log.end_offset
    answer = world.ask(update((TRANSACTION_VERSION, 1)))
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert answer.error_message == (
        f"{FAILED_FOR_ALL}Invalid update version 1 for feature transaction.version. "
        "transaction.version could not be set to 1 because it depends on esker.version level 4. "
        "Upgrade that feature first, or both in one request."
    )
    assert world.log.end_offset == end


def test_the_controller_finalizes_transactions_together_with_the_esker_version_they_need() -> None:
    world = of_this_release((ESKER_VERSION, 3))
    answer = world.ask(update((TRANSACTION_VERSION, 1), (ESKER_VERSION, 4)))
    assert (answer.error_code, answer.error_message) == (0, None)
    assert has_transactions(world.image.features)
    refused = world.ask(update((TRANSACTION_VERSION, 3)))
    assert "Local controller 101 only supports versions 0-2" in refused.error_message
    assert world.ask(update((TRANSACTION_VERSION, 0), kind=SAFE)).error_code == 0
    assert not has_transactions(world.image.features)


def test_a_new_cluster_has_transactions_unless_its_operator_chooses_levels_without_them() -> None:
    highest = {METADATA_VERSION: 27, ESKER_VERSION: 5, TRANSACTION_VERSION: 2}
    assert new_levels({}) == highest
    assert new_levels({TRANSACTION_VERSION: 0}) == highest | {TRANSACTION_VERSION: 0}
    assert new_levels({ESKER_VERSION: 3}) == {METADATA_VERSION: 27, ESKER_VERSION: 3}


# --- refusing -----------------------------------------------------------------------------------


class Refused(NamedTuple):
    """A request, and the message of its refusal after Kafka's first words."""

    request: rpc.UpdateFeaturesRequest
    message: str
    code: ErrorCode = ErrorCode.INVALID_UPDATE_VERSION


REFUSED: Final[dict[str, Refused]] = {
    "unknown feature": Refused(
        update(("no.such", 1)),
        "Invalid update version 1 for feature no.such. "
        "Local controller 101 does not support this feature.",
    ),
    "a feature that is not built": Refused(
        update(("group.version", 1)),
        "Invalid update version 1 for feature group.version. "
        "Local controller 101 does not support this feature.",
    ),
    "a level too high": Refused(
        update((METADATA_VERSION, 28)),
        "Invalid update version 28 for feature metadata.version. "
        "Local controller 101 only supports versions 15-27",
    ),
    "a level too low": Refused(
        update((METADATA_VERSION, 14), kind=SAFE),
        "Invalid update version 14 for feature metadata.version. "
        "Local controller 101 only supports versions 15-27",
    ),
    "metadata.version switched off": Refused(
        update((METADATA_VERSION, 0), kind=SAFE),
        "Invalid update version 0 for feature metadata.version. "
        "Local controller 101 only supports versions 15-27",
    ),
    "esker.version switched off": Refused(
        update((ESKER_VERSION, 0), kind=UNSAFE),
        "Invalid update version 0 for feature esker.version. "
        "Local controller 101 only supports versions 1-5",
    ),
    "a negative level": Refused(
        update((TEST, -1), kind=SAFE),
        "Invalid update version -1 for feature esker.test. "
        "A feature version cannot be less than 0.",
    ),
    "an upgrade that lowers": Refused(
        update((TEST, 1)),
        "Invalid update version 1 for feature esker.test. Can't downgrade the version of this "
        "feature without setting the upgrade type to either safe or unsafe downgrade.",
    ),
    "a downgrade that raises": Refused(
        update((TEST, 3), kind=SAFE),
        "Invalid update version 3 for feature esker.test. Can't downgrade to a newer version.",
    ),
    "a safe downgrade below a format": Refused(
        update((ESKER_VERSION, 1), kind=SAFE),
        "Unsupported esker.version downgrade from 2 to 1. Refusing to perform the requested "
        "downgrade because it might delete metadata information.",
    ),
    "an unsafe downgrade below a format": Refused(
        update((ESKER_VERSION, 1), kind=UNSAFE),
        "Unsupported esker.version downgrade from 2 to 1. Unsafe metadata downgrade is not "
        "supported in this version.",
    ),
    "an unknown type of upgrade": Refused(
        update((TEST, 2), kind=7),
        "Invalid update version 2 for feature esker.test. "
        "The controller does not support the given upgrade type.",
    ),
    "a name too long for an answer": Refused(
        update(("n" * 32_000, 1)),
        f"Invalid update version 1 for feature {'n' * 100}. "
        "Local controller 101 does not support this feature.",
    ),
    "a feature named twice": Refused(
        update((TEST, 3), (TEST, 2)), "esker.test is named twice.", ErrorCode.INVALID_REQUEST
    ),
    "no update": Refused(update(), "0 updates; there must be 1 to 64.", ErrorCode.INVALID_REQUEST),
    "too many updates": Refused(
        update(*((f"f-{index}", 1) for index in range(MAX_UPDATES + 1))),
        "65 updates; there must be 1 to 64.",
        ErrorCode.INVALID_REQUEST,
    ),
}


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_a_refused_feature_update_has_kafkas_message_and_writes_no_record(case: str) -> None:
    world = upgraded((TEST, 2), (ESKER_VERSION, 2))
    before, end = records_of(world.image), world.log.end_offset
    answer = world.ask(REFUSED[case].request)
    assert answer.error_message == FAILED_FOR_ALL + REFUSED[case].message
    assert answer.error_code == REFUSED[case].code
    assert not answer.results
    assert records_of(world.image) == before
    assert world.log.end_offset == end, "a refusal that writes"


def refusal(world: World) -> str:
    """Try to finalize esker.version 2, which must be refused and write nothing."""
    end = world.log.end_offset
    answer = world.ask(update((ESKER_VERSION, 2)))
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION, answer
    assert world.log.end_offset == end, "a refusal that writes"
    message: str = answer.error_message
    return message.removeprefix(
        f"{FAILED_FOR_ALL}Invalid update version 2 for feature esker.version. "
    )


def test_a_broker_of_the_former_release_blocks_a_feature_level_until_it_is_unregistered() -> None:
    world = upgraded()
    assert world.ask(broker(7)).error_code == 0
    assert refusal(world) == (
        "Broker 7 only supports versions 1-1. "
        "Upgrade that broker, or unregister it if it was removed for good."
    )
    (answer,) = world.unregister(7)
    assert answer.error_code == 0
    assert world.ask(update((ESKER_VERSION, 2))).error_code == 0


def test_a_voter_of_the_former_release_blocks_a_feature_level_until_it_registers_again() -> None:
    world = upgraded()
    assert world.ask(controller(VOTERS[1])).error_code == 0
    assert refusal(world) == (
        f"Controller {VOTERS[1]} only supports versions 1-1. "
        "Restart that controller at the version of Esker that the others have."
    )
    assert world.ask(controller(VOTERS[1], version=(1, 2))).error_code == 0
    assert world.ask(update((ESKER_VERSION, 2))).error_code == 0


def test_a_voter_that_never_registered_blocks_a_feature_level() -> None:
    world = World(voters=frozenset(VOTERS)).elect()
    for voter in VOTERS[:2]:
        assert world.ask(controller(voter, version=(1, 2))).error_code == 0
    assert refusal(world) == (
        f"controller {VOTERS[2]} has not registered, and may not support this feature. "
        "Start it, at this version of Esker."
    )
    assert world.ask(controller(VOTERS[2], version=(1, 2))).error_code == 0
    assert world.ask(update((ESKER_VERSION, 2))).error_code == 0


def test_the_registration_of_a_former_voter_blocks_no_feature_level() -> None:
    world = upgraded()
    assert world.ask(controller(199)).error_code == 0
    assert world.ask(update((ESKER_VERSION, 2))).error_code == 0


def test_the_controller_refuses_to_register_a_node_that_does_not_support_a_finalized_level() -> (
    None
):
    world = upgraded((ESKER_VERSION, 2))
    end = world.log.end_offset
    assert world.ask(broker(7)).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert world.ask(broker(7, version=(3, 4))).error_code == ErrorCode.UNSUPPORTED_VERSION
    answer = world.ask(controller(VOTERS[0]))
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert answer.error_message == (
        "Unable to register because the controller does not support finalized version 2 of "
        "esker.version. The controller wants a version between 1 and 1, inclusive."
    )
    assert world.log.end_offset == end, "a refusal that writes"
    assert world.ask(broker(7, version=(1, 2))).error_code == 0


def test_every_registered_node_supports_the_finalized_level_after_random_upgrades() -> None:
    reached = [finalized_by_chance(seed) for seed in range(20)]
    assert {1, 2} == set(reached), "chance must try the clusters on both sides"


def finalized_by_chance(seed: int) -> int:
    """Return the level that a cluster reaches, checking the invariants after each step.

    Nodes come with any range, leave, and updates of every kind arrive, over restarts.
    """
    random, highest = Random(seed), 1
    world = World(features=LEVELS, voters=frozenset(VOTERS)).elect()
    for _ in range(100):
        end = world.log.end_offset
        low, high = random.choice((1,) * 9 + (2,)), random.choice((1, 2, 2, 2, 2, 3))
        levels = {"version": (low, max(low, high)), "test": (0, random.randint(0, 3))}
        node = random.choice((1, 2, 3, *VOTERS))
        request: Request
        match random.randrange(8):
            case 0 | 1 | 2:
                request = controller(node, **levels) if node in VOTERS else broker(node, **levels)
            case 3:
                request = rpc.UnregisterBrokerRequest(broker_id=node)
            case 4:
                world.restart()
                world.elect()
                continue
            case _:
                change = random.choice((ESKER_VERSION, TEST)), random.randint(0, 3)
                kind, dry = random.choice((UPGRADE, SAFE, UNSAFE)), random.random() < 0.2
                request = update(change, kind=kind, validate_only=dry)
        answer = world.ask(request)
        if answer.error_code:
            assert world.log.end_offset == end, f"seed {seed}: a refusal that writes: {request}"
        image = world.image
        assert image.features.level(ESKER_VERSION) >= highest, f"seed {seed}: lowered"
        highest = image.features.level(ESKER_VERSION)
        supported = [member.features for member in image.brokers.values()]
        supported += [image.controllers[voter].features for voter in sorted(image.controllers)]
        for features in supported:
            (low, high), *_ = [
                (feature.min_supported_version, feature.max_supported_version)
                for feature in features
                if feature.name == ESKER_VERSION
            ]
            assert low <= highest <= high, f"seed {seed}: {highest} after {request}"
    return highest


# --- writing, and reading -----------------------------------------------------------------------


@pytest.mark.parametrize(("finalized", "allowed"), [(None, 1), (1, 1), (2, 2), (5, 5)])
def test_a_node_writes_a_new_format_only_once_its_feature_level_is_finalized(
    finalized: int | None, allowed: int
) -> None:
    recorded: Map[str, int] = Map()
    features = Features(recorded if finalized is None else recorded.set(ESKER_VERSION, finalized))
    for level in range(1, 7):
        assert may_write_format(features, level) == (level <= allowed)


def test_a_batch_coordinator_uses_the_feature_level_in_its_own_copy_of_the_cluster_log() -> None:
    world = upgraded()
    view = ImageView(lambda: world.image)
    assert not may_write_format(view.features(), 2)
    world.applier.paused = True  # this copy is behind
    world.send(update((ESKER_VERSION, 2)))
    world.run()
    assert not may_write_format(view.features(), 2)
    world.applier.paused = False
    world.applier.go_on()
    assert may_write_format(view.features(), 2)
    assert not may_write_format(StaticView().features(), 2), "without a cluster log"


def test_each_esker_version_that_adds_formats_is_above_the_level_of_unfinalized_clusters() -> None:
    """A level at or below it would open its gate on clusters that finalized nothing."""
    assert min(NEW_FORMATS[ESKER_VERSION]) > IMPLIED[ESKER_VERSION]
    assert IMPLIED[ESKER_VERSION] in SUPPORTED[ESKER_VERSION]


@pytest.mark.parametrize("level", [6, 32_767])
def test_a_state_machine_stops_at_an_unsupported_esker_version(level: int) -> None:
    machine = ControllerMachine()
    applied(machine, FeatureLevelRecord(name=ESKER_VERSION, feature_level=2))
    shown = []
    machine.listen(shown.append)
    with pytest.raises(UnsupportedLevelError, match=f"esker.version {level}.*supports 1 to 5"):
        applied(machine, FeatureLevelRecord(name=ESKER_VERSION, feature_level=level))
    assert [image.features.level(ESKER_VERSION) for image in shown] == [2], "it was shown"


def test_a_state_machine_accepts_unknown_features_and_higher_metadata_versions() -> None:
    """Apache Kafka's own log names them: share.version, and levels of later releases."""
    machine = ControllerMachine()
    applied(machine, FeatureLevelRecord(name="share.version", feature_level=1))
    applied(machine, FeatureLevelRecord(name=METADATA_VERSION, feature_level=30))
    assert machine.image.features.finalized == {
        "esker.version": 1,
        "metadata.version": 30,
        "share.version": 1,
    }


def test_each_node_logs_a_finalized_feature_level_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "coordinator.controller")
    world = upgraded()
    caplog.clear()
    world.ask(update((ESKER_VERSION, 2)))
    world.ask(broker(5, version=(1, 2)))
    lines = [line for line in caplog.messages if "action=finalize" in line]
    assert lines == [
        f"action=finalize feature=esker.version level=2 before=1 offset={world.image.offset - 1}"
    ]
    caplog.clear()
    world.machine.reset()
    assert not caplog.messages
