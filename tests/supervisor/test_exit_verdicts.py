"""What the end of a worker means for its job, by what it was and what it had been asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.supervisor.elastic.membership import (
    Membership,
    elastic_asked,
    elastic_failure,
    elastic_role,
    left_with_hosts,
)
from malletrain.supervisor.restarting.generation_state import (
    GenerationState,
    member_asked,
    member_role,
    next_asked,
    next_failure,
    next_role,
)
from malletrain.supervisor.workers.slot import Slot
from malletrain.supervisor.workers.worker_exit import (
    Consequence,
    ExitFacts,
    ExitMeaning,
    Verdict,
    WorkerExit,
    WorkerRole,
    finish,
    is_over,
)

N1, N2, N3 = (Slot(host, 0) for host in ("n1", "n2", "n3"))
HOSTS = (("n1", 1), ("n2", 1))
FIRST = WorkerExit(N1, 42, 0, started=True, going=True, killed=False, hung=False)
SECOND, THIRD = replace(FIRST, slot=N2), replace(FIRST, slot=N3)
CRASH = replace(FIRST, code=3)
FACTS = ExitFacts(over=False, asked=False, leaving=frozenset(), completed=False)
MEMBERSHIP = Membership(commanded=dict(HOSTS), hosts=HOSTS, epoch=1)
GENERATION = GenerationState(commanded=dict(HOSTS), hosts=HOSTS, epoch=1, members=(N1, N2))


def test_roles_of_elastic_workers() -> None:
    assert [elastic_role(ended, MEMBERSHIP) for ended in (FIRST, SECOND, THIRD)] == list(WorkerRole)
    assert elastic_role(FIRST, replace(MEMBERSHIP, hosts=())) is WorkerRole.RANK_ZERO, (
        "a script that finds nothing to do"
    )
    assert elastic_role(replace(FIRST, started=False), replace(MEMBERSHIP, hosts=())) is WorkerRole.NEW_WORKER


@pytest.mark.parametrize(
    ("membership", "facts", "ended", "asked"),
    [
        (MEMBERSHIP, FACTS, FIRST, False),
        (MEMBERSHIP, replace(FACTS, asked=True), CRASH, True),
        (replace(MEMBERSHIP, closing=True), FACTS, CRASH, True),
        (replace(MEMBERSHIP, commanded={"n2": 1}), FACTS, FIRST, True),
        (replace(MEMBERSHIP, commanded={"n1": 1}), FACTS, FIRST, False),
        (MEMBERSHIP, replace(FACTS, leaving=frozenset({"n2"})), FIRST, True),
        (MEMBERSHIP, replace(FACTS, leaving=frozenset({"n2"})), CRASH, False),
        (MEMBERSHIP, replace(FACTS, leaving=frozenset({"n3"})), FIRST, False),
    ],
)
def test_which_elastic_workers_had_been_asked_to_leave(
    membership: Membership, facts: ExitFacts, ended: WorkerExit, asked: bool
) -> None:
    assert elastic_asked(ended, membership, facts) == asked


def test_what_the_failure_of_an_elastic_worker_means() -> None:
    note = Verdict(Consequence.NOTE, "worker on n1: exit status 3")
    booting = replace(CRASH, started=False, going=False)
    nobody = Membership(commanded={"n1": 1})
    assert elastic_failure(CRASH, MEMBERSHIP, 9) == note, "the others go on"
    assert elastic_failure(CRASH, nobody, 1) == replace(note, consequence=Consequence.FAIL)
    assert elastic_failure(booting, nobody, 1).consequence is Consequence.FAIL, (
        "by itself: JobManager counts its starts"
    )
    booting = replace(booting, code=-9)
    assert elastic_failure(booting, nobody, 3).consequence is Consequence.NOTE
    assert elastic_failure(booting, nobody, 4).message.endswith("before it was warm, 4 times")


def test_workers_leave_with_hosts_that_are_no_longer_commanded_or_wanted_back() -> None:
    assert not left_with_hosts(MEMBERSHIP, frozenset({"n3"}))
    assert left_with_hosts(MEMBERSHIP, frozenset({"n2"}))
    assert left_with_hosts(replace(MEMBERSHIP, commanded={"n1": 1}), frozenset())


def test_members_of_a_generation() -> None:
    leaving = replace(FACTS, leaving=frozenset({"n2"}))
    assert [member_role(ended, GENERATION) for ended in (FIRST, SECOND)] == [WorkerRole.RANK_ZERO, WorkerRole.MEMBER]
    assert not member_asked(FIRST, GENERATION, FACTS)
    assert member_asked(CRASH, GENERATION, replace(FACTS, asked=True))
    assert member_asked(CRASH, GENERATION.leave(1.0), FACTS)
    assert member_asked(FIRST, GENERATION, leaving)
    assert not member_asked(CRASH, GENERATION, leaving)


def test_the_next_generation() -> None:
    between = GenerationState(commanded=dict(HOSTS), epoch=1)
    assert next_role(FIRST, GENERATION) is WorkerRole.NEW_WORKER
    assert next_role(FIRST, between) is WorkerRole.RANK_ZERO, "a script that finds nothing to do"
    assert next_role(replace(FIRST, started=False), between) is WorkerRole.NEW_WORKER
    leaving = replace(FACTS, leaving=frozenset({"n1"}))
    found = [next_asked(ended, leaving) for ended in (FIRST, CRASH, SECOND)]
    assert found == [True, False, False], "its own node, and it ended well"


def test_workers_that_never_boot_fail_the_job_only_while_nobody_trains() -> None:
    between = GenerationState(commanded=dict(HOSTS), epoch=1)
    killed = replace(CRASH, code=-9)
    lost = replace(CRASH, code=127, lost=True)
    for ended in (killed, lost):
        assert next_failure(ended, between, 3).consequence is Consequence.NOTE
        assert next_failure(ended, between, 4).consequence is Consequence.FAIL
    assert next_failure(CRASH, between, 1).consequence is Consequence.FAIL, (
        "by the script: JobManager counts its starts"
    )
    assert next_failure(CRASH, GENERATION, 4).consequence is Consequence.NOTE


def test_a_training_is_over_by_exit_status_or_by_word() -> None:
    said = replace(FACTS, completed=True)
    assert is_over(FIRST, WorkerRole.RANK_ZERO, ExitMeaning.DONE, FACTS)
    assert is_over(SECOND, WorkerRole.MEMBER, ExitMeaning.EARLY, said)
    assert not is_over(SECOND, WorkerRole.MEMBER, ExitMeaning.EARLY, FACTS)
    assert not is_over(THIRD, WorkerRole.NEW_WORKER, ExitMeaning.FAILED, said), "it took no part"
    assert not is_over(CRASH, WorkerRole.RANK_ZERO, ExitMeaning.FAILED, said)
    assert finish(FIRST, 2) == Verdict(Consequence.FINISH, "rank 0 on n1 ended with exit status 0")
    assert finish(FIRST, 1).message == "its process on n1 ended with exit status 0"
