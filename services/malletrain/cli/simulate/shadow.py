"""`malletrain shadow`: what could have been trained on idle nodes, without taking any."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from malletrain.cli.shared.configured import ConfigOption
from malletrain.cli.shared.output import JsonOption, duration, parse_duration, print_json
from malletrain.cli.shared.settings import load
from malletrain.cli.simulate.replay import JobsOption, ScalingOption
from malletrain.cli.simulate.replay_input import input_of, jobs_of
from malletrain.cli.simulate.replay_output import answer, make_folder, replayed_of, require_plots, write_results
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.logs import configure_logging
from malletrain.scavenger.idle_trace import FragmentRecorder, Trace
from malletrain.scavenger.settings import ScavengerSettings
from malletrain.scavenger.sources.base import NodeSource
from malletrain.scavenger.sources.build import build_source
from malletrain.scavenger.state_file import ScavengerStateFile
from malletrain.scavenger.trace_files import write_trace
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.replay.presets import PRESETS
from malletrain.simulator.report.answers import HourlyRates

if TYPE_CHECKING:
    from malletrain.simulator.replay.job_set import Workload
    from malletrain.simulator.replay.records import Metrics

_DEFAULT_OUT = Path("shadow.csv.gz")


class ShadowSource(StrEnum):
    """Schedulers that can be watched."""

    SLURM = "slurm"
    PBS = "pbs"
    BOTH = "slurm+pbs"


def shadow(
    source: Annotated[ShadowSource, typer.Option(help="Which batch scheduler is watched.")],
    length: Annotated[str, typer.Option("--for", help="How long: 90s, 30m, 24h, 7d. Ctrl-C ends it earlier.")] = "24h",
    out: Annotated[
        Path, typer.Option(help="The trace: NAME.csv, NAME.csv.gz or NAME.parquet, NAME.json beside it.")
    ] = _DEFAULT_OUT,
    report: Annotated[
        Path | None, typer.Option(help="Folder for the page, figures and tables at the end; made if missing.")
    ] = None,
    every: Annotated[str, typer.Option(help="How often the trace is written and told of.")] = "10m",
    jobs: Annotated[str, JobsOption] = PRESETS[0],
    scaling: Annotated[Path | None, ScalingOption] = None,
    as_json: Annotated[bool, JsonOption] = False,
    config: ConfigOption = None,
) -> None:
    """Watch a scheduler without taking a node: record the idle nodes, and tell what could have been trained there."""
    seconds, period_s = parse_duration(length, "--for"), parse_duration(every, "--every")
    workload = jobs_of(jobs, scaling)
    settings = load(config)
    configure_logging("shadow", settings.log_level)
    section = watching_only(settings.scavenger, source.value)
    _check_writable(out)
    if report is not None:
        require_plots("--report")
        make_folder(report, "--report")
    about = {"source": f"malletrain shadow --source {source.value}"}

    def tell(trace: Trace, recorder: FragmentRecorder) -> None:
        if trace.fragments:
            write_trace(trace, out, about)
        if not as_json:
            seen = f"{duration(trace.duration_s)}: {recorder.idle} of {recorder.known} nodes idle"
            typer.echo(f"{seen}; {metrics_in_words(trace, workload)}")

    # The state folder belongs to the service, which may be running with the same settings.
    with tempfile.TemporaryDirectory(prefix="malletrain-shadow-") as folder:
        own = settings.model_copy(update={"state_dir": Path(folder)})
        watched = build_source(section, own, ScavengerStateFile(own.state_dir), SystemClock())
        trace = asyncio.run(record(watched, seconds, period_s, tell))
    if trace is None:
        raise InvalidInputError("--for", "a time in which the scheduler answers at least twice", length)
    written, metrics = list[Path](), None
    if report is not None and trace.fragments:
        written, metrics = write_report(trace, workload, out.name, about, report)
    elif as_json:
        metrics = would_have(trace, workload)
    if as_json:
        print_json({"trace": str(out), "duration_s": trace.duration_s, **(asdict(metrics) if metrics else {})})
    else:
        typer.echo(f"wrote {out}; replayed with {workload.title}. More: malletrain replay --trace {out}")
        for path in written:
            typer.echo(f"wrote {path}")


def watching_only(section: ScavengerSettings, source: str) -> ScavengerSettings:
    """The settings with the given source and without holding: a shadow submits no placeholder."""
    watched = {
        name: scheduler.model_copy(update={"hold": scheduler.hold.model_copy(update={"queue": "", "ssh": ()})})
        for name, scheduler in (("slurm", section.slurm), ("pbs", section.pbs))
    }
    return section.model_copy(update={"source": source, **watched})


async def record(
    source: NodeSource,
    seconds: float,
    period_s: float,
    tell: Callable[[Trace, FragmentRecorder], None],
    monotonic: Callable[[], float] = time.monotonic,
) -> Trace | None:
    """Record what a source observes, for some seconds or until SIGINT or SIGTERM.

    Args:
        seconds: For how long.
        period_s: `tell` is called after each such period, and at the end.
        tell: Gets the trace so far.
        monotonic: Clock in seconds.

    Returns:
        The trace; None if nothing was observed.
    """
    recorder = FragmentRecorder()
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ending.set)

    async def follow() -> None:
        due = monotonic() + period_s
        async for observation in source.observations():
            recorder.observe(observation)
            if monotonic() >= due and (trace := recorder.trace()) is not None:
                due = monotonic() + period_s
                tell(trace, recorder)

    following, waiting = asyncio.create_task(follow()), asyncio.create_task(ending.wait())
    try:
        await asyncio.wait({following, waiting}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            following.result()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        following.cancel()
        waiting.cancel()
        await asyncio.gather(following, waiting, return_exceptions=True)
        await source.close()
    trace = recorder.trace()
    if trace is not None:
        tell(trace, recorder)
    return trace


def would_have(trace: Trace, workload: Workload) -> Metrics | None:
    """Metrics of a replay of the trace; None if no node was idle."""
    # Solver and tables take a second to load.
    from malletrain.simulator.replay.evaluation import Scenario, evaluate

    if not trace.fragments:
        return None
    options = ReplayOptions(duration_s=trace.duration_s, repeat_jobs=workload.repeats)
    return evaluate(Scenario.of(trace, trace.duration_s), workload.jobs, options, bound=False).metrics


def write_report(
    trace: Trace, workload: Workload, title: str, about: Mapping[str, object], folder: Path
) -> tuple[list[Path], Metrics]:
    """Write the page, figures and tables of a replay of the trace; see `replay --out`. Returns them and its metrics.

    Args:
        trace: What was recorded; a node was idle.
        workload: The jobs.
        title: What to call the trace.
        about: Its metadata.
        folder: A folder that exists.

    Raises:
        InvalidInputError: the folder can't be written.
    """
    from malletrain.simulator.replay.evaluation import evaluate

    options = ReplayOptions(duration_s=trace.duration_s, repeat_jobs=workload.repeats)
    replay_input = input_of(title, trace, workload, options, {**about, "nodes": trace.nodes})
    replayed = replayed_of(replay_input, evaluate(replay_input.scenario, workload.jobs, options))
    rates = HourlyRates()
    written = write_results(replay_input, replayed, answer(replayed, rates), rates, None, folder, "--report")
    return written, replayed.evaluation.metrics


def metrics_in_words(trace: Trace, workload: Workload) -> str:
    """The metrics of a replay in a sentence."""
    metrics = would_have(trace, workload)
    if metrics is None:
        return "no node was idle so far"
    work = metrics.work_in_words(trace.duration_s)
    return (
        f"{metrics.resource_integral_node_hours:,.2f} node-hours idle, as {metrics.equivalent_nodes:,.1f} nodes at "
        f"all times; would have trained {metrics.samples:,.0f} samples (U {metrics.utilization_efficiency:.1%})"
        f"{f'. {work}' if work else ''}"
    )


def _check_writable(out: Path) -> None:
    if not out.name.endswith((".csv", ".csv.gz", ".parquet")):
        raise InvalidInputError("--out", "a name that ends in .csv, .csv.gz or .parquet", str(out))
    if not out.absolute().parent.is_dir():
        raise InvalidInputError("--out", "a file in a folder that exists", str(out))
