"""Whether a script goes on where it stopped: weights, samples, losses. Pure."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from malletrain.cli.check.finding import YES, Answer, no, unknown
from malletrain.cli.check.observations import CheckPart, End, ScriptTrial, Step, rows_of, steps_together
from malletrain.common.error_texts import read_error

_SAME_WEIGHTS = 1e-9
_NOT_SEEN = "the samples were not seen: the model was not called in this process, or with something else than tensors"
_RANDOM_ORDER = "the order of samples differs from run to run; give it a seed to have this checked"
_MAX_COMPARED = 20
"""Steps that are compared."""


@dataclass(frozen=True, slots=True)
class Joint:
    """The point at which one part of a check goes on from the part before.

    Attributes:
        kept: Steps of the part before that are in the weights; None where the weights are none of that part.
        done: Steps of the part before.
    """

    kept: int | None
    done: int


def joint_of(before: CheckPart, after: CheckPart) -> Joint | None:
    """Find by the weights where a part goes on; None where one of them was not seen from inside.

    Where two workers have divided the weights, no one sees them whole: the reported position says whether all is kept.
    """
    earlier, later = before.of_rank(0), after.of_rank(0)
    if not earlier or not later:
        return None
    if later[0].sharded and later[0].workers > 1:
        span = _positions(before, after)
        return Joint(len(earlier), len(earlier)) if span is not None and span.fits else None
    kept_steps = _count_kept_steps(earlier, later[0].before)
    return Joint(kept_steps, len(earlier))


def _count_kept_steps(earlier: Sequence[Step], weights: float) -> int | None:
    """How many steps are in some weights: those of the nearest fingerprint; None where none is near.

    While a learning rate warms up, a step may hardly change the weights, or not at all: of places that are as near, the
    last counts. But with the weights of the beginning a training has begun again, unless all of its steps left them so.
    """
    places = [earlier[0].before, *(step.after for step in earlier)]
    near = [
        (abs(place - weights), index)
        for index, place in enumerate(places)
        if math.isclose(place, weights, rel_tol=_SAME_WEIGHTS)
    ]
    if not near:
        return None
    nearest = min(near)[0]
    tied = [index for distance, index in near if distance == nearest]
    return tied[-1] if tied[0] > 0 or tied[-1] == len(earlier) else 0


def resumes(trial: ScriptTrial) -> Answer:
    """Whether it goes on after a stop with the weights and the counter that it had."""
    if trial.resumed is None:
        return unknown("it did not get that far")
    if not trial.resumed.trained:
        error = read_error(trial.resumed.log)
        named = f": {error.error}" if trial.resumed.end is End.ENDED and error.is_own else ""
        return no(
            "does_not_resume",
            f"started again after the stop, it trains no batch{named}",
            "see why it does not go on from the checkpoint; --keep leaves that and the log",
        )
    joint = joint_of(trial.first, trial.resumed)
    if joint is None:
        return _resumes_by_position(trial.first, trial.resumed)
    if joint.kept == 0:
        return _begins_again(trial.first, joint.done)
    if joint.kept is None:
        return no(
            "weights_not_restored",
            "after a stop its weights are none that it had before: it begins again with others, or loads them too late",
            "save when should_stop() or should_commit() is true, and load the newest checkpoint at the start, into the"
            " model before it is wrapped and before the optimizer is made",
        )
    lost = joint.done - joint.kept
    if lost:
        return no(
            "save_on_stop",
            f"a stop loses {lost} of {joint.done} steps: it goes on from an earlier checkpoint",
            "call install_signal_handler(), and save before you leave the loop when should_stop() is true",
        )
    return _same_counter(trial.first, trial.resumed)


def _begins_again(first: CheckPart, done: int) -> Answer:
    if first.saves:
        saved = f"; it had saved {first.saves[0]}"
        advice = "load the newest checkpoint at the start, weights, optimizer and sample counter"
    else:
        saved = ", and no save was seen in them"
        advice = (
            "save weights, optimizer and sample counter when should_stop() or should_commit() is true, in"
            " current_job().checkpoint_directory, and load the newest at the start; of a script that saves once in an"
            " epoch this can be seen only if its epochs are shorter than these steps"
        )
    return no("does_not_resume", f"after a stop it begins again: the {done} steps before it are lost{saved}", advice)


def _resumes_by_position(before: CheckPart, after: CheckPart) -> Answer:
    span = _positions(before, after)
    if span is None:
        return unknown("it reports no position, and its steps could not be seen: report(samples, position)")
    if span.start == 0 and span.last > 0:
        return no(
            "does_not_resume",
            f"after a stop its sample counter begins again at 0; it was {span.last}",
            "save the state at should_stop(), and load it at the start",
        )
    # What was done after the last report that arrived is not known: a beginning after it is no loss.
    if span.start < span.last:
        return no(
            "save_on_stop",
            f"it stopped at {span.last} samples and went on from {span.start}",
            "save before you leave the loop when should_stop() is true",
        )
    return Answer("yes, by the position that it reports; weights were not seen")


def _same_counter(before: CheckPart, after: CheckPart) -> Answer:
    span = _positions(before, after)
    if span is None or span.fits:
        return YES
    return no(
        "position",
        f"the weights are those of the stop, but the reported position is {span.start} instead of {span.last}",
        "save the sample counter with the weights, and pass it to report(samples, position)",
    )


@dataclass(frozen=True, slots=True)
class _PositionSpan:
    """The sample counter over a stop.

    Attributes:
        last: The last one that was reported before it.
        missing: Samples of steps that were seen after that report. A process may end before its last reports arrive.
        start: The one from which it goes on.
    """

    last: int
    missing: int
    start: int

    @property
    def fits(self) -> bool:
        """Whether it goes on from where it was, as far as is known."""
        return self.last <= self.start <= self.last + self.missing


def _positions(before: CheckPart, after: CheckPart) -> _PositionSpan | None:
    """The sample counter over a stop; None where it is not reported."""
    if not before.reports or not after.reports:
        return None
    newest, first = before.reports[-1], after.reports[0]
    if newest.position is None or first.position is None:
        return None
    unreported = sum(step.seconds > newest.seconds for step in before.of_rank(0))
    return _PositionSpan(newest.position, unreported * newest.samples, first.position - first.samples)


def same_samples_follow(trial: ScriptTrial) -> Answer:
    """Whether the samples after the stop, and those after the growth, are the ones that an unstopped run takes."""
    answer = _follow_after_stop(trial)
    if answer is not YES or trial.grown is None or not trial.grown.trained:
        return answer
    return _follow_after_growth(trial, trial.grown)


def _follow_after_stop(trial: ScriptTrial) -> Answer:
    comparable = _comparable(trial)
    if isinstance(comparable, Answer):
        return comparable
    expected, kept_steps, resumed = comparable
    got = rows_of(resumed[:_MAX_COMPARED])
    offset = len(rows_of(trial.first.of_rank(0)[:kept_steps]))
    if got == expected[offset : offset + len(got)]:
        return YES
    if len(expected) < offset + len(got):
        return unknown("the run for comparison was too short")
    again = got == expected[: len(got)]
    return no(
        "loader_not_resumed",
        "after a stop the data begin again with the first sample"
        if again
        else "after a stop other samples come than without it",
        "take the samples from the position: ElasticTraining.batches() or next_indices(), or a sampler that begins at"
        " the saved sample",
    )


def _comparable(trial: ScriptTrial) -> Answer | tuple[tuple[int, ...], int, Sequence[Step]]:
    """Samples of the unstopped run, steps kept at the stop, and the steps after it; or why they can't be compared."""
    if trial.resumed is None or trial.reference is None:
        return unknown("it did not get that far")
    joint = joint_of(trial.first, trial.resumed)
    first, resumed = trial.first.of_rank(0), trial.resumed.of_rank(0)
    if joint is None or any(step.size != len(step.rows) for step in (*first, *resumed)):
        return unknown(_NOT_SEEN)
    if not joint.kept:
        return unknown("it does not go on from what it has saved")
    expected, before = rows_of(trial.reference.of_rank(0)), rows_of(first)
    if not before or not expected:
        return unknown(_NOT_SEEN)
    shared = min(len(expected), len(before))
    if expected[:shared] != before[:shared]:
        return unknown(_RANDOM_ORDER)
    return expected, joint.kept, resumed


def _follow_after_growth(trial: ScriptTrial, grown: CheckPart) -> Answer:
    comparable = _comparable(trial)
    if isinstance(comparable, Answer) or trial.resumed is None:
        return YES
    expected, kept_steps, resumed = comparable
    joint = joint_of(trial.resumed, grown)
    together = steps_together(grown)[:_MAX_COMPARED]
    if joint is None or not joint.kept or any(step.size != len(step.rows) for steps in together for step in steps):
        return Answer("yes after a stop; after the growth unknown")
    offset = len(rows_of(trial.first.of_rank(0)[:kept_steps])) + len(rows_of(resumed[: joint.kept]))
    got = Counter(row for steps in together for row in rows_of(steps))
    wanted = expected[offset : offset + got.total()]
    if len(wanted) < got.total():
        return Answer("yes after a stop; after the growth unknown")
    if got == Counter(wanted):
        return YES
    return no(
        "samples_at_two_workers",
        "after a growth to 2 workers other samples come than those that follow in the order",
        "take them from the position for any number of workers: ElasticTraining.batches() or next_indices()",
    )


def losses_agree(trial: ScriptTrial) -> Answer:
    """Whether the losses after the stop and at two workers are those of the run that was never stopped."""
    if trial.reference is None or trial.resumed is None:
        return unknown("it did not get that far")
    reference = [step.loss for step in trial.reference.of_rank(0) if step.loss is not None]
    if not reference:
        return unknown("no call of backward() on a loss was seen")
    joint = joint_of(trial.first, trial.resumed)
    if joint is None or not joint.kept:
        return unknown("the losses have no place in the run for comparison")
    offset = joint.kept
    for phase, what in ((trial.resumed, "after a stop"), (trial.grown, "at 2 workers")):
        means = _mean_losses(phase)[:_MAX_COMPARED]
        beside = reference[offset : offset + len(means)]
        if means and beside and not _close(means, beside, reference):
            return no(
                "losses",
                f"{what} the loss is {statistics.fmean(means):.4g}, without one it is {statistics.fmean(beside):.4g}",
                "restore the optimizer's state as well, and average the loss over the global batch",
            )
        offset += len(trial.resumed.of_rank(0))
    return YES


def _mean_losses(phase: CheckPart | None) -> list[float]:
    """The mean over the workers of each step's loss."""
    if phase is None:
        return []
    losses_of_steps = [[step.loss for step in steps if step.loss is not None] for steps in steps_together(phase)]
    return [statistics.fmean(losses) for losses in losses_of_steps if losses]


def _close(means: Sequence[float], beside: Sequence[float], reference: Sequence[float]) -> bool:
    """Whether means are the same but for the noise of a few batches."""
    spread = statistics.pstdev(reference)
    wanted = statistics.fmean(beside)
    return abs(statistics.fmean(means) - wanted) <= max(0.25 * abs(wanted), 3 * spread)
