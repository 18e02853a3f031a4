from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.soaking.fault_plan import MAX_CLOCK_OFFSET_S, MAX_S, SERVICES, FaultKind, plan_faults

SEEDS = st.integers(0, 2**32)
SECONDS = st.floats(30.0, 86_400.0)
GAPS = st.floats(1.0, 60.0)


@given(SEEDS, SECONDS, GAPS)
def test_the_same_seed_gives_the_same_faults(seed: int, seconds: float, gap: float) -> None:
    gap = max(gap, seconds / 500)
    assert plan_faults(seed, seconds, gap, FaultKind) == plan_faults(seed, seconds, gap, reversed(list(FaultKind)))


@given(SEEDS, SECONDS, GAPS)
def test_all_kinds_come_in_order_within_the_time(seed: int, seconds: float, gap: float) -> None:
    faults = plan_faults(seed, seconds, max(gap, seconds / 500), FaultKind)
    moments = [fault.at_s for fault in faults]
    assert {fault.kind for fault in faults} == set(FaultKind)
    assert moments == sorted(moments)
    assert 0.049 * seconds <= moments[0]
    assert moments[-1] <= 0.951 * seconds
    assert all(0 <= fault.lasts_s <= MAX_S for fault in faults)
    assert all(abs(fault.offset_s) <= MAX_CLOCK_OFFSET_S for fault in faults)
    assert len(faults) == max(len(FaultKind), round((0.95 * seconds - 0.05 * seconds) / max(gap, seconds / 500)))


@given(SEEDS)
def test_each_service_is_killed_and_stopped(seed: int) -> None:
    faults = plan_faults(seed, 600.0, 5.0, FaultKind)
    for kind in (FaultKind.KILL_SERVICE, FaultKind.STOP_SERVICE):
        assert {fault.service for fault in faults if fault.kind is kind} == set(SERVICES)
    assert all(not fault.service for fault in faults if "service" not in fault.kind)


@given(SEEDS, st.sets(st.sampled_from(FaultKind)))
def test_only_what_can_be_done_comes(seed: int, kinds: set[FaultKind]) -> None:
    assert {fault.kind for fault in plan_faults(seed, 120.0, 1.0, kinds)} == kinds


def test_another_seed_gives_other_faults() -> None:
    assert plan_faults(1, 600.0, 8.0, FaultKind) != plan_faults(2, 600.0, 8.0, FaultKind)


@pytest.mark.parametrize(("seconds", "gap"), [(0.0, 1.0), (-1.0, 1.0), (1.0, 0.0), (float("nan"), 1.0)])
def test_times_must_be_above_0(seconds: float, gap: float) -> None:
    with pytest.raises(ValueError, match="seconds, mean_gap_s"):
        plan_faults(1, seconds, gap, FaultKind)
