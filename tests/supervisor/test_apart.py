"""Members of a generation that do not look for each other, with workers that do nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from malletrain.supervisor.elastic.membership import slots_of
from malletrain.supervisor.restarting.group import RestartingGroup
from malletrain.supervisor.workers.failure_watch import LogTails
from malletrain.supervisor.workers.promise import Hosts
from malletrain.supervisor.workers.slot import Slot


class Worker:
    started = True
    killed = hung = of_release_0_1 = False
    pid = 0

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.place: Mapping[str, str] | None = None

    def is_warm(self) -> bool:
        return True

    def is_stopped(self) -> bool:
        return False

    def go(self, environment: Mapping[str, str]) -> None:
        """It trains."""

    def kill(self) -> None:
        """It ends."""


class WorkerPool:
    def __init__(self) -> None:
        self.workers: dict[Slot, Worker] = {}
        self.tails = LogTails(Path("no-logs"))

    def __iter__(self) -> Iterator[Worker]:
        return iter(list(self.workers.values()))

    def get(self, slot: Slot) -> Worker | None:
        return self.workers.get(slot)

    def start_missing(self, slots: Iterable[Slot], now: float) -> None:
        del now
        for slot in slots:
            self.workers.setdefault(slot, Worker(slot))

    def warm(self) -> list[Slot]:
        return list(self.workers)

    def kill_misplaced(self, places: Mapping[Slot, Mapping[str, str]]) -> list[Slot]:
        del places
        return []

    def give_away(self, slot: Slot) -> Worker:
        return self.workers.pop(slot)

    def adopt(self, worker: Worker) -> None:
        self.workers[worker.slot] = worker

    def kill(self, workers: Iterable[Worker] = ()) -> None:
        for worker in list(workers):
            self.workers.pop(worker.slot, None)


class Backend:
    warm = True
    hands_over = False

    def __init__(self, *, met: bool) -> None:
        self.met = met

    def is_ready(self) -> bool:
        return True

    def slots(self, hosts: Hosts) -> tuple[Slot, ...]:
        return tuple(slot for entry in hosts for slot in slots_of(*entry))

    def places(self, epoch: int, hosts: Hosts) -> Mapping[Slot, Mapping[str, str]]:
        del epoch, hosts
        return {}

    def form(self, epoch: int, hosts: Hosts) -> Mapping[Slot, Mapping[str, str]]:
        del epoch
        return {slot: {} for slot in self.slots(hosts)}

    def has_met(self) -> bool:
        return self.met


def group_of(hosts: Mapping[str, int], tell: Callable[[str], None], *, met: bool) -> RestartingGroup:
    group = RestartingGroup(WorkerPool(), WorkerPool(), Backend(met=met), Path("/none"), Path("/none"), tell=tell)
    group.command(1, hosts, 0.0)
    for now in (0.0, 1.0, 2.0):
        group.advance(now, frozenset())
        group.see_started()
    assert group.progress.confirmed_sequence == 1
    return group


@pytest.mark.parametrize(("hosts", "met", "count"), [(2, False, 1), (2, True, 0), (1, False, 0)])
def test_workers_that_each_train_a_copy_are_told_of_once(hosts: int, met: bool, count: int) -> None:
    told: list[str] = []
    group = group_of({f"n{number}": 1 for number in range(hosts)}, told.append, met=met)
    group.advance(100.0, frozenset())
    assert not told, "they may read their data first"
    for now in (130.0, 140.0):
        group.advance(now, frozenset())
    assert len(told) == count
    assert all(text.startswith("2 workers have run for 120 s") for text in told)
