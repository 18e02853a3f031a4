"""The faults: each does something to a job of three workers, at a random moment, and leaves it to recover."""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Callable

from benchmarks.faulting.subject import PATIENCE_S, Subject
from malletrain.common.job_folder import SUPERVISOR_LOG
from tests.support.waiting import wait_until

Act = Callable[[Subject, random.Random], None]
_BOOT_S = 4.0
_CONNECT_S = 0.8


def kill_a_worker(subject: Subject, rng: random.Random) -> None:
    rank_0 = subject.rank_0
    subject.hit(rng.choice([host for host in subject.hosts if host != rank_0]), signal.SIGKILL)


def kill_rank_0(subject: Subject, rng: random.Random) -> None:
    del rng
    subject.hit(subject.rank_0, signal.SIGKILL)


def stop_a_worker(subject: Subject, rng: random.Random) -> None:
    subject.hit(rng.choice(subject.hosts), signal.SIGSTOP)


def take_a_node(subject: Subject, rng: random.Random) -> None:
    subject.release(rng.choice(subject.hosts), grace=1.5)


def take_rank_0_at_once(subject: Subject, rng: random.Random) -> None:
    del rng
    subject.release(subject.rank_0, grace=0.0)


def kill_a_booting_newcomer(subject: Subject, rng: random.Random) -> None:
    newcomer = subject.new_host()
    subject.command([*subject.hosts, newcomer])
    wait_until(lambda: subject.pids().get(newcomer), PATIENCE_S, "the newcomer")
    time.sleep(rng.uniform(0.0, _BOOT_S))
    subject.hit(newcomer, signal.SIGKILL)


def kill_a_joining_newcomer(subject: Subject, rng: random.Random) -> None:
    """While the members of the new group connect to each other."""
    newcomer = subject.new_host()
    log = subject.job.folder / SUPERVISOR_LOG
    size = log.stat().st_size
    subject.command([*subject.hosts, newcomer])

    def goes() -> bool:
        lines = log.read_bytes()[size:].decode().splitlines()
        return any(re.search(rf" group \d+: .*'{newcomer}'", line) for line in lines)

    wait_until(goes, PATIENCE_S, "a group with the newcomer")
    time.sleep(rng.uniform(0.0, _CONNECT_S))
    subject.hit(newcomer, signal.SIGKILL)


def change_twice_at_once(subject: Subject, rng: random.Random) -> None:
    hosts = subject.hosts
    subject.command(hosts[:2])
    time.sleep(rng.uniform(0.0, 0.1))
    subject.command([*hosts, subject.new_host()])


def replace_all_hosts(subject: Subject, rng: random.Random) -> None:
    del rng
    subject.command([subject.new_host() for _ in subject.hosts])


def kill_the_supervisor(subject: Subject, rng: random.Random) -> None:
    del rng
    subject.kill_supervisor()


FAULTS: dict[str, Act] = {
    "kill -9 of a worker": kill_a_worker,
    "kill -9 of rank 0": kill_rank_0,
    "SIGSTOP of a worker": stop_a_worker,
    "a node taken with 1.5 s notice": take_a_node,
    "rank 0's node taken at once": take_rank_0_at_once,
    "a newcomer killed while it boots": kill_a_booting_newcomer,
    "a newcomer killed while it joins": kill_a_joining_newcomer,
    "two changes within 100 ms": change_twice_at_once,
    "all hosts replaced": replace_all_hosts,
    "kill -9 of the supervisor": kill_the_supervisor,
}
