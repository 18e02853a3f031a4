"""Studies of Optuna: opened by name, with samplers and pruners by the words that people use for them."""

from __future__ import annotations

import secrets
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from malletrain.caller.searching.decisions import TrialStage, TrialView
from malletrain.caller.searching.space import SearchChoices, SearchRange
from malletrain.runtime.errors import InvalidInputError

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.distributions import BaseDistribution
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

DIRECTIONS = ("minimize", "maximize")
SAMPLERS = ("tpe", "random")
PRUNERS = ("none", "median", "asha", "hyperband")
MAX_NAME = 100
"""Characters: a job's name has the trial's number behind it."""
JOB_KEY = "job_id"
REASON_KEY = "reason"
PRUNED_KEY = "malletrain_pruned"
UNCOUNTED_KEY = "malletrain_cancelled_with_the_search"
_ID_KEY = "malletrain_search_id"
_METRIC_KEY = "malletrain_metric"


def load_optuna() -> ModuleType:
    """Import Optuna, which only searches need.

    Raises:
        ImportError: it is not installed; the message says how it is.
    """
    try:
        import optuna
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise ImportError("searches need Optuna: pip install 'malletrain[search]'", name="optuna") from None
    return optuna


def distributions_of(space: Mapping[str, object]) -> dict[str, BaseDistribution]:
    """The distribution of each parameter, of what `parse_space` has found.

    Raises:
        InvalidInputError: one is none, or has choices that are no numbers or texts.
    """
    from optuna.distributions import (
        BaseDistribution,
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    kinds: dict[str, BaseDistribution] = {}
    for name, entry in space.items():
        if isinstance(entry, SearchChoices):
            kinds[name] = CategoricalDistribution(entry.values)
        elif isinstance(entry, SearchRange) and entry.whole:
            kinds[name] = IntDistribution(int(entry.low), int(entry.high), log=entry.log, step=int(entry.step or 1))
        elif isinstance(entry, SearchRange):
            kinds[name] = FloatDistribution(entry.low, entry.high, log=entry.log, step=entry.step)
        elif isinstance(entry, BaseDistribution):
            kinds[name] = entry
        else:
            expected = "(low, high), (low, high, 'log'), a list of choices, or a distribution of Optuna"
            raise InvalidInputError(f"space.{name}", expected, entry)
    return kinds


def checked_direction(direction: object) -> str:
    """A direction of Optuna.

    Raises:
        InvalidInputError: there is no such direction.
    """
    name = str(getattr(direction, "name", direction)).lower()  # also optuna.study.StudyDirection
    if name not in DIRECTIONS:
        raise InvalidInputError("direction", " or ".join(DIRECTIONS), direction)
    return name


def sampler_of(sampler: object, seed: int | None) -> BaseSampler:
    """A sampler by its name, or as it is; None: TPE.

    Raises:
        InvalidInputError: there is no such sampler, or a sampler comes with a seed of its own.
    """
    from optuna.samplers import BaseSampler, RandomSampler, TPESampler

    if isinstance(sampler, BaseSampler):
        if seed is not None:
            raise InvalidInputError("seed", "none beside a sampler, which has its own", seed)
        return sampler
    if sampler is None or sampler == "tpe":
        with quiet():
            # Trials that run count as bad ones: so those of one time are not all at the same place.
            return TPESampler(seed=seed, constant_liar=True)
    if sampler == "random":
        return RandomSampler(seed=seed)
    raise InvalidInputError("sampler", f"{', '.join(SAMPLERS)}, or a sampler of Optuna", sampler)


def pruner_of(pruner: object) -> BasePruner:
    """A pruner by its name, or as it is; None: nothing is pruned.

    Raises:
        InvalidInputError: there is no such pruner.
    """
    from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner, SuccessiveHalvingPruner

    if isinstance(pruner, BasePruner):
        return pruner
    named: dict[object, type[Any]] = dict(
        zip(PRUNERS, (NopPruner, MedianPruner, SuccessiveHalvingPruner, HyperbandPruner), strict=True)
    )
    kind = named.get("none" if pruner is None else pruner) if pruner is None or isinstance(pruner, str) else None
    if kind is None:
        raise InvalidInputError("pruner", f"{', '.join(PRUNERS)}, or a pruner of Optuna", pruner)
    made: BasePruner = kind()
    return made


def never_prunes(pruner: BasePruner) -> bool:
    """Whether a pruner never has a trial end before its end."""
    from optuna.pruners import NopPruner

    return isinstance(pruner, NopPruner)


def open_study(name: str, storage: str | BaseStorage, direction: str, metric: str) -> tuple[Study, str]:
    """A study by its name, made where there is none, and its identifier, which never changes.

    Raises:
        InvalidInputError: there is one, but of another direction or metric, or driven otherwise at the same time.
    """
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with quiet():
            study = optuna.create_study(study_name=name, storage=storage, direction=direction, load_if_exists=True)
    finally:
        optuna.logging.set_verbosity(verbosity)
    if len(study.directions) != 1 or study.direction.name.lower() != direction:
        there = ", ".join(goal.name.lower() for goal in study.directions)
        raise InvalidInputError("direction", f"{there}, as the study {name} has", direction)
    known = study.user_attrs
    if known.get(_METRIC_KEY, metric) != metric:
        raise InvalidInputError("metric", f"{known[_METRIC_KEY]}, as the study {name} has", metric)
    if _ID_KEY not in known:
        if any(trial.state is optuna.trial.TrialState.RUNNING for trial in study.get_trials(deepcopy=False)):
            raise InvalidInputError("name", f"another than {name}: that study has trials of other programs that run")
        study.set_user_attr(_METRIC_KEY, metric)
        study.set_user_attr(_ID_KEY, uuid.uuid4().hex)
    return study, str(study.user_attrs[_ID_KEY])


def new_name(stem: str) -> str:
    """A name that no study has yet, e.g. `train-3f2a91`."""
    return f"{stem[: MAX_NAME - 7]}-{secrets.token_hex(3)}"


def views_of(study: Study) -> list[TrialView]:
    """All trials of a study."""
    return [_view(trial) for trial in study.get_trials(deepcopy=False)]


def _view(trial: FrozenTrial) -> TrialView:
    attrs = trial.user_attrs
    return TrialView(
        number=trial.number,
        stage=TrialStage(trial.state.name),
        job_id=str(attrs.get(JOB_KEY, "")),
        is_pruned=bool(attrs.get(PRUNED_KEY)),
        is_counted=not attrs.get(UNCOUNTED_KEY),
    )


def running_trial(study: Study, number: int) -> Trial:
    """A trial that runs, also one that another process has asked for."""
    import optuna

    trial = study.get_trials(deepcopy=False)[number]
    return optuna.trial.Trial(study, trial._trial_id)


def suggest(trial: Trial, distributions: Mapping[str, BaseDistribution]) -> dict[str, Any]:
    """A value of each parameter: those that the trial has, and others where it was interrupted before."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    values: dict[str, Any] = {}
    for name, kind in distributions.items():
        if isinstance(kind, IntDistribution):
            values[name] = trial.suggest_int(name, kind.low, kind.high, step=kind.step, log=kind.log)
        elif isinstance(kind, FloatDistribution):
            values[name] = trial.suggest_float(name, kind.low, kind.high, step=kind.step, log=kind.log)
        elif isinstance(kind, CategoricalDistribution):
            values[name] = trial.suggest_categorical(name, kind.choices)
        else:
            raise InvalidInputError(f"space.{name}", "a distribution of floats, whole numbers or choices", kind)
    return values


@contextmanager
def quiet() -> Iterator[None]:
    """Without Optuna's warnings about what it may change one day; our range of its versions is bounded."""
    from optuna.exceptions import ExperimentalWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        yield
