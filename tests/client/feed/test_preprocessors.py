"""How many processes a feed chooses, by what is demanded and what was measured."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.client.feeding.preprocessors import (
    LOWER_MARGIN,
    MARGIN,
    MAX_PROCESSES,
    CoreUse,
    GroupMeasured,
    ProcessChoice,
    assumed_supply,
    candidates,
    choose_preprocessors,
)

CALM = 60.0
rates = st.floats(0.1, 1e5)
measurements = st.dictionaries(st.integers(1, MAX_PROCESSES), rates, min_size=1, max_size=8)
limits = st.integers(1, 40)
demands = st.floats(0, 1e6)


def test_numbers_to_choose_from_double_and_end_at_the_limit() -> None:
    assert candidates(1) == [1]
    assert candidates(6) == [1, 2, 4, 6]
    assert candidates(32) == candidates(200) == [1, 2, 4, 8, 16, 32]


def test_what_was_not_measured_is_assumed_from_its_neighbours() -> None:
    assert assumed_supply({1: 100.0}, 4) == 400
    assert assumed_supply({4: 300.0}, 1) == 75
    assert assumed_supply({1: 100.0, 4: 250.0}, 2) == 150
    assert assumed_supply({1: 100.0, 4: 250.0}, 8) == 500
    with pytest.raises(ValueError, match="measured: expected at least one number"):
        assumed_supply({}, 1)


@given(demands, measurements, limits)
def test_the_number_is_the_fewest_that_suffices(demand: float, measured: dict[int, float], limit: int) -> None:
    chosen = choose_preprocessors(demand, measured, limit)
    numbers = candidates(limit)
    assert chosen in numbers
    assert chosen <= limit
    enough = [each for each in numbers if assumed_supply(measured, each) >= demand * (1 + MARGIN)]
    if enough and assumed_supply(measured, chosen) >= demand * (1 + MARGIN):
        assert chosen == enough[0]
    else:  # none does, or by so little that one with about as much will do
        best = max(assumed_supply(measured, each) for each in numbers)
        assert assumed_supply(measured, chosen) >= 0.95 * best
        assert demand * (1 + MARGIN) > 0.95 * best


@given(demands, demands, measurements, limits)
def test_more_demand_never_means_fewer(one: float, other: float, measured: dict[int, float], limit: int) -> None:
    less, more = sorted((one, other))
    assert choose_preprocessors(less, measured, limit) <= choose_preprocessors(more, measured, limit)


@given(st.integers(1, 64), st.floats(0, 1), st.integers(0, 8), demands, measurements)
def test_trainings_keep_their_cores(
    cores: int, seconds: float, unknown: int, demand: float, measured: dict[int, float]
) -> None:
    limit = CoreUse(cores, seconds, unknown).limit(demand, measured)
    assert 1 <= limit <= max(1, min(cores, MAX_PROCESSES))
    if limit > 1:
        pace = min(demand, assumed_supply(measured, limit))
        assert limit + round(unknown + seconds * pace) <= cores


def test_trainings_that_use_little_leave_all_cores() -> None:
    # 0.33 cores at the pace of two processes, one core if they never waited.
    assert CoreUse(2, 0.001).limit(1000.0, {1: 165.0}) == 2
    assert CoreUse(2, 0.005).limit(1000.0, {1: 165.0}) == 1
    assert CoreUse(8, trainer_cores=3).limit(1000.0, {1: 10.0}) == 5


def seen_of(demand: float, *, waits: bool, measured: dict[int, float], cores: int) -> GroupMeasured:
    return GroupMeasured(demand, waits, measured, CoreUse(cores))


@given(st.floats(0.1, 1e6), st.booleans(), measurements, limits, st.integers(1, MAX_PROCESSES))
def test_a_constant_input_is_answered_once(
    demand: float, waits: bool, measured: dict[int, float], cores: int, begin: int
) -> None:
    seen = seen_of(demand, waits=waits, measured=measured, cores=cores)
    choice, numbers = ProcessChoice(begin), [begin]
    for turn in range(400):
        choice = choice.after(seen, 0.5 * turn, CALM)
        numbers.append(choice.number)
        assert choice.number <= max(1, min(cores, MAX_PROCESSES))
    changes = [(a, b) for a, b in itertools.pairwise(numbers) if a != b]
    # What there are no cores for goes at once; after that it is raised once, or lowered once.
    assert len(changes) <= 2
    rises = [b > a for a, b in changes if a <= min(cores, MAX_PROCESSES)]
    assert len(set(rises)) <= 1
    if waits:
        assert choice.number >= choose_preprocessors(demand, measured, min(cores, MAX_PROCESSES))


def test_it_is_raised_at_once_and_only_where_trainings_wait() -> None:
    measured = {1: 100.0}
    assert ProcessChoice(1).after(seen_of(350, waits=True, measured=measured, cores=16), 0.0, CALM) == ProcessChoice(4)
    assert ProcessChoice(1).after(seen_of(350, waits=False, measured=measured, cores=16), 0.0, CALM) == ProcessChoice(1)
    assert ProcessChoice(1).after(seen_of(350, waits=True, measured=measured, cores=3), 0.0, CALM) == ProcessChoice(3)


def test_it_is_lowered_after_a_calm_to_what_was_needed_in_it() -> None:
    choice, measured = ProcessChoice(8), {8: 800.0}
    for now in range(70):
        demand = 250.0 if now == 30 else 100.0
        choice = choice.after(seen_of(demand, waits=False, measured=measured, cores=16), float(now), CALM)
        assert choice.number == (8 if now < CALM else 4), now
        if now >= CALM:
            break
    # One wait, and the calm begins anew.
    choice = ProcessChoice(8, calm_since=0.0, calm_most=1)
    waited = choice.after(seen_of(100, waits=True, measured=measured, cores=16), 59.0, CALM)
    assert waited == ProcessChoice(8)
    assert waited.after(seen_of(100, waits=False, measured=measured, cores=16), 61.0, CALM).number == 8


def test_cores_that_are_gone_are_left_at_once_and_those_of_trainings_after_a_calm() -> None:
    measured = {8: 800.0}
    assert ProcessChoice(8).after(seen_of(1e6, waits=True, measured=measured, cores=4), 0.0, CALM).number == 4
    busy = GroupMeasured(1000.0, True, measured, CoreUse(8, trainer_cores=4))
    choice = ProcessChoice(8)
    for now in (0.0, 30.0, 59.0):
        choice = choice.after(busy, now, CALM)
        assert choice.number == 8
    assert choice.after(busy, 60.0, CALM).number == 4


@pytest.mark.parametrize("demand", [90.0, 130.0, 333.0, 700.0, 5000.0])
@pytest.mark.parametrize(
    "supply",
    [lambda n: 100.0 * n, lambda n: 100.0 * n**0.7, lambda n: 100.0 * min(n, 3)],
    ids=["linear", "bent", "flat"],
)
def test_a_loop_with_noise_comes_to_rest(demand: float, supply: Callable[[int], float]) -> None:
    noise, cores = random.Random(1), 16
    choice, measured, numbers = ProcessChoice(1), {}, [1]
    for turn in range(4000):
        rate = supply(choice.number)
        measured[choice.number] = rate * noise.uniform(0.97, 1.03)
        waits = demand > 1.02 * rate
        seen = seen_of(demand * noise.uniform(0.95, 1.05), waits=waits, measured=measured, cores=cores)
        choice = choice.after(seen, 0.5 * turn, CALM)
        numbers.append(choice.number)
    assert len(set(numbers[-3000:])) == 1
    enough = [each for each in candidates(cores) if supply(each) >= demand]
    final = numbers[-1]
    if enough:
        assert supply(final) * 1.02 >= demand
        # No more than twice what would do with the margin for lowering.
        assert final <= next((n for n in candidates(cores) if supply(n) >= (1 + LOWER_MARGIN) * 1.1 * demand), cores)
    else:
        assert supply(final) >= 0.9 * max(map(supply, candidates(cores)))
    assert math.isfinite(sum(measured.values()))
