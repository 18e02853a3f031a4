"""An independent scheduler, slow and simple, that tries each backfill instead of computing which one is possible.

A job may be backfilled if it does not delay the earliest start of the head, by the estimates, beyond the reservation
that the head had at the beginning of the instant.
"""

from __future__ import annotations

from dataclasses import dataclass

from malletrain.simulator.batch.workload import BatchJob, BatchWorkload


@dataclass(frozen=True)
class Running:
    job: BatchJob
    start_s: float
    end_s: float

    def expected_end_s(self, now_s: float) -> float:
        return max(now_s, self.start_s + self.job.estimate_s)


def score(job: BatchJob, now_s: float, policy: str) -> float:
    if policy != "wfp":
        return 0.0
    relative = (now_s - job.submit_s) / job.estimate_s
    return relative * relative * relative * job.nodes


def in_order(waiting: list[BatchJob], now_s: float, policy: str) -> list[BatchJob]:
    """Highest score first, of equals the earliest submission (numbers count up with it)."""
    return sorted(waiting, key=lambda job: (-score(job, now_s, policy), job.number))


def earliest_start_s(job: BatchJob, running: list[Running], nodes: int, now_s: float) -> float:
    """When a job fits, if everything that runs ends as estimated and nothing else starts."""
    times = sorted({now_s, *(run.expected_end_s(now_s) for run in running)})
    return next(
        time_s
        for time_s in times
        # Whatever runs now is running now, even if it is expected to end at any moment; a head that fits now starts.
        if nodes - sum(run.job.nodes for run in running if run.expected_end_s(now_s) > time_s) >= job.nodes
    )


def simulate_slowly(workload: BatchWorkload, policy: str, *, kill: bool = True) -> dict[int, float]:
    """Start of every job, by its number."""
    to_come, waiting = list(workload.jobs), list[BatchJob]()
    running, starts = list[Running](), dict[int, float]()

    def start(job: BatchJob) -> None:
        waiting.remove(job)
        starts[job.number] = now_s
        running.append(Running(job, now_s, now_s + (min(job.run_s, job.estimate_s) if kill else job.run_s)))

    while to_come or running:
        now_s = min([job.submit_s for job in to_come[:1]] + [run.end_s for run in running])
        running = [run for run in running if run.end_s > now_s]
        waiting += [job for job in to_come if job.submit_s == now_s]
        to_come = [job for job in to_come if job.submit_s > now_s]
        promise_s: float | None = None
        for job in in_order(waiting, now_s, policy):
            fits = job.nodes <= workload.nodes - sum(run.job.nodes for run in running)
            if promise_s is None:
                if fits:
                    start(job)
                    continue
                if policy == "fcfs":
                    break
                head, promise_s = job, earliest_start_s(job, running, workload.nodes, now_s)
            elif fits:
                trial = [*running, Running(job, now_s, now_s)]
                if earliest_start_s(head, trial, workload.nodes, now_s) <= promise_s:
                    start(job)
    return starts
