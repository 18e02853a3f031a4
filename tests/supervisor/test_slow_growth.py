"""A growth on a slow machine: workers that take long to boot, and long again for what their script imports."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from malletrain.supervisor.elastic.membership import slots_of
from malletrain.supervisor.restarting.group import RestartingGroup
from malletrain.supervisor.workers.failure_watch import LogTails
from malletrain.supervisor.workers.promise import Hosts
from malletrain.supervisor.workers.slot import Slot
from malletrain.supervisor.workers.worker_exit import ExitFacts, WorkerExit
from malletrain.supervisor.workers.worker_pool import WorkerPool

N1, N2, N3 = (Slot(host, 0) for host in ("n1", "n2", "n3"))


class Clock:
    now = 0.0


class SlowWorker:
    """Boots, then prepares itself for its place, each for so many seconds."""

    hung = of_release_0_1 = False
    pid = 0
    started = True

    def __init__(self, slot: Slot, clock: Clock, boots: float, prepares: float) -> None:
        self.slot, self.clock, self.prepares = slot, clock, prepares
        self.booted_at, self.prepared_at = clock.now + boots, float("inf")
        self.place: Mapping[str, str] | None = None
        self.killed = self.going = False

    def is_warm(self) -> bool:
        return self.clock.now >= self.booted_at

    def is_prepared(self) -> bool:
        return self.clock.now >= self.prepared_at

    def is_stopped(self) -> bool:
        return False

    def prepare(self, place: Mapping[str, str]) -> None:
        self.place, self.prepared_at = place, self.clock.now + self.prepares

    def go(self, environment: Mapping[str, str]) -> None:
        del environment
        self.going = True

    def terminate(self, grace: float) -> None:
        del grace
        self.killed = True

    def kill(self) -> None:
        self.killed = True


class SlowPool(WorkerPool):
    """A pool of such workers; what it does with them is its own."""

    def __init__(self, clock: Clock, boots: Mapping[Slot, Iterator[float]], prepares: float) -> None:
        self.tails = LogTails(Path("no-logs"))
        self.clock, self.boots, self.prepares = clock, boots, prepares
        self._workers = {}
        self._anew = set()
        self.kills = 0

    def start_missing(self, slots: Iterable[Slot], now: float) -> None:
        del now
        for slot in slots:
            if slot not in self._workers:
                worker = SlowWorker(slot, self.clock, next(self.boots[slot]), self.prepares)
                self._workers[slot] = worker  # type: ignore[assignment]

    def kill(self, workers: Iterable[object] | None = None) -> None:
        for worker in list(self if workers is None else workers):
            assert isinstance(worker, SlowWorker)
            self.kills += 1
            self._workers.pop(worker.slot, None)

    def lose(self, slot: Slot) -> SlowWorker:
        """Forget a worker that has ended; which it was."""
        worker = self._workers.pop(slot)
        assert isinstance(worker, SlowWorker)
        return worker


class Backend:
    warm = True
    hands_over = False

    def is_ready(self) -> bool:
        return True

    def slots(self, hosts: Hosts) -> tuple[Slot, ...]:
        return tuple(slot for entry in hosts for slot in slots_of(*entry))

    def places(self, epoch: int, hosts: Hosts) -> Mapping[Slot, Mapping[str, str]]:
        return {slot: {"place": f"{epoch}: {slot} of {hosts}"} for slot in self.slots(hosts)}

    def form(self, epoch: int, hosts: Hosts) -> Mapping[Slot, Mapping[str, str]]:
        return self.places(epoch, hosts)

    def has_met(self) -> bool:
        return True


def growth(boots: Mapping[Slot, Iterable[float]], prepares: float) -> tuple[float | None, int]:
    """Seconds until a job of one node is asked to leave for three, ten minutes at most; and workers that were killed.

    Args:
        boots: Seconds that each slot's workers take to boot, one after the other.
        prepares: Seconds that a worker then takes for its place.
    """
    clock = Clock()
    trainers = SlowPool(clock, {}, 0.0)
    following = SlowPool(clock, {slot: iter(each) for slot, each in boots.items()}, prepares)
    group = RestartingGroup(trainers, following, Backend(), Path("/none"), Path("/none"))
    group.command(1, {"n1": 1}, 0.0)
    while not group.progress.fulfilled:
        clock.now += 0.5
        group.advance(clock.now, frozenset())
        group.see_started()
        assert clock.now < 600
    began = clock.now
    following.kills = 0
    group.command(2, {"n1": 1, "n2": 1, "n3": 1}, began)
    while clock.now < began + 600:
        clock.now += 0.5
        group.advance(clock.now, frozenset())
        if group.progress.leaving:
            return clock.now - began, following.kills
    return None, following.kills


@pytest.mark.parametrize(("shortest", "longest"), [(2, 15), (10, 40), (20, 60), (30, 90)])
@pytest.mark.parametrize("prepares", [20.0, 45.0, 100.0])
def test_a_growth_comes_however_the_workers_boot(shortest: int, longest: int, prepares: float) -> None:
    """Those that were told of fewer boot again for the larger group. They must not be given up meanwhile.

    They were, and with them those that were ready: for ever, if booting took longer than what the others do.
    """
    for seed in range(10):
        chosen = random.Random(seed)
        boots = {slot: (float(chosen.randint(shortest, longest)) for _ in range(200)) for slot in (N1, N2, N3)}
        seconds, kills = growth(boots, prepares)
        assert seconds is not None, seed
        assert seconds <= 300, seed
        assert kills <= 2, f"seed {seed}: the two that were told of a group of two"


def test_nobody_prepares_for_a_generation_that_would_be_no_larger() -> None:
    """When patience ends, only a worker on the node that trains has booted: the next ones are waited for."""
    boots = {N1: itertools.repeat(5.0), N2: itertools.repeat(60.0), N3: itertools.repeat(60.0)}
    seconds, kills = growth(boots, prepares=20.0)
    assert seconds == pytest.approx(80.0, abs=1.0)
    assert kills == 0


def test_what_boots_while_the_others_leave_comes_at_the_next_change() -> None:
    """Those that were told of a generation of two begin it, rather than boot again for one of three."""
    clock = Clock()
    trainers = SlowPool(clock, {}, 0.0)
    boots = {N1: itertools.repeat(5.0), N2: itertools.repeat(5.0), N3: itertools.repeat(40.0)}
    following = SlowPool(clock, {slot: iter(each) for slot, each in boots.items()}, prepares=1.0)
    group = RestartingGroup(trainers, following, Backend(), Path("/none"), Path("/none"))
    group.command(1, {"n1": 1}, 0.0)

    def go_on(seconds: float) -> None:
        end = clock.now + seconds
        while clock.now < end:
            clock.now += 0.5
            group.advance(clock.now, frozenset())
            group.see_started()

    go_on(10)
    group.command(2, {"n1": 1, "n2": 1, "n3": 1}, clock.now)
    while not group.progress.leaving:
        go_on(0.5)
        assert clock.now < 60
    assert N3 not in following.warm()
    go_on(20)  # it saves
    assert N3 in following.warm()
    left = trainers.lose(N1)
    assert left.killed
    ended = WorkerExit(N1, 0, 0, started=True, going=True, killed=False, hung=False)
    assert (
        group.see_end(ended, ExitFacts(over=False, asked=True, leaving=frozenset(), completed=False), clock.now) is None
    )
    go_on(5)
    assert dict(group.progress.hosts) == {"n1": 1, "n2": 1}
    assert following.kills == 0
