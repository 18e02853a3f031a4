"""Limits per owner: submissions a second, and jobs that have not ended."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.job_manager import owner_limits
from malletrain.job_manager.machine.jobs import Dependencies, Job
from malletrain.job_manager.machine.stimuli import Submitted
from malletrain.job_manager.owner_limits import OwnerBuckets, OwnerLimits
from malletrain.job_manager.submission import MAX_SPECS
from malletrain.job_manager.token_bucket import TokenBucket
from malletrain.runtime.errors import LimitExceededError
from tests.job_manager.harness import MachineHarness
from tests.support.builders import job_spec
from tests.support.clocks import ManualClock

STEPS = st.lists(st.floats(0, 3) | st.just(0.0), max_size=200)


def taken_at(bucket: TokenBucket, times: Sequence[float]) -> list[float]:
    """Times at which the bucket gave a token."""
    found = []
    for time in times:
        bucket = bucket.at(time)
        after = bucket.without_tokens()
        if after is not None:
            found.append(time)
            bucket = after
    return found


def sums(steps: Sequence[float]) -> list[float]:
    return [sum(steps[: index + 1]) for index in range(len(steps))]


@given(STEPS, st.floats(0.5, 20), st.floats(1, 10))
def test_no_period_has_more_than_the_burst_and_what_comes_back_in_it(
    steps: list[float], per_second: float, capacity: float
) -> None:
    taken = taken_at(TokenBucket.full(per_second, capacity, 0.0), sums(steps))
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            most = capacity + per_second * (taken[last] - taken[first])
            assert last - first + 1 <= most + 1e-6


@given(STEPS, st.floats(0.5, 20), st.floats(1, 10))
def test_who_waits_as_long_as_told_gets_a_token(steps: list[float], per_second: float, capacity: float) -> None:
    bucket = TokenBucket.full(per_second, capacity, 0.0)
    for time in sums(steps):
        bucket = bucket.at(time)
        assert 0 <= bucket.tokens <= capacity
        if bucket.without_tokens() is None:
            assert bucket.wait_seconds() > 0
            bucket = bucket.at(bucket.time + bucket.wait_seconds() + 1e-6)
        after = bucket.without_tokens()
        assert after is not None
        bucket = after


def test_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = TokenBucket.full(1.0, 1.0, 100.0).without_tokens()
    assert bucket is not None
    assert bucket.at(0.0) == bucket
    assert bucket.at(0.0).at(100.5).without_tokens() is None


def test_each_owner_has_a_burst_of_four_seconds_and_then_the_rate() -> None:
    clock = ManualClock(1000.0)
    limits = OwnerLimits(10, 50.0, clock)
    for _ in range(200):
        limits.count_submission("ada")
    with pytest.raises(LimitExceededError, match="ada submits too often: at most 50 jobs a second"):
        limits.count_submission("ada")
    limits.count_submission("bob")
    clock.advance(0.1)
    for _ in range(5):
        limits.count_submission("ada")
    with pytest.raises(LimitExceededError, match=r"try again in 0\.02 s"):
        limits.count_submission("ada")


def test_a_submission_takes_as_much_as_it_has_jobs() -> None:
    clock = ManualClock(1000.0)
    limits = OwnerLimits(10, 50.0, clock)
    limits.count_submission("ada", 150)
    with pytest.raises(LimitExceededError, match=r"try again in 0\.20 s"):
        limits.count_submission("ada", 60)
    limits.count_submission("ada", 50)
    with pytest.raises(LimitExceededError):
        limits.count_submission("ada", 0)


def test_more_than_may_come_at_once_comes_after_a_pause_and_is_paid_for() -> None:
    clock = ManualClock(1000.0)
    limits = OwnerLimits(10, 50.0, clock)
    limits.count_submission("ada")
    with pytest.raises(LimitExceededError):
        limits.count_submission("ada", 1000)
    clock.advance(1.0)
    limits.count_submission("ada", 1000)
    clock.advance(15.9)
    with pytest.raises(LimitExceededError):
        limits.count_submission("ada")
    clock.advance(0.2)
    limits.count_submission("ada")


def test_at_least_one_submission_is_possible_however_low_the_rate() -> None:
    clock = ManualClock()
    limits = OwnerLimits(10, 0.01, clock)
    limits.count_submission("ada")
    with pytest.raises(LimitExceededError):
        limits.count_submission("ada")
    clock.advance(100.0)
    limits.count_submission("ada")


def test_owners_who_have_long_not_submitted_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_limits, "MANY_OWNERS", 3)
    clock = ManualClock()
    buckets = OwnerBuckets(1.0, 4.0, clock)
    for name in ("ada", "bob"):
        for _ in range(4):
            assert buckets.take_tokens(name) == 0
    clock.advance(2.0)
    assert buckets.take_tokens("eve") == 0
    clock.advance(2.0)
    assert buckets.take_tokens("eve") == 0
    assert buckets.owners == {"eve"}


def test_an_array_is_changed_at_once_and_then_one_job_every_two_seconds() -> None:
    clock = ManualClock(1000.0)
    limits = OwnerLimits(10, 1e4, clock)
    for _ in range(MAX_SPECS):
        limits.count_change("ada")
    with pytest.raises(LimitExceededError, match=r"ada changes jobs too often: .* one in 2 s .* again in 2\.00 s"):
        limits.count_change("ada")
    limits.count_change("bob")
    limits.count_submission("ada")
    changed = 0
    for _ in range(3600):
        clock.advance(1.0)
        with contextlib.suppress(LimitExceededError):
            limits.count_change("ada")
            changed += 1
    assert changed == 1800, "so many rows of the journal in an hour"


def test_a_change_counts_as_a_submission() -> None:
    limits = OwnerLimits(10, 1.0, ManualClock(1000.0))
    for _ in range(4):
        limits.count_change("ada")
    with pytest.raises(LimitExceededError, match="ada submits too often"):
        limits.count_change("ada")


def active(**counts: int) -> list[Job]:
    machine = MachineHarness()
    for owner, count in counts.items():
        machine(Submitted((job_spec(),) * count, owner))
    return list(machine.state.jobs.values())


def test_jobs_of_others_do_not_count() -> None:
    limits = OwnerLimits(5, 50.0, ManualClock())
    jobs = active(ada=3, bob=5)
    limits.check_jobs("ada", jobs, 2)
    with pytest.raises(LimitExceededError, match="ada has 3 jobs that have not ended and submits 3 more: at most 5"):
        limits.check_jobs("ada", jobs, 3)
    with pytest.raises(LimitExceededError):
        limits.check_jobs("bob", jobs, 1)
    limits.check_jobs("eve", jobs, 5)


def test_so_many_jobs_of_an_owner_wait_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_limits, "MAX_WAITING", 3)
    limits, machine = OwnerLimits(5, 50.0, ManualClock()), MachineHarness()
    machine(Submitted((job_spec(),), "ada"))
    machine(Submitted((job_spec(dependencies=Dependencies(("j000001",))),) * 2, "ada"))
    jobs = list(machine.state.jobs.values())
    limits.check_waiting("ada", jobs, 1)
    limits.check_waiting("bob", jobs, 3)
    with pytest.raises(LimitExceededError, match="ada has 2 jobs that wait for others and submits 2 more: at most 3"):
        limits.check_waiting("ada", jobs, 2)
