"""`malletrain demo`: the whole system on one machine, with eight virtual nodes and three real trainings."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TypeVar

import grpc
import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from malletrain.caller.credentials import owner_credential
from malletrain.cli.demo.job_processes import find_job_processes
from malletrain.cli.demo.recorder import NodeInterval, RunRecorder, idle_intervals, training_intervals
from malletrain.cli.demo.setup import DemoSetup, demo_jobs, prepare_demo, services_environment
from malletrain.cli.demo.summary import DemoSummary, RunData, summarise
from malletrain.cli.jobs.jobs import all_jobs
from malletrain.cli.shared.layout import first_line
from malletrain.cli.shared.output import JsonOption, print_json, print_table, state_name
from malletrain.cli.shared.settings import load
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, ServiceStubs
from malletrain.cli.shared.terminal import open_console
from malletrain.runtime.channel import serves
from malletrain.runtime.errors import MalleTrainError
from malletrain.runtime.messages import unix_seconds
from malletrain.runtime.paging import all_pages
from malletrain.runtime.settings_file import SERVICES
from malletrain.v1 import job_manager_pb2, monitor_pb2

_DEFAULT_SPEED = 4.5
_STOP_SECONDS = 30.0
AnswerT = TypeVar("AnswerT")
DrawTimeline = Callable[[Sequence[NodeInterval], Sequence[NodeInterval], dict[str, str], float, Path], None]
_SUMMIT = Path("../shared/traces/summit-2021-02-week1.csv.gz")


def demo(
    speed: Annotated[float, typer.Option(min=0.5, max=60, help="Trace seconds per second.")] = _DEFAULT_SPEED,
    trace: Annotated[Path | None, typer.Option(help="Trace to take a busy quarter of an hour from.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of a generated trace.")] = 1,
    folder: Annotated[Path, typer.Option(help="Folder for the state of the run; emptied first.")] = Path("build/demo"),
    timeline: Annotated[Path, typer.Option(help="PNG file for the timeline.")] = Path("demo-timeline.png"),
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """Train on eight virtual nodes for two to four minutes; exit 1 if a job failed or a process was left on a node."""
    try:
        from malletrain.cli.demo.timeline import draw_timeline
    except ModuleNotFoundError as error:
        raise MalleTrainError(f"the demo needs {error.name}: pip install 'malletrain[head,sim]'") from None
    if trace is None and _SUMMIT.exists():
        trace = _SUMMIT
    folder = folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    setup = prepare_demo(folder, speed, seed, trace)
    summary = _run(setup, timeline.resolve(), draw_timeline, quiet=as_json)
    if as_json:
        print_json(asdict(summary))
    else:
        print_summary(summary)
    if not summary.good:
        raise typer.Exit(1)


def _run(setup: DemoSetup, timeline: Path, draw: DrawTimeline, quiet: bool) -> DemoSummary:
    started = time.time()
    console = open_console(stderr=True)
    settings = load(setup.config)
    stubs = ServiceStubs(settings, owner_credential(settings))
    with _services(setup):
        wait_for_services(setup)
        recorder = RunRecorder(stubs)
        recorder.start()
        job_ids = submit_jobs(stubs)
        if quiet or not console.is_terminal:
            strays = follow_run(recorder, stubs, setup, job_ids, lambda: print_messages(recorder, started))
        else:
            live = Live(render_live(recorder, setup, started), console=console, auto_refresh=False, transient=True)

            def show() -> None:
                live.update(render_live(recorder, setup, started), refresh=True)

            with live:
                strays = follow_run(recorder, stubs, setup, job_ids, show)
        ended = time.time()
        data = collect_data(stubs, started, ended, strays, setup.trace_origin, str(timeline))
        recorder.stop()
    data.strays.extend(f"left at the end: {entry}" for entry in find_job_processes(setup.folder))
    stubs.close()
    names = {job_id: recorder.jobs[job_id].spec.name for job_id in job_ids}
    idle = idle_intervals(recorder.history.nodes, ended)
    draw(idle, training_intervals(recorder.history.jobs, ended), names, started, timeline)
    return summarise(recorder, job_ids, data)


@contextmanager
def _services(setup: DemoSetup) -> Iterator[None]:
    """Run `malletrain up`, which starts the five services."""
    command = [sys.executable, "-P", "-m", "malletrain.cli.main", "up", "--config", str(setup.config)]
    with (setup.folder / "up.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=services_environment()
        )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


_START_SECONDS = 60.0
_POLL_SECONDS = 0.5
_MAX_EXTRA_SECONDS = 240.0
_RECLAIM_LIMIT_SECONDS = 5.0
"""A process of ours that is on a node this long after the node was taken counts as left behind."""

_PATIENCE_SECONDS = 30.0
_RETRY_SECONDS = 0.3


def _until_answered(call: Callable[[], AnswerT]) -> AnswerT:
    """Repeat a call of the demo while a service is being restarted.

    Raises:
        grpc.RpcError: it has still failed after half a minute.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return call()
        except grpc.RpcError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_RETRY_SECONDS)


def wait_for_services(setup: DemoSetup) -> None:
    """Wait until all five services answer.

    Raises:
        MalleTrainError: some do not within a minute.
    """
    settings = load(setup.config)
    deadline = time.monotonic() + _START_SECONDS
    waiting = set(SERVICES)
    pause = threading.Event()
    while waiting := {name for name in waiting if not serves(settings.peer(name))}:
        if time.monotonic() > deadline:
            raise MalleTrainError(f"{', '.join(sorted(waiting))} did not start: see {setup.folder}/up.log")
        pause.wait(_POLL_SECONDS)


def submit_jobs(stubs: ServiceStubs) -> list[str]:
    """Submit the demo's jobs; returns their identifiers."""
    request = job_manager_pb2.SubmitJobsRequest(request_id=uuid.uuid4().hex, specs=demo_jobs())
    answer = _until_answered(lambda: stubs.job_manager.SubmitJobs(request, timeout=DEADLINE_SECONDS))
    return [job.id for job in answer.jobs]


def follow_run(
    recorder: RunRecorder, stubs: ServiceStubs, setup: DemoSetup, job_ids: list[str], show: Callable[[], None]
) -> list[str]:
    """Wait until all jobs have ended.

    Args:
        recorder: Records the run.
        stubs: The services.
        setup: The demo's setup.
        job_ids: The jobs.
        show: Called twice a second to show what happens.

    Returns:
        Processes that were found on nodes that the scheduler had taken, described for people.
    """
    strays = StrayProcessFinder(recorder, setup)
    limit = time.monotonic() + setup.seconds + _MAX_EXTRA_SECONDS
    pause = threading.Event()
    while time.monotonic() < limit:
        show()
        strays.check()
        if recorder.all_ended(job_ids):
            break
        pause.wait(_POLL_SECONDS)
        _read_jobs(recorder, stubs)
    show()
    return strays.sentences


def _read_jobs(recorder: RunRecorder, stubs: ServiceStubs) -> None:
    """Read all jobs: the stream does not show jobs that ended while JobManager was down."""
    try:
        for job in all_jobs(stubs):
            recorder.record_job(job)
    except grpc.RpcError:
        return  # JobManager is being restarted; it is asked again soon


class StrayProcessFinder:
    """Finds processes of jobs on nodes that the scheduler has taken.

    Attributes:
        sentences: What it has seen so far, described for people.
    """

    def __init__(self, recorder: RunRecorder, setup: DemoSetup) -> None:
        self._recorder = recorder
        self._setup = setup
        self._seen: set[int] = set()
        self.sentences: list[str] = []

    def check(self) -> None:
        """Find processes on nodes that were taken longer ago than the limit and are not idle again."""
        now = time.time()
        last_left: dict[str, float] = {}
        for change in list(self._recorder.history.nodes):
            last_left |= dict.fromkeys(change.left, change.time)
        reclaimed = {
            node
            for node, since in last_left.items()
            if node not in self._recorder.idle and now - since > _RECLAIM_LIMIT_SECONDS
        }
        for process in find_job_processes(self._setup.folder):
            if process.node in reclaimed and process.pid not in self._seen:
                self._seen.add(process.pid)
                self.sentences.append(
                    f"on {process.node} {now - last_left[process.node]:.1f} s after its leave: {process}"
                )


def collect_data(
    stubs: ServiceStubs, started: float, ended: float, strays: list[str], trace: str, timeline: str
) -> RunData:
    """Ask the services for what the summary needs, before they are stopped."""

    def ask() -> RunData:
        request = job_manager_pb2.ListJobEventsRequest()
        pages = all_pages(stubs.job_manager.ListJobEvents, request, timeout=DEADLINE_SECONDS)
        events = [event for page in pages for event in page.events]
        records = stubs.monitor.ListScalingRecords(monitor_pb2.ListScalingRecordsRequest(), timeout=DEADLINE_SECONDS)
        progress = stubs.monitor.GetProgress(monitor_pb2.GetProgressRequest(), timeout=DEADLINE_SECONDS)
        return RunData(
            started=started,
            ended=ended,
            events=events,
            records=list(records.records),
            progress=list(progress.progress),
            strays=strays,
            trace=trace,
            timeline=timeline,
        )

    return _until_answered(ask)


_MESSAGE_LINES = 12


def render_live(recorder: RunRecorder, setup: DemoSetup, started: float) -> Group:
    """A table of nodes and jobs with the last messages.

    Args:
        recorder: What has happened so far.
        setup: The demo's setup.
        started: Start of the demo in seconds since the epoch.
    """
    now = time.time()
    holders = {node: job.id for job in list(recorder.jobs.values()) for node in job.confirmed_nodes}
    heading = Text(
        f"{now - started:5.0f} s of about {setup.seconds:.0f} s, trace at {setup.speed:g}x: {setup.trace_origin}"
    )
    nodes = Table("idle node", "idle for", "job", expand=True)
    for name, node in sorted(recorder.idle.items()):
        nodes.add_row(name, f"{now - unix_seconds(node.idle_since):.0f} s", holders.get(name, "-"))
    jobs = Table("job", "name", "state", "nodes", "samples/s", "samples", "reason", expand=True)
    for job in list(recorder.jobs.values()):
        progress = recorder.progress.get(job.id)
        rate = f"{progress.rate:,.0f}" if progress and progress.rate else "-"
        samples = max(job.samples, progress.samples if progress else 0)
        scale = f"{len(job.confirmed_nodes)}/{len(job.wanted_nodes)}"
        jobs.add_row(job.id, job.spec.name, state_name(job.state), scale, rate, f"{samples:,}", first_line(job.reason))
    messages = Text("\n".join(f"{when - started:6.1f} s  {what}" for when, what in recorder.messages[-_MESSAGE_LINES:]))
    return Group(heading, jobs, nodes, messages)


def print_messages(recorder: RunRecorder, started: float) -> None:
    """Print new messages on standard error, if there is no terminal for a live table.

    Args:
        recorder: What has happened so far. Its messages are removed.
        started: Start of the demo in seconds since the epoch.
    """
    while recorder.messages:
        when, what = recorder.messages.pop(0)
        typer.echo(f"{when - started:6.1f} s  {what}", err=True)


def print_summary(summary: DemoSummary) -> None:
    """Print the results of a demo as tables."""
    share = summary.node_seconds_used / summary.node_seconds_offered if summary.node_seconds_offered else 0.0
    facts = (
        ("trace", summary.trace),
        ("events", str(summary.events)),
        ("plans", str(summary.plans)),
        ("rescales", str(summary.rescales)),
        ("preemptions", str(summary.preemptions)),
        ("samples", f"{summary.samples:,} ({summary.samples_lost:,} more were lost by rollbacks)"),
        (
            "node-seconds",
            f"{summary.node_seconds_offered:,.0f} offered, {summary.node_seconds_used:,.0f} used ({share:.0%})",
        ),
        ("node-seconds lost", f"{summary.node_seconds_lost:,.0f}: {_losses(summary.node_seconds_lost_to)}"),
        ("reclaim, longest", f"{summary.reclaim_seconds_max:.2f} s"),
        ("stall of a growth", _seconds(summary.scale_up_seconds_median)),
        ("stall of a shrink", _seconds(summary.scale_down_seconds_median)),
        ("left processes", "; ".join(summary.stray_processes) or "none"),
        ("timeline", summary.timeline),
    )
    print_table(("", ""), facts, title=f"Demo: {summary.seconds:.0f} s")
    rows = [
        (
            job.id,
            job.name,
            job.state,
            f"{job.samples:,}",
            str(job.rescales),
            str(job.preemptions),
            str(job.restarts),
            f"{job.accuracy:.3f}" if job.accuracy is not None else "-",
        )
        for job in summary.jobs
    ]
    print_table(("job", "name", "state", "samples", "rescales", "preemptions", "restarts", "accuracy"), rows)


def _losses(seconds: dict[str, float]) -> str:
    """What node-seconds were lost to, most first."""
    return ", ".join(
        f"{name.replace('_', ' ')} {lost:,.0f}" for name, lost in sorted(seconds.items(), key=lambda e: -e[1]) if lost
    )


def _seconds(value: float | None) -> str:
    return "none measured" if value is None else f"{value:.2f} s (median)"
