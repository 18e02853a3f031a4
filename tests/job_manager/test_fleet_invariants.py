"""Whatever happens to fleets among other jobs: a node is one job's or one fleet's, and a GPU one member's."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from malletrain.common.gpus import gpu_name, node_of
from malletrain.fleet.spec import FleetSpec
from malletrain.job_manager.machine.jobs import Job
from malletrain.job_manager.machine.state import ManagerPolicy
from malletrain.job_manager.machine.stimuli import Cancelled, NodesChanged, PlanReceived
from malletrain.model.job_state import JobState
from tests.job_manager.test_invariants import NODES, SOME_NODES, JobManagerMachine
from tests.support.builders import job_spec

GPUS = (0, 1)
BOUNDS = st.tuples(st.integers(1, 2), st.integers(0, 3))


def unit(job: Job) -> str:
    return job.fleet_id or job.id


class FleetMachine(JobManagerMachine):
    policy = ManagerPolicy(max_parallel=4)
    names = st.frozensets(st.sampled_from([*NODES, *(gpu_name(node, 1) for node in NODES)]), max_size=4)

    def __init__(self) -> None:
        super().__init__()
        self.submit_fleet([(1, 3), (2, 2), (1, 0)], 0, 0)
        self.machine.plan(j4="n7#0", j6="n7#1")
        self.machine.confirm("j000004")

    @rule(
        bounds=st.lists(BOUNDS, min_size=1, max_size=4),
        number=st.integers(0, 2),
        burst_buffer=st.sampled_from([0, 0, 1]),
    )
    def submit_fleet(self, bounds: list[tuple[int, int]], number: int, burst_buffer: int) -> None:
        fleet = FleetSpec("fleet", max_nodes=4, gpus_per_node=len(GPUS), samples_per_epoch=10.0)
        asked = min(burst_buffer, self.policy.burst_buffer_gb // len(bounds))
        members = [replace(job_spec(low, low + more, fleet=fleet), burst_buffer_gb=asked) for low, more in bounds]
        self.machine.submit(*members, owner=self.owners[number % len(self.owners)])

    @rule(number=st.integers(0, 9))
    def cancel_fleet(self, number: int) -> None:
        """As its owner does: one member after the other."""
        fleets = sorted({job.fleet_id for job in self.machine.state.jobs.values() if job.fleet_id})
        if number < len(fleets):
            for job in [job for job in self.machine.state.jobs.values() if job.fleet_id == fleets[number]]:
                self.machine(Cancelled(job.id))

    def sensible_plan(self, data: st.DataObject, missing: frozenset[str] = frozenset()) -> None:
        """As an allocator makes it: nodes for jobs and fleets, and any GPUs of these nodes for members."""
        jobs = [j for j in self.machine.state.jobs.values() if j.admitted and j.state is not JobState.STOPPING]
        pool = set(self.machine.state.idle or ())
        kept = {job.id: [node_of(name) for name in job.commanded if node_of(name) in pool] for job in jobs}
        pool -= {node for nodes in kept.values() for node in nodes}
        plan: list[tuple[str, tuple[str, ...]]] = []
        for name in dict.fromkeys(map(unit, jobs)):
            members = [job for job in jobs if unit(job) == name]
            mine = list(dict.fromkeys(node for job in members for node in kept[job.id]))
            size = data.draw(st.integers(0, min(3, len(mine) + len(pool))))
            nodes = mine[:size] + sorted(pool)[: max(0, size - len(mine))]
            pool = (pool | set(mine)) - set(nodes)
            plan += self.divided(data, members, nodes) if members[0].fleet_id else self.whole(members[0], nodes)
        if missing:
            self.machine(NodesChanged(frozenset(), missing, self.machine.now))
        self.apply_plan(PlanReceived(self.machine.state.generation + 1, tuple(plan), partial=bool(missing)))

    @staticmethod
    def whole(job: Job, nodes: list[str]) -> list[tuple[str, tuple[str, ...]]]:
        return [(job.id, tuple(nodes[: job.spec.max_within(len(nodes))]))]

    @staticmethod
    def divided(data: st.DataObject, members: list[Job], nodes: list[str]) -> list[tuple[str, tuple[str, ...]]]:
        gpus = data.draw(st.permutations([gpu_name(node, number) for node in nodes for number in GPUS]))
        plan = []
        for job in members:
            size = job.spec.max_within(data.draw(st.integers(0, len(gpus))))
            plan.append((job.id, tuple(gpus[:size])))
            gpus = gpus[size:]
        return plan

    @rule(nodes=SOME_NODES)
    def leave(self, nodes: frozenset[str]) -> None:
        """A node that leaves takes all its GPUs from all members at once."""
        self.machine(NodesChanged(frozenset(), nodes, self.machine.now))
        for job in self.machine.state.jobs.values():
            assert not nodes.intersection(map(node_of, (*job.wanted, *job.commanded, *job.confirmed, *job.trained)))
            assert nodes.intersection(map(node_of, job.held)) == {
                node_of(release.node) for release in job.releases if release.left and node_of(release.node) in nodes
            }

    @invariant()
    def nodes_are_shared_by_members_of_one_fleet_only(self) -> None:
        for name in ("held", "wanted"):
            pairs = [(job, entry) for job in self.machine.state.jobs.values() for entry in getattr(job, name)]
            assert max(Counter(entry for _, entry in pairs).values(), default=0) <= 1
            assert len({node_of(entry) for _, entry in pairs}) == len({(unit(job), node_of(e)) for job, e in pairs})
            assert all(("#" in entry) == bool(job.fleet_id) for job, entry in pairs)

    @invariant()
    def places_are_filled_at_once(self) -> None:
        jobs = self.machine.state.jobs.values()
        limit = self.policy.max_parallel_per_owner or self.policy.max_parallel
        admitted = Counter({unit(job): job.owner for job in jobs if job.admitted}.values())
        asking = {unit(job) for job in jobs if job.spec.burst_buffer_gb}
        waiting = [job for job in jobs if not job.admitted]
        assert admitted.total() <= self.policy.max_parallel
        assert all(count <= limit for count in admitted.values())
        assert not {unit(job) for job in waiting} & {unit(job) for job in jobs if job.admitted}
        if admitted.total() < self.policy.max_parallel:
            assert all(admitted[job.owner] == limit for job in waiting if unit(job) not in asking)

    @invariant()
    def the_quota_is_kept_and_nobody_waits_for_others(self) -> None:
        held = sum(job.spec.burst_buffer_gb for job in self.machine.state.jobs.values() if job.admitted)
        assert held <= self.policy.burst_buffer_gb


class SharingFleetMachine(FleetMachine):
    """Several owners, fair share, kept supervisors and burst buffer besides."""

    policy = ManagerPolicy(
        max_parallel=4,
        max_parallel_per_owner=3,
        fair_share_half_life_seconds=60.0,
        keep_supervisor_seconds=300.0,
        burst_buffer_gb=4,
    )
    owners = ("ada", "bob")


TestFleetMachine = FleetMachine.TestCase
TestFleetMachine.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
TestSharingFleetMachine = SharingFleetMachine.TestCase
TestSharingFleetMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
