"""How `malletrain replay` and `malletrain shadow` show a replay: in the terminal, as JSON, as a page with tables."""

from __future__ import annotations

from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from malletrain.cli.shared.output import print_table
from malletrain.cli.simulate.replay_input import ReplayInput
from malletrain.runtime.errors import InvalidInputError

if TYPE_CHECKING:
    from malletrain.simulator.replay.evaluation import BurstBufferFigures, Evaluation
    from malletrain.simulator.replay.records import Metrics
    from malletrain.simulator.report.answers import Answers, HourlyRates, Replayed
    from malletrain.simulator.report.delays import MeasuredDelay

SEED = 0
"""Of the drawings for intervals: the same replay gives the same page."""


def require_plots(option: str = "--out") -> None:
    """Before the work: is there what draws figures and writes tables?

    Raises:
        InvalidInputError: the extra `sim` is not installed.
    """
    for name in ("jinja2", "matplotlib", "pyarrow"):
        if find_spec(name) is None:
            raise InvalidInputError(option, f"{name} to be installed (pip install 'malletrain[sim]')")


def make_folder(out: Path | None, option: str = "--out") -> None:
    """Make the folder for results before the work.

    Raises:
        InvalidInputError: it can't be made.
    """
    if out is None:
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(option, f"a folder that can be made ({error})", str(out)) from error


def replayed_of(replay_input: ReplayInput, evaluation: Evaluation) -> Replayed:
    """A replay with what it was of."""
    from malletrain.simulator.report.answers import Replayed, usable_nodes

    usable = usable_nodes(replay_input.workload.jobs, replay_input.options)
    return Replayed(replay_input.trace, replay_input.scenario, evaluation, usable, replay_input.all_nodes)


def answer(replayed: Replayed, rates: HourlyRates) -> Answers:
    """The answers of a replay, the same each time."""
    import numpy as np

    from malletrain.simulator.report.answers import answers_of

    return answers_of(replayed, rates, np.random.default_rng(SEED))


def write_results(
    replay_input: ReplayInput,
    replayed: Replayed,
    answers: Answers,
    rates: HourlyRates,
    delay: MeasuredDelay | None,
    out: Path,
    option: str = "--out",
) -> list[Path]:
    """Write the page, its charts and the tables of a replay into a folder that exists.

    Raises:
        InvalidInputError: the folder can't be written.
    """
    from malletrain.simulator.report.replay_page import PageInput, Titles, write_page, write_tables

    page = PageInput(
        replayed,
        replay_input.options,
        Titles(replay_input.title, replay_input.workload.title),
        answers,
        rates,
        replay_input.metadata,
        () if replay_input.report is None else replay_input.report.notes,
        delay or replay_input.delay,
    )
    try:
        return [*write_page(page, out), *write_tables(replayed.evaluation, out)]
    except OSError as error:
        raise InvalidInputError(option, f"a folder that can be written ({error})", str(out)) from error


def figures_of(replay_input: ReplayInput, evaluation: Evaluation, answers: Answers) -> dict[str, object]:
    """All figures, for scripts."""
    figures: dict[str, object] = {
        **asdict(evaluation.metrics),
        "wall_seconds": evaluation.wall_seconds,
        "engine": replay_input.options.engine.value,
        "gain": asdict(answers.gain),
        "cost": asdict(answers.cost),
        "intervals_over": None if answers.blocks is None else f"{answers.blocks.count} {answers.blocks.word}s",
    }
    if evaluation.owners:
        figures |= {"owners": [asdict(owner) for owner in evaluation.owners], "jain_index": evaluation.jain_index}
    if evaluation.burst_buffer is not None:
        figures |= asdict(evaluation.burst_buffer)
    return figures | ({"journal": replay_input.report.to_json()} if replay_input.report is not None else {})


def print_replay(replay_input: ReplayInput, evaluation: Evaluation, answers: Answers, rates: HourlyRates) -> None:
    """Show all figures in the terminal."""
    if replay_input.report is not None:
        from malletrain.cli.journal.showing import print_report

        print_report(replay_input.report)
    _print(evaluation.metrics, answers.duration_s, evaluation.wall_seconds)
    if evaluation.owners:
        _print_owners(evaluation)
    if evaluation.burst_buffer is not None:
        _print_burst_buffer(evaluation.burst_buffer)
    for line in answers_in_words(answers, rates):
        typer.echo(line)


def answers_in_words(answers: Answers, rates: HourlyRates) -> list[str]:
    """What is gained, in lines."""
    from malletrain.simulator.report.answer_cards import gain_card

    card = gain_card(answers, rates)
    tiles = [f"{tile.value} {tile.label}" + (f" ({tile.detail})" if tile.detail else "") for tile in card.tiles]
    return [*tiles, *card.sentences]


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


def _print(metrics: Metrics, duration_s: float, wall_seconds: float) -> None:
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
    if work := metrics.work_in_words(duration_s):
        typer.echo(work)
    rate = metrics.events / wall_seconds if wall_seconds else 0.0
    typer.echo(
        f"{metrics.events:,} node events, {metrics.decisions:,} decisions in {wall_seconds:.2f} s ({rate:,.0f}/s)"
    )
