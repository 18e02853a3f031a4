"""How long growths take, as seen from what JobManager reports."""

from __future__ import annotations

from malletrain.allocator.cluster_cache import CachedJob
from malletrain.allocator.growth_times import GrowthTimes
from malletrain.allocator.planner import PlannableJob
from malletrain.model.job_state import JobState


def job(commanded: str, confirmed: str, state: JobState = JobState.RUNNING, name: str = "a") -> CachedJob:
    """A job with nodes of one letter each."""
    return CachedJob(
        PlannableJob(name, 1, 8, current_nodes=tuple(commanded)), state, True, confirmed_nodes=frozenset(confirmed)
    )


def seen(*reports: tuple[float, str, str]) -> GrowthTimes:
    times = GrowthTimes()
    for now, commanded, confirmed in reports:
        times.see_all([job(commanded, confirmed)], now, snapshot=False)
    return times


def test_a_growth_lasts_from_its_command_to_the_confirmed_scale() -> None:
    times = seen((0.0, "x", "x"), (1.0, "xy", "x"), (2.0, "xy", "x"), (4.5, "xy", "xy"))
    assert times.seconds() == {"a": 3.5}


def test_starts_count_until_there_is_a_growth() -> None:
    assert seen((0.0, "", ""), (1.0, "x", ""), (9.0, "x", "x")).seconds() == {"a": 8.0}
    times = seen((0.0, "", ""), (1.0, "x", ""), (9.0, "x", "x"), (10.0, "xy", "x"), (12.0, "xy", "xy"))
    assert times.seconds() == {"a": 2.0}


def test_the_median_of_the_newest_growths_counts() -> None:
    times = seen((0.0, "x", "x"))
    for length in (50.0, 1.0, 2.0, 3.0, 4.0, 90.0):
        for now, commanded, confirmed in ((0.0, "xy", "x"), (length, "xy", "xy"), (length, "x", "x")):
            times.see_all([job(commanded, confirmed)], now, snapshot=False)
    assert times.seconds() == {"a": 3.0}


def test_shrinks_and_growths_of_which_the_begin_was_not_seen_are_not_measured() -> None:
    assert seen((0.0, "xy", "xy"), (1.0, "x", "xy"), (2.0, "x", "x")).seconds() == {}
    assert seen((0.0, "xy", "x"), (2.0, "xy", "xy")).seconds() == {}
    times = seen((0.0, "x", "x"))
    times.see_all([job("xy", "x")], 5.0, snapshot=True)  # commanded at any time since
    times.see_all([job("xy", "xy")], 6.0, snapshot=False)
    assert times.seconds() == {}


def test_jobs_that_have_ended_are_forgotten() -> None:
    reports = ((0.0, "x", "x"), (1.0, "xy", "x"), (2.0, "xy", "xy"))
    times = seen(*reports)
    times.see_all([job("xy", "xy", JobState.COMPLETED)], 3.0, snapshot=False)
    assert times.seconds() == {}
    times = seen(*reports)
    times.see_all([], 3.0, snapshot=True)
    assert times.seconds() == {}


def test_a_job_of_which_nothing_is_known_counts_like_the_others() -> None:
    times = seen((0.0, "x", "x"), (1.0, "xy", "x"), (3.0, "xy", "xy"), (4.0, "xyz", "xy"), (9.0, "xyz", "xyz"))
    times.see_all([job("", "", JobState.WAITING, "b")], 9.0, snapshot=False)
    assert times.seconds() == {"a": 3.5, "b": 3.5}
    times.see_all([job("xyz", "xyz", JobState.COMPLETED)], 10.0, snapshot=False)
    assert times.seconds() == {"b": 3.5}, "what has been learned stays"
    times.see_all([job("x", "", name="b")], 11.0, snapshot=False)
    times.see_all([job("x", "x", name="b")], 12.0, snapshot=False)
    assert times.seconds() == {"b": 1.0}
