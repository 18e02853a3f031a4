"""The Allocator's section of the configuration."""

from __future__ import annotations

from math import inf
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from malletrain.allocator.auto_tuning.machine import FORWARD_S, AutoTune
from malletrain.allocator.machine.options import MachineOptions
from malletrain.allocator.problem.allocation_problem import CostModel, Formulation, ObjectiveMetric
from malletrain.allocator.problem.forward_time import FORWARD_SECONDS, SURVIVAL_SHARE, ForwardPolicy, ForwardTime
from malletrain.allocator.problem.pools import PlannerOptions, PoolTerms

_MAX_POOLS = 64
_MAX_POOL_NAME = 256


class PoolSettings(BaseModel):
    """What differs in one pool, or in all pools of a partition."""

    model_config = ConfigDict(extra="forbid")

    forward_seconds: float | None = Field(default=None, gt=0, description="As allocator.forward_seconds.")
    forward_policy: ForwardPolicy | None = Field(default=None, description="As allocator.forward_policy.")
    forward_share: float | None = Field(default=None, gt=0, le=1, description="As allocator.forward_share.")
    objective_metric: ObjectiveMetric | None = Field(default=None, description="As allocator.objective_metric.")
    max_nodes: int | None = Field(default=None, ge=0, description="Most nodes of the pool that jobs have together.")
    max_nodes_per_owner: int | None = Field(
        default=None, ge=1, description="Most nodes of the pool that all jobs of one owner have together."
    )
    max_parallel: int | None = Field(
        default=None, ge=0, description="Most jobs that take part in plans for the pool at the same time."
    )


class AllocatorSettings(BaseModel):
    """Settings of the Allocator."""

    model_config = ConfigDict(extra="forbid")

    forward_seconds: float = Field(
        default=FORWARD_SECONDS, gt=0, description="T_fwd: how far ahead a plan looks, in seconds."
    )
    forward_policy: ForwardPolicy = Field(
        default=ForwardPolicy.CONSTANT,
        description="constant: T_fwd is forward_seconds. survival: a share of the nodes' mean stay, by pool. expected: "
        "about a third of the mean time between changes of the job that holds a node.",
    )
    forward_share: float = Field(
        default=SURVIVAL_SHARE, gt=0, le=1, description="That share; forward_seconds holds where no stay is known."
    )
    span_pools: bool = Field(default=False, description="Whether a job may have nodes of several pools at once.")
    max_nodes_per_owner: int = Field(
        default=0, ge=0, description="Most nodes of all jobs of one owner together in a plan; 0: no limit."
    )
    avoid_slow_nodes: bool = Field(
        default=False,
        description="Whether nodes that count as slow are left out of plans for jobs that may have more than one node, "
        "as long as they have enough others.",
    )
    cost_model: CostModel = Field(default=CostModel.STALL, description="How rescaling is charged.")
    objective_metric: ObjectiveMetric = Field(
        default=ObjectiveMetric.THROUGHPUT, description="How a job's progress is measured."
    )
    pools: dict[str, PoolSettings] = Field(
        default_factory=dict,
        description="What differs in single pools, by the name of a pool (main/a100x4) or of a partition (main).",
    )
    formulation: Formulation = Field(
        default=Formulation.AUTO,
        description="What solves each plan's problem. auto and dp: the dynamic program. milp: HiGHS, from the present "
        "nodes on, and what it has found when time_limit_seconds have passed. counts, nodes: HiGHS, and the dynamic "
        "program without a proof in time.",
    )
    time_limit_seconds: float = Field(
        default=5.0, gt=0, le=3600, description="Wall-clock limit of a solve, in seconds."
    )
    coalesce_seconds: float = Field(
        default=0.05, ge=0, le=10, description="How long after an event others may join its plan, in seconds."
    )
    caution: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="How much of a throughput's error is taken off it: 0 believes it, 1 takes the lower bound.",
    )
    replan_seconds: float = Field(
        default=60.0,
        ge=0,
        description="A plan for changed curves or weights alone, or because deadlines have come nearer, at most this "
        "often, in seconds; 0: never. A deadline that passes leads to a plan at once.",
    )
    fleet_measuring_seconds: float = Field(
        default=600.0,
        gt=0,
        description="How long a member of a fleet may have GPUs until its rate on so many is known, in seconds. "
        "Afterwards it is planned by what is assumed of it, and not measured on purpose any more.",
    )
    fleet_replan_seconds: float = Field(
        default=900.0,
        ge=0,
        description="How long after a plan the GPUs of fleets are divided anew by the work that remains, without any "
        "event, in seconds; 0: never. For the planners makespan and auto.",
    )
    plans_kept: int = Field(default=10_000, ge=1, description="How many of the newest plans are stored.")
    plans_kept_mib: int = Field(
        default=1024,
        ge=1,
        description="How many MiB the stored plans may have together, compressed; the newest one is always kept.",
    )
    idle_rows_kept: int = Field(
        default=100_000,
        ge=2000,
        description="How many of the newest changes of the idle set are stored, for replay --journal and tune.",
    )

    auto_tune: AutoTune = Field(
        default=AutoTune.OFF,
        description="Whether the installation's past is replayed with other T_fwd: advise tells what would have "
        "trained more, apply uses it, step by step, and goes back where that was wrong. The file is never changed.",
    )
    auto_tune_bounds: tuple[float, float] = Field(
        default=(FORWARD_S[0], FORWARD_S[-1]),
        description="The least and the largest forward_seconds that auto_tune may choose.",
    )
    auto_tune_seconds: float = Field(default=3600.0, ge=5, description="Seconds between two runs of auto_tune.")
    auto_tune_part_seconds: float = Field(
        default=21600.0,
        ge=1,
        description="The past is judged in parts of so many seconds, the newest 28 at most; the interval of a gain is "
        "over parts. It takes two.",
    )
    auto_tune_cpu_share: float = Field(
        default=0.05, gt=0, le=1, description="Share of a core that replays of auto_tune may use on average."
    )
    auto_tune_memory_mib: int = Field(
        default=1024, ge=256, description="Memory that replays of auto_tune may have, in MiB."
    )

    @field_validator("auto_tune_bounds")
    @classmethod
    def _ascending(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not 0 < value[0] <= value[1] < inf:
            raise ValueError("expected two numbers of seconds above 0, the lesser one first")
        return value

    @field_validator("pools")
    @classmethod
    def _named(cls, pools: dict[str, PoolSettings]) -> dict[str, PoolSettings]:
        if len(pools) > _MAX_POOLS:
            raise ValueError(f"expected at most {_MAX_POOLS} pools")
        for name in pools:
            if not name.strip() or name != name.strip() or len(name) > _MAX_POOL_NAME or not name.isprintable():
                raise ValueError(f"expected names of pools, as `malletrain nodes` shows them, got {name[:80]!r}")
        return pools

    @model_validator(mode="after")
    def _one_pool_per_job(self) -> Self:
        if self.pools and self.span_pools:
            raise ValueError("pools: expected nothing where span_pools is set: jobs may have nodes of several pools")
        return self

    @property
    def forward(self) -> ForwardTime:
        """T_fwd as it is configured."""
        return ForwardTime(self.forward_seconds, self.forward_policy, self.forward_share)

    @property
    def planner_options(self) -> PlannerOptions:
        """The settings that a plan depends on."""
        return PlannerOptions(
            self.forward,
            self.cost_model,
            self.objective_metric,
            self.span_pools,
            self.max_nodes_per_owner,
            self.avoid_slow_nodes,
            {name: self._terms(pool) for name, pool in self.pools.items()},
        )

    def _terms(self, pool: PoolSettings) -> PoolTerms:
        own = (pool.forward_seconds, pool.forward_policy, pool.forward_share)
        forward = ForwardTime(
            pool.forward_seconds or self.forward_seconds,
            pool.forward_policy or self.forward_policy,
            pool.forward_share or self.forward_share,
        )
        return PoolTerms(
            forward if any(value is not None for value in own) else None,
            pool.objective_metric,
            pool.max_nodes,
            pool.max_nodes_per_owner,
            pool.max_parallel,
        )

    @property
    def machine_options(self) -> MachineOptions:
        """The settings that decide when plans are made, and of what."""
        return MachineOptions(
            self.planner_options,
            self.coalesce_seconds,
            self.replan_seconds,
            self.fleet_replan_seconds,
            self.fleet_measuring_seconds,
        )
