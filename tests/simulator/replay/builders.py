"""Small scenarios and jobs for the tests of a replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from malletrain.allocator.problem.allocation_problem import CostModel, ObjectiveMetric
from malletrain.model.scaling import ScalingPoint
from malletrain.scavenger.idle_trace import Fragment, Trace
from malletrain.simulator.replay.fast_engine import run_replay
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.node_events import NodeEvent, node_events
from malletrain.simulator.replay.options import Accounting, ReplayOptions, ReplayPolicy
from malletrain.simulator.replay.records import ReplayResult

STAYS = 1e6
"""A time in seconds after the end of every small replay."""


def trainer(
    name: str = "a",
    *,
    rates: Sequence[float] = (1.0, 2.0, 4.0, 8.0),
    samples: float = 1e6,
    submit_s: float = 0.0,
    up_s: float = 3.0,
    down_s: float = 2.0,
    least: int = 1,
    most: int = 64,
    model: str = "net",
    owner: str = "",
) -> ReplayJob:
    """A job with these samples/s on 1, 2, 3, … nodes."""
    curve = tuple(ScalingPoint(index + 1, rate) for index, rate in enumerate(rates))
    return ReplayJob(name, model, submit_s, up_s, down_s, least, most, samples, curve, owner)


def idle(fragments: Mapping[str, Sequence[tuple[float, float]]], duration_s: float = 100.0) -> Trace:
    """A trace from the idle fragments of each node."""
    found = [Fragment(node, float(begin), float(end)) for node in fragments for begin, end in fragments[node]]
    found.sort(key=lambda fragment: fragment.idle_from_s)
    return Trace(tuple(found), tuple(fragments), duration_s)


@dataclass(frozen=True)
class Case:
    """Arguments of a replay."""

    trace: Trace
    jobs: tuple[ReplayJob, ...]
    options: ReplayOptions

    def events(self) -> list[NodeEvent]:
        """Changes of the idle set."""
        return node_events(self.trace, self.options.duration_s)

    def run_replay(self) -> ReplayResult:
        """Run the fast engine."""
        return run_replay(self.events(), self.trace.nodes, self.jobs, self.options)


@st.composite
def idle_traces(draw: st.DrawFn) -> Trace:
    """Up to six nodes that come and go at whole seconds, some idle before second 0 and some beyond the end."""
    fragments: dict[str, list[tuple[float, float]]] = {}
    for index in range(draw(st.integers(1, 6))):
        time = draw(st.sampled_from([-20, 0, 0, 0, 7]))
        found: list[tuple[float, float]] = []
        for gap, length in draw(st.lists(st.tuples(st.integers(1, 15), st.integers(1, 40)), max_size=4)):
            begin = time + gap * bool(found) + draw(st.integers(0, 3))
            time = begin + length
            found.append((float(begin), float(time)))
        fragments[f"n{index}"] = found
    if not any(fragments.values()):
        fragments["n0"] = [(0.0, 50.0)]
    return idle(fragments)


@st.composite
def trainers(draw: st.DrawFn, name: str) -> ReplayJob:
    """A job whose figures are powers of two and whole numbers, so that every sum and quotient is exact."""
    exponents = draw(st.lists(st.integers(-1, 5), min_size=1, max_size=5))
    least = draw(st.sampled_from([1, 1, 1, 2, 3]))
    return trainer(
        name,
        rates=[2.0**exponent for exponent in (sorted(exponents) if draw(st.booleans()) else exponents)],
        samples=float(draw(st.sampled_from([1, 8, 50, 200, 1000, 10_000]))),
        submit_s=float(draw(st.integers(0, 60))) if draw(st.booleans()) else 0.0,
        up_s=float(draw(st.sampled_from([0, 1, 3, 18]))),
        down_s=float(draw(st.sampled_from([0, 1, 2, 12]))),
        least=least,
        most=least + draw(st.integers(0, 4)),
        model=draw(st.sampled_from(["net", "other"])),
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Small replays under any options."""
    jobs = [draw(trainers(f"j{index}")) for index in range(draw(st.integers(1, 5)))]
    options = ReplayOptions(
        duration_s=float(draw(st.sampled_from([33, 77, 120]))),
        policy=draw(st.sampled_from(ReplayPolicy)),
        forward_s=float(draw(st.sampled_from([2, 20, 120]))),
        max_parallel=draw(st.integers(1, 3)),
        accounting=draw(st.sampled_from(Accounting)),
        cost_model=draw(st.sampled_from(CostModel)),
        charge=draw(st.sampled_from([None, *CostModel])),
        metric=draw(st.sampled_from(ObjectiveMetric)),
        commit_s=float(draw(st.sampled_from([0, 2, 5]))),
        fixed_nodes=draw(st.sampled_from([None, 1, 2, 3])),
        paper_quirks=draw(st.booleans()),
        free=draw(st.sampled_from([False, False, False, True])),
    )
    return Case(draw(idle_traces()), tuple(sorted(jobs, key=lambda job: job.submit_s)), options)
