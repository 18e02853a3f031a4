from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from malletrain.supervisor.workers.worker_pool import RestartBackoff


def test_the_pause_doubles_up_to_a_limit() -> None:
    failures = RestartBackoff()
    assert failures.over(0.0)
    for pause in (0.5, 1.0, 2.0, 4.0, 8.0):
        failures = failures.after_failure(100.0)
        assert not failures.over(100.0 + pause - 0.01)
        assert failures.over(100.0 + pause)


def test_a_slot_that_keeps_failing_is_left_alone_for_ten_minutes() -> None:
    failures = RestartBackoff()
    for now in range(6):
        failures = failures.after_failure(float(now))
    assert not failures.over(599.0)
    assert failures.over(600.0)


@given(st.lists(st.floats(0.0, 5000.0), max_size=30))
def test_old_failures_are_forgotten(times: list[float]) -> None:
    failures = RestartBackoff()
    for now in sorted(times):
        failures = failures.after_failure(now)
        assert 1 <= failures.count <= 6
    assert failures.after_failure(6000.0).count == 1
    assert failures.over(6000.0)
