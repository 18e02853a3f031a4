"""A search from what its user asks for: checked, its study opened, and driven to its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from malletrain.caller.job_array import check_used
from malletrain.caller.job_request import JobRequest, default_name, job_spec
from malletrain.caller.searching.decisions import SearchPlan
from malletrain.caller.searching.driver import SearchDriver, SearchListeners, SearchSetup
from malletrain.caller.searching.promise import MAX_FAVOUR
from malletrain.caller.searching.search_jobs import SearchJobs, ServiceCalls
from malletrain.caller.searching.space import parse_space
from malletrain.caller.searching.storages import open_storage, sole_driver
from malletrain.caller.searching.studies import (
    MAX_NAME,
    checked_direction,
    distributions_of,
    load_optuna,
    new_name,
    open_study,
    pruner_of,
    sampler_of,
)
from malletrain.model.job_terms import MAX_WEIGHT, MIN_WEIGHT
from malletrain.runtime.errors import InvalidInputError

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution

MAX_TRIALS = 100_000
MAX_AT_ONCE = 1000
DEFAULT_TRIALS, DEFAULT_AT_ONCE, DEFAULT_FAILURES = 20, 4, 5


@dataclass(frozen=True, kw_only=True)
class SearchRequest:
    """A search as its user asks for it.

    Attributes:
        job: The job of a trial: command and variables are templates. Its name is that of the study; empty: a new study.
        space: What may be chosen for each parameter.
        metric: Which of a job's metrics is the value of its trial.
        direction: `minimize` or `maximize`.
        trials: How many trials the study is to have.
        at_once: Most trials at the same time.
        sampler: `tpe`, `random`, or a sampler of Optuna; None: `tpe`.
        pruner: `none`, `median`, `asha`, `hyperband`, or a pruner of Optuna; None: `none`.
        storage: A file, a URL or a storage of Optuna; None: a file in the user's folder.
        seed: Of the sampler; None: another each time.
        failures: After so many failed trials in a row the search gives up; 0: never.
        cancel_on_exit: Whether jobs are cancelled where the search is interrupted or fails.
        favour: How many times the weight of the others the most promising trials have, at most.
    """

    job: JobRequest
    space: object
    metric: object
    direction: object = "minimize"
    trials: object = DEFAULT_TRIALS
    at_once: object = DEFAULT_AT_ONCE
    sampler: object = None
    pruner: object = None
    storage: object = None
    seed: object = None
    failures: object = DEFAULT_FAILURES
    cancel_on_exit: bool = False
    favour: object = 1


@dataclass(frozen=True)
class _Checked:
    job: JobRequest
    distributions: Mapping[str, BaseDistribution]
    plan: SearchPlan
    direction: str
    seed: int | None
    failures: int
    favour: float


def run_search(
    asked: SearchRequest,
    calls: ServiceCalls,
    listeners: SearchListeners,
    pause: Callable[[float], None] = time.sleep,
) -> Study:
    """Run a search until its study has all its trials; returns the study.

    Args:
        asked: What is asked for.
        calls: The services.
        listeners: Who is told what happens.
        pause: Waits for so many seconds.

    Raises:
        ImportError: Optuna is not installed.
        InvalidInputError: something is not as expected; the error names it.
        PreconditionError: another process drives the study.
        SearchFailedError: too many trials in a row have failed.
        MalleTrainError: a job is refused, or JobManager does not answer.
    """
    load_optuna()
    found = _checked(asked)
    pruner = pruner_of(asked.pruner)
    sampler_of(asked.sampler, found.seed)
    storage, file = open_storage(asked.storage)
    with sole_driver(file, found.job.name):
        study, study_id = open_study(found.job.name, storage, found.direction, found.plan.metric)
        trials = study.get_trials(deepcopy=False)
        # A study that goes on is not offered the values of its first trials again.
        seed = None if found.seed is None else (found.seed + len(trials)) % 2**32
        study.sampler, study.pruner = sampler_of(asked.sampler, seed), pruner
        if trials:
            _check_compatible(trials[-1].distributions, found.distributions)
        setup = SearchSetup(
            found.job,
            found.distributions,
            found.plan,
            study_id,
            found.failures,
            asked.cancel_on_exit,
            found.favour,
        )
        SearchDriver(study, setup, SearchJobs(calls), listeners, pause).run(
            f"study {found.job.name}" + (f", kept in {file}" if file else "")
        )
    return study


def _checked(asked: SearchRequest) -> _Checked:
    space = parse_space(asked.space)
    check_used("space", asked.job, space)
    if not isinstance(asked.metric, str) or not 1 <= len(asked.metric) <= 256:
        raise InvalidInputError("metric", "the name of a metric that the job reports at its end", asked.metric)
    name = asked.job.name
    if len(name) > MAX_NAME or not name.isprintable() or name != name.strip():
        raise InvalidInputError("name", f"at most {MAX_NAME} printable characters, none of them blank at an end", name)
    job_spec(asked.job)  # options that can't be used are told before there is a trial
    return _Checked(
        job=asked.job if name else replace(asked.job, name=new_name(default_name(asked.job.command))),
        distributions=distributions_of(space),
        plan=SearchPlan(
            asked.metric,
            _whole("trials", asked.trials, 1, MAX_TRIALS),
            _whole("at_once", asked.at_once, 1, MAX_AT_ONCE),
        ),
        direction=checked_direction(asked.direction),
        seed=None if asked.seed is None else _whole("seed", asked.seed, 0, 2**32 - 1),
        failures=_whole("failures", asked.failures, 0, MAX_TRIALS),
        favour=_favour(asked.favour, asked.job.weight),
    )


def _whole(field: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidInputError(field, f"a whole number from {least} to {most}", value)
    return value


def _favour(value: Any, weight: float) -> float:
    """The favour, which must be possible with the weight that trials are submitted with."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= MAX_FAVOUR:
        raise InvalidInputError("favour", f"a number from 1 to {MAX_FAVOUR:g}", value)
    base = weight or 1.0  # as at a submission
    if not MIN_WEIGHT <= base <= MAX_WEIGHT:
        raise InvalidInputError("weight", f"{MIN_WEIGHT:f} to {MAX_WEIGHT:.0f}", weight)
    if base * value > MAX_WEIGHT:
        expected = (
            f"at most {MAX_WEIGHT / base:g}: its trials have the weight {base:g}, and {MAX_WEIGHT:.0f} is the most"
        )
        raise InvalidInputError("favour", expected, value)
    return float(value)


def _check_compatible(before: Mapping[str, BaseDistribution], now: Mapping[str, BaseDistribution]) -> None:
    """Refuse what Optuna would refuse in the middle: another kind of parameter, or other choices."""
    from optuna.distributions import check_distribution_compatibility

    for name, kind in now.items():
        if name in before:
            try:
                check_distribution_compatibility(before[name], kind)
            except ValueError:
                expected = f"as in the study before: {before[name]}; with another name it is another study"
                raise InvalidInputError(f"space.{name}", expected, kind) from None
