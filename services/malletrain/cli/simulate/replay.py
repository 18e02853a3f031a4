"""`malletrain replay`: what a log's idle nodes would have trained."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from malletrain.allocator.problem.allocation_problem import CostModel, ObjectiveMetric
from malletrain.allocator.problem.forward_time import FORWARD_SECONDS, SURVIVAL_SHARE, ForwardPolicy
from malletrain.caller.job_request import parse_burst_buffer
from malletrain.cli.shared.help_panels import help_panels
from malletrain.cli.shared.output import JsonOption, hint_at_compiler, print_json
from malletrain.cli.shared.progress import progress_bar
from malletrain.cli.simulate.replay_input import (
    ReplayInput,
    jobs_of,
    past_of,
    refuse_beside_journal,
    terms_of_pool,
    trace_of,
)
from malletrain.cli.simulate.replay_output import (
    answer,
    figures_of,
    make_folder,
    print_replay,
    replayed_of,
    require_plots,
    write_results,
)
from malletrain.job_manager.machine.admission import AdmissionRule
from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.replay.options import Accounting, ReplayEngine, ReplayOptions, ReplayPolicy
from malletrain.simulator.replay.presets import PRESETS
from malletrain.simulator.report.answers import HourlyRates
from malletrain.simulator.report.delays import MeasuredDelay, read_delay

_HOUR_S = 3600.0

TraceOption = typer.Option(help="Idle fragments: NAME.csv, NAME.csv.gz or NAME.parquet, with NAME.json beside it.")
NodesOption = typer.Option(min=1, help="Only the first N nodes of the trace.")
JobsOption = typer.Option(help=f"Job set: a CSV file, or a built-in set: {', '.join(PRESETS)}.")
ScalingOption = typer.Option(help="Scaling table of the job set; default: scaling.csv beside it.")
OutOption = typer.Option(help="Folder for tables, figures and the page; made if missing.")
RateOption = typer.Option(help="Charge for a node-hour: says what the idle nodes are worth in money.")
GpuRateOption = typer.Option(help="Charge for a GPU-hour, in addition; with --gpus-per-node.")
GpusOption = typer.Option(help="GPUs of each node: says what the idle nodes are worth in GPU-hours.")
CurrencyOption = typer.Option(help="What charges are in, e.g. EUR.")
DelaysOption = typer.Option(help="File of benchmarks/zero_impact.py: how much later main jobs were measured to start.")


@help_panels(
    {
        "What is replayed": ("trace", "nodes", "hours", "journal", "since", "jobs", "scaling"),
        "Who gets which nodes": (
            *("policy", "fixed_nodes", "forward", "forward_policy", "forward_share", "metric", "cost_model"),
            *("max_parallel", "max_parallel_per_owner", "max_nodes_per_owner", "fair_share_half_life", "pool"),
        ),
        "Burst buffer": ("burst_buffer", "admission", "window", "starvation_bound"),
        "How it is counted": ("engine", "accounting", "charge", "commit_seconds", "paper_quirks", "bound"),
        "What it is worth": ("rate", "gpu_rate", "gpus_per_node", "currency", "delays"),
    }
)
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
    pool: Annotated[
        str | None,
        typer.Option(help="The nodes are those of this pool: what [allocator.pools] of the settings says holds."),
    ] = None,
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
    rate: Annotated[float | None, RateOption] = None,
    gpu_rate: Annotated[float | None, GpuRateOption] = None,
    gpus_per_node: Annotated[int | None, GpusOption] = None,
    currency: Annotated[str, CurrencyOption] = "",
    delays: Annotated[Path | None, DelaysOption] = None,
    out: Annotated[Path | None, OutOption] = None,
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """Replay a log, or an installation's own past: what would the idle nodes have trained?"""
    given = locals()
    if (trace is None) == (journal is None):
        raise InvalidInputError("--trace", "--trace or --journal, and not both")
    alike = {entry.name: given[entry.name] for entry in fields(ReplayOptions) if entry.name in given}
    alike["burst_buffer_gb"] = parse_burst_buffer(burst_buffer)
    options = ReplayOptions(
        # A whole trace's length is not known before it is read.
        duration_s=hours * _HOUR_S if hours is not None else 1.0,
        forward_s=forward,
        fair_share_half_life_s=fair_share_half_life,
        commit_s=commit_seconds,
        **alike,
    )
    if pool is not None:
        options = options.of_pool(terms_of_pool(pool))
    rates = HourlyRates(rate, gpu_rate, gpus_per_node, currency)
    delay = None if delays is None else read_delay(delays)
    if trace is None or journal is not None:
        refuse_beside_journal({"--nodes": nodes, "--hours": hours, "--scaling": scaling}, jobs != PRESETS[0])
        replay_input = past_of(str(journal), since, options)
    else:
        if since is not None:
            raise InvalidInputError("--since", "--journal beside it")
        replay_input = trace_of(trace, nodes, hours, jobs_of(jobs, scaling), options)
    _run(replay_input, rates, delay, bound=bound, out=out, as_json=as_json)


def _run(
    replay_input: ReplayInput,
    rates: HourlyRates,
    delay: MeasuredDelay | None,
    *,
    bound: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    # Solver and plots take a second to load, which no other verb should pay.
    from malletrain.simulator.replay.evaluation import evaluate

    if out is not None:
        require_plots()
    make_folder(out)
    hint_at_compiler()
    with progress_bar("replay", replay_input.options.duration_s) as progress:
        evaluation = evaluate(
            replay_input.scenario, replay_input.workload.jobs, replay_input.options, bound=bound, progress=progress
        )
    if replay_input.report is not None:
        from malletrain.simulator.journal.utilization import by_minute

        evaluation = by_minute(
            evaluation, replay_input.workload.jobs, replay_input.report.begin_unix, replay_input.report.end_unix
        )
    replayed = replayed_of(replay_input, evaluation)
    answers = answer(replayed, rates)
    written = [] if out is None else write_results(replay_input, replayed, answers, rates, delay, out)
    if as_json:
        print_json(figures_of(replay_input, evaluation, answers))
        return
    print_replay(replay_input, evaluation, answers, rates)
    for path in written:
        typer.echo(f"wrote {path}")
