"""`malletrain tune`: which settings would have trained more on this installation's own past."""

from __future__ import annotations

import itertools
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer

from malletrain.cli.operate.tuning_status import show_tuning
from malletrain.cli.shared.configured import ConfigOption
from malletrain.cli.shared.output import JsonOption, hint_at_compiler, print_json, print_table
from malletrain.cli.shared.progress import progress_bar
from malletrain.cli.shared.settings import AllSettings, load
from malletrain.common.environment import PREFIX
from malletrain.common.files import write_atomically
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.settings_file import CONFIG_FILE, settings_file

SettingValue = str | float | int
SettingValues = Mapping[tuple[str, str], SettingValue]
"""Values by section and name."""


def as_toml(values: SettingValues) -> str:
    """Sections with these values, as lines of TOML."""
    lines: list[str] = []
    for section in dict.fromkeys(section for section, _ in values):
        lines.append(f"[{section}]")
        lines += [_line(name, value) for (other, name), value in values.items() if other == section]
    return "\n".join(lines)


def changed_text(text: str, values: SettingValues) -> str:
    """The text of a TOML file with these values.

    Raises:
        ValueError: it can't be changed without understanding more of it; nothing is lost.
    """
    expected = tomllib.loads(text)
    lines = text.splitlines()
    for (section, name), value in values.items():
        expected.setdefault(section, {})[name] = value
        lines = _with_value(lines, section, _line(name, value), name)
    changed = "\n".join(lines) + "\n"
    if tomllib.loads(changed) != expected:
        raise ValueError("the file is written in a way that only a person can change")
    return changed


def change_settings(config: Path, values: SettingValues) -> None:
    """Change values in a file of settings, completely or not at all.

    Raises:
        InvalidInputError: the file can't be read, changed or written, or a variable of the environment has the value.
    """
    for section, name in values:
        variable = f"{PREFIX}{section}__{name}".upper()
        if any(known.upper() == variable for known in os.environ):
            raise InvalidInputError("--apply", f"{section}.{name} in the file: the variable {variable} overrides it")
    try:
        text = config.read_text(encoding="utf-8")
        changed = changed_text(text, values)
        write_atomically(config, changed, mode=config.stat().st_mode & 0o777)
    except (OSError, ValueError) as error:
        raise InvalidInputError("--apply", f"a TOML file that can be changed ({error})", str(config)) from error


def _with_value(lines: list[str], section: str, line: str, name: str) -> list[str]:
    header = re.compile(rf"\s*\[\s*{re.escape(section)}\s*\]\s*(#.*)?$")
    begin = next((index for index, text in enumerate(lines) if header.match(text)), None)
    if begin is None:
        return [*lines, "", f"[{section}]", line]
    end = next((index for index in range(begin + 1, len(lines)) if lines[index].lstrip().startswith("[")), len(lines))
    present = re.compile(rf"\s*{re.escape(name)}\s*=")
    for index in range(begin + 1, end):
        if present.match(lines[index]):
            return [*lines[:index], line, *lines[index + 1 :]]
    return [*lines[: begin + 1], line, *lines[begin + 1 :]]


def _line(name: str, value: SettingValue) -> str:
    return f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value}"


if TYPE_CHECKING:
    from malletrain.simulator.journal.record import Journal
    from malletrain.simulator.tuning.trials import Gain, SettingsComparison, Trials, TuningDay

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
    config: ConfigOption = None,
    status: Annotated[
        bool, typer.Option("--status", help="Show instead what allocator.auto_tune has done, and why.")
    ] = False,
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """Replay the installation's own past with other T_fwd, places and coalescing: what would have trained more?"""
    from malletrain.cli.journal.reading import read_journal
    from malletrain.cli.journal.replay_options import span_of
    from malletrain.simulator.journal.conversion import journal_input

    if status:
        show_tuning(config, as_json=as_json)
        return
    settings = load(config)
    file = settings_file(config) or Path(CONFIG_FILE)
    if apply and not file.is_file():
        raise InvalidInputError("--apply", "a file of settings to write to (--config)", str(file))
    past = read_journal(journal or str(settings.state_dir), settings)
    begin, end, span_notes = span_of(past, since)
    notes = [*span_notes, *journal_input(past, begin, end).notes]
    days = _days(past, begin, end, notes)
    forward, coalescing = _try(days, settings)
    values = coalescing.comparison.recommended.changes(forward.comparison.present)
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
    from malletrain.job_manager.machine.admission import MAX_PLACES, AdmissionRule
    from malletrain.simulator.tuning.trials import (
        TunedSettings,
        coalescing_grid,
        replay_day,
        replay_day_with_services,
        settings_grid,
        try_settings,
    )

    hint_at_compiler()
    allocator, manager = settings.allocator, settings.job_manager
    options = options_in_force(settings)
    for day in days:
        options.check_requests(day.jobs)
    present = TunedSettings(
        allocator.forward_policy, allocator.forward_seconds, manager.max_parallel, allocator.coalesce_seconds
    )
    most = MAX_PLACES if manager.admission is AdmissionRule.WINDOW else 10**6
    grid = settings_grid(present, max(len(day.jobs) for day in days), most)
    with _progress_of_replays("T_fwd and places", len(grid) * len(days)) as replayed:
        forward = try_settings(days, grid, lambda day, one: replay_day(day, one, options), replayed)
    chosen = coalescing_grid(forward.comparison.recommended)
    with _progress_of_replays("coalescing", len(chosen) * len(days)) as replayed:
        return forward, try_settings(
            days, chosen, lambda day, one: replay_day_with_services(day, one, options), replayed
        )


@contextmanager
def _progress_of_replays(name: str, replays: int) -> Iterator[Callable[[], None]]:
    """A bar that moves by one with every replay."""
    done = itertools.count(1)
    with progress_bar(name, replays, counts=True) as show:
        yield lambda: show(next(done))


def _print(forward: Trials, coalescing: Trials, days: Sequence[TuningDay], notes: Sequence[str]) -> None:
    for note in notes:
        typer.echo(f"note: {note}")
    hours = sum(day.duration_s for day in days) / 3600
    count = "1 day" if len(days) == 1 else f"{len(days)} days"
    typer.echo(f"{count}, {hours:.2f} h; samples compared with the present settings")
    for trials, title in ((forward, "T_fwd and places"), (coalescing, "coalescing, at the settings chosen above")):
        for line in _ran_out(trials, days):
            typer.echo(f"note: {line}")
        print_table(
            ("forward_policy", "forward_seconds", "max_parallel", "coalesce_seconds", "gain", "node-hours", ""),
            _rows(trials),
            title,
        )
        typer.echo(_verdict(trials.comparison))


def _ran_out(trials: Trials, days: Sequence[TuningDay]) -> list[str]:
    """The days on which there was no work left before their end, in sentences."""
    return [
        f"{datetime.fromtimestamp(day.begin_unix, UTC):%Y-%m-%d}: no work left from hour {compared / 3600:.1f} of "
        f"{day.duration_s / 3600:.1f} on with one of the settings; all are compared until then."
        for day, compared in zip(days, trials.compared_s, strict=True)
        if compared < day.duration_s
    ]


def _rows(trials: Trials) -> list[tuple[str, ...]]:
    comparison = trials.comparison
    ranked = sorted(comparison.gains.items(), key=lambda entry: -entry[1].mean)
    best = dict(ranked[:_ROWS_SHOWN]) | {comparison.present: comparison.gains[comparison.present]}
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
        for settings, gain in best.items()
    ]


def _in_words(gain: Gain) -> str:
    interval = "" if gain.half_width is None else f" ± {gain.half_width:.2%}"
    return f"{gain.mean:+.2%}{interval}"


def _node_hours(gain: Gain, trials: Trials) -> float:
    """Node-hours a day that the present settings would need for as many samples more."""
    return fmean(share * hours for share, hours in zip(gain.by_day, trials.node_hours, strict=True))


def _verdict(comparison: SettingsComparison) -> str:
    from malletrain.allocator.auto_tuning.machine import MIN_GAIN

    judged = comparison.counting_gain
    if comparison.held_out is None:
        text = f"One day only: no interval, and the gain of {judged.mean:+.2%} is on the day that was tuned on."
    else:
        doubt = "; the interval contains 0" if judged.may_be_none else ""
        text = f"On each day with the settings that are best on the other days: {_in_words(judged)}{doubt}."
    if comparison.recommended == comparison.present:
        return f"{text} That is below {MIN_GAIN:.1%}, or nothing would change: keep what there is."
    return text


def _print_advice(values: dict[tuple[str, str], str | float | int], written: Path | None) -> None:

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
        "forward": _table(forward) | {"compared_hours": [seconds / 3600 for seconds in forward.compared_s]},
        "coalescing": _table(coalescing) | {"compared_hours": [seconds / 3600 for seconds in coalescing.compared_s]},
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
