"""The fast engine of a replay: the allocator's decisions on a trace's events, with a simulated clock.

Every event leads to one decision, which takes effect at once. `malletrain.simulator.services` is the other engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from math import inf
from typing import Protocol

from malletrain.allocator.machine.change_gaps import ChangeGaps
from malletrain.allocator.problem.forward_time import NOTHING_OBSERVED, ForwardPolicy, start_seconds
from malletrain.allocator.solvers.choice_table import NO_LIMIT, ChoiceTable, ObjectiveParameters
from malletrain.allocator.solvers.owner_knapsack import OwnerGroup, owner_groups
from malletrain.allocator.solvers.placement import rearrange
from malletrain.job_manager.machine.admission import (
    AdmissionCandidate,
    AdmissionQueue,
    Places,
    admission_pass,
    first_in_line,
)
from malletrain.job_manager.machine.fair_share import OwnerUse, settle_ledger, weigh_owners
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.machine.stays import LearnedStay
from malletrain.simulator.replay.arrivals import Arrivals, QueueEmpty
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.node_events import NodeEvent
from malletrain.simulator.replay.options import STAY_HORIZON_S, Accounting, ReplayOptions, ReplayPolicy
from malletrain.simulator.replay.records import (
    Decision,
    Decisions,
    JobRecord,
    ReplayResult,
    job_record,
    outcome_so_far,
)
from malletrain.simulator.replay.running_job import RunningJob, admit, charges_of, choices_at

Decide = Callable[[Sequence[RunningJob], int], Sequence[int]]
"""From the admitted jobs in their order, and the number of idle nodes, to the new number of nodes of each job."""


class Advisor(Protocol):
    """Decides in place of a policy. It may use other curves than the true ones, and may decide without an event."""

    def next_look_s(self) -> float:
        """When it will decide even if there is no event, in seconds; infinity: never."""

    def counts(self, now_s: float, jobs: Sequence[RunningJob], pool: int) -> Sequence[int]:
        """As `Decide`, at `now_s` in seconds."""


def decider(
    options: ReplayOptions, stays: Callable[[], Iterable[float]] = tuple, clock: Callable[[], float] = float
) -> Decide:
    """The policy of a replay.

    Args:
        options: Options of the replay.
        stays: Returns the expected stays of the idle nodes in seconds.
        clock: Returns the simulated second.
    """
    if options.policy is ReplayPolicy.EQUAL:
        return lambda jobs, pool: equal_counts(
            [(run.job.min_nodes, run.most) for run in jobs], pool, options.paper_quirks
        )
    if options.policy is ReplayPolicy.FIXED:
        return lambda jobs, pool: fixed_counts([(run.count, run.broken, run.fixed) for run in jobs], pool)
    return _Allocator(options, stays, clock)


class _Allocator:
    """The production allocator. The choice table is rebuilt when other jobs are admitted, or a job has a deadline."""

    def __init__(
        self, options: ReplayOptions, stays: Callable[[], Iterable[float]], clock: Callable[[], float]
    ) -> None:
        self._options = options
        self._stays = stays
        self._clock = clock
        self._changes = ChangeGaps()
        self._jobs: Sequence[RunningJob] = ()
        self._table = ChoiceTable.of(())

    def __call__(self, jobs: Sequence[RunningJob], pool: int) -> Sequence[int]:
        options = self._options
        if jobs != self._jobs or any(run.job.value.deadline for run in jobs):
            self._jobs = list(jobs)
            self._table = ChoiceTable.of([choices_at(run, options, self._clock()) for run in jobs])
        # The published code's big-M is |N| + 1, which lets a job change by half of that in one solve.
        most = (pool + 1) // 2 if options.paper_quirks else NO_LIMIT
        parameters = ObjectiveParameters(self._forward_s(jobs), options.cost_model, most)
        choice = self._table.choose([run.count for run in jobs], pool, parameters, self._groups(jobs), _weights(jobs))
        counts: list[int] = choice.counts.tolist()
        if options.forward_policy is ForwardPolicy.EXPECTED:
            self._note_scales(jobs, counts)
        return counts

    def _forward_s(self, jobs: Sequence[RunningJob]) -> float:
        policy = self._options.forward_policy
        if policy is ForwardPolicy.CONSTANT:
            return self._options.forward_s
        stays = self._stays() if policy is ForwardPolicy.SURVIVAL else ()
        observed = NOTHING_OBSERVED
        if policy is ForwardPolicy.EXPECTED:
            self._changes.keep_only({run.job.id for run in jobs}, self._clock())
            self._note_scales(jobs, [run.count for run in jobs])
            observed = self._changes.observed(self._clock())
        return self._options.forward.of(stays, observed, [start_seconds(run.job.scale_up_s) for run in jobs])

    def _note_scales(self, jobs: Sequence[RunningJob], counts: Sequence[int]) -> None:
        for run, count in zip(jobs, counts, strict=True):
            self._changes.note_scale(run.job.id, count, self._clock())

    def _groups(self, jobs: Sequence[RunningJob]) -> Sequence[OwnerGroup]:
        limit = self._options.max_nodes_per_owner
        if not limit:
            return ()
        owners = [run.job.owner for run in jobs]
        return owner_groups(owners, dict.fromkeys(owners, limit))


def _weights(jobs: Sequence[RunningJob]) -> Sequence[float]:
    weights = [run.share_weight for run in jobs]
    return weights if any(weight != 1.0 for weight in weights) else ()


def equal_counts(bounds: Sequence[tuple[int, int]], pool: int, paper_quirks: bool = False) -> list[int]:
    """BFTrainer's baseline (section 5.1): equal shares; nodes that remain go to the jobs in their order.

    Args:
        bounds: Smallest and largest scale of each job in nodes, in the order of submission.
        pool: Number of nodes.
        paper_quirks: As in the published code, a job gets nothing if the share equals its smallest scale.
    """
    if not bounds:
        return []
    share = pool // len(bounds)
    counts = [
        min(share, most) if share > least or (share == least and not paper_quirks) else 0 for least, most in bounds
    ]
    rest = pool - sum(counts)
    for index, (least, most) in enumerate(bounds):
        more = min(most - counts[index], rest)
        if counts[index] + more >= least:
            counts[index] += more
            rest -= more
    return counts


def fixed_counts(jobs: Sequence[tuple[int, bool, int]], pool: int) -> list[int]:
    """Summit's killable queue (BFTrainer, section 2.2): a job runs at its fixed scale, and ends when it loses a node.

    Args:
        jobs: For each job in the order of submission: the number of nodes that it holds, whether it has just lost one,
            and its fixed scale.
        pool: Number of nodes.
    """
    counts = [count if count == size and not broken else 0 for count, broken, size in jobs]
    rest = pool - sum(counts)
    for index, (_, broken, size) in enumerate(jobs):
        if counts[index] == 0 and not broken and size <= rest:
            counts[index] = size
            rest -= size
    return counts


class OwnerAccounts:
    """The ledger of a replay by the fast engine; `malletrain.job_manager.machine.sharing` keeps the production one."""

    def __init__(self, half_life_s: float) -> None:
        """
        Args:
            half_life_s: Half-life of the uses in seconds; 0: no fair share.
        """
        self._half_life_s = half_life_s
        self._ledger: dict[str, OwnerUse] = {}

    def uses(self, now_s: float) -> dict[str, float] | None:
        """Decayed use of each owner in node-seconds; None without fair share."""
        if self._half_life_s <= 0:
            return None
        return {owner: use.at(now_s, self._half_life_s) for owner, use in self._ledger.items()}

    def settle(self, now_s: float, jobs: Sequence[RunningJob], *, weigh: bool) -> None:
        """Charge the owners up to now.

        Args:
            now_s: The time in seconds.
            jobs: All admitted jobs.
            weigh: Whether the jobs get the weights of the moment.
        """
        if self._half_life_s <= 0:
            return
        held: Counter[str] = Counter()
        for run in jobs:
            held[run.job.owner] += run.count
        self._ledger = settle_ledger(self._ledger, held, now_s, self._half_life_s)
        if weigh:
            self._ledger = weigh_owners(self._ledger, frozenset(held), now_s, self._half_life_s)
            for run in jobs:
                run.share_weight = self._ledger[run.job.owner].weight


_REFIT_SHARE = 0.1
Progress = Callable[[float], None]
"""Called with the simulated second from time to time."""


def run_replay(
    events: Sequence[NodeEvent],
    nodes: Sequence[str],
    jobs: Sequence[ReplayJob],
    options: ReplayOptions,
    progress: Progress = lambda _: None,
    advisor: Advisor | None = None,
) -> ReplayResult:
    """Replay elastic jobs on the idle nodes of a trace.

    Args:
        events: Changes of the idle set in the order of time.
        nodes: All nodes, in the trace's order.
        jobs: Jobs in the order of submission.
        options: Options of the replay.
        progress: Called with the simulated second after every decision.
        advisor: Decides in place of the policy; None: the policy decides.

    Returns:
        Every decision and every job that was admitted. The same arguments give the same result.

    Raises:
        InvalidInputError: a job needs certain nodes, and this is not the zero-cost bound, for which any node suits.
    """
    if not options.free and any(job.needs for job in jobs):
        raise InvalidInputError("--engine", "services: only it knows what jobs need of their nodes", "fast")
    return _Replay(events, nodes, jobs, options, advisor).run(progress)


class _Replay:
    def __init__(
        self,
        events: Sequence[NodeEvent],
        nodes: Sequence[str],
        jobs: Sequence[ReplayJob],
        options: ReplayOptions,
        advisor: Advisor | None,
    ) -> None:
        self._events = events
        self._arrivals = Arrivals(jobs, options)
        self._options = options
        self._eager = options.accounting is Accounting.EVENT
        self._order = {node: index for index, node in enumerate(nodes)}
        self._decide = decider(options, self._expected_stays, lambda: self._now)
        self._advisor = advisor
        self._charges = charges_of(options)
        self._stays = LearnedStay(horizon_seconds=STAY_HORIZON_S, refit_share=_REFIT_SHARE, refit_seconds=inf)
        self._now = 0.0
        self._idle_since: dict[str, float] = {}
        self._holder: dict[str, RunningJob] = {}
        self._free: set[str] = set()
        self._active: list[RunningJob] = []
        self._ended: list[JobRecord] = []
        self._ended_samples = 0.0
        self._queue_empty: QueueEmpty | None = None
        # What owners have used, where it matters whose job is whose; jobs that wait, where more than order matters.
        self._accounts = (
            OwnerAccounts(options.fair_share_half_life_s) if options.shares([job.owner for job in jobs]) else None
        )
        self._waiting: list[ReplayJob] = []
        self._asks_for_burst_buffer = not options.free and any(job.burst_buffer_gb for job in jobs)
        self._passed_over: Counter[str] = Counter()
        self._decisions = Decisions()

    def run(self, progress: Progress) -> ReplayResult:
        position = 0
        while True:
            now = self._events[position].time_s if position < len(self._events) else inf
            event = self._events[position] if position < len(self._events) else None
            if self._eager:
                now = min(now, self._next_arrival(), min((run.finish_s for run in self._active), default=inf))
                if self._advisor is not None:
                    now = min(now, max(self._now, self._advisor.next_look_s()))
            if now >= self._options.duration_s:
                break
            if event is not None and event.time_s > now:
                event = None
            position += event is not None
            self._step(now, event)
            progress(now)
        return self._finish()

    def _next_arrival(self) -> float:
        if len(self._active) >= self._options.max_parallel or self._arrivals.room(len(self._waiting)) == 0:
            return inf
        return max(self._now, self._arrivals.next_submit_s)

    def _step(self, now: float, event: NodeEvent | None) -> None:
        self._now = now
        before = self._samples()
        ended = self._complete() if self._eager else 0
        counts_before: dict[RunningJob, int] = {}
        preempted = self._apply_event(event, counts_before) if event is not None else 0.0
        if not self._eager:
            ended = self._complete()
            counts_before = {run: count for run, count in counts_before.items() if run.ended_s is None}
        admitted = self._admit()
        if self._queue_empty is None and self._arrivals.is_empty(len(self._waiting), len(self._active)):
            self._queue_empty = QueueEmpty(now, outcome_so_far(self._ended, self._active, now))
        preempted_jobs = len(counts_before)
        if self._accounts is not None:
            self._accounts.settle(now, self._active, weigh=True)
        rescaled, invested = self._rescale(counts_before)
        if self._accounts is not None:
            self._accounts.settle(now, self._active, weigh=False)
        self._decisions.add(
            Decision(
                time_s=now,
                node_event=event is not None,
                joined=len(event.joined) if event else 0,
                left=len(event.left) if event else 0,
                admitted=admitted,
                ended=ended,
                preempted=preempted_jobs,
                rescaled=rescaled,
                pool=len(self._idle_since),
                used=len(self._holder),
                active=len(self._active),
                running=sum(run.rate > 0 for run in self._active),
                rate=sum(run.rate for run in self._active),
                preemption_samples=preempted,
                invested_samples=invested,
                samples_before=before,
                samples=self._samples(),
            )
        )

    def _samples(self) -> float:
        now = self._now
        return self._ended_samples + sum(run.done_at(now) for run in self._active)

    def _complete(self) -> int:
        done = [run for run in self._active if run.finish_s <= self._now]
        for run in done:
            run.settle(self._now)
            run.done = run.job.samples
            run.ended_s = self._now
            for node in run.nodes:
                del self._holder[node]
            self._free |= run.nodes
            self._ended_samples += run.done
            self._ended.append(job_record(run))
            self._active.remove(run)
        return len(done)

    def _apply_event(self, event: NodeEvent, counts_before: dict[RunningJob, int]) -> float:
        """Apply a node event. Adds to `counts_before` the jobs that lost nodes, with their number of nodes before.

        Returns:
            Samples lost to preemption.
        """
        cost = 0.0
        for node in event.left:
            self._stays.learn(event.time_s - self._idle_since.pop(node))
            run = self._holder.pop(node, None)
            if run is None:
                self._free.discard(node)
                continue
            if run not in counts_before:
                counts_before[run] = run.count
                run.settle(self._now)
                run.preemptions += 1
                run.broken = True
                cost += self._charges.preempt(run, self._now)
                run.predict()
            run.nodes.discard(node)
        for node, since in event.joined:
            self._idle_since[node] = since
            self._free.add(node)
        return cost

    def _admit(self) -> int:
        arrived = self._arrivals.take_submitted(self._now)
        if self._accounts is None and not self._asks_for_burst_buffer:
            admitted = first_in_line(arrived, len(self._active), self._options.max_parallel)
        else:
            admitted = self._admit_from_all(list(islice(arrived, self._arrivals.room(len(self._waiting)))))
        self._active += [admit(job, self._options, len(self._order), self._now) for job in admitted]
        return len(admitted)

    def _admit_from_all(self, arrived: Sequence[ReplayJob]) -> list[ReplayJob]:
        """Where the order depends on all jobs that wait: on their owners, or on the burst buffer that they ask for."""
        self._waiting += arrived
        if len(self._active) >= self._options.max_parallel:
            return []
        waiting = self._waiting
        queue = AdmissionQueue(
            jobs=[AdmissionCandidate(job.owner, job.burst_buffer_gb, self._passed_over[job.id]) for job in waiting],
            taken=Counter(run.job.owner for run in self._active),
            places=Places(self._options.max_parallel, self._options.max_parallel_per_owner),
            uses=None if self._accounts is None else self._accounts.uses(self._now),
            held_gb=sum(run.job.burst_buffer_gb for run in self._active),
        )
        passed = admission_pass(queue, self._options.burst_buffer)
        self._passed_over.update(waiting[position].id for position in passed.passed_over)
        admitted = set(passed.admitted)
        self._waiting = [job for position, job in enumerate(waiting) if position not in admitted]
        return [waiting[position] for position in passed.admitted]

    def _rescale(self, counts_before: dict[RunningJob, int]) -> tuple[int, float]:
        """Decide, move nodes and charge for it.

        Returns:
            Number of jobs whose scale changed, and the cost of these rescales in samples.
        """
        self._stays.refit(self._now, self._idle_since.values())
        pool = self._options.most(len(self._idle_since))
        advised = self._advisor
        counts = self._decide(self._active, pool) if advised is None else advised.counts(self._now, self._active, pool)
        changed = rearrange([run.nodes for run in self._active], counts, self._free, self._rank)
        held = {index: self._active[index].count for index in changed}
        for index, nodes in changed.items():
            self._move(self._active[index], set(nodes))
        self._free = self._idle_since.keys() - self._holder.keys() if changed else self._free
        invested = 0.0
        touched = {self._active[index]: count for index, count in held.items()}
        for run in {**touched, **counts_before}:
            kept = touched.get(run, run.count)
            run.settle(self._now)
            run.rate = run.speeds[run.count]
            invested += self._charges.rescale(run, counts_before.get(run, kept), kept, self._now)
            run.rescales += run.count != kept
            run.broken = False
            if run.started_s is None and run.count:
                run.started_s = self._now
            run.predict()
        return len(changed), invested

    def _move(self, run: RunningJob, nodes: set[str]) -> None:
        run.settle(self._now)
        for node in run.nodes - nodes:
            del self._holder[node]
        for node in nodes - run.nodes:
            self._holder[node] = run
        run.nodes = nodes

    def _expected_stays(self) -> list[float]:
        return [self._stays.expected_stay(self._now - since) for since in self._idle_since.values()]

    def _rank(self, node: str) -> tuple[float, int]:
        """Sort key: nodes that are expected to stay longest first, by the fragments that have ended so far."""
        stay = self._stays.expected_stay(self._now - self._idle_since[node]) if self._options.rank_by_stay else 0.0
        return -stay, self._order[node]

    def _finish(self) -> ReplayResult:
        self._now = self._options.duration_s
        for run in self._active:
            run.settle(self._now)
            run.done = min(run.done, run.job.samples)  # with paper accounting, a job may be past its end
        records = [*self._ended, *(job_record(run) for run in self._active)]
        return ReplayResult(self._decisions.columns(), tuple(records), len(self._events), self._queue_empty)
