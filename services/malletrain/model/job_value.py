"""What a job's training speed is worth to its owner: the user-defined metric of BFTrainer and MalleTrain. Pure.

A value curve says how many samples per second a speed counts for. It is a function of the speed at each scale, so every
solver has it as one more table. Nothing of it is a program that is run.
"""

from __future__ import annotations

from dataclasses import dataclass

from malletrain.model.goodput import GoodputTerms, GradientNoise, StatisticalEfficiency

MAX_POINTS = 32
MIN_SPEEDUP, MAX_SPEEDUP = 1e-3, 1e6
MAX_VALUE = 1e6
MIN_SAMPLE_VALUE, MAX_SAMPLE_VALUE = 1e-9, MAX_VALUE / MIN_SPEEDUP
"""Of what a sample can count for. Owners' weights are divided by it: it must be neither 0 nor infinite."""
MAX_URGENCY = 100.0
DEFAULT_URGENCY = 4.0
MAX_SECONDS = 1e11
"""Latest deadline in seconds since the epoch: some three thousand years."""


@dataclass(frozen=True, slots=True)
class ValuePoint:
    """A point of a piecewise-linear value curve.

    Attributes:
        speedup: Speed as a multiple of that on one node.
        value: What it counts for, as a multiple of the speed on one node.
    """

    speedup: float
    value: float


@dataclass(frozen=True)
class ValueCurve:
    """What speeds count for. One of the four forms; without any, a speed counts for itself.

    Attributes:
        exponent: `diminishing`: a speedup s counts for s to the power of it, above 0 and at most 1.
        points: Piecewise linear: from (0, 0) through these points, with ascending speedups, and flat beyond the last.
        needed_rate: In samples/s: up to it each sample counts `urgency` times, beyond it once. 0: there is none.
        urgency: At least 1.
        efficiency: Goodput: a speed counts times this; None: another form.
    """

    exponent: float = 1.0
    points: tuple[ValuePoint, ...] = ()
    needed_rate: float = 0.0
    urgency: float = 1.0
    efficiency: StatisticalEfficiency | None = None

    @property
    def linear(self) -> bool:
        """Whether a speed counts for itself."""
        needs_more = self.needed_rate and self.urgency != 1.0
        return self.exponent == 1.0 and not self.points and not needs_more and self.efficiency is None

    @property
    def max_sample_value(self) -> float:
        """The most that a sample can count for, at speeds that are at least those on one node.

        MIN_SAMPLE_VALUE to MAX_SAMPLE_VALUE, also for curves that were stored before speedups had a least value.
        """
        if self.points:
            return min(MAX_SAMPLE_VALUE, max(MIN_SAMPLE_VALUE, *(point.value / point.speedup for point in self.points)))
        return self.urgency if self.needed_rate else 1.0


LINEAR = ValueCurve()


@dataclass(frozen=True)
class Deadline:
    """When a job is to be done.

    Attributes:
        seconds: Since the epoch, or since the submission.
        after_submission: Whether it counts from the submission.
        urgency: How many times a sample counts that is needed for it, 1 to MAX_URGENCY.
    """

    seconds: float
    after_submission: bool = False
    urgency: float = DEFAULT_URGENCY


@dataclass(frozen=True)
class SpeedValue:
    """The value of a job as it is submitted: a curve, or what a curve follows from at every plan.

    Attributes:
        curve: Linear where one of the others is given.
        deadline: By which it is to be done.
        goodput: What is declared of its batch and noise scale, if its goodput counts.
    """

    curve: ValueCurve = LINEAR
    deadline: Deadline | None = None
    goodput: GoodputTerms | None = None

    @property
    def max_sample_value(self) -> float:
        """The most that a sample can count for."""
        return self.curve.max_sample_value if self.deadline is None else self.deadline.urgency


LINEAR_VALUE = SpeedValue()


def goodput_curve(terms: GoodputTerms, told: GradientNoise | None, min_nodes: int) -> ValueCurve:
    """The value curve of a job whose goodput counts; linear while its efficiency is not known.

    Args:
        terms: As submitted.
        told: What the training tells of its gradients; None: nothing yet.
        min_nodes: Its least scale in nodes.
    """
    efficiency = terms.efficiency(told, min_nodes)
    return LINEAR if efficiency is None else ValueCurve(efficiency=efficiency)


def curve_at(value: SpeedValue, submitted: float, now: float, remaining_samples: float) -> ValueCurve:
    """The value curve of a job at some time, but for goodput; linear once its deadline has passed.

    Args:
        value: As submitted.
        submitted: When it was submitted, in seconds of the same clock as `now`.
        now: In seconds since the epoch.
        remaining_samples: Samples that are left of its target.
    """
    if value.deadline is None:
        return value.curve
    left = value.deadline.seconds + (submitted if value.deadline.after_submission else 0.0) - now
    if left <= 0 or remaining_samples <= 0:
        return LINEAR
    return ValueCurve(needed_rate=remaining_samples / left, urgency=value.deadline.urgency)
