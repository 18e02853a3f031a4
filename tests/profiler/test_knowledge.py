"""Evidence, families, decisions and the choice of scales."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.profiler.book import JobFacts, Measurements, ProfileBook
from malletrain.profiler.curve import PairStall, Source
from malletrain.profiler.decision import best_size, rest_values
from malletrain.profiler.evidence import Memory, believable, faded, is_usable, remember
from malletrain.profiler.families import Member, contradicts, shared_knots, with_family
from malletrain.profiler.knots import Knot
from malletrain.profiler.settings import ProfilerSettings
from malletrain.profiler.sizes import fleet_scales, landmarks, next_adaptive, next_listed

DAY = 86400.0


def knots(*pairs: tuple[int, float], error: float = 0.02, at: float = 1000.0) -> list[Knot]:
    return [Knot(nodes, rate, 100, error, at) for nodes, rate in pairs]


class TestEvidence:
    def test_points_fade_with_age_but_never_for_that_alone(self) -> None:
        (fresh,) = faded(knots((4, 100.0)), Memory(), 1000.0, 0.02)
        (old,) = faded(knots((4, 100.0)), Memory(), 1000.0 + 4 * 3600, 0.02)
        (ancient,) = faded(knots((4, 100.0)), Memory(), 1000.0 + 1e9, 0.02)
        assert fresh.error == 0.02
        assert old.error == pytest.approx((0.02**2 + 0.04**2) ** 0.5)
        assert ancient.error < 0.3

    def test_news_at_one_scale_casts_doubt_on_older_points_elsewhere(self) -> None:
        memory = remember(Memory(), knots((1, 100.0), (8, 700.0)), 0.1)
        memory = remember(memory, [*knots((8, 700.0)), *knots((1, 70.0), at=2000.0)], 0.1)
        doubted = {knot.nodes: knot.error for knot in faded(knots((1, 70.0), (8, 700.0)), memory, 1000.0, 0.0)}
        assert doubted[1] == 0.02
        assert doubted[8] > 0.3
        memory = remember(memory, [*knots((1, 70.0), at=2000.0), *knots((8, 500.0), at=3000.0)], 0.1)
        assert memory.doubts.get(8) is None

    def test_noise_is_no_news(self) -> None:
        memory = remember(Memory(), knots((1, 100.0), (8, 700.0), error=0.08), 0.1)
        memory = remember(memory, [*knots((8, 700.0)), *knots((1, 115.0), error=0.08, at=2000.0)], 0.1)
        assert memory.doubts == {}

    def test_the_best_of_bad_points_is_kept(self) -> None:
        bad = [Knot(1, 5.0, 9, 0.9), Knot(2, 9.0, 9, 0.6)]
        assert believable(bad, 0.3) == [bad[1]]
        assert believable([], 0.3) == []

    @pytest.mark.parametrize(
        ("scales", "usable"),
        [((), False), ((1, 16), False), ((1, 4, 16), True), ((2, 5, 8), True), ((4, 8, 16), False), ((1, 2, 4), False)],
    )
    def test_which_curves_are_usable(self, scales: tuple[int, ...], usable: bool) -> None:
        assert is_usable(1, 16, knots(*((n, 10.0 * n) for n in scales)), 0.05) is usable

    def test_an_unsure_curve_is_not_usable(self) -> None:
        assert not is_usable(1, 16, knots((1, 10.0), (4, 40.0), (16, 160.0), error=0.2), 0.05)


class TestFamilies:
    OTHERS = (Member("a", tuple(knots((1, 100.0), (8, 700.0)))), Member("b", tuple(knots((1, 104.0), (4, 390.0)))))

    def test_members_are_merged_by_scale(self) -> None:
        shared = {knot.nodes: knot for knot in shared_knots(self.OTHERS)}
        assert shared[1].rate == pytest.approx(102.0, rel=0.01)
        assert sorted(shared) == [1, 4, 8]
        assert all(knot.shared and knot.error >= 0.03 for knot in shared.values())
        assert [knot.nodes for knot in shared_knots(self.OTHERS, but="a")] == [1, 4]

    def test_a_trial_that_scales_otherwise_contradicts(self) -> None:
        family = shared_knots(self.OTHERS)
        assert not contradicts(knots((1, 108.0), (8, 690.0)), family)
        assert contradicts(knots((8, 400.0)), family)
        assert contradicts(knots((2, 120.0)), family), "between the family's scales, too"
        assert not contradicts(knots((8, 400.0), error=0.5), family), "a few steps are no proof"
        assert not contradicts(knots((64, 1.0)), family), "where the family has not been"

    def test_own_points_come_first(self) -> None:
        found = with_family(knots((8, 650.0)), shared_knots(self.OTHERS))
        assert [(knot.nodes, knot.shared) for knot in found] == [(1, True), (4, True), (8, False)]

    def test_in_the_book_a_trial_inherits_until_it_contradicts(self) -> None:
        book = ProfileBook(ProfilerSettings())
        book.put_job(JobFacts("a", 1, 8, family="f"))
        stalls = (PairStall(1, 8, 7.0), PairStall(8, 4, 3.0))
        book.put_measurements("a", Measurements(tuple(knots((1, 100.0), (4, 380.0), (8, 700.0))), rescales=stalls))
        book.remove_job("a")
        book.put_job(JobFacts("b", 1, 8, family="f"))
        book.put_job(JobFacts("c", 1, 8))
        book.refresh(1000.0)
        heir, stranger = book.profile("b"), book.profile("c")
        assert heir is not None
        assert stranger is not None
        assert {point.nodes: point.source for point in heir.points}[8] is Source.FAMILY
        assert (heir.scale_up.seconds, heir.scale_up.source) == (7.0, Source.FAMILY)
        assert heir.scale_down.seconds == 3.0
        assert stranger.points[0].source is Source.PRIOR
        book.put_measurements("b", Measurements(tuple(knots((4, 200.0), at=2000.0))))
        book.refresh(2000.0)
        left = book.profile("b")
        assert left is not None
        assert left.family == ""
        assert all(point.source is not Source.FAMILY for point in left.points)


class TestDecision:
    @given(
        st.lists(st.lists(st.floats(0, 100), min_size=1, max_size=4), max_size=3),
        st.lists(st.floats(0, 100), min_size=4, max_size=4),
        st.integers(0, 6),
    )
    def test_as_good_as_trying_everything(self, others: list[list[float]], own: list[float], pool: int) -> None:
        curves = [[0.0, *values] for values in others]
        sizes = (1, 2, 4)
        rest = rest_values(curves, pool)
        chosen = best_size(lambda n: own[n - 1], sizes, rest)
        best = max(
            (0.0 if size == 0 else own[size - 1]) + sum(curve[n] for curve, n in zip(curves, counts, strict=True))
            for size in (0, *sizes)
            for counts in itertools.product(*(range(len(curve)) for curve in curves))
            if size + sum(counts) <= pool
        )
        worth = (0.0 if chosen == 0 else own[chosen - 1]) + rest[pool - chosen]
        assert worth == pytest.approx(best)


class TestScales:
    def test_landmarks_are_ends_and_powers_of_two(self) -> None:
        assert landmarks(range(1, 65)) == [1, 2, 4, 8, 16, 32, 64]
        assert landmarks(range(3, 21)) == [3, 4, 8, 16, 20]
        assert landmarks([6]) == [6]
        assert landmarks([]) == []

    def test_without_knowledge_the_next_landmark_comes(self) -> None:
        assert next_adaptive(range(1, 17), 16, [], [16], 0.05) == 8

    def test_where_the_shapes_agree_nothing_more_is_measured(self) -> None:
        linear = knots((1, 10.0), (8, 80.0), (16, 160.0))
        assert next_adaptive(range(1, 17), 8, linear, [16, 8], 0.05) is None

    def test_the_smallest_scale_is_measured_though_the_shapes_agree(self) -> None:
        linear = knots((4, 40.0), (8, 80.0), (16, 160.0))
        assert next_adaptive(range(1, 17), 4, linear, [16, 8, 4], 0.05) == 1
        assert next_adaptive(range(1, 17), 1, linear, [16, 8, 4, 1], 0.05) is None

    def test_where_no_model_fits_all_landmarks_are(self) -> None:
        knee = knots((1, 10.0), (32, 85.0), (64, 90.0))
        assert next_adaptive(range(1, 65), 32, knee, [64, 32], 0.05) is not None

    def test_the_plan_decides_how_sure_is_sure_enough(self) -> None:
        bent = knots((1, 10.0), (8, 66.0), (16, 118.0), error=0.01)
        asked: list[float] = []

        def undecided(rate: Callable[[int], float]) -> int:
            asked.append(rate(2))
            return len(asked) % 2

        strict = next_adaptive(range(1, 17), 8, bent, [16, 8], 0.004, undecided)
        relaxed = next_adaptive(range(1, 17), 8, bent, [16, 8], 0.2, lambda _: 3)
        assert asked
        assert strict is not None
        assert relaxed is None

    @given(st.sets(st.integers(1, 64), min_size=1).map(sorted), st.data())
    def test_always_smaller_permitted_and_new(self, scales: list[int], data: st.DataObject) -> None:
        present = data.draw(st.sampled_from(scales))
        known = [Knot(n, 10.0 * n**0.8, 50, 0.04) for n in scales if n >= present][:5]
        found = next_adaptive(scales, present, known, [present], 0.05)
        assert found is None or (found < present and found in scales)

    def test_lists_made_beforehand(self) -> None:
        assert next_listed([1, 4, 9], 9, [9]) == 4
        assert next_listed([1], 1, [1]) is None

    def test_fleets_three_steps(self) -> None:
        assert fleet_scales([100.0, 730.0], 2, range(1, 17)) == list(range(1, 9))
        assert fleet_scales([], 2, range(1, 17)) == [1, 2]
        assert fleet_scales([5.0], 2, [4, 8]) == [4]
