"""The answers to a manager's three questions, as the page words them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.report.answers import Answers, Estimate, Harvest, HourlyRates
from malletrain.simulator.report.delays import REFERENCE, MeasuredDelay
from malletrain.simulator.report.trace_notes import TraceNotes
from malletrain.simulator.report.wording import NONE, number, period, round_value, share, span, zone_of

_MUCH_SKIPPED = 0.01


@dataclass(frozen=True)
class Tile:
    """A figure.

    Attributes:
        value: The figure.
        label: What it is.
        detail: What it is made of, or its interval; may be empty.
    """

    value: str
    label: str
    detail: str = ""


@dataclass(frozen=True)
class Bar:
    """A share as a bar.

    Attributes:
        label: What it is.
        text: The share in words.
        percent: Its length, 0 to 100.
        ours: Whether it is ours; else it is a bound.
    """

    label: str
    text: str
    percent: float
    ours: bool


@dataclass(frozen=True)
class Card:
    """An answer.

    Attributes:
        tiles: Figures.
        bars: Shares that are compared.
        sentences: What else is to be said.
    """

    question: str
    tiles: tuple[Tile, ...]
    bars: tuple[Bar, ...] = ()
    sentences: tuple[str, ...] = ()


def cards_of(
    answers: Answers,
    rates: HourlyRates,
    delay: MeasuredDelay | None,
    begin: datetime | None,
    notes: TraceNotes,
    jobs: str,
    options: ReplayOptions,
) -> tuple[Card, Card, Card]:
    """The three answers.

    Args:
        answers: Their figures.
        rates: What node-hours are counted in.
        delay: How long main jobs wait; None: not measured.
        begin: Second 0 of the trace; None: not known.
        notes: How the trace was made.
        jobs: What the jobs are called.
        options: Options of the replay.
    """
    sure = certainty_card(answers, begin, notes, jobs, options.max_parallel)
    return gain_card(answers, rates), cost_card(answers, delay), sure


def gain_card(answers: Answers, rates: HourlyRates) -> Card:
    """What would I gain?"""
    gain = answers.gain
    tiles = [
        _idle(answers),
        Tile(
            f"{round_value(gain.nodes.value)} {_plural(gain.nodes.value, 'node')}",
            "of your own, always there, would train as much",
            _join(f"{round_value(gain.idle_nodes)} idle on average", _interval(gain.nodes)),
        ),
        *_worth(gain.yearly or gain.measured, answers, rates),
    ]
    sentences = []
    if gain.yearly is None:
        sentences.append("The log is too short to say anything about a year: that takes a week at least.")
    if answers.usable_nodes < gain.idle_nodes:
        sentences.append(
            f"The trainings of this replay can use {number(answers.usable_nodes)} nodes at once (--max-parallel, and "
            "the largest scale of each); what is idle beyond that is not counted as a gain."
        )
    return Card("What would you gain?", tuple(tiles), _efficiencies(answers), tuple(sentences))


def _idle(answers: Answers) -> Tile:
    gain = answers.gain
    if gain.idle_share is None:
        return Tile(round_value(gain.idle_node_hours), "node-hours were idle", "how many nodes there are is not known")
    idle = f"{round_value(gain.idle_node_hours)} of {round_value(gain.node_hours)} node-hours"
    return Tile(share(gain.idle_share.value), "of all node-hours were idle", _join(idle, _shares(gain.idle_share)))


def _efficiencies(answers: Answers) -> tuple[Bar, ...]:
    gain = answers.gain
    value = gain.efficiency
    likely = _shares(value)
    text = f"{share(value.value)}{f' ({likely})' if likely else ''}"
    bars = [Bar("of what as many nodes of your own would train (U)", text, _percent(value.value), ours=True)]
    if gain.bound is not None:
        label = "if changing the size of a training cost nothing: the bound of U"
        bars.append(Bar(label, share(gain.bound), _percent(gain.bound), ours=False))
    return tuple(bars)


def _worth(harvest: Harvest, answers: Answers, rates: HourlyRates) -> list[Tile]:
    yearly = answers.gain.yearly is not None
    when = "a year" if yearly else f"in {span(answers.duration_s)} of log"
    known = [(harvest.node_hours, "node-hours")]
    if harvest.gpu_hours is not None:
        known.append((harvest.gpu_hours, "GPU-hours"))
    tiles = [Tile(round_value(entry.value), f"{unit} {when}", _interval(entry)) for entry, unit in known]
    if harvest.money is not None:
        value = " ".join(part for part in (rates.currency, round_value(harvest.money.value)) if part)
        tiles.append(Tile(value, f"{when}, at {_rate_in_words(rates)}", _interval(harvest.money)))
    return tiles


def _rate_in_words(rates: HourlyRates) -> str:
    amounts = ((rates.node_hour, "node-hour"), (rates.gpu_hour, "GPU-hour"))
    unit = f"{rates.currency} " if rates.currency else ""
    return " and ".join(f"{unit}{_amount(rate)} a {of}" for rate, of in amounts if rate is not None)


def _amount(rate: float) -> str:
    return f"{rate:,.2f}" if rate >= 0.01 and round(rate, 2) == rate else f"{rate:,g}"


def cost_card(answers: Answers, delay: MeasuredDelay | None) -> Card:
    """What would it cost my users?"""
    cost = answers.cost
    stays = f"{span(cost.mean_stay_s)} idle each time, on average" if cost.taken_back else ""
    if cost.per_day is None:
        tiles = [Tile(number(cost.taken_back), f"times a node is taken back in {span(answers.duration_s)}", stays)]
    else:
        tiles = [Tile(round_value(cost.per_day), "times a day a node is taken back", stays)]
    sentences = []
    if delay is not None:
        tiles.append(Tile(f"{delay.seconds:,.2f} s", delay.what, f"Measured: {delay.source}"))
    else:
        tiles.append(Tile("not measured", "how much later main jobs start", "a log takes no node back"))
        sentences.append(REFERENCE)
    if cost.preemptions:
        sentences.append(
            f"{number(cost.preemptions)} times a training lost nodes to the main queue, and by that "
            f"{share(cost.lost_share)} of all its work. That is taken off the gain."
        )
    return Card("What would it cost your users?", tuple(tiles), (), tuple(sentences))


def certainty_card(answers: Answers, begin: datetime | None, notes: TraceNotes, jobs: str, parallel: int) -> Card:
    """How sure is that?"""
    dates = f"{period(begin, answers.duration_s)} ({zone_of(begin.tzinfo)})" if begin is not None else ""
    known = "" if answers.gain.idle_share is not None else " that were idle"
    nodes = f"{number(answers.nodes)} {_plural(answers.nodes, 'node')}{known}"
    tiles = [Tile(span(answers.duration_s), f"of log, {nodes}", dates or "dates are not known")]
    blocks = answers.blocks
    if blocks is not None:
        interval = _interval(answers.gain.nodes).removeprefix("likely ")
        drawn = f"“likely” is the 95 % interval over {blocks.count:,} whole {blocks.word}s"
        tiles.append(Tile(f"{interval} nodes", "of your own are likely", drawn))
    else:
        tiles.append(Tile("no interval", "that takes a week of log at least"))
    tiles.append(_skipped_tile(notes))
    sentences = [
        f"The trainings are simulated: {jobs}, at most {parallel:,} at once. The main jobs are those of the log, and "
        "start when they did.",
    ]
    if answers.gain.yearly is not None:
        sentences.append("A year is taken to be like this log.")
    return Card("How sure is that?", tuple(tiles), (), tuple(sentences))


def _skipped_tile(notes: TraceNotes) -> Tile:
    if not notes.counted:
        return Tile("not recorded", "how much of the log could not be read")
    if not notes.skipped:
        return Tile("nothing", "of the log was skipped", f"{number(notes.rows_used)} rows")
    rows = f"{number(notes.skipped_rows)} {_plural(notes.skipped_rows, 'row')}"
    known = any(entry.node_hours is not None for entry in notes.skipped)
    hours = f"{share(notes.skipped_node_hour_share, 2)} of the node-hours in jobs" if known else "node-hours not known"
    return Tile(share(notes.skipped_row_share, 2), "of the log was skipped", f"{rows}, {hours}")


def warnings_of(answers: Answers, notes: TraceNotes, work: str) -> tuple[str, ...]:
    """What a reader must know before any figure.

    Args:
        notes: How the trace was made.
        work: Where work ran out, in words; empty: it did not.
    """
    warnings = ["This trace was drawn at random: it is no log of a machine."] if notes.drawn else []
    warnings += [work] if work else []
    worst = max(notes.skipped_row_share, notes.skipped_node_hour_share)
    if worst > _MUCH_SKIPPED:
        warnings.append(f"{share(worst)} of the log was skipped: what was idle may be quite different.")
    if answers.blocks is None:
        warnings.append(f"This is {span(answers.duration_s)} of log: too little to conclude from.")
    return tuple(warnings)


def _interval(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    return f"likely {round_value(estimate.low)} to {round_value(estimate.high)}"


def _shares(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    return f"likely {share(estimate.low).removesuffix(' %')} to {share(estimate.high)}"


def _join(*parts: str) -> str:
    return "; ".join(part for part in parts if part and part != NONE)


def _percent(value: float) -> float:
    return round(100.0 * min(1.0, max(0.0, value)), 1)


def _plural(count: float, word: str) -> str:
    return word if round_value(count) in ("1", "1.00") else f"{word}s"
