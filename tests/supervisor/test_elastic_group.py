"""A world that breaks while it connects, with workers that do nothing but end."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Mapping

import pytest

from malletrain.supervisor.elastic_group import ElasticGroup
from malletrain.supervisor.membership import Formation, Slot
from malletrain.supervisor.worker_exit import ExitMeaning, WorkerExit

N1, N2, N3 = (Slot(host, 0) for host in ("n1", "n2", "n3"))


class Worker:
    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.pid = 0
        self.here = False
        self.killed = self.hung = False

    def is_stopped(self) -> bool:
        return False

    def go(self, environment: Mapping[str, str]) -> None:
        del environment

    def kill(self) -> None:
        self.killed = True


class WorkerPool:
    def __init__(self) -> None:
        self.workers = {slot: Worker(slot) for slot in (N1, N2, N3)}
        self.asked_for: list[Slot] = []
        self.failures: list[Slot] = []

    def __iter__(self) -> Iterator[Worker]:
        return iter(self.workers.values())

    def get(self, slot: Slot) -> Worker | None:
        return self.workers.get(slot)

    def warm(self) -> list[Slot]:
        return list(self.workers)

    def start_missing(self, slots: Iterable[Slot], now: float) -> None:
        del now
        self.asked_for = list(slots)

    def note_failure(self, slot: Slot, now: float) -> int:
        del now
        self.failures.append(slot)
        return 1

    def kill(self, workers: Iterable[Worker]) -> None:
        for worker in workers:
            worker.kill()

    def cut_remote(self, workers: Iterable[Worker]) -> None:
        del workers


class Backend:
    def __init__(self) -> None:
        self.notices = 0

    def form(self, formation: Formation) -> dict[Slot, dict[str, str]]:
        return {slot: {} for slot in formation.newcomers}

    def recall(self) -> frozenset[Slot]:
        return frozenset()

    def refuse(self, slot: Slot) -> None:
        del slot

    def notify(self, coordinator: Slot, stamp: float) -> None:
        del coordinator, stamp
        self.notices += 1


@pytest.fixture
def pool() -> WorkerPool:
    return WorkerPool()


@pytest.fixture
def backend() -> Backend:
    return Backend()


@pytest.fixture
def connecting(pool: WorkerPool, backend: Backend) -> ElasticGroup:
    """n1 and n2 connect to a newcomer, n3, since second 10."""
    world = ElasticGroup(pool, backend)
    world.command(1, {"n1": 1, "n2": 1}, 0.0)
    world.see_warm()
    assert world.form_if_ready(0.0)
    for slot in (N1, N2):
        world.registered(slot)
    world.command(2, {"n1": 1, "n2": 1, "n3": 1}, 1.0)
    for slot in (N1, N2):
        world.came_back(slot)
    world.see_warm()
    assert world.form_if_ready(10.0)
    assert world.membership.joining == {N3}
    return world


def end(world: ElasticGroup, pool: WorkerPool, slot: Slot, code: int, now: float) -> None:
    del pool.workers[slot]
    ended = WorkerExit(slot, 0, code, started=True, going=True, killed=False, hung=False)
    world.lose(ended, ExitMeaning.EARLY if code == 0 else ExitMeaning.FAILED, code == 0, now)


def test_who_waits_for_one_that_has_given_up_is_not_waited_for(connecting: ElasticGroup, pool: WorkerPool) -> None:
    end(connecting, pool, N3, -signal.SIGKILL, 10.1)
    end(connecting, pool, N1, -signal.SIGABRT, 10.2)
    connecting.kill_hung(11.0)
    assert not pool.workers[N2].killed
    connecting.kill_hung(12.3)
    assert pool.workers[N2].hung


def test_who_has_come_back_lives(connecting: ElasticGroup, pool: WorkerPool) -> None:
    end(connecting, pool, N3, -signal.SIGKILL, 10.1)
    end(connecting, pool, N1, -signal.SIGABRT, 10.2)
    connecting.came_back(N2)
    connecting.kill_hung(12.3)
    assert not pool.workers[N2].killed
    assert connecting.form_if_ready(12.4)
    connecting.kill_hung(20.0)
    assert not pool.workers[N2].killed


def test_a_loss_alone_breaks_nothing(connecting: ElasticGroup, pool: WorkerPool) -> None:
    end(connecting, pool, N3, -signal.SIGKILL, 10.1)
    connecting.kill_hung(20.0)
    assert not pool.workers[N1].killed


def test_who_does_not_notice_a_loss_is_not_waited_for_as_long_as_gloo_does(
    connecting: ElasticGroup, pool: WorkerPool
) -> None:
    connecting.registered(N3)
    connecting.kill_hung(11.0)
    end(connecting, pool, N3, -signal.SIGKILL, 11.0)
    connecting.kill_hung(20.0)
    connecting.came_back(N2)
    connecting.kill_hung(20.1)
    connecting.kill_hung(23.0)
    assert not pool.workers[N1].killed
    connecting.kill_hung(23.2)
    assert pool.workers[N1].hung
    assert not pool.workers[N2].killed


def test_who_saves_while_the_world_closes_has_time(connecting: ElasticGroup, pool: WorkerPool) -> None:
    connecting.registered(N3)
    connecting.close()
    end(connecting, pool, N3, 0, 11.0)
    connecting.came_back(N2)
    connecting.kill_hung(20.0)
    connecting.kill_hung(30.0)
    assert not pool.workers[N1].killed


def test_who_comes_back_late_for_a_change_that_is_no_loss_has_time(connecting: ElasticGroup, pool: WorkerPool) -> None:
    connecting.registered(N3)
    connecting.came_back(N2)
    connecting.kill_hung(20.0)
    connecting.kill_hung(30.0)
    assert not pool.workers[N1].killed


def test_an_abort_in_a_world_that_is_complete_breaks_nothing(connecting: ElasticGroup, pool: WorkerPool) -> None:
    connecting.registered(N3)
    end(connecting, pool, N3, -signal.SIGKILL, 11.0)
    end(connecting, pool, N1, -signal.SIGABRT, 11.1)
    connecting.kill_hung(20.0)
    assert not pool.workers[N2].killed


def test_while_a_training_winds_down_nobody_is_started_or_called_back(
    connecting: ElasticGroup, pool: WorkerPool, backend: Backend
) -> None:
    connecting.registered(N3)
    pool.asked_for = []
    end(connecting, pool, N3, 0, 11.0)
    connecting.advance(12.0)
    connecting.start_missing(12.0)
    assert (backend.notices, pool.asked_for) == (0, [])
    connecting.command(3, {"n1": 1, "n2": 1}, 13.0)
    connecting.advance(14.0)
    assert (backend.notices, pool.asked_for) == (0, [])


def test_a_worker_that_ends_early_is_a_loss_once_the_others_want_to_train_on(
    connecting: ElasticGroup, pool: WorkerPool
) -> None:
    connecting.registered(N3)
    end(connecting, pool, N3, 0, 11.0)
    for slot in (N1, N2):
        connecting.came_back(slot)
    assert connecting.form_if_ready(12.0)
    assert dict(connecting.membership.world) == {"n1": 1, "n2": 1}
    assert pool.failures == [N3], "it is not started again at once"
