"""Drives a study: asks for trials, submits them as jobs, and tells the study their results.

All state is in the study and in JobManager. A driver that is killed at any point is followed by another, which finds
running trials by the jobs that are noted with them. A trial without such a note is submitted (again) under the same
identifier of submission: JobManager then returns the job that there is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from malletrain.caller.job_array import filled_spec
from malletrain.caller.job_request import JobRequest
from malletrain.caller.searching.decisions import (
    SearchPlan,
    TrialJob,
    TrialOutcome,
    TrialStage,
    TrialView,
    failures_in_a_row,
    next_steps,
    promising_weights,
)
from malletrain.caller.searching.studies import (
    JOB_KEY,
    PRUNED_KEY,
    REASON_KEY,
    UNCOUNTED_KEY,
    never_prunes,
    running_trial,
    suggest,
    views_of,
)
from malletrain.caller.stubs import ServiceStubs
from malletrain.runtime.errors import (
    InvalidInputError,
    LimitExceededError,
    MalleTrainError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
)
from malletrain.runtime.messages import job_state_of
from malletrain.runtime.paging import all_pages
from malletrain.v1 import access_pb2, job_manager_pb2, monitor_pb2, resources_pb2

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial


class ServiceCalls(Protocol):
    """Calls services; errors are MalleTrainError, and calls are repeated while a service restarts."""

    @property
    def stubs(self) -> ServiceStubs:
        """Stubs of all services."""

    def call(self, method: Callable[..., Any], request: Any) -> Any:
        """Call a method of a stub.

        Raises:
            MalleTrainError: the call has failed.
        """


class SearchJobs:
    """Submits, looks at and cancels jobs. Each call may be repeated."""

    def __init__(self, calls: ServiceCalls) -> None:
        self._calls = calls

    def submit(self, spec: resources_pb2.JobSpec, request_id: str) -> str:
        """Submit a job; returns its identifier. With the same `request_id` again, nothing is submitted twice.

        Args:
            spec: The job; no other of the study has its name.
            request_id: The same for the same trial, always.

        Raises:
            MalleTrainError: JobManager refuses it, or does not answer.
        """
        request = job_manager_pb2.SubmitJobsRequest(request_id=request_id, specs=[spec])
        try:
            stored = self._calls.call(self._calls.stubs.job_manager.SubmitJobs, request).jobs
        except InvalidInputError as error:
            # Submitted before a crash, with options that are others now: that job is the one.
            submitted = self.find(spec.name) if error.field == "request_id" else ""
            if not submitted:
                raise
            return submitted
        return str(stored[0].id)

    def look(self, job_id: str, name: str) -> TrialJob | None:
        """A job as it is now; None: there is none, or the identifier is that of another job.

        Args:
            job_id: Its identifier.
            name: Its name. Identifiers begin anew where JobManager's state was removed.

        Raises:
            MalleTrainError: JobManager does not answer.
        """
        request = job_manager_pb2.GetJobRequest(job_id=job_id)
        try:
            job = self._calls.call(self._calls.stubs.job_manager.GetJob, request).job
        except NotFoundError:
            return None
        if job.spec.name != name:
            return None
        return TrialJob(job_state_of(job.state), dict(job.metrics), job.reason, job.spec.weight or 1.0)

    def logged(self, job_id: str, metric: str) -> Mapping[int, float]:
        """What a job has logged of a metric so far, by step; nothing while Monitor does not answer.

        Args:
            job_id: Its identifier.
            metric: Name of the metric.
        """
        request = monitor_pb2.GetMetricHistoryRequest(job_id=job_id, names=[metric])
        try:
            answer = self._calls.call(self._calls.stubs.monitor.GetMetricHistory, request)
        except UnavailableError:
            return {}
        return {point.step: point.value for history in answer.histories for point in history.points}

    def cancel(self, job_id: str) -> None:
        """End a job; nothing happens where it has ended, or there is none.

        Raises:
            MalleTrainError: JobManager refuses, or does not answer.
        """
        try:
            request = job_manager_pb2.CancelJobRequest(job_id=job_id)
            self._calls.call(self._calls.stubs.job_manager.CancelJob, request)
        except NotFoundError:
            return

    def set_weight(self, job_id: str, weight: float) -> None:
        """Give a job another weight; nothing happens where it has ended, or there is none.

        Raises:
            MalleTrainError: JobManager refuses, or does not answer.
        """
        try:
            request = job_manager_pb2.UpdateJobRequest(job_id=job_id, weight=weight)
            self._calls.call(self._calls.stubs.job_manager.UpdateJob, request)
        except (NotFoundError, PreconditionError):
            return

    def find(self, name: str) -> str:
        """The newest job of a name that the caller has submitted; empty: none.

        Raises:
            MalleTrainError: JobManager does not answer.
        """
        user = self._calls.call(self._calls.stubs.access.GetIdentity, access_pb2.GetIdentityRequest()).identity.user
        request = job_manager_pb2.ListJobsRequest(name=name, owner=user)
        pages: Iterable[Any] = all_pages(
            lambda page, **_: self._calls.call(self._calls.stubs.job_manager.ListJobs, page), request
        )
        ids = [str(job.id) for page in pages for job in page.jobs]
        return ids[-1] if ids else ""


_LOOK_SECONDS = 1.0
_LOOKS_PER_SECOND = 50
"""Jobs that are looked at in a second, at most."""
_CANCELLED = "cancelled with the search"


class SearchFailedError(MalleTrainError):
    """Several trials have failed one after the other; the message has the last one's reason."""


@dataclass(frozen=True)
class SearchSetup:
    """The settings of one search, which do not change while it runs.

    Attributes:
        request: The job of a trial: its command and variables are templates, its name is the study's.
        distributions: Of each parameter.
        plan: How far it goes.
        study_id: Identifier of the study, which never changes.
        failures: After so many failed trials in a row it gives up; 0: never.
        cancel_on_exit: Whether its jobs are cancelled where it is interrupted or fails.
        favour: How many times the weight of the others the most promising trials have, at most; 1: all have the same.
    """

    request: JobRequest
    distributions: Mapping[str, BaseDistribution]
    plan: SearchPlan
    study_id: str
    failures: int
    cancel_on_exit: bool
    favour: float = 1.0


@dataclass(frozen=True)
class SearchListeners:
    """Functions that a search calls when something happens.

    Attributes:
        submitted: A trial has become a job.
        ended: What came of a trial is stored.
        say: Why nothing happens.
    """

    submitted: Callable[[FrozenTrial], None] = lambda _: None
    ended: Callable[[Study, FrozenTrial], None] = lambda _, __: None
    say: Callable[[str], None] = lambda _: None


def trial_name(study: str, number: int) -> str:
    """The name of a trial's job."""
    return f"{study}-{number}"


def submission_id(study_id: str, number: int) -> str:
    """The identifier of a trial's submission, the same for each driver of the study."""
    return f"search-{study_id}-{number}"


class SearchDriver:
    """One run of a search, from the study's state to its end."""

    def __init__(
        self,
        study: Study,
        setup: SearchSetup,
        jobs: SearchJobs,
        listeners: SearchListeners,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._study, self._setup, self._jobs, self._listeners, self._pause = study, setup, jobs, listeners, pause
        self._prunes = not never_prunes(study.pruner)
        self._running = 0
        self._failed_in_a_row = 0
        self._has_answered = False
        self._said = ""

    def run(self, opening: str = "") -> None:
        """Go on until the study has as many trials as it is to have, and all have ended.

        Args:
            opening: Said at the beginning; an interrupt from then on is one of the search.

        Raises:
            SearchFailedError: too many trials in a row have failed.
            MalleTrainError: a job is refused, or JobManager did not answer from the beginning.
        """
        try:
            if opening:
                self._listeners.say(opening)
            while not self._round():
                self._pause(max(_LOOK_SECONDS, self._running / _LOOKS_PER_SECOND))
        except BaseException:
            if self._setup.cancel_on_exit:
                self._cancel_all()
            raise

    def _round(self) -> bool:
        """Do what is to be done now; returns whether the search is over."""
        try:
            over = self._step()
        except LimitExceededError as error:
            self._say_once(f"waiting: {error}")
            return False
        except UnavailableError as error:
            if not self._has_answered:
                raise
            self._say_once(f"waiting: {error}")
            return False
        self._said = ""
        return over

    def _step(self) -> bool:
        trials = views_of(self._study)
        self._running = sum(trial.stage is TrialStage.RUNNING for trial in trials)
        jobs = self._look(trials)
        if self._prunes or self._setup.favour > 1:
            trials = [self._judge(trial, jobs.get(trial.job_id)) for trial in trials]
        steps = next_steps(trials, jobs, self._setup.plan)
        for outcome in steps.tell:
            self._tell(outcome)
        for job_id in steps.cancel:
            self._jobs.cancel(job_id)
        self._check_failures(steps.tell)
        for number in steps.submit:
            self._submit(running_trial(self._study, number))
        for _ in range(steps.ask):
            self._submit(self._study.ask())
        if self._setup.favour > 1:  # at the end: where too many weights were changed, nothing else waits
            self._weigh(trials, jobs)
        return steps.is_over

    def _look(self, trials: Iterable[TrialView]) -> dict[str, TrialJob | None]:
        jobs: dict[str, TrialJob | None] = {}
        for trial in trials:
            if trial.stage is TrialStage.RUNNING and trial.job_id:
                jobs[trial.job_id] = self._jobs.look(trial.job_id, self._name(trial.number))
                self._has_answered = True
        return jobs

    def _judge(self, trial: TrialView, job: TrialJob | None) -> TrialView:
        """The trial, and whether the pruner has it end; noted before its job is cancelled."""
        if trial.stage is not TrialStage.RUNNING or trial.is_pruned or job is None or job.state.final:
            return trial
        values = self._jobs.logged(trial.job_id, self._setup.plan.metric)
        running = running_trial(self._study, trial.number)
        newest = max(self._frozen_trial(trial.number).intermediate_values, default=-1)
        # Histories are thinned: steps before the newest may be others than they were.
        for step in sorted(step for step in values if step > newest):
            running.report(values[step], step)
            if running.should_prune():
                running.set_user_attr(PRUNED_KEY, True)
                return replace(trial, is_pruned=True)
        return trial

    def _weigh(self, trials: Iterable[TrialView], jobs: Mapping[str, TrialJob | None]) -> None:
        """Have the weights of jobs that run follow how promising their trials are."""
        running = {
            trial.number: (trial.job_id, job)
            for trial in trials
            if trial.stage is TrialStage.RUNNING and not trial.is_pruned
            if (job := jobs.get(trial.job_id)) is not None and not job.state.final
        }
        logged = {trial.number: trial.intermediate_values for trial in self._study.get_trials(deepcopy=False)}
        maximize = self._study.direction.name == "MAXIMIZE"
        base = self._setup.request.weight or 1.0  # as at a submission
        wanted = promising_weights(logged, running, maximize=maximize, base=base, favour=self._setup.favour)
        for number, weight in wanted.items():
            job_id, job = running[number]
            if job.weight != weight:
                self._jobs.set_weight(job_id, weight)

    def _submit(self, trial: Trial) -> None:
        setup, number = self._setup, trial.number
        values = {name: str(value) for name, value in suggest(trial, setup.distributions).items()}
        spec = filled_spec(replace(setup.request, name=self._name(number)), values)
        job_id = self._jobs.submit(spec, submission_id(setup.study_id, number))
        self._has_answered = True
        trial.set_user_attr(JOB_KEY, job_id)
        self._listeners.submitted(self._frozen_trial(number))

    def _tell(self, outcome: TrialOutcome) -> None:
        from optuna.trial import TrialState

        if outcome.reason:
            running_trial(self._study, outcome.number).set_user_attr(REASON_KEY, outcome.reason)
        if outcome.stage is TrialStage.COMPLETE:
            self._study.tell(outcome.number, outcome.value)
        else:
            self._study.tell(outcome.number, state=TrialState[outcome.stage])
        self._listeners.ended(self._study, self._frozen_trial(outcome.number))

    def _check_failures(self, outcomes: tuple[TrialOutcome, ...]) -> None:
        self._failed_in_a_row = failures_in_a_row(self._failed_in_a_row, outcomes)
        if self._setup.failures and self._failed_in_a_row >= self._setup.failures:
            raise SearchFailedError(
                f"{self._failed_in_a_row} trials in a row have failed, at last {outcomes[-1].reason}"
            )

    def _cancel_all(self) -> None:
        """End what runs. These trials are not counted: when the study goes on, there are others in their place."""
        running = [view for view in views_of(self._study) if view.stage is TrialStage.RUNNING]
        for view in running:
            running_trial(self._study, view.number).set_user_attr(UNCOUNTED_KEY, True)
            # An interrupted submission may have come about.
            job_id = view.job_id or self._jobs.find(self._name(view.number))
            if job_id:
                self._jobs.cancel(job_id)
            self._tell(TrialOutcome(view.number, TrialStage.FAIL, reason=_CANCELLED))
        self._listeners.say(f"{len(running)} trials cancelled")

    def _say_once(self, text: str) -> None:
        """Say it once, and again only after something else."""
        if text != self._said:
            self._listeners.say(text)
        self._said = text

    def _name(self, number: int) -> str:
        return trial_name(self._setup.request.name, number)

    def _frozen_trial(self, number: int) -> FrozenTrial:
        return self._study.get_trials(deepcopy=False)[number]
