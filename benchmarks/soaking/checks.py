"""What must hold of a run, judged by what was seen from outside. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from benchmarks.looping.measuring import Command
from benchmarks.soaking.fault_plan import MAX_CLOCK_OFFSET_S, FaultKind
from benchmarks.soaking.observations import JournalRow, Observations, Scan, Use

ELSEWHERE_S = 20.0
"""How long a process may outlive its job's claim to the node: a grace, and a JobManager that starts again."""
_NOTICED_S = 3.0
COMPLETED = "JOB_STATE_COMPLETED"
_RELEASED = "JOB_REASON_NODE_RELEASED"


Check = Callable[[Observations], list[str]]


def no_node_in_two_jobs_of_the_journal(seen: Observations) -> list[str]:
    """Row after row, no node is commanded to two jobs."""
    found, holdings = [], dict[str, frozenset[str]]()
    for row in sorted(seen.last_rows, key=lambda row: row.sequence):
        for other, nodes in holdings.items():
            if other != row.job_id and (both := nodes & row.nodes):
                found.append(f"row {row.sequence}: {sorted(both)} in {row.job_id} and in {other}")
        holdings[row.job_id] = row.nodes
    return found


def no_node_in_two_trainings(seen: Observations) -> list[str]:
    """By what supervisors were told, no node is used by two at once."""
    commands = sorted((Command.of(line) for line in seen.commands), key=lambda command: command.time)
    kills = [(command.job_id, command.time) for command in commands if command.kind == "killed"]
    found, holdings = [], dict[str, frozenset[str]]()
    for command in commands:
        if command.kind == "release":
            holdings[command.job_id] = holdings.get(command.job_id, frozenset()) - command.nodes
            continue
        if command.kind not in ("start", "set"):
            holdings[command.job_id] = frozenset()
            continue
        for other, nodes in holdings.items():
            both = nodes & command.nodes
            # A stand-in notices a little later that it was killed.
            dead = any(job == other and 0 <= at - command.time < _NOTICED_S for job, at in kills)
            if other != command.job_id and both and not dead:
                found.append(f"{command.time:.2f} s: {sorted(both)} given to {command.job_id} while {other} has them")
        holdings[command.job_id] = command.nodes
    return found


def no_node_with_processes_of_two_jobs(seen: Observations) -> list[str]:
    """No two processes of different jobs live on one node at the same time."""
    found = []
    for scan in seen.scans:
        jobs_on: dict[str, set[str]] = defaultdict(set)
        for job_id, node, _ in scan.processes:
            jobs_on[node].add(job_id)
        found += [
            f"{scan.begin:.1f} s: processes of {sorted(jobs)} on {node}"
            for node, jobs in jobs_on.items()
            if len(jobs) > 1
        ]
    return found


def nothing_on_a_node_after_its_release(seen: Observations) -> list[str]:
    """Once the journal says that a node is free of a job's processes, none is there until the job gets it again."""
    found = []
    rows = sorted(seen.rows, key=lambda row: row.sequence)
    for index, row in enumerate(rows):
        if row.reason != _RELEASED:
            continue
        node = row.text.rpartition(" ")[2]
        again = [other.since for other in rows[index:] if other.job_id == row.job_id and node in other.nodes]
        until = min(again, default=float("inf"))
        found += [
            f"{scan.begin:.1f} s: process {pid} of {row.job_id} on {node}, released at {row.at:.1f} s"
            for scan in seen.scans
            if row.at < scan.begin and scan.end < until
            for job_id, place, pid in scan.processes
            if job_id == row.job_id and place == node
        ]
    return found


def nothing_long_where_its_job_is_not(seen: Observations) -> list[str]:
    """No process stays long on a node that its job neither uses nor was told to use."""
    timelines: dict[str, list[tuple[float, frozenset[str]]]] = defaultdict(list)
    for job in seen.jobs:
        timelines[job.job_id].append((job.at, job.nodes))
    since: dict[tuple[str, str, int], float] = {}
    found: dict[tuple[str, str, int], str] = {}
    for scan in seen.scans:
        astray = {process for process in scan.processes if process[1] not in _held(timelines[process[0]], scan)}
        since = {process: since.get(process, scan.begin) for process in astray}
        for process, begin in since.items():
            if scan.begin - begin > ELSEWHERE_S:
                job_id, node, pid = process
                found[process] = f"process {pid} of {job_id} on {node} for {scan.begin - begin:.0f} s"
    return list(found.values())


def _held(timeline: list[tuple[float, frozenset[str]]], scan: Scan) -> frozenset[str]:
    newest: frozenset[str] = frozenset()
    for at, nodes in timeline:
        if at > scan.end:
            break
        newest = nodes
    return newest


def every_job_is_there_once(seen: Observations) -> list[str]:
    """Each submission that was answered has made one job, whatever was repeated."""
    names = [job.name for job in seen.final_jobs]
    lost = [f"{name} is lost" for name in seen.submitted if name not in names]
    return lost + [f"{name} is there {names.count(name)} times" for name in sorted(set(names)) if names.count(name) > 1]


def every_job_is_complete(seen: Observations) -> list[str]:
    """All jobs have ended well."""
    return [f"{job.job_id} ({job.name}) is {job.state}" for job in seen.final_jobs if job.state != COMPLETED]


def samples_agree(seen: Observations) -> list[str]:
    """JobManager and Monitor have counted for each complete job what its training has counted."""
    found = []
    for job in seen.final_jobs:
        counts = {"JobManager": job.samples, "Monitor": job.monitor_samples, "the training": job.trained}
        wrong = {who: count for who, count in counts.items() if count != job.wanted}
        if job.state == COMPLETED and wrong:
            found.append(f"{job.job_id} ({job.name}): {job.wanted} samples, but {wrong}")
    return found


def usage_agrees(seen: Observations) -> list[str]:
    """Each job's usage has the samples of its training, its preemptions, and the node-seconds of the journal.

    The journal tells times by the wall clock, and usage leaves its steps out: with steps, as much may be between them.
    """
    by_journal, last = dict[str, float](), dict[str, JournalRow]()
    for row in sorted(seen.last_rows, key=lambda row: row.sequence):
        before = last.get(row.job_id)
        passed = max(0.0, row.unix_s - before.unix_s) * len(before.nodes) if before is not None else 0.0
        by_journal[row.job_id] = by_journal.get(row.job_id, 0.0) + passed
        last[row.job_id] = row
    most = max((len(row.nodes) for row in seen.last_rows), default=0)
    steps = sum(fault.kind == FaultKind.CLOCK_STEP for fault in seen.faults)
    between = 1.0 + steps * most * 2 * MAX_CLOCK_OFFSET_S
    found = []
    for job in seen.final_jobs:
        expected = {
            "samples": (job.used_samples, job.samples),
            "preemptions": (job.used_preemptions, job.preemptions),
        }
        wrong = [f"{name} {used}, not {real}" for name, (used, real) in expected.items() if used != real]
        if abs(job.used_node_s - by_journal.get(job.job_id, 0.0)) > between:
            wrong.append(f"{job.used_node_s:.1f} node-seconds, not {by_journal.get(job.job_id, 0.0):.1f}")
        found += [f"{job.job_id} ({job.name}): usage has {text}" for text in wrong]
    return found


def the_journal_goes_on(seen: Observations) -> list[str]:
    """Each row of a job begins in the state in which the one before ended; the last one in the job's state."""
    found = []
    states: dict[str, str] = {}
    for row in sorted(seen.last_rows, key=lambda row: row.sequence):
        before = states.get(row.job_id, row.before)
        if row.before != before:
            found.append(f"row {row.sequence}: {row.job_id} was {before}, not {row.before}")
        states[row.job_id] = row.after
    return found + [
        f"{job.job_id} is {job.state}, in the journal {states.get(job.job_id)}"
        for job in seen.final_jobs
        if states.get(job.job_id) != job.state
    ]


def no_row_is_lost(seen: Observations) -> list[str]:
    """What was once in the journal is still there, and the same."""
    last = {row.sequence: _content(row) for row in seen.last_rows}
    return [f"row {row.sequence} of {row.job_id}" for row in seen.rows if last.get(row.sequence) != _content(row)]


def _content(row: JournalRow) -> tuple[object, ...]:
    return (row.job_id, row.before, row.after, row.nodes, row.reason, row.text)


def queues_are_empty(seen: Observations) -> list[str]:
    """At the end nothing waits, no process of a job is left, and all services answer."""
    waiting = [f"{name} is {value:g}" for name, value in seen.gauges.items() if value]
    left = [f"process left: {words}" for words in seen.left_processes]
    return waiting + left + [f"{name} does not answer" for name in seen.silent_services]


def no_service_ends_by_itself(seen: Observations) -> list[str]:
    """Services end only where they were killed."""
    return [f"{service} ended with {status}" for service, _, status in map(_parted, seen.ends) if status != "-9"]


def _parted(end: str) -> tuple[str, str, str]:
    return end.partition(":")


def no_defect_is_logged(seen: Observations) -> list[str]:
    """No log has a traceback."""
    return list(seen.defects)


_MIB = 2**20
MAX_GROWTH_BYTES = 48 * _MIB
MAX_MEMORY_BYTES = 400 * _MIB
MAX_DESCRIPTORS = 500
MAX_DESCRIPTOR_GROWTH = 60
MAX_FILE_BYTES = 64 * _MIB
_WARM_S = 15.0


def memory_is_bounded(seen: Observations) -> list[str]:
    """No process of a service is large, or has grown by much since it was warm."""
    return _beyond(seen, lambda use: use.rss_bytes / _MIB, MAX_MEMORY_BYTES / _MIB, MAX_GROWTH_BYTES / _MIB, "MiB")


def descriptors_are_bounded(seen: Observations) -> list[str]:
    """No process of a service has many open files, or gets more and more."""
    return _beyond(seen, lambda use: use.descriptors, MAX_DESCRIPTORS, MAX_DESCRIPTOR_GROWTH, "descriptors")


def _beyond(seen: Observations, value: Callable[[Use], float], most: float, max_growth: float, unit: str) -> list[str]:
    found = []
    for (service, pid), uses in lives(seen).items():
        largest = max(value(use) for _, use in uses)
        if largest > most:
            found.append(f"{service} ({pid}) has had {largest:.0f} {unit}")
        warm = [value(use) for at, use in uses if at >= _WARM_S]
        if warm and warm[-1] - warm[0] > max_growth:
            found.append(f"{service} ({pid}) has grown by {warm[-1] - warm[0]:.0f} {unit}")
    return found


def files_are_bounded(seen: Observations) -> list[str]:
    """No file of the services is large."""
    most: dict[str, int] = defaultdict(int)
    for sizes in seen.sizes:
        for name, size in sizes.bytes_by_name.items():
            most[name] = max(most[name], size)
    return [f"{name} has had {size / _MIB:.0f} MiB" for name, size in most.items() if size > MAX_FILE_BYTES]


def lives(seen: Observations) -> dict[tuple[str, int], list[tuple[float, Use]]]:
    """What each process of a service has used: seconds since it was first seen, and the use."""
    found: dict[tuple[str, int], list[tuple[float, Use]]] = defaultdict(list)
    for use in seen.uses:
        of = found[use.service, use.pid]
        of.append((use.at - of[0][1].at if of else 0.0, use))
    return dict(found)


CHECKS: dict[str, Check] = {
    "No node in two jobs, by the journal": no_node_in_two_jobs_of_the_journal,
    "No node in two jobs, by what supervisors were told": no_node_in_two_trainings,
    "No node with processes of two jobs": no_node_with_processes_of_two_jobs,
    "Nothing on a node after its release": nothing_on_a_node_after_its_release,
    "No process for long where its job is not": nothing_long_where_its_job_is_not,
    "Each submission has made one job": every_job_is_there_once,
    "Every job is complete": every_job_is_complete,
    "Samples of each job are those of its training": samples_agree,
    "Usage of each job is that of its training and of the journal": usage_agrees,
    "The journal has no jumps": the_journal_goes_on,
    "No row of the journal is lost": no_row_is_lost,
    "Every queue is empty at the end": queues_are_empty,
    "No service ends by itself": no_service_ends_by_itself,
    "No defect in a log": no_defect_is_logged,
    "Memory is bounded": memory_is_bounded,
    "Descriptors are bounded": descriptors_are_bounded,
    "Files are bounded": files_are_bounded,
}
"""By what the report says of them."""


def check(seen: Observations) -> dict[str, list[str]]:
    """All violations, by check."""
    return {name: function(seen) for name, function in CHECKS.items()}
