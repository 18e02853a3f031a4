"""A driver of a study, with Optuna and jobs that are made up: trials to their end, and a crash at every point."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

import malletrain
from malletrain.caller.job_request import JobRequest
from malletrain.caller.searching.decisions import SearchPlan, TrialJob
from malletrain.caller.searching.driver import SearchDriver, SearchFailedError, SearchListeners, SearchSetup
from malletrain.caller.searching.space import parse_space
from malletrain.caller.searching.start import SearchRequest, run_search
from malletrain.caller.searching.studies import distributions_of, open_study, pruner_of, sampler_of
from malletrain.caller.stubs import ServiceStubs
from malletrain.model.job_state import JobState
from malletrain.runtime.errors import InvalidInputError, LimitExceededError, UnavailableError
from tests.search.jobs import MadeUpJobs

optuna = pytest.importorskip("optuna", reason="needs malletrain[search]")

TRIALS = 5


class CrashError(BaseException):
    """A kill."""


class NoCalls:
    """Nothing is asked of a service."""

    @property
    def stubs(self) -> ServiceStubs:
        raise AssertionError("stubs")

    def call(self, method: Callable[..., Any], request: Any) -> Any:
        raise AssertionError(method, request)


def a_study(storage: Any, pruner: str = "none") -> tuple[Any, str]:
    study, study_id = open_study("s", storage, "minimize", "loss")
    study.sampler, study.pruner = sampler_of("random", 1 + len(study.trials)), pruner_of(pruner)
    return study, study_id


def a_driver(
    storage: Any,
    jobs: Any,
    *,
    listeners: SearchListeners | None = None,
    pruner: str = "none",
    failures: int = 0,
    cancel_on_exit: bool = False,
    favour: float = 1.0,
    at_once: int = 2,
    weight: float = 1.0,
    pause: Callable[[float], None] = lambda _: None,
) -> tuple[SearchDriver, Any]:
    study, study_id = a_study(storage, pruner)
    setup = SearchSetup(
        request=JobRequest(
            command=["train", "--x", "{x}"], name="s", backend="command", env={"Y": "{y}"}, weight=weight
        ),
        distributions=distributions_of(parse_space({"x": (-1.0, 1.0), "y": ["a", "b"]})),
        plan=SearchPlan("loss", trials=TRIALS, at_once=at_once),
        study_id=study_id,
        failures=failures,
        cancel_on_exit=cancel_on_exit,
        favour=favour,
    )
    return SearchDriver(study, setup, jobs, listeners or SearchListeners(), pause), study


def test_a_search_from_its_first_trial_to_its_last() -> None:
    jobs, ended, started = MadeUpJobs(), [], []
    listeners = SearchListeners(submitted=started.append, ended=lambda _, trial: ended.append(trial))
    search, study = a_driver(optuna.storages.InMemoryStorage(), jobs, listeners=listeners)
    search.run()
    assert list(jobs.names.values()) == [f"s-{number}" for number in range(TRIALS)]
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * TRIALS
    for trial in study.trials:
        spec = jobs.specs[trial.user_attrs["job_id"]]
        assert list(spec.command) == ["train", "--x", str(trial.params["x"])]
        assert dict(spec.environment) == {"Y": trial.params["y"]}
        assert trial.value == pytest.approx(trial.params["x"] ** 2)
    assert [trial.number for trial in started] == list(range(TRIALS)) == sorted(trial.number for trial in ended)
    assert study.best_value == min(trial.value for trial in study.trials)


class Faults:
    """Counts what is done, and crashes before or after one of these."""

    def __init__(self, at: int, *, after: bool) -> None:
        self.at, self.after, self.count = at, after, 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            crashes = self.count == self.at
            if crashes and not self.after:
                raise CrashError
            found = function(*arguments, **options)
            if crashes:
                raise CrashError
            return found

        return wrapped


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_any_point_neither_loses_nor_doubles_a_trial(after: bool) -> None:
    at = 0
    while True:
        at += 1
        jobs, storage, faults = MadeUpJobs(), optuna.storages.InMemoryStorage(), Faults(at, after=after)
        search, _ = a_driver(storage, jobs)
        with pytest.MonkeyPatch.context() as patch:
            for name in ("submit", "look"):
                patch.setattr(jobs, name, faults.around(getattr(jobs, name)))
            for name in (
                *("create_new_trial", "set_trial_param", "set_trial_user_attr", "set_trial_state_values"),
                "set_trial_system_attr",
            ):
                patch.setattr(storage, name, faults.around(getattr(storage, name)))
            try:
                search.run()
            except CrashError:
                pass
            else:
                break
        other, study = a_driver(storage, jobs)
        other.run()
        assert sorted(jobs.names.values()) == [f"s-{number}" for number in range(TRIALS)], at
        assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * TRIALS, at
        for trial in study.trials:
            assert list(jobs.specs[trial.user_attrs["job_id"]].command)[-1] == str(trial.params["x"])
    assert at > 8 * TRIALS


def test_failed_trials_are_told_with_their_reason_and_too_many_end_it() -> None:
    def failing(_: list[str]) -> TrialJob:
        return TrialJob(JobState.FAILED, {}, "exit status 1")

    search, study = a_driver(optuna.storages.InMemoryStorage(), MadeUpJobs(failing), failures=3)
    with pytest.raises(SearchFailedError, match=r"trials in a row have failed, at last j00000\d FAILED: exit status 1"):
        search.run()
    failed = [trial for trial in study.trials if trial.state.name == "FAIL"]
    assert failed[0].user_attrs["reason"] == "j000001 FAILED: exit status 1"


def test_without_a_limit_of_failures_it_goes_on() -> None:
    results = {"a": TrialJob(JobState.COMPLETED, {"other": 1.0})}
    search, study = a_driver(optuna.storages.InMemoryStorage(), MadeUpJobs(lambda _: results["a"]))
    search.run()
    assert {trial.state.name for trial in study.trials} == {"FAIL"}
    assert len(study.trials) == TRIALS


def test_services_that_are_away_or_full_are_waited_for() -> None:
    said: list[str] = []
    jobs, left = MadeUpJobs(), [LimitExceededError("too many jobs"), UnavailableError("away"), UnavailableError("away")]
    submit = jobs.submit

    def hindered(*arguments: Any) -> str:
        if len(jobs.specs) == 2 and left:
            raise left.pop(0)
        return submit(*arguments)

    jobs.submit = hindered  # type: ignore[assignment]
    search, study = a_driver(optuna.storages.InMemoryStorage(), jobs, listeners=SearchListeners(say=said.append))
    search.run()
    assert said == ["waiting: too many jobs", "waiting: away"]
    assert len(jobs.specs) == len(study.trials) == TRIALS


def test_services_that_have_never_answered_are_an_error() -> None:
    jobs = MadeUpJobs()

    def away(*_: Any) -> str:
        raise UnavailableError("away")

    jobs.submit = away  # type: ignore[assignment]
    search, _ = a_driver(optuna.storages.InMemoryStorage(), jobs)
    with pytest.raises(UnavailableError):
        search.run()


def interrupted(_: float) -> None:
    raise KeyboardInterrupt


def test_an_interrupt_leaves_jobs_running() -> None:
    jobs, storage = MadeUpJobs(), optuna.storages.InMemoryStorage()
    search, study = a_driver(storage, jobs, pause=interrupted)
    with pytest.raises(KeyboardInterrupt):
        search.run()
    assert not jobs.cancelled
    assert [trial.state.name for trial in study.trials] == ["RUNNING"] * 2


def test_on_request_an_interrupt_cancels_them_and_the_study_has_others_in_their_place() -> None:
    jobs, storage = MadeUpJobs(), optuna.storages.InMemoryStorage()
    search, study = a_driver(storage, jobs, pause=interrupted, cancel_on_exit=True)
    with pytest.raises(KeyboardInterrupt):
        search.run()
    assert jobs.cancelled == {"j000001", "j000002"}
    assert [trial.state.name for trial in study.trials] == ["FAIL"] * 2
    other, study = a_driver(storage, jobs)
    other.run()
    assert [trial.state.name for trial in study.trials] == ["FAIL"] * 2 + ["COMPLETE"] * TRIALS


def test_an_interrupted_submission_is_cancelled_too() -> None:
    jobs, storage = MadeUpJobs(), optuna.storages.InMemoryStorage()
    search, _ = a_driver(storage, jobs, cancel_on_exit=True)
    submit = jobs.submit

    def cut(*arguments: Any) -> str:
        submit(*arguments)
        raise KeyboardInterrupt

    jobs.submit = cut  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        search.run()
    assert jobs.cancelled == {"j000001"}


def test_a_pruned_trial_is_cancelled_and_told() -> None:
    # Each job is worse than the one before.
    jobs = MadeUpJobs(values=lambda number: {1: float(number), 2: float(number)})
    search, study = a_driver(optuna.storages.InMemoryStorage(), jobs, pruner="median")
    study.pruner = optuna.pruners.MedianPruner(n_startup_trials=1)
    search.run()
    pruned = [trial for trial in study.trials if trial.state.name == "PRUNED"]
    assert pruned
    assert {trial.user_attrs["job_id"] for trial in pruned} == jobs.cancelled
    assert all(trial.intermediate_values for trial in pruned)


@pytest.mark.parametrize(
    ("direction", "metric", "words"),
    [("maximize", "loss", "direction: expected minimize, as the study s has"), ("minimize", "acc", "metric: .* loss")],
)
def test_a_study_keeps_direction_and_metric(direction: str, metric: str, words: str) -> None:
    storage = optuna.storages.InMemoryStorage()
    open_study("s", storage, "minimize", "loss")
    with pytest.raises(InvalidInputError, match=words):
        open_study("s", storage, direction, metric)


def test_a_study_of_another_program_that_runs_is_left_alone() -> None:
    storage = optuna.storages.InMemoryStorage()
    optuna.create_study(study_name="s", storage=storage).ask()
    with pytest.raises(InvalidInputError, match="name: expected another than s"):
        open_study("s", storage, "minimize", "loss")


def test_trials_that_were_enqueued_come_first() -> None:
    jobs, storage = MadeUpJobs(), optuna.storages.InMemoryStorage()
    optuna.create_study(study_name="s", storage=storage).enqueue_trial({"x": 0.25, "y": "b"})
    search, study = a_driver(storage, jobs)
    search.run()
    assert study.trials[0].params == {"x": 0.25, "y": "b"}
    assert len(study.trials) == TRIALS


def test_without_optuna_the_error_says_how_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match=r"searches need Optuna: pip install 'malletrain\[search\]'"):
        malletrain.search(["train", "{x}"], {"x": (0, 1)}, "loss")


def test_the_weight_of_promising_trials_grows_once() -> None:
    jobs = MadeUpJobs(looks_until_end=4, values=lambda number: {1: float(number)})
    driver, study = a_driver(optuna.storages.InMemoryStorage(), jobs, favour=4.0, at_once=TRIALS)
    driver.run()
    assert jobs.weighed == [("j000001", 4.0), ("j000002", 2.0)], "the smallest loss is the best of five"
    assert all(trial.state.name == "COMPLETE" for trial in study.trials)


def test_weights_that_are_refused_hold_up_no_trial() -> None:
    jobs = MadeUpJobs(looks_until_end=4, values=lambda number: {1: float(number)})
    said: list[str] = []

    def refused(job_id: str, weight: float) -> None:
        raise LimitExceededError(f"{job_id}: not {weight}")

    jobs.set_weight = refused  # type: ignore[method-assign]
    driver, study = a_driver(
        optuna.storages.InMemoryStorage(), jobs, favour=4.0, at_once=4, listeners=SearchListeners(say=said.append)
    )
    driver.run()
    assert said[0] == "waiting: j000001: not 4.0"
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * TRIALS


def test_a_weight_of_zero_counts_as_one() -> None:
    jobs = MadeUpJobs(looks_until_end=4, values=lambda number: {1: float(number)})
    driver, _ = a_driver(optuna.storages.InMemoryStorage(), jobs, favour=4.0, at_once=TRIALS, weight=0.0)
    driver.run()
    assert jobs.weighed == [("j000001", 4.0), ("j000002", 2.0)]


@pytest.mark.parametrize(
    ("weight", "favour", "words"),
    [
        (1e5, 16, "favour: expected at most 10: its trials have the weight 100000, and 1000000 is the most, got 16"),
        (1e-7, 1, "weight: expected 0.000001 to 1000000, got 1e-07"),
        (2e6, 1, "weight: expected 0.000001 to 1000000, got 2000000.0"),
    ],
)
def test_weights_that_trials_could_not_have_are_refused_before_there_is_one(
    weight: float, favour: float, words: str
) -> None:
    job = JobRequest(command=["train", "{x}"], name="s", backend="command", weight=weight)
    asked = SearchRequest(job=job, space={"x": (0.0, 1.0)}, metric="loss", favour=favour, storage=object())
    with pytest.raises(InvalidInputError) as caught:
        run_search(asked, NoCalls(), SearchListeners())
    assert str(caught.value) == words


def test_without_a_favour_no_weight_is_touched() -> None:
    jobs = MadeUpJobs(looks_until_end=4, values=lambda number: {1: float(number)})
    a_driver(optuna.storages.InMemoryStorage(), jobs, at_once=TRIALS)[0].run()
    assert jobs.weighed == []
