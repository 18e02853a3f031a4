"""The wall clock is set: whatever lasts for a while lasts as long as before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.runtime.clock import WatchedClock
from malletrain.runtime.config import Settings
from malletrain.scavenger.machine.idle_set import IdleSet
from malletrain.scavenger.machine.observations import Observation
from malletrain.scavenger.machine.placeholder_state import PlaceholderState
from malletrain.scavenger.machine.placeholders import ListedPlaceholder, PlaceholderPhase, PlaceholderPolicy
from malletrain.scavenger.machine.quarantine import Quarantine, QuarantinePolicy
from malletrain.scavenger.machine.stays import StayEstimator
from malletrain.scavenger.machine.stimuli import Due, NodesReclaimed
from malletrain.scavenger.service import create
from malletrain.scavenger.settings import ScavengerSettings
from malletrain.scavenger.sources.mixed import MixedSource
from malletrain.scavenger.sources.schedulers.idle_ages import IdleAges
from malletrain.scavenger.sources.trace import StaticSource
from malletrain.v1 import scavenger_pb2
from tests.support.access import CREDENTIAL
from tests.support.channels import knowing_stand_ins
from tests.support.clocks import SetClock

HOUR = 3600.0
Actions = list[tuple[float, float, str, frozenset[str]]]
STEPS = st.sampled_from([0.0, 0.0, 0.0, HOUR, -HOUR, 86_400.0])
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from([1.0, 10.0, 40.0]),
        STEPS,
        st.sampled_from(["observe", "observe", "reclaim", "tick"]),
        st.frozensets(st.sampled_from(["a", "b", "c"])),
    ),
    max_size=30,
)


def events(
    actions: list[tuple[float, float, str, frozenset[str]]], *, stepped: bool
) -> list[tuple[list[str], list[str]]]:
    """Who joins and who leaves at each action, with the clock set between them or left alone."""
    now, idle_set, ages, found = 1e6, IdleSet(30.0), IdleAges(), []
    for passed, step, action, nodes in actions:
        now += passed
        if stepped and step:
            now += step
            idle_set.move_times(step)
            ages.move_times(step)
        if action == "observe":
            event = idle_set.observe(now, ages.update(now, sorted(nodes)))
        elif action == "reclaim":
            event = idle_set.reclaim(now, sorted(nodes), 60.0)
        else:
            event = idle_set.tick(now)
        found.append(([node.name for node in event.joined], list(event.left)))
    return found


@given(ACTIONS)
def test_nodes_join_and_leave_as_if_the_clock_had_not_been_set(actions: Actions) -> None:
    assert events(actions, stepped=True) == events(actions, stepped=False)


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_quarantine_lasts_as_long_as_before_and_so_does_its_cause(step: float) -> None:
    moved, alike = (Quarantine(QuarantinePolicy(failures=2.0, half_life_seconds=600.0)) for _ in range(2))
    for quarantine in (moved, alike):
        quarantine.failed("a", HOUR)
        quarantine.failed("a", HOUR)
    moved.move_times(step)
    for later in (0.0, 100.0, 1000.0, 3000.0):
        assert moved.quarantined(HOUR + step + later).keys() == alike.quarantined(HOUR + later).keys()
    assert moved.failed("a", HOUR + step + 500.0) == pytest.approx(alike.failed("a", HOUR + 500.0))


@pytest.mark.parametrize("step", [HOUR, -HOUR])
@pytest.mark.parametrize("later", [1.0, 12.0, 20.0, 45.0, 700.0])
def test_placeholders_are_submitted_and_cancelled_as_if_it_had_not_been_set(step: float, later: float) -> None:
    policy = PlaceholderPolicy()
    state = PlaceholderState()
    state = state.submitted("1", "a", 0.0, 400.0).started("1", "a", 1.0)
    state = state.submitted("2", "b", 2.0, 400.0).listed(
        {"1": ListedPlaceholder("a", PlaceholderPhase.RUNNING), "2": ListedPlaceholder("b", PlaceholderPhase.PENDING)},
        3.0,
        3.0,
    )
    state = state.submission_failed("c", "a wrong account", 3.0, 4.0, policy)
    state = state.observed({"a"}, frozenset(), 5.0).preempted("1", 5.0, policy)
    usable = {"b": 1000.0, "c": 1000.0, "d": 1000.0}
    _, expected = state.decide(usable, 4, policy, 5.0 + later)
    moved = state.moved(step)
    assert moved.decide(usable, 4, policy, 5.0 + later + step)[1] == expected
    assert moved.room(4, policy, 5.0 + later + step) == state.room(4, policy, 5.0 + later)


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_how_long_nodes_stay_is_not_learned_from_a_step(step: float) -> None:
    stays, alike = (StayEstimator(horizon_seconds=HOUR) for _ in range(2))
    for estimator, offset in ((stays, step), (alike, 0.0)):
        estimator.observe(0.0, {"a": 0.0})
        estimator.move_times(offset)
        estimator.observe(60.0 + offset, {})
    assert stays.expected_stay(60.0 + step, 50.0 + step) == alike.expected_stay(60.0, 50.0)


def test_what_schedulers_say_of_the_future_stays() -> None:
    seen = Observation(5.0, {"a": 1.0}, ends={"a": 100.0}, reserved={"a": 90.0}, watched={"a": 2.0})
    moved = seen.moved(HOUR)
    assert (moved.time, moved.idle, moved.watched) == (5.0 + HOUR, {"a": 1.0 + HOUR}, {"a": 2.0 + HOUR})
    assert (moved.ends, moved.reserved) == (seen.ends, seen.reserved)


class TriggeredSource(StaticSource):
    """Observes its nodes anew whenever it is told to."""

    def __init__(self, nodes: list[str], clock: SetClock) -> None:
        super().__init__(nodes, clock)
        self.trigger = asyncio.Event()

    async def observations(self) -> AsyncIterator[Observation]:
        while True:
            async for observation in super().observations():
                yield observation
            await self.trigger.wait()
            self.trigger.clear()


@pytest.mark.parametrize("step", [HOUR, -HOUR])
async def test_what_another_source_observed_before_the_step_moves_too(step: float) -> None:
    clock = SetClock()
    triggered = TriggeredSource(["b"], clock)
    source = MixedSource([StaticSource(["a"], clock), triggered])
    begin = clock.time()
    async with asyncio.timeout(10.0):
        async for merged in source.observations():
            if merged.time != begin:
                break
            if len(merged.idle) == 2:
                source.move_times(step)
                clock.offset += step
                clock.passed += 10.0
                triggered.trigger.set()
    assert (merged.time, merged.idle) == (begin + step + 10.0, {"a": begin + step, "b": begin + step + 10.0})


def test_a_step_is_told_before_the_new_time() -> None:
    clock = SetClock()
    watched, told = WatchedClock(clock), []
    watched.follow(told.append)
    clock.passed += HOUR
    assert (watched.time(), told) == (clock.time(), [])
    clock.offset -= HOUR
    assert watched.time() == clock.time()
    assert told == [-HOUR]
    assert watched.monotonic() == clock.passed


@pytest.mark.parametrize("step", [HOUR, -HOUR])
async def test_a_reclaimed_node_stays_out_for_as_long_as_was_asked(tmp_path: Path, step: float) -> None:
    clock = SetClock()
    section = ScavengerSettings(source="static", nodes=("n1", "n2"))
    service = create(knowing_stand_ins(Settings(state_dir=tmp_path)), section, clock, CREDENTIAL)
    try:
        async for observation in service.source.observations():
            service.events.observe(observation)
        service.events.apply(NodesReclaimed(("n1",), 60.0))

        def members() -> list[str]:
            service.events.apply(Due())
            return [node.name for node in service.events.machine.idle.members()]

        clock.offset += step
        assert members() == ["n2"]
        clock.passed += 59.0
        assert members() == ["n2"]
        clock.passed += 2.0
        assert members() == ["n1", "n2"]
        status = await service.GetStatus(scavenger_pb2.GetStatusRequest(), None)  # type: ignore[arg-type]
        assert not status.quarantined
    finally:
        await service.close()
