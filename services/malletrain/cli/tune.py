"""`malletrain tune`: which settings would have trained more on this installation's own past."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer

from malletrain.cli.output import JsonOption, hint_at_compiler, print_json, print_table
from malletrain.cli.progress import progress_bar
from malletrain.cli.settings import AllSettings, load
from malletrain.cli.tuning_status import show_tuning
from malletrain.runtime.config import CONFIG_FILE
from malletrain.runtime.errors import InvalidInputError

if TYPE_CHECKING:
    from malletrain.simulator.journal.record import Journal
    from malletrain.simulator.tuning.comparison import Gain, SettingsComparison
    from malletrain.simulator.tuning.trials import Trials, TuningDay

_ROWS_SHOWN = 12


def tune(
    journal: Annotated[
        str | None,
        typer.Option(
            metavar="STATE_DIR|live",
            help="The past to replay: state folder, or services; default: state_dir of the settings.",
        ),
    ] = None,
    since: Annotated[str | None, typer.Option(help="Only the last 90m, 24h, 7d; default: all that is known.")] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Write what is recommended to the file of settings.")] = False,
    config: Annotated[Path | None, typer.Option(help="TOML file; by default ./malletrain.toml if it exists.")] = None,
    status: Annotated[
        bool, typer.Option("--status", help="Show instead what allocator.auto_tune has done, and why.")
    ] = False,
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """Replay the installation's own past with other T_fwd, places and coalescing: what would have trained more?"""
    from malletrain.cli.journal.reading import read_journal
    from malletrain.cli.journal.span import span_of
    from malletrain.cli.settings_file import change_settings
    from malletrain.simulator.journal.conversion import journal_input

    if status:
        show_tuning(config, as_json=as_json)
        return
    settings = load(config)
    file = config or Path(CONFIG_FILE)
    if apply and not file.is_file():
        raise InvalidInputError("--apply", "a file of settings to write to (--config)", str(file))
    found = read_journal(journal or str(settings.state_dir), settings)
    begin, end, said = span_of(found, since)
    notes = [*said, *journal_input(found, begin, end).notes]
    days = _days(found, begin, end, notes)
    forward, coalescing = _try(days, settings)
    values = _recommended(forward, coalescing)
    if apply and values:
        change_settings(file, values)
    if as_json:
        print_json(_as_json(forward, coalescing, days, notes, values, applied=apply and bool(values)))
    else:
        _print(forward, coalescing, days, notes)
        _print_advice(values, file if apply else None)


def _days(journal: Journal, begin: float, end: float, notes: Sequence[str]) -> list[TuningDay]:
    from malletrain.simulator.tuning.trials import tuning_days

    days = tuning_days(journal, begin, end)
    if not days:
        raise InvalidInputError("--journal", " ".join(("a past in which jobs trained on idle nodes.", *notes)))
    return days


def _try(days: Sequence[TuningDay], settings: AllSettings) -> tuple[Trials, Trials]:
    """First T_fwd and places with the fast engine, then coalescing at the recommended ones with the services engine."""
    from malletrain.cli.journal.replay_options import options_in_force
    from malletrain.job_manager.admission_window import MOST_PLACES, AdmissionRule
    from malletrain.simulator.tuning.settings_grid import TunedSettings, coalescing_grid, settings_grid
    from malletrain.simulator.tuning.trials import replay_day, replay_day_with_services, try_settings

    hint_at_compiler()
    allocator, manager = settings.allocator, settings.job_manager
    options = options_in_force(settings)
    for day in days:
        options.check_requests(day.jobs)
    present = TunedSettings(
        allocator.forward_policy, allocator.forward_seconds, manager.max_parallel, allocator.coalesce_seconds
    )
    most = MOST_PLACES if manager.admission is AdmissionRule.WINDOW else 10**6
    grid = settings_grid(present, max(len(day.jobs) for day in days), most)
    with _counted("T_fwd and places", len(grid) * len(days)) as replayed:
        forward = try_settings(days, grid, lambda day, one: replay_day(day, one, options), replayed)
    chosen = coalescing_grid(forward.comparison.recommended)
    with _counted("coalescing", len(chosen) * len(days)) as replayed:
        return forward, try_settings(
            days, chosen, lambda day, one: replay_day_with_services(day, one, options), replayed
        )


@contextmanager
def _counted(name: str, replays: int) -> Iterator[Callable[[], None]]:
    """A bar that moves by one with every replay."""
    done = itertools.count(1)
    with progress_bar(name, replays, counts=True) as show:
        yield lambda: show(next(done))


def _recommended(forward: Trials, coalescing: Trials) -> dict[tuple[str, str], str | float | int]:
    return coalescing.comparison.recommended.changes(forward.comparison.present)


def _print(forward: Trials, coalescing: Trials, days: Sequence[TuningDay], notes: Sequence[str]) -> None:
    for note in notes:
        typer.echo(f"note: {note}")
    hours = sum(day.duration_s for day in days) / 3600
    count = "1 day" if len(days) == 1 else f"{len(days)} days"
    typer.echo(f"{count}, {hours:.2f} h; samples compared with the present settings")
    for trials, title in ((forward, "T_fwd and places"), (coalescing, "coalescing, at the settings chosen above")):
        print_table(
            ("forward_policy", "forward_seconds", "max_parallel", "coalesce_seconds", "gain", "node-hours", ""),
            _rows(trials),
            title,
        )
        typer.echo(_verdict(trials.comparison))


def _rows(trials: Trials) -> list[tuple[str, ...]]:
    comparison = trials.comparison
    ranked = sorted(comparison.gains.items(), key=lambda entry: -entry[1].mean)
    shown = dict(ranked[:_ROWS_SHOWN]) | {comparison.present: comparison.gains[comparison.present]}
    return [
        (
            settings.forward_policy.value,
            f"{settings.forward_seconds:g}",
            str(settings.max_parallel),
            f"{settings.coalesce_seconds:g}",
            _in_words(gain),
            f"{_node_hours(gain, trials):+,.2f}",
            "best" if settings == comparison.best else "present" if settings == comparison.present else "",
        )
        for settings, gain in shown.items()
    ]


def _in_words(gain: Gain) -> str:
    interval = "" if gain.half_width is None else f" ± {gain.half_width:.2%}"
    return f"{gain.mean:+.2%}{interval}"


def _node_hours(gain: Gain, trials: Trials) -> float:
    """Node-hours a day that the present settings would need for as many samples more."""
    return fmean(share * hours for share, hours in zip(gain.by_day, trials.node_hours, strict=True))


def _verdict(comparison: SettingsComparison) -> str:
    from malletrain.allocator.auto_tuning.machine import LEAST_GAIN

    judged = comparison.judged
    if comparison.held_out is None:
        text = f"One day only: no interval, and the gain of {judged.mean:+.2%} is on the day that was tuned on."
    else:
        doubt = "; the interval contains 0" if judged.may_be_none else ""
        text = f"On each day with the settings that are best on the other days: {_in_words(judged)}{doubt}."
    if comparison.recommended == comparison.present:
        return f"{text} That is below {LEAST_GAIN:.1%}, or nothing would change: keep what there is."
    return text


def _print_advice(values: dict[tuple[str, str], str | float | int], written: Path | None) -> None:
    from malletrain.cli.settings_file import as_toml

    if not values:
        typer.echo("The present settings stay: nothing is recommended.")
        return
    typer.echo(as_toml(values))
    services = " and ".join(dict.fromkeys(section for section, _ in values))
    if written is None:
        typer.echo(f"Nothing was written: add these lines to the settings, or use --apply; then restart {services}.")
    else:
        typer.echo(f"Written to {written}. Restart {services}: jobs train on meanwhile.")


def _as_json(
    forward: Trials,
    coalescing: Trials,
    days: Sequence[TuningDay],
    notes: Sequence[str],
    values: dict[tuple[str, str], str | float | int],
    *,
    applied: bool,
) -> dict[str, object]:
    return {
        "days": [{"begin_unix": day.begin_unix, "hours": day.duration_s / 3600, "jobs": len(day.jobs)} for day in days],
        "notes": list(notes),
        "forward": _table(forward),
        "coalescing": _table(coalescing),
        "recommended": {f"{section}.{name}": value for (section, name), value in values.items()},
        "applied": applied,
    }


def _table(trials: Trials) -> dict[str, object]:
    comparison = trials.comparison
    rows = [
        {
            "forward_policy": settings.forward_policy.value,
            "forward_seconds": settings.forward_seconds,
            "max_parallel": settings.max_parallel,
            "coalesce_seconds": settings.coalesce_seconds,
            **_gain_json(gain),
            "node_hours_per_day": _node_hours(gain, trials),
            "present": settings == comparison.present,
            "best": settings == comparison.best,
        }
        for settings, gain in comparison.gains.items()
    ]
    held_out = None if comparison.held_out is None else _gain_json(comparison.held_out)
    return {"settings": rows, "held_out": held_out}


def _gain_json(gain: Gain) -> dict[str, object]:
    return {"gain": gain.mean, "half_width": gain.half_width, "gain_by_day": list(gain.by_day)}
