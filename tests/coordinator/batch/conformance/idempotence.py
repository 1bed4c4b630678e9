"""The idempotence table: what becomes of an idempotent batch, line by line.

It is Kafka's, with one difference that is marked "ours". What other diskless stores got wrong has
rows of its own: the sequence that wraps, and the epoch that is bumped.

Source: upstream's ProducerAppendInfo, ProducerStateEntry and LogValidator;
docs/design/batch-coordinator.md#idempotence.
"""

from __future__ import annotations

from typing import Final

from tests.coordinator.batch.conformance.steps import (
    AGEING,
    ANCIENT,
    BAD_RECORD,
    LAST,
    NOBODY,
    OLD_EPOCH,
    OTHER,
    OUT_OF_ORDER,
    At,
    Batch,
    Delete,
    Duplicate,
    Refused,
    Row,
    Wait,
    one,
    put,
)

_HOUR: Final = 3_600_000
_CHECK: Final = "ProducerAppendInfo.checkSequence"
_EPOCH: Final = "ProducerAppendInfo.checkProducerEpoch"
_KEPT: Final = "ProducerStateEntry.findDuplicateBatch"
_OURS: Final = "ours, docs/design/batch-coordinator.md#idempotence"
_WRAP: Final = "DefaultRecordBatch.incrementSequence"

_SIX: Final = tuple(one(sequence, At(sequence)) for sequence in range(6))
_ACROSS: Final = one(LAST - 1, At(0), count=4, producer=ANCIENT)

ROWS: Final = (
    # --- a producer without state
    Row("a new producer begins at 0", _CHECK, (one(0, At(0)),)),
    Row("an unknown new producer may not begin at 1", _OURS, (one(1, OUT_OF_ORDER),)),
    Row("an unknown new producer may not begin at 7", _OURS, (one(7, OUT_OF_ORDER),)),
    Row("nor in a later epoch", _OURS, (one(7, OUT_OF_ORDER, epoch=3),)),
    Row("a new producer may begin with a later epoch", _CHECK, (one(0, At(0), epoch=3),)),
    Row(
        "a refused beginning leaves no state",
        _OURS,
        (one(7, OUT_OF_ORDER), one(8, OUT_OF_ORDER), one(0, At(0))),
    ),
    Row(
        "an unknown producer whose state can have expired begins anywhere",
        _CHECK,
        (one(7, At(0), producer=ANCIENT),),
    ),
    Row(
        "in any epoch",
        _CHECK,
        (one(7, At(0), epoch=5, producer=ANCIENT), one(8, At(1), epoch=5, producer=ANCIENT)),
    ),
    Row("or at 0", _CHECK, (one(0, At(0), producer=ANCIENT),)),
    Row(
        "once it has begun it is like any other",
        _CHECK,
        (
            one(7, At(0), producer=ANCIENT),
            one(9, OUT_OF_ORDER, producer=ANCIENT),
            one(7, Duplicate(0), producer=ANCIENT),
            one(8, At(1), producer=ANCIENT),
        ),
    ),
    # --- the next sequence
    Row("the next sequence is accepted", _CHECK, (one(0, At(0), count=3), one(3, At(3)))),
    Row("a gap is refused", _CHECK, (one(0, At(0)), one(2, OUT_OF_ORDER))),
    Row(
        "what was missing is accepted after all",
        _CHECK,
        (one(0, At(0)), one(2, OUT_OF_ORDER), one(1, At(1)), one(2, At(2))),
    ),
    Row(
        "a batch that was refused is no duplicate",
        _KEPT,
        (one(0, At(0)), one(2, OUT_OF_ORDER), one(2, OUT_OF_ORDER)),
    ),
    Row(
        "beginning again at 0 in the same epoch is refused",
        _CHECK,
        (one(0, At(0)), one(1, At(1)), one(0, OUT_OF_ORDER, count=7)),
    ),
    Row(
        "a batch that begins inside the last one is refused",
        _CHECK,
        (one(0, At(0), count=5), one(3, OUT_OF_ORDER, count=5)),
    ),
    # --- duplicates
    Row("the last batch again is a duplicate", _KEPT, (one(0, At(0)), one(0, Duplicate(0)))),
    Row(
        "it is one however often it comes",
        _KEPT,
        (one(0, At(0), count=4), *(one(0, Duplicate(0), count=4) for _ in range(4))),
    ),
    Row(
        "a duplicate does not move the log's end",
        _KEPT,
        (one(0, At(0), count=4), one(0, Duplicate(0), count=4), one(4, At(4))),
    ),
    Row("the second last is a duplicate", _KEPT, (*_SIX[:2], one(0, Duplicate(0)))),
    Row("the fifth last is a duplicate", _KEPT, (*_SIX, one(1, Duplicate(1)))),
    Row("the sixth last is forgotten", _KEPT, (*_SIX, one(0, OUT_OF_ORDER))),
    Row(
        "a duplicate does not become the last batch",
        _KEPT,
        (*_SIX, one(1, Duplicate(1)), one(2, Duplicate(2)), one(6, At(6))),
    ),
    Row(
        "the same first sequence with more records is no duplicate",
        _KEPT,
        (one(0, At(0), count=2), one(0, OUT_OF_ORDER, count=3)),
    ),
    Row(
        "the same first sequence with fewer records is no duplicate",
        _KEPT,
        (one(0, At(0), count=2), one(0, OUT_OF_ORDER)),
    ),
    Row(
        "the same last sequence from a later first is no duplicate",
        _KEPT,
        (one(0, At(0), count=3), one(1, OUT_OF_ORDER, count=2)),
    ),
    Row(
        "two batches sent again as one are no duplicate",
        _KEPT,
        (one(0, At(0)), one(1, At(1)), one(0, OUT_OF_ORDER, count=2)),
    ),
    # --- epochs
    Row("a higher epoch begins at 0", _CHECK, (one(0, At(0)), one(0, At(1), epoch=1))),
    Row(
        "a higher epoch may not go on where the old one was",
        _CHECK,
        (one(0, At(0)), one(1, OUT_OF_ORDER, epoch=1)),
    ),
    Row("nor begin anywhere else", _CHECK, (one(0, At(0)), one(7, OUT_OF_ORDER, epoch=1))),
    Row(
        "that holds for a producer whose state can have expired too, while it has state",
        _CHECK,
        (one(4, At(0), producer=ANCIENT), one(5, OUT_OF_ORDER, epoch=1, producer=ANCIENT)),
    ),
    Row(
        "a bump that was refused leaves the old epoch in force",
        _CHECK,
        (one(0, At(0)), one(7, OUT_OF_ORDER, epoch=1), one(1, At(1))),
    ),
    Row(
        "the new epoch counts from its own batches",
        _CHECK,
        (one(0, At(0), count=9), one(0, At(9), epoch=1), one(1, At(10), epoch=1)),
    ),
    Row(
        "after a bump the old epoch's next sequence is refused in the new one",
        _CHECK,
        (one(0, At(0), count=9), one(0, At(9), epoch=1), one(9, OUT_OF_ORDER, epoch=1)),
    ),
    Row("an epoch may be skipped", _CHECK, (one(0, At(0)), one(0, At(1), epoch=9))),
    Row(
        "the same numbers in a new epoch are no duplicate of the old one's",
        _KEPT,
        (one(0, At(0), count=2), one(0, At(2), count=2, epoch=1)),
    ),
    Row(
        "they are a duplicate of the new one's from then on",
        _KEPT,
        (one(0, At(0)), one(0, At(1), epoch=1), one(0, Duplicate(1), epoch=1)),
    ),
    Row(
        "an old epoch is fenced",
        _EPOCH,
        (one(0, At(0)), one(0, At(1), epoch=1), one(1, OLD_EPOCH)),
    ),
    Row(
        "also with a batch that it once wrote",
        _EPOCH,
        (one(0, At(0)), one(0, At(1), epoch=1), one(0, OLD_EPOCH)),
    ),
    Row(
        "a producer that begins late fences the epochs before",
        _EPOCH,
        (one(0, At(0), epoch=3), one(0, OLD_EPOCH, epoch=2)),
    ),
    Row(
        "the greatest epoch is one like the others",
        _EPOCH,
        (one(0, At(0), epoch=32767), one(1, At(1), epoch=32767), one(0, OLD_EPOCH, epoch=32766)),
    ),
    # --- the sequence wraps
    Row(
        "after the greatest sequence comes 0",
        _WRAP,
        (one(LAST, At(0), producer=ANCIENT), one(0, At(1), producer=ANCIENT)),
    ),
    Row(
        "and not 1",
        _WRAP,
        (one(LAST, At(0), producer=ANCIENT), one(1, OUT_OF_ORDER, producer=ANCIENT)),
    ),
    Row(
        "0 is not next before that",
        _WRAP,
        (one(LAST - 1, At(0), producer=ANCIENT), one(0, OUT_OF_ORDER, producer=ANCIENT)),
    ),
    Row(
        "the greatest may be reached and left in three batches",
        _WRAP,
        (
            one(LAST - 1, At(0), producer=ANCIENT),
            one(LAST, At(1), producer=ANCIENT),
            one(0, At(2), producer=ANCIENT),
        ),
    ),
    Row("a batch may wrap inside", _WRAP, (_ACROSS, one(2, At(4), producer=ANCIENT))),
    Row("its last sequence counts", _WRAP, (_ACROSS, one(1, OUT_OF_ORDER, producer=ANCIENT))),
    Row(
        "a batch that wraps inside can be a duplicate",
        _WRAP,
        (_ACROSS, one(LAST - 1, Duplicate(0), count=4, producer=ANCIENT)),
    ),
    Row(
        "a batch from before the wrap can be one",
        _WRAP,
        (
            one(LAST, At(0), producer=ANCIENT),
            one(0, At(1), producer=ANCIENT),
            one(LAST, Duplicate(0), producer=ANCIENT),
        ),
    ),
    Row(
        "an epoch that begins at 0 after the greatest is no wrap",
        _WRAP,
        (
            one(LAST, At(0), producer=ANCIENT),
            one(0, At(1), epoch=1, producer=ANCIENT),
            one(0, OLD_EPOCH, producer=ANCIENT),
        ),
    ),
    # --- who is not idempotent, and who says nonsense
    Row(
        "without a producer id every batch is accepted",
        "UnifiedLog.analyzeAndValidateProducerState",
        (one(0, At(0), producer=NOBODY), one(0, At(1), producer=NOBODY)),
    ),
    Row("a negative sequence is refused", "LogValidator", (one(-1, BAD_RECORD),)),
    Row("a negative epoch is refused", "LogValidator", (one(0, BAD_RECORD, epoch=-1),)),
    Row("a producer id below -1 is refused", "LogValidator", (one(0, BAD_RECORD, producer=-2),)),
    Row(
        "a bad timestamp is refused and costs its producer nothing",
        "LogValidator",
        (put(Batch(0, 1, Refused(32), time=-2)), put(Batch(0, 1, At(0), time=-1))),
    ),
    # --- independence
    Row(
        "producers do not know of each other",
        _CHECK,
        (one(0, At(0)), one(1, OUT_OF_ORDER, producer=OTHER), one(0, At(1), producer=OTHER)),
    ),
    Row(
        "partitions do not know of each other",
        _CHECK,
        (
            one(0, At(0)),
            put(Batch(1, 1, OUT_OF_ORDER, partition=1)),
            put(Batch(0, 1, At(0), partition=1)),
            one(1, At(1)),
        ),
    ),
    Row(
        "a partition that is not there refuses its own batches only",
        "KIP-1164, CommitBatches",
        (put(Batch(0, 1, At(0)), Batch(0, 1, Refused(3), partition=2)), one(1, At(1))),
    ),
    # --- several batches in one object
    Row(
        "batches of one object follow each other",
        _CHECK,
        (put(Batch(0, 2, At(0)), Batch(2, 3, At(2)), Batch(5, 1, At(5))),),
    ),
    Row(
        "a batch may be a duplicate of one in the same object",
        _KEPT,
        (put(Batch(0, 2, At(0)), Batch(0, 2, Duplicate(0)), Batch(2, 1, At(2))),),
    ),
    Row(
        "a gap in an object refuses what follows it",
        _CHECK,
        (put(Batch(0, 1, At(0)), Batch(2, 1, OUT_OF_ORDER), Batch(3, 1, OUT_OF_ORDER)),),
    ),
    Row(
        "and not another producer's",
        _CHECK,
        (
            put(
                Batch(0, 1, At(0)),
                Batch(2, 1, OUT_OF_ORDER),
                Batch(0, 4, At(1), producer=OTHER),
                Batch(1, 1, At(5)),
            ),
        ),
    ),
    Row(
        "an epoch may be bumped inside an object",
        _EPOCH,
        (
            put(Batch(0, 1, At(0)), Batch(0, 1, At(1), epoch=1), Batch(1, 1, OLD_EPOCH)),
            one(1, At(2), epoch=1),
        ),
    ),
    Row(
        "and what the old one left is forgotten there and then",
        _KEPT,
        (
            put(
                *(Batch(sequence, 1, At(sequence)) for sequence in range(3)),
                Batch(0, 1, At(3), epoch=1),
            ),
            one(2, OUT_OF_ORDER, epoch=1),
            one(0, Duplicate(3), epoch=1),
            one(1, At(4), epoch=1),
        ),
    ),
    Row(
        "seven batches in an object leave the last five",
        _KEPT,
        (
            put(*(Batch(sequence, 1, At(sequence)) for sequence in range(7))),
            one(1, OUT_OF_ORDER),
            one(2, Duplicate(2)),
        ),
    ),
    Row(
        "the window moves inside an object too",
        _KEPT,
        (
            *_SIX,
            put(Batch(1, 1, Duplicate(1)), Batch(6, 1, At(6)), Batch(1, 1, OUT_OF_ORDER)),
        ),
    ),
    Row(
        "two partitions of an object are judged apart",
        _CHECK,
        (
            put(
                Batch(0, 1, At(0)),
                Batch(1, 1, At(1)),
                Batch(0, 2, At(0), partition=1),
                Batch(3, 1, OUT_OF_ORDER, partition=1),
            ),
        ),
    ),
    # --- how long state lives
    Row(
        "silence for less than the expiration changes nothing",
        _OURS,
        (
            one(0, At(0), producer=AGEING),
            Wait(23 * _HOUR),
            one(2, OUT_OF_ORDER, producer=AGEING),
            one(0, Duplicate(0), producer=AGEING),
            one(1, At(1), producer=AGEING),
        ),
    ),
    Row(
        "after it the producer is unknown, and goes on where it likes",
        "ProducerStateManager.removeExpiredProducers",
        (one(0, At(0), producer=AGEING), Wait(25 * _HOUR), one(5, At(1), producer=AGEING)),
    ),
    Row(
        "each append starts the time anew",
        "ProducerStateManager.removeExpiredProducers",
        (
            one(0, At(0), producer=AGEING),
            Wait(20 * _HOUR),
            one(1, At(1), producer=AGEING),
            Wait(20 * _HOUR),
            one(5, OUT_OF_ORDER, producer=AGEING),
            one(2, At(2), producer=AGEING),
        ),
    ),
    Row(
        "DeleteRecords forgets no producer",
        _OURS,
        (
            one(0, At(0)),
            one(1, At(1)),
            Delete(-1, 2),
            one(0, Duplicate(0)),
            one(3, OUT_OF_ORDER),
            one(2, At(2)),
        ),
    ),
)
