"""Times of JobManager's steps while many jobs wait for burst buffer: `python benchmarks/admission.py [--jobs 1000]`.

Ten owners with fair share; in the mixed case a hundred, half of whose jobs ask for none and take all places. A tick is
a step at which nothing changes; at an end a job gives back its place and its burst buffer, so that others are admitted.
All is measured in one run, so that ratios compare on a busy machine, too.
"""

from __future__ import annotations

import argparse
import random
import time
from statistics import median

from malletrain.job_manager.machine.admission import MAX_WINDOW, AdmissionRule
from malletrain.job_manager.machine.jobs import JobSpec
from malletrain.job_manager.machine.state import ManagerPolicy, ManagerState
from malletrain.job_manager.machine.state_machine import advance
from malletrain.job_manager.machine.stimuli import Cancelled, Submitted, Ticked
from malletrain.selection.places import select_for_places
from malletrain.selection.problem import FreeResources, MachineResources, ResourceRequest, SelectionProblem

_OWNERS = 10
_MIXED_OWNERS = 100
_STEPS = 50
_QUOTA_GB = 60_000


def queue_of(jobs: int, max_gb: int, policy: ManagerPolicy, mixed: bool) -> ManagerState:
    rng, state = random.Random(1), ManagerState()
    owners = _MIXED_OWNERS if mixed else _OWNERS
    for owner in range(owners):
        amounts = [rng.randint(min(1, max_gb), max_gb) for _ in range(jobs // owners)]
        if mixed:
            amounts[: len(amounts) // 2] = [0] * (len(amounts) // 2)
        specs = tuple(
            JobSpec(
                name="job", command=("true",), working_directory="/", min_nodes=1, max_nodes=4, burst_buffer_gb=amount
            )
            for amount in amounts
        )
        state = advance(state, Submitted(specs, f"user{owner}"), 1.0, policy).state
    return state


def steps(jobs: int, max_gb: int, policy: ManagerPolicy, mixed: bool) -> tuple[list[float], list[float]]:
    """Seconds of each tick and of each end."""
    state = queue_of(jobs, max_gb, policy, mixed)
    ticks, ends = [], []
    for step in range(_STEPS):
        admitted = next(job for job in state.jobs.values() if job.admitted)
        for stimulus, times in ((Ticked(), ticks), (Cancelled(admitted.id), ends)):
            began = time.perf_counter()
            state = advance(state, stimulus, 2.0 + step, policy).state
            times.append(time.perf_counter() - began)
    return ticks, ends


def solve_seconds(window: int) -> list[float]:
    rng, found = random.Random(window), []
    for _ in range(_STEPS):
        jobs = tuple(ResourceRequest(1, rng.randint(1, 9000)) for _ in range(window))
        free_gb = int(rng.choice([0.1, 0.25, 0.5, 0.9]) * sum(job.burst_buffer_gb for job in jobs))
        problem = SelectionProblem(MachineResources(500, 10**6), FreeResources(window, 0, free_gb), jobs)
        began = time.perf_counter()
        select_for_places(problem)
        found.append(time.perf_counter() - began)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    jobs = parser.parse_args().jobs
    for name, rule, max_gb, places, mixed in (
        ("no requests", AdmissionRule.FIFO, 0, 100, False),
        ("fifo", AdmissionRule.FIFO, 9000, 500, False),
        ("window", AdmissionRule.WINDOW, 9000, 500, False),
        ("mixed", AdmissionRule.WINDOW, 9000, 100, True),
    ):
        policy = ManagerPolicy(
            max_parallel=places,
            fair_share_half_life_seconds=604_800.0,
            burst_buffer_gb=_QUOTA_GB,
            admission=rule,
        )
        ticks, ends = steps(jobs, max_gb, policy, mixed)
        print(
            f"{name}, {jobs} jobs: tick {1000 * median(ticks):.1f} ms, end {1000 * median(ends):.1f} ms "
            f"(worst {1000 * max(ends):.1f})"
        )
    for window in (20, MAX_WINDOW):
        times = solve_seconds(window)
        print(f"window of {window}: {1000 * median(times):.1f} ms (worst {1000 * max(times):.1f})")


if __name__ == "__main__":
    main()
