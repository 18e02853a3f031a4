"""A node is suspected on the word of several owners, never on that of one."""

from __future__ import annotations

from dataclasses import replace

from malletrain.job_manager.machine.fault_attribution import NodeEvidence, Suspicion
from malletrain.job_manager.machine.jobs import Job
from malletrain.model.job_state import JobState
from tests.support.builders import job, job_spec

NOW = 1e6


def training(number: int, owner: str, program: str, nodes: str = "", since: float | None = NOW - 100) -> Job:
    """A job that trains on nodes, named by one letter each, since a time."""
    spec = job_spec(name=program, command=(program,))
    return job(number, *nodes, spec=spec, owner=owner, state=JobState.RUNNING, scale_since=since)


def accuse(evidence: NodeEvidence, found: Job, node: str, now: float = NOW, *, well_on: str = "b") -> Suspicion | None:
    """A job has trained well on some nodes, and fails then on a node."""
    evidence.note_success(replace(found, confirmed=tuple(well_on)), now)
    evidence.note_failure(replace(found, held=(node,)), node, now)
    return evidence.suspicion(node, [], now)


def test_jobs_of_one_owner_accuse_nobody_however_many_fail() -> None:
    evidence = NodeEvidence()
    for number in range(30):
        assert accuse(evidence, training(number, "eve", f"program{number}"), "a") is None


def test_different_programs_of_different_owners_that_train_well_elsewhere_are_believed() -> None:
    evidence = NodeEvidence()
    assert accuse(evidence, training(1, "ada", "one"), "a") is None
    found = accuse(evidence, training(2, "bob", "two"), "a", NOW + 60)
    assert found is not None
    assert (found.node, found.failures) == ("a", 2)
    assert "j000001 (ada), j000002 (bob)" in found.by
    assert evidence.suspicion("a", [], NOW + 61) is None, "each failure is reported once"
    again = accuse(evidence, training(3, "cy", "three"), "a", NOW + 120)
    assert again is not None
    assert again.failures == 1
    evidence.forget(again)
    repeated = evidence.suspicion("a", [], NOW + 121)
    assert repeated is not None
    assert repeated.failures == 3, "what could not be reported is reported again"


def test_the_same_program_is_one_word() -> None:
    evidence = NodeEvidence()
    assert accuse(evidence, training(1, "ada", "one"), "a") is None
    assert accuse(evidence, training(2, "bob", "one"), "a") is None


def test_a_job_that_fails_elsewhere_too_or_has_trained_nowhere_accuses_nobody() -> None:
    evidence = NodeEvidence()
    everywhere = training(1, "ada", "one")
    assert accuse(evidence, everywhere, "c") is None
    assert accuse(evidence, everywhere, "a") is None
    assert accuse(evidence, training(2, "bob", "two"), "a") is None
    assert accuse(evidence, training(3, "cy", "three"), "a", well_on="") is None, "it has never trained well"
    assert accuse(evidence, training(4, "di", "four"), "a", well_on="a") is None, "it has trained well here alone"


def test_a_node_on_which_another_job_trains_well_is_never_suspected() -> None:
    evidence = NodeEvidence()
    assert accuse(evidence, training(1, "ada", "one"), "a") is None
    evidence.note_failure(replace(training(2, "bob", "two"), held=("a",)), "a", NOW)
    evidence.note_success(replace(training(2, "bob", "two"), confirmed=("b",)), NOW)
    assert evidence.suspicion("a", [training(9, "eve", "nine", "a")], NOW) is None
    assert evidence.suspicion("a", [], NOW + 1) is None, "it trained well after these failures"


def test_old_failures_and_nodes_of_others_do_not_count() -> None:
    evidence = NodeEvidence()
    assert accuse(evidence, training(1, "ada", "one"), "a") is None
    assert accuse(evidence, training(2, "bob", "two"), "a", NOW + 3700) is None
    evidence.note_failure(training(3, "cy", "three", "b"), "a", NOW + 3700)  # it does not hold that node
    evidence.note_success(training(3, "cy", "three", "b"), NOW + 3700)
    assert evidence.suspicion("a", [], NOW + 3700) is None


def test_failures_on_gpus_are_those_of_their_nodes() -> None:
    evidence = NodeEvidence()
    assert accuse(evidence, training(1, "ada", "one"), "a#0") is None
    found = accuse(evidence, training(2, "bob", "two"), "a#1")
    assert found is not None
    assert found.node == "a"
