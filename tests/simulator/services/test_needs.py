"""What jobs need of their nodes, in replays on traces that say what nodes are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from malletrain.allocator.machine.stimuli import Plan, PlanAnswered
from malletrain.cli.simulate.replay_input import trace_of
from malletrain.model.node_needs import NodeNeeds
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.machine.observations import NodeFacts
from malletrain.scavenger.node_traits import entries_of_json, facts_by_node
from malletrain.simulator.replay.evaluation import Scenario, evaluate
from malletrain.simulator.replay.fast_engine import run_replay
from malletrain.simulator.replay.job_set import ReplayJob, Workload
from malletrain.simulator.replay.options import ReplayEngine, ReplayOptions
from malletrain.simulator.services.engine import run_services_replay
from tests.simulator.replay.builders import idle, trainer

DURATION = 4000.0
OPTIONS = ReplayOptions(duration_s=DURATION, engine=ReplayEngine.SERVICES, max_parallel=4)
TRACE = idle(
    {
        "a1": [(0, 3000)],
        "a2": [(500, DURATION)],
        "a3": [(0, 1000), (1200, DURATION)],
        "v1": [(0, DURATION)],
        "v2": [(100, 2000)],
    },
    DURATION,
)
FACTS = {
    name: NodeFacts("", "a100" if name[0] == "a" else "v100", 4, ("ib",) if name == "a1" else ())
    for name in TRACE.nodes
}
JOBS = (
    replace(trainer("needs"), needs=NodeNeeds(gpu="A100")),
    trainer("any", submit_s=1.0),
    replace(trainer("ib", submit_s=2.0, most=1), needs=NodeNeeds(constraint="ib")),
)


def used(jobs: tuple[ReplayJob, ...], facts: dict[str, NodeFacts]) -> dict[str, set[str]]:
    """The nodes that plans have given to each job."""
    found: dict[str, set[str]] = {job.id: set() for job in jobs}
    names = {f"j{number:06d}": job.id for number, job in enumerate(jobs, start=1)}

    def note(_: float, plan: Plan, answer: PlanAnswered) -> None:
        del answer
        for entry in plan.assignments:
            found[names[entry.job_id]].update(entry.nodes)

    scenario = Scenario.of(TRACE, DURATION, facts)
    run_services_replay(scenario.events, scenario.nodes, jobs, OPTIONS, on_plan=note, facts=facts)
    return found


def test_jobs_get_nodes_that_suit_them_only() -> None:
    found = used(JOBS, FACTS)
    assert found["needs"]
    assert found["needs"] <= {"a1", "a2", "a3"}
    assert found["ib"] <= {"a1"}
    assert found["any"] & {"v1", "v2"}, "what others can not use"


def test_without_needs_nothing_depends_on_what_nodes_are_within_a_pool() -> None:
    jobs = tuple(replace(job, needs=NodeNeeds()) for job in JOBS)
    alike = {name: NodeFacts("", "a100", 4, ("ib",) if name == "a1" else ()) for name in TRACE.nodes}
    assert used(jobs, alike) == used(jobs, {})


def test_the_figures_of_a_replay_with_needs() -> None:
    found = evaluate(Scenario.of(TRACE, DURATION, FACTS), JOBS, OPTIONS)
    assert 0 < found.metrics.utilization_efficiency <= 1.0
    assert len(found.result.jobs) == 3


def test_the_fast_engine_and_jobs_that_can_never_run_are_refused() -> None:
    scenario = Scenario.of(TRACE, DURATION, FACTS)
    with pytest.raises(InvalidInputError, match="--engine: expected services"):
        run_replay(scenario.events, scenario.nodes, JOBS, replace(OPTIONS, engine=ReplayEngine.FAST))
    with pytest.raises(InvalidInputError, match="at least 1 nodes that suit job needs"):
        evaluate(Scenario.of(TRACE, DURATION), JOBS, OPTIONS)
    with pytest.raises(InvalidInputError, match="at least 2 nodes that suit job ib"):
        evaluate(scenario, (replace(JOBS[2], min_nodes=2, max_nodes=2),), OPTIONS)


def test_the_json_beside_a_trace_says_what_nodes_are(tmp_path: Path) -> None:
    path = tmp_path / "idle.csv"
    path.write_text("node,idle_from_s,idle_until_s\na1,0,50\nv1,0,80\n")
    traits = {"a[1-2]": {"gpu_type": "a100", "gpus": 4}, "v1": {"cores": 8}}
    beside = {"nodes": ["a1", "a2", "v1"], "duration_s": 100, "node_traits": traits}
    path.with_suffix(".json").write_text(json.dumps(beside))
    options = ReplayOptions(duration_s=1.0)
    given = trace_of(path, None, None, Workload(JOBS, "jobs"), options)
    assert given.scenario.facts == {
        "a1": NodeFacts("", "a100", 4),
        "a2": NodeFacts("", "a100", 4),
        "v1": NodeFacts("", "", 0, cpus=8),
    }
    assert trace_of(path, 1, None, Workload(JOBS, "jobs"), options).scenario.facts["v1"].cpus == 8, (
        "of other nodes, too"
    )


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ([], "traits"),
        ({"a1": 4}, "traits.a1"),
        ({"a1": {"gpus": -1}}, "traits.a1.gpus"),
        ({"a1": {"gpus": 2000}}, "traits.a1.gpus"),
        ({"a1": {"gpu": "a100"}}, "traits.a1.gpu"),
        ({"a9": {}}, "traits.a9"),
        ({"a[1": {}}, "traits.a[1"),
        ({"a1": {"gpu_type": "a100"}}, "traits.a1.gpus"),
    ],
)
def test_what_cannot_be_read_of_nodes_is_named(value: object, place: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        facts_by_node(entries_of_json(value, "traits"), ["a1"], {}, "traits", "idle.csv")
    assert caught.value.field == place
