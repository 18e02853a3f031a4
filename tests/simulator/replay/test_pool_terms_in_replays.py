"""Replays of one pool: its terms hold, and its limit is the same as a smaller pool."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.allocator.problem.allocation_problem import ObjectiveMetric
from malletrain.allocator.problem.forward_time import ForwardPolicy, ForwardTime
from malletrain.allocator.problem.pools import PoolTerms
from malletrain.cli.simulate.replay_input import terms_of_pool
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Trace
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.options import ReplayEngine, ReplayOptions, ReplayPolicy
from malletrain.simulator.replay.records import JobRecord
from tests.simulator.replay.builders import STAYS, Case, idle, idle_traces, trainers

OPTIONS = ReplayOptions(duration_s=100.0, forward_s=20.0)


@settings(deadline=None, max_examples=80)
@given(
    jobs=st.lists(st.integers(0, 5), min_size=1, max_size=5).flatmap(
        lambda names: st.tuples(*[trainers(f"j{place}") for place, _ in enumerate(names)])
    ),
    nodes=st.integers(1, 8),
    most=st.integers(0, 9),
    policy=st.sampled_from(ReplayPolicy),
)
def test_a_limit_is_the_same_as_fewer_nodes(
    jobs: tuple[ReplayJob, ...],
    nodes: int,
    most: int,
    policy: ReplayPolicy,
) -> None:
    # A node that is idle only after the end keeps the number of all nodes, and so the jobs' curves, the same.
    def replayed(idle_nodes: int, options: ReplayOptions) -> tuple[JobRecord, ...]:
        stays = {f"n{place}": [(0.0 if place < idle_nodes else STAYS, 2 * STAYS)] for place in range(nodes)}
        return Case(idle(stays), jobs, replace(options, policy=policy)).run_replay().jobs

    limited = OPTIONS.of_pool(PoolTerms(max_nodes=most))
    if most:
        assert replayed(nodes, limited) == replayed(min(nodes, most), OPTIONS)
    else:
        assert all(not job.samples for job in replayed(nodes, limited))


@settings(deadline=None, max_examples=60)
@given(trace=idle_traces(), jobs=st.tuples(trainers("a"), trainers("b"), trainers("c")), most=st.integers(0, 4))
def test_no_more_nodes_are_ever_used(trace: Trace, jobs: tuple[ReplayJob, ...], most: int) -> None:
    limited = OPTIONS.of_pool(PoolTerms(max_nodes=most, max_parallel=2))
    result = Case(trace, jobs, limited).run_replay()
    assert max(result.decisions["used"], default=0) <= most
    assert max(result.decisions["active"], default=0) <= 2


def test_each_term_takes_the_place_of_an_option() -> None:
    forward = ForwardTime(30.0, ForwardPolicy.SURVIVAL, 0.3)
    given_options = replace(OPTIONS, max_nodes_per_owner=4, max_parallel=6)
    found = given_options.of_pool(PoolTerms(forward, ObjectiveMetric.SCALING_EFFICIENCY, 9, 3, 2))
    assert (found.forward, found.metric, found.max_nodes) == (forward, ObjectiveMetric.SCALING_EFFICIENCY, 9)
    assert (found.max_nodes_per_owner, found.max_parallel) == (3, 2)
    assert given_options.of_pool(PoolTerms()) == given_options
    wide = given_options.of_pool(PoolTerms(max_nodes_per_owner=9, max_parallel=20))
    assert (wide.max_nodes_per_owner, wide.max_parallel) == (4, 6), "the limits of all pools hold, too"


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="--pool: expected a pool without max_nodes"):
        replace(OPTIONS, engine=ReplayEngine.SERVICES).of_pool(PoolTerms(max_nodes=1))
    with pytest.raises(InvalidInputError, match="--max-parallel"):
        OPTIONS.of_pool(PoolTerms(max_parallel=0))


def test_terms_are_those_of_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "malletrain.toml").write_text("[allocator.pools.debug]\nmax_nodes = 8\nmax_parallel = 3\n")
    monkeypatch.chdir(tmp_path)
    assert terms_of_pool("debug/a100x4") == PoolTerms(max_nodes=8, max_parallel=3)
    with pytest.raises(InvalidInputError, match=r"--pool: expected a pool .*\(debug\), got 'main'"):
        terms_of_pool("main")
