"""`malletrain demo`: the whole system on one machine, with eight virtual nodes and three real trainings."""

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
from rich.live import Live

from malletrain.caller.credentials import owner_credential
from malletrain.cli.demo.display import print_messages, print_summary, render_live
from malletrain.cli.demo.history import NodeInterval, idle_intervals, training_intervals
from malletrain.cli.demo.job_processes import find_job_processes
from malletrain.cli.demo.recorder import RunRecorder
from malletrain.cli.demo.run import collect_data, follow_run, submit_jobs, wait_for_services
from malletrain.cli.demo.setup import DemoSetup, prepare_demo, services_environment
from malletrain.cli.demo.summary import DemoSummary, summarise
from malletrain.cli.shared.output import JsonOption, print_json
from malletrain.cli.shared.settings import load
from malletrain.cli.shared.stubs import ServiceStubs
from malletrain.cli.shared.terminal import open_console
from malletrain.runtime.errors import MalleTrainError

_DEFAULT_SPEED = 4.5
_STOP_SECONDS = 30.0
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
        print_json(summary.as_dict())
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
