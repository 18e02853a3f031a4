"""What happens to the Allocator (stimuli), and what it has others do (effects)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from malletrain.allocator.fleets.members import FleetDecision
from malletrain.allocator.fleets.planning import FleetPlanning, assignments
from malletrain.allocator.machine.cluster_cache import CachedJob, CachedProfile
from malletrain.allocator.machine.growth_times import BootTime
from malletrain.allocator.machine.node_stays import StayReport
from malletrain.allocator.problem.allocation_problem import Allocation, AllocationProblem, Assignment
from malletrain.allocator.problem.forward_time import ForwardTime
from malletrain.allocator.problem.planner import PlannableNode, PlanProblem


@dataclass(frozen=True)
class NodesReported:
    """The Scavenger reports a change of the idle nodes, or all of them with `snapshot`."""

    joined: tuple[PlannableNode, ...]
    left: tuple[str, ...] = ()
    snapshot: bool = False


@dataclass(frozen=True)
class JobsReported:
    """JobManager reports changed jobs, or all of them with `snapshot`.

    Attributes:
        snapshot: Whether these are all jobs that have not ended.
        generation: Generation of the newest plan that it has applied; 0: none.
    """

    jobs: tuple[CachedJob, ...]
    snapshot: bool = False
    generation: int = 0


@dataclass(frozen=True)
class ProfilesReported:
    """The Profiler reports curves, and scales that it wants to measure."""

    profiles: tuple[CachedProfile, ...]


@dataclass(frozen=True)
class ForwardTimeChosen:
    """Auto-tuning has chosen how T_fwd is computed from the next plan on."""

    forward: ForwardTime


@dataclass(frozen=True)
class Due:
    """The time has come that `AllocatorMachine.due_at` has named."""


@dataclass(frozen=True)
class PeersAnswered:
    """The answer to `AskPeers`. What a peer did not answer is planned by its answer before.

    Attributes:
        stays: What the Scavenger tells of expected stays; None: nothing.
        nodes: Nodes with their expected stays, from a Scavenger that only lists them.
        samples: How many samples members of fleets and jobs with a deadline have trained on, by job.
        feed_rates: How many samples/s the feeds of members can prepare on a node, by job.
    """

    stays: StayReport | None = None
    nodes: tuple[PlannableNode, ...] = ()
    samples: Mapping[str, int] = field(default_factory=dict)
    feed_rates: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Solved:
    """The answer to `Solve`: one allocation for each of its problems."""

    allocations: tuple[Allocation, ...]


class PlanOutcome(StrEnum):
    """Whether JobManager has applied a plan, has refused it, or has not answered: then it may have applied it."""

    APPLIED = "applied"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True)
class PlanAnswered:
    """The answer to `ApplyPlan`.

    Attributes:
        outcome: What JobManager did with the plan.
        refusal: Why it was not applied; empty if it was.
        omissions: Why parts of it were left out, if only the rest was applied.
        rescaled: Whether it may have changed what is wanted for some job; JobManager reports these jobs then.
        jobs: These jobs as they are now, before JobManager reports them; empty where that has to be waited for.
    """

    outcome: PlanOutcome
    refusal: str = ""
    omissions: tuple[str, ...] = ()
    rescaled: bool = True
    jobs: tuple[CachedJob, ...] = ()


Stimulus = (
    NodesReported | JobsReported | ProfilesReported | ForwardTimeChosen | Due | PeersAnswered | Solved | PlanAnswered
)


@dataclass(frozen=True)
class Plan:
    """A plan, with the problem and the solution that it was made from.

    Attributes:
        generation: Grows with every plan.
        reason: Why it was made, for people.
        unix_seconds: When it was made, in seconds since the epoch.
        planning: Its input, with a job for each fleet in place of its members.
        allocation: The solution.
        decisions: How the nodes of fleets are divided among their members.
    """

    generation: int
    reason: str
    unix_seconds: float
    planning: FleetPlanning
    problem: PlanProblem
    allocation: Allocation
    decisions: tuple[FleetDecision, ...]

    @property
    def assignments(self) -> tuple[Assignment, ...]:
        """What jobs get: nodes, and members of fleets GPUs."""
        return assignments(self.allocation, self.decisions)


@dataclass(frozen=True)
class BeginPlan:
    """A plan is due. What follows until `FinishPlan` belongs to it."""

    reason: str


@dataclass(frozen=True)
class ForgetEvents:
    """Drop the events that have come from the trace: no plan is due for them."""


@dataclass(frozen=True)
class AskPeers:
    """Ask for what no stream brings: expected stays, samples and rates of feeds. `PeersAnswered` is due.

    Attributes:
        known_stays: Token of the newest report of expected stays; empty before the first.
        members: Jobs that are members of fleets and take part in plans.
        deadlines: Jobs that have a deadline and take part in plans.
    """

    known_stays: str
    members: tuple[str, ...]
    deadlines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Solve:
    """Solve these problems; `Solved` is due."""

    problems: tuple[AllocationProblem, ...]


@dataclass(frozen=True)
class ApplyPlan:
    """Have JobManager apply a plan, or the part of it that fits; `PlanAnswered` is due.

    Attributes:
        parts: What it changes, by all that JobManager has reported. Jobs that are not named keep what is wanted for
            them: of a node that has left meanwhile, JobManager knows better than a plan from before.
    """

    plan: Plan
    parts: tuple[Assignment, ...]


@dataclass(frozen=True)
class FinishPlan:
    """A plan has been answered: store it, and publish it to those who watch plans."""

    plan: Plan
    answer: PlanAnswered


@dataclass(frozen=True)
class StoreGrowths:
    """Store how long growths have taken."""

    measured: tuple[BootTime, ...]


Question = AskPeers | Solve | ApplyPlan
"""Effects that have an answer. There is one at a time."""

Effect = Question | BeginPlan | ForgetEvents | FinishPlan | StoreGrowths
