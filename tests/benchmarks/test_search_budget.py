"""The simulated cluster of the comparison of searches: budgets, nodes and progress."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.studies.search_budget import (
    MAX_NODES,
    WAYS,
    SimulatedCluster,
    Way,
    best_at,
    difference,
    read_curves,
    row,
    run_search,
    speed,
)
from benchmarks.studies.search_curves import PASSES, Choice, all_choices
from malletrain.model.job_state import JobState
from malletrain.v1 import resources_pb2

optuna = pytest.importorskip("optuna", reason="needs malletrain[search]")


def curves() -> dict[Choice, tuple[float, ...]]:
    """Made up: those with more large convolutions and the middle learning rate are better."""
    goods = {
        choice: choice.operations.count("conv3x3") / 4 + 0.2 * (choice.learning_rate == 0.05)
        for choice in all_choices()
    }
    return {choice: tuple(good * (step + 1) / PASSES for step in range(PASSES)) for choice, good in goods.items()}


def test_speed_is_linear_between_what_is_known() -> None:
    assert [speed(nodes) for nodes in (0, 1, 3, 8)] == [0.0, 1.0, 2.7, 6.0]


@pytest.mark.parametrize("name", WAYS)
def test_a_search_spends_its_budget(name: str) -> None:
    found = run_search(WAYS[name], 1, curves(), 5.0)
    assert found.budget <= found.spent < found.budget + 16
    assert any(job.state is JobState.COMPLETED for job in found.jobs.values())
    assert 0.0 < best_at(found, 1.0) <= 0.95
    assert best_at(found, 0.0) == 0.0


def a_cluster(*, fixed: bool) -> SimulatedCluster:
    cluster = SimulatedCluster(curves(), fixed, 1e9, random.Random(1))
    words = ["train", "first=conv3x3", "second=conv3x3", "third=conv3x3", "extra=True", "lr=0.05"]
    for number in range(4):
        cluster.submit(resources_pb2.JobSpec(command=words), f"r{number}")
    return cluster


def test_nodes_that_are_idle_are_shared_by_weight_and_none_is_given_twice() -> None:
    cluster = a_cluster(fixed=False)
    cluster.set_weight("r3", 64.0)
    sizes = []
    while not cluster.jobs["r3"].state.final:
        cluster.pass_time(0.0)
        held = [node for job in cluster.jobs.values() for node in job.nodes]
        assert len(held) == len(set(held))
        assert set(held) <= cluster.idle
        sizes.append([len(job.nodes) for job in cluster.jobs.values()])
        assert max(sizes[-1]) <= MAX_NODES
    assert all(size[3] >= max(size[:3]) for size in sizes[1:-1])
    assert len({len(cluster.idle), *map(sum, sizes)}) > 1, "nodes come and go"


def test_the_same_seed_gives_the_same_search_and_its_rows() -> None:
    first, again = (run_search(Way("tpe", "median", 4.0), 3, curves(), 1.0) for _ in range(2))
    assert first.best == again.best
    assert row("x", [first, again]).startswith(f"| x | {best_at(first, 1 / 3):.3f} ± 0.000 |")
    assert difference([first], [again]) == "+0.000"


def test_fixed_nodes_stay_with_their_trial() -> None:
    cluster = a_cluster(fixed=True)
    seen = set()
    while not cluster.jobs["r0"].state.final:
        seen.add(cluster.jobs["r0"].nodes)
        cluster.pass_time(0.0)
    assert seen == {(), ("n00", "n01")}


def test_curves_are_kept_in_a_file(tmp_path: Path) -> None:
    choice = all_choices()[5]
    path = tmp_path / "curves"
    path.write_text('[[["conv3x3", "conv3x3", "conv3x3"], true, 0.2], [0.1, 0.2, 0.3, 0.4]]\n')
    assert read_curves(path, 1) == {choice: (0.1, 0.2, 0.3, 0.4)}
