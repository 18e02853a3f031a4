"""Generated workloads keep to what the paper says of the machines' logs."""

from __future__ import annotations

import pytest

from malletrain.reproduce.bbsched.trials import BatchTrial, run_trial
from malletrain.simulator.batch.generated import PROFILES, WorkloadRecipe, derive, generate, original_requests

CORI, THETA = PROFILES["cori"], PROFILES["theta"]
TB = 1000
THETA_SUMS = (59_197, 1_545_656.0, 17_593_123.0, 5_245_171)


def test_coris_requests_are_as_published() -> None:
    found = original_requests(CORI, 0)
    assert len(found) == int(2_607_054 * 0.00618)
    assert sum(gb > TB for gb in found) / len(found) == pytest.approx(0.204 / 0.618, abs=0.02)
    assert 1 <= min(found) < TB
    beyond = [gb for gb in found if gb > 65 * TB]
    assert set(beyond) == {165 * TB}
    assert len(beyond) < 30, "a few only"
    assert found == original_requests(CORI, 0) != original_requests(CORI, 1)


def test_a_third_of_coris_burst_buffer_is_reserved_persistently() -> None:
    resources = generate(CORI, 10, 0.9, 0).resources
    assert resources is not None
    assert resources.burst_buffer_gb == 1200 * TB


def test_jobs_ask_as_often_as_published() -> None:
    for profile, share in ((CORI, 0.00618), (THETA, 0.1718)):
        # Like jobs come together, so that one workload has few independent requests.
        jobs = [job for seed in range(8) for job in generate(profile, 20_000, 0.8, seed).jobs]
        assert sum(job.burst_buffer_gb > 0 for job in jobs) / len(jobs) == pytest.approx(share, rel=0.25)


@pytest.mark.parametrize(
    ("recipe", "share", "least"), [("s1", 0.5, 5), ("s2", 0.75, 5), ("s3", 0.5, 20), ("s4", 0.75, 20)]
)
def test_recipes_draw_of_the_machines_own_requests(recipe: str, share: float, least: int) -> None:
    originals = original_requests(CORI, 3)
    jobs = derive(generate(CORI, 4000, 0.9, 3), WorkloadRecipe(recipe), 3, originals).jobs
    asking = [job.burst_buffer_gb for job in jobs if job.burst_buffer_gb]
    assert set(asking) <= set(originals)
    assert min(asking) > least * TB
    assert len(asking) / len(jobs) == pytest.approx(share, abs=0.03)


def test_usages_on_cori_are_near_the_published_ones() -> None:
    def usage(recipe: str) -> tuple[float, float]:
        found = [run_trial(BatchTrial("cori", recipe, "bbsched", seed, 1500)).metrics for seed in range(4)]
        return sum(x.node_usage for x in found) / 4, sum(x.burst_buffer_usage for x in found) / 4

    nodes, burst_buffer = usage("s1")
    assert nodes > 0.7
    assert burst_buffer < 0.8
    nodes, burst_buffer = usage("s4")
    assert nodes == pytest.approx(0.649, abs=0.1)
    assert burst_buffer == pytest.approx(0.947, abs=0.05)


def test_theta_is_what_it_was() -> None:
    """Tables of the docs were made with these jobs."""
    jobs = generate(THETA, 500, 0.8, 0).jobs
    assert original_requests(THETA, 0) == ()
    assert (
        sum(job.nodes for job in jobs),
        sum(job.run_s for job in jobs),
        sum(job.submit_s for job in jobs),
        sum(job.burst_buffer_gb for job in jobs),
    ) == THETA_SUMS
