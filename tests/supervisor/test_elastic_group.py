"""A group that breaks while it connects, with workers that do nothing but end."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from malletrain.common.activity import Idleness
from malletrain.supervisor.elastic.group import ElasticGroup
from malletrain.supervisor.elastic.membership import Formation, slots_of
from malletrain.supervisor.workers.failure_watch import LogTails
from malletrain.supervisor.workers.promise import Hosts
from malletrain.supervisor.workers.slot import Slot
from malletrain.supervisor.workers.worker_exit import ExitFacts, WorkerExit

N1, N2, N3 = (Slot(host, 0) for host in ("n1", "n2", "n3"))
NOBODY_ASKED = ExitFacts(over=False, asked=False, leaving=frozenset(), completed=False)


class Worker:
    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.pid = 0
        self.here = self.going = False
        self.killed = self.hung = False
        self.place: Mapping[str, str] | None = None
        self.lineage = ""
        self.of_release_0_1 = False

    def is_stopped(self) -> bool:
        return False

    def go(self, environment: Mapping[str, str]) -> None:
        self.lineage = environment.get("MALLETRAIN_LINEAGE", "")
        self.going = True

    def terminate(self, grace: float) -> None:
        """It saves."""

    def kill(self) -> None:
        self.killed = True


class WorkerPool:
    def __init__(self) -> None:
        self.workers = {slot: Worker(slot) for slot in (N1, N2, N3)}
        self.asked_for: list[Slot] = []
        self.failures: list[Slot] = []
        self.tails = LogTails(Path("no-logs"))

    def __iter__(self) -> Iterator[Worker]:
        return iter(self.workers.values())

    def idleness(self, now: float) -> list[Idleness | None]:
        return [Idleness(now)]

    def get(self, slot: Slot) -> Worker | None:
        return self.workers.get(slot)

    def warm(self) -> list[Slot]:
        return [worker.slot for worker in self if not worker.going]

    def prepared(self) -> list[Slot]:
        return self.warm()

    def prepare(self, places: Mapping[Slot, Mapping[str, str]]) -> list[Slot]:
        for slot, worker in self.workers.items():
            worker.place = places.get(slot, worker.place)
        return []

    def is_preparing(self, slots: Iterable[Slot]) -> bool:
        del slots
        return False

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

    def places(self, hosts: Hosts) -> dict[Slot, dict[str, str]]:
        return {slot: {} for entry in hosts for slot in slots_of(*entry)}

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


class Places(Backend):
    """Each worker gets its rank and the number of workers."""

    def places(self, hosts: Hosts) -> dict[Slot, dict[str, str]]:
        slots = [slot for entry in hosts for slot in slots_of(*entry)]
        return {slot: {"place": f"{rank} of {len(slots)}"} for rank, slot in enumerate(slots)}


class PreparingPool(WorkerPool):
    """The worker on n3 knows its place, and still gets ready for it."""

    def __init__(self) -> None:
        super().__init__()
        self.prepares = True

    def warm(self) -> list[Slot]:
        return [slot for slot in super().warm() if not self.workers[slot].killed]

    def prepared(self) -> list[Slot]:
        return [slot for slot in self.warm() if slot != N3]

    def prepare(self, places: Mapping[Slot, Mapping[str, str]]) -> list[Slot]:
        told = {slot: worker.place for slot, worker in self.workers.items() if not worker.going and slot in places}
        wrong = [slot for slot, place in told.items() if place not in (None, places[slot])]
        for slot in told:
            self.workers[slot].killed = slot in wrong
            self.workers[slot].place = places[slot]
        return wrong

    def is_preparing(self, slots: Iterable[Slot]) -> bool:
        return self.prepares and N3 in slots


def test_those_that_are_ready_wait_for_one_that_gets_ready_and_go_without_one_that_does_not_come() -> None:
    pool = PreparingPool()
    group = ElasticGroup(pool, Places())
    group.command(1, {"n1": 1, "n2": 1, "n3": 1}, 0.0)
    for now in (0.0, 31.0, 200.0):
        group.advance(now, frozenset())
        group.see_started()
        assert not group.membership.members
    pool.prepares = False
    group.advance(201.0, frozenset())
    assert [pool.workers[slot].killed for slot in (N1, N2, N3)] == [True, True, False], "they were told of three"
    assert [pool.workers[slot].place for slot in (N1, N2)] == [{"place": "0 of 2"}, {"place": "1 of 2"}]
    for slot in (N1, N2):
        pool.workers[slot].killed = False  # others have been started
    group.see_started()
    group.advance(203.0, frozenset())
    assert group.membership.members == (N1, N2)


def test_new_workers_are_of_the_lineage_of_those_from_whom_they_get_the_model(
    connecting: ElasticGroup, pool: WorkerPool
) -> None:
    assert [worker.lineage for worker in pool] == ["1", "1", "1"]
    connecting.registered(N3)
    for slot in (N1, N2, N3):
        end(connecting, pool, slot, -signal.SIGKILL, 11.0)
    connecting.advance(11.1, frozenset({"n1", "n2", "n3"}))  # it goes on from the checkpoint
    pool.workers = {slot: Worker(slot) for slot in (N1, N2, N3)}
    connecting.see_started()
    connecting.advance(12.0, frozenset())
    assert [worker.lineage for worker in pool] == ["3", "3", "3"]


def test_all_workers_train_as_one_of_release_0_1_among_them_does(connecting: ElasticGroup, pool: WorkerPool) -> None:
    connecting.registered(N3)
    for slot in (N1, N2, N3):
        end(connecting, pool, slot, -signal.SIGKILL, 11.0)
    connecting.advance(11.1, frozenset({"n1", "n2", "n3"}))
    pool.workers = {slot: Worker(slot) for slot in (N1, N2, N3)}
    pool.workers[N2].of_release_0_1 = True
    connecting.see_started()
    connecting.advance(12.0, frozenset())
    assert [(worker.going, worker.lineage) for worker in pool] == [(True, "")] * 3


@pytest.fixture
def told() -> list[str]:
    """What has been told of a silent group."""
    return []


@pytest.fixture
def silent(pool: WorkerPool, backend: Backend, told: list[str]) -> ElasticGroup:
    """n1 and n2 run a script that is not elastic, since second 0: none of them registers."""
    del pool.workers[N3]
    group = ElasticGroup(pool, backend, tell=told.append)
    group.command(1, {"n1": 1, "n2": 1}, 0.0)
    group.see_started()
    group.advance(0.0, frozenset())
    group.advance(9.0, frozenset())
    assert group.membership.confirmed_sequence == 0
    group.advance(10.0, frozenset())
    return group


def test_who_lives_and_never_registers_trains(silent: ElasticGroup, told: list[str]) -> None:
    for now in (119.0, 120.0, 121.0):
        silent.advance(now, frozenset())
        assert len(told) == (now >= 120.0)
    assert "without hvd.elastic.run" in told[0]
    assert silent.membership.confirmed_sequence == 1
    assert silent.membership.confirmed_hosts == ("n1", "n2")


def test_who_waits_for_a_new_worker_does_not_train(connecting: ElasticGroup) -> None:
    connecting.advance(25.0, frozenset())
    assert connecting.membership.joining == {N3}


def test_a_script_that_is_not_elastic_begins_again_at_the_new_scale(
    silent: ElasticGroup, pool: WorkerPool, backend: Backend
) -> None:
    silent.command(2, {"n1": 1}, 20.0)
    silent.advance(21.0, frozenset())
    soon = silent.membership.closing
    assert not soon, "it may be elastic and still read its data"
    silent.advance(120.0, frozenset())
    assert silent.membership.closing
    assert backend.notices == 0
    end(silent, pool, N1, 0, 121.0)
    silent.advance(121.0, frozenset())
    assert not pool.workers[N2].killed, "it may still save"
    end(silent, pool, N2, -signal.SIGTERM, 122.0)
    pool.workers[N1] = Worker(N1)
    silent.see_started()
    assert silent.advance(122.0, frozenset()), "it has been asked to leave, which is no failure"
    silent.advance(122.1, frozenset())
    assert silent.membership.members == (N1,)


def test_a_script_that_is_not_elastic_saves_when_a_node_of_it_is_taken(silent: ElasticGroup, pool: WorkerPool) -> None:
    silent.release(frozenset({"n2"}), 1.5, 20.0)
    assert silent.membership.closing
    silent.advance(79.0, frozenset())
    assert not pool.workers[N1].killed
    silent.advance(80.0, frozenset())
    assert pool.workers[N1].killed


def test_an_elastic_script_that_registers_late_is_asked_to_come_back(silent: ElasticGroup, backend: Backend) -> None:
    for slot in (N1, N2):
        silent.registered(slot)
    silent.command(2, {"n1": 1}, 130.0)
    silent.advance(131.0, frozenset())
    assert backend.notices == 1
    assert not silent.membership.closing
