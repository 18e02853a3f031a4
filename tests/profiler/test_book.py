from __future__ import annotations

import pytest

from malletrain.profiler.book import JobFacts, Measurements, ProfileBook
from malletrain.profiler.curve import Source
from malletrain.profiler.knots import Knot
from malletrain.profiler.settings import ProfilerSettings

SETTINGS = ProfilerSettings()


def measured(*rates: tuple[int, float], up: float | None = None) -> Measurements:
    return Measurements(tuple(Knot(nodes, rate, 100) for nodes, rate in rates), scale_up_seconds=up)


def test_an_unknown_job_starts_as_an_ordinary_one() -> None:
    book = ProfileBook(SETTINGS)
    for job_id, rate in (("slow", 10.0), ("middle", 1000.0), ("fast", 7000.0)):
        book.put_job(JobFacts(job_id, 1, 4))
        book.put_measurements(job_id, measured((1, rate)))
    book.put_job(JobFacts("new", 1, 4))
    book.refresh()
    profile = book.profile("new")
    assert profile is not None
    assert profile.points[0].rate == pytest.approx(1000)
    assert {point.source for point in profile.points} == {Source.PRIOR}
    assert (profile.scale_up.seconds, profile.scale_down.seconds) == (2.0, 1.0)


def test_unknown_jobs_follow_when_the_known_ones_change() -> None:
    book = ProfileBook(SETTINGS)
    book.put_job(JobFacts("a", 1, 4))
    book.put_job(JobFacts("b", 1, 4))
    assert [profile.job_id for profile in book.refresh()] == ["a", "b"]
    book.put_measurements("a", measured((1, 500.0)))
    assert [profile.job_id for profile in book.refresh()] == ["a", "b"]
    profile = book.profile("b")
    assert profile is not None
    assert profile.points[0].rate == pytest.approx(500)


def test_noise_changes_nothing_but_slow_drift_does() -> None:
    book = ProfileBook(SETTINGS)
    book.put_job(JobFacts("a", 1, 4))
    book.put_measurements("a", measured((2, 1000.0), up=5.0))
    assert len(book.refresh()) == 1
    for rate in (1015.0, 985.0, 1010.0):
        book.put_measurements("a", measured((2, rate), up=5.05))
        assert book.refresh() == []
    changes = 0
    for step in range(1, 41):
        book.put_measurements("a", measured((2, 1000.0 + step * 5), up=5.0))
        changes += len(book.refresh())
    profile = book.profile("a")
    assert profile is not None
    assert 5 <= changes <= 12
    assert next(point.rate for point in profile.points if point.nodes == 2) == pytest.approx(1200, rel=0.02)


def test_a_new_source_is_a_change_even_where_the_figure_is_the_same() -> None:
    book = ProfileBook(SETTINGS)
    book.put_job(JobFacts("a", 1, 2, curve=(Knot(1, 100.0), Knot(2, 200.0)), scale_up_seconds=5.0))
    book.refresh()
    book.put_measurements("a", measured((2, 200.0)))
    assert len(book.refresh()) == 1
    book.put_measurements("a", measured((2, 200.0), up=5.0))
    assert len(book.refresh()) == 1
    assert book.refresh() == []


def test_measurements_may_come_before_the_job() -> None:
    book = ProfileBook(SETTINGS)
    book.put_measurements("a", measured((2, 200.0)))
    assert book.refresh() == []
    book.put_job(JobFacts("a", 1, 2))
    (profile,) = book.refresh()
    assert profile.points[-1].source == Source.MEASURED


def test_ended_jobs_are_forgotten() -> None:
    book = ProfileBook(SETTINGS)
    for job_id in ("a", "b", "c"):
        book.put_job(JobFacts(job_id, 1, 2))
    book.refresh()
    book.remove_job("a")
    book.remove_job("never known")
    book.keep_only(["b"])
    assert [profile.job_id for profile in book.profiles()] == ["b"]
    assert book.refresh() == []
