"""`malletrain replay`: what a log's idle nodes would have trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from malletrain.allocator.forward_time import FORWARD_SECONDS, SURVIVAL_SHARE, ForwardPolicy
from malletrain.allocator.problem import CostModel, ObjectiveMetric
from malletrain.cli.burst_buffer import parse_burst_buffer
from malletrain.cli.output import JsonOption, hint_at_compiler, print_json, print_table
from malletrain.cli.progress import progress_bar
from malletrain.job_manager.admission_window import AdmissionRule
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Trace, window
from malletrain.scavenger.trace_files import read_trace
from malletrain.simulator.replay.job_set import ReplayJob, read_job_set
from malletrain.simulator.replay.options import Accounting, ReplayEngine, ReplayOptions, ReplayPolicy
from malletrain.simulator.replay.presets import PRESETS, preset_jobs

if TYPE_CHECKING:
    from malletrain.cli.journal.showing import JournalReport
    from malletrain.simulator.replay.burst_buffer_figures import BurstBufferFigures
    from malletrain.simulator.replay.evaluation import Evaluation, Scenario
    from malletrain.simulator.replay.metrics import Metrics

_HOUR_S = 3600.0

TraceOption = typer.Option(help="Idle fragments: NAME.csv, NAME.csv.gz or NAME.parquet, with NAME.json beside it.")
NodesOption = typer.Option(min=1, help="Only the first N nodes of the trace.")
JobsOption = typer.Option(help=f"Job set: a CSV file, or a built-in set: {', '.join(PRESETS)}.")
ScalingOption = typer.Option(help="Scaling table of the job set; default: scaling.csv beside it.")
OutOption = typer.Option(help="Folder for tables, figures and the page; made if missing.")


def replay(
    trace: Annotated[Path | None, TraceOption] = None,
    journal: Annotated[
        str | None,
        typer.Option(
            metavar="STATE_DIR|live",
            help="In place of a trace and a job set: an installation's past, from its state folder or its services.",
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="With --journal: only the last 90m, 24h, 7d; default: all that is known.")
    ] = None,
    nodes: Annotated[int | None, NodesOption] = None,
    hours: Annotated[float | None, typer.Option(help="Only the first hours; default: the whole trace.")] = None,
    jobs: Annotated[str, JobsOption] = PRESETS[0],
    scaling: Annotated[Path | None, ScalingOption] = None,
    policy: Annotated[ReplayPolicy, typer.Option(help="Who decides about the nodes.")] = ReplayPolicy.MILP,
    forward: Annotated[float, typer.Option(help="T_fwd: how far a decision looks ahead, seconds.")] = FORWARD_SECONDS,
    forward_policy: Annotated[
        ForwardPolicy,
        typer.Option(help="T_fwd fixed, or from how long nodes stay (survival) or how often jobs change (expected)."),
    ] = ForwardPolicy.CONSTANT,
    forward_share: Annotated[float, typer.Option(help="That share, with `survival`.")] = SURVIVAL_SHARE,
    max_parallel: Annotated[int, typer.Option(help="Jobs that may take part at once.")] = 10,
    max_parallel_per_owner: Annotated[int, typer.Option(help="Jobs of one owner of these; 0: no limit.")] = 0,
    max_nodes_per_owner: Annotated[int, typer.Option(help="Nodes of all jobs of one owner; 0: no limit.")] = 0,
    fair_share_half_life: Annotated[
        float, typer.Option(help="Half-life of what owners have used, seconds; 0: no fair share.")
    ] = 604_800.0,
    burst_buffer: Annotated[
        str, typer.Option(help="Quota of burst buffer for jobs that ask for some, e.g. 4TB, 500GB or 2000 (GB).")
    ] = "0",
    admission: Annotated[
        AdmissionRule, typer.Option(help="Who gets burst buffer: first come, first served, or a selection (BBSched).")
    ] = AdmissionRule.FIFO,
    window: Annotated[int, typer.Option(help="With `window`: jobs that are looked at together.")] = 20,
    starvation_bound: Annotated[int, typer.Option(help="With `window`: how many times a job may be passed over.")] = 50,
    accounting: Annotated[
        Accounting, typer.Option(help="Jobs arrive and end when it happens (event), or at the next node event (paper).")
    ] = Accounting.EVENT,
    cost_model: Annotated[CostModel, typer.Option(help="What the allocator believes.")] = CostModel.STALL,
    charge: Annotated[CostModel | None, typer.Option(help="What rescaling costs; default: as believed.")] = None,
    metric: Annotated[ObjectiveMetric, typer.Option(help="How progress is measured.")] = ObjectiveMetric.THROUGHPUT,
    commit_seconds: Annotated[
        float, typer.Option(help="With stall charges: a preemption loses what was done since the last commit. 0: none.")
    ] = 5.0,
    fixed_nodes: Annotated[
        int | None, typer.Option(help="Size of every job under `fixed`; default: its largest.")
    ] = None,
    paper_quirks: Annotated[
        bool, typer.Option("--paper-quirks", help="As the published code, flaws included.")
    ] = False,
    engine: Annotated[
        ReplayEngine,
        typer.Option(help="fast, or services: the services' own decisions on a simulated clock, some 40 times slower."),
    ] = ReplayEngine.FAST,
    bound: Annotated[bool, typer.Option(help="Replay once more with free rescaling, for the zero-cost bound.")] = True,
    out: Annotated[Path | None, OutOption] = None,
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """Replay a log, or an installation's own past: what would the idle nodes have trained?"""
    if (trace is None) == (journal is None):
        raise InvalidInputError("--trace", "--trace or --journal, and not both")
    options = ReplayOptions(
        # A whole trace's length is not known before it is read.
        duration_s=hours * _HOUR_S if hours is not None else 1.0,
        policy=policy,
        forward_s=forward,
        forward_policy=forward_policy,
        forward_share=forward_share,
        max_parallel=max_parallel,
        max_parallel_per_owner=max_parallel_per_owner,
        max_nodes_per_owner=max_nodes_per_owner,
        fair_share_half_life_s=fair_share_half_life,
        burst_buffer_gb=parse_burst_buffer(burst_buffer),
        admission=admission,
        window=window,
        starvation_bound=starvation_bound,
        accounting=accounting,
        cost_model=cost_model,
        charge=charge,
        metric=metric,
        commit_s=commit_seconds,
        fixed_nodes=fixed_nodes,
        paper_quirks=paper_quirks,
        engine=engine,
    )
    report = None
    if trace is None or journal is not None:
        refuse_beside_journal({"--nodes": nodes, "--hours": hours, "--scaling": scaling}, jobs != PRESETS[0])
        report, scenario, workload, options = past_of(str(journal), since, options)
        titles = (str(journal), "its own jobs")
    else:
        if since is not None:
            raise InvalidInputError("--since", "--journal beside it")
        workload, title = jobs_of(jobs, scaling)
        options.check_requests(workload)
        scenario, options = scenario_of(trace, nodes, hours, options)
        titles = (trace.name, title)
    _run(scenario, workload, options, bound=bound, out=out, as_json=as_json, titles=titles, report=report)


def refuse_beside_journal(given: Mapping[str, object], has_jobs: bool) -> None:
    """A journal has its own nodes, time and jobs.

    Raises:
        InvalidInputError: an option says otherwise.
    """
    wrong = [name for name, value in given.items() if value is not None] + (["--jobs"] if has_jobs else [])
    if wrong:
        raise InvalidInputError(wrong[0], "--trace beside it: a journal has its own nodes, time and jobs")


def past_of(
    place: str, since: str | None, options: ReplayOptions
) -> tuple[JournalReport, Scenario, tuple[ReplayJob, ...], ReplayOptions]:
    """The past of an installation as input of a replay, and the options with its duration.

    Raises:
        InvalidInputError: there is no such past, or no job or idle node in it.
        MalleTrainError: it can't be read.
    """
    from malletrain.cli.journal.reading import read_journal
    from malletrain.cli.journal.showing import report_on
    from malletrain.cli.journal.span import span_of
    from malletrain.cli.settings import load
    from malletrain.simulator.replay.evaluation import Scenario

    journal = read_journal(place, load())
    begin, end, said = span_of(journal, since)
    report, found = report_on(journal, (begin, end), said)
    if not found.jobs:
        raise InvalidInputError("--journal", " ".join(("a past in which jobs trained.", *report.notes)), place)
    options = replace(options, duration_s=end - begin)
    options.check_requests(found.jobs)
    return report, Scenario.of(found.trace, end - begin), found.jobs, options


def jobs_of(jobs: str, scaling: Path | None) -> tuple[tuple[ReplayJob, ...], str]:
    """The job set and what to call it.

    Raises:
        InvalidInputError: a file can't be read, or `--scaling` goes with a built-in set.
    """
    if jobs in PRESETS:
        if scaling is not None:
            raise InvalidInputError("--scaling", f"a job set in a file (--jobs is the built-in set {jobs})")
        return preset_jobs(jobs), f"the built-in job set {jobs}"
    path = Path(jobs)
    return read_job_set(path, scaling or path.with_name("scaling.csv")), path.name


def scenario_of(
    trace: Path, nodes: int | None, hours: float | None, options: ReplayOptions
) -> tuple[Scenario, ReplayOptions]:
    """The scenario of a trace's beginning, and the options with its duration.

    Raises:
        InvalidInputError: the trace can't be read, or has fewer nodes or hours.
    """
    from malletrain.simulator.replay.evaluation import Scenario

    found = read_trace(trace)
    duration_s = check_extent(found, nodes, hours)
    excerpt = window(found, 0.0, duration_s, nodes)
    return Scenario.of(excerpt, duration_s), replace(options, duration_s=duration_s)


def check_extent(trace: Trace, nodes: int | None, hours: float | None) -> float:
    """Seconds of a trace to replay.

    Raises:
        InvalidInputError: the trace has fewer nodes or hours.
    """
    if nodes is not None and nodes > len(trace.nodes):
        raise InvalidInputError("--nodes", f"at most {len(trace.nodes)}, as many as the trace knows", nodes)
    duration_s = trace.duration_s if hours is None else hours * _HOUR_S
    if not 0 < duration_s <= trace.duration_s:
        longest = trace.duration_s / _HOUR_S
        raise InvalidInputError("--hours", f"above 0 and at most {longest:g}, the trace's length", hours)
    return duration_s


def _run(
    scenario: Scenario,
    jobs: tuple[ReplayJob, ...],
    options: ReplayOptions,
    *,
    bound: bool,
    out: Path | None,
    as_json: bool,
    titles: tuple[str, str],
    report: JournalReport | None = None,
) -> None:
    # Solver and plots take a second to load, which no other verb should pay.
    from malletrain.simulator.replay.evaluation import evaluate

    if out is not None:
        require_plots()
    make_folder(out)
    hint_at_compiler()
    with progress_bar("replay", options.duration_s) as progress:
        evaluation = evaluate(scenario, jobs, options, bound=bound, progress=progress)
    written = _write(evaluation, options, titles, out) if out is not None else []
    if as_json:
        print_json(_figures(evaluation, options) | ({"journal": report.to_json()} if report is not None else {}))
        return
    if report is not None:
        from malletrain.cli.journal.showing import print_report

        print_report(report)
    _print(evaluation.metrics, evaluation.wall_seconds)
    if evaluation.owners:
        _print_owners(evaluation)
    if evaluation.burst_buffer is not None:
        _print_burst_buffer(evaluation.burst_buffer)
    for path in written:
        typer.echo(f"wrote {path}")


def require_plots() -> None:
    """Before the work: is there what draws figures and writes tables?

    Raises:
        InvalidInputError: the extra `sim` is not installed.
    """
    for name in ("jinja2", "matplotlib", "pyarrow"):
        if find_spec(name) is None:
            raise InvalidInputError("--out", f"{name} to be installed (pip install 'malletrain[sim]')")


def make_folder(out: Path | None) -> None:
    """Make the folder for results before the work.

    Raises:
        InvalidInputError: it can't be made.
    """
    if out is None:
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError("--out", f"a folder that can be made ({error})", str(out)) from error


def _write(evaluation: Evaluation, options: ReplayOptions, titles: tuple[str, str], out: Path) -> list[Path]:
    from malletrain.simulator.report.files import write_tables
    from malletrain.simulator.report.replay_page import Titles, write_page

    try:
        return [*write_page(evaluation, options, Titles(*titles), out), *write_tables(evaluation, out)]
    except OSError as error:
        raise InvalidInputError("--out", f"a folder that can be written ({error})", str(out)) from error


def _figures(evaluation: Evaluation, options: ReplayOptions) -> dict[str, object]:
    found: dict[str, object] = {
        **asdict(evaluation.metrics),
        "wall_seconds": evaluation.wall_seconds,
        "engine": options.engine.value,
    }
    if evaluation.owners:
        found |= {"owners": [asdict(owner) for owner in evaluation.owners], "jain_index": evaluation.jain_index}
    if evaluation.burst_buffer is not None:
        found |= asdict(evaluation.burst_buffer)
    return found


def _print_burst_buffer(figures: BurstBufferFigures) -> None:
    waits = {
        "jobs that ask for burst buffer": figures.mean_wait_hours_asking,
        "the others": figures.mean_wait_hours_others,
    }
    rows = [("burst buffer held, of the quota", f"{figures.burst_buffer_usage:.1%}")]
    rows += [(f"mean wait for admission, {who}", f"{hours:.2f} h") for who, hours in waits.items() if hours is not None]
    print_table(("figure", "value"), rows)


def _print_owners(evaluation: Evaluation) -> None:
    rows = [
        (
            owner.owner or "-",
            f"{owner.jobs:,}",
            f"{owner.jobs_completed:,}",
            f"{owner.mean_wait_hours:.2f} h",
            f"{owner.node_hours:,.0f}",
            f"{owner.nodes_while_present:,.1f}",
            f"{owner.samples:,.0f}",
        )
        for owner in evaluation.owners
    ]
    print_table(("owner", "jobs", "done", "mean wait", "node-hours", "nodes while it had jobs", "samples, net"), rows)
    typer.echo(f"Jain's index of the nodes while they had jobs: {evaluation.jain_index:.3f}")


def _print(metrics: Metrics, wall_seconds: float) -> None:
    share = "–" if metrics.zero_cost_bound is None else f"{metrics.zero_cost_bound:.1%}"
    invested = "–" if metrics.return_on_investment is None else f"{metrics.return_on_investment:,.1f}"
    rows = [
        ("utilization efficiency U", f"{metrics.utilization_efficiency:.1%}"),
        ("if rescaling were free", share),
        ("resource integral", f"{metrics.resource_integral_node_hours:,.0f} node-hours"),
        ("equivalent nodes", f"{metrics.equivalent_nodes:,.2f}"),
        ("idle node-hours that jobs held", f"{metrics.occupied_fraction:.1%}"),
        ("samples, net", f"{metrics.samples:,.0f}"),
        (
            "lost to preemption",
            f"{metrics.preemption_cost_samples:,.0f} samples in {metrics.preempted_jobs:,} preemptions",
        ),
        ("spent on rescaling", f"{metrics.rescale_cost_samples:,.0f} samples in {metrics.rescales:,} rescales"),
        ("return on investment", invested),
        ("preempted within T_fwd", f"{metrics.preemption_within_forward:.1%} of node events"),
        ("jobs done", f"{metrics.jobs_completed:,}"),
        *((f"mean runtime, {model}", f"{value:.2f} h") for model, value in metrics.mean_runtime_hours.items()),
    ]
    print_table(("figure", "value"), rows)
    rate = metrics.events / wall_seconds if wall_seconds else 0.0
    typer.echo(
        f"{metrics.events:,} node events, {metrics.decisions:,} decisions in {wall_seconds:.2f} s ({rate:,.0f}/s)"
    )
