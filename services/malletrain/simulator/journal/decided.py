"""The replay of what was really decided: the recorded changes at the recorded times, with the simulator's progress.

A job's journal says which changes of its scale there were, each with its stall.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import fmean

from malletrain.job_manager.machine.state import JobEvent
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.model.job_state import JobState
from malletrain.model.scaling import ScalingPoint
from malletrain.monitor.machine.stalls import MeasuredRescale
from malletrain.simulator.journal.record import Journal, RecordedJob
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.replay.running_job import admit

AGREEMENT = 0.03
"""Relative difference in samples up to which replay and reality agree."""


@dataclass(frozen=True, slots=True)
class JobAgreement:
    """A job in reality and in the replay of what was decided.

    Attributes:
        job_id: Identifier.
        recorded: Samples that Monitor counted, net.
        replayed: Samples of the replay, less those that were rolled back in reality.
        reasons: Why the two may differ; empty where they agree.
    """

    job_id: str
    recorded: float
    replayed: float
    reasons: tuple[str, ...] = ()

    @property
    def difference(self) -> float:
        """Relative difference, replayed less recorded; 0 where both are 0."""
        return relative(self.replayed, self.recorded)


def relative(value: float, reference: float) -> float:
    """Relative difference of a value from a reference; 0 where both are 0, infinite where only the reference is."""
    if reference == 0:
        return 0.0 if value == 0 else inf
    return value / reference - 1


def curve_of(recorded: RecordedJob) -> tuple[ScalingPoint, ...]:
    """The best that is known of a job's curve: as plans believed it, with what was measured; else as declared."""
    believed = recorded.believed.curve if recorded.believed is not None else recorded.job.spec.curve
    known = {point.nodes: point.rate for point in believed}
    if recorded.measured is not None:
        known |= {point.nodes: point.rate for point in recorded.measured.points if point.rate > 0}
    return tuple(ScalingPoint(nodes, known[nodes]) for nodes in sorted(known) if nodes > 0)


def changes_of(recorded: RecordedJob) -> list[RecordedChange]:
    """The changes of a job's scale."""
    spec = recorded.job.spec
    usual_s = (spec.scale_up_seconds or 0.0, spec.scale_down_seconds or 0.0)
    measured = recorded.measured
    if measured is None:
        return recorded_changes(recorded.events, (), usual_s)
    began = tuple(unix_seconds - measured.step_s for unix_seconds in measured.first_batches)
    return recorded_changes(recorded.events, measured.rescales, usual_s, began)


def decided_samples(recorded: RecordedJob, until_unix: float) -> float:
    """Samples that a job processes until a time if it changes as it was told to, rolled back ones included.

    Its curve must be known.
    """
    return decided_progress(recorded, (until_unix,))[0]


def decided_progress(recorded: RecordedJob, times_unix: Sequence[float]) -> list[float]:
    """As `decided_samples`, until each of several times, in seconds since the epoch, ascending."""
    changes = changes_of(recorded)
    if not changes:
        return [0.0] * len(times_unix)
    curve, spec = curve_of(recorded), recorded.job.spec
    job = ReplayJob(recorded.job.id, "", 0.0, 0.0, 0.0, 1, max(spec.max_nodes, curve[-1].nodes), inf, curve)
    origin = changes[0].unix_seconds
    run = admit(job, ReplayOptions(duration_s=1.0), max(change.nodes for change in changes), 0.0)
    progress, coming = [], deque(changes)
    for time in times_unix:
        while coming and coming[0].unix_seconds <= time:
            change = coming.popleft()
            now = change.unix_seconds - origin
            run.settle(max(now, run.since_s))
            run.nodes = {str(index) for index in range(change.nodes)}
            run.rate = run.speeds[min(change.nodes, run.most)]
            run.stalled_until_s = now + change.stall_s
        run.settle(max(time - origin, run.since_s))
        progress.append(run.done)
    return progress


def recorded_progress(recorded: RecordedJob, times_unix: Sequence[float]) -> list[float]:
    """Samples that a job had really processed by each of several times, ascending.

    Monitor tells of their sum only: it is spread over time as the replay of what was decided has it. Its curve must be
    known.
    """
    measured = recorded.measured
    if measured is None:
        return [0.0] * len(times_unix)
    times = [min(time, measured.unix_seconds) for time in times_unix]
    *parts, whole = decided_progress(recorded, (*times, measured.unix_seconds))
    return [measured.samples * part / whole if whole > 0 else 0.0 for part in parts]


def agreement(journal: Journal) -> list[JobAgreement]:
    """Compare each job that Monitor has measured with the replay of what was decided, in the order of submission."""
    return [
        _compare(recorded, recorded.measured.samples, recorded.measured.samples_lost, recorded.measured.unix_seconds)
        for recorded in journal.jobs
        if recorded.measured is not None and not recorded.job.fleet_id and curve_of(recorded)
    ]


def _compare(recorded: RecordedJob, samples: int, lost: int, until_unix: float) -> JobAgreement:
    replayed = decided_samples(recorded, until_unix) - lost
    if abs(relative(replayed, samples)) <= AGREEMENT:
        return JobAgreement(recorded.job.id, samples, replayed)
    return JobAgreement(recorded.job.id, samples, replayed, tuple(_reasons(recorded, until_unix)) or _UNKNOWN)


_UNKNOWN = ("none that is recorded: pauses of the training itself, or a rate that changed",)


def _reasons(recorded: RecordedJob, until_unix: float) -> list[str]:
    reasons = []
    changes = [change for change in changes_of(recorded) if change.unix_seconds <= until_unix]
    points = recorded.measured.points if recorded.measured is not None else ()
    unmeasured = {change.nodes for change in changes} - {point.nodes for point in points} - {0}
    if unmeasured:
        scales = ", ".join(map(str, sorted(unmeasured)))
        reasons.append(f"no rate was measured at the scales {scales}")
    if recorded.events[0].from_state is not None:
        reasons.append("the beginning of its journal is missing")
    unconfirmed = sum(change.stall_s == inf for change in changes)
    if unconfirmed:
        reasons.append(f"{unconfirmed} changes of scale were never confirmed")
    if recorded.job.restarts:
        reasons.append(f"its processes failed {recorded.job.restarts} times")
    return reasons


_HOLDING = frozenset((JobState.STARTING, JobState.RUNNING, JobState.RESCALING))
_CHANGING = frozenset((JobState.STARTING, JobState.RESCALING))
_CLOCK_SLACK_S = 1.0
"""A trainer's node and the head node may differ by so much about the time."""


@dataclass(frozen=True, slots=True)
class RecordedChange:
    """A change of a job's scale that was commanded.

    Attributes:
        unix_seconds: When the job's processes began to change, in seconds since the epoch.
        before: Scale before, in nodes.
        nodes: Scale from then on, in nodes; 0: it was stopped.
        stall_s: How long it stood still, in seconds; infinite: until the next change.
        boot_s: How long it had trained on before, since the command, in seconds; 0 where that is not known.
    """

    unix_seconds: float
    before: int
    nodes: int
    stall_s: float
    boot_s: float = 0.0

    @property
    def growth(self) -> bool:
        """Whether it is a start or a growth; else a shrink, or as many nodes as before."""
        return self.nodes > self.before


def recorded_changes(
    events: Sequence[JobEvent],
    rescales: Sequence[MeasuredRescale] = (),
    usual_s: tuple[float, float] = (0.0, 0.0),
    first_batches: Sequence[float] = (),
) -> list[RecordedChange]:
    """The changes of a job's scale in the order of time.

    Where Monitor has measured the gap in the training, that is the stall: workers may have trained on while others
    booted. A start lasts until its first batch began. Where neither is known, the stall lasts from the command until
    the workers have confirmed their scale, and is at least as long as usual.

    Args:
        events: The job's rows in JobManager's journal, oldest first.
        rescales: What Monitor has measured.
        usual_s: Stall of a growth and of a shrink in seconds, where Monitor has measured none; 0: not known.
        first_batches: When processes that had not reported before began their first batch, in seconds since the epoch.
    """
    changes: list[RecordedChange] = []
    scale, waiting = 0, False
    held: tuple[str, ...] = ()
    for event in events:
        nodes = event.nodes if event.to_state in _HOLDING else ()
        began = event.to_state in _CHANGING and (event.from_state is not event.to_state or set(nodes) != set(held))
        if began or len(nodes) != scale:
            changes.append(RecordedChange(event.unix_seconds, scale, len(nodes), inf if nodes else 0.0))
            scale, waiting = len(nodes), bool(nodes)
        elif waiting and event.reason_code is JobReason.CONFIRMED:
            changes[-1] = replace(changes[-1], stall_s=max(0.0, event.unix_seconds - changes[-1].unix_seconds))
            waiting = False
        held = nodes
    return _with_starts(_with_measured(changes, rescales, usual_s), first_batches)


def _with_measured(
    changes: list[RecordedChange], rescales: Sequence[MeasuredRescale], usual_s: tuple[float, float]
) -> list[RecordedChange]:
    up_s = fmean([rescale.seconds for rescale in rescales if rescale.growth] or [usual_s[0]])
    down_s = fmean([rescale.seconds for rescale in rescales if not rescale.growth] or [usual_s[1]])
    ends = [later.unix_seconds for later in changes[1:]] + [inf] * bool(changes)
    remaining = sorted(rescales, key=lambda rescale: rescale.unix_seconds)
    with_measured = []
    for change, end in zip(changes, ends, strict=True):
        measured = next(
            (
                rescale
                for rescale in remaining
                if (rescale.from_nodes, rescale.to_nodes) == (change.before, change.nodes)
                and change.unix_seconds - _CLOCK_SLACK_S <= rescale.unix_seconds <= end + _CLOCK_SLACK_S
            ),
            None,
        )
        if measured is None:
            min_s = 0.0 if not change.nodes else up_s if change.growth else down_s
            with_measured.append(replace(change, stall_s=max(change.stall_s, min_s)))
            continue
        remaining.remove(measured)
        began = min(max(change.unix_seconds, measured.unix_seconds - measured.seconds), end)
        boot_s = began - change.unix_seconds
        with_measured.append(replace(change, unix_seconds=began, stall_s=measured.seconds, boot_s=boot_s))
    return with_measured


def _with_starts(changes: list[RecordedChange], first_batches: Sequence[float]) -> list[RecordedChange]:
    """Changes with the stalls of starts as they were; of several first batches the first one ends a start."""
    ends = [later.unix_seconds for later in changes[1:]] + [inf] * bool(changes)
    with_starts = []
    for change, end in zip(changes, ends, strict=True):
        first = change.unix_seconds - _CLOCK_SLACK_S
        times = [time for time in first_batches if first <= time <= end] if change.before == 0 and change.nodes else []
        stall_s = max(0.0, min(times) - change.unix_seconds) if times else change.stall_s
        with_starts.append(replace(change, stall_s=stall_s))
    return with_starts
