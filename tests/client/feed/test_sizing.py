"""Cores, CPU time of trainings, what is remembered, and the numbers of processes of several groups."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any, cast

import pytest

from malletrain.client.feeding.pace import PaceMeter, SupplyMeter
from malletrain.client.feeding.sizing import (
    LOOK_SECONDS,
    GroupSizing,
    RememberedRates,
    TrainerTimes,
    memory_path,
    parse,
    process_of,
    recall,
    remember,
    usable_cores,
)

AFFINITY = len(os.sched_getaffinity(0))


def cgroup(folder: Path, lines: str, **files: str) -> tuple[Path, Path]:
    """A process in some cgroups; files by path, with `__` for slashes."""
    process, mounted = folder / "self", folder / "cgroup"
    process.mkdir()
    (process / "cgroup").write_text(lines)
    for name, text in files.items():
        path = mounted / name.replace("__", "/").replace("cpu_", "cpu.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return process, mounted


def test_cores_are_those_of_the_affinity_where_there_is_no_quota(tmp_path: Path) -> None:
    assert usable_cores(tmp_path / "none", tmp_path) == AFFINITY
    places = cgroup(tmp_path, "0::/job/step\n", job__cpu_max="max 100000\n")
    assert usable_cores(*places) == AFFINITY


def test_the_least_quota_of_the_cgroups_above_holds(tmp_path: Path) -> None:
    places = cgroup(tmp_path, "0::/job/step\n", job__cpu_max="150000 100000\n", job__step__cpu_max="900000 100000\n")
    assert usable_cores(*places) == 1
    assert AFFINITY >= 1


def test_quotas_of_version_1_hold_and_nonsense_does_not(tmp_path: Path) -> None:
    lines = "3:cpuset:/job\n2:cpu,cpuacct:/job\nnonsense\n"
    period = {"cpu,cpuacct__job__cpu_cfs_period_us": "100000\n"}
    (tmp_path / "a").mkdir()
    places = cgroup(tmp_path / "a", lines, **{"cpu,cpuacct__job__cpu_cfs_quota_us": "50000\n"}, **period)
    assert usable_cores(*places) == 1, "half a core is one process"
    (tmp_path / "b").mkdir()
    places = cgroup(tmp_path / "b", lines, **{"cpu,cpuacct__job__cpu_cfs_quota_us": "-1\n"}, **period)
    assert usable_cores(*places) == AFFINITY
    (tmp_path / "c").mkdir()
    places = cgroup(tmp_path / "c", "0::/\n", cpu_max="what is this\n")
    assert usable_cores(*places) == AFFINITY


def test_the_other_end_of_a_socket_is_known() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert process_of(one) == os.getpid()


def test_cpu_time_of_trainings_is_counted_by_sample_and_by_second() -> None:
    times = TrainerTimes()
    assert (times.seconds_per_sample, times.cores) == (0, 0)
    for look in range(40):
        # Two trainings use 1.5 cores together, and 100 samples/s are prepared; of a third one nothing is known.
        times.look(0.5 * look, 50 * look, {1: 0.5 * look, 2: 7 + 0.25 * look, 3: None})
    assert times.seconds_per_sample == pytest.approx(0.015)
    assert times.cores == pytest.approx(2.5)
    assert times.unknown == 1


def test_what_is_remembered_comes_back(tmp_path: Path) -> None:
    environ = {"MALLETRAIN_JOB_DIR": str(tmp_path / "job"), "MALLETRAIN_NODE": "n1#0"}
    path = memory_path(environ, "key")
    assert path is not None
    assert path.parent == tmp_path / "job" / "feeds"
    assert recall(path) == RememberedRates()
    found = RememberedRates(4, {1: 100.5, 4: 390.0})
    remember(path, found)
    assert recall(path) == found
    path.write_text("x" * 5000)
    assert recall(path) == RememberedRates()
    # Each node of a fleet has its own, in the folder that all of them see.
    fleet = environ | {"MALLETRAIN_FEED_PEERS": str(tmp_path / "fleet")}
    one, other = memory_path(fleet, "key"), memory_path(fleet | {"MALLETRAIN_NODE": "n2#0"}, "key")
    assert one is not None
    assert one.parent == tmp_path / "fleet"
    assert one != other
    assert memory_path({}, "key") is None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"processes": 1, "rates": 3}',
        b'{"processes": 33, "rates": {}}',
        b'{"processes": true, "rates": {}}',
        b'{"processes": 1, "rates": {"0": 5}}',
        b'{"processes": 1, "rates": {"1": -5}}',
        b'{"processes": 1, "rates": {"1": NaN}}',
        b'{"processes": 1, "rates": {"one": 5}}',
        b"[" * 4000,
    ],
)
def test_what_makes_no_sense_is_not_remembered(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(text)


class Group:
    """What the sizing sees of a group: its training waits for a share of the time; a process prepares 10 samples/s."""

    def __init__(self, waits: float = 0.9) -> None:
        self.pace, self.supply, self.done, self.processes = PaceMeter(), SupplyMeter({1: 10.0}), 0, 1
        self.most, self.waits = 99, waits
        self.resized: list[int] = []

    def resize(self, number: int) -> None:
        if number > self.most:
            self.processes = self.most
            raise OSError("no more")
        self.processes = number
        self.resized.append(number)

    def go(self, now: float) -> None:
        for tick in range(10):
            self.done += 1
            self.pace.look(now + 0.05 * tick, self.done, [1], [1] if tick >= 10 * (1 - self.waits) else [])


def looked(sizing: GroupSizing, groups: dict[Group, list[int]], begin: int = 0) -> None:
    for look in range(begin, begin + 8):
        for group in groups:
            group.go(LOOK_SECONDS * look)
        sizing.look(LOOK_SECONDS * (look + 1), cast("Any", groups))


def test_groups_share_cores_equally_and_use_what_others_leave() -> None:
    sizing = GroupSizing(60.0, cores=lambda: 8, times={11: 0.0, 12: 0.0, 13: 0.0}.get)
    busy, calm = Group(), Group(waits=0.0)
    looked(sizing, {busy: [11], calm: [12]})
    assert (busy.processes, calm.processes) == (7, 1)
    assert sizing.limit_of(cast("Any", busy)) == 7
    other = Group()
    looked(sizing, {busy: [11], other: [13]}, 8)
    assert (busy.processes, other.processes) == (4, 4)


def test_a_process_that_cannot_be_started_is_done_without() -> None:
    sizing = GroupSizing(60.0, cores=lambda: 8, times={11: 0.0}.get)
    group = Group()
    group.most = 3
    looked(sizing, {group: [11]})
    assert group.processes == 3
    assert group.resized == []


def test_a_feed_begins_with_no_more_than_there_are_cores_for(tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    remember(path, RememberedRates(16, {16: 50.0}))
    assert GroupSizing(60.0, path, cores=lambda: 4).begin == 4
    assert GroupSizing(60.0, path, cores=lambda: 64).begin == 16
    assert GroupSizing(60.0, path, cores=lambda: 64).rates == {16: 50.0}
