"""Invariants of the state. A broken one is a defect of MalleTrain, whatever JobManager was told. Pure.

They are checked after every stimulus if the setting `validate_state` is on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from malletrain.common.gpus import gpu_number, node_of
from malletrain.job_manager.machine.dependencies import Unfinished
from malletrain.job_manager.machine.job_table import JobTable
from malletrain.job_manager.machine.jobs import Job
from malletrain.job_manager.machine.state import ManagerState
from malletrain.job_manager.machine.state_machine import TransactionResult
from malletrain.model.job_state import JobState
from malletrain.runtime.errors import InvariantError

WITH_PROCESSES = frozenset((JobState.STARTING, JobState.RUNNING, JobState.RESCALING, JobState.STOPPING))
"""States of jobs that have a supervisor."""

_NODE_FIELDS = ("wanted", "commanded", "confirmed", "held", "trained")
_GROWING = ("incarnation", "sequence", "plan_generation", "restarts", "rescales", "preemptions", "passed_over")


class StateInvariantError(InvariantError):
    """An invariant of JobManager's state is broken.

    Attributes:
        job_id: The job; empty if the state as a whole is wrong.
    """

    def __init__(self, job_id: str, violation: str) -> None:
        super().__init__(f"job {job_id}: {violation}" if job_id else violation)
        self.job_id = job_id


def check_result(before: ManagerState, result: TransactionResult) -> None:
    """Check the state that a stimulus led to, and the way to it.

    Args:
        before: The state before the stimulus.
        result: What `malletrain.job_manager.machine.state_machine.advance` returned.

    Raises:
        StateInvariantError: an invariant is broken.
    """
    check_state(result.state)
    _check_ended(job for job in result.changed if job.state.final)
    _check_growth(before, result.state)


def check_state(state: ManagerState) -> None:
    """Check a state by itself.

    Raises:
        StateInvariantError: an invariant is broken.
    """
    _check_numbers(state)
    _check_sharing(state.jobs.values())
    _check_ledger(state)
    _check_indices(state.jobs)
    _check_usage(state)
    for name, job in state.jobs.items():
        if name != job.id:
            raise StateInvariantError(job.id, f"is known as {name}")
        for violation in (*_violations(job), *_node_violations(job), *_idle_violations(job, state.idle)):
            raise StateInvariantError(job.id, f"{violation}; {_describe(job)}")


def _check_numbers(state: ManagerState) -> None:
    numbers = [job.number for job in state.jobs.values()]
    if numbers != sorted(set(numbers)):
        raise StateInvariantError("", f"jobs are not in the order of their submission: {numbers}")
    if numbers and numbers[-1] > state.last_number:
        raise StateInvariantError("", f"the newest job has number {numbers[-1]}, above {state.last_number}")
    for job in state.jobs.values():
        if job.plan_generation > state.generation:
            raise StateInvariantError(job.id, f"has plan {job.plan_generation}; the newest is {state.generation}")
    _check_queue(state.jobs.values())
    _check_dependencies(state.jobs.values())


def _check_dependencies(jobs: Iterable[Job]) -> None:
    """Jobs wait for others as long as these have not ended, and are not admitted before."""
    unfinished = Unfinished(jobs)
    for job in jobs:
        awaited = tuple(name for name in job.spec.dependencies.names if name in unfinished)
        if job.waits_for != awaited:
            raise StateInvariantError(
                job.id, f"waits for {job.waits_for}; of its dependencies {awaited} have not ended"
            )
        if awaited and job.state is not JobState.QUEUED:
            raise StateInvariantError(job.id, f"is {job.state}, and {awaited} have not ended")


def _check_queue(jobs: Iterable[Job]) -> None:
    """Jobs of an owner are admitted in order, members of a fleet together, of an array no more than it may have."""
    asking = {job.fleet_id or job.id for job in jobs if job.spec.burst_buffer_gb or job.spec.dependencies}
    admitted: dict[str, bool] = {}
    waiting: dict[str, str] = {}
    of_arrays: Counter[str] = Counter()
    for job in jobs:
        if admitted.setdefault(job.fleet_id or job.id, job.admitted) != job.admitted:
            raise StateInvariantError(job.id, f"is admitted without the other members of {job.fleet_id}, or they are")
        # Those that ask for burst buffer or wait for other jobs may be passed over, and so may those whose array has
        # all that it may have.
        line = job.array_id if _is_limited(job) else job.owner
        if not job.admitted and (job.fleet_id or job.id) not in asking:
            waiting.setdefault(line, job.id)
        elif job.admitted and line in waiting:
            raise StateInvariantError(job.id, f"is admitted, and {waiting[line]}, submitted before, is not")
        if job.admitted and _is_limited(job):
            of_arrays[job.array_id] += 1
            if job.spec.array is not None and of_arrays[job.array_id] > job.spec.array.max_admitted:
                raise StateInvariantError(job.id, "is admitted beside as many as its array may have at once")


def _is_limited(job: Job) -> bool:
    """Whether it is a member of an array with a limit of its own."""
    return job.spec.array is not None and job.spec.array.max_admitted > 0


def _check_ledger(state: ManagerState) -> None:
    """Owners are charged for the nodes that their jobs hold."""
    if not state.ledger:
        return
    held: Counter[str] = Counter()
    for job in state.jobs.values():
        held[job.owner] += 0 if job.fleet_number is not None else len(job.held)
    for owner, _ in {(job.owner, node_of(name)) for job in state.jobs.values() if job.fleet_id for name in job.held}:
        held[owner] += 1
    for owner in {*held, *state.ledger}:
        charged = state.ledger[owner].nodes if owner in state.ledger else 0
        if charged != held[owner]:
            raise StateInvariantError("", f"owner {owner} holds {held[owner]} nodes and is charged for {charged}")


def _check_usage(state: ManagerState) -> None:
    """Nodes are accounted for as long as jobs are commanded to use them, each once."""
    if not state.usage_day:
        return
    if unknown := state.usage.keys() - state.jobs.keys():
        raise StateInvariantError(min(unknown), "is not known, and its usage goes on")
    counted = sum(usage.holding.nodes for usage in state.usage.values())
    commanded = {node_of(name) for job in state.jobs.values() for name in job.commanded}
    if abs(counted - len(commanded)) > 1e-6 * max(1, len(commanded)):
        raise StateInvariantError("", f"{len(commanded)} nodes are commanded, and {counted:g} accounted for")
    for name, usage in state.usage.items():
        if bool(usage.holding.nodes) != bool(state.jobs[name].commanded):
            raise StateInvariantError(
                name, f"{usage.holding.nodes:g} nodes are accounted for; {_describe(state.jobs[name])}"
            )


def _check_indices(jobs: Mapping[str, Job]) -> None:
    """Check that the indices and sums that are kept beside the jobs equal those computed from the jobs."""
    if not isinstance(jobs, JobTable):
        return
    indices, expected = jobs.indices(), JobTable.of(dict(jobs)).indices()
    for name, value in expected.items():
        if indices[name] != value:
            raise StateInvariantError("", f"the index {name} is {indices[name]}; the jobs come to {value}")


def _check_sharing(jobs: Iterable[Job]) -> None:
    """Check that no node is held by two jobs, and none is wanted by two."""
    for name in ("held", "wanted"):
        owners: dict[str, str] = {}
        for job in jobs:
            for node in getattr(job, name):
                if owners.setdefault(node, job.id) != job.id:
                    raise StateInvariantError(job.id, f"node {node} is {name} by job {owners[node]}, too")
        _check_units(jobs, name)


def _check_units(jobs: Iterable[Job], name: str) -> None:
    """Each node is one job's, or one fleet's. Members of fleets have GPUs, all others have nodes."""
    units: dict[str, str] = {}
    for job in jobs:
        unit = job.fleet_id or job.id
        for entry in getattr(job, name):
            if (gpu_number(entry) is None) != (job.fleet_number is None):
                raise StateInvariantError(job.id, f"{entry} is {name}, which is no node or GPU as its others are")
            if units.setdefault(node_of(entry), unit) != unit:
                raise StateInvariantError(job.id, f"{entry} is {name}, whose node is {units[node_of(entry)]}'s, too")


def _violations(job: Job) -> Iterator[str]:
    if job.state.final:
        yield "is in a final state and still known"
    if not job.reason:
        yield "has no reason"
    if job.supervised != (job.state in WITH_PROCESSES):
        yield "has a supervisor in a state without one, or has none in a state with one"
    if job.supervised and (job.incarnation < 1 or job.sequence < 1):
        yield "has a supervisor that was never started"
    if job.kept and job.state not in (JobState.WAITING, JobState.STARTING, JobState.STOPPING):
        yield "has a supervisor without workers in a state with workers"
    if job.kept and not job.incarnation:
        yield "keeps a supervisor that was never started"
    if (job.stop is not None) != (job.state is JobState.STOPPING):
        yield "is told to stop and is not STOPPING, or the other way round"
    if not job.supervised:
        for name in ("commanded", "confirmed", "held", "trained", "releases", "serving", "taken_sequence", "preempted"):
            if getattr(job, name):
                yield f"has no supervisor, and {name} is set"
        for name in ("good_since", "stalled_since", "idle_since", "phase_since", "done_since", "scale_since"):
            if getattr(job, name) is not None:
                yield f"has no supervisor, and {name} is set"
    if job.not_before is not None and job.state is not JobState.WAITING:
        yield "backs off and is not WAITING"
    if job.counted_failures > job.spec.max_restarts:
        yield f"has failed {job.counted_failures} times; {job.spec.max_restarts} restarts are allowed"
    if (job.spec.fleet is None) != (job.fleet_number is None):
        yield "is a member of a fleet without its spec, or the other way round"
    if (job.spec.array is None) != (job.array_number is None):
        yield "is a member of an array without its spec, or the other way round"
    if job.end_time is not None:
        yield "has ended and is not in a final state"


def _node_violations(job: Job) -> Iterator[str]:
    for name in _NODE_FIELDS:
        if twice := [node for node, count in Counter(getattr(job, name)).items() if count > 1]:
            yield f"{name} contains {' '.join(twice)} twice"
    held, commanded = set(job.held), set(job.commanded)
    releases = {release.node for release in job.releases}
    if len(releases) < len(job.releases):
        yield "releases a node twice"
    if job.wanted and not job.admitted:
        yield "is not admitted, and nodes are wanted for it"
    if job.wanted and not job.spec.permits(len(job.wanted)):
        yield f"a scale of {len(job.wanted)} is wanted, which is not permitted"
    if job.supervised and job.stop is None and not job.spec.permits(len(job.commanded)):
        yield f"a scale of {len(job.commanded)} is commanded, which is not permitted"
    if commanded - held:
        yield "commanded nodes are not held"
    if set(job.confirmed) - (held - releases):
        yield "confirmed nodes are not held, or are being released"
    if set(job.trained) - held:
        yield "nodes that have trained are not held"
    if releases - (held - commanded):
        yield "nodes that are being released are not held, or are commanded"


def _idle_violations(job: Job, idle: frozenset[str] | None) -> Iterator[str]:
    if idle is None:
        return
    releases = {release.node for release in job.releases}
    if gone := {name for name in set(job.held) - releases if node_of(name) not in idle}:
        yield f"{' '.join(sorted(gone))} left, and are not being released"
    if gone := {name for name in job.wanted if node_of(name) not in idle}:
        yield f"{' '.join(sorted(gone))} left, and are wanted"


def _check_ended(jobs: Iterable[Job]) -> None:
    for job in jobs:
        if job.has_supervisor or job.held or job.wanted or job.commanded or job.confirmed or job.releases:
            raise StateInvariantError(job.id, f"has ended and still holds something; {_describe(job)}")
        if job.end_time is None:
            raise StateInvariantError(job.id, f"has ended at no time; {_describe(job)}")


def _check_growth(before: ManagerState, after: ManagerState) -> None:
    if after.generation < before.generation or after.last_number < before.last_number:
        raise StateInvariantError("", "the plan generation or the number of the newest job has decreased")
    for name, job in after.jobs.items():
        if name in before.jobs:
            _check_job_growth(before.jobs[name], job)


def _check_job_growth(before: Job, after: Job) -> None:
    for name in _GROWING:
        if getattr(after, name) < getattr(before, name):
            raise StateInvariantError(
                after.id, f"{name} has decreased from {getattr(before, name)} to {getattr(after, name)}"
            )


def _describe(job: Job) -> str:
    """State and nodes of a job, in one line."""
    nodes: Mapping[str, Iterable[str]] = {name: getattr(job, name) for name in _NODE_FIELDS}
    nodes = {**nodes, "releases": [release.node for release in job.releases]}
    words = [f"{name}: {' '.join(values)}" for name, values in nodes.items() if values]
    return "; ".join(
        (f"{job.state} ({job.reason_code}), incarnation {job.incarnation}, command {job.sequence}", *words)
    )
