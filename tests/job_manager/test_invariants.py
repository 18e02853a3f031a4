"""Whatever happens in whatever order: the invariants hold, and the loop comes to rest once it is answered."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from statistics import mean

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from malletrain.common.gpus import node_of
from malletrain.job_manager.machine.admission import AdmissionRule
from malletrain.job_manager.machine.burst_buffer import quota_use
from malletrain.job_manager.machine.effects import (
    ReleaseHosts,
    SetHosts,
    StartSupervisor,
    StopSupervisor,
    required_effects,
)
from malletrain.job_manager.machine.jobs import Job, job_id
from malletrain.job_manager.machine.state import ManagerPolicy
from malletrain.job_manager.machine.stimuli import (
    Cancelled,
    Completion,
    IdleSetSeen,
    NodesChanged,
    NodesReleased,
    Outcome,
    PlanReceived,
    Progressed,
    Shutdown,
    SupervisorEnded,
    SupervisorSeen,
    TrainerDone,
    WeightSet,
)
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.job_manager.machine.usage import DAY_SECONDS
from malletrain.job_manager.machine.validation import check_state
from malletrain.job_manager.storage.store import decode, encode
from malletrain.job_manager.telemetry.node_use import UseCounter
from malletrain.model.job_state import JobState
from malletrain.runtime.errors import StalePlanError
from tests.job_manager.harness import MachineHarness
from tests.job_manager.journal_usage import JournalRow, journal_usage
from tests.job_manager.plain_plans import plain_outcome
from tests.support.builders import job_spec

pytestmark = pytest.mark.timeout(400)

NODES = [f"n{number}" for number in range(8)]
NODE_SETS = st.frozensets(st.sampled_from(NODES), max_size=8)
SOME_NODES = st.frozensets(st.sampled_from(NODES), min_size=1, max_size=3)
BOUNDS = st.tuples(st.integers(1, 4), st.integers(0, 4))
LISTS = st.sampled_from([(), (1, 2, 4), (2, 4)])


def kept(job: Job) -> SupervisorSeen:
    """The supervisor has no workers any more, and stays."""
    nobody: frozenset[str] = frozenset()
    return SupervisorSeen(job.id, job.incarnation, job.sequence, job.sequence, nobody, nobody, kept=True)


class JobManagerMachine(RuleBasedStateMachine):
    policy = ManagerPolicy(max_parallel=3)
    owners: tuple[str, ...] = ("",)
    names = NODE_SETS

    def __init__(self) -> None:
        super().__init__()
        # Soon it is midnight: usage is divided there.
        self.machine = MachineHarness(replace(self.policy, meters_usage=True), now=20_000 * DAY_SECONDS - 100.0)
        self.machine.idle(*NODES)
        for number, new in enumerate((job_spec(), job_spec(2, 4, permitted_nodes=(2, 4)), job_spec(1, 6))):
            self.machine.submit(new, owner=self.owners[number % len(self.owners)])
        self.machine.plan(j1="n0 n1", j2="n2 n3", j3="n4 n5 n6")
        for name in tuple(self.machine.state.jobs):
            self.machine.confirm(name)

    # What users, Scavenger, Allocator and Monitor do.

    @rule(
        bounds=st.lists(BOUNDS, min_size=1, max_size=3),
        permitted=LISTS,
        samples=st.sampled_from([0, 0, 500]),
        number=st.integers(0, 2),
        burst_buffer=st.sampled_from([0, 1, 3, 4]),
    )
    def submit(
        self,
        bounds: list[tuple[int, int]],
        permitted: tuple[int, ...],
        samples: int,
        number: int,
        burst_buffer: int,
    ) -> None:
        asked = min(burst_buffer, self.policy.burst_buffer_gb)
        for low, more in bounds:
            if permitted:
                new = job_spec(permitted[0], permitted[-1], permitted_nodes=permitted, target_samples=samples)
            else:
                new = job_spec(low, low + more, target_samples=samples)
            self.machine.submit(replace(new, burst_buffer_gb=asked), owner=self.owners[number % len(self.owners)])

    @rule(missing=SOME_NODES)
    def snapshot(self, missing: frozenset[str]) -> None:
        self.machine(IdleSetSeen(frozenset(NODES) - missing))

    @rule()
    def all_join(self) -> None:
        self.machine.join(*NODES)

    @rule(joined=SOME_NODES, left=SOME_NODES)
    def idle_event(self, joined: frozenset[str], left: frozenset[str]) -> None:
        self.machine(NodesChanged(joined, left, self.machine.now))

    @rule(nodes=SOME_NODES)
    def leave(self, nodes: frozenset[str]) -> None:
        self.machine(NodesChanged(frozenset(), nodes, self.machine.now))

    @rule(data=st.data(), step=st.integers(0, 2), partial=st.booleans())
    def any_plan(self, data: st.DataObject, step: int, partial: bool) -> None:
        ids = [*self.machine.state.jobs, "j999999"]
        chosen = data.draw(st.lists(st.sampled_from(ids), max_size=3))
        plan = tuple((job_id, tuple(sorted(data.draw(self.names)))) for job_id in chosen)
        self.apply_plan(PlanReceived(self.machine.state.generation + step, plan, partial))

    @rule(data=st.data(), missing=SOME_NODES)
    def late_plan(self, data: st.DataObject, missing: frozenset[str]) -> None:
        """Nodes leave while a plan is on its way."""
        self.sensible_plan(data, missing)

    @rule(data=st.data(), times=st.integers(1, 2))
    def sensible_plans(self, data: st.DataObject, times: int) -> None:
        for _ in range(times):
            self.sensible_plan(data)

    def sensible_plan(self, data: st.DataObject, missing: frozenset[str] = frozenset()) -> None:
        """As an allocator makes it: a job only gains or only loses."""
        pool = set(self.machine.state.idle or ())
        jobs = [job for job in self.machine.state.jobs.values() if job.admitted and job.state is not JobState.STOPPING]
        keep = {job.id: [node for node in job.commanded if node in pool] for job in jobs}
        pool -= {node for nodes in keep.values() for node in nodes}
        plan = []
        for job in jobs:
            sizes = [0, *(size for size in range(1, len(keep[job.id]) + len(pool) + 1) if job.spec.permits(size))]
            size = data.draw(st.sampled_from(sizes[-4:]))
            mine = keep[job.id][:size]
            mine += sorted(pool)[: size - len(mine)]
            pool -= set(mine)
            pool |= set(keep[job.id]) - set(mine)
            plan.append((job.id, tuple(mine)))
        if missing:
            self.machine(NodesChanged(frozenset(), missing, self.machine.now))
        self.apply_plan(PlanReceived(self.machine.state.generation + 1, tuple(plan), partial=bool(missing)))

    def apply_plan(self, plan: PlanReceived) -> None:
        before = self.machine.state
        rescaled, omitted = plain_outcome(before, plan, self.machine.now, self.machine.policy)
        refusal = ""
        try:
            result = self.machine(plan)
        except StalePlanError as error:
            assert self.machine.state is before
            refusal = str(error)
        else:
            assert not result.omitted or (plan.partial and result.rescaled)
            assert (result.rescaled, result.omitted) == (rescaled, omitted)
        if refusal and self.has_valid_header(plan):
            assert refusal == omitted[0].reason
            assert not (plan.partial and rescaled)

    def has_valid_header(self, plan: PlanReceived) -> bool:
        state, named = self.machine.state, [job_id for job_id, _ in plan.assignments]
        return plan.generation > state.generation and state.idle is not None and len(set(named)) == len(named)

    @rule(data=st.data(), samples=st.integers(0, 600), stalled=st.booleans(), done=st.booleans())
    def progress(self, data: st.DataObject, samples: int, stalled: bool, done: bool) -> None:
        if job := self.draw(data, supervised=False):
            self.machine(Progressed(job.id, samples, stalled))
            if done and job.id in self.machine.state.jobs:
                self.machine(TrainerDone(job.id))

    @rule(data=st.data(), patience=st.integers(0, 4))
    def cancel(self, data: st.DataObject, patience: int) -> None:
        if not patience and (job := self.draw(data, supervised=False)):
            self.machine(Cancelled(job.id))

    @rule(data=st.data(), weight=st.sampled_from([0.5, 1.0, 4.0]))
    def give_weight(self, data: st.DataObject, weight: float) -> None:
        if job := self.draw(data, supervised=False):
            self.machine(WeightSet(job.id, weight, "ada"))

    @rule(seconds=st.sampled_from([0.5, 2.0, 2.0, 31.0, 61.0]))
    def wait(self, seconds: float) -> None:
        self.machine.wait(seconds)

    # What supervisors do.

    @rule(times=st.integers(1, 3))
    def supervisors_obey(self, times: int) -> None:
        for _ in range(times):
            self.answer()

    @rule(data=st.data(), lag=st.integers(0, 1), lingering=st.booleans())
    def supervisor_tells(self, data: st.DataObject, lag: int, lingering: bool) -> None:
        if job := self.draw(data):
            workers = frozenset(job.held if lingering else job.commanded)
            confirmed = max(0, job.sequence - lag)
            hosts = frozenset(job.commanded)
            self.machine(SupervisorSeen(job.id, job.incarnation, job.sequence, confirmed, hosts, workers))

    @rule(data=st.data(), lost=SOME_NODES, stale=st.booleans())
    def supervisor_has_lost_workers(self, data: st.DataObject, lost: frozenset[str], stale: bool) -> None:
        if job := self.draw(data):
            sequence = job.sequence - stale
            hosts = frozenset(name for name in job.commanded if node_of(name) not in lost)
            self.machine(SupervisorSeen(job.id, job.incarnation, sequence, sequence, hosts, hosts))

    @rule(data=st.data())
    def supervisor_released(self, data: st.DataObject) -> None:
        if job := self.draw(data):
            nodes = tuple(release.node for release in job.releases)
            self.machine(NodesReleased(job.id, job.incarnation, nodes))

    @rule(data=st.data(), outcome=st.sampled_from(Outcome), luck=st.integers(0, 5))
    def supervisor_ends(self, data: st.DataObject, outcome: Outcome, luck: int) -> None:
        if job := self.draw(data):
            completion = None if luck else Completion()
            self.machine(SupervisorEnded(job.id, job.incarnation, outcome, "", completion, ("line",)))

    @precondition(lambda self: self.machine.state.jobs)
    @rule()
    def restart(self) -> None:
        """A kill -9: what is known afterwards is what was stored, and no idle set."""
        stored = {name: decode(encode(job)) for name, job in self.machine.state.jobs.items()}
        assert stored == self.machine.state.jobs
        usage = {job_id(row.job_number): row.open for row in self.machine.usage.values() if row.open is not None}
        assert usage == self.machine.state.usage
        self.machine.state = replace(
            self.machine.state, jobs=stored, idle=None, usage=dict(usage), usage_day=0, gpus={}
        )
        self.machine.uses = UseCounter()

    @rule(likely=st.integers(0, 9))
    def shutdown(self, likely: int) -> None:
        """JobManager ends in good order, and another one starts."""
        if likely:
            return
        self.machine(Shutdown())
        for job in tuple(self.machine.state.jobs.values()):
            if job.has_supervisor:
                self.machine(SupervisorEnded(job.id, job.incarnation, Outcome.STOPPED, "", None, ()))
        assert not any(job.has_supervisor for job in self.machine.state.jobs.values())

    def draw(self, data: st.DataObject, supervised: bool = True) -> Job | None:
        jobs = [job for job in self.machine.state.jobs.values() if job.has_supervisor or not supervised]
        return data.draw(st.sampled_from(jobs)) if jobs else None

    # What must always hold.

    @invariant()
    def the_state_is_consistent(self) -> None:
        """The harness checks it after every stimulus, too; here it is what a restart has read back."""
        check_state(self.machine.state)

    @invariant()
    def places_are_filled_at_once(self) -> None:
        places = self.policy.max_parallel
        limit = self.policy.max_parallel_per_owner or places
        admitted = Counter(job.owner for job in self.machine.state.jobs.values() if job.admitted)
        jobs = self.machine.state.jobs.values()
        waiting = [job for job in jobs if not (job.admitted or job.spec.burst_buffer_gb or job.waits_for)]
        assert admitted.total() <= places
        assert all(count <= limit for count in admitted.values())
        if admitted.total() < places:
            assert all(admitted[job.owner] == limit for job in waiting)

    @invariant()
    def owners_weigh_what_their_fair_share_says(self) -> None:
        admitted = [job for job in self.machine.state.jobs.values() if job.admitted]
        for job in admitted:
            own = [other.spec.most_weight for other in admitted if other.owner == job.owner]
            # What an owner's jobs weigh in all follows its fair share alone, whatever weights it gave them.
            if len({other.owner for other in admitted}) > 1 and self.policy.fair_share_half_life_seconds > 0:
                assert 0.125 * (1 - 1e-9) <= job.share_weight * mean(own) <= 2.0 * (1 + 1e-9)
            else:
                assert job.share_weight == 1.0

    @invariant()
    def one_change_is_in_flight_at_most(self) -> None:
        for job in self.machine.state.jobs.values():
            own = [effect for effect in required_effects([job], self.machine.policy) if isinstance(effect, SetHosts)]
            assert len(own) <= 1
            assert not own or job.state is JobState.RESCALING or job.state is JobState.STARTING

    @invariant()
    def all_events_have_reasons(self) -> None:
        for event in self.machine.events:
            assert event.reason
            assert event.reason_code is not JobReason.UNSPECIFIED

    @invariant()
    def the_quota_is_kept_and_nobody_waits_for_others(self) -> None:
        jobs, policy = self.machine.state.jobs.values(), self.policy
        use = quota_use(jobs, policy.burst_buffer_gb)
        assert use.held_gb <= use.granted_gb
        assert all(job.passed_over <= policy.starvation_bound for job in jobs)
        if sum(job.admitted for job in jobs) < policy.max_parallel and not policy.max_parallel_per_owner:
            waiting = [job for job in jobs if not job.admitted and not job.waits_for]
            assert not waiting or any(job.spec.burst_buffer_gb > use.free_gb for job in waiting)
            assert all(job.reason_code is JobReason.BURST_BUFFER for job in waiting)

    def usage_is_that_of_the_journal(self) -> None:
        """To the second, and sample by sample; what is lost is part of it."""
        machine = self.machine
        rows = [
            JournalRow(event.unix_seconds, event.job_id, event.reason_code, event.nodes) for event in machine.events
        ]
        expected = journal_usage(rows, machine.now)
        names = [*machine.state.jobs, *machine.ended]
        used = {name: machine.used(name) for name in names}
        for name in names:
            assert abs(used[name].node_seconds - expected.node_seconds[name]) < 1e-3
            assert -1e-6 <= used[name].lost_node_seconds <= used[name].node_seconds + 1e-6
            assert used[name].preemptions == expected.preemptions[name] == machine.job(name).preemptions
            if any(job_id(number) == name for number, _ in machine.usage):
                assert used[name].samples == machine.job(name).samples
        assert abs(sum(amounts.node_seconds for amounts in used.values()) - expected.total) < 1e-3

    def teardown(self) -> None:
        """Answered by obedient supervisors, everything comes to rest where it is wanted."""
        self.usage_is_that_of_the_journal()
        self.machine(IdleSetSeen(frozenset(self.machine.state.idle or NODES)))
        for _ in range(100):
            if not self.answer():
                break
        else:
            raise AssertionError(f"no rest: {self.machine.state.jobs}")
        for job in self.machine.state.jobs.values():
            assert not job.releases
            if job.state is JobState.RUNNING:
                assert set(job.commanded) == set(job.wanted) == set(job.confirmed) == set(job.held)
            else:
                assert job.state in (JobState.WAITING, JobState.QUEUED)
                assert not job.wanted

    def answer(self) -> bool:
        effects = required_effects(self.machine.state.jobs.values(), self.machine.policy)
        for effect in effects:
            job = self.machine.state.jobs.get(effect.job_id)
            if job is None or job.incarnation != effect.incarnation:
                continue
            match effect:
                case ReleaseHosts(job_id, incarnation, nodes):
                    self.machine(NodesReleased(job_id, incarnation, nodes))
                case StopSupervisor(job_id, incarnation, keep_seconds=keep) if keep:
                    self.machine(kept(self.machine.state.jobs[job_id]))
                case StopSupervisor(job_id, incarnation):
                    self.machine(SupervisorEnded(job_id, incarnation, Outcome.STOPPED, "", None, ()))
                case StartSupervisor() | SetHosts():
                    self.machine.confirm(job.id)
        unsettled = [
            job for job in self.machine.state.jobs.values() if job.state in (JobState.STARTING, JobState.RESCALING)
        ]
        for job in unsettled:
            self.machine.confirm(job.id)
        return bool(effects or unsettled)


class KeepingMachine(JobManagerMachine):
    """Supervisors of jobs that lose their last node stay for a while."""

    policy = ManagerPolicy(max_parallel=3, keep_supervisor_seconds=300.0)

    @rule(data=st.data())
    def supervisor_is_kept(self, data: st.DataObject) -> None:
        if (job := self.draw(data)) and job.stop is not None:
            self.machine(kept(job))

    @invariant()
    def a_kept_supervisor_has_no_node(self) -> None:
        for job in self.machine.state.jobs.values():
            if job.kept and job.state is JobState.WAITING:
                assert not any((job.held, job.commanded, job.releases, job.supervised))


class FairShareMachine(JobManagerMachine):
    """One owner, with fair share: nothing is different."""

    policy = ManagerPolicy(max_parallel=3, fair_share_half_life_seconds=60.0)


class OwnersMachine(JobManagerMachine):
    """Three owners, with fair share and a limit for each."""

    policy = ManagerPolicy(max_parallel=3, max_parallel_per_owner=2, fair_share_half_life_seconds=60.0)
    owners = ("ada", "bob", "eve")


class BurstBufferMachine(JobManagerMachine):
    """Jobs ask for burst buffer."""

    policy = ManagerPolicy(max_parallel=3, burst_buffer_gb=4)


class WindowMachine(JobManagerMachine):
    """A window, several owners and fair share besides."""

    policy = ManagerPolicy(
        max_parallel=4,
        fair_share_half_life_seconds=60.0,
        burst_buffer_gb=5,
        admission=AdmissionRule.WINDOW,
        window=3,
        starvation_bound=2,
    )
    owners = ("ada", "bob")


TestJobManagerMachine = JobManagerMachine.TestCase
TestJobManagerMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestFairShareMachine = FairShareMachine.TestCase
TestFairShareMachine.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestOwnersMachine = OwnersMachine.TestCase
TestOwnersMachine.settings = settings(max_examples=70, stateful_step_count=40, deadline=None)
TestKeepingMachine = KeepingMachine.TestCase
TestKeepingMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestBurstBufferMachine = BurstBufferMachine.TestCase
TestBurstBufferMachine.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestWindowMachine = WindowMachine.TestCase
TestWindowMachine.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
