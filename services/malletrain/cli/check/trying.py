"""Tries a script under one backend, part by part."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from malletrain.cli.check.job_run import JobRun
from malletrain.cli.check.observations import CheckPart, End, ScriptTrial
from malletrain.cli.check.recorder import ReportRecorder

_COMMITS = 2
_COMMIT_SECONDS = 1.5
_FIRST_REPORT_SECONDS = 10.0
_STEADY_SECONDS = 30.0
"""How long batches may take that follow others."""
_MOST_STEPS_BESIDE = 20


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a check may take.

    Attributes:
        batches: Batches that each part trains at least.
        boot_seconds: Longest wait for the first batch of a part.
        grace_seconds: How long the script may take to save and end.
    """

    batches: int
    boot_seconds: float
    grace_seconds: float


async def try_backend(
    backend: str, open_job: Callable[[str], JobRun], recorder: ReportRecorder, limits: Limits, *, observed: bool
) -> ScriptTrial:
    """Train with one worker, stop, go on, grow to two; then once more without a stop, for comparison.

    Args:
        backend: Name of the backend.
        open_job: Opens a job of a name, which is closed here.
        recorder: Where the jobs report.
        limits: How long it may take.
        observed: Whether workers can be looked into.
    """
    job = open_job("stopped")
    try:
        trial = await _try_stops(backend, job, recorder, limits, observed)
    finally:
        await job.close()
    if trial.grown is None or not trial.first.steps:
        return trial
    job = open_job("unstopped")
    try:
        return replace(trial, reference=await _reference(job, trial, limits))
    finally:
        await job.close()


async def _try_stops(
    backend: str, job: JobRun, recorder: ReportRecorder, limits: Limits, observed: bool
) -> ScriptTrial:
    first = await _first(job, recorder, limits)
    trial = ScriptTrial(backend, first, observed=observed)
    if first.end is not End.DONE:
        return trial
    began = time.time()
    resumed = await _train(job, began, 1, limits)
    if resumed.end is not End.DONE:
        return replace(trial, resumed=resumed)
    await job.grow()
    grown = await _wait(job, began, 2, limits, time.time())
    resumed = replace(resumed, reports=job.reports(began, 1), steps=job.steps(began, 1))
    await job.stop(0.0)
    if grown.trained:
        times = resumed.times
        grown = replace(grown, boot_seconds=max(0.0, grown.times[0] - times[-1]))
    return replace(trial, resumed=resumed, grown=grown)


async def _first(job: JobRun, recorder: ReportRecorder, limits: Limits) -> CheckPart:
    """One worker, which is asked to commit twice and then to stop."""
    began = time.time()
    phase = await _train(job, began, 1, limits)
    if phase.end is not End.DONE:
        return phase
    for number in range(_COMMITS if phase.reports else 0):
        recorder.ask_to_commit(job.id)
        end = await job.until(lambda number=number: _commit_is_over(job, recorder, began, number), _STEADY_SECONDS)  # type: ignore[misc]
        if end is End.ENDED:
            break
    ended = await job.until(lambda: True, 0.0) if not job.folder.is_done else End.ENDED
    seconds, killed = await job.stop(limits.grace_seconds)
    return replace(
        phase,
        end=ended,
        reports=job.reports(began, 1),
        steps=job.steps(began, 1),
        commits=tuple(recorder.commits.get(job.id, ())),
        stop_seconds=seconds,
        killed=killed,
        log=job.log(),
    )


def _commit_is_over(job: JobRun, recorder: ReportRecorder, began: float, number: int) -> bool:
    """Whether a batch has ended so late that a save for this request had begun before it."""
    commits = recorder.commits.get(job.id, [])
    if len(commits) <= number:
        return False
    times = CheckPart(End.DONE, job.reports(began, 1), job.steps(began, 1)).times
    return bool(times) and times[-1] > commits[number] + _COMMIT_SECONDS


async def _train(job: JobRun, began: float, workers: int, limits: Limits) -> CheckPart:
    await job.start()
    return await _wait(job, began, workers, limits, began)


async def _wait(job: JobRun, since: float, workers: int, limits: Limits, began: float) -> CheckPart:
    """Wait for the batches of a scale."""

    def seen(count: int) -> bool:
        steps = job.steps(since, workers)
        if not steps:
            return len(job.reports(since, workers)) >= count
        return all(sum(step.rank == rank for step in steps) >= count for rank in range(workers))

    end = await job.until(lambda: seen(1), limits.boot_seconds)
    if end is End.DONE:
        end = await job.until(lambda: seen(limits.batches), _STEADY_SECONDS)
        # The last reports are on their way.
        await job.until(lambda: len(job.reports(since, workers)) >= limits.batches, 2.0)
        # On a busy machine the sidecar may only just have started.
        await job.until(lambda: bool(job.reports(since, workers)), _FIRST_REPORT_SECONDS)
    phase = CheckPart(end, job.reports(since, workers), job.steps(since, workers), log=job.log())
    return replace(phase, boot_seconds=phase.times[0] - began) if phase.trained else phase


async def _reference(job: JobRun, trial: ScriptTrial, limits: Limits) -> CheckPart:
    """One worker, from the beginning to where the others came."""
    began = time.time()
    parts = [phase for phase in (trial.first, trial.resumed) if phase is not None]
    samples = sum(step.size for phase in parts for step in phase.of_rank(0))
    grown = trial.grown.steps if trial.grown is not None else ()
    samples += sum(step.size for step in grown[: 2 * _MOST_STEPS_BESIDE])
    steps = sum(len(phase.of_rank(0)) for phase in parts) + limits.batches
    lasted = sum(phase.times[-1] - phase.times[0] for phase in parts if phase.times)

    def enough() -> bool:
        found = job.steps(began, 1)
        return bool(found) and (sum(step.size for step in found) >= samples if samples else len(found) >= steps)

    await job.start()
    end = await job.until(enough, limits.boot_seconds + 3 * lasted + _STEADY_SECONDS)
    return CheckPart(end, job.reports(began, 1), job.steps(began, 1), log=job.log())
