"""`malletrain demo`: five services, eight virtual nodes, three real trainings."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from malletrain.cli.demo.history import Interval, idle_intervals, training_intervals
from malletrain.cli.demo.run import follow_run, gather, submit_jobs, wait_for_services
from malletrain.cli.demo.stage import Stage, services_environment, set_stage
from malletrain.cli.demo.strays import find_processes
from malletrain.cli.demo.summary import Summary, summarise
from malletrain.cli.demo.table import render
from malletrain.cli.demo.watcher import Watcher
from malletrain.cli.output import JsonOption, print_json, print_table
from malletrain.cli.peers import Peers
from malletrain.cli.settings import load
from malletrain.runtime.errors import MalleTrainError

_DEFAULT_SPEED = 4.5
Draw = Callable[[Sequence[Interval], Sequence[Interval], dict[str, str], float, Path], None]
_STOP_SECONDS = 30.0
_SUMMIT = Path("../shared/traces/summit-2021-02-week1.csv.gz")


def demo(
    speed: Annotated[float, typer.Option(min=0.5, max=60, help="Trace seconds per second.")] = _DEFAULT_SPEED,
    trace: Annotated[Path | None, typer.Option(help="Trace to take a busy quarter of an hour from.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the trace, where one is generated.")] = 1,
    folder: Annotated[Path, typer.Option(help="Where the run keeps its state; emptied first.")] = Path("build/demo"),
    timeline: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("demo-timeline.png"),
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """Harvest eight virtual nodes for two to four minutes; exit 1 if a job failed or a process was left behind."""
    try:
        from malletrain.cli.demo.timeline import draw_timeline
    except ModuleNotFoundError as error:
        raise MalleTrainError(f"the demo draws with {error.name}: pip install 'malletrain[head,sim]'") from None
    if trace is None and _SUMMIT.exists():
        trace = _SUMMIT
    folder = folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    stage = set_stage(folder, speed, seed, trace)
    summary = _play(stage, timeline.resolve(), draw_timeline, quiet=as_json)
    if as_json:
        print_json(summary.as_dict())
    else:
        _print(summary)
    if not summary.good:
        raise typer.Exit(1)


def _play(stage: Stage, timeline: Path, draw: Draw, quiet: bool) -> Summary:
    started = time.time()
    console = Console(stderr=True)
    peers = Peers(load(stage.config).addresses)
    with _services(stage):
        wait_for_services(stage)
        watcher = Watcher(peers)
        watcher.start()
        job_ids = submit_jobs(peers)
        live = Live(render(watcher, stage, started), console=console, auto_refresh=False, transient=True)
        if quiet or not console.is_terminal:
            strays = follow_run(watcher, peers, stage, job_ids, lambda: _tell(watcher, started))
        else:
            with live:
                strays = follow_run(
                    watcher, peers, stage, job_ids, lambda: live.update(render(watcher, stage, started), refresh=True)
                )
        ended = time.time()
        evidence = gather(peers, started, ended, strays, stage.trace_origin, str(timeline))
        watcher.stop()
    evidence.strays.extend(f"left at the end: {entry}" for entry in find_processes(stage.folder))
    peers.close()
    names = {job_id: watcher.jobs[job_id].spec.name for job_id in job_ids}
    idle = idle_intervals(watcher.history.nodes, ended)
    draw(idle, training_intervals(watcher.history.jobs, ended), names, started, timeline)
    return summarise(watcher, job_ids, evidence)


@contextmanager
def _services(stage: Stage) -> Iterator[None]:
    """`malletrain up` in a process of its own, which has the five services as children."""
    command = [sys.executable, "-m", "malletrain.cli.main", "up", "--config", str(stage.config)]
    with (stage.folder / "up.log").open("wb") as log:
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


def _tell(watcher: Watcher, started: float) -> None:
    """Print what is new, where there is no terminal for a live table."""
    while watcher.news:
        when, what = watcher.news.pop(0)
        typer.echo(f"{when - started:6.1f} s  {what}", err=True)


def _print(summary: Summary) -> None:
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
        ("node-seconds lost", f"{summary.node_seconds_lost:,.0f}"),
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


def _seconds(value: float | None) -> str:
    return "none measured" if value is None else f"{value:.2f} s (median)"
