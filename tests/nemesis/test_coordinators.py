"""The batch coordinator on three nodes, started through the front door, and its leaders killed.

Two brokers commit all the while; topics come and go through the controller. At the end every
acknowledged batch has its offsets, once, and the three replicas have one state, which is that of
the log (invariants 4-7, docs/design/invariants.md).
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from coordinator.errors import CoordinatorError
from tests.nemesis.batch_history import WrongHistoryError
from tests.nemesis.coordinator_audit import (
    ReplicasDifferError,
    check_descriptions,
    check_replicas,
    take_checkpoints,
)
from tests.nemesis.coordinators import (
    PROPERTIES,
    CoordinatorNemesis,
    CoordinatorQuorum,
    NodeEndedError,
)
from tests.nemesis.test_nemesis import seed_of_run
from tests.nemesis.uploads import Uploads

SHORT = ("kill_leader", "kill_leader_in_the_dark", "wipe", "kill_all")
ALL = (
    *SHORT,
    "kill_controller",
    "kill_generating",
    "kill_installing",
    "lose_database",
    "pause_leader",
    "pause_follower",
)
SOAK_FAULTS = 60
EXPECTED = (
    "duplicate",
    "object sent again",
    "late commit refused",
    "log start moved",
    "lease released",
    "broker restarted",
    "topic deleted",
    "object deleted",
)
SPOILED = "tests.nemesis.spoiled_coordinators"


def work(directory: Path, seed: int, faults: list[str], class_name: str | None = None) -> None:
    """One run: start, work and suffer, stop, audit. Raises what is wrong."""
    with CoordinatorQuorum(directory, class_name=class_name) as quorum:
        quorum.start()
        prefix = PROPERTIES["esker.object.key.prefix"]
        uploads = Uploads(quorum.addresses, quorum.cluster_id, prefix, seed=seed)
        with uploads:
            nemesis = CoordinatorNemesis(quorum, uploads, Random(seed))
            nemesis.run(faults)
        uploads.history.check(uploads.final)
        taken = take_checkpoints(quorum)
        check_descriptions(quorum, uploads)
        quorum.check_alive()
        quorum.kill()
        state = check_replicas(quorum, taken)
    happened = uploads.history.happened
    batches = sum(len(one.batches) for one in uploads.history.committed)
    print(
        f"{uploads.acknowledged} objects, {batches} batches, {nemesis.leaders_killed} leaders "
        f"killed, {nemesis.by_snapshot} nodes came up by a checkpoint; {dict(happened)}; all have "
        f"{len(state.objects)} objects and {sum(map(len, state.runs.values()))} runs at {taken}"
    )
    assert nemesis.by_snapshot == faults.count("wipe") + faults.count("kill_installing")
    missing = [name for name in EXPECTED if not happened[name]]
    assert not missing, f"never happened: {missing}"


def test_batch_coordinators_lose_no_commit_if_leaders_are_killed_and_a_disk_is_lost(
    tmp_path: Path,
) -> None:
    seed = seed_of_run()
    work(tmp_path, seed, Random(seed).sample(SHORT, len(SHORT)))


def test_the_commit_history_check_finds_commits_acknowledged_without_a_majority(
    tmp_path: Path,
) -> None:
    """Commits that were answered while the followers stood still are lost with their leader."""
    seed = seed_of_run()
    with pytest.raises(WrongHistoryError):
        work(tmp_path, seed, ["kill_leader_after_answers_in_the_dark"], f"{SPOILED}.AnswersAtOnce")


def test_the_commit_history_check_finds_a_batch_that_was_committed_twice(tmp_path: Path) -> None:
    seed = seed_of_run()
    with pytest.raises(WrongHistoryError, match=r"accepted again|committed twice"):
        work(tmp_path, seed, ["kill_leader"], f"{SPOILED}.CommitsDuplicates")


@pytest.mark.soak
def test_the_commit_history_check_finds_a_replica_that_forgets_acknowledged_commits(
    tmp_path: Path,
) -> None:
    seed = seed_of_run()
    # It may lead: then it is asked; and if what it decides contradicts what the others hold, their
    # own assertions stop them.
    others = (CoordinatorError, NodeEndedError)
    with pytest.raises((ReplicasDifferError, WrongHistoryError, *others)) as found:
        work(tmp_path, seed, ["pause_follower"] * 2, f"{SPOILED}.ForgetsOnOneReplica")
    if found.errisinstance(others):
        logs = "".join(path.read_text(errors="replace") for path in tmp_path.rglob("node*.log"))
        assert "AssertionError" in logs, "no node found out anything"


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_batch_coordinators_under_a_long_sequence_of_faults_lose_no_batch(tmp_path: Path) -> None:
    seed = seed_of_run()
    work(tmp_path, seed, Random(seed).choices(ALL, k=SOAK_FAULTS))
