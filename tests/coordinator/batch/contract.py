"""What every batch coordinator must do: one suite, run on each implementation.

An implementation subclasses `Contract` in a test module, names the class `Test...`, and says how a
`World` of it is opened (`tests.coordinator.batch.subjects`). Every story has a coordinator of its
own.

Source: docs/design/batch-coordinator.md#one-interface-three-implementations.
"""

from __future__ import annotations

from tests.coordinator.batch.contract_clocks import ClockStories
from tests.coordinator.batch.contract_commits import CommitStories
from tests.coordinator.batch.contract_objects import ObjectStories
from tests.coordinator.batch.contract_orphans import OrphanStories
from tests.coordinator.batch.contract_plans import PlanStories
from tests.coordinator.batch.contract_releases import ReleaseStories
from tests.coordinator.batch.contract_views import ViewStories


class Contract(
    ClockStories,
    CommitStories,
    ObjectStories,
    OrphanStories,
    PlanStories,
    ReleaseStories,
    ViewStories,
):
    """All stories. Subclass it, and override `open`."""
