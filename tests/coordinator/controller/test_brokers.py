"""Broker registration and fencing (KIP-631) under clock jumps and leader changes."""

from __future__ import annotations

from uuid import UUID

import pytest

from coordinator.controller.leader import BATCH_RECORDS
from coordinator.controller.sessions import BrokerSessions
from records.kafka_errors import ErrorCode
from records.metadata import BrokerRegistrationChangeRecord, RegisterBrokerRecord
from records.rpc import brokers as rpc
from records.types import Offset
from tests.coordinator.controller.world import World, log_batches, registration

SESSION_MS = 9_000


@pytest.fixture
def world() -> World:
    return World().elect()


def fenced(world: World) -> dict[int, bool]:
    return {broker_id: broker.fenced for broker_id, broker in world.image.brokers.items()}


def test_a_new_broker_is_fenced_and_its_epoch_is_the_offset_of_its_registration_record(
    world: World,
) -> None:
    epoch = world.register(1, unfence=False)[0]
    assert fenced(world) == {1: True}
    record = log_batches(world.log)[-1][0]
    assert isinstance(record, RegisterBrokerRecord)
    assert record.broker_epoch == epoch == world.log.end_offset - 1


def test_a_broker_is_unfenced_once_it_has_read_its_registration(world: World) -> None:
    (epoch,) = world.register(1, unfence=False)

    def beat(read: int, **wants: bool) -> tuple[bool, bool]:
        answer = world.ask(
            rpc.BrokerHeartbeatRequest(
                broker_id=1,
                broker_epoch=epoch,
                current_metadata_offset=read,
                want_fence=wants.get("want_fence", False),
                want_shut_down=False,
            )
        )
        return answer.is_caught_up, answer.is_fenced

    assert beat(epoch - 1) == (False, True)
    assert beat(epoch, want_fence=True) == (True, True)
    assert beat(epoch) == (True, False)
    assert fenced(world) == {1: False}
    end = world.log.end_offset
    assert beat(epoch) == (True, False)
    assert world.log.end_offset == end, "a heartbeat that changes nothing writes nothing"
    assert beat(epoch, want_fence=True) == (True, True)
    assert fenced(world) == {1: True}


def test_the_controller_fences_a_broker_that_sends_no_heartbeat_when_its_session_expires(
    world: World,
) -> None:
    epoch_1, _ = world.register(1, 2)
    world.pass_ms(SESSION_MS - 1_000)
    world.beat(1, epoch_1)
    world.pass_ms(500)
    assert fenced(world) == {1: False, 2: False}
    world.pass_ms(1_000)
    assert fenced(world) == {1: False, 2: True}
    assert world.controller.fenced_brokers == 1
    world.pass_ms(SESSION_MS)
    assert fenced(world) == {1: True, 2: True}


def test_a_heartbeat_of_a_fenced_broker_unfences_the_broker(world: World) -> None:
    (epoch,) = world.register(1)
    world.pass_ms(SESSION_MS + 1_000)
    assert fenced(world) == {1: True}
    assert not world.beat(1, epoch).is_fenced
    assert fenced(world) == {1: False}


def test_a_new_controller_fences_no_broker_before_a_full_session_has_passed(world: World) -> None:
    world.register(1, 2, 3)
    for _ in range(5):
        world.depose()
        world.pass_ms(SESSION_MS - 1_000)
        world.elect()
        world.pass_ms(SESSION_MS - 1_000)
    assert fenced(world) == {1: False, 2: False, 3: False}
    world.pass_ms(1_500)
    assert fenced(world) == {1: True, 2: True, 3: True}


def test_a_jump_of_the_controllers_wall_clock_fences_no_broker(world: World) -> None:
    world.register(1)
    for jump in (10**9, -(10**10)):
        world.wall_ms += jump
        world.pass_ms(2_000)
    assert fenced(world) == {1: False}


def test_a_controller_that_was_paused_fences_no_broker_when_it_resumes(world: World) -> None:
    """SIGSTOP: the monotonic clock advances, and the heartbeats wait in the sockets."""
    (epoch,) = world.register(1)
    world.pass_ms(2_000)
    world.jump_ms(60_000)
    world.controller.tick()
    world.run()
    assert fenced(world) == {1: False}
    world.beat(1, epoch)
    world.pass_ms(SESSION_MS - 1_000)
    assert fenced(world) == {1: False}


def test_every_heartbeat_response_has_the_controllers_wall_clock_even_if_no_record_is_written(
    world: World,
) -> None:
    (epoch,) = world.register(1, unfence=False)
    for writes_record in (True, False, False):
        world.pass_ms(500)
        end_offset = world.log.end_offset
        assert world.beat(1, epoch).wall_clock_ms == world.wall_ms
        assert (world.log.end_offset > end_offset) == writes_record


class Link:
    """A connection on which a broker has sent its heartbeats."""

    closed = False


def test_the_controller_fences_a_killed_broker_two_heartbeats_after_its_connection_closes(
    world: World,
) -> None:
    (epoch,) = world.register(1)
    link = Link()
    for _ in range(6):
        world.pass_ms(500)
        world.beat(1, epoch, link)
    link.closed = True
    world.pass_ms(1_000)
    assert fenced(world) == {1: False}
    world.pass_ms(500)
    assert fenced(world) == {1: True}


@pytest.mark.parametrize("new_leader", [False, True])
def test_the_controller_fences_a_broker_early_if_its_last_heartbeat_wrote_a_record(
    world: World, new_leader: bool
) -> None:
    (epoch,) = world.register(1, unfence=False)
    if new_leader:
        world.depose()
        world.elect()
    link, end_offset = Link(), world.log.end_offset
    world.beat(1, epoch, link)
    assert world.log.end_offset > end_offset
    link.closed = True
    world.pass_ms(1_500)
    assert fenced(world) == {1: True}


def test_the_controller_fences_no_broker_that_reconnects_within_two_heartbeat_intervals(
    world: World,
) -> None:
    (epoch,) = world.register(1)
    for _ in range(5):
        world.pass_ms(3_000)
        link = Link()
        world.beat(1, epoch, link)
        link.closed = True
    world.pass_ms(SESSION_MS - 4_000)
    assert fenced(world) == {1: False}


def test_a_controller_pause_restarts_the_time_that_a_broker_has_to_reconnect(
    world: World,
) -> None:
    (epoch,) = world.register(1)
    link = Link()
    world.beat(1, epoch, link)
    link.closed = True
    world.pass_ms(500)
    world.jump_ms(60_000)
    world.controller.tick()
    world.run()
    assert fenced(world) == {1: False}
    world.beat(1, epoch, Link())
    world.pass_ms(SESSION_MS - 1_000)
    assert fenced(world) == {1: False}


def test_a_broker_session_shorter_than_a_controller_tick_expires() -> None:
    """A quarter of the session is less than a tick, and no tick counts as a pause."""
    sessions = BrokerSessions(timeout_ms=300)
    sessions.begin(0)
    sessions.record_heartbeat(1, 7, Offset(0))
    for now_ms in range(100, 900, 130):
        sessions.tick(now_ms)
    assert not sessions.is_alive(1, 7, fenced=False)


def test_a_controller_that_was_paused_notices_the_pause_before_its_first_tick() -> None:
    sessions = BrokerSessions(timeout_ms=SESSION_MS)
    sessions.begin(0)
    sessions.record_heartbeat(1, 7, Offset(0))
    sessions.tick(500)
    sessions.update_clock(50_000)  # a request comes first
    assert sessions.is_alive(1, 7, fenced=False)


def test_the_controller_refuses_a_broker_id_in_use_until_the_first_brokers_session_expires(
    world: World,
) -> None:
    world.register(1)
    twin = registration(1, incarnation_id=UUID(int=1))
    assert world.ask(twin).error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    world.pass_ms(SESSION_MS + 1_000)
    assert world.ask(twin).error_code == 0
    assert world.image.brokers[1].incarnation_id == UUID(int=1)


def test_a_new_controller_refuses_a_duplicate_broker_id_before_any_heartbeat(world: World) -> None:
    world.register(1)
    world.depose()
    world.elect()
    twin = registration(1, incarnation_id=UUID(int=1))
    assert world.ask(twin).error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION


def test_a_repeated_broker_registration_without_a_change_writes_no_record(world: World) -> None:
    (epoch,) = world.register(1)
    end = world.log.end_offset
    assert world.ask(registration(1)).broker_epoch == epoch
    assert world.log.end_offset == end
    answer = world.ask(registration(1, rack="r2"))
    assert answer.broker_epoch > epoch
    assert (world.image.brokers[1].rack, world.image.brokers[1].fenced) == ("r2", False)


def test_a_heartbeat_with_the_former_epoch_of_a_restarted_broker_gets_stale_broker_epoch(
    world: World,
) -> None:
    (epoch,) = world.register(1)
    world.pass_ms(SESSION_MS + 1_000)
    world.ask(registration(1, incarnation_id=UUID(int=1)))
    assert world.beat(1, epoch).error_code == ErrorCode.STALE_BROKER_EPOCH


def test_a_controlled_shutdown_waits_until_the_other_brokers_have_read_its_record(
    world: World,
) -> None:
    """KIP-841: clients are not sent to a broker that is about to stop."""
    epoch_1, epoch_2 = world.register(1, 2)
    assert not world.beat(1, epoch_1, want_shut_down=True).should_shut_down
    assert world.image.brokers[1].in_controlled_shutdown
    assert not world.beat(1, epoch_1, want_shut_down=True).should_shut_down, "2 does not know yet"
    world.beat(2, epoch_2)
    answer = world.beat(1, epoch_1, want_shut_down=True)
    assert (answer.should_shut_down, answer.is_fenced) == (True, True)
    assert fenced(world) == {1: True, 2: False}


def test_a_new_controller_continues_a_brokers_controlled_shutdown(world: World) -> None:
    epoch_1, epoch_2 = world.register(1, 2)
    world.beat(1, epoch_1, want_shut_down=True)
    world.depose()
    world.elect()
    assert not world.beat(1, epoch_1, want_shut_down=True).should_shut_down
    world.beat(2, epoch_2)
    assert world.beat(1, epoch_1, want_shut_down=True).should_shut_down


def test_a_broker_in_controlled_shutdown_may_register_again(world: World) -> None:
    (epoch_1,) = world.register(1)
    for _ in range(2):
        last = world.beat(1, epoch_1, want_shut_down=True)
    assert last.should_shut_down
    assert world.beat(1, epoch_1).is_fenced, "the way back is a registration"
    answer = world.ask(registration(1, incarnation_id=UUID(int=1)))
    assert answer.error_code == 0
    assert not world.beat(1, answer.broker_epoch).is_fenced
    assert not world.image.brokers[1].in_controlled_shutdown


def test_a_fenced_broker_may_shut_down_at_once(world: World) -> None:
    (epoch,) = world.register(1, unfence=False)
    assert world.beat(1, epoch, want_shut_down=True).should_shut_down


def test_fencing_a_broker_writes_one_record_and_none_for_its_partitions(world: World) -> None:
    world.register(1, 2, 3)
    world.create("t", 20, factor=3)
    end = world.log.end_offset
    world.pass_ms(SESSION_MS + 1_000)
    assert world.log.end_offset == end + 3
    (batch,) = list(log_batches(world.log)[-1:])
    assert all(isinstance(record, BrokerRegistrationChangeRecord) for record in batch)


def test_an_unregistered_broker_may_register_again(world: World) -> None:
    (epoch,) = world.register(1)
    (answer,) = world.unregister(1)
    assert answer.error_code == 0
    assert dict(world.image.brokers) == {}
    assert world.beat(1, epoch).error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert world.ask(registration(1)).error_code == 0


def test_the_controller_refuses_to_unregister_a_broker_that_is_still_running(world: World) -> None:
    unregistration = rpc.UnregisterBrokerRequest(broker_id=1)
    (epoch,) = world.register(1, unfence=False)
    for _ in range(2):  # fenced, then unfenced
        end = world.log.end_offset
        answer = world.ask(unregistration)
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert "stop it first" in answer.error_message
        assert world.log.end_offset == end, "a refusal that writes"
        world.beat(1, epoch)
    world.beat(1, epoch, want_shut_down=True)
    assert world.ask(unregistration).error_code == ErrorCode.INVALID_REQUEST, "it still leaves"
    assert world.beat(1, epoch, want_shut_down=True).should_shut_down
    assert world.ask(unregistration).error_code == 0


def test_the_controller_unregisters_a_killed_broker_once_its_session_has_ended(
    world: World,
) -> None:
    world.register(1)
    world.depose()
    world.elect()  # by a controller that has not heard of it yet
    unregistration = rpc.UnregisterBrokerRequest(broker_id=1)
    assert world.ask(unregistration).error_code == ErrorCode.INVALID_REQUEST
    world.pass_ms(SESSION_MS + 1_000)
    assert world.ask(unregistration).error_code == 0


def test_a_controller_fences_a_thousand_brokers_with_expired_sessions_in_one_step(
    world: World,
) -> None:
    for broker_id in range(1_000):
        world.requests.ask(registration(broker_id), lambda _: None)
    world.run()
    for broker_id, broker in world.image.brokers.items():
        world.requests.ask(
            rpc.BrokerHeartbeatRequest(
                broker_id=broker_id,
                broker_epoch=broker.broker_epoch,
                current_metadata_offset=world.log.end_offset,
                want_fence=False,
                want_shut_down=False,
            ),
            lambda _: None,
        )
    world.run()
    seen: set[int] = set()
    world.machine.listen(lambda image: seen.add(sum(b.fenced for b in image.brokers.values())))
    world.pass_ms(SESSION_MS + 1_000)
    assert seen == {0, 1_000}, "an image with some of them fenced"
    assert max(len(batch) for batch in log_batches(world.log)[-6:]) <= BATCH_RECORDS


def test_the_controller_allocates_each_producer_id_once(world: World) -> None:
    epoch_1, epoch_2 = world.register(1, 2)
    starts = []
    for broker_id, epoch in ((1, epoch_1), (2, epoch_2), (1, epoch_1)):
        answer = world.ask(rpc.AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=epoch))
        starts.append((answer.producer_id_start, answer.producer_id_len))
        world.depose()
        world.wall_ms -= 1_000_000  # the next leader's clock is behind
        world.elect()
    assert starts == [(0, 1_000), (1_000, 1_000), (2_000, 1_000)]
    times = [block.block_time_ms for block in world.image.producer_ids]
    assert times == sorted(times)


def test_a_broker_may_register_support_for_a_feature_without_a_finalized_level(
    world: World,
) -> None:
    feature = rpc.BrokerRegistrationRequest.Feature
    more = (
        feature(name="metadata.version", min_supported_version=7, max_supported_version=29),
        feature(name="something.new", min_supported_version=1, max_supported_version=2),
    )
    assert world.ask(registration(1, features=more)).error_code == 0
