"""Jobs of a search without services: each has its result the second time that it is looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from malletrain.caller.searching.decisions import TrialJob
from malletrain.model.job_state import JobState
from malletrain.v1 import resources_pb2

Result = Callable[[list[str]], TrialJob]


def squared(command: list[str]) -> TrialJob:
    """Completed, with the square of its last argument as its loss."""
    return TrialJob(JobState.COMPLETED, {"loss": float(command[-1]) ** 2})


@dataclass
class MadeUpJobs:
    """What JobManager would have.

    Attributes:
        result: The end of a job, by its command.
        specs: Of all jobs, by identifier.
        values: What a job has logged of its loss, by its number in the order of submission.
        weights: Those that jobs were given.
        weighed: The same, one call after the other.
        looks_until_end: At which look a job has ended.
    """

    result: Result = squared
    specs: dict[str, resources_pb2.JobSpec] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    requests: dict[str, str] = field(default_factory=dict)
    looks: dict[str, int] = field(default_factory=dict)
    values: Callable[[int], Mapping[int, float]] = lambda _: {}
    weights: dict[str, float] = field(default_factory=dict)
    weighed: list[tuple[str, float]] = field(default_factory=list)
    looks_until_end: int = 2

    def submit(self, spec: resources_pb2.JobSpec, request_id: str) -> str:
        if request_id not in self.requests:
            job_id = f"j{len(self.specs) + 1:06}"
            self.specs[job_id] = spec
            self.requests[request_id] = job_id
        assert self.specs[self.requests[request_id]] == spec
        return self.requests[request_id]

    def look(self, job_id: str, name: str) -> TrialJob | None:
        if job_id not in self.specs or self.specs[job_id].name != name:
            return None
        if job_id in self.cancelled:
            return TrialJob(JobState.CANCELLED)
        self.looks[job_id] = self.looks.get(job_id, 0) + 1
        if self.looks[job_id] < self.looks_until_end:
            return TrialJob(JobState.RUNNING, weight=self.weights.get(job_id, 1.0))
        return self.result(list(self.specs[job_id].command))

    def logged(self, job_id: str, metric: str) -> Mapping[int, float]:
        assert metric == "loss"
        return self.values(list(self.specs).index(job_id))

    def cancel(self, job_id: str) -> None:
        self.cancelled.add(job_id)

    def set_weight(self, job_id: str, weight: float) -> None:
        self.weights[job_id] = weight
        self.weighed.append((job_id, weight))

    def find(self, name: str) -> str:
        return next((job_id for job_id, spec in self.specs.items() if spec.name == name), "")

    @property
    def names(self) -> Mapping[str, str]:
        return {job_id: spec.name for job_id, spec in self.specs.items()}
