from __future__ import annotations

from dataclasses import replace
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.allocator.problem.forward_time import ForwardPolicy
from malletrain.simulator.tuning.trials import Gain, TunedSettings, coalescing_grid, compare, settings_grid

PRESENT = TunedSettings(ForwardPolicy.CONSTANT, 120.0, 10, 0.05)
SHORT, LONG = (replace(PRESENT, forward_seconds=seconds) for seconds in (60.0, 240.0))
SETTINGS = (PRESENT, SHORT, LONG)
DAYS = st.integers(2, 5).flatmap(
    lambda days: st.fixed_dictionaries(
        {settings: st.lists(st.floats(1.0, 100.0), min_size=days, max_size=days) for settings in SETTINGS}
    )
)


@given(samples=DAYS, day=st.integers(0, 4), other=st.floats(1.0, 100.0))
def test_a_day_is_judged_with_settings_that_were_chosen_without_it(
    samples: dict[TunedSettings, list[float]], day: int, other: float
) -> None:
    """Whatever happened on a day, which settings it is judged with depends on the other days."""
    day %= len(samples[PRESENT])
    found = compare(PRESENT, samples).held_out
    assert found is not None
    rest = {settings: [*values[:day], *values[day + 1 :]] for settings, values in samples.items()}
    chosen = compare(PRESENT, rest).best
    assert found.by_day[day] == pytest.approx(samples[chosen][day] / samples[PRESENT][day] - 1)
    changed = {settings: [*values[:day], other, *values[day + 1 :]] for settings, values in samples.items()}
    again = compare(PRESENT, changed).held_out
    assert again is not None
    assert again.by_day[day] == pytest.approx(0.0), "all settings alike on that day: none gains anything"


def test_one_day_tells_no_interval_and_is_judged_by_itself() -> None:
    found = compare(PRESENT, {PRESENT: [100.0], SHORT: [103.0], LONG: [90.0]})
    assert found.held_out is None
    assert found.counting_gain == Gain((pytest.approx(0.03),), pytest.approx(0.03), None)  # type: ignore[arg-type]
    assert found.recommended == SHORT


def test_what_does_not_carry_over_to_other_days_is_not_recommended() -> None:
    found = compare(PRESENT, {PRESENT: [100.0, 100.0], SHORT: [150.0, 80.0], LONG: [80.0, 150.0]})
    assert found.best != PRESENT
    assert found.held_out is not None
    assert found.held_out.mean == pytest.approx(-0.2)
    assert found.recommended == PRESENT


def test_small_gains_and_ties_change_nothing() -> None:
    assert compare(PRESENT, {PRESENT: [100.0] * 3, SHORT: [100.4] * 3, LONG: [100.0] * 3}).recommended == PRESENT
    both = replace(SHORT, max_parallel=20)
    assert compare(PRESENT, {PRESENT: [100.0], both: [110.0], SHORT: [110.0]}).best == SHORT
    assert compare(PRESENT, {PRESENT: [0.0], SHORT: [1.0], LONG: [0.0]}).gains[SHORT].mean == 1.0


def test_the_interval_is_students() -> None:
    gain = Gain.of([0.01, 0.03])
    assert gain.half_width == pytest.approx(12.706 * 0.02 / sqrt(2) / sqrt(2), rel=1e-3)
    assert gain.may_be_none
    assert not Gain.of([0.02, 0.021, 0.02, 0.021, 0.02]).may_be_none


def test_the_grid_has_the_present_settings_first_and_no_places_that_make_no_difference() -> None:
    odd = TunedSettings(ForwardPolicy.CONSTANT, 77.0, 7, 0.05)
    grid = settings_grid(odd, jobs=12, max_places=100)
    assert grid[0] == odd
    assert len(set(grid)) == len(grid)
    assert {settings.max_parallel for settings in grid} == {5, 7, 10, 15}
    assert {settings.forward_policy for settings in grid} == set(ForwardPolicy)
    assert {settings.max_parallel for settings in settings_grid(odd, 12, max_places=10)} == {5, 7, 10}
    assert [settings.coalesce_seconds for settings in coalescing_grid(odd)] == [0.05, 0.25, 1.0]


def test_changes_are_named_as_in_the_configuration() -> None:
    changed = TunedSettings(ForwardPolicy.EXPECTED, 120.0, 20, 0.05)
    assert changed.changes(PRESENT) == {
        ("allocator", "forward_policy"): "expected",
        ("job_manager", "max_parallel"): 20,
    }
