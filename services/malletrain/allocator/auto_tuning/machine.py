"""What auto-tuning does next: a step, going back, or nothing. Pure: times are passed in, and others do the replays.

A step changes one thing: T_fwd to the next value of a grid, or where it comes from. It is on trial until the hours
after it have been replayed several times without contradicting it. While a step is on trial there is no other one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from malletrain.allocator.problem.forward_time import ForwardPolicy

FORWARD_S = (30.0, 60.0, 120.0, 240.0, 480.0, 960.0)
"""Values of T_fwd in seconds that are tried; a step goes to the next one."""
MIN_GAIN = 0.005
"""A change for less than this share of the samples is not worth it."""
CHECKS = 6
"""A step is on trial until it has been looked at so many times."""
BARRED_RUNS = 24
"""What was contradicted is not tried again for so many intervals."""
FIRST_RUN = 0.1
"""Share of the interval until the first run of an installation."""


class AutoTune(StrEnum):
    """What auto-tuning may do: nothing, tell, or change T_fwd."""

    OFF = "off"
    ADVISE = "advise"
    APPLY = "apply"


class TuningEvent(StrEnum):
    """The kind of decision after a run of replays."""

    NOTHING = "nothing"
    ADVICE = "advice"
    STEP = "step"
    WATCHED = "watched"
    KEPT = "kept"
    WENT_BACK = "went_back"
    FAILED = "failed"
    RESET = "reset"


@dataclass(frozen=True, slots=True)
class ForwardChoice:
    """A policy for T_fwd, with its constant in seconds.

    Attributes:
        policy: `allocator.forward_policy`.
        seconds: `allocator.forward_seconds`.
    """

    policy: ForwardPolicy
    seconds: float

    def __str__(self) -> str:
        """The text for operators, in logs and the journal of tuning."""
        return f"{self.seconds:g} s" if self.policy is ForwardPolicy.CONSTANT else f"policy {self.policy.value}"


@dataclass(frozen=True, slots=True)
class TrialStep:
    """A step that is on trial.

    Attributes:
        before: What was in force before it.
        since_unix: When it was made, in seconds since the epoch.
        checks: How many times it was looked at and not contradicted.
        failures: How many times in a row it could not be looked at.
    """

    before: ForwardChoice
    since_unix: float
    checks: int = 0
    failures: int = 0


@dataclass(frozen=True)
class TuningState:
    """All that auto-tuning remembers.

    Attributes:
        configured: The operator's settings.
        in_force: What plans use.
        trial: The newest step, while it is on trial.
        barred: Until when contradicted choices are not tried, in seconds since the epoch.
        ran_unix: When the newest run ended, in seconds since the epoch; 0: there was none.
        why: Why in_force is in force, where it is not what is configured.
    """

    configured: ForwardChoice
    in_force: ForwardChoice
    trial: TrialStep | None = None
    barred: Mapping[ForwardChoice, float] = field(default_factory=dict)
    ran_unix: float = 0.0
    why: str = ""


@dataclass(frozen=True, slots=True)
class TuningBounds:
    """Within what steps stay: the least and the largest constant T_fwd, in seconds."""

    min_s: float
    max_s: float

    def permit(self, choice: ForwardChoice) -> bool:
        """Whether a step may lead there."""
        return choice.policy is not ForwardPolicy.CONSTANT or self.min_s <= choice.seconds <= self.max_s


@dataclass(frozen=True, slots=True)
class TuningQuestion:
    """What a run has to replay.

    Attributes:
        in_force: What the others are compared with.
        candidates: One step away from it.
        before: What was in force before the step that is on trial; None: none is.
        since_unix: When that step was made, in seconds since the epoch.
    """

    in_force: ForwardChoice
    candidates: tuple[ForwardChoice, ...]
    before: ForwardChoice | None = None
    since_unix: float = 0.0


@dataclass(frozen=True, slots=True)
class ReplayedGain:
    """How many more samples a choice would have trained than what is in force, as a share of these.

    Attributes:
        mean: The gain: mean over the parts of the past, each judged with what was best on all others.
        half_width: Half-width of its 95 % interval; None: one part tells none.
        hours: How much of the past was replayed, in hours.
    """

    choice: ForwardChoice
    mean: float
    half_width: float | None
    hours: float

    def __str__(self) -> str:
        """The text for operators, in logs and the journal of tuning."""
        width = "" if self.half_width is None else f" ± {self.half_width:.1%}"
        return f"{self.mean:+.1%}{width} samples in {self.hours:.1f} h"


@dataclass(frozen=True, slots=True)
class TuningAnswer:
    """What the replays of a run have measured.

    Attributes:
        best: The best candidate; None: none is better, or there is too little of the past.
        back: What was in force before, on the time since the step; None: none was asked for, or nothing trained then.
        advice: What the Allocator cannot change itself, in sentences.
        note: Why nothing was compared; empty: it was.
    """

    best: ReplayedGain | None = None
    back: ReplayedGain | None = None
    advice: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Decided:
    """The decision after a run, and the state that follows from it.

    Attributes:
        state: What is to be remembered.
        event: What happened.
        reason: Why, for people.
    """

    state: TuningState
    event: TuningEvent
    reason: str


def resume(
    stored: TuningState | None, configured: ForwardChoice, mode: AutoTune, bounds: TuningBounds
) -> tuple[TuningState, str]:
    """Go on after a start.

    What the operator has written counts at once: with other settings than those that tuning began with, tuning begins
    anew from these; without `apply` they are in force.

    Returns:
        The state, and why it is not the stored one; empty where nothing else is in force by that.
    """
    if stored is None:
        return TuningState(configured, configured), ""
    if mode is AutoTune.APPLY and stored.configured == configured:
        if stored.in_force == configured or bounds.permit(stored.in_force):
            return stored, ""
        why = f"{stored.in_force} is out of bounds now"
    else:
        why = "the operator's settings are others now" if mode is AutoTune.APPLY else f"auto_tune is {mode.value} now"
    fresh = TuningState(configured, configured, barred=stored.barred, ran_unix=stored.ran_unix)
    return fresh, "" if stored.in_force == configured else f"back to {configured}: {why}"


def seconds_until_due(state: TuningState, now: float, interval_s: float) -> float:
    """Seconds until the next run; `now` in seconds since the epoch, of a clock that may step."""
    if not state.ran_unix:
        return FIRST_RUN * interval_s
    return min(interval_s, max(0.0, state.ran_unix + interval_s - now))


def question(state: TuningState, bounds: TuningBounds, now: float) -> TuningQuestion:
    """What to replay next; `now` in seconds since the epoch."""
    if state.trial is not None:
        return TuningQuestion(state.in_force, (), state.trial.before, state.trial.since_unix)
    choices = [
        choice for choice in one_step_from(state.in_force) if bounds.permit(choice) or choice == state.configured
    ]
    return TuningQuestion(state.in_force, tuple(one for one in choices if state.barred.get(one, 0.0) <= now))


def one_step_from(choice: ForwardChoice) -> list[ForwardChoice]:
    """All choices that one step leads to: the next shorter and longer T_fwd, and the other policies."""
    choices = []
    if choice.policy is ForwardPolicy.CONSTANT:
        shorter = [seconds for seconds in FORWARD_S if seconds < choice.seconds]
        longer = [seconds for seconds in FORWARD_S if seconds > choice.seconds]
        choices += [replace(choice, seconds=seconds) for seconds in (*shorter[-1:], *longer[:1])]
    return choices + [replace(choice, policy=policy) for policy in ForwardPolicy if policy is not choice.policy]


def decide(
    state: TuningState, request: TuningQuestion, answer: TuningAnswer, mode: AutoTune, now: float, interval_s: float
) -> Decided:
    """What a run leads to.

    Args:
        state: What is remembered.
        request: What the run had to replay.
        answer: What it has found.
        mode: What tuning may do.
        now: Seconds since the epoch.
        interval_s: Seconds between two runs.

    Raises:
        ValueError: the answer is not one to this question.
    """
    state = replace(state, ran_unix=now, barred={one: until for one, until in state.barred.items() if until > now})
    if state.trial is not None:
        return _check_trial(state, state.trial, answer, now, interval_s)
    best = answer.best
    if best is None:
        return Decided(state, TuningEvent.NOTHING, answer.note or f"{state.in_force} is best among its neighbours")
    if best.choice not in request.candidates:
        raise ValueError(f"expected one of the candidates, got {best.choice}")
    if best.mean < MIN_GAIN:
        return Decided(state, TuningEvent.NOTHING, f"{best.choice}: {best}; that is below {MIN_GAIN:.1%}")
    if best.half_width is None or best.mean <= best.half_width:
        return Decided(state, TuningEvent.NOTHING, f"{best.choice}: {best}; that may be none")
    reason = f"{best.choice} in place of {state.in_force}: {best}"
    if mode is not AutoTune.APPLY:
        return Decided(state, TuningEvent.ADVICE, reason)
    trial = TrialStep(state.in_force, now)
    return Decided(replace(state, in_force=best.choice, trial=trial, why=reason), TuningEvent.STEP, reason)


def _check_trial(state: TuningState, trial: TrialStep, answer: TuningAnswer, now: float, interval_s: float) -> Decided:
    back = answer.back
    if back is None:
        state = replace(state, trial=replace(trial, failures=0))
        return Decided(state, TuningEvent.WATCHED, answer.note or "nothing has trained since the step")
    if back.mean >= MIN_GAIN:
        return _gone_back(state, trial, f"the hours since contradict it: {back} with {trial.before}", now, interval_s)
    checks = trial.checks + 1
    reason = f"{state.in_force} is not contradicted: {back} with {trial.before}"
    if checks >= CHECKS:
        return Decided(replace(state, trial=None), TuningEvent.KEPT, reason)
    trial = replace(trial, checks=checks, failures=0)
    return Decided(replace(state, trial=trial), TuningEvent.WATCHED, f"{reason} (look {checks} of {CHECKS})")


def after_failure(state: TuningState, problem: str, now: float, interval_s: float) -> Decided:
    """A run has failed. A step that cannot be looked at is taken back after some time.

    Args:
        state: What is remembered.
        problem: What went wrong.
        now: Seconds since the epoch.
        interval_s: Seconds between two runs.
    """
    state = replace(state, ran_unix=now)
    trial = state.trial
    if trial is None:
        return Decided(state, TuningEvent.FAILED, problem)
    trial = replace(trial, failures=trial.failures + 1)
    if trial.failures >= CHECKS:
        return _gone_back(state, trial, f"it could not be looked at {CHECKS} times: {problem}", now, interval_s)
    return Decided(replace(state, trial=trial), TuningEvent.FAILED, problem)


def _gone_back(state: TuningState, trial: TrialStep, why: str, now: float, interval_s: float) -> Decided:
    barred = {**state.barred, state.in_force: now + BARRED_RUNS * interval_s}
    reason = f"back to {trial.before} from {state.in_force}: {why}"
    state = replace(
        state,
        in_force=trial.before,
        trial=None,
        barred=barred,
        why="" if trial.before == state.configured else reason,
    )
    return Decided(state, TuningEvent.WENT_BACK, reason)
