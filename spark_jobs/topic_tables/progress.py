"""Progress: how far a table is, written into it by the commit that takes it there.

    progress = Progress(driver="5f0c", batch=17, offsets={0: 700, 1: 650}, newest_ms=1_700_000_000)
    progress.to_json()

It stands in two places that change in one transaction: a property of the table, which outlives the
expiry of snapshots, and the summary of the snapshot, which a rollback takes away with its rows.
`find_progress` compares the two.

Source: docs/design/tables.md#progress.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self

RUN: Final = "esker.run"
"""Key of the progress of `run`: the first offset of each partition that is not in the table."""

BACKFILL: Final = "esker.backfill"
"""Key of the progress of `backfill`: the first offset of each partition that is in the table."""


class ProgressError(Exception):
    """A table does not say, or says twice and differently, how far it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The offset of each partition that a table has reached, and the commit that took it there."""

    driver: str
    batch: int  # counted by the driver; 0: it took the table over
    offsets: Mapping[int, int]
    newest_ms: int | None = None  # highest timestamp of the records that are in the table

    def to_json(self) -> str:
        """Return the text that tables keep."""
        return json.dumps(
            {
                "driver": self.driver,
                "batch": self.batch,
                "offsets": {str(index): offset for index, offset in sorted(self.offsets.items())},
                "newest_ms": self.newest_ms,
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the progress that a text describes.

        Raises:  ProgressError.
        """
        try:
            found = json.loads(text)
            return cls(
                driver=str(found["driver"]),
                batch=int(found["batch"]),
                offsets={int(index): int(offset) for index, offset in found["offsets"].items()},
                newest_ms=found.get("newest_ms"),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ProgressError(f"this is not the progress of a table: {text!r}") from None

    def is_commit_of(self, other: Progress) -> bool:
        """Return whether both are of the same commit."""
        return (self.driver, self.batch) == (other.driver, other.batch)


def new_driver() -> str:
    """Return the id of a driver, unique to one start of one process."""
    return secrets.token_hex(8)


def find_progress(
    key: str, properties: Mapping[str, str], summaries: Iterable[Mapping[str, str] | None]
) -> Progress | None:
    """Return a table's progress, or None for a table that has none.

    Args:    key: `RUN` or `BACKFILL`.
             properties: of the table.
             summaries: of the current snapshot and its ancestors, the newest first.
    Raises:  ProgressError if property and snapshots disagree.

    >>> text = Progress(driver="a", batch=1, offsets={0: 7}).to_json()
    >>> find_progress(RUN, {RUN: text}, [None, {RUN: text}]).offsets
    {0: 7}
    """
    text = properties.get(key)
    of_property = None if text is None else Progress.from_json(text)
    newest = next((one[key] for one in summaries if one is not None and key in one), None)
    of_snapshot = None if newest is None else Progress.from_json(newest)
    if of_snapshot is None:
        return of_property  # every snapshot of ours has expired, or none was written yet
    if of_property is None:
        raise ProgressError(
            f"the table's property {key} is gone. Its newest snapshot says: set it to {newest}"
        )
    if of_property != of_snapshot:
        raise ProgressError(
            f"the table's property {key} is {text}, and its newest snapshot says {newest}: was the "
            f"table rolled back? To go on from its snapshot, set the property to that text"
        )
    return of_property
