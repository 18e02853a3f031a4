"""JobManagerService: the gRPC service in front of the engine."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc.aio

from malletrain.common.accounts import Account, acting_as
from malletrain.common.tasks import ending, lasting
from malletrain.common.user_threads import UserBusyError
from malletrain.job_manager import submission, wire
from malletrain.job_manager.dependencies import check_named
from malletrain.job_manager.engine import Engine
from malletrain.job_manager.job_messages import JobMessages
from malletrain.job_manager.launching.accounts import open_accounts
from malletrain.job_manager.launching.folder import JobFolder
from malletrain.job_manager.launching.folder_identity import JobIdentity
from malletrain.job_manager.launching.job_secrets import JobSecrets, SupervisorCertificates
from malletrain.job_manager.launching.launch_settings import launch_settings
from malletrain.job_manager.launching.launcher import SupervisorLauncher
from malletrain.job_manager.launching.starting import search_path
from malletrain.job_manager.log_reader import WrittenLine
from malletrain.job_manager.logs import MAX_TAIL_LINES, check_positions, stream
from malletrain.job_manager.machine.burst_buffer import quota_use
from malletrain.job_manager.machine.jobs import Job, JobSpec, job_id, job_number
from malletrain.job_manager.machine.recording import RecordedJobManager, journal_story
from malletrain.job_manager.machine.sharing import owner_shares
from malletrain.job_manager.machine.state_machine import TransactionResult
from malletrain.job_manager.machine.stimuli import Cancelled, NodesChanged, PlanReceived, Submitted, WeightSet
from malletrain.job_manager.notifications.notifier import open_notifiers
from malletrain.job_manager.owner_limits import OwnerLimits
from malletrain.job_manager.peers import ManagerPeers
from malletrain.job_manager.projects import NO_PROJECTS, projects_of
from malletrain.job_manager.settings import JobManagerSettings
from malletrain.job_manager.storage.change import Submission
from malletrain.job_manager.storage.retention import OwnerBytes, Retention, stored_bytes
from malletrain.job_manager.storage.store import JobNumbers, JobStore
from malletrain.job_manager.storage.usage_store import METADATA, UsageStore
from malletrain.job_manager.telemetry.change_spans import ChangeSpans
from malletrain.job_manager.telemetry.metrics import JobManagerMetrics
from malletrain.job_manager.usage_answers import UsageAnswers
from malletrain.job_manager.visibility import event_visible_to
from malletrain.model.job_groups import in_group
from malletrain.model.job_state import JobState
from malletrain.runtime.access.certificate_renewal import CertificateRenewal
from malletrain.runtime.access.identity import current_caller, require_owner
from malletrain.runtime.access.installation import Installation, own_user
from malletrain.runtime.access.pki import issue_to_fleet, issue_to_job
from malletrain.runtime.access.service import AccessService
from malletrain.runtime.clock import Clock
from malletrain.runtime.config import Settings
from malletrain.runtime.database.migrating import open_database
from malletrain.runtime.errors import (
    InvalidInputError,
    LimitExceededError,
    NotFoundError,
    PreconditionError,
    quote,
)
from malletrain.runtime.kernel.flight_recorder import FlightRecorder
from malletrain.runtime.messages import job_state_of
from malletrain.runtime.node_names import check_assigned_names, check_node_names
from malletrain.runtime.pieces import MAX_BYTES, pieces
from malletrain.runtime.process import Service
from malletrain.runtime.server import ServiceHost
from malletrain.runtime.tracing.propagation import present_context
from malletrain.v1 import allocator_pb2, job_manager_pb2_grpc, resources_pb2
from malletrain.v1 import job_manager_pb2 as pb

Context = grpc.aio.ServicerContext[Any, Any]

_JOB_ID = re.compile(r"j([0-9]{6,18})\Z")
_SUPERVISOR = "supervisor"
_MAX_REQUEST_ID_LENGTH = 256
_SHOWN_AT_ONCE = 20
_READ_AT_ONCE = 100
_LAST_GENERATION = 2**53
"""More than there will ever be; a greater one would leave none for later plans."""
_MAX_ANSWERED_JOBS = 100
"""Of more jobs that a plan changes at once, WatchJobs tells in pieces."""


def _supervisor_certificates(shared: Path, settings: Settings, clock: Clock) -> SupervisorCertificates:
    lifespan = settings.tls.lifespan_seconds

    def issue(job_id: str, account: Account) -> str:
        return issue_to_job(settings.state_dir.resolve(), job_id, account.user_id, clock, lifespan)

    def issue_feed(fleet_id: str) -> str:
        return issue_to_fleet(settings.state_dir.resolve(), fleet_id, clock, lifespan)

    return SupervisorCertificates(shared, issue, lifespan, issue_feed)


class JobManager(job_manager_pb2_grpc.JobManagerServiceServicer):
    """The service. `malletrain.runtime.server` turns errors into status codes.

    Attributes:
        engine: What holds the jobs' state and runs what it asks for.
        launcher: What starts supervisors and finds them again.
    """

    def __init__(
        self, settings: Settings, section: JobManagerSettings, clock: Clock, installation: Installation
    ) -> None:
        """Open the store. Processes and peers are left alone until `run`."""
        self._section = section
        self._clock = clock
        state_dir = settings.state_dir.resolve()
        state_dir.mkdir(parents=True, exist_ok=True)
        self._certificates = CertificateRenewal(state_dir, (_SUPERVISOR,), clock, settings.tls.lifespan_seconds)
        self._certificates.renew()
        self._accounts = open_accounts(section, state_dir)
        for_launches = launch_settings(settings, section)
        policy = section.policy()
        database = open_database(settings.database("job_manager"), METADATA)
        self._store = JobStore(database, owner_of_earlier_jobs=own_user())
        self._usage = UsageAnswers(UsageStore(database), section.charge_rates, section.currency)
        self._limits = OwnerLimits(section.max_jobs_per_owner, section.max_submissions_per_second, clock)
        self._secrets = JobSecrets(
            installation.tokens,
            settings.access.max_lifespan_seconds,
            _supervisor_certificates(self._certificates.path(_SUPERVISOR), settings, clock),
        )
        self._spans = ChangeSpans()
        self.launcher = SupervisorLauncher(
            for_launches, os.environ, self._secrets, self._accounts, self._spans.note_reports
        )
        self._peers = ManagerPeers(settings, clock, installation.credential("job_manager"))
        self._access = AccessService(installation)
        recorder = FlightRecorder(
            state_dir / "debug",
            RecordedJobManager(policy),
            settings.validate_state,
            lambda job_id: journal_story(self._store.last_events(job_id)),
        )
        self._metrics = JobManagerMetrics(clock)
        self._numbers = JobNumbers(state_dir, for_launches.jobs_dir)
        last = self._numbers.largest()
        self.engine = Engine(self._store, self.launcher, self._peers, recorder, clock, self._metrics, self._spans, last)
        self._messages = JobMessages(self.engine.with_newest_samples, self.launcher.version_of)
        self._owner_bytes = OwnerBytes(self._store.bytes_of_owners(), section.max_mib_per_owner)
        self.launcher.identify_jobs(self._identity)
        self._retention = Retention(
            self._store,
            self.launcher.folder,
            self._peers.forget,
            self.engine.remove_ended,
            state_dir,
            section.keep_ended_jobs_days,
            clock,
            self._owner_bytes,
        )
        self._notifiers = open_notifiers(
            section.notifications, self._store, lambda: tuple(self.engine.state.jobs.values()), state_dir, clock
        )
        self._closing = False
        self._failed = False

    def register(self, host: ServiceHost) -> None:
        """Add the servicer to a server that has not started."""
        name = pb.DESCRIPTOR.services_by_name["JobManagerService"].full_name
        host.add(name, job_manager_pb2_grpc.add_JobManagerServiceServicer_to_server, self)
        self._access.register(host)
        self._metrics.register(host.metrics, lambda: self.engine.state)
        self._spans.register(host.tracer, lambda: self.engine.state.jobs)

    async def run(self) -> None:
        """Run the jobs and follow the peers, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(
                    lasting(self.engine.run(self._section.reconcile_seconds, self._section.progress_seconds), "engine")
                )
                group.create_task(lasting(self._secrets.keep(self._active_folders), "secrets"))
                group.create_task(lasting(self._certificates.keep_renewed(), "certificates"))
                group.create_task(ending(self._retention.run(), "retention"))
                for notifier in self._notifiers:
                    group.create_task(lasting(notifier.run(), "notices"))
                group.create_task(
                    lasting(
                        self.launcher.keep_standby(self._active_specs, lambda: self.engine.is_quiet),
                        "standby process",
                    )
                )
                group.create_task(
                    lasting(
                        self._peers.follow(
                            self.engine.apply,
                            self.engine.note_progress,
                            self.launcher.update_hosts,
                            self._spans.nodes_left,
                        ),
                        "peers",
                    )
                )
        except Exception:
            self._failed = True
            raise

    def _identity(self, identifier: str) -> JobIdentity | None:
        job = self.engine.state.jobs.get(identifier) or self._store.job(job_number(identifier))
        return None if job is None else JobIdentity(job.owner, job.instance_id)

    def _active_specs(self) -> Iterator[JobSpec]:
        return (job.spec for job in self.engine.state.jobs.values())

    def _active_folders(self) -> list[tuple[str, JobFolder, str]]:
        return [
            (job_id, self.launcher.folder(job_id), job.fleet_id if job.spec.shares_across_nodes else "")
            for job_id, job in self.engine.state.jobs.items()
        ]

    async def close(self) -> None:
        """End streams, stop the jobs if the settings say so, and close the store.

        After a defect jobs train on, as after a kill: the next JobManager finds their supervisors again.
        """
        self._closing = True
        self.engine.jobs.close()
        if self._section.stop_jobs_on_exit and not self._failed:
            await self.engine.shut_down()
        self._spans.close()
        await self.engine.flush()
        await self.launcher.close()
        await self._peers.close()
        self._store.close()

    async def SubmitJobs(self, request: pb.SubmitJobsRequest, context: Context) -> pb.SubmitJobsResponse:
        """Store jobs, all of them or none."""
        del context
        owner = current_caller().user
        self._limits.count_submission(owner, len(request.specs))
        if len(request.request_id) > _MAX_REQUEST_ID_LENGTH:
            raise InvalidInputError(
                "request_id", f"at most {_MAX_REQUEST_ID_LENGTH} characters", len(request.request_id)
            )
        _check_text("request_id", request.request_id)
        fingerprint, specs = await self._check_submission(owner, request.specs)
        specs = await self._check_dependencies(owner, specs)
        # Nothing is awaited from here on: what is checked stays true.
        earlier = self._store.submission(request.request_id) if request.request_id else None
        if earlier is not None:
            if self._job(job_id(earlier.job_numbers[0])).owner != owner:
                raise InvalidInputError("request_id", "an identifier that no other user has used", request.request_id)
            if earlier.digest != fingerprint:
                raise InvalidInputError(
                    "request_id", "the specs that were first submitted under it", request.request_id
                )
            return pb.SubmitJobsResponse(jobs=[self._message(number) for number in earlier.job_numbers])
        if isinstance(specs, Exception):
            raise specs
        self._limits.check_jobs(owner, self.engine.state.jobs.values(), len(specs))
        self._limits.check_waiting(
            owner, self.engine.state.jobs.values(), sum(bool(spec.dependencies) for spec in specs)
        )
        self._owner_bytes.add(owner, stored_bytes(request.specs))
        first = self.engine.state.last_number + 1
        numbers = tuple(range(first, first + len(specs)))

        def record(_: TransactionResult) -> Submission:
            return Submission(request.request_id, fingerprint, numbers)

        self._numbers.keep_number(numbers[-1])
        identifiers = tuple(secrets.token_hex(16) for _ in specs)
        self.engine.apply(Submitted(specs, owner, identifiers), record if request.request_id else None)
        return pb.SubmitJobsResponse(jobs=[self._message(number) for number in numbers])

    async def _check_submission(
        self, owner: str, specs: Sequence[resources_pb2.JobSpec]
    ) -> tuple[str, tuple[JobSpec, ...] | InvalidInputError]:
        """Digest of what is submitted, and the jobs, or why there are none.

        A submission that is repeated has an answer even if its files are gone.

        Raises:
            LimitExceededError: it takes too long.
            PreconditionError: nothing can be run as this owner.
        """
        account = self._accounts.of_owner(owner)
        path = search_path(os.environ, self._section.trainer_python)
        section = self._section

        def check() -> tuple[str, tuple[JobSpec, ...] | InvalidInputError]:
            fingerprint, projects = submission.digest(specs), NO_PROJECTS
            if section.project_required or any(spec.project for spec in specs):
                projects = projects_of(owner, section.project_rule)
            try:
                with acting_as(account):
                    quota, graces = section.burst_buffer_gb, section.longest_graces()
                    return fingerprint, submission.check_specs(specs, path, quota, graces, projects)
            except InvalidInputError as error:
                return fingerprint, error

        try:
            return await self.launcher.threads.run(owner, check)
        except UserBusyError as error:
            raise LimitExceededError(f"what is submitted can't be checked: {error}") from error

    async def _check_dependencies(
        self, owner: str, specs: tuple[JobSpec, ...] | InvalidInputError
    ) -> tuple[JobSpec, ...] | InvalidInputError:
        """The jobs, or why they can't wait for those that they name. When it returns, all that was applied is stored.

        Raises:
            LimitExceededError: it takes too long.
        """

        def check() -> tuple[frozenset[str], InvalidInputError | None]:
            try:
                return check_named(submitted, owner, self._store.job, self._store.jobs_from), None
            except InvalidInputError as error:
                return frozenset(), error

        submitted = () if isinstance(specs, InvalidInputError) else specs
        while True:
            await self.engine.wait_until_stored()
            if not any(spec.dependencies for spec in submitted):
                return specs
            try:
                unfinished, error = await self.launcher.threads.run(owner, check)
            except UserBusyError as busy:
                raise LimitExceededError(f"what is submitted can't be checked: {busy}") from busy
            await self.engine.wait_until_stored()
            if all(map(self.engine.is_active, unfinished)):  # else some have ended meanwhile, and how is to be seen
                return error or specs

    async def GetJob(self, request: pb.GetJobRequest, context: Context) -> pb.GetJobResponse:
        """One job."""
        del context
        return pb.GetJobResponse(job=self._messages.message(await self._find_job(request.job_id)))

    async def ListJobs(self, request: pb.ListJobsRequest, context: Context) -> pb.ListJobsResponse:
        """Jobs, oldest or newest first."""
        del context
        size = wire.page_size(request.page_size)
        for field in ("owner", "name", "group"):
            _check_text(field, getattr(request, field))
        states = [_state(index, value) for index, value in enumerate(request.states)]
        position = wire.position(request.page_token)
        await self.engine.caught_up()
        jobs: list[resources_pb2.Job] = []
        held = looked_at = 0
        while True:
            wanted = min(_READ_AT_ONCE, size - len(jobs))
            stored_jobs = await asyncio.to_thread(
                self._store.jobs, position, wanted + 1, states, request.owner, newest_first=request.newest_first
            )
            for index, job in enumerate(stored_jobs[:wanted]):
                if index % _SHOWN_AT_ONCE == 0:
                    await asyncio.sleep(0)  # a release must not wait for a thousand jobs
                if not _is_asked_for(job, request):
                    position = job.number
                    continue
                jobs.append(self._messages.message_among_many(job))
                held, position = held + jobs[-1].ByteSize(), job.number
                if held >= MAX_BYTES:
                    break
            others = bool(stored_jobs) and stored_jobs[-1].number != position
            looked_at += wanted  # a page of few jobs, or none, may follow a look at many of other names
            if not others or len(jobs) == size or held >= MAX_BYTES or looked_at >= wire.MAX_PAGE:
                token = str(position) if others else ""
                return pb.ListJobsResponse(jobs=jobs, next_page_token=token, burst_buffer=self._quota())

    async def ListOwners(self, request: pb.ListOwnersRequest, context: Context) -> pb.ListOwnersResponse:
        """What the owners use and have used."""
        del request, context
        half_life = self._section.fair_share_half_life_seconds
        shares = owner_shares(self.engine.state, self._clock.time(), half_life)
        owners = map(wire.owner_message, shares)
        return pb.ListOwnersResponse(owners=owners, half_life_seconds=half_life, burst_buffer=self._quota())

    async def GetUsage(self, request: pb.GetUsageRequest, context: Context) -> AsyncIterator[pb.GetUsageResponse]:
        """What jobs have used in all."""
        del context
        caller = current_caller()
        query = self._usage.query(request, caller)
        await self.engine.caught_up()
        now, samples = self._clock.time(), self.engine.samples_in_usage()
        async for part in self._usage.answer(query, caller, now, samples):
            yield part

    async def CancelJob(self, request: pb.CancelJobRequest, context: Context) -> pb.CancelJobResponse:
        """Cancel a job. A job in a final state stays as it is."""
        del context
        job = await self._find_job(request.job_id)
        require_owner(current_caller(), job.owner, job.id, "cancel it")
        await self.engine.wait_until_stored(job.id)
        if self.engine.is_active(job.id):
            self.engine.apply(Cancelled(job.id, current_caller().user))
        return pb.CancelJobResponse(job=self._message(job.number))

    async def UpdateJob(self, request: pb.UpdateJobRequest, context: Context) -> pb.UpdateJobResponse:
        """Change the weight of a job."""
        del context
        caller = current_caller()
        self._limits.count_change(caller.user)
        job = await self._find_job(request.job_id)
        require_owner(caller, job.owner, job.id, "change it")
        weight = submission.check_weight(request)
        await self.engine.wait_until_stored(job.id)
        if not self.engine.is_active(job.id):
            raise PreconditionError(f"job {job.id} has ended: nothing of it can be changed")
        self.engine.apply(WeightSet(job.id, weight, caller.user))
        return pb.UpdateJobResponse(job=self._message(job.number))

    async def WatchJobs(self, request: pb.WatchJobsRequest, context: Context) -> AsyncIterator[pb.WatchJobsResponse]:
        """Stream jobs: first all that are not in a final state, then those that change.

        A reader that is slow is told of several changes at once, and each job as it is by then.
        """
        del context
        with self.engine.jobs.subscribe() as changes:
            present, generation = self.engine.state.jobs.values(), self.engine.state.generation
            first = True
            for jobs, more in self._messages.split(present, in_pieces=request.in_pieces):
                yield pb.WatchJobsResponse(snapshot=first, jobs=jobs, plan_generation=generation, more=more)
                first = False
            async for changed in changes:
                for_watcher = changed.for_watcher(without_progress=request.without_progress)
                if for_watcher or changed.generation is not None:
                    for jobs, more in self._messages.split(for_watcher, in_pieces=request.in_pieces):
                        yield pb.WatchJobsResponse(jobs=jobs, plan_generation=changed.generation or 0, more=more)

    async def ApplyPlan(self, request: pb.ApplyPlanRequest, context: Context) -> pb.ApplyPlanResponse:
        """Apply a plan, or the part of it that fits, or refuse it as a whole."""
        del context
        if not 0 < request.generation <= _LAST_GENERATION:
            raise InvalidInputError("generation", f"1 to {_LAST_GENERATION}", request.generation)
        assignments = tuple(
            (entry.job_id, self._assigned(entry, f"assignments[{index}].nodes"))
            for index, entry in enumerate(request.assignments)
        )
        with self._spans.taking_plan(request.generation) as note_rescaled:
            result = await self.engine.apply_plan(
                PlanReceived(request.generation, assignments, request.partial), note_rescaled
            )
        present = self.engine.state.jobs
        rescaled = [present[name] for name in result.rescaled if name in present]
        return pb.ApplyPlanResponse(
            rescaled_job_ids=result.rescaled,
            generation=result.state.generation,
            omissions=map(wire.omission_message, result.omitted),
            jobs=map(self._messages.message_among_many, rescaled) if len(rescaled) <= _MAX_ANSWERED_JOBS else (),
        )

    def _assigned(self, assignment: allocator_pb2.Assignment, field: str) -> tuple[str, ...]:
        """The nodes of an assignment. Those that are wanted already, as most of a plan, need no check."""
        job, nodes = self.engine.state.jobs.get(assignment.job_id), tuple(assignment.nodes)
        return job.wanted if job is not None and nodes == job.wanted else check_assigned_names(nodes, field)

    async def ReleaseNodes(self, request: pb.ReleaseNodesRequest, context: Context) -> pb.ReleaseNodesResponse:
        """Take nodes from their jobs and end every process of ours on them. Answers when none is left."""
        del context
        nodes = frozenset(check_node_names(request.nodes, "nodes"))
        if not nodes:
            raise InvalidInputError("nodes", "names of nodes, at least one", [])
        self.engine.apply(NodesChanged(frozenset(), nodes, self._clock.time()))
        self._spans.nodes_left(nodes, present_context())
        await self.engine.clear(nodes)
        return pb.ReleaseNodesResponse(released=sorted(nodes))

    async def StreamLogs(self, request: pb.StreamLogsRequest, context: Context) -> AsyncIterator[pb.StreamLogsResponse]:
        """Stream a job's log, and on request what is written later."""
        del context
        if not 0 <= request.tail_lines <= MAX_TAIL_LINES:
            raise InvalidInputError("tail_lines", f"0 to {MAX_TAIL_LINES}", request.tail_lines)
        if request.since_unix_ms < 0:
            raise InvalidInputError("since_unix_ms", "at least 0", request.since_unix_ms)
        positions = check_positions(request.positions, "positions")
        job = await self._find_job(request.job_id)
        require_owner(current_caller(), job.owner, job.id, "read its log")

        def ended() -> bool:
            return job.id not in self.engine.state.jobs

        folder = self.launcher.folder(job.id)
        if folder.fault:
            raise PreconditionError(f"the log can't be read: {folder.fault}")

        async def look(work: Callable[[], list[WrittenLine]]) -> list[WrittenLine]:
            return await self.launcher.threads.run(f"{job.owner} (logs)", work)

        def closing() -> bool:
            return self._closing

        try:
            tail, since = request.tail_lines, request.since_unix_ms
            async for part in stream(folder, tail, request.follow, positions, ended, closing, look, since):
                yield pb.StreamLogsResponse(
                    lines=part.lines, unix_ms=part.unix_ms, positions=part.positions, ended=part.ended
                )
        except UserBusyError as error:
            raise LimitExceededError(f"the log can't be read now: {error}") from error

    async def ListJobEvents(self, request: pb.ListJobEventsRequest, context: Context) -> pb.ListJobEventsResponse:
        """Rows of the journal, oldest first."""
        del context
        size = wire.page_size(request.page_size)
        await self.engine.caught_up()
        number = self._job(request.job_id).number if request.job_id else None
        rows = self._store.events(wire.position(request.page_token), size + 1, number)
        token = str(rows[size - 1].sequence) if len(rows) > size else ""
        owners = self._store.owners({stored.event.job_id for stored in rows})
        messages = (
            event_visible_to(current_caller(), wire.event_message(stored), owners.get(stored.event.job_id, ""))
            for stored in rows[:size]
        )
        events, more = next(pieces(messages))
        token = str(events[-1].sequence) if more else token
        return pb.ListJobEventsResponse(events=events, next_page_token=token)

    def _quota(self) -> pb.BurstBufferQuota | None:
        use = quota_use(self.engine.state.jobs.values(), self._section.burst_buffer_gb)
        return wire.quota_message(use) if use.granted_gb or use.held_gb else None

    async def _find_job(self, identifier: str) -> Job:
        """A job; one that has ended is read from the store, once its end is there."""
        if not self.engine.is_active(identifier):
            await self.engine.caught_up()
        return self._job(identifier)

    def _job(self, identifier: str) -> Job:
        match = _JOB_ID.match(identifier)
        number = int(match.group(1)) if match else 0
        job = self.engine.state.jobs.get(identifier) or self._store.job(number)
        if job is None or job.id != identifier:
            raise NotFoundError(f"there is no job {quote(identifier)}")
        return job

    def _message(self, number: int) -> Any:
        return self._messages.message(self._job(job_id(number)))


def _is_asked_for(job: Job, request: pb.ListJobsRequest) -> bool:
    """Whether a job has the name and the group that a listing is of."""
    if request.name and job.spec.name != request.name:
        return False
    return not request.group or in_group(request.group, job.spec.name, job.array_id, job.fleet_id)


def _check_text(field: str, text: str) -> None:
    """Refuse what PostgreSQL can neither store nor compare."""
    if "\0" in text:
        raise InvalidInputError(field, "characters other than NUL", text)


def _state(index: int, value: Any) -> JobState:
    try:
        return job_state_of(value)
    except ValueError as error:
        raise InvalidInputError(f"states[{index}]", "a state of JobState other than UNSPECIFIED", value) from error


def create(settings: Settings, section: JobManagerSettings, clock: Clock, installation: Installation) -> Service:
    """The service, not registered and not running yet."""
    return JobManager(settings, section, clock, installation)
