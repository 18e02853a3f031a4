"""From what is so each second to the steps of minutes, and from Monitor's counts to shares."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.allocator.machine.cluster_cache import CachedJob, CachedProfile, ClusterCache
from malletrain.allocator.problem.planner import JobCurve
from malletrain.allocator.utilization.measured import WINDOW_S, MeasuredShares
from malletrain.allocator.utilization.meter import LATE_S, MAX_GAP_S, MAX_OPEN, UseMeter
from malletrain.allocator.utilization.present import JobPresent, PresentUse, PresentUses, present_use
from malletrain.model.job_state import JobState
from malletrain.model.job_terms import JobTerms
from malletrain.model.scaling import ScalingPoint
from tests.support.builders import cached_job, plannable_nodes

START = 1_000_000_020.0
CURVE = (ScalingPoint(1, 10.0), ScalingPoint(4, 40.0))
STEEPER = (ScalingPoint(1, 20.0), ScalingPoint(4, 80.0))
IDLE = ("n1", "n2", "n3", "n4")


def job(
    name: str, *nodes: str, curve: tuple[ScalingPoint, ...] = CURVE, in_fleet: bool = False, most: int = 4
) -> JobPresent:
    return JobPresent(name, JobTerms(1, most), curve, in_fleet, frozenset(nodes))


class TestPresentUses:
    def test_rates_are_those_of_the_nodes_that_are_idle(self) -> None:
        found = PresentUses().of(START, IDLE, 1, [job("a", "n1", "n2", "gone"), job("b")])
        assert (found.nodes, found.rates) == (4, (20.0, 0.0))
        assert [demand.id for demand in found.jobs] == ["a", "b"]

    def test_a_job_whose_curve_is_not_known_counts_nowhere_nor_do_its_nodes(self) -> None:
        flat = (ScalingPoint(1, 0.0),)
        found = PresentUses().of(START, IDLE, 1, [job("a", "n1"), job("b", "n2", curve=()), job("c", "n3", curve=flat)])
        assert (found.nodes, found.rates) == (2, (10.0,))

    def test_gpus_are_counted_where_a_fleet_trains(self) -> None:
        member = job("a", "n1#0", "n1#1", in_fleet=True, most=8)
        found = PresentUses().of(START, ("n1", "n2"), 4, [member, job("b", "n2")])
        assert (found.nodes, found.rates) == (8, (20.0, 10.0))
        whole = found.jobs[1]
        assert (whole.min_nodes, whole.max_nodes, whole.permitted_nodes) == (4, 16, (4, 8, 12, 16))
        assert PresentUses().of(START, ("n1", "n2"), 4, [job("b", "n2")]).nodes == 2

    def test_a_curve_counts_from_the_next_minute_on_and_the_same_jobs_are_the_same_object(self) -> None:
        uses = PresentUses()
        first = uses.of(START, IDLE, 1, [job("a", "n1")])
        same = uses.of(START + 30, IDLE[:3], 1, [job("a", "n1", "n2", curve=STEEPER)])
        assert same.jobs is first.jobs
        assert same.rates == (20.0,)
        later = uses.of(START + 60, IDLE, 1, [job("a", "n1", "n2", curve=STEEPER)])
        assert later.rates == (40.0,)
        assert later.jobs is not first.jobs

    def test_a_curve_that_was_not_known_counts_at_once(self) -> None:
        uses = PresentUses()
        assert uses.of(START, IDLE, 1, [job("a", "n1", curve=())]).jobs == ()
        assert uses.of(START + 1, IDLE, 1, [job("a", "n1")]).rates == (10.0,)


def cluster(*jobs: CachedJob) -> ClusterCache:
    found = ClusterCache()
    found.update_nodes(plannable_nodes(*IDLE), snapshot=True)
    found.update_jobs(jobs, snapshot=True)
    found.update_profiles([CachedProfile(one.plannable.id, JobCurve(CURVE, 1.0, 1.0)) for one in jobs])
    return found


@pytest.mark.parametrize(
    ("known", "rates"),
    [
        (cached_job("a", "n1", "n2"), (20.0,)),
        (cached_job("a", "n1", "n2", "n3", confirmed=["n1", "n2"], state=JobState.RESCALING), (20.0,)),
        (cached_job("a", "n1", confirmed=["n1", "n2"], state=JobState.RESCALING), (10.0,)),
        (cached_job("a", "n1", confirmed=[], state=JobState.STARTING), (0.0,)),
        (cached_job("a"), (0.0,)),
        (cached_job("a", "n1", state=JobState.STOPPING), ()),
        (cached_job("a", not_before=START + 1), ()),
    ],
)
def test_a_job_trains_on_what_is_confirmed_and_commanded(known: CachedJob, rates: tuple[float, ...]) -> None:
    found = present_use(cluster(known), PresentUses(), START)
    assert found is not None
    assert (found.nodes, found.rates) == (4, rates)


def test_before_nodes_and_jobs_are_known_nothing_is() -> None:
    assert present_use(ClusterCache(), PresentUses(), START) is None


ONE, TWO = (PresentUses().of(START, IDLE, 1, [job("a", *IDLE[:count])]) for count in (1, 2))


def told(meter: UseMeter, *moments: tuple[float, PresentUse | None]) -> None:
    for at, present in moments:
        meter.note_use(START + at, present)


class TestMeter:
    def test_a_minute_is_due_when_stalls_are_known_and_has_its_steps(self) -> None:
        meter = UseMeter(max_gap_s=1000.0)
        told(meter, (-5, ONE), (20, TWO), (40, TWO), (130, TWO))
        assert meter.due(START + 60 + LATE_S - 1) == []
        first, second = meter.due(START + 120 + LATE_S)
        assert [(step.start - START, step.seconds, step.rates) for step in first.steps] == [
            (0.0, 20.0, (10.0,)),
            (20.0, 40.0, (20.0,)),
        ]
        assert [(step.start - START, step.seconds) for step in second.steps] == [(60.0, 60.0)]
        meter.close(first)
        assert meter.due(START + 120 + LATE_S) == [second]

    def test_a_minute_of_which_not_all_is_known_is_given_up(self) -> None:
        meter = UseMeter()
        told(
            meter, *((at, ONE) for at in range(0, 30)), (29 + MAX_GAP_S + 1, ONE), *((at, ONE) for at in range(55, 130))
        )
        assert [minute.start for minute in meter.due(START + 500)] == [START + 60]

    def test_nothing_is_known_while_services_are_away_or_when_the_clock_was_set_back(self) -> None:
        meter = UseMeter()
        told(meter, (0, ONE), (10, None), (20, ONE), (5, ONE))
        assert meter.note_use(START + 6, ONE) == (START + 5, ONE)
        assert meter.note_use(START + 3, ONE) is None
        assert meter.due(START + 500) == []

    def test_minutes_that_nobody_can_work_out_are_bounded(self) -> None:
        meter = UseMeter(max_gap_s=60.0)
        told(meter, *((60.0 * at, ONE) for at in range(3 * MAX_OPEN)))
        assert len(meter.due(START + 1e6)) <= MAX_OPEN

    def test_it_says_who_has_begun_to_train(self) -> None:
        uses = PresentUses()
        waits, trains = (uses.of(START, IDLE, 1, [job("a", *nodes)]) for nodes in ((), ("n1",)))
        meter = UseMeter(max_gap_s=1000.0)
        told(
            meter,
            (0, trains),
            (10, waits),
            (20, trains),
            (30, waits),
            (30, trains),
            (70, trains),
            (100, waits),
            (110, trains),
        )
        first, *_ = meter.due(START + 1e6)
        assert first.starts == {"a": (START + 20, START + 30)}
        assert first.trainers == ("a",)

    @given(st.lists(st.tuples(st.floats(0.0, 25.0), st.sampled_from([ONE, TWO, None])), max_size=60))
    def test_steps_follow_each_other_and_no_minute_has_more_than_a_minute(
        self, moments: list[tuple[float, PresentUse | None]]
    ) -> None:
        meter, now = UseMeter(), START
        for pause, present in moments:
            now += pause
            meter.note_use(now, present)
        for minute in meter.due(now + 1e6):
            ends = [step.start + step.seconds for step in minute.steps]
            assert all(begin.start >= end - 1e-6 for begin, end in zip(minute.steps[1:], ends, strict=False))
            assert minute.start <= minute.steps[0].start
            assert ends[-1] <= minute.start + 60 + 1e-6
            assert 59.0 <= sum(step.seconds for step in minute.steps) <= 60.0 + 1e-6


class TestMeasuredShares:
    def trained(self, shares: MeasuredShares, begin: float, end: float, present: PresentUse = TWO) -> None:
        for second in range(int(begin), int(end)):
            shares.note_time(START + second, START + second + 1, present)

    def test_a_new_job_has_trained_what_is_counted_of_what_its_curve_gives(self) -> None:
        shares = MeasuredShares()
        shares.note_time(START - 1, START, PresentUse(4, (), ()))
        self.trained(shares, 0, 100)
        assert shares.jobs == ("a",)
        assert shares.share("a", ()) == 1.0, "nothing was counted yet"
        shares.note_counts(START + 100, {"a": (START + 100, 500)})
        assert shares.share("a", ()) == pytest.approx(500 / 2000)
        assert shares.share("a", [(START + 50, START + 100)]) == pytest.approx(0.5)
        assert shares.share("b", ()) == 1.0

    def test_one_that_was_there_before_is_known_from_its_second_count_on(self) -> None:
        shares = MeasuredShares()
        self.trained(shares, 0, 60)
        shares.note_counts(START + 60, {"a": (START + 60, 10_000)})
        assert shares.share("a", ()) == 1.0
        self.trained(shares, 60, 120)
        shares.note_counts(START + 120, {"a": (START + 118, 10_580)})
        assert shares.share("a", ()) == pytest.approx(580 / (20 * 58)), "until its newest batch"

    def test_more_than_the_curve_gives_is_all_and_less_than_nothing_is_nothing(self) -> None:
        for count, expected in ((99_999, 1.0), (-5, 0.0)):
            shares = MeasuredShares()
            shares.note_time(START - 1, START, PresentUse(4, (), ()))
            self.trained(shares, 0, 60)
            shares.note_counts(START + 60, {"a": (START + 60, count)})
            assert shares.share("a", ()) == expected

    def test_whoever_monitor_does_not_know_has_trained_nothing(self) -> None:
        shares = MeasuredShares()
        shares.note_time(START - 1, START, PresentUse(4, (), ()))
        self.trained(shares, 0, 60)
        shares.note_counts(START + 60, {})
        assert shares.share("a", ()) == 0.0

    def test_batches_that_take_minutes_are_counted_whole(self) -> None:
        """A batch of five minutes: its samples come at once."""
        shares = MeasuredShares()
        shares.note_time(START - 1, START, PresentUse(4, (), ()))
        for minute in range(40):
            self.trained(shares, 60 * minute, 60 * minute + 60)
            now = 60.0 * (minute + 1)
            shares.note_counts(START + now, {"a": (START + now - now % 300, 20 * int(now - now % 300))})
            if now >= 300:
                assert shares.share("a", ()) == pytest.approx(1.0)

    def test_only_the_last_minutes_count_and_who_is_gone_is_forgotten(self) -> None:
        shares = MeasuredShares()
        shares.note_time(START - 1, START, PresentUse(4, (), ()))
        total = 0
        for minute in range(60):
            self.trained(shares, 60 * minute, 60 * minute + 60)
            total += 1200 if minute >= 30 else 0
            shares.note_counts(START + 60 * (minute + 1), {"a": (START + 60 * (minute + 1), total)})
            if minute in (29, 59):
                assert shares.share("a", ()) == (0.0 if minute == 29 else 1.0)
        assert len(shares._jobs["a"].counts) < 15
        shares.note_counts(START + 3600 + 3 * WINDOW_S, {})
        assert shares.jobs == ()
        self.trained(shares, 6000, 6060)
        shares.note_counts(START + 6060, {"a": (START + 6060, total)})
        assert shares.share("a", ()) == 1.0, "it had samples before"
