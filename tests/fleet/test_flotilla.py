from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given

from malletrain.fleet.flotilla import Flotilla, create_flotilla
from malletrain.fleet.problem import BeyondPeak, EnsembleModel, FleetProblem, RateTolerance
from malletrain.fleet.rates import RateTable, profile_plan, rate_table, scaled_rates
from tests.fleet.problems import BY_HAND, problems


def naive_flotilla(table: RateTable, cands: Sequence[int], gpus: int, tolerance: RateTolerance) -> Flotilla:
    """As published: in each step a search over all candidates and counts."""
    first = min(cands, key=lambda i: (-table.rows[i][0], i))
    reference = table.rows[first][0]
    members, counts = [first], [1]
    while len(members) < len(cands):
        found = [
            (round(abs(table.rows[i][g - 1] - reference), 9), g, i)
            for i in cands
            if i not in members
            for g in range(1, min(gpus - sum(counts), table.most(i, gpus)) + 1)
        ]
        if not found or min(found)[0] > tolerance.around(reference):
            break
        _, count, member = min(found)
        members.append(member)
        counts.append(count)
    while sum(counts) < gpus:
        slowest = min(range(len(members)), key=lambda place: table.rows[members[place]][counts[place] - 1])
        if counts[slowest] == table.most(members[slowest], gpus):
            break
        counts[slowest] += 1
    return Flotilla(tuple(members), tuple(counts))


@given(problem=problems())
def test_one_sorted_pass_finds_what_the_naive_search_finds(problem: FleetProblem) -> None:
    table = rate_table(problem)
    everyone = range(len(problem.models))
    for cands in (everyone, everyone[1:] or everyone):
        assert create_flotilla(table, cands, problem.gpus, problem.tolerance) == naive_flotilla(
            table, cands, problem.gpus, problem.tolerance
        )


@given(problem=problems())
def test_counts_are_within_bounds_and_rates_near_the_reference(problem: FleetProblem) -> None:
    table = rate_table(problem)
    flotilla = create_flotilla(table, range(len(problem.models)), problem.gpus, problem.tolerance)
    assert len(set(flotilla.members)) == len(flotilla.members)
    assert sum(flotilla.gpus) <= problem.gpus
    reference = max(model.rates[0] for model in problem.models)
    for member, count in zip(flotilla.members, flotilla.gpus, strict=True):
        row = table.rows[member]
        peak = row.index(max(row)) + 1
        assert 1 <= count <= (peak if problem.beyond_peak is BeyondPeak.AVOID else problem.gpus)
    if problem.beyond_peak is BeyondPeak.AVOID and all(list(row) == sorted(row) for row in table.rows):
        # A top-up never slows a member whose curve does not fall.
        assert min(flotilla.rates(table)) >= reference - problem.tolerance.around(reference) - 1e-9


def test_by_hand() -> None:
    table = rate_table(BY_HAND)
    assert table.rows[0] == pytest.approx((60, 110, 151.25))
    assert table.rows[1] == pytest.approx((30, 60, 90))
    assert create_flotilla(table, range(3), 3, BY_HAND.tolerance) == Flotilla((0, 1), (1, 2))
    # The third GPU would bring c to the reference rate of 30, but only two are left.
    assert create_flotilla(table, (1, 2), 3, BY_HAND.tolerance) == Flotilla((1, 2), (1, 2))


def test_a_share_of_the_reference_rate_as_tolerance() -> None:
    table = rate_table(BY_HAND)
    # c on one GPU is 20 of 30 samples/s away from b.
    assert create_flotilla(table, (1, 2), 2, RateTolerance(share=0.6)).members == (1,)
    assert create_flotilla(table, (1, 2), 2, RateTolerance(share=0.7)).members == (1, 2)


def test_the_reference_stays_that_of_the_fastest() -> None:
    # Each is within 20 of the one before, but the third is 30 away from the first.
    models = tuple(EnsembleModel(name, (rate,), 1) for name, rate in (("a", 100.0), ("b", 85.0), ("c", 70.0)))
    table = rate_table(FleetProblem(models, 3, 1, 100.0))
    assert set(create_flotilla(table, range(3), 3, RateTolerance()).members) == {0, 1}


def test_eq_1_rises_to_a_peak_and_falls() -> None:
    rates = scaled_rates((10.0, 18.0, 24.0, 28.0), 40, 2)
    factor = 28 / 24 * 3 / 4
    assert rates[5] == pytest.approx(6 * 7 * factor**2)
    peak = rates.index(max(rates))
    assert list(rates[: peak + 1]) == sorted(rates[: peak + 1])
    assert list(rates[peak:]) == sorted(rates[peak:], reverse=True)
    assert rates[-1] < max(rates)


def test_eq_1_starts_at_two_nodes_even_where_more_was_measured() -> None:
    short, long = (10.0, 19.0), (10.0, 19.0, 27.0, 34.0)
    assert scaled_rates(long, 8, 1)[:4] == long
    assert scaled_rates(long, 8, 1)[4:] == scaled_rates(short, 8, 1)[4:]


def test_superlinear_and_single_measurements_go_on_linearly() -> None:
    assert scaled_rates((10.0, 25.0), 4, 1) == pytest.approx((10, 25, 37.5, 50))
    assert scaled_rates((10.0,), 4, 2) == pytest.approx((10, 20, 30, 40))


def test_the_published_profile_takes_900_short_trainings() -> None:
    models = tuple(EnsembleModel(f"m{i}", (21.3 if i else 176.0,), 1) for i in range(100))
    plan = profile_plan(models, 4)
    assert (plan.span, plan.anchor, plan.max_gpus, plan.trainings) == (9, 8, 9, 900)
