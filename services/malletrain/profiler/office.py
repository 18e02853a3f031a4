"""Book and desk together: what the peers say goes in, profiles for the allocator come out. No gRPC."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from malletrain.profiler.book import JobFacts, JobProfile, Measurements, ProfileBook
from malletrain.profiler.desk import Desk, JobView, Order, Scene, advance
from malletrain.profiler.knowledge import BookKnowledge
from malletrain.profiler.runs import Run
from malletrain.profiler.settings import ProfilerSettings

# Of what a hold lasts: renewed when less is left.
_RENEWED_AT = 0.5


@dataclass(frozen=True)
class Brief:
    """All that is told of a job: its profile, what the allocator is asked for and until when, and the newest run."""

    profile: JobProfile
    order: Order | None
    until: float
    run: Run | None
    profiled: str


class Office:
    """Keeps profiles and runs up to date. Times are in seconds since the epoch."""

    def __init__(self, settings: ProfilerSettings, book: ProfileBook, desk: Desk) -> None:
        """Go on from what was stored."""
        self._settings = settings
        self.book = book
        self.desk = desk
        self._orders: Mapping[str, Order] = {}
        self._until = 0.0
        self._faded_at = 0.0

    def put_job(self, facts: JobFacts) -> None:
        """Add a job or what was newly declared of it."""
        self.book.put_job(facts)

    def put_measurements(self, job_id: str, measurements: Measurements) -> None:
        """Note what is measured of a job."""
        self.book.put_measurements(job_id, measurements)

    def ask(self, job_id: str) -> None:
        """Queue a run that somebody asks for."""
        self.desk = self.desk.ask(job_id)

    def look(self, now: float, idle: Mapping[str, int] | None, views: Iterable[JobView]) -> list[str]:
        """Recompute what may have changed.

        Args:
            now: Seconds since the epoch.
            idle: Number of idle nodes by pool; None while it is not known: no run moves then.
            views: Jobs that take part in plans.

        Returns:
            Jobs of which there is something new to tell.
        """
        if now - self._faded_at >= self._settings.fade_seconds:
            self._faded_at = now
            self.book.grow_old()
        changed = {profile.job_id for profile in self.book.refresh(now)}
        if idle is not None:
            changed |= self._advance(Scene(now, sum(idle.values()), tuple(views), idle))
        return sorted(job_id for job_id in changed if self.book.profile(job_id) is not None)

    def brief(self, job_id: str) -> Brief | None:
        """All that is told of a job; None where it is not known."""
        profile = self.book.profile(job_id)
        if profile is None:
            return None
        active = self.desk.active
        order = self._orders.get(job_id)
        return Brief(profile, order, self._until, self.desk.runs.get(job_id), active.job_id if active else "")

    def briefs(self) -> list[Brief]:
        """Of all jobs."""
        found = (self.brief(profile.job_id) for profile in self.book.profiles())
        return [brief for brief in found if brief is not None]

    def _advance(self, scene: Scene) -> set[str]:
        knowledge = BookKnowledge(self.book, self._settings, [job.job_id for job in scene.jobs], scene.now)
        before, orders_before = self.desk, self._orders
        step = advance(self.desk, scene, knowledge, self._settings.pace())
        self.desk, self._orders = step.desk, step.orders
        changed = {
            job_id for job_id in {*orders_before, *step.orders} if orders_before.get(job_id) != step.orders.get(job_id)
        }
        for job_id, run in step.desk.runs.items():
            old = before.runs.get(job_id)
            if old is None or (old.state, old.reason) != (run.state, run.reason):
                changed.add(job_id)
        if step.orders and (changed or self._until - scene.now < _RENEWED_AT * self._settings.hold_seconds):
            self._until = scene.now + self._settings.hold_seconds
            changed |= set(step.orders)
        return changed
