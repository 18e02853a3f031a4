"""Tries a script under one backend, part by part."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from malletrain.cli.check.job_run import JobRun, ReportRecorder
from malletrain.cli.check.observations import CheckPart, End, ScriptTrial, awaits_save

_COMMITS = 2
_COMMIT_SECONDS = 1.5
_FIRST_REPORT_SECONDS = 10.0
_STEADY_SECONDS = 30.0
"""How long batches may take that follow others."""
_MAX_STEPS_BESIDE = 20
_EVALUATION_SECONDS = 5.0
"""An evaluation that makes no pass for so long is over."""
_SAVE_SECONDS = 45.0
"""How long it is trained on for the first save of a script that does not save when it is asked to leave."""
_STEPS_AFTER_SAVE = 3
_LOOK_SECONDS = 2.0
_BUSY_SECONDS = 0.05
"""Time of the CPU, while it is looked at, from which on processes count as busy."""


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
    backend: str,
    open_job: Callable[[str], JobRun],
    recorder: ReportRecorder,
    limits: Limits,
    say: Callable[[str], None],
    *,
    alone: bool,
) -> ScriptTrial:
    """Train with one worker, stop, go on, grow to two; then once more without a stop, for comparison.

    Args:
        backend: Name of the backend.
        open_job: Opens a job of a name, which is closed here.
        recorder: Where the jobs report.
        limits: How long it may take.
        say: Called with what happens.
        alone: Whether it stays on one node, whatever workers it starts there.
    """
    job = open_job("stopped")
    try:
        trial = await _try_stops(ScriptTrial(backend, CheckPart(End.SILENT), alone=alone), job, recorder, limits, say)
    finally:
        await job.close()
    got_that_far = trial.grown or (alone and trial.resumed is not None and trial.resumed.end is End.DONE)
    if not got_that_far or not trial.first.steps:
        return trial
    say("  from the beginning, without a stop, for comparison")
    job = open_job("unstopped")
    try:
        return replace(trial, reference=await _reference(job, trial, limits))
    finally:
        await job.close()


async def _try_stops(
    trial: ScriptTrial, job: JobRun, recorder: ReportRecorder, limits: Limits, say: Callable[[str], None]
) -> ScriptTrial:
    scale = None if trial.alone else 1
    say("  the first start, two requests to save, a stop")
    trial = replace(trial, first=await _first(job, recorder, limits, scale))
    if trial.first.end is not End.DONE:
        return trial
    say("  the next start, from what it has saved")
    began = time.time()
    resumed = await _train(job, began, scale, limits)
    if resumed.end is not End.DONE or trial.alone:
        await job.stop(0.0 if resumed.end is not End.DONE else limits.grace_seconds)
        return replace(trial, resumed=_whole(job, resumed, began, scale))
    say("  a second worker")
    await job.grow()
    grown = await _wait(job, began, 2, limits, time.time())
    resumed = _whole(job, resumed, began, 1)
    await job.stop(0.0)
    if grown.trained:
        times = resumed.times
        grown = replace(grown, boot_seconds=max(0.0, grown.times[0] - times[-1]))
    return replace(trial, resumed=resumed, grown=grown)


def _whole(job: JobRun, part: CheckPart, began: float, workers: int | None) -> CheckPart:
    """A part with all that was seen of it by now."""
    return replace(
        part,
        reports=job.reports(began, workers),
        steps=job.steps(began, workers),
        overwritten=job.overwritten(began),
        saves=tuple(dict.fromkeys(path for _, path in job.saves(began))),
        evaluated=job.evaluated(began, unsaid=True),
    )


async def _first(job: JobRun, recorder: ReportRecorder, limits: Limits, workers: int | None) -> CheckPart:
    """One worker, which is asked to commit twice and then to stop."""
    began = time.time()
    phase = await _train(job, began, workers, limits)
    if phase.end is not End.DONE:
        return phase
    end = await _commits(job, recorder, began, workers) if phase.reports else End.DONE
    if end is not End.ENDED:
        end = await _until(job, lambda: not _awaits_save(job, began, workers), began, _SAVE_SECONDS)
    ended = End.ENDED if end is End.ENDED or job.folder.is_done else End.DONE
    seconds, killed = await job.stop(limits.grace_seconds)
    return replace(
        _whole(job, phase, began, workers),
        end=ended,
        commits=tuple(recorder.commits.get(job.id, ())),
        stop_seconds=seconds,
        killed=killed,
        log=job.log(),
    )


async def _commits(job: JobRun, recorder: ReportRecorder, began: float, workers: int | None) -> End:
    """Ask to commit, and wait each time until what a save would stop is over."""
    end = End.DONE
    for number in range(_COMMITS):
        recorder.ask_to_commit(job.id)
        end = await _until(
            job,
            lambda number=number: _commit_is_over(job, recorder, began, number, workers),  # type: ignore[misc]
            began,
            _STEADY_SECONDS,
        )
        if end is End.ENDED:
            break
    return end


def _awaits_save(job: JobRun, began: float, workers: int | None) -> bool:
    saves = [seconds for seconds, _ in job.saves(began)]
    return awaits_save(job.steps(began, workers), saves, _STEPS_AFTER_SAVE)


async def _until(job: JobRun, seen: Callable[[], bool], began: float, seconds: float) -> End:
    """Wait for something to be seen; an evaluation that is seen to go on is waited for."""
    while True:
        end = await job.until(seen, seconds)
        evaluated = job.evaluated(began)
        if end is not End.SILENT or not evaluated or time.time() - evaluated[-1] > _EVALUATION_SECONDS:
            return end


def _commit_is_over(job: JobRun, recorder: ReportRecorder, began: float, number: int, workers: int | None) -> bool:
    """Whether a batch has ended so late that a save for this request had begun before it."""
    commits = recorder.commits.get(job.id, [])
    if len(commits) <= number:
        return False
    times = CheckPart(End.DONE, job.reports(began, workers), job.steps(began, workers)).times
    return bool(times) and times[-1] > commits[number] + _COMMIT_SECONDS


async def _train(job: JobRun, began: float, workers: int | None, limits: Limits) -> CheckPart:
    await job.start()
    return await _wait(job, began, workers, limits, began)


async def _wait(job: JobRun, since: float, workers: int | None, limits: Limits, began: float) -> CheckPart:
    """Wait for the batches of a scale; None: of any."""

    def has_seen(count: int) -> bool:
        steps = job.steps(since, workers)
        if not steps:
            return len(job.reports(since, workers)) >= count
        return all(sum(step.rank == rank for step in steps) >= count for rank in range(workers or 1))

    end = await job.until(lambda: has_seen(1), limits.boot_seconds)
    busy = end is End.SILENT and await _is_busy(job)
    if end is End.DONE:
        end = await _until(job, lambda: has_seen(limits.batches), since, _STEADY_SECONDS)
        # The last reports are on their way.
        await job.until(lambda: len(job.reports(since, workers)) >= limits.batches, 2.0)
        # On a busy machine the sidecar may only just have started.
        await job.until(lambda: bool(job.reports(since, workers)), _FIRST_REPORT_SECONDS)
    phase = _whole(job, CheckPart(end, log=job.log(), busy=busy), since, workers)
    return replace(phase, boot_seconds=phase.times[0] - began) if phase.trained else phase


async def _is_busy(job: JobRun) -> bool:
    before = job.cpu_seconds()
    await job.until(lambda: False, _LOOK_SECONDS)
    return job.cpu_seconds() - before > _BUSY_SECONDS


async def _reference(job: JobRun, trial: ScriptTrial, limits: Limits) -> CheckPart:
    """One worker, from the beginning to where the others came."""
    began = time.time()
    workers = None if trial.alone else 1
    parts = [phase for phase in (trial.first, trial.resumed) if phase is not None]
    samples = sum(step.size for phase in parts for step in phase.of_rank(0))
    grown = trial.grown.steps if trial.grown is not None else ()
    samples += sum(step.size for step in grown[: 2 * _MAX_STEPS_BESIDE])
    steps = sum(len(phase.of_rank(0)) for phase in parts) + limits.batches
    lasted = sum(phase.times[-1] - phase.times[0] for phase in parts if phase.times)

    def enough() -> bool:
        new_steps = job.steps(began, workers)
        return bool(new_steps) and (
            sum(step.size for step in new_steps) >= samples if samples else len(new_steps) >= steps
        )

    await job.start()
    end = await job.until(enough, limits.boot_seconds + 3 * lasted + _STEADY_SECONDS)
    return CheckPart(end, job.reports(began, workers), job.steps(began, workers), log=job.log())
