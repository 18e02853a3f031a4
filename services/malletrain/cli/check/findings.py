"""What a check says of what it has seen. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable

from malletrain.cli.check.continuing import losses_agree, resumes, same_samples_follow
from malletrain.cli.check.finding import YES, Answer, BackendVerdict, no, unknown
from malletrain.cli.check.observations import (
    CheckPart,
    End,
    ScriptTrial,
    Step,
    commit_pause,
    median_step,
    reported_batch,
    rows_of,
    seen_batch,
    steps_together,
)

_LONGEST_SAVE_SECONDS = 1.0
_COMMIT_WINDOW_SECONDS = 1.5
_SAME_BATCH = 0.1
"""Relative difference up to which two batches count as equal."""
_SAME_RATE = 1.02
_LINES = 4
_NOT_THAT_FAR = unknown("it did not get that far")


def judge(trial: ScriptTrial) -> BackendVerdict:
    """What was found out under one backend."""
    answers = {"trains": _trains(trial.first)}
    if trial.first.trained:
        apart = _works_with_two(trial)
        answers |= {
            "reports": _reports(trial.first),
            "trains for long enough": _lasts(trial),
            "stops": _stops(trial.first),
            "resumes": resumes(trial),
            "works with 2 workers": apart,
            "goes on with the next sample": _unless(apart, trial, same_samples_follow),
            "global batch": _unless(apart, trial, _global_batch),
            "learning rate follows the batch": _unless(apart, trial, _rates_follow),
            "saves without stopping the training": _saves_quickly(trial.first),
        }
        answers["losses agree"] = _losses(trial, answers)
    findings = tuple(finding for answer in answers.values() for finding in answer.findings)
    return BackendVerdict(
        trial.backend, findings, {question: answer.text for question, answer in answers.items()}, _measured(trial)
    )


def _unless(apart: Answer, trial: ScriptTrial, check: Callable[[ScriptTrial], Answer]) -> Answer:
    """Where two workers do not train together, what else goes wrong with them follows from that."""
    if not apart.known_bad:
        return check(trial)
    alone = ScriptTrial(trial.backend, trial.first, trial.resumed, None, trial.reference, trial.observed)
    return check(alone)


def _losses(trial: ScriptTrial, answers: dict[str, Answer]) -> Answer:
    causes = ("resumes", "works with 2 workers", "goes on with the next sample")
    if any(answers[name].known_bad for name in causes):
        return unknown("another finding would explain a difference")
    return losses_agree(trial)


def _trains(first: CheckPart) -> Answer:
    if first.trained:
        return YES
    said = _tail(first.log)
    if first.end is End.ENDED:
        return no(
            "ends",
            f"it ends before its first batch{said}",
            "run the command by itself first; under MalleTrain its environment, working directory and rank are those"
            " of a worker",
        )
    return no(
        "hangs",
        f"it has trained no batch in the time that it had{said}",
        "run the command by itself; a longer --boot-limit helps if it only needs longer to begin",
    )


def _lasts(trial: ScriptTrial) -> Answer:
    """Whether it was still training when it was stopped, started again, and given a second worker."""
    for part in (trial.first, trial.resumed):
        if part is None or not part.trained or part.end is End.DONE:
            continue
        how = "it ended by itself" if part.end is End.ENDED else "no more came in the time that it had"
        return no(
            "too_few_batches",
            f"after {len(part.times)} batches {how}, before everything could be tried{_tail(part.log)}",
            "check it with enough epochs for some hundred batches; --boot-limit gives slow ones more time",
        )
    return YES


def _tail(log: str) -> str:
    lines = [line.rstrip() for line in log.splitlines() if line.strip()][-_LINES:]
    return ": " + " | ".join(lines) if lines else ", and has printed nothing"


def _reports(first: CheckPart) -> Answer:
    if first.reports:
        return YES
    return no(
        "no_report",
        f"{len(first.steps)} optimizer steps were seen, and none was reported",
        "after the optimizer's step: from malletrain.client import report; report(global_batch_size)",
    )


def _stops(first: CheckPart) -> Answer:
    if first.stop_seconds is None:
        return _NOT_THAT_FAR
    if not first.killed:
        return YES
    return no(
        "does_not_stop",
        f"it had to be killed {first.stop_seconds:.0f} s after SIGTERM",
        "leave the loop when should_stop() is true, after install_signal_handler()",
    )


def _works_with_two(trial: ScriptTrial) -> Answer:
    if trial.grown is None:
        return _NOT_THAT_FAR
    if not trial.grown.trained:
        how = "ends" if trial.grown.end is End.ENDED else "trains no batch in time"
        return no(
            "two_workers",
            f"with 2 workers it {how}{_tail(trial.grown.log)}",
            "initialise the process group from the environment (malletrain.client.elastic: init()), and fix no number"
            " of workers in the script",
        )
    together = steps_together(trial.grown)
    if not together:
        return unknown("the workers could not be looked into")
    if _fed_alike(together):
        return no(
            "same_samples",
            "both workers train with the same samples",
            "give each rank its own part of the global batch: ElasticTraining.next_indices() or batches()",
        )
    if _differ(together):
        return no(
            "not_synchronised",
            "after a step the two workers have different weights",
            "exchange gradients: ElasticTraining, DistributedDataParallel or Horovod's DistributedOptimizer",
        )
    return YES


def _fed_alike(together: list[list[Step]]) -> bool:
    pairs = [steps for steps in together if len(steps) > 1 and steps[0].rows]
    return bool(pairs) and all(rows_of(steps[:1]) == rows_of(steps[1:2]) for steps in pairs)


def _differ(together: list[list[Step]]) -> bool:
    return any(
        not step.sharded and not math.isclose(step.after, steps[0].after, rel_tol=1e-5)
        for steps in together
        for step in steps[1:]
    )


def _global_batch(trial: ScriptTrial) -> Answer:
    if trial.grown is None or not trial.grown.reports or not trial.first.reports:
        return unknown("no batch was reported at 2 workers")
    one, two = reported_batch(trial.first) or 0.0, reported_batch(trial.grown) or 0.0
    fed_one, fed_two = seen_batch(trial.first), seen_batch(trial.grown)
    if not fed_one or not fed_two or not one:
        return unknown(f"reported {one:g} with 1 worker and {two:g} with 2; what the models were fed was not seen")
    expected = one * fed_two / fed_one
    if abs(two - expected) <= _SAME_BATCH * expected:
        return Answer(f"yes: reported {one:g} with 1 worker and {two:g} with 2, fed {fed_one:g} and {fed_two:g}")
    return no(
        "local_batch",
        f"with 2 workers {two:g} samples per batch are reported, but {expected:g} are trained",
        "report the global batch: the batch of a worker times the number of workers (and passes)",
    )


def _rates_follow(trial: ScriptTrial) -> Answer:
    if trial.grown is None or trial.reference is None:
        return _NOT_THAT_FAR
    before, after = seen_batch(trial.first), seen_batch(trial.grown)
    two, one = _rates(trial.grown), _rates(trial.reference)
    if not before or not after or not two or not one:
        return unknown("batch or learning rate was not seen")
    if after <= (1 + _SAME_BATCH) * before:
        return Answer("yes: the global batch stays the same")
    beside = one[-1]
    if two[-1] > _SAME_RATE * beside or two[-1] > two[0] * (1 + 1e-4):
        return Answer(f"yes: {beside:g} with 1 worker, {two[-1]:g} with 2")
    return no(
        "learning_rate",
        f"the global batch grows from {before:g} to {after:g}, the learning rate stays {two[-1]:g}",
        "reference_batch=... of ElasticTraining scales it, or hold_batch=True keeps the batch",
    )


def _rates(phase: CheckPart) -> list[float]:
    return [step.rates[0] for step in phase.of_rank(0) if step.rates]


def _saves_quickly(first: CheckPart) -> Answer:
    pause = commit_pause(first, _COMMIT_WINDOW_SECONDS)
    if pause is None:
        return unknown("no commit could be asked for: commands arrive after the first report")
    if pause <= _LONGEST_SAVE_SECONDS:
        return YES
    return no(
        "save_blocks",
        f"a save stops the training for {pause:.1f} s",
        "copy the state in memory, and write the copy in a thread: ElasticTraining does, or"
        " torch.distributed.checkpoint.async_save",
    )


def _measured(trial: ScriptTrial) -> dict[str, float]:
    first, resumed, grown = trial.first, trial.resumed, trial.grown
    found = {
        "boot": first.boot_seconds,
        "boot_from_checkpoint": resumed.boot_seconds if resumed else None,
        "growth_to_2_workers": grown.boot_seconds if grown else None,
        "save_pause": commit_pause(first, _COMMIT_WINDOW_SECONDS),
        "stop": first.stop_seconds,
        "step_with_1_worker": median_step(first) or None,
        "step_with_2_workers": (median_step(grown) or None) if grown else None,
    }
    return {name: round(value, 4) for name, value in found.items() if value is not None}


def best_of(verdicts: list[BackendVerdict]) -> BackendVerdict | None:
    """The backend that fits best: the one that fits at all, with the fewest findings; the first of equal ones."""
    return min(verdicts, key=lambda verdict: (not verdict.fits, len(verdict.findings)), default=None)
