"""What `malletrain replay` replays: a trace with a job set, or an installation's past."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from malletrain.allocator.problem.pools import PoolTerms, terms_of
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Trace, window
from malletrain.scavenger.machine.observations import NodeFacts
from malletrain.scavenger.node_traits import entries_of_json, facts_by_node
from malletrain.scavenger.trace_files import metadata_path, read_metadata, read_trace
from malletrain.simulator.replay.job_set import Workload, read_job_set
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.replay.presets import PRESETS, preset_workload
from malletrain.simulator.replay.records import HOUR_S

if TYPE_CHECKING:
    from malletrain.cli.journal.showing import JournalReport
    from malletrain.simulator.replay.evaluation import Scenario
    from malletrain.simulator.report.delays import MeasuredDelay


@dataclass(frozen=True)
class ReplayInput:
    """What is replayed.

    Attributes:
        title: What to call it, without folders.
        trace: The idle nodes.
        scenario: The same as events.
        workload: The jobs.
        options: Options of the replay, with its duration.
        all_nodes: Whether the trace has all nodes of the system, also those that were never idle.
        metadata: The JSON beside the trace.
        report: Of an installation's past: how well a replay agrees with it.
        delay: Of an installation's past: how long nodes that were taken back were not free.
    """

    title: str
    trace: Trace
    scenario: Scenario
    workload: Workload
    options: ReplayOptions
    all_nodes: bool
    metadata: Mapping[str, object] = field(default_factory=dict)
    report: JournalReport | None = None
    delay: MeasuredDelay | None = None


def refuse_beside_journal(arguments: Mapping[str, object], has_jobs: bool) -> None:
    """A journal has its own nodes, time and jobs.

    Raises:
        InvalidInputError: an option says otherwise.
    """
    wrong = [name for name, value in arguments.items() if value is not None] + (["--jobs"] if has_jobs else [])
    if wrong:
        raise InvalidInputError(wrong[0], "--trace beside it: a journal has its own nodes, time and jobs")


def past_of(place: str, since: str | None, options: ReplayOptions) -> ReplayInput:
    """The past of an installation as input of a replay.

    Raises:
        InvalidInputError: there is no such past, or no job or idle node in it.
        MalleTrainError: it can't be read.
    """
    from malletrain.cli.journal.reading import read_journal
    from malletrain.cli.journal.replay_options import span_of
    from malletrain.cli.journal.showing import report_on
    from malletrain.cli.shared.settings import load
    from malletrain.simulator.replay.evaluation import Scenario
    from malletrain.simulator.report.delays import release_delay

    journal = read_journal(place, load())
    begin, end, span_notes = span_of(journal, since)
    report, past = report_on(journal, (begin, end), span_notes)
    if not past.jobs:
        raise InvalidInputError("--journal", " ".join(("a past in which jobs trained.", *report.notes)), place)
    options = replace(options, duration_s=end - begin)
    options.check_requests(past.jobs)
    return ReplayInput(
        f"journal {Path(place).name}",
        past.trace,
        Scenario.of(past.trace, end - begin),
        Workload(past.jobs, "its own jobs"),
        options,
        all_nodes=False,
        report=report,
        delay=release_delay(journal, begin, end),
    )


def terms_of_pool(name: str) -> PoolTerms:
    """What the settings say of a pool.

    Raises:
        InvalidInputError: they say nothing of it.
    """
    from malletrain.cli.shared.settings import load

    rules = load().allocator.planner_options.pools
    terms = terms_of(rules, name)
    if terms == PoolTerms():
        known = ", ".join(sorted(rules)) or "there are none"
        raise InvalidInputError("--pool", f"a pool that [allocator.pools] of the settings names ({known})", name)
    return terms


def jobs_of(jobs: str, scaling: Path | None) -> Workload:
    """The job set that an option names.

    Raises:
        InvalidInputError: a file can't be read, or `--scaling` goes with a built-in set.
    """
    if jobs in PRESETS:
        if scaling is not None:
            raise InvalidInputError("--scaling", f"a job set in a file (--jobs is the built-in set {jobs})")
        return preset_workload(jobs)
    path = Path(jobs)
    return Workload(read_job_set(path, scaling or path.with_name("scaling.csv")), path.name)


def trace_of(
    path: Path, nodes: int | None, hours: float | None, workload: Workload, options: ReplayOptions
) -> ReplayInput:
    """A trace's beginning with a job set as input of a replay.

    Raises:
        InvalidInputError: the trace can't be read, or has fewer nodes or hours; a job asks for too much burst buffer.
    """
    options = replace(options, repeat_jobs=workload.repeats)
    options.check_requests(workload.jobs)
    whole, metadata = read_trace(path), read_metadata(path)
    duration_s = check_extent(whole, nodes, hours)
    entries = entries_of_json(metadata.get("node_traits", {}), f"{metadata_path(path)}: node_traits")
    facts = facts_by_node(entries, whole.nodes, {}, f"{metadata_path(path)}: node_traits", path.name)
    return input_of(path.name, window(whole, 0.0, duration_s, nodes), workload, options, metadata, facts)


def input_of(
    title: str,
    trace: Trace,
    workload: Workload,
    options: ReplayOptions,
    metadata: Mapping[str, object],
    facts: Mapping[str, NodeFacts] = MappingProxyType({}),
) -> ReplayInput:
    """A whole trace with a job set as input of a replay.

    Raises:
        InvalidInputError: no node is idle.
    """
    from malletrain.simulator.replay.evaluation import Scenario

    options = replace(options, duration_s=trace.duration_s)
    scenario = Scenario.of(trace, trace.duration_s, facts)
    return ReplayInput(title, trace, scenario, workload, options, all_nodes="nodes" in metadata, metadata=metadata)


def check_extent(trace: Trace, nodes: int | None, hours: float | None) -> float:
    """Seconds of a trace to replay.

    Raises:
        InvalidInputError: the trace has fewer nodes or hours.
    """
    if nodes is not None and nodes > len(trace.nodes):
        raise InvalidInputError("--nodes", f"at most {len(trace.nodes)}, as many as the trace knows", nodes)
    duration_s = trace.duration_s if hours is None else hours * HOUR_S
    if not 0 < duration_s <= trace.duration_s:
        longest = trace.duration_s / HOUR_S
        raise InvalidInputError("--hours", f"above 0 and at most {longest:g}, the trace's length", hours)
    return duration_s
