from __future__ import annotations

import pytest

from malletrain.common.job_limits import JobLimits
from malletrain.job_manager.machine.effects import (
    Effect,
    ReleaseHosts,
    SetHosts,
    StartSupervisor,
    StopSupervisor,
    may_precede_record,
    stop_grace,
)
from malletrain.job_manager.machine.state import ManagerPolicy
from malletrain.job_manager.settings import JobManagerSettings
from tests.job_manager.harness import running
from tests.support.builders import job_spec


@pytest.mark.parametrize(
    ("effect", "may"),
    [
        (ReleaseHosts("j000001", 1, ("a",), 1.0), True),
        (StopSupervisor("j000001", 1, 1.0), True),
        (SetHosts("j000001", 1, 2, ("a",)), True),
        (SetHosts("j000001", 1, 2, ("a", "b")), True),
        (SetHosts("j000001", 1, 2, ("a", "c")), False),
        (SetHosts("j000001", 2, 2, ("a",)), False),
        (SetHosts("j000002", 1, 2, ("a",)), False),
        (StartSupervisor("j000001", 1), False),
    ],
)
def test_only_what_takes_nodes_from_a_job_begins_before_it_is_recorded(effect: Effect, may: bool) -> None:
    assert may_precede_record(effect, running("a b").state.jobs) is may


@pytest.mark.parametrize(("asked", "longest", "grace"), [(0.0, 30.0, 1.5), (20.0, 30.0, 20.0), (20.0, 10.0, 10.0)])
def test_a_node_is_released_with_the_grace_of_the_job_within_the_operators_bound(
    asked: float, longest: float, grace: float
) -> None:
    limits = JobLimits(release_grace_seconds=asked)
    policy = ManagerPolicy(longest_release_grace_seconds=longest)
    machine = running("a b", job_spec(limits=limits), policy=policy)
    machine.leave("b")
    releases = [effect for effect in machine.effects if isinstance(effect, ReleaseHosts)]
    assert [(effect.nodes, effect.grace_seconds) for effect in releases] == [(("b",), grace)]


def test_a_job_that_loses_its_last_node_has_its_grace_too() -> None:
    machine = running("a", job_spec(limits=JobLimits(release_grace_seconds=20.0)))
    machine.leave("a")
    stops = [effect.grace_seconds for effect in machine.effects if isinstance(effect, StopSupervisor)]
    assert stops == [20.0]


@pytest.mark.parametrize("asked", [0.0, 20.0, 600.0])
@pytest.mark.parametrize(
    "chosen", [{}, {"drain_grace_seconds": 60.0}, {"stop_grace_seconds": 90.0}, {"longest_release_grace_seconds": 0.0}]
)
def test_who_waits_for_jobs_to_end_knows_the_longest_that_one_may_have(asked: float, chosen: dict[str, float]) -> None:
    settings = JobManagerSettings.model_validate(chosen)
    machine = running("a", job_spec(limits=JobLimits(release_grace_seconds=asked)))
    (job,) = machine.state.jobs.values()
    assert 0 < stop_grace(job, settings.policy()) <= settings.max_stop_grace_seconds
