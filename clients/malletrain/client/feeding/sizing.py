"""Has each group of a feed prepare with as many processes as its trainings need, as far as there are cores."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from malletrain.client.feeding.group import FeedGroup, log
from malletrain.client.feeding.pace import WAITS_FROM
from malletrain.client.feeding.preprocessors import MAX_PROCESSES, CoreUse, GroupMeasured, ProcessChoice
from malletrain.client.warn_once import describe
from malletrain.common import environment as env
from malletrain.common.files import make_private_folder, open_plain, write_atomically
from malletrain.common.job_folder import FEEDS_FOLDER
from malletrain.common.processes import read_cpu_seconds
from malletrain.common.untrusted_json import parse_object

LOOK_SECONDS = 0.5
"""How often numbers are looked at."""
_KEPT = 0.9
"""Share of what is known of trainings' CPU time that counts at the next look: it rests on about 5 s."""
_WRITE_SECONDS = 30.0


_CREDENTIALS = struct.Struct("3i")
_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def usable_cores(process: Path = _PROC / "self", cgroups: Path = _CGROUPS) -> int:
    """Cores that this process may use, at least 1: those of its affinity, and no more than its cgroups' quotas.

    Args:
        process: Where the kernel says which cgroups it is in.
        cgroups: Where they are mounted.
    """
    return max(1, math.floor(min(float(len(os.sched_getaffinity(0))), _quota(process, cgroups))))


def _quota(process: Path, cgroups: Path) -> float:
    """Cores by the least quota of its cgroups and those above; infinite without any."""
    try:
        lines = (process / "cgroup").read_text().splitlines()
    except OSError:
        return math.inf
    least = math.inf
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = cgroups if not controllers else cgroups / controllers
        folder = root / path.lstrip("/")
        while True:
            least = min(least, _quota_of(folder))
            if folder == root or root not in folder.parents:
                break
            folder = folder.parent
    return least


def _quota_of(folder: Path) -> float:
    """Cores by the quota of one cgroup, of version 2 or 1; infinite without one."""
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = (folder / "cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        spent = int((folder / "cpu.cfs_quota_us").read_text())
        return math.inf if spent < 0 else spent / int((folder / "cpu.cfs_period_us").read_text())
    return math.inf


def process_of(connection: socket.socket) -> int:
    """Process id of the other end of a Unix socket; 0: it is not known here, as in another container."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return max(0, int(_CREDENTIALS.unpack(raw)[0]))


@dataclass
class TrainerTimes:
    """CPU time of a group's trainings.

    Attributes:
        unknown: Trainings whose CPU time can't be read.
    """

    unknown: int = 0
    _before: dict[int, float] = field(default_factory=dict)
    _done: int = 0
    _spent: float = 0.0
    _prepared: float = 0.0
    _passed: float = 0.0
    _at: float | None = None

    def look(self, now: float, done: int, times: Mapping[int, float | None]) -> None:
        """Note how much they have used.

        Args:
            now: Monotonic time in seconds.
            done: Samples that have been prepared for them so far.
            times: CPU time by process, in seconds; None: not known.
        """
        known = {process: seconds for process, seconds in times.items() if seconds is not None}
        self.unknown = len(times) - len(known)
        if self._at is not None:
            spent = sum(max(0.0, seconds - self._before.get(process, seconds)) for process, seconds in known.items())
            self._spent = self._spent * _KEPT + spent
            self._prepared = self._prepared * _KEPT + max(0, done - self._done)
            self._passed = self._passed * _KEPT + max(0.0, now - self._at)
        self._before, self._done, self._at = known, done, now

    @property
    def seconds_per_sample(self) -> float:
        """CPU seconds of all of them for a sample that is prepared; 0: not known."""
        return self._spent / self._prepared if self._prepared >= 1 else 0.0

    @property
    def cores(self) -> float:
        """Cores that they use now."""
        return self.unknown + (self._spent / self._passed if self._passed > 0 else 0.0)


@dataclass
class _Sized:
    choice: ProcessChoice
    limit: int
    times: TrainerTimes = field(default_factory=TrainerTimes)


class GroupSizing:
    """Chooses the numbers of processes of all groups of a feed.

    Attributes:
        begin: With how many processes a group begins.
        rates: Samples/s by number of processes that an earlier feed has measured.
    """

    def __init__(
        self,
        calm_seconds: float,
        memory: Path | None = None,
        *,
        cores: Callable[[], int] = usable_cores,
        times: Callable[[int], float | None] = read_cpu_seconds,
    ) -> None:
        """Begin with what an earlier feed of this data set has found.

        Args:
            calm_seconds: How long fewer processes must have sufficed before there are fewer.
            memory: File in which feeds of this data set remember that; None: nowhere.
            cores: Tells how many cores this feed and its trainings may use.
            times: Tells the CPU time of a process, in seconds; None: not known.
        """
        self._calm_seconds, self._memory, self._cores, self._times = calm_seconds, memory, cores, times
        self._sized: dict[FeedGroup, _Sized] = {}
        self._looked_at = self._written_at = float("-inf")
        self._total = cores()
        remembered = recall(memory) if memory is not None else RememberedRates()
        self.begin = max(1, min(remembered.processes, self._total, MAX_PROCESSES))
        self.rates = remembered.rates
        self._written = remembered

    def limit_of(self, group: FeedGroup) -> int:
        """Most processes of a group, as it was last seen."""
        sized = self._sized.get(group)
        return min(self._total, MAX_PROCESSES) if sized is None else max(sized.limit, group.processes)

    def look(self, now: float, groups: Mapping[FeedGroup, Sequence[int]]) -> None:
        """Change the numbers where that is called for.

        Args:
            now: Monotonic time in seconds.
            groups: Those that have trainings, with the processes of these.
        """
        if now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at, self._total = now, self._cores()
        if not groups:
            self.remember(now)  # the feed may end now
        max_processes = min(self._total, MAX_PROCESSES)
        known = {group: self._sized.get(group) for group in groups}
        self._sized = {
            group: sized or _Sized(ProcessChoice(group.processes), max_processes) for group, sized in known.items()
        }
        for group, processes in groups.items():
            self._sized[group].times.look(now, group.done, {each: self._times(each) for each in processes})
        for group in groups:
            self._choose(group, now)
        if groups and now - self._written_at >= _WRITE_SECONDS:
            self.remember(now)

    def _choose(self, group: FeedGroup, now: float) -> None:
        sized = self._sized[group]
        demand, measured = group.pace.demand, group.supply.measured(now)
        use = CoreUse(self._share(group), sized.times.seconds_per_sample, sized.times.unknown)
        before = group.processes
        if demand is None or not measured:
            sized.choice = sized.choice.within(use.max_processes)
        else:
            seen = GroupMeasured(demand.rate, demand.waited > WAITS_FROM, measured, use)
            sized.choice = sized.choice.after(seen, now, self._calm_seconds)
            sized.limit = use.limit(demand.rate, measured)
        if sized.choice.number == before:
            return
        try:
            group.resize(sized.choice.number)
        except OSError as error:
            log(f"no further process that prepares samples: {describe(error)}")
            sized.choice = ProcessChoice(max(1, group.processes))
        asked = "" if demand is None else f"; trainings could take {demand.rate:,.1f} samples/s"
        log(f"{group.processes} processes prepare samples, before {before}{asked}")
        self.remember(now)

    def _share(self, group: FeedGroup) -> int:
        """Cores for a group: its equal part, and what others leave."""
        others = sum(other.processes + sized.times.cores for other, sized in self._sized.items() if other is not group)
        return max(1, self._total // max(1, len(self._sized)), int(self._total - others))

    def remember(self, now: float) -> None:
        """Write down for later feeds what was found.

        Args:
            now: Monotonic time in seconds.
        """
        self._written_at = now
        if self._memory is None or not self._sized:
            return
        group = max(self._sized, key=lambda each: each.done)
        measured = RememberedRates(group.processes, group.supply.measured(now))
        if measured != self._written:
            self._written = measured
            with contextlib.suppress(OSError):  # only the next feed would be helped
                remember(self._memory, measured)


_MAX_BYTES = 4096
_NAME_BYTES = 8


@dataclass(frozen=True)
class RememberedRates:
    """What a feed has found.

    Attributes:
        processes: With how many processes it has prepared last; 0: not known.
        rates: Samples/s by number of processes.
    """

    processes: int = 0
    rates: Mapping[int, float] = field(default_factory=dict)


def memory_path(environ: Mapping[str, str], key: str) -> Path | None:
    """Where feeds of one data set remember that; None: outside of jobs, nowhere.

    Nodes may differ in their processors, so each has a file.

    Args:
        environ: Environment of the training that starts the feed.
        key: What the feed prepares; see `source.FeedSource`.
    """
    folder, job = environ.get(env.FEED_PEERS), environ.get(env.JOB_DIR)
    if not folder and not job:
        return None
    node = environ.get(env.NODE, "").partition("#")[0]
    name = hashlib.blake2b(node.encode(), digest_size=_NAME_BYTES).hexdigest()
    return (Path(folder) if folder else Path(str(job)) / FEEDS_FOLDER) / f"{key}.{name}.rates.json"


def remember(path: Path, remembered: RememberedRates) -> None:
    """Write it down.

    Raises:
        OSError: it can't be written.
    """
    with contextlib.suppress(FileExistsError):
        make_private_folder(path.parent)
    content = {
        "processes": remembered.processes,
        "rates": {str(n): round(rate, 3) for n, rate in remembered.rates.items()},
    }
    write_atomically(path, json.dumps(content), mode=0o600, exact=True, sync=False)


def recall(path: Path) -> RememberedRates:
    """What was written down; nothing if there is none, or it makes no sense."""
    try:
        with open_plain(path) as file:
            text = file.read(_MAX_BYTES + 1)
        return parse(text) if len(text) <= _MAX_BYTES else RememberedRates()
    except (OSError, ValueError):
        return RememberedRates()


def parse(text: bytes) -> RememberedRates:
    """Read what was written down.

    Raises:
        ValueError: it is none.
    """
    try:
        content = parse_object(text)
        processes, rates = content["processes"], {int(n): float(rate) for n, rate in content["rates"].items()}
    except (TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"rates: expected processes and rates, got {text[:60]!r}") from error
    if type(processes) is not int or not 0 <= processes <= MAX_PROCESSES:
        raise ValueError(f"processes: expected 0 to {MAX_PROCESSES}, got {processes!r}")
    for number, rate in rates.items():
        if not (1 <= number <= MAX_PROCESSES and 0 < rate < math.inf):
            raise ValueError(
                f"rates: expected numbers above 0 for 1 to {MAX_PROCESSES} processes, got {number}: {rate}"
            )
    return RememberedRates(processes, rates)
