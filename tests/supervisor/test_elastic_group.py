"""A group that breaks while it connects, with workers that do nothing but end."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Mapping

import pytest

from malletrain.supervisor.elastic_group import ElasticGroup
from malletrain.supervisor.exit_verdict import ExitFacts
from malletrain.supervisor.membership import Formation, Slot
from malletrain.supervisor.worker_exit import WorkerExit

N1, N2, N3 = (Slot(host, 0) for host in ("n1", "n2", "n3"))
NOBODY_ASKED = ExitFacts(over=False, asked=False, leaving=frozenset(), completed=False)


class Worker:
    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.pid = 0
        self.here = self.going = False
        self.killed = self.hung = False

    def is_stopped(self) -> bool:
        return False

    def go(self, environment: Mapping[str, str]) -> None:
        del environment
        self.going = True

    def terminate(self) -> None:
        """It saves."""

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
        return [worker.slot for worker in self if not worker.going]

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
        return {slot: {} for slot in formation.added}

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
    """n1 and n2 connect to a new worker, n3, since second 10."""
    group = ElasticGroup(pool, backend)
    group.command(1, {"n1": 1, "n2": 1}, 0.0)
    group.see_started()
    group.advance(0.0, frozenset())
    for slot in (N1, N2):
        group.registered(slot)
    group.command(2, {"n1": 1, "n2": 1, "n3": 1}, 1.0)
    for slot in (N1, N2):
        group.came_back(slot)
    group.see_started()
    group.advance(10.0, frozenset())
    assert group.membership.joining == {N3}
    return group


def end(group: ElasticGroup, pool: WorkerPool, slot: Slot, code: int, now: float) -> None:
    del pool.workers[slot]
    ended = WorkerExit(slot, 0, code, started=True, going=True, killed=False, hung=False)
    group.see_end(ended, NOBODY_ASKED, now)


def test_who_waits_for_one_that_has_given_up_is_not_waited_for(connecting: ElasticGroup, pool: WorkerPool) -> None:
    end(connecting, pool, N3, -signal.SIGKILL, 10.1)
    end(connecting, pool, N1, -signal.SIGABRT, 10.2)
    connecting.advance(11.0, frozenset())
    assert not pool.workers[N2].killed
    connecting.advance(12.3, frozenset())
    assert pool.workers[N2].hung


def test_who_has_come_back_lives(connecting: ElasticGroup, pool: WorkerPool) -> None:
    end(connecting, pool, N3, -signal.SIGKILL, 10.1)
    end(connecting, pool, N1, -signal.SIGABRT, 10.2)
    connecting.came_back(N2)
    connecting.advance(12.3, frozenset())
    assert not pool.workers[N2].killed
    assert connecting.membership.members == (N2,)
    connecting.advance(20.0, frozenset())
    assert not pool.workers[N2].killed


def test_a_loss_alone_breaks_nothing(connecting: ElasticGroup, pool: WorkerPool) -> None:
    end(connecting, pool, N3, -signal.SIGKILL, 10.1)
    connecting.advance(20.0, frozenset())
    assert not pool.workers[N1].killed


def test_who_does_not_notice_a_loss_is_not_waited_for_as_long_as_gloo_does(
    connecting: ElasticGroup, pool: WorkerPool
) -> None:
    connecting.registered(N3)
    connecting.advance(11.0, frozenset())
    end(connecting, pool, N3, -signal.SIGKILL, 11.0)
    connecting.advance(20.0, frozenset())
    connecting.came_back(N2)
    connecting.advance(20.1, frozenset())
    connecting.advance(23.0, frozenset())
    assert not pool.workers[N1].killed
    connecting.advance(23.2, frozenset())
    assert pool.workers[N1].hung
    assert not pool.workers[N2].killed


def test_who_saves_while_the_group_closes_has_time(connecting: ElasticGroup, pool: WorkerPool) -> None:
    connecting.registered(N3)
    connecting.release(frozenset({"n1", "n2", "n3"}), 30.0, 10.5)
    assert connecting.membership.closing
    end(connecting, pool, N3, 0, 11.0)
    connecting.came_back(N2)
    connecting.advance(20.0, frozenset())
    connecting.advance(30.0, frozenset())
    assert not pool.workers[N1].killed


def test_who_comes_back_late_for_a_change_that_is_no_loss_has_time(connecting: ElasticGroup, pool: WorkerPool) -> None:
    connecting.registered(N3)
    connecting.came_back(N2)
    connecting.advance(20.0, frozenset())
    connecting.advance(30.0, frozenset())
    assert not pool.workers[N1].killed


def test_an_abort_in_a_group_that_is_complete_breaks_nothing(connecting: ElasticGroup, pool: WorkerPool) -> None:
    connecting.registered(N3)
    end(connecting, pool, N3, -signal.SIGKILL, 11.0)
    end(connecting, pool, N1, -signal.SIGABRT, 11.1)
    connecting.advance(20.0, frozenset())
    assert not pool.workers[N2].killed


def test_while_a_training_winds_down_nobody_is_started_or_called_back(
    connecting: ElasticGroup, pool: WorkerPool, backend: Backend
) -> None:
    connecting.registered(N3)
    pool.asked_for = []
    end(connecting, pool, N3, 0, 11.0)
    connecting.advance(12.0, frozenset())
    assert (backend.notices, pool.asked_for) == (0, [])
    connecting.command(3, {"n1": 1, "n2": 1}, 13.0)
    connecting.advance(14.0, frozenset())
    assert (backend.notices, pool.asked_for) == (0, [])


def test_a_worker_that_ends_early_is_a_loss_once_the_others_want_to_train_on(
    connecting: ElasticGroup, pool: WorkerPool
) -> None:
    connecting.registered(N3)
    end(connecting, pool, N3, 0, 11.0)
    for slot in (N1, N2):
        connecting.came_back(slot)
    connecting.advance(12.0, frozenset())
    assert dict(connecting.membership.hosts) == {"n1": 1, "n2": 1}
    assert pool.failures == [N3], "it is not started again at once"
