"""A broker's membership: it registers, heartbeats, is fenced and unfenced, and leaves.

A broker is a member under an *epoch*, which it gets when it registers. While it heartbeats in time
it keeps that epoch; if it was silent for too long it is fenced, and unfenced by a later heartbeat,
in the same epoch. An epoch that the controller no longer knows is over for good: the broker then
has none, registers anew (which may take long, if another process has its id by now), and what it
did under the old one must not count any more. So code that writes is notified of every new epoch,
and code that serves clients of every change of `is_fenced`.

The trap is the meaning of `is_fenced`. The controller answers with what it has committed, not with
what the broker requested; a broker that is cut off may believe itself unfenced for as long as its
session lasts, by its own clock, and then believes the contrary. So nothing may depend on it for
safety: what must not happen is fenced where it would be written (by the broker's epoch in the
coordinator's leases).

Source: KIP-631, Broker Registration and Heartbeats, Controlled Shutdown; upstream's
BrokerLifecycleManager.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar
from uuid import UUID

from coordinator.errors import CoordinatorError
from coordinator.leader_client import NobodyListensError
from records.kafka_errors import ErrorCode
from records.rpc import brokers as rpc
from records.rpc.base import Request, Response

log = logging.getLogger("coordinator.registration")

R = TypeVar("R", bound=Response)

RETRY_INTERVAL_S: Final = 1.0  # between two attempts to register
FAST_HEARTBEAT_S: Final = 0.05  # until it is first unfenced, and during shutdown

RETRIABLE: Final = frozenset(
    {ErrorCode.DUPLICATE_BROKER_REGISTRATION, ErrorCode.NOT_LEADER_OR_FOLLOWER}
)
"""Refusals that may end by themselves: of a former process, whose session still runs."""

EPOCH_OVER: Final = frozenset({ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED})


class ControllerCaller(Protocol):
    """A client of the active controller (`coordinator.controller.client`)."""

    async def call(self, request: Request, response: type[R]) -> R:
        """Send a request to the controller and return its response.

        Raises CoordinatorError if no response came in time.
        """


class RegistrationRefusedError(Exception):
    """The controller refuses this broker; the message is one sentence with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerListener:
    """An address at which clients reach the broker."""

    name: str
    host: str
    port: int
    protocol: int = 0  # Kafka's number of the security protocol; 0: PLAINTEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerMembership:
    """The identity and the settings of a broker's membership. Times in ms."""

    cluster_id: str
    broker_id: int
    incarnation_id: UUID  # each process draws a new one
    directory_id: UUID
    listeners: tuple[BrokerListener, ...]
    rack: str | None = None
    features: tuple[tuple[str, int, int], ...] = ()  # name, lowest and highest level
    heartbeat_interval_ms: int = 500  # broker.heartbeat.interval.ms
    session_timeout_ms: int = 9_000  # broker.session.timeout.ms
    registration_timeout_ms: int = 60_000  # initial.broker.registration.timeout.ms


class Registration:
    """Keeps a broker registered: `start`, then `stop`. Belongs to the event loop."""

    def __init__(
        self,
        client: ControllerCaller,
        membership: BrokerMembership,
        *,
        metadata_offset: Callable[[], int],
        on_change: Callable[[], None],
        on_lost: Callable[[Exception], None],
        unready_reason: Callable[[], str | None] = lambda: None,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Prepare a broker's registration; `start` sends the registration to the controller.

        Args:    metadata_offset: returns the offset of the last record of the cluster log that this
                 broker has applied (inclusive).
                 on_change: called after `epoch` or `is_fenced` has changed.
                 on_lost: called if the broker can never be a member again.
                 unready_reason: returns why clients should be sent to other brokers, or None.
                 wall_ms: this node's wall clock, which is compared with the controller's.
        """
        self.epoch: int | None = None
        self.is_fenced = True
        self.clock_ahead_ms = 0  # of the controller's wall clock, at the last answered heartbeat
        self._wall_ms = wall_ms
        self._client = client
        self._membership = membership
        self._metadata_offset = metadata_offset
        self._on_change = on_change
        self._on_lost = on_lost
        self._unready_reason = unready_reason
        self._was_unfenced = False
        self._last_reason = "no controller was reached"
        self._is_epoch_in_doubt = False
        self._leaving = False
        self._no_controller_runs = False  # it is leaving, and found no controller running
        self._answered_at = 0.0  # loop time at which the last answered heartbeat was sent
        self._may_leave = asyncio.Event()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Register the broker, start its heartbeats, and return its epoch.

        Raises:  RegistrationRefusedError, also if it did not succeed in time.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._membership.registration_timeout_ms / 1_000):
                while (epoch := await self._try_to_register()) is None:
                    await asyncio.sleep(RETRY_INTERVAL_S)
        except TimeoutError:
            raise RegistrationRefusedError(
                f"broker {self._membership.broker_id} could not register within "
                f"{self._membership.registration_timeout_ms} ms: {self._last_reason}"
            ) from None
        self._task = loop.create_task(self._run())
        return epoch

    async def _try_to_register(self) -> int | None:
        try:
            return await self._register()
        except CoordinatorError as error:
            self._last_reason = error.message
            log.warning("broker=%d reason=%r", self._membership.broker_id, self._last_reason)
            return None

    def heartbeat_now(self) -> None:
        """Send a heartbeat without waiting, because the broker's epoch may no longer be valid.

        `on_change` is called after the answer, even if nothing has changed.
        """
        self._is_epoch_in_doubt = True
        self._wake.set()

    async def stop(self, timeout_s: float) -> bool:
        """Request a controlled shutdown, and wait for permission at most `timeout_s`.

        There is no wait after the session is over: clients are sent elsewhere already. Nor is there
        one where no controller runs, as none can be informed.

        Returns: whether a controller has allowed the shutdown.
        """
        if self._task is None:
            return True
        self._leaving = True
        self._wake.set()
        if self.epoch is not None and not self._is_session_over:  # else there is no session to end
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._may_leave.wait()
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        return self._may_leave.is_set() and not self._no_controller_runs

    # --- registering ----------------------------------------------------------------------------

    async def _register(self) -> int:
        while True:
            answer = await self._client.call(self._registration(), rpc.BrokerRegistrationResponse)
            if answer.error_code == ErrorCode.NONE:
                self.epoch, self.is_fenced = answer.broker_epoch, True
                self._answered_at = asyncio.get_running_loop().time()
                log.info("broker=%d epoch=%d", self._membership.broker_id, answer.broker_epoch)
                self._on_change()
                return answer.broker_epoch
            if answer.error_code not in RETRIABLE:
                raise RegistrationRefusedError(self._refusal_reason(answer.error_code))
            self._last_reason = self._refusal_reason(answer.error_code)
            log.warning("broker=%d reason=%r", self._membership.broker_id, self._last_reason)
            await asyncio.sleep(RETRY_INTERVAL_S)

    def _refusal_reason(self, error_code: int) -> str:
        membership = self._membership
        reasons: dict[int, str] = {
            ErrorCode.INCONSISTENT_CLUSTER_ID: (
                f"the quorum is not of cluster {membership.cluster_id}"
            ),
            ErrorCode.DUPLICATE_BROKER_REGISTRATION: "another live broker has this id",
            ErrorCode.UNSUPPORTED_VERSION: (
                "the cluster runs at a feature's level that this version of Esker does not "
                "support (see `esker features describe`): start it with the version of Esker that "
                "the other nodes have"
            ),
            ErrorCode.INVALID_REGISTRATION: "its listeners or directories are invalid",
        }
        why = reasons.get(error_code)
        return f"broker {membership.broker_id} is refused: {why or f'error code {error_code}'}"

    def _registration(self) -> rpc.BrokerRegistrationRequest:
        membership, request = self._membership, rpc.BrokerRegistrationRequest
        return request(
            broker_id=membership.broker_id,
            cluster_id=membership.cluster_id,
            incarnation_id=membership.incarnation_id,
            listeners=tuple(
                request.Listener(
                    name=listener.name,
                    host=listener.host,
                    port=listener.port,
                    security_protocol=listener.protocol,
                )
                for listener in membership.listeners
            ),
            features=tuple(
                request.Feature(name=name, min_supported_version=low, max_supported_version=high)
                for name, low, high in membership.features
            ),
            rack=membership.rack,
            log_dirs=(membership.directory_id,),
            unready_reason=self._unready_reason(),
        )

    # --- heartbeats -----------------------------------------------------------------------------

    async def _run(self) -> None:
        """Send heartbeats until the controller allows the shutdown."""
        while True:
            try:
                if self.epoch is not None:
                    await self._heartbeat()
                else:  # no controller answered the last registration
                    await self._register()
            except CoordinatorError as error:
                log.warning("broker=%d reason=%r", self._membership.broker_id, str(error))
                self._check_silence()
                if self._leaving and isinstance(error, NobodyListensError):
                    self._no_controller_runs = True
                    self._may_leave.set()
            except RegistrationRefusedError as error:
                self._on_lost(error)
                return
            if self._may_leave.is_set():
                return
            waited_for = not self._was_unfenced or self._leaving
            interval_s = self._membership.heartbeat_interval_ms / 1_000
            pause_s = min(FAST_HEARTBEAT_S, interval_s) if waited_for else interval_s
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()

    def _check_silence(self) -> None:
        """Treat the broker as fenced once no controller has answered for a session timeout.

        By then the session is over at the controller.
        """
        if not self.is_fenced and self._is_session_over:
            self.is_fenced = True
            self._on_change()

    @property
    def _is_session_over(self) -> bool:
        """Return whether no controller has answered for a session timeout."""
        silent_s = asyncio.get_running_loop().time() - self._answered_at
        return silent_s * 1_000 >= self._membership.session_timeout_ms

    async def _heartbeat(self) -> None:
        assert self.epoch is not None, "a heartbeat before there is an epoch"
        sent_at = asyncio.get_running_loop().time()
        answer = await self._client.call(
            rpc.BrokerHeartbeatRequest(
                broker_id=self._membership.broker_id,
                broker_epoch=self.epoch,
                current_metadata_offset=self._metadata_offset(),
                want_fence=False,
                want_shut_down=self._leaving,
                unready_reason=self._unready_reason(),
            ),
            rpc.BrokerHeartbeatResponse,
        )
        if answer.error_code in EPOCH_OVER:
            if self._leaving:
                self._may_leave.set()
                return
            log.warning("broker=%d epoch=%d over=yes", self._membership.broker_id, self.epoch)
            self.epoch, self.is_fenced = None, True
            self._on_change()
            await self._register()
            self._wake.set()
        elif answer.error_code == ErrorCode.NONE:
            self._answered_at = sent_at
            if answer.wall_clock_ms >= 0:
                self.clock_ahead_ms = self._wall_ms() - answer.wall_clock_ms
            if answer.should_shut_down:
                self._may_leave.set()
            self._was_unfenced = self._was_unfenced or not answer.is_fenced
            if answer.is_fenced != self.is_fenced or self._is_epoch_in_doubt:
                self.is_fenced, self._is_epoch_in_doubt = answer.is_fenced, False
                self._on_change()
