"""Options of a replay."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from malletrain.allocator.problem.allocation_problem import CostModel, ObjectiveMetric
from malletrain.allocator.problem.forward_time import FORWARD_SECONDS, SURVIVAL_SHARE, ForwardPolicy, ForwardTime
from malletrain.allocator.problem.pools import PoolTerms
from malletrain.job_manager.machine.admission import (
    MAX_BURST_BUFFER_GB,
    MAX_PLACES,
    MAX_WINDOW,
    AdmissionRule,
    BurstBufferPolicy,
)
from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.replay.job_set import ReplayJob

_MAX_HALF_LIFE_S = 1e9
STAY_HORIZON_S = 1800.0
"""How far expected stays look ahead in a replay, in seconds."""


class ReplayEngine(StrEnum):
    """What runs a replay: the fast engine, or the services' own decisions on a simulated clock."""

    FAST = "fast"
    SERVICES = "services"


class ReplayPolicy(StrEnum):
    """What decides which job gets how many nodes."""

    MILP = "milp"
    EQUAL = "equal"
    FIXED = "fixed"


class Accounting(StrEnum):
    """When arrivals and ends of jobs are noticed: at once, or at the next node event as in BFTrainer's evaluation."""

    EVENT = "event"
    PAPER = "paper"


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """Options of a replay.

    Attributes:
        duration_s: Seconds of the trace to replay.
        policy: Who decides. `milp`: the production allocator. `equal`: BFTrainer's baseline. `fixed`: every job has a
            fixed scale or no nodes.
        forward_s: T_fwd in seconds.
        forward_policy: Where T_fwd comes from. With `survival`, forward_s is used until the first fragment has ended;
            with `expected`, it is what is assumed before jobs have changed their scale.
        forward_share: With `survival`, T_fwd as a fraction of the mean expected stay.
        rank_by_stay: Whether growths take the nodes that are expected to stay longest, and shrinks give up those that
            are expected to leave first. Otherwise the trace's order of nodes decides.
        max_parallel: Most jobs that are admitted at once.
        max_parallel_per_owner: Most jobs of one owner that are admitted at once; 0: no limit.
        max_nodes_per_owner: Most nodes of all jobs of one owner; 0: no limit. Only the policy `milp` knows it.
        max_nodes: Most nodes of all jobs together; None: no limit.
        fair_share_half_life_s: Half-life of the owners' uses, in seconds; 0: no fair share.
        burst_buffer_gb: Quota of burst buffer in GB, of which admitted jobs hold what they ask for.
        admission: Who gets burst buffer.
        window: How many of the jobs that ask for burst buffer are looked at together, with `window`.
        starvation_bound: How many times a job may be passed over, with `window`.
        accounting: When arrivals and ends of jobs are noticed.
        cost_model: Cost model of the allocator.
        charge: Cost model by which jobs are charged; None: that of the allocator.
        metric: Metric of the allocator's objective.
        commit_s: Seconds between two commits of a job. With `stall`, a preemption loses the samples since the last one.
            0: it loses none.
        fixed_nodes: Scale of every job under `fixed`, in nodes; None: its max_nodes.
        paper_quirks: Whether to follow the published code where it differs from the paper (docs/replay.md).
        engine: What runs the replay.
        repeat_jobs: Whether the job set begins again when all of it is submitted, so that there is always work.
        free: Whether rescales cost nothing and the allocator knows it, for the zero-cost bound. No job asks for burst
            buffer then.
    """

    duration_s: float
    policy: ReplayPolicy = ReplayPolicy.MILP
    forward_s: float = FORWARD_SECONDS
    forward_policy: ForwardPolicy = ForwardPolicy.CONSTANT
    forward_share: float = SURVIVAL_SHARE
    rank_by_stay: bool = True
    max_parallel: int = 10
    max_parallel_per_owner: int = 0
    max_nodes_per_owner: int = 0
    max_nodes: int | None = None
    fair_share_half_life_s: float = 604_800.0
    burst_buffer_gb: int = 0
    admission: AdmissionRule = AdmissionRule.FIFO
    window: int = 20
    starvation_bound: int = 50
    accounting: Accounting = Accounting.EVENT
    cost_model: CostModel = CostModel.STALL
    charge: CostModel | None = None
    metric: ObjectiveMetric = ObjectiveMetric.THROUGHPUT
    commit_s: float = 5.0
    fixed_nodes: int | None = None
    paper_quirks: bool = False
    engine: ReplayEngine = ReplayEngine.FAST
    repeat_jobs: bool = False
    free: bool = False

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            InvalidInputError: an option is not valid; the error names it.
        """
        for option, value in (("--hours", self.duration_s), ("--forward", self.forward_s)):
            if not (math.isfinite(value) and value > 0):
                raise InvalidInputError(option, "a finite number above 0", value)
        if not 0 < self.forward_share <= 1:
            raise InvalidInputError("--forward-share", "above 0 and at most 1", self.forward_share)
        if not (math.isfinite(self.commit_s) and self.commit_s >= 0):
            raise InvalidInputError("--commit-seconds", "a finite number, at least 0", self.commit_s)
        if self.max_parallel < 1:
            raise InvalidInputError("--max-parallel", "at least 1", self.max_parallel)
        for option, limit in (
            ("--max-parallel-per-owner", self.max_parallel_per_owner),
            ("--max-nodes-per-owner", self.max_nodes_per_owner),
        ):
            if limit < 0:
                raise InvalidInputError(option, "at least 0", limit)
        if not 0 <= self.fair_share_half_life_s <= _MAX_HALF_LIFE_S:
            raise InvalidInputError(
                "--fair-share-half-life", f"0 to {_MAX_HALF_LIFE_S:g} seconds", self.fair_share_half_life_s
            )
        self._check_admission()
        if self.max_nodes_per_owner and self.policy is not ReplayPolicy.MILP:
            raise InvalidInputError("--max-nodes-per-owner", f"--policy {ReplayPolicy.MILP}")
        if self.fixed_nodes is not None and self.fixed_nodes < 1:
            raise InvalidInputError("--fixed-nodes", "at least 1", self.fixed_nodes)
        if self.engine is ReplayEngine.SERVICES:
            self._check_services()

    def _check_admission(self) -> None:
        for option, value, least, most in (
            ("--burst-buffer", self.burst_buffer_gb, 0, MAX_BURST_BUFFER_GB),
            ("--window", self.window, 1, MAX_WINDOW),
            ("--starvation-bound", self.starvation_bound, 1, 10**6),
        ):
            if not least <= value <= most:
                raise InvalidInputError(option, f"{least} to {most}", value)
        if self.admission is AdmissionRule.WINDOW and self.max_parallel > MAX_PLACES:
            raise InvalidInputError(
                "--max-parallel", f"at most {MAX_PLACES} with --admission window", self.max_parallel
            )

    def check_requests(self, jobs: Iterable[ReplayJob]) -> None:
        """Refuse a quota below what a job asks for, which would never be admitted.

        Raises:
            InvalidInputError: there is such a job; the error names it.
        """
        largest = max(jobs, key=lambda job: job.burst_buffer_gb, default=None)
        if largest is not None and largest.burst_buffer_gb > self.burst_buffer_gb:
            expected = f"at least {largest.burst_buffer_gb} (GB), which job {largest.id} asks for"
            raise InvalidInputError("--burst-buffer", expected, self.burst_buffer_gb)

    @property
    def burst_buffer(self) -> BurstBufferPolicy:
        """How burst buffer is given to jobs."""
        return BurstBufferPolicy(self.burst_buffer_gb, self.admission, self.window, self.starvation_bound)

    def _check_services(self) -> None:
        """Refuse what only the fast engine can do."""
        if self.policy is not ReplayPolicy.MILP:
            raise InvalidInputError("--policy", f"{ReplayPolicy.MILP} with --engine services", self.policy.value)
        if self.accounting is not Accounting.EVENT:
            raise InvalidInputError("--accounting", f"{Accounting.EVENT} with --engine services", self.accounting.value)
        if self.paper_quirks:
            raise InvalidInputError("--paper-quirks", "--engine fast")
        if self.max_nodes is not None:
            raise InvalidInputError("--pool", "a pool without max_nodes, or --engine fast")

    @property
    def forward(self) -> ForwardTime:
        """How T_fwd is computed."""
        return ForwardTime(self.forward_s, self.forward_policy, self.forward_share)

    def most(self, nodes: int) -> int:
        """How many of so many idle nodes jobs may have together."""
        return nodes if self.max_nodes is None else min(nodes, self.max_nodes)

    def of_pool(self, terms: PoolTerms) -> ReplayOptions:
        """The options with what differs in a pool, as plans for it have it.

        Raises:
            InvalidInputError: it has no place for a job, or what these options do not go with.
        """
        forward, owner = terms.forward or self.forward, terms.max_nodes_per_owner
        limits = [limit for limit in (owner, self.max_nodes_per_owner) if limit]
        places = self.max_parallel if terms.max_parallel is None else min(self.max_parallel, terms.max_parallel)
        return replace(
            self,
            forward_s=forward.seconds,
            forward_policy=forward.policy,
            forward_share=forward.share,
            metric=terms.objective_metric or self.metric,
            max_nodes=terms.max_nodes,
            max_nodes_per_owner=min(limits, default=0),
            max_parallel=places,
        )

    def shares(self, owners: Collection[str]) -> bool:
        """Whether it matters whose job is whose."""
        several = len(set(owners)) > 1
        return bool(self.max_parallel_per_owner) or (several and self.fair_share_half_life_s > 0)

    @property
    def charged(self) -> CostModel:
        """Cost model by which jobs are charged."""
        return self.charge or self.cost_model
