"""The replay of what was really decided: the recorded changes at the recorded times, with the simulator's progress."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from malletrain.model.scaling import ScalingPoint
from malletrain.simulator.journal.record import Journal, RecordedJob
from malletrain.simulator.journal.scale_changes import RecordedChange, recorded_changes
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
    """The same until each of several times, in seconds since the epoch, ascending."""
    changes = changes_of(recorded)
    if not changes:
        return [0.0] * len(times_unix)
    curve, spec = curve_of(recorded), recorded.job.spec
    job = ReplayJob(recorded.job.id, "", 0.0, 0.0, 0.0, 1, max(spec.max_nodes, curve[-1].nodes), inf, curve)
    origin = changes[0].unix_seconds
    run = admit(job, ReplayOptions(duration_s=1.0), max(change.nodes for change in changes), 0.0)
    found, coming = [], deque(changes)
    for time in times_unix:
        while coming and coming[0].unix_seconds <= time:
            change = coming.popleft()
            now = change.unix_seconds - origin
            run.settle(max(now, run.since_s))
            run.nodes = {str(index) for index in range(change.nodes)}
            run.rate = run.speeds[min(change.nodes, run.most)]
            run.stalled_until_s = now + change.stall_s
        run.settle(max(time - origin, run.since_s))
        found.append(run.done)
    return found


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
    found = []
    changes = [change for change in changes_of(recorded) if change.unix_seconds <= until_unix]
    points = recorded.measured.points if recorded.measured is not None else ()
    unmeasured = {change.nodes for change in changes} - {point.nodes for point in points} - {0}
    if unmeasured:
        scales = ", ".join(map(str, sorted(unmeasured)))
        found.append(f"no rate was measured at the scales {scales}")
    if recorded.events[0].from_state is not None:
        found.append("the beginning of its journal is missing")
    unconfirmed = sum(change.stall_s == inf for change in changes)
    if unconfirmed:
        found.append(f"{unconfirmed} changes of scale were never confirmed")
    if recorded.job.restarts:
        found.append(f"its processes failed {recorded.job.restarts} times")
    return found
