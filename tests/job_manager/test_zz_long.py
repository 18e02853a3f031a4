"""Whatever happens in whatever order: the invariants hold, and the loop comes to rest once it is answered."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from malletrain.job_manager.codec import decode, encode
from malletrain.job_manager.effects import ReleaseHosts, SetHosts, StartSupervisor, StopSupervisor, required_effects
from malletrain.job_manager.jobs import Job
from malletrain.job_manager.states import JobState
from malletrain.job_manager.stimuli import (
    Cancelled,
    Completion,
    IdleSetSeen,
    NodesChanged,
    NodesReleased,
    Outcome,
    PlanReceived,
    Progressed,
    SupervisorEnded,
    SupervisorSeen,
    TrainerDone,
)
from malletrain.job_manager.world import Policy
from malletrain.runtime.errors import StalePlanError
from tests.job_manager.builders import Play, spec

NODES = [f"n{number}" for number in range(8)]
NODE_SETS = st.frozensets(st.sampled_from(NODES), max_size=8)
SOME_NODES = st.frozensets(st.sampled_from(NODES), min_size=1, max_size=3)
BOUNDS = st.tuples(st.integers(1, 4), st.integers(0, 4))
LISTS = st.sampled_from([(), (1, 2, 4), (2, 4)])


class JobManagerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.play = Play(Policy(max_parallel=3))
        self.play.idle(*NODES)
        self.play.submit(spec(), spec(2, 4, permitted_nodes=(2, 4)), spec(1, 6))
        self.play.plan(j1="n0 n1", j2="n2 n3", j3="n4 n5 n6")
        for job_id in tuple(self.play.world.jobs):
            self.play.confirm(job_id)

    # What users, Scavenger, Allocator and Monitor do.

    @rule(bounds=st.lists(BOUNDS, min_size=1, max_size=3), permitted=LISTS, samples=st.sampled_from([0, 0, 500]))
    def submit(self, bounds: list[tuple[int, int]], permitted: tuple[int, ...], samples: int) -> None:
        for low, more in bounds:
            if permitted:
                new = spec(permitted[0], permitted[-1], permitted_nodes=permitted, target_samples=samples)
            else:
                new = spec(low, low + more, target_samples=samples)
            self.play.submit(new)

    @rule(missing=SOME_NODES)
    def snapshot(self, missing: frozenset[str]) -> None:
        self.play(IdleSetSeen(frozenset(NODES) - missing))

    @rule()
    def all_join(self) -> None:
        self.play.join(*NODES)

    @rule(joined=SOME_NODES, left=SOME_NODES)
    def idle_event(self, joined: frozenset[str], left: frozenset[str]) -> None:
        self.play(NodesChanged(joined, left, self.play.now))

    @rule(nodes=SOME_NODES)
    def leave(self, nodes: frozenset[str]) -> None:
        self.play(NodesChanged(frozenset(), nodes, self.play.now))

    @rule(data=st.data(), step=st.integers(0, 2))
    def any_plan(self, data: st.DataObject, step: int) -> None:
        ids = [*self.play.world.jobs, "j999999"]
        chosen = data.draw(st.lists(st.sampled_from(ids), max_size=3))
        plan = tuple((job_id, tuple(sorted(data.draw(NODE_SETS)))) for job_id in chosen)
        self.apply_plan(PlanReceived(self.play.world.generation + step, plan))

    @rule(data=st.data(), times=st.integers(1, 2))
    def sensible_plans(self, data: st.DataObject, times: int) -> None:
        for _ in range(times):
            self.sensible_plan(data)

    def sensible_plan(self, data: st.DataObject) -> None:
        """As an allocator makes it: a job only gains or only loses."""
        pool = set(self.play.world.idle or ())
        jobs = [job for job in self.play.world.jobs.values() if job.admitted and job.state is not JobState.STOPPING]
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
        self.apply_plan(PlanReceived(self.play.world.generation + 1, tuple(plan)))

    def apply_plan(self, plan: PlanReceived) -> None:
        before = self.play.world
        try:
            self.play(plan)
        except StalePlanError:
            assert self.play.world is before

    @rule(data=st.data(), samples=st.integers(0, 600), stalled=st.booleans(), done=st.booleans())
    def progress(self, data: st.DataObject, samples: int, stalled: bool, done: bool) -> None:
        if job := self.draw(data, supervised=False):
            self.play(Progressed(job.id, samples, stalled))
            if done and job.id in self.play.world.jobs:
                self.play(TrainerDone(job.id))

    @rule(data=st.data(), patience=st.integers(0, 4))
    def cancel(self, data: st.DataObject, patience: int) -> None:
        if not patience and (job := self.draw(data, supervised=False)):
            self.play(Cancelled(job.id))

    @rule(seconds=st.sampled_from([0.5, 2.0, 2.0, 31.0, 61.0]))
    def wait(self, seconds: float) -> None:
        self.play.wait(seconds)

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
            self.play(SupervisorSeen(job.id, job.incarnation, job.sequence, confirmed, hosts, workers))

    @rule(data=st.data())
    def supervisor_released(self, data: st.DataObject) -> None:
        if job := self.draw(data):
            nodes = tuple(release.node for release in job.releases)
            self.play(NodesReleased(job.id, job.incarnation, nodes))

    @rule(data=st.data(), outcome=st.sampled_from(Outcome), luck=st.integers(0, 5))
    def supervisor_ends(self, data: st.DataObject, outcome: Outcome, luck: int) -> None:
        if job := self.draw(data):
            completion = None if luck else Completion()
            self.play(SupervisorEnded(job.id, job.incarnation, outcome, "", completion, ("line",)))

    @precondition(lambda self: self.play.world.jobs)
    @rule()
    def restart(self) -> None:
        """A kill -9: what is known afterwards is what was stored, and no idle set."""
        stored = {name: decode(encode(job)) for name, job in self.play.world.jobs.items()}
        assert stored == self.play.world.jobs
        self.play.world = replace(self.play.world, jobs=stored, idle=None)

    def draw(self, data: st.DataObject, supervised: bool = True) -> Job | None:
        jobs = [job for job in self.play.world.jobs.values() if job.supervised or not supervised]
        return data.draw(st.sampled_from(jobs)) if jobs else None

    # What must always hold.

    @invariant()
    def a_node_is_in_one_job_at_most(self) -> None:
        for kind in ("held", "wanted"):
            nodes = [node for job in self.play.world.jobs.values() for node in getattr(job, kind)]
            assert len(nodes) == len(set(nodes)), kind

    @invariant()
    def commanded_nodes_are_idle_or_being_released(self) -> None:
        idle = self.play.world.idle
        for job in self.play.world.jobs.values():
            assert set(job.commanded) <= set(job.held)
            assert set(job.confirmed) <= set(job.held) - {release.node for release in job.releases}
            assert idle is None or set(job.commanded) <= idle
            assert {release.node for release in job.releases} <= set(job.held) - set(job.commanded)

    @invariant()
    def admission_is_bounded_and_first_come_first_served(self) -> None:
        admitted = [job.number for job in self.play.world.jobs.values() if job.admitted]
        queued = [job.number for job in self.play.world.jobs.values() if not job.admitted]
        assert len(admitted) <= 3
        assert not queued or (len(admitted) == 3 and max(admitted) < min(queued))

    @invariant()
    def one_change_is_in_flight_at_most(self) -> None:
        for job in self.play.world.jobs.values():
            own = [effect for effect in required_effects([job], self.play.policy) if isinstance(effect, SetHosts)]
            assert len(own) <= 1
            assert not own or job.state is JobState.RESCALING or job.state is JobState.STARTING

    @invariant()
    def scales_are_permitted(self) -> None:
        for job in self.play.world.jobs.values():
            assert not job.wanted or job.spec.permits(len(job.wanted))
            if job.supervised and job.stop is None:
                assert job.spec.permits(len(job.commanded))

    @invariant()
    def states_have_reasons_and_final_ones_hold_nothing(self) -> None:
        for job in (*self.play.world.jobs.values(), *self.play.ended.values()):
            assert job.reason
            assert job.supervised == (job.state in _WITH_PROCESSES)
            assert (job.stop is not None) == (job.state is JobState.STOPPING)
            if not job.supervised:
                assert not job.commanded
                assert not job.held
            if job.state.final:
                assert not job.wanted
                assert job.end_time is not None
        assert all(event.reason for event in self.play.events)

    def teardown(self) -> None:
        """Answered by obedient supervisors, everything comes to rest where it is wanted."""
        self.play(IdleSetSeen(frozenset(self.play.world.idle or NODES)))
        for _ in range(100):
            if not self.answer():
                break
        else:
            raise AssertionError(f"no rest: {self.play.world.jobs}")
        for job in self.play.world.jobs.values():
            assert not job.releases
            if job.state is JobState.RUNNING:
                assert set(job.commanded) == set(job.wanted) == set(job.confirmed) == set(job.held)
            else:
                assert job.state in (JobState.WAITING, JobState.QUEUED)
                assert not job.wanted

    def answer(self) -> bool:
        effects = required_effects(self.play.world.jobs.values(), self.play.policy)
        for effect in effects:
            job = self.play.world.jobs.get(effect.job_id)
            if job is None or job.incarnation != effect.incarnation:
                continue
            match effect:
                case ReleaseHosts(job_id, incarnation, nodes):
                    self.play(NodesReleased(job_id, incarnation, nodes))
                case StopSupervisor(job_id, incarnation):
                    self.play(SupervisorEnded(job_id, incarnation, Outcome.STOPPED, "", None, ()))
                case StartSupervisor() | SetHosts():
                    self.play.confirm(job.id)
        unsettled = [
            job for job in self.play.world.jobs.values() if job.state in (JobState.STARTING, JobState.RESCALING)
        ]
        for job in unsettled:
            self.play.confirm(job.id)
        return bool(effects or unsettled)


_WITH_PROCESSES = (JobState.STARTING, JobState.RUNNING, JobState.RESCALING, JobState.STOPPING)

TestJobManagerMachine = JobManagerMachine.TestCase
TestJobManagerMachine.settings = settings(max_examples=1500, stateful_step_count=50, deadline=None)
