"""Searches from Python: trials of Optuna as jobs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from malletrain.api.connection import Connection, default_connection
from malletrain.api.errors import in_python
from malletrain.api.options import JobOptions
from malletrain.caller.job_request import JobRequest
from malletrain.caller.option_values import checked_command, checked_options
from malletrain.caller.searching.driver import SearchListeners
from malletrain.caller.searching.start import (
    DEFAULT_AT_ONCE,
    DEFAULT_FAILURES,
    DEFAULT_TRIALS,
    SearchRequest,
    run_search,
)
from malletrain.runtime.errors import InvalidInputError

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial


def search(
    command: Sequence[str],
    space: Mapping[str, object],
    metric: str,
    *,
    direction: str = "minimize",
    trials: int = DEFAULT_TRIALS,
    at_once: int = DEFAULT_AT_ONCE,
    sampler: object = None,
    pruner: object = None,
    storage: object = None,
    seed: int | None = None,
    failures: int = DEFAULT_FAILURES,
    cancel_on_exit: bool = False,
    favour: float = 1,
    callbacks: Sequence[Callable[[Study, FrozenTrial], None]] = (),
    connection: Connection | None = None,
    **options: Unpack[JobOptions],
) -> Study:
    """Search for good values of parameters with Optuna; each trial is a job. Needs `malletrain[search]`.

        study = malletrain.search(
            ["python", "train.py", "--lr={lr}", "--depth={depth}"],
            space={"lr": (1e-5, 1e-1, "log"), "depth": (2, 8)},
            metric="accuracy",
            direction="maximize",
            name="resnet",
        )
        print(study.best_params, study.best_value)

    It returns when the study has all its trials. Called again with the same name it goes on with the study: after a
    crash with the trials that run, later with more trials.

    Args:
        command: Program and arguments; in them and in `env`, `{lr}` stands for the value of the parameter `lr`.
        space: What may be chosen for each parameter: `(low, high)`, `(low, high, "log")` or `(low, high, step)`, whole
            numbers where both bounds are; a list of choices; or a distribution of Optuna.
        metric: Name of the metric that the job reports at its end by `done(metrics)`.
        direction: `minimize` or `maximize`.
        trials: How many trials the study is to have, failed ones included.
        at_once: Most trials at the same time.
        sampler: `tpe`, `random`, or a sampler of Optuna; None: `tpe`.
        pruner: `none`, `median`, `asha`, `hyperband`, or a pruner of Optuna; None: `none`.
        storage: Where the study is kept: a file (`.db` for SQLite; `.journal` on disks that several machines share), a
            URL of a database, or a storage of Optuna; None: a file in your folder.
        seed: Of the sampler, for the same parameters again; None: others each time.
        failures: After so many failed trials in a row it gives up; 0: never.
        cancel_on_exit: Whether its jobs are cancelled where it is interrupted or fails; by default they go on.
        favour: How many times the weight of the others the most promising trials have, at most 64, so that they
            get nodes first. Judged by what is logged of the metric; 1: all have the same.
        callbacks: Called with the study and a trial when that has ended.
        connection: The services; None: the newest connection.
        **options: As `malletrain.api.options.JobOptions`; `name` is the name of the study, without one it is a new one.

    Raises:
        ImportError: Optuna is not installed; the message says how it is.
        InvalidInputError: an argument is not as expected: `error.field` names it.
        PreconditionError: another process drives the study.
        SearchFailedError: too many trials in a row have failed.
        UnavailableError: JobManager does not answer.
    """
    try:
        values: dict[str, Any] = {"workdir": Path.cwd(), **checked_options(options)}
        request = SearchRequest(
            job=JobRequest(command=checked_command(command), **values),
            space=space,
            metric=metric,
            direction=direction,
            trials=trials,
            at_once=at_once,
            sampler=sampler,
            pruner=pruner,
            storage=storage,
            seed=seed,
            failures=failures,
            cancel_on_exit=cancel_on_exit,
            favour=favour,
        )

        def ended(study: Study, trial: FrozenTrial) -> None:
            for callback in callbacks:
                callback(study, trial)

        listeners = SearchListeners(ended=ended, say=partial(print, file=sys.stderr, flush=True))
        return run_search(request, default_connection() if connection is None else connection, listeners)
    except InvalidInputError as error:
        raise in_python(error) from None
