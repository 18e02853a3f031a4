"""Back-off after placeholders that fail: delays double, then submission pauses, and a success ends it."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from malletrain.scavenger.machine.submission_backoff import BackoffPolicy, SubmissionBackoff

POLICY = BackoffPolicy(backoff_seconds=10, backoff_max_seconds=300, pause_after_failures=4)
NOW = 1_800_000_000.0


def failed(times: int) -> SubmissionBackoff:
    backoff, now = SubmissionBackoff(), NOW
    for number in range(times):
        backoff = backoff.failed(f"n{number}", "Invalid account", now, now, POLICY)
        now = backoff.retry_at
    return backoff


def test_without_failures_nothing_waits() -> None:
    assert SubmissionBackoff().is_due(-math.inf, POLICY)
    assert SubmissionBackoff().probed(NOW, POLICY) == SubmissionBackoff()
    assert SubmissionBackoff().succeeded(NOW) == SubmissionBackoff()


def test_delays_double_and_then_comes_the_pause() -> None:
    delays = [failed(times).retry_at - failed(times).failed_at for times in range(1, 7)]
    assert delays == [10, 20, 40, 300, 300, 300]
    assert [failed(times).paused(POLICY) for times in range(1, 7)] == [False, False, False, True, True, True]


def test_while_all_failures_are_on_one_node_the_others_do_not_wait_for_long() -> None:
    backoff = SubmissionBackoff()
    for now in (NOW, NOW + 100, NOW + 200, NOW + 300, NOW + 400):
        backoff = backoff.failed("n1", "no such feature", now, now, POLICY)
        assert (backoff.retry_at - now, backoff.paused(POLICY)) == (10, False)
    backoff = backoff.failed("n2", "no such feature", NOW + 500, NOW + 500, POLICY)
    assert (backoff.retry_at - NOW - 500, backoff.paused(POLICY)) == (300, True)


def test_a_delay_is_never_longer_than_the_longest() -> None:
    patient = BackoffPolicy(backoff_seconds=10, backoff_max_seconds=300, pause_after_failures=10_000)
    assert patient.delay(6) == patient.delay(5000) == 300


def test_of_what_was_submitted_together_only_the_first_failure_counts() -> None:
    first = SubmissionBackoff().failed("n1", "a", NOW, NOW + 5, POLICY)
    again = first.failed("n2", "b", NOW + 1, NOW + 9, POLICY)
    assert (again.failures, again.retry_at) == (1, first.retry_at)
    assert (again.node, again.error) == ("n2", "b"), "the newest message is told"


def test_only_what_was_submitted_after_the_failure_proves_anything() -> None:
    backoff = failed(2)
    assert backoff.succeeded(backoff.failed_at - 1) == backoff
    assert backoff.succeeded(backoff.failed_at) == SubmissionBackoff()


def test_one_probe_per_delay() -> None:
    backoff = failed(1)
    assert not backoff.is_due(backoff.retry_at - 1, POLICY)
    assert backoff.is_due(backoff.retry_at, POLICY)
    probed = backoff.probed(backoff.retry_at, POLICY)
    assert not probed.is_due(backoff.retry_at + 9, POLICY)
    assert probed.is_due(backoff.retry_at + 10, POLICY)


@given(st.integers(1, 50), st.floats(0, 1e9))
def test_a_clock_that_is_set_back_delays_nothing_for_longer(times: int, back: float) -> None:
    backoff = failed(times)
    now = backoff.failed_at - back
    assert backoff.is_due(now + POLICY.delay(times) + 2, POLICY) or backoff.is_due(now, POLICY)
