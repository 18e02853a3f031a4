"""An independent replay, written from the definitions: slow, simple, with exact fractions.

It steps from one instant to the next: a node event, an arrival, a completion or the end of a stall. Nothing changes in
between. Decisions are found by exhaustive search.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product

from malletrain.allocator.problem.allocation_problem import CostModel, ObjectiveMetric
from malletrain.scavenger.machine.stays import LearnedStay
from malletrain.simulator.replay.options import Accounting, ReplayOptions, ReplayPolicy
from tests.simulator.replay.builders import Case
from tests.simulator.replay.naive_job import ZERO, NaiveJob


class Naive:
    """One replay; `rows` and `jobs` are its outcome."""

    def __init__(self, case: Case) -> None:
        """Run the case."""
        self.options: ReplayOptions = case.options
        self.free = case.options.free
        self.now = ZERO
        self.waiting = list(case.jobs)
        self.all_nodes = list(case.trace.nodes)
        self.since: dict[str, float] = {}
        self.active: list[NaiveJob] = []
        self.jobs: list[NaiveJob] = []
        self.rows: list[dict[str, Fraction | int]] = []
        self.stays = LearnedStay(horizon_seconds=1800.0, refit_share=0.1, refit_seconds=float("inf"))
        changes = sorted({Fraction(second) for second in self._edges(case)})
        for instant in changes:
            self._pass_until(instant)
            self._node_event(instant, case)
        self._pass_until(Fraction(self.options.duration_s))
        for job in self.active:
            job.done = min(job.done, Fraction(job.job.samples))
        self.jobs += self.active

    def _edges(self, case: Case) -> Iterator[float]:
        for fragment in case.trace.fragments:
            if fragment.idle_until_s > 0:
                begin = max(0.0, fragment.idle_from_s)
                yield from (edge for edge in (begin, fragment.idle_until_s) if edge < self.options.duration_s)

    def _pass_until(self, goal: Fraction) -> None:
        """Step to a node event or the end, with all that happens before it."""
        while True:
            eager = self.options.accounting is Accounting.EVENT
            if eager and self.now < goal and (self._over() or self._next_comes()):
                ended = self._end()
                self._decide(ended, self._admit(), None)
                continue
            if self.now == goal:
                return
            instant = min([goal, *(time for time in self._instants(eager) if time > self.now)])
            for job in self.active:
                job.live(self.now, instant)
            self.now = instant

    def _instants(self, eager: bool) -> Iterator[Fraction]:
        for job in self.active:
            yield from (job.cut_s, job.hit_s)
            if eager and job.rate:
                yield max(self.now, job.cut_s) + (Fraction(job.job.samples) - job.done) / job.rate
        if eager and self.waiting:
            yield Fraction(self.waiting[0].submit_s)

    def _over(self) -> list[NaiveJob]:
        return [job for job in self.active if job.done >= job.job.samples]

    def _next_comes(self) -> bool:
        place = len(self.active) < self.options.max_parallel
        return place and bool(self.waiting) and self.waiting[0].submit_s <= self.now

    def _end(self) -> int:
        over = self._over()
        for job in over:
            job.done, job.ended_s, job.nodes = Fraction(job.job.samples), self.now, []
            self.active.remove(job)
        self.jobs += over
        return len(over)

    def _admit(self) -> int:
        admitted = 0
        while self._next_comes():
            job = self.waiting.pop(0)
            largest = min(job.max_nodes, len(job.curve), len(self.all_nodes))
            self.active.append(NaiveJob(job, self.now, largest))
            admitted += 1
        return admitted

    def _total(self) -> Fraction:
        return sum((min(job.done, Fraction(job.job.samples)) for job in {*self.jobs, *self.active}), ZERO)

    def _node_event(self, instant: Fraction, case: Case) -> None:
        before = self._total()
        ended = self._end() if self.options.accounting is Accounting.EVENT else 0
        had: dict[NaiveJob, int] = {}
        cost = ZERO
        ordered = sorted(case.trace.fragments, key=lambda fragment: self.all_nodes.index(fragment.node))
        for fragment in ordered:
            if fragment.idle_until_s == instant and fragment.node in self.since:
                self.stays.learn(fragment.idle_until_s - self.since.pop(fragment.node))
                for job in self.active:
                    if fragment.node in job.nodes:
                        if job not in had:
                            had[job] = len(job.nodes)
                            cost += self._preempt(job)
                        job.nodes.remove(fragment.node)
        for fragment in ordered:
            if fragment.idle_until_s > instant and max(0, fragment.idle_from_s) == instant:
                self.since[fragment.node] = fragment.idle_from_s
        ended += self._end()
        for job in [job for job in had if job.ended_s is not None]:
            del had[job]
        self._decide(ended, self._admit(), had, before, cost)

    def _preempt(self, job: NaiveJob) -> Fraction:
        job.preemptions += 1
        lost = ZERO
        if self.free:
            return lost
        if self.options.charged is CostModel.PAPER:
            lost = Fraction(job.job.scale_down_s) * job.rate
        elif self.options.commit_s and self.now > job.cut_s:
            since_commit = (self.now - job.cut_s) % Fraction(self.options.commit_s)
            lost = min(job.done, job.rate * since_commit)
        job.done -= lost
        job.preemption_samples += lost
        return lost

    def _decide(
        self,
        ended: int,
        admitted: int,
        had: dict[NaiveJob, int] | None,
        before: Fraction | None = None,
        lost: Fraction = ZERO,
    ) -> None:
        before = self._total() if before is None else before
        losers = had or {}
        counts = self._counts(losers)
        self.stays.refit(float(self.now), self.since.values())
        kept = [len(job.nodes) for job in self.active]
        self._hand_out(counts)
        invested = ZERO
        for job, left in zip(self.active, kept, strict=True):
            if job in losers or len(job.nodes) != left:
                invested += self._charge(job, losers.get(job, left), left)
                job.rescales += len(job.nodes) != left
        self.rows.append(
            {
                "time_s": self.now,
                "node_event": had is not None,
                "admitted": admitted,
                "ended": ended,
                "preempted": len(losers),
                "rescaled": sum(len(job.nodes) != left for job, left in zip(self.active, kept, strict=True)),
                "pool": len(self.since),
                "used": sum(len(job.nodes) for job in self.active),
                "active": len(self.active),
                "rate": sum((job.rate for job in self.active), ZERO),
                "preemption_samples": lost,
                "invested_samples": invested,
                "samples_before": before,
                "samples": self._total(),
            }
        )

    def _charge(self, job: NaiveJob, before: int, left: int) -> Fraction:
        """Charge a job that had `before` nodes, lost some of them, and has been rescaled."""
        count, old = len(job.nodes), job.speed(left)
        job.rate = job.speed(count)
        if job.started_s is None and count:
            job.started_s = self.now
        if self.free:
            return ZERO
        down = Fraction(job.job.scale_down_s)
        wanted = Fraction(job.job.scale_up_s) if count > left else down if count < left else ZERO
        if self.options.charged is CostModel.PAPER:
            job.done -= wanted * old
            job.rescale_samples += wanted * old
            return wanted * old
        if count == 0:
            job.cut_s = job.hit_s = self.now
            return ZERO
        forced = down if left < before else ZERO
        job.hit_s = self.now + forced
        job.cut_s = max(job.cut_s, self.now + max(wanted, forced))
        return job.rate * max(ZERO, wanted - forced)

    def _hand_out(self, counts: Sequence[int]) -> None:
        """Shrinking jobs give up the nodes that leave first; growing jobs take those that stay longest."""

        def order(node: str) -> tuple[float, int]:
            stay = self.stays.expected_stay(float(self.now) - self.since[node])
            return -stay, self.all_nodes.index(node)

        for job, count in zip(self.active, counts, strict=True):
            if count < len(job.nodes):
                job.nodes = sorted(job.nodes, key=order)[:count]
        for job, count in zip(self.active, counts, strict=True):
            taken = {node for other in self.active for node in other.nodes}
            unused = sorted((node for node in self.since if node not in taken), key=order)
            job.nodes = job.nodes + unused[: count - len(job.nodes)]

    def _counts(self, losers: dict[NaiveJob, int]) -> list[int]:
        pool = len(self.since)
        if self.options.policy is ReplayPolicy.MILP:
            return self._best(pool)
        if self.options.policy is ReplayPolicy.EQUAL:
            return self._equal(pool)
        return self._exact_size(pool, losers)

    def _equal(self, pool: int) -> list[int]:
        counts, jobs = [], self.active
        for job in jobs:
            share = pool // len(jobs)
            enough = share > job.job.min_nodes or (share == job.job.min_nodes and not self.options.paper_quirks)
            counts.append(min(share, job.largest) if enough and job.largest >= job.job.min_nodes else 0)
        for index, job in enumerate(jobs):
            more = counts[index] + pool - sum(counts)
            sizes = [size for size in job.sizes(pool) if counts[index] <= size <= more]
            counts[index] = max([counts[index], *sizes])
        return counts

    def _exact_size(self, pool: int, losers: dict[NaiveJob, int]) -> list[int]:
        sizes = []
        for job in self.active:
            wished = max(self.options.fixed_nodes or job.largest, job.job.min_nodes)
            sizes.append(min(wished, job.largest) if job.largest >= job.job.min_nodes else 0)
        counts = [len(job.nodes) if job not in losers else 0 for job in self.active]
        for index, job in enumerate(self.active):
            if job not in losers and counts[index] == 0 and sizes[index] <= pool - sum(counts):
                counts[index] = sizes[index]
        return counts

    def _best(self, pool: int) -> list[int]:
        """The counts with the largest objective (Eq. 16), ties by changed jobs, nodes, and larger earlier jobs."""
        most = (pool + 1) // 2 if self.options.paper_quirks else pool
        menus = [
            [size for size in job.sizes(pool) if size == 0 or abs(size - len(job.nodes)) <= most] for job in self.active
        ]
        worth = [{size: self._worth(job, size) for size in menu} for job, menu in zip(self.active, menus, strict=True)]

        def order(counts: tuple[int, ...]) -> tuple[Fraction, int, int, list[int]]:
            value = sum((worth[index][count] for index, count in enumerate(counts)), ZERO)
            changed = sum(count != len(job.nodes) for job, count in zip(self.active, counts, strict=True))
            return -value, changed, sum(counts), [-count for count in counts]

        possible: list[tuple[int, ...]] = [counts for counts in product(*menus) if sum(counts) <= pool]
        best = min(possible, key=order)
        return list(best)

    def _worth(self, job: NaiveJob, size: int) -> Fraction:
        held = len(job.nodes)
        stall = ZERO
        if not self.free and size != held:
            stall = Fraction(job.job.scale_up_s if size > held else job.job.scale_down_s)
        if size > held and not (held and held in job.sizes(held)) and self.options.cost_model is CostModel.STALL:
            stall = min(stall, Fraction(99, 100) * Fraction(self.options.forward_s))  # a start on nodes left idle
        charged = job.curve(held) if self.options.cost_model is CostModel.PAPER else job.curve(size)
        value = Fraction(self.options.forward_s) * job.curve(size) - stall * charged
        if self.options.metric is not ObjectiveMetric.SCALING_EFFICIENCY:
            return value
        # No more than a speedup of four for each node is believed.
        per_node = max(Fraction(point.rate) / point.nodes for point in job.job.curve if point.nodes > 0)
        return value / max(job.curve(1), per_node / 4)
