"""A program that can't use several nodes does not keep them, also if its job says that it wants them."""

from __future__ import annotations

import pytest

from malletrain.job_manager.machine.jobs import JobSpec
from malletrain.job_manager.machine.stimuli import SupervisorSeen
from malletrain.job_manager.wire import job_message
from tests.job_manager.harness import MachineHarness, running
from tests.support.builders import job_spec

ONE = "j000001"


def seen(machine: MachineHarness, most_nodes: int) -> JobSpec:
    job = machine.job()
    nodes = frozenset(job.commanded)
    machine(
        SupervisorSeen(ONE, job.incarnation, job.sequence, job.sequence, nodes, nodes, most_nodes=most_nodes),
    )
    return machine.job().usable_spec


def test_a_single_process_gives_the_others_back() -> None:
    machine = running("a b c", job_spec(1, 4))
    assert seen(machine, 1) == job_spec(1, 1)
    assert job_message(machine.job()).spec.max_nodes == 1
    assert machine.job().max_within(3) == 1
    machine.plan(j1="a")
    assert machine.job().commanded == ("a",)


def test_of_the_permitted_scales_only_those_are_left() -> None:
    assert seen(running("a b", job_spec(1, 4, permitted_nodes=(1, 2, 4))), 1) == job_spec(1, 1, permitted_nodes=(1,))


@pytest.mark.parametrize("told", [job_spec(2, 4), job_spec(1, 4, permitted_nodes=(2, 4)), job_spec(1, 1)])
def test_a_job_for_which_no_scale_would_be_left_keeps_them(told: JobSpec) -> None:
    nodes = "a b" if told.max_nodes > 1 else "a"
    assert seen(running(nodes, told), 1) == told


def test_where_nothing_is_known_nothing_changes() -> None:
    assert seen(running("a b", job_spec(1, 4)), 0) == job_spec(1, 4)
    assert seen(running("a b", job_spec(1, 4)), 9) == job_spec(1, 4)
