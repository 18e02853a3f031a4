"""JobManagerService: gRPC in front of the engine."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from malletrain.job_manager import messages, submission
from malletrain.job_manager.engine import Engine
from malletrain.job_manager.feeds import FailureReporter, Notifier, follow_peers
from malletrain.job_manager.jobs import Job, job_id
from malletrain.job_manager.launchers.environment import Monitor, search_path
from malletrain.job_manager.launchers.supervised import LaunchSettings, SupervisedLauncher
from malletrain.job_manager.logs import stream
from malletrain.job_manager.machine import Step
from malletrain.job_manager.pages import page_size, position
from malletrain.job_manager.settings import JobManagerSettings
from malletrain.job_manager.states import JobState
from malletrain.job_manager.stimuli import Cancelled, NodesChanged, PlanReceived, Submitted
from malletrain.job_manager.store import Store, Submission
from malletrain.runtime.clock import Clock
from malletrain.runtime.config import Settings
from malletrain.runtime.errors import InvalidInputError, NotFoundError
from malletrain.runtime.server import ServiceHost
from malletrain.runtime.service import Service
from malletrain.v1 import job_manager_pb2 as pb
from malletrain.v1 import job_manager_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]

_JOB_ID = re.compile(r"j([0-9]{6,18})\Z")
_LONGEST_REQUEST_ID = 256


def _monitor(settings: Settings, section: JobManagerSettings) -> Monitor:
    """Where trainers report: on this machine, and on nodes that see it by another address."""
    gate = settings.addresses.monitor_gate
    port = gate.rpartition(":")[2]
    return Monitor(settings.addresses.monitor, f"{section.head_address}:{port}" if gate else "")


class JobManager(job_manager_pb2_grpc.JobManagerServiceServicer):
    """The service. Errors of the core become status codes at the edge of the server."""

    def __init__(self, settings: Settings, section: JobManagerSettings, clock: Clock) -> None:
        """Open the store; processes and peers are looked at by `run`."""
        self._settings = settings
        self._section = section
        self._clock = clock
        state_dir = settings.state_dir.resolve()
        state_dir.mkdir(parents=True, exist_ok=True)
        launching = LaunchSettings(
            state_dir,
            section.trainer_python,
            _monitor(settings, section),
            section.backend,
            section.head_address,
            section.interfaces,
        )
        self._launcher = SupervisedLauncher(launching, os.environ)
        self._store = Store(settings.database("job_manager"))
        self._notifier = Notifier(settings.addresses.monitor)
        self._reporter = FailureReporter(settings.addresses.scavenger)
        self._engine = Engine(self._store, self._launcher, section.policy(), clock, self._notifier, self._reporter)
        self._closing = False

    def register(self, host: ServiceHost) -> None:
        """Add the servicer to a server that has not started."""
        name = pb.DESCRIPTOR.services_by_name["JobManagerService"].full_name
        host.add(name, job_manager_pb2_grpc.add_JobManagerServiceServicer_to_server, self)

    async def run(self) -> None:
        """Look after the jobs and follow the peers, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._engine.run(self._section.reconcile_seconds))
            group.create_task(
                follow_peers(self._settings.addresses, self._engine, self._launcher.know_hosts, self._clock)
            )

    async def close(self) -> None:
        """End streams, stop the jobs where the settings say so, and let go of the store."""
        self._closing = True
        self._engine.jobs.close()
        if self._section.stop_jobs_on_exit:
            await self._engine.shut_down()
        await self._launcher.close()
        await self._notifier.close()
        await self._reporter.close()
        self._store.close()

    async def SubmitJobs(self, request: pb.SubmitJobsRequest, context: Context) -> pb.SubmitJobsResponse:
        """Store jobs, all of them or none."""
        del context
        if len(request.request_id) > _LONGEST_REQUEST_ID:
            raise InvalidInputError("request_id", f"at most {_LONGEST_REQUEST_ID} characters", len(request.request_id))
        fingerprint = submission.digest(request.specs)
        earlier = self._store.submission(request.request_id) if request.request_id else None
        if earlier is not None:
            if earlier.digest != fingerprint:
                raise InvalidInputError(
                    "request_id", "the specs that were first submitted under it", request.request_id
                )
            return pb.SubmitJobsResponse(jobs=[self._message(number) for number in earlier.job_numbers])
        specs = submission.check_specs(request.specs, search_path(os.environ, self._section.trainer_python))
        first = self._engine.world.last_number + 1
        numbers = tuple(range(first, first + len(specs)))

        def record(_: Step) -> Submission:
            return Submission(request.request_id, fingerprint, numbers)

        self._engine.apply(Submitted(specs), record if request.request_id else None)
        return pb.SubmitJobsResponse(jobs=[self._message(number) for number in numbers])

    async def GetJob(self, request: pb.GetJobRequest, context: Context) -> pb.GetJobResponse:
        """One job."""
        del context
        return pb.GetJobResponse(job=messages.job_message(self._job(request.job_id)))

    async def ListJobs(self, request: pb.ListJobsRequest, context: Context) -> pb.ListJobsResponse:
        """Jobs, oldest first."""
        del context
        size = page_size(request.page_size)
        states = [_state(index, value) for index, value in enumerate(request.states)]
        found = self._store.jobs(position(request.page_token), size + 1, states)
        token = str(found[size - 1].number) if len(found) > size else ""
        return pb.ListJobsResponse(jobs=map(messages.job_message, found[:size]), next_page_token=token)

    async def CancelJob(self, request: pb.CancelJobRequest, context: Context) -> pb.CancelJobResponse:
        """End a job; one that has ended stays as it is."""
        del context
        job = self._job(request.job_id)
        if not job.state.final:
            self._engine.apply(Cancelled(job.id))
        return pb.CancelJobResponse(job=self._message(job.number))

    async def WatchJobs(self, request: pb.WatchJobsRequest, context: Context) -> AsyncIterator[pb.WatchJobsResponse]:
        """All jobs not in a final state, then every change."""
        del request, context
        with self._engine.jobs.subscribe() as changes:
            present = self._engine.world.jobs.values()
            yield pb.WatchJobsResponse(snapshot=True, jobs=map(messages.job_message, present))
            async for changed in changes:
                yield pb.WatchJobsResponse(jobs=map(messages.job_message, changed))

    async def ApplyPlan(self, request: pb.ApplyPlanRequest, context: Context) -> pb.ApplyPlanResponse:
        """Make the jobs follow a plan, or refuse it whole."""
        del context
        assignments = tuple((entry.job_id, tuple(entry.nodes)) for entry in request.assignments)
        step = self._engine.apply(PlanReceived(request.generation, assignments))
        return pb.ApplyPlanResponse(rescaled_job_ids=step.rescaled, generation=step.world.generation)

    async def ReleaseNodes(self, request: pb.ReleaseNodesRequest, context: Context) -> pb.ReleaseNodesResponse:
        """Take nodes out of their jobs and end every process of ours on them."""
        del context
        nodes = frozenset(request.nodes)
        if not nodes or "" in nodes:
            raise InvalidInputError("nodes", "names of nodes, at least one", list(request.nodes))
        self._engine.apply(NodesChanged(frozenset(), nodes, self._clock.time()))
        await self._engine.clear(nodes)
        return pb.ReleaseNodesResponse(released=sorted(nodes))

    async def StreamLogs(self, request: pb.StreamLogsRequest, context: Context) -> AsyncIterator[pb.StreamLogsResponse]:
        """A job's log, and on request what is written later."""
        del context
        if request.tail_lines < 0:
            raise InvalidInputError("tail_lines", "at least 0", request.tail_lines)
        job = self._job(request.job_id)

        def ended() -> bool:
            return self._closing or job.id not in self._engine.world.jobs

        folder = self._launcher.folder(job.id).path
        async for lines in stream(folder, request.tail_lines, request.follow, ended):
            yield pb.StreamLogsResponse(lines=lines)

    async def ListJobEvents(self, request: pb.ListJobEventsRequest, context: Context) -> pb.ListJobEventsResponse:
        """The journal, oldest first."""
        del context
        size = page_size(request.page_size)
        number = self._job(request.job_id).number if request.job_id else None
        found = self._store.events(position(request.page_token), size + 1, number)
        token = str(found[size - 1].sequence) if len(found) > size else ""
        return pb.ListJobEventsResponse(events=map(messages.event_message, found[:size]), next_page_token=token)

    def _job(self, identifier: str) -> Job:
        match = _JOB_ID.match(identifier)
        number = int(match.group(1)) if match else 0
        job = self._engine.world.jobs.get(identifier) or self._store.job(number)
        if job is None or job.id != identifier:
            raise NotFoundError(f"there is no job {identifier!r}")
        return job

    def _message(self, number: int) -> Any:
        return messages.job_message(self._job(job_id(number)))


def _state(index: int, value: Any) -> JobState:
    try:
        state = messages.state_of(value)
    except ValueError:
        state = None
    if state is None:
        raise InvalidInputError(f"states[{index}]", "a state of JobState other than UNSPECIFIED", value)
    return state


def create(settings: Settings, section: JobManagerSettings, clock: Clock) -> Service:
    """The service, ready to be registered and run."""
    return JobManager(settings, section, clock)
