"""Moves empty partitions to another batch coordinator, in an order that loses nothing.

    1. the old coordinator releases the partition, if it never had a commit: one record in its own
       log, so no commit can slip in between
    2. the mapping is committed
    3. the new coordinator has the partition; then the client is answered

A coordinator may be without a leader for long. Then the client is answered REQUEST_TIMED_OUT, and
the move continues.

A crash after 1 leaves a partition that no coordinator has, mapped to the old one. The next
controller finds it missing there and has it created again: its calls carry a higher epoch, and only
such a call that names it restores what was released. A crash after 2 is like any topic that a
coordinator was not informed of.

So a coordinator that has released a partition under one controller cannot have it back under the
same one: a late, repeated call could not be told from a new one. Such a move is refused before
anything is done.

Source: docs/design/controller.md; KIP-1164, AssignPartitionToBatchCoordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from uuid import UUID

from coordinator.controller.decide.mapping import Move, Verdicts, answer_moves, assign
from coordinator.controller.handover import HandOver
from coordinator.controller.image import TopicImage
from coordinator.controller.leader import Controller
from coordinator.errors import CoordinatorError
from records.kafka_errors import ErrorCode
from records.rpc.base import Response
from records.rpc.batch_coordinator import AssignPartitionToBatchCoordinatorRequest

Send = Callable[[Response], None]


class PartitionMoves:
    """Carries out one AssignPartitionToBatchCoordinator request."""

    def __init__(
        self,
        controller: Controller,
        handover: HandOver,
        request: AssignPartitionToBatchCoordinatorRequest,
        moves: list[Move],
        verdicts: Verdicts,
        send: Send,
    ) -> None:
        self._controller = controller
        self._handover = handover
        self._request = request
        self._moves = moves
        self._verdicts = verdicts
        self._send = send
        self._released: list[Move] = []
        self._open = 0
        self._is_written = False
        self._is_answered = False

    def on_timeout(self) -> None:
        """Answer REQUEST_TIMED_OUT for unfinished partition moves; the moves continue."""
        text = "Its coordinator has not answered; it moves when that releases it."
        if self._is_written:
            text = (
                "It is assigned, but its new coordinator has not confirmed it; wait before writing."
            )
        waiting = [move for move in self._moves if move[:2] not in self._verdicts]
        if not self._is_answered:
            self._refuse(waiting, ErrorCode.REQUEST_TIMED_OUT, text)
            self._answer()

    def release(self) -> None:
        """Request that the old coordinators release the partitions that are to move."""
        back = [m for m in self._moves if self._handover.has_released(m.target, *m[:2])]
        if back:
            text = "That coordinator released it under this controller, and cannot have it back."
            self._refuse(back, ErrorCode.INVALID_REQUEST, text)
            refused = frozenset(back)
            self._moves = [move for move in self._moves if move not in refused]
            if not self._moves:
                self._answer()
                return
        groups: dict[tuple[int, UUID], list[Move]] = {}
        for move in self._moves:
            groups.setdefault((move.source, move.topic_id), []).append(move)
        self._open = len(groups)
        if not groups or self._handover.epoch is None:
            self._refuse(self._moves, ErrorCode.NOT_LEADER_OR_FOLLOWER, "The controller changed.")
            self._answer()
            return
        for (source, topic_id), moves in groups.items():
            partitions = frozenset(move.partition for move in moves)
            self._handover.release(source, topic_id, partitions, self._on_release(moves))

    def _on_release(self, moves: list[Move]) -> Callable[[frozenset[int] | CoordinatorError], None]:
        def released(answer: frozenset[int] | CoordinatorError) -> None:
            if isinstance(answer, CoordinatorError):
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE
                if answer.code == ErrorCode.INVALID_REQUEST:
                    code = ErrorCode.INVALID_REQUEST
                self._refuse(moves, code, answer.message)
            else:
                free = [move for move in moves if move.partition in answer]
                kept = [move for move in moves if move.partition not in answer]
                self._refuse(kept, ErrorCode.INVALID_REQUEST, "It has data, or does not exist yet.")
                self._released += free
            self._open -= 1
            if not self._open:
                self._write()

        return released

    def _write(self) -> None:
        if not self._released:
            self._answer()
            return

        def done(outcome: Any) -> None:
            if isinstance(outcome, CoordinatorError):
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                self._refuse(self._released, code, "The controller changed.")
                self._answer()
            else:
                self._init_targets(outcome)

        self._controller.submit(
            lambda context: assign(self._released, context), done, name="assign coordinators"
        )

    def _init_targets(self, written: Sequence[Move]) -> None:
        stayed = frozenset(written)
        gone = [move for move in self._released if move not in stayed]
        self._refuse(gone, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "It was deleted meanwhile.")
        image = self._controller.machine.image
        self._is_written = True
        self._open = len(written)
        for move in written:
            topic: TopicImage | None = image.topics.get(move.topic_id)
            name = "" if topic is None else topic.name
            counts = {move.target: move.partition + 1}
            restored = frozenset({move.partition})
            self._handover.create(move.topic_id, counts, name, self._on_initialised(move), restored)
        if not written:
            self._answer()

    def _on_initialised(self, move: Move) -> Callable[[ErrorCode], None]:
        def on_done(error: ErrorCode) -> None:
            self._verdicts[move[:2]] = (error, None)
            self._open -= 1
            if not self._open:
                self._answer()

        return on_done

    def _refuse(self, moves: Iterable[Move], code: ErrorCode, message: str) -> None:
        for move in moves:
            self._verdicts[move[:2]] = (code, message)

    def _answer(self) -> None:
        if self._is_answered:
            return
        self._is_answered = True
        self._send(answer_moves(self._request, self._verdicts))
