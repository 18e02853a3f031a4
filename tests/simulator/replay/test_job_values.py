"""Value curves in replays: deadlines are met that are missed without, in both engines; figures stay in samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from malletrain.model.job_value import LINEAR_VALUE
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.job_values import parse_value
from malletrain.simulator.replay.evaluation import Scenario, evaluate
from malletrain.simulator.replay.fast_engine import run_replay
from malletrain.simulator.replay.job_set import ReplayJob, read_job_set
from malletrain.simulator.replay.options import ReplayEngine, ReplayOptions
from malletrain.simulator.replay.records import ReplayResult
from malletrain.simulator.services.engine import run_services_replay
from tests.simulator.replay.builders import idle, trainer

HOUR = 3600.0
ENGINES = {ReplayEngine.FAST: run_replay, ReplayEngine.SERVICES: run_services_replay}


def scenario() -> Scenario:
    """Eight nodes for four hours; two of them leave every hour for half of it."""
    always = {f"n{index}": [(0.0, 4 * HOUR)] for index in range(6)}
    parts = {f"m{index}": [(hour * HOUR, (hour + 0.5) * HOUR) for hour in range(4)] for index in range(2)}
    return Scenario.of(idle({**always, **parts}, 4 * HOUR), 4 * HOUR)


def jobs(value: str) -> tuple[ReplayJob, ...]:
    """One that scales well and would have all nodes, and one of three times as slow samples that has a deadline."""
    fast = trainer("fast", rates=[9.0 * n for n in range(1, 9)], samples=1e9, up_s=10.0, down_s=5.0)
    late = trainer("late", rates=[3.0 * n for n in range(1, 9)], samples=5e4, up_s=10.0, down_s=5.0)
    return fast, replace(late, value=parse_value(value))


def ended(result: ReplayResult) -> float | None:
    return next(job.ended_s for job in result.jobs if job.job == "late")


def run(engine: ReplayEngine, value: str) -> ReplayResult:
    given = scenario()
    options = ReplayOptions(duration_s=given.duration_s, max_parallel=2, engine=engine)
    return ENGINES[engine](given.events, given.nodes, jobs(value), options)


@pytest.mark.parametrize("engine", list(ENGINES))
def test_a_deadline_is_met_that_is_missed_without(engine: ReplayEngine) -> None:
    assert ended(run(engine, "linear")) is None, "the other job is worth more on every node"
    met = ended(run(engine, "deadline=3h:8"))
    assert met is not None
    assert met <= 3 * HOUR * 1.001
    assert met > 2 * HOUR, "it had what it needs, and not all nodes"


def test_both_engines_agree() -> None:
    fast, services = (ended(run(engine, "deadline=3h:8")) for engine in ENGINES)
    assert fast == pytest.approx(services, rel=0.02)


@pytest.mark.parametrize("value", ["diminishing=0.5", "points=1:0.2,4:1"])
def test_figures_are_in_samples_whatever_they_are_worth(value: str) -> None:
    given = scenario()
    options = ReplayOptions(duration_s=given.duration_s, max_parallel=2)
    valued, plain = (evaluate(given, jobs(text), options, bound=False).metrics for text in (value, "linear"))
    assert valued.static_outcome == plain.static_outcome
    assert valued.utilization_efficiency == pytest.approx(valued.samples / valued.static_outcome)


def test_job_sets_may_have_values(tmp_path: Path) -> None:
    head = "job,model,submit_s,scale_up_s,scale_down_s,min_nodes,max_nodes,samples,value\n"
    (tmp_path / "scaling.csv").write_text("model,nodes,samples_per_s\nnet,1,10\n", encoding="utf-8")
    path = tmp_path / "jobs.csv"
    path.write_text(
        head + 'a,net,60,0,0,1,1,9,deadline=2h\nb,net,70,0,0,1,1,9,\nc,net,80,0,0,1,1,9,"points=1:1,2:3"\n', "utf-8"
    )
    first, second, third = read_job_set(path, tmp_path / "scaling.csv")
    assert first.value == parse_value("deadline=2h")
    assert (second.value, third.value) == (LINEAR_VALUE, parse_value("points=1:1,2:3"))
    for text in ("deadline=1790000000", "cheap"):
        path.write_text(head + f"a,net,0,0,0,1,1,9,{text}\n", encoding="utf-8")
        with pytest.raises(InvalidInputError, match=r"jobs\.csv:2: value"):
            read_job_set(path, tmp_path / "scaling.csv")
