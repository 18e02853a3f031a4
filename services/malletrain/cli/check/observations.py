"""What a check has seen of a script. Pure."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Report:
    """One call of `report`, as it reached Monitor.

    Attributes:
        seconds: When, in seconds since the epoch.
        samples: The global batch that it names.
        position: The job's sample counter after it; None where the script does not say.
        workers: Number of workers that it names.
    """

    seconds: float
    samples: int
    position: int | None
    workers: int


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step of one worker, as seen inside of its process.

    Attributes:
        rank: The worker's rank.
        workers: Number of workers.
        seconds: When it ended, in seconds since the epoch.
        size: Samples that the model was fed for it, by this worker.
        rows: A fingerprint of each sample, the first 512 of them.
        loss: Sum of the losses of its passes; None where there was no backward pass of a number.
        rates: Learning rate of each parameter group during the step.
        before: Fingerprint of the weights before it.
        after: The same after it.
        sharded: Whether the weights are divided among the workers.
        process: Number of its process.
        together: How many workers are in one group with this one; 1: it trains alone.
        reported: Calls of `report` in its process before it.
        schedule: Length and present step of its schedule of a fixed length; None where there is none.
        base_rates: The rate of each parameter group that its schedule multiplies, where one is kept.
        heeds_stop: Whether its process has a handler for SIGTERM, and may save when it is asked to leave.
    """

    rank: int
    workers: int
    seconds: float
    size: int
    rows: tuple[int, ...]
    loss: float | None
    rates: tuple[float, ...]
    before: float
    after: float
    sharded: bool
    process: int = 0
    together: int = 0
    reported: int = 0
    schedule: tuple[int, int] | None = None
    base_rates: tuple[float, ...] = ()
    heeds_stop: bool = True


class End(StrEnum):
    """How a part of a check ended."""

    DONE = "done"
    """What was waited for has been seen."""
    ENDED = "ended"
    """The script ended by itself, or failed."""
    SILENT = "silent"
    """Nothing was seen in time."""


@dataclass(frozen=True, slots=True)
class CheckPart:
    """One part of a check: a script at one scale.

    Attributes:
        end: How it ended.
        reports: What it has reported, in order.
        steps: What was seen in its workers, in order of time.
        boot_seconds: From the start or the command to the first batch; None where there was none.
        commits: When a commit was asked for, in seconds since the epoch.
        stop_seconds: From the request to stop until all had ended; None where it was not asked to.
        killed: Whether workers had to be killed at the end of their grace.
        log: The end of what its workers and their supervisor have printed.
        overwritten: Files with a state that a save has written over the one before.
        saves: Files that states were saved in.
        evaluated: When an evaluation that the script does not announce made passes, in seconds since the epoch.
        busy: Whether its processes computed when it was not waited for any longer.
    """

    end: End
    reports: tuple[Report, ...] = ()
    steps: tuple[Step, ...] = ()
    boot_seconds: float | None = None
    commits: tuple[float, ...] = ()
    stop_seconds: float | None = None
    killed: bool = False
    log: str = ""
    overwritten: tuple[str, ...] = ()
    saves: tuple[str, ...] = ()
    evaluated: tuple[float, ...] = ()
    busy: bool = False

    def of_rank(self, rank: int) -> tuple[Step, ...]:
        """The steps of one worker: of processes that do not know their rank, those of the first."""
        of_rank = tuple(step for step in self.steps if step.rank == rank)
        return tuple(step for step in of_rank if step.process == of_rank[0].process)

    @property
    def times(self) -> list[float]:
        """When batches ended, in seconds since the epoch: as seen inside, else as reported."""
        return [step.seconds for step in self.of_rank(0)] or [report.seconds for report in self.reports]

    @property
    def trained(self) -> bool:
        """Whether there were batches."""
        return bool(self.steps or self.reports)


@dataclass(frozen=True, slots=True)
class ScriptTrial:
    """A script under one backend.

    Attributes:
        backend: Name of the backend.
        first: One worker, asked to commit, then to stop.
        resumed: One worker again, from what was saved; None where the first part went wrong.
        grown: The same with a second worker; None where there was none before it.
        reference: One worker from the beginning, never stopped, for comparison; None where it was not needed.
        alone: Whether it stays on one node, and is not given a second one.
        kind: How the script's processes are started, in words; empty where there is nothing to say of that.
    """

    backend: str
    first: CheckPart
    resumed: CheckPart | None = None
    grown: CheckPart | None = None
    reference: CheckPart | None = None
    alone: bool = False
    kind: str = ""


def awaits_save(steps: Sequence[Step], saves: Sequence[float], batches: int) -> bool:
    """Whether a stop would come before the first save of a script that saves in intervals only, or right after it.

    Args:
        steps: Its steps so far, in order of time.
        saves: When it has saved, in seconds since the epoch.
        batches: Steps after a save from which on a stop shows whether it loses any.
    """
    if not steps or steps[-1].heeds_stop:
        return False
    return not saves or sum(step.seconds > saves[0] for step in steps if step.rank == steps[-1].rank) < batches


def steps_together(phase: CheckPart) -> list[list[Step]]:
    """Steps of all workers that belong together, each list by rank; the number of workers is that of the last step."""
    if not phase.steps:
        return []
    by_rank = [phase.of_rank(rank) for rank in range(phase.steps[-1].workers)]
    return [list(together) for together in zip(*by_rank, strict=False)]


def seen_batch(phase: CheckPart) -> float | None:
    """Samples of a step over all workers, as fed to the models: the median; None where nothing was seen."""
    sizes = [sum(step.size for step in together) for together in steps_together(phase)]
    return statistics.median(sizes) if any(sizes) else None


def reported_batch(phase: CheckPart) -> float | None:
    """The median of the reported global batches; None where nothing was reported."""
    return statistics.median(report.samples for report in phase.reports) if phase.reports else None


def rows_of(steps: Sequence[Step]) -> tuple[int, ...]:
    """Fingerprints of the samples of some steps, in order."""
    return tuple(row for step in steps for row in step.rows)


def median_step(phase: CheckPart) -> float:
    """Seconds between two batches: the median; 0.0 where there are not two."""
    times = phase.times
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    return statistics.median(gaps) if gaps else 0.0


def max_evaluation(phase: CheckPart) -> float:
    """The longest gap between two batches in which an evaluation made passes, in seconds; 0.0 where there is none."""
    times = phase.times
    gaps = [
        later - earlier
        for earlier, later in itertools.pairwise(times)
        if any(earlier < seconds < later for seconds in phase.evaluated)
    ]
    if times and phase.evaluated and phase.evaluated[-1] > times[-1]:
        gaps.append(phase.evaluated[-1] - times[-1])
    return max(gaps, default=0.0)


def commit_pause(phase: CheckPart, window_seconds: float) -> float | None:
    """How long a commit stops the training, in seconds.

    After each request the longest gap between two batches is taken, and of these the smallest: other programs may
    cause one gap, but hardly one after each request.

    Args:
        phase: The part with the requests.
        window_seconds: How long after a request a gap may begin that belongs to it.

    Returns:
        None where nothing was asked for, or no batches followed.
    """
    times = phase.times
    longest = []
    for commit in phase.commits:
        gaps = [
            later - earlier
            for earlier, later in itertools.pairwise(times)
            if later >= commit and earlier <= commit + window_seconds
        ]
        if gaps:
            longest.append(max(gaps))
    return max(0.0, min(longest) - median_step(phase)) if longest else None
