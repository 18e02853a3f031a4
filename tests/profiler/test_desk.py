from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import create_engine
from sqlalchemy.pool import StaticPool

from malletrain.profiler.desk import Desk, JobView, Order, Scene, advance
from malletrain.profiler.kinship import Kinship
from malletrain.profiler.runs import Run, RunState
from malletrain.profiler.store import ProfilerStore
from tests.profiler.town import PACE, Resident, Town, scales


def finish(town: Town, job_id: str, ticks: int = 400) -> Run:
    for _ in range(ticks):
        town.tick()
        run = town.desk.runs.get(job_id)
        if run is not None and run.state is RunState.DONE:
            return run
    raise AssertionError(f"not done after {ticks} s: {town.desk}")


def test_one_growth_to_the_top_and_then_down() -> None:
    town = Town(16, {"a": Resident(scales(1, 16), nodes=1)}, wanted=["a"])
    run = finish(town, "a")
    assert run.visited == (16, 8, 4, 2, 1)
    assert (run.growths, run.shrinks) == (1, 4)
    assert run.donors == ()
    assert 0 < run.stalled_node_seconds < run.node_seconds
    assert town.orders == {}


@pytest.mark.parametrize(("known", "ticks"), [({}, 5), ({8: 3}, 4), ({8: 5}, 1)])
def test_what_is_known_of_the_top_for_sure_and_of_just_now_counts(known: dict[int, int], ticks: int) -> None:
    town = Town(8, {"a": Resident(scales(1, 8), nodes=8, steps=dict(known))}, wanted=["a"])
    for _ in range(ticks):
        assert 8 not in (town.desk.runs["a"].visited if "a" in town.desk.runs else ())
        town.tick()
    assert town.desk.runs["a"].visited == (8,)
    assert town.desk.runs["a"].nodes == 4


def test_old_steps_of_a_scale_do_not_count() -> None:
    town = Town(8, {"a": Resident(scales(1, 8), nodes=1, steps={8: 100})}, wanted=["a"])
    for _ in range(20):
        if 8 not in (town.desk.runs["a"].visited if "a" in town.desk.runs else ()):
            town.tick()
    assert town.residents["a"].steps[8] == 100 + 3


def test_a_start_from_nothing_is_no_growth() -> None:
    assert finish(Town(4, {"a": Resident(scales(1, 4))}, wanted=["a"]), "a").growths == 0


def test_only_permitted_scales_are_measured() -> None:
    town = Town(16, {"a": Resident((2, 3, 6, 12), nodes=2)}, wanted=["a"])
    assert finish(town, "a").visited == (12, 6, 3, 2)


def test_donors_give_one_after_the_other_and_the_job_grows_once() -> None:
    givers = {f"g{index}": Resident(scales(2, 8), nodes=4) for index in range(4)}
    town = Town(17, {"a": Resident(scales(1, 8), nodes=1), **givers}, wanted=["a"])
    shrinking: list[set[str]] = []
    while not (run := town.desk.runs.get("a")) or run.state is not RunState.DONE:
        before = {name: entry.nodes for name, entry in town.residents.items()}
        town.tick()
        shrinking.append({name for name, entry in town.residents.items() if name != "a" and entry.nodes < before[name]})
    assert [names for names in shrinking if names] == [{"g0"}, {"g1"}, {"g2"}, {"g3"}][: len(run.donors)]
    assert run.donors == ("g0", "g1", "g2", "g3")
    assert run.growths == 1
    assert run.visited[0] == 8
    assert all(town.residents[name].nodes >= 2 for name in givers)


def test_while_nodes_are_gathered_everybody_keeps_what_they_have() -> None:
    town = Town(
        12, {"a": Resident(scales(1, 8)), "b": Resident(scales(1, 8), 6), "c": Resident(scales(1, 8), 6)}, ["a"]
    )
    step = town.tick()
    assert step.orders == {"a": Order(), "b": Order(1), "c": Order()}


def test_a_run_stays_in_the_pool_of_its_job() -> None:
    jobs = (
        JobView("a", scales(1, 8), 0, steady=True, pool=None),
        JobView("b", scales(1, 8), 2, steady=True, pool="gpu"),
        JobView("c", scales(1, 8), 1, steady=True, pool="gpu"),
        JobView("d", scales(1, 8), 3, steady=True, pool="cpu"),
    )
    town = Town(16, {name: Resident(scales(1, 8)) for name in "abcd"}, wanted=["a", "b"])
    scene = Scene(town.now, 16, jobs, {"gpu": 4, "cpu": 12})
    step = advance(town.desk, scene, town, replace(PACE, least_top_share=0.5))
    assert step.desk.runs["a"].reason == "waits for nodes: 2 needed, 0 within reach"
    assert step.desk.active is not None
    assert (step.desk.active.job_id, step.desk.active.top) == ("b", 3)
    expected = {"a": Order(), "b": Order(3, grow=True), "c": Order()}
    assert step.orders == expected, "the other pool is left alone; who might come to this one waits"


def test_too_few_nodes_and_the_run_waits_in_its_place() -> None:
    town = Town(
        4, {"a": Resident(scales(4, 8)), "b": Resident(scales(2, 4), nodes=2), "c": Resident(scales(1, 2))}, ["a", "c"]
    )
    town.residents["b"].nodes = 3
    town.tick()
    assert town.desk.runs["a"].state is RunState.QUEUED
    assert town.desk.runs["a"].reason == "waits for nodes: 5 needed, 0 within reach"
    assert town.desk.active is not None
    assert town.desk.active.job_id == "c", "those behind it that have enough need not wait"
    town.idle = 12
    finish(town, "a")


def test_preempted_in_the_middle_it_goes_on_with_what_is_left() -> None:
    town = Town(8, {"a": Resident(scales(1, 8), nodes=1)}, wanted=["a"])
    while town.desk.active is None or town.desk.active.state is not RunState.MEASURING:
        town.tick()
    for _ in range(3):
        town.lose("a")
    run = finish(town, "a")
    assert run.visited == (5, 4, 2, 1)
    assert run.growths == 1


def test_all_nodes_lost_it_goes_on_below_what_it_has_measured() -> None:
    town = Town(8, {"a": Resident(scales(1, 8), nodes=1)}, wanted=["a"])
    while 8 not in (town.desk.runs["a"].visited if "a" in town.desk.runs else ()):
        town.tick()
    while town.residents["a"].nodes:
        town.lose("a")
    town.idle = 0
    town.tick()
    assert town.desk.runs["a"].state is RunState.QUEUED
    assert town.orders == {}
    town.idle = 6
    run = finish(town, "a")
    assert run.visited[0] == 8
    assert run.visited[-1] == 1


def test_a_job_that_is_gone_lets_everybody_go_at_once() -> None:
    town = Town(9, {"a": Resident(scales(1, 8), 1), "b": Resident(scales(1, 8), 8)}, wanted=["a"])
    town.tick()
    assert town.orders
    del town.residents["a"]
    assert town.tick().orders == {}
    assert town.desk.runs == {}


def test_asked_for_goes_even_where_nothing_is_wanted() -> None:
    town = Town(4, {"a": Resident(scales(1, 4), nodes=4)})
    town.tick()
    assert town.desk.runs == {}
    town.desk = town.desk.ask("a")
    assert finish(town, "a").visited == (4, 2, 1)
    town.desk = town.desk.ask("a")
    assert town.desk.runs["a"].state is RunState.QUEUED


def test_asking_twice_does_not_begin_anew() -> None:
    town = Town(4, {"a": Resident(scales(1, 4), nodes=4)})
    town.desk = town.desk.ask("a")
    town.tick()
    assert town.desk.ask("a") == town.desk


def test_a_queued_run_that_nobody_wants_any_more_is_dropped() -> None:
    town = Town(2, {"a": Resident(scales(3, 4)), "b": Resident(scales(1, 2), 2)}, wanted=["a"])
    town.tick()
    assert town.desk.runs["a"].state is RunState.QUEUED
    town.wanted.clear()
    town.tick()
    assert town.desk.runs == {}


def test_over_a_hundred_profiles_interruptions_differ_by_one_at_most() -> None:
    names = [f"j{index}" for index in range(10)]
    town = Town(40, {name: Resident(scales(1, 12), nodes=4) for name in names})
    least: dict[str, int] = dict.fromkeys(names, 99)
    for round_number in range(100):
        newcomer = f"n{round_number:03d}"
        town.residents[newcomer] = Resident(scales(1, 10))
        town.wanted.add(newcomer)
        while (run := town.desk.runs.get(newcomer)) is None or run.state is not RunState.DONE:
            town.tick()
            for name in names:
                least[name] = min(least[name], town.residents[name].nodes)
        del town.residents[newcomer]
        town.share_out()
    counts = [town.desk.ledger.counts.get(name, 0) for name in names]
    assert sum(counts) >= 100
    assert max(counts) - min(counts) <= 1
    assert min(least.values()) >= 1


@st.composite
def towns(draw: st.DrawFn) -> Town:
    residents = {}
    idle = 0
    for index in range(draw(st.integers(1, 5))):
        low = draw(st.integers(1, 3))
        permitted = draw(st.sets(st.integers(low, 12), min_size=1, max_size=6).map(sorted))
        nodes = draw(st.sampled_from([0, *permitted]))
        idle += nodes
        residents[f"j{index}"] = Resident(tuple(permitted), nodes)
    wanted = draw(st.sets(st.sampled_from(sorted(residents)), min_size=1))
    return Town(idle + draw(st.integers(0, 6)), residents, sorted(wanted))


@given(towns(), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 4)), max_size=4))
def test_nobody_is_stopped_whatever_happens_and_runs_end(town: Town, losses: list[tuple[int, int]]) -> None:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    calm = 0
    for tick in range(400):
        calm = calm + 1 if town.desk.active is None else 0
        if calm > 20 and tick > 61:
            break
        for when, which in losses:
            if when == tick:
                town.lose(sorted(town.residents)[which % len(town.residents)])
        before = {name: entry.nodes for name, entry in town.residents.items()}
        steady = {job.job_id for job in town.scene().jobs if job.steady}
        step = town.tick()
        active = town.desk.active
        shrunk = [name for name in before if town.residents[name].nodes < before[name]]
        others = [name for name in shrunk if active is None or name != active.job_id]
        assert len(others) <= 1
        assert all(town.residents[name].nodes >= town.residents[name].scales[0] for name in others)
        assert set(others) <= steady | {name for name in others if town.now >= town.residents[name].busy_until - 3}
        if active is not None and active.state is RunState.MEASURING:
            assert set(step.orders) == {active.job_id}
            assert not step.orders[active.job_id].grow
        if tick % 60 == 7:
            store = ProfilerStore(engine)
            store.save(town.desk, Kinship(8))
            assert ProfilerStore(engine).load_desk() == town.desk
    assert town.desk.active is None
    assert town.orders == {}
    assert sum(entry.nodes for entry in town.residents.values()) <= town.idle
    for run in town.desk.runs.values():
        assert run.state in (RunState.DONE, RunState.QUEUED)
        assert run.growths <= 1 + len(losses)
        assert list(run.visited) == sorted(run.visited, reverse=True)


def test_an_empty_store_is_an_empty_desk() -> None:
    store = ProfilerStore(create_engine("sqlite://", poolclass=StaticPool))
    assert store.load_desk() == Desk()
    assert store.load_kinship(8).families == {}


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_run_that_cannot_climb_in_time_waits_again(share: float) -> None:
    town = Town(9, {"a": Resident(scales(1, 8), 1), "b": Resident(scales(1, 8), 8)}, wanted=["a"])
    town.tick()
    town.residents["b"].nodes, town.residents["b"].busy_until = 8, 1e9  # it never lets go
    town.residents["a"].nodes = 1
    for _ in range(int(150 * share) + 110):
        town.tick(stall=1e9)
        town.residents["b"].nodes, town.residents["a"].nodes = 8, 1
        if town.desk.active is None:
            break
    assert town.desk.runs["a"].state is RunState.QUEUED
    assert "in time" in town.desk.runs["a"].reason or "waits for nodes" in town.desk.runs["a"].reason
