"""Plans that meet a world that has moved on: the part that still fits is applied."""

from __future__ import annotations

import pytest

from malletrain.job_manager.machine.state import Omission
from malletrain.job_manager.machine.state_machine import TransactionResult
from malletrain.job_manager.machine.stimuli import Outcome, PlanReceived
from malletrain.runtime.errors import StalePlanError
from tests.job_manager.harness import MachineHarness, running
from tests.support.builders import job_spec

ONE, TWO = "j000001", "j000002"


def two_jobs(*, spare: str = "", first: str = "a b", second: str = "c d") -> MachineHarness:
    machine = running(first, job_spec(1, 6), job_spec(1, 6), spare=f"{second} {spare}")
    machine.plan(j1=first, j2=second)
    machine.confirm(TWO)
    return machine


def partly(machine: MachineHarness, **assignments: str) -> TransactionResult:
    pairs = tuple((f"j{int(name[1:]):06d}", tuple(nodes.split())) for name, nodes in assignments.items())
    return machine(PlanReceived(machine.state.generation + 1, pairs, partial=True))


def test_a_node_that_has_left_is_left_out_and_the_rest_applied() -> None:
    machine = two_jobs(spare="e f")
    machine.leave("e")
    result = partly(machine, j1="a b e", j2="c d f")
    assert result.rescaled == (TWO,)
    assert result.omitted == (Omission(ONE, ("e",), f"node e (for job {ONE}) is not idle"),)
    assert (machine.job(ONE).wanted, machine.job(TWO).wanted) == (("a", "b"), ("c", "d", "f"))
    assert machine.job(ONE).plan_generation < machine.job(TWO).plan_generation == machine.state.generation


def test_a_job_that_has_ended_is_left_out() -> None:
    machine = two_jobs(spare="e")
    machine.end(ONE, Outcome.EXITED)
    result = partly(machine, j1="a b", j2="c d e")
    assert (result.rescaled, [omission.job_id for omission in result.omitted]) == ((TWO,), [ONE])


def test_a_scale_that_is_not_permitted_any_more_becomes_the_largest_that_is() -> None:
    machine = running("a b", job_spec(2, 4, permitted_nodes=(2, 4)), job_spec(), spare="c d e")
    machine.leave("d")
    result = partly(machine, j1="a b c d", j2="e")
    assert machine.job(ONE).wanted == ("a", "b"), "of three nodes, two are used, and those that train are kept"
    assert [(omission.job_id, omission.nodes) for omission in result.omitted] == [(ONE, ("c", "d"))]
    assert result.rescaled == (TWO,)


def test_nodes_of_a_job_whose_part_falls_away_are_nobody_elses() -> None:
    """The first job was to give b to the second; that is less than it needs, so it keeps b."""
    machine = running("a b", job_spec(2, 4), job_spec(1, 4), spare="c e f")
    machine.plan(j1="a b", j2="c")
    machine.confirm(TWO)
    result = partly(machine, j1="a", j2="b c e")
    assert (machine.job(ONE).wanted, machine.job(TWO).wanted) == (("a", "b"), ("c", "e"))
    assert result.rescaled == (TWO,)


def test_a_job_that_would_move_gets_as_many_nodes_and_keeps_those_that_it_has() -> None:
    """The plan was made before the first job got b, which it then gave to the second one."""
    machine = two_jobs(spare="e f")
    with pytest.raises(StalePlanError, match="gain or to lose"):
        machine.plan(j1="a e f", j2="b c d")
    result = partly(machine, j1="a e f", j2="b c d")
    assert (machine.job(ONE).wanted, machine.job(TWO).wanted) == (("a", "b", "e"), ("c", "d"))
    assert result.rescaled == (ONE,)
    assert [(entry.job_id, entry.nodes) for entry in result.omitted] == [(ONE, ("f",)), (TWO, ("b",))]
    partly(machine, j1="f", j2="c d")
    assert machine.job(ONE).wanted == ("a",), "of as many nodes as it has, or fewer, it gains none"


def test_whole_replicas_do_not_get_other_nodes_than_planned() -> None:
    machine = running("a b", job_spec(2, 4, nodes_per_replica=2), job_spec(), spare="c d")
    with pytest.raises(StalePlanError, match="gain or to lose"):
        partly(machine, j1="a c")


def test_a_shrink_that_keeps_a_node_which_has_left_is_still_a_shrink() -> None:
    machine = two_jobs(first="a b x")
    machine.leave("x")
    result = partly(machine, j1="a x", j2="b c d")
    assert (machine.job(ONE).wanted, machine.job(TWO).wanted) == (("a",), ("b", "c", "d"))
    assert result.rescaled == (ONE, TWO)
    assert result.omitted == (Omission(ONE, ("x",), f"node x (for job {ONE}) is not idle"),)


def test_a_plan_of_which_nothing_fits_is_refused() -> None:
    machine = two_jobs(spare="e")
    machine.leave("e")
    before = machine.state
    with pytest.raises(StalePlanError, match=r"node e .* is not idle"):
        partly(machine, j1="a b e", j2="c d")
    assert machine.state is before


def test_without_the_wish_a_plan_is_refused_as_a_whole() -> None:
    machine = two_jobs(spare="e f")
    machine.leave("e")
    with pytest.raises(StalePlanError, match=r"node e .* is not idle"):
        machine.plan(j1="a b e", j2="c d f")


def test_a_generation_that_is_not_newer_is_refused_whatever_fits() -> None:
    machine = two_jobs(spare="e")
    with pytest.raises(StalePlanError, match="generation"):
        machine(PlanReceived(machine.state.generation, ((ONE, ("a", "b", "e")),), partial=True))


def test_a_node_that_is_named_twice_goes_to_the_first_job() -> None:
    machine = two_jobs(spare="e")
    result = partly(machine, j1="a b e", j2="c d e")
    assert result.rescaled == (ONE,)
    assert result.omitted[0].reason == f"node e (for job {TWO}) is job {ONE}'s"
