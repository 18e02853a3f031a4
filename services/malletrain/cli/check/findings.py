"""What a check says of what it has seen. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from malletrain.cli.check.continuing import losses_agree, resumes, same_samples_follow
from malletrain.cli.check.finding import YES, Answer, BackendVerdict, ScriptFinding, no, unknown
from malletrain.cli.check.observations import (
    CheckPart,
    End,
    ScriptTrial,
    Step,
    commit_pause,
    max_evaluation,
    median_step,
    reported_batch,
    rows_of,
    seen_batch,
    steps_together,
)
from malletrain.common.error_texts import read_error

_MAX_SAVE_SECONDS = 1.0
_COMMIT_WINDOW_SECONDS = 1.5
_SAME_BATCH = 0.1
"""Relative difference up to which two batches count as equal."""
_SAME_RATE = 1.02
_SAME_SPEED = 0.3
_MAX_EVALUATION_SECONDS = 20.0
_LINES = 4
_NOT_THAT_FAR = unknown("it did not get that far")
_NOT_LOOKED_INTO = unknown("only steps of an optimizer of torch are looked into, and none was seen")
_BY_STEPS = (
    "works with 2 workers",
    "goes on with the next sample",
    "learning rate follows the batch",
    "schedule follows the samples",
    "saves are whole",
    "evaluations are short",
    "losses agree",
)
"""What only the steps of an optimizer tell, and what is seen with them."""


_SAME_SAMPLES = ScriptFinding(
    "same_samples",
    "both workers train with the same samples",
    "give each rank its own part of the global batch: ElasticTraining.next_indices() or batches()",
)
_SEPARATE_MODELS = ScriptFinding(
    "separate_models",
    "with 2 workers each trains a model of its own: neither torch.distributed nor Horovod is initialised",
    "initialise the process group wherever WORLD_SIZE is above 1 when training begins; a rank that a module has read"
    " when it was imported, or an argument that only another launcher passes, is another one",
)


def judge(trial: ScriptTrial) -> BackendVerdict:
    """What was found out under one backend."""
    answers = {"runs as": Answer(trial.kind)} if trial.kind else {}
    answers["trains"] = _trains(trial.first)
    if trial.first.trained:
        answers |= {
            "reports": _reports(trial.first),
            "trains for long enough": _lasts(trial),
            "stops": _stops(trial.first),
            "resumes": resumes(trial),
            **({"goes on with the next sample": same_samples_follow(trial)} if trial.alone else _together(trial)),
            "saves without stopping the training": _saves_quickly(trial.first),
            "saves are whole": _saves_whole(trial),
            "evaluations are short": _evaluates_quickly(trial),
        }
        answers["losses agree"] = _losses(trial, answers)
        if not trial.first.steps:
            # Where no fault was seen there either: such an answer says nothing of a script whose steps were not seen.
            unseen = [name for name in _BY_STEPS if name in answers and not answers[name].known_bad]
            answers |= dict.fromkeys(unseen, _NOT_LOOKED_INTO)
    findings = tuple(finding for answer in answers.values() for finding in answer.findings)
    return BackendVerdict(
        trial.backend, findings, {question: answer.text for question, answer in answers.items()}, _figures(trial)
    )


def _together(trial: ScriptTrial) -> dict[str, Answer]:
    apart = _works_with_two(trial)
    return {
        "works with 2 workers": apart,
        "goes on with the next sample": _unless(apart, trial, same_samples_follow),
        "global batch": _unless(apart, trial, _global_batch),
        "learning rate follows the batch": _unless(apart, trial, _rates_follow),
        "schedule follows the samples": _unless(apart, trial, _schedule_follows),
    }


def _unless(apart: Answer, trial: ScriptTrial, check: Callable[[ScriptTrial], Answer]) -> Answer:
    """Check without the trial on two workers where these do not train together, which explains the rest."""
    if not apart.known_bad:
        return check(trial)
    return check(replace(trial, grown=None))


def _losses(trial: ScriptTrial, answers: dict[str, Answer]) -> Answer:
    causes = ("resumes", "works with 2 workers", "goes on with the next sample")
    if any(answers[name].known_bad for name in causes if name in answers):
        return unknown("another finding would explain a difference")
    return losses_agree(trial)


def _trains(first: CheckPart) -> Answer:
    if first.trained:
        return YES
    tail = _tail(first.log)
    if first.end is End.ENDED:
        error = read_error(first.log)
        return no(
            "ends",
            f"it ends before its first batch{f': {error.error}' if error.is_own else tail}",
            "run the command by itself first; under MalleTrain its environment, working directory and rank are those"
            " of a worker",
        )
    if first.busy:
        return no(
            "no_batch_seen",
            f"it computes, but no batch was reported, and no step of an optimizer of torch was seen{tail}",
            "a longer --boot-limit, if it only needs longer to begin; if it trains without torch, report each batch:"
            " from malletrain.client import report; report(global_batch_size)",
        )
    return no(
        "hangs",
        f"it has trained no batch in the time that it had{tail}",
        "run the command by itself; a longer --boot-limit helps if it only needs longer to begin",
    )


def _lasts(trial: ScriptTrial) -> Answer:
    """Whether it was still training when it was stopped, started again, and given a second worker."""
    for part in (trial.first, trial.resumed):
        if part is None or not part.trained or part.end is End.DONE:
            continue
        error = read_error(part.log)
        if part.end is End.ENDED and error.is_own:
            return no(
                "fails",
                f"after {len(part.times)} batches it ended with an error of its own: {error.error}",
                "mend that error, which the command shows by itself, too: under torchrun --nproc-per-node 1 if made"
                " for that",
            )
        how = "it ended by itself" if part.end is End.ENDED else "no more came in the time that it had"
        return no(
            "too_few_batches",
            f"after {len(part.times)} batches {how}, before everything could be tried{_tail(part.log)}",
            "check it with enough epochs for some hundred batches; if it evaluates there, with malletrain.client"
            ' `with phase("evaluate"):` says so to the services',
        )
    return YES


def _tail(log: str) -> str:
    lines = [line.rstrip() for line in log.splitlines() if line.strip()][-_LINES:]
    return ": " + " | ".join(lines) if lines else ", and has printed nothing"


def _reports(first: CheckPart) -> Answer:
    if first.reports:
        return YES
    if any(step.reported for step in first.steps):
        return Answer("yes, but none has arrived in the time that it had")
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
        return _fails_with_two(trial.grown)
    together = steps_together(trial.grown)
    if not together:
        return unknown("the workers could not be looked into")
    faults = []
    if _fed_alike(together):
        faults.append(_SAME_SAMPLES)
    if all(step.together == 1 for steps in together for step in steps):
        faults.append(_SEPARATE_MODELS)
    if faults:
        return Answer("no", tuple(faults))
    if _differ(together):
        return no(
            "not_synchronised",
            "after a step the two workers have different weights",
            "exchange gradients: ElasticTraining, DistributedDataParallel or Horovod's DistributedOptimizer",
        )
    return YES


def _fails_with_two(grown: CheckPart) -> Answer:
    how = "ends" if grown.end is End.ENDED else "trains no batch in time"
    error = read_error(grown.log)
    if grown.end is End.ENDED and error.is_own:
        return no(
            "two_workers",
            f"with 2 workers it ends with an error of its own: {error.error}",
            "mend that error, which torchrun --nproc-per-node 2 would show as well; if it comes of a number of workers"
            " that does not fit, name those that do with --permitted",
        )
    return no(
        "two_workers",
        f"with 2 workers it {how}{_tail(grown.log)}",
        "initialise the process group from the environment (malletrain.client.elastic: init()), and fix no number"
        " of workers in the script; if only some numbers fit, name them with --permitted",
    )


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
    if (base := _grown_base(trial.reference, trial.grown)) is not None:
        return Answer(f"yes: before the schedule {base[0]:g} with 1 worker, {base[1]:g} with 2")
    beside = one[-1]
    if two[-1] > _SAME_RATE * beside or two[-1] > two[0] * (1 + 1e-4):
        return Answer(f"yes: {beside:g} with 1 worker, {two[-1]:g} with 2")
    return no(
        "learning_rate",
        f"the global batch grows from {before:g} to {after:g}, the learning rate stays {two[-1]:g}",
        "reference_batch=... of ElasticTraining scales it, or hold_batch=True keeps the batch",
    )


def _grown_base(alone: CheckPart, grown: CheckPart) -> tuple[float, float] | None:
    """The rates that the schedules multiply, if two workers have the larger one: a warm-up may begin with others."""
    one = [step.base_rates[0] for step in alone.of_rank(0) if step.base_rates]
    two = [step.base_rates[0] for step in grown.of_rank(0) if step.base_rates]
    return (one[-1], two[-1]) if one and two and two[-1] > _SAME_RATE * one[-1] else None


def _schedule_follows(trial: ScriptTrial) -> Answer:
    """Whether a schedule of a fixed length ends at the same sample at both scales."""
    if trial.grown is None:
        return _NOT_THAT_FAR
    one, two = _schedule_speed(trial.first), _schedule_speed(trial.grown)
    before, after = seen_batch(trial.first), seen_batch(trial.grown)
    if not one:
        return Answer("yes: no schedule of a fixed length was seen")
    if not two or not before or not after:
        return unknown("batch or schedule was not seen with 2 workers")
    if abs(two / one - after / before) <= _SAME_SPEED * after / before:
        return YES
    return no(
        "schedule",
        f"the schedule of the learning rate makes {two:.2g} steps per batch with 2 workers, and {one:.2g} with 1,"
        f" although the global batch goes from {before:g} to {after:g}: it ends too early or too late",
        "give scheduler.step to training.step() of ElasticTraining, which steps it by samples, or keep the batch with"
        " hold_batch=True",
    )


def _schedule_speed(phase: CheckPart) -> float | None:
    """Steps of the schedule per step of the optimizer."""
    places = [step.schedule[1] for step in phase.of_rank(0) if step.schedule]
    return (places[-1] - places[0]) / (len(places) - 1) if len(places) > 1 else None


def _rates(phase: CheckPart) -> list[float]:
    return [step.rates[0] for step in phase.of_rank(0) if step.rates]


def _saves_quickly(first: CheckPart) -> Answer:
    pause = commit_pause(first, _COMMIT_WINDOW_SECONDS)
    if pause is None:
        return unknown("no commit could be asked for: commands arrive after the first report")
    if pause <= _MAX_SAVE_SECONDS:
        return YES
    return no(
        "save_blocks",
        f"a save stops the training for {pause:.1f} s",
        "copy the state in memory, and write the copy in a thread: ElasticTraining does, or"
        " torch.distributed.checkpoint.async_save",
    )


def _saves_whole(trial: ScriptTrial) -> Answer:
    parts = (trial.first, trial.resumed, trial.grown, trial.reference)
    paths = [path for part in parts if part is not None for path in part.overwritten]
    if not paths:
        return Answer("yes: no file with a state was seen to be written over")
    return no(
        "saves_in_place",
        f"it writes the new state over the one before ({paths[0]}): ended while it saves, it has neither",
        "write to another name in the same folder, and then os.replace(new, old)",
    )


def _evaluates_quickly(trial: ScriptTrial) -> Answer:
    parts = (trial.first, trial.resumed, trial.grown, trial.reference)
    longest = max((max_evaluation(part) for part in parts if part is not None), default=0.0)
    if longest < _MAX_EVALUATION_SECONDS:
        return Answer("yes: no long one was seen")
    return no(
        "long_evaluation",
        f"an evaluation takes {longest:.0f} s, in which no batch is reported",
        'say so to the services: from malletrain.client import phase; with phase("evaluate"): ...',
    )


def _figures(trial: ScriptTrial) -> dict[str, float]:
    first, resumed, grown = trial.first, trial.resumed, trial.grown
    seconds = {
        "boot": first.boot_seconds,
        "boot_from_checkpoint": resumed.boot_seconds if resumed else None,
        "growth_to_2_workers": grown.boot_seconds if grown else None,
        "save_pause": commit_pause(first, _COMMIT_WINDOW_SECONDS),
        "stop": first.stop_seconds,
        "step_with_1_worker": median_step(first) or None,
        "step_with_2_workers": (median_step(grown) or None) if grown else None,
    }
    return {name: round(value, 4) for name, value in seconds.items() if value is not None}


def best_of(verdicts: list[BackendVerdict]) -> BackendVerdict | None:
    """The backend that fits best: the one that fits at all, with the fewest findings; the first of equal ones."""
    return min(verdicts, key=lambda verdict: (not verdict.fits, len(verdict.findings)), default=None)
