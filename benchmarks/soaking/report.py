"""From what was seen to figures, and from figures to a page. `summarise` is pure."""

from __future__ import annotations

import base64
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from benchmarks.looping.measuring import Command, NodeEvent, latencies, summary
from benchmarks.soaking.checks import check, lives
from benchmarks.soaking.fault_plan import SERVICES
from benchmarks.soaking.observations import Observations
from benchmarks.soaking.running import Soaked
from malletrain.simulator.report.plots import Chart, lines

_MIB, _KIB = 2**20, 2**10
_SHOWN = 20
_WARM_S = 15.0
_LOSSES = ("Each submission has made one job", "No row of the journal is lost")


@dataclass(frozen=True)
class Growth:
    """How much a service grows.

    Attributes:
        service: Its name.
        lives: How many processes it has had.
        largest_mib: Most resident memory of one of them, in MiB.
        memory_kib: Growth of the one that lived longest, once it was warm, in KiB per 1,000 node events of its life.
        descriptors: Most open files of one of them.
        database_kib: Growth of its database over the run, in KiB per 1,000 node events.
        log_kib: Growth of its log over the run, in KiB per 1,000 node events.
    """

    service: str
    lives: int
    largest_mib: float
    memory_kib: float
    descriptors: int
    database_kib: float
    log_kib: float


@dataclass(frozen=True)
class Summary:
    """The figures of a run.

    Attributes:
        trace: Where the idle nodes came from.
        nodes: Nodes of the machine.
        seconds: Length of the disturbed part.
        drained_s: How long the jobs took to end after it.
        seed: Seed of the run.
        node_events: Joins and leaves of nodes.
        journal_rows: Rows of the journal.
        jobs: Jobs by state.
        restarts: Failures of jobs that led to a restart.
        preemptions: Events at which nodes were taken from jobs.
        faults: How often each fault was done.
        missed: How often there was nothing that it could hit.
        absent: Faults that can't be done here, with the reason.
        lost: Jobs and journal rows that were lost.
        lost_samples: Samples of complete jobs that were not counted, or counted twice.
        latencies: Milliseconds: number, median, 99th percentile, largest.
        growth: By service.
        violations: What was found, by check.
    """

    trace: str
    nodes: int
    seconds: float
    drained_s: float
    seed: int
    node_events: int
    journal_rows: int
    jobs: dict[str, int]
    restarts: int
    preemptions: int
    faults: dict[str, int]
    missed: dict[str, int]
    absent: dict[str, str]
    lost: int
    lost_samples: int
    latencies: dict[str, dict[str, float]]
    growth: list[Growth]
    violations: dict[str, list[str]]

    @property
    def good(self) -> bool:
        """Whether nothing was found."""
        return not any(self.violations.values())

    @property
    def text(self) -> str:
        """For a terminal."""
        faults = ", ".join(f"{count} × {name}" for name, count in self.faults.items())
        parts = [
            f"{self.node_events} node events, {self.journal_rows} journal rows, jobs: {self.jobs}, "
            f"{self.restarts} restarts, {self.preemptions} preemptions; drained in {self.drained_s:.0f} s",
            f"faults: {faults}; left out: {self.absent or 'none'}",
            f"lost: {self.lost}; samples miscounted: {self.lost_samples}",
            *(f"{name}: {figures}" for name, figures in self.latencies.items()),
            *(str(growth) for growth in self.growth),
        ]
        for name, found in self.violations.items():
            parts.append(f"{'ok  ' if not found else 'FAIL'} {name}")
            parts += [f"       {line}" for line in found[:_SHOWN]]
        return "\n".join(parts)


def summarise(soaked: Soaked, trace: str, nodes: int) -> Summary:
    """Figures and violations of a run."""
    seen, options = soaked.seen, soaked.options
    violations = check(seen)
    done = Counter(fault.kind for fault in seen.faults if fault.victim)
    return Summary(
        trace=trace,
        nodes=nodes,
        seconds=options.seconds,
        drained_s=soaked.drained_s,
        seed=options.seed,
        node_events=len(node_events(seen)),
        journal_rows=len(seen.last_rows),
        jobs=dict(Counter(job.state.removeprefix("JOB_STATE_") for job in seen.final_jobs)),
        restarts=sum(job.restarts for job in seen.final_jobs),
        preemptions=sum(job.preemptions for job in seen.final_jobs),
        faults=dict(sorted(done.items())),
        missed=dict(Counter(fault.kind for fault in seen.faults if not fault.victim)),
        absent={kind.value: reason for kind, reason in soaked.absent.items()},
        lost=sum(
            len(violations[name]) for name in ("Each submission has made one job", "No row of the journal is lost")
        ),
        lost_samples=sum(
            abs(job.samples - job.wanted) for job in seen.final_jobs if job.state == "JOB_STATE_COMPLETED"
        ),
        latencies=_latencies(seen),
        growth=[_growth(seen, service) for service in SERVICES],
        violations=violations,
    )


def node_events(seen: Observations) -> list[NodeEvent]:
    """Joins and leaves, as they were received."""
    found = []
    for change in seen.nodes:
        if not change.snapshot:
            found += [NodeEvent(change.at, node, True) for node in change.joined]
            found += [NodeEvent(change.at, node, False) for node in change.left]
    return found


def _latencies(seen: Observations) -> dict[str, dict[str, float]]:
    commands = [Command.of(line) for line in seen.commands]
    matched = latencies(node_events(seen), commands)
    starts = {row.job_id: row.at for row in reversed(seen.rows) if row.reason == "JOB_REASON_CONFIRMED"}
    names = {job.job_id: job.name for job in seen.final_jobs}
    waits = [at - seen.submitted[names[job_id]] for job_id, at in starts.items() if names.get(job_id) in seen.submitted]
    releases = [row.release_s for row in seen.rows if row.reason == "JOB_REASON_NODE_RELEASED"]
    return {
        "from a leave to the command that releases the node": summary(matched.releases),
        "from a join to the command that gives the node": summary(matched.growths),
        "from a leave until no process is left (JobManager's clock, which is stepped)": summary(releases),
        "from a submission until the job trains": summary([max(0.0, wait) for wait in waits]),
        "services away after a kill -9": summary(_absences(seen)),
    }


def _absences(seen: Observations) -> list[float]:
    """Seconds between the last look at a killed process of a service and the first at the next one."""
    newest: dict[str, tuple[int, float]] = {}
    found = []
    for use in seen.uses:
        pid, at = newest.get(use.service, (use.pid, use.at))
        if pid != use.pid:
            found.append(use.at - at)
        newest[use.service] = (use.pid, use.at)
    return found


def _growth(seen: Observations, service: str) -> Growth:
    of = {pid: uses for (name, pid), uses in lives(seen).items() if name == service}
    events = [event.time for event in node_events(seen)]
    longest = max(of.values(), key=lambda uses: uses[-1][0], default=[])
    warm = [use for at, use in longest if at >= _WARM_S]
    per_life = _per_thousand(
        [use.rss_bytes for use in warm], sum(warm[0].at <= at <= warm[-1].at for at in events) if warm else 0
    )
    files: dict[str, list[int]] = defaultdict(list)
    for sizes in seen.sizes:
        for name in (f"{service}.sqlite", f"logs/{service}.log", f"{service}.json"):
            if name in sizes.bytes_by_name:
                files[name].append(sizes.bytes_by_name[name])
    stored = files.get(f"{service}.sqlite") or files.get(f"{service}.json") or []
    return Growth(
        service=service,
        lives=len(of),
        largest_mib=round(max((use.rss_bytes for uses in of.values() for _, use in uses), default=0) / _MIB, 1),
        memory_kib=per_life,
        descriptors=max((use.descriptors for uses in of.values() for _, use in uses), default=0),
        database_kib=_per_thousand(stored, len(events)),
        log_kib=_per_thousand(files.get(f"logs/{service}.log", []), len(events)),
    )


def _per_thousand(bytes_over_time: Sequence[int], events: int) -> float:
    if len(bytes_over_time) < 2 or not events:
        return 0.0
    return round((bytes_over_time[-1] - bytes_over_time[0]) / _KIB / events * 1000, 1)


def write_report(found: Summary, seen: Observations, folder: Path) -> None:
    """Write `soak.json` and `soak.html` into a folder, which is made if it is missing.

    Raises:
        OSError: they can't be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "soak.json").write_text(json.dumps(asdict(found) | {"good": found.good}, indent=1) + "\n")
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("soak.html").render(
        found=found, plots=_plots(seen), faults=sorted(seen.faults, key=lambda fault: fault.begin), shown=_SHOWN
    )
    (folder / "soak.html").write_text(page)


def _plots(seen: Observations) -> list[tuple[str, str]]:
    """Figures by caption, each as `src` of an image."""
    memory: dict[str, tuple[list[float], list[float]]] = {service: ([], []) for service in SERVICES}
    descriptors: dict[str, tuple[list[float], list[float]]] = {service: ([], []) for service in SERVICES}
    for use in seen.uses:
        for series, value in ((memory, use.rss_bytes / _MIB), (descriptors, use.descriptors)):
            series[use.service][0].append(use.at)
            series[use.service][1].append(value)
    names = [f"{service}.sqlite" for service in SERVICES if service != "scavenger"] + ["jobs"]
    files = {
        name: (
            [sizes.at for sizes in seen.sizes],
            [sizes.bytes_by_name.get(name, 0) / _MIB for sizes in seen.sizes],
        )
        for name in names
    }
    counts = {"processes": ([scan.begin for scan in seen.scans], [float(len(scan.processes)) for scan in seen.scans])}
    return [
        ("Resident memory of each service; a step down is a new one.", _source(lines("Memory", "s", "MiB", memory))),
        ("Open file descriptors.", _source(lines("Descriptors", "s", "", descriptors))),
        ("Databases with their write-ahead logs, and the jobs' folders.", _source(lines("Files", "s", "MiB", files))),
        ("Processes of real trainings on nodes.", _source(lines("Processes", "s", "", counts))),
    ]


def _source(chart: Chart) -> str:
    return "data:image/png;base64," + base64.b64encode(chart.png()).decode()
