"""Rounds of `malletrain advise --apply`: ask, advise, show the commands, let the operator accept, apply."""

from __future__ import annotations

import asyncio
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from malletrain.cli.shared.output import print_table
from malletrain.cli.simulate.advice import Advice
from malletrain.cli.simulate.advice_asking import AdviceQuestion, advice_of, ask_slurm
from malletrain.cli.simulate.advice_output import print_advice
from malletrain.cli.simulate.applying import AppliedChange, apply_changes, ask_priorities, command_of
from malletrain.cli.simulate.change_record import ChangeRecord, RecordedChanges, open_record
from malletrain.cli.simulate.reordering import (
    ChangeKind,
    Reordering,
    ReorderLimits,
    natural_priorities,
    reorder,
    take_back,
)
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.errors import InvalidInputError, MalleTrainError
from malletrain.scavenger.sources.base import SourceError
from malletrain.scavenger.sources.schedulers.settings import SlurmSettings

_REFUSED = (
    "Slurm refuses: only its operators and administrators may raise jobs (`sacctmgr show user`, AdminLevel), "
    "and nothing further was tried"
)
_UNKNOWN = "Slurm has not answered: the change may have been made, and --undo will see; nothing further was tried"
_UNASKED = "Slurm has not answered: nothing further was tried"
MAX_FAILURES = 5
"""Rounds in succession in which Slurm does not answer; then they end."""


class NotAppliedError(MalleTrainError):
    """Slurm does not let this account change jobs."""


@dataclass(frozen=True)
class RoundSettings:
    """How rounds are made.

    Attributes:
        section: Paths of Slurm's commands, and how long an answer may take.
        record: The file that notes changes.
        limits: How far one round may go.
        rounds: How many.
        pause_seconds: Between two.
        dry_run: Whether only to show.
        ask: Whether to ask the operator before changes.
    """

    section: SlurmSettings
    record: Path
    limits: ReorderLimits
    rounds: int = 1
    pause_seconds: float = 60.0
    dry_run: bool = False
    ask: bool = True


def run_rounds(
    question: AdviceQuestion, settings: RoundSettings, pause: Callable[[float], object] = time.sleep
) -> None:
    """Advise and apply, several times. A round in which Slurm does not answer is told, and the next one follows.

    Raises:
        InvalidInputError: no partition is named, or the operator can't be asked.
        NotAppliedError: Slurm does not let this account change jobs.
        SourceError: Slurm has not answered in the last round, or in `MAX_FAILURES` rounds in succession.
        OSError: the record can't be written.
    """
    if not question.partitions:
        raise InvalidInputError("--partition", "the partitions whose jobs --apply may change")
    _check_asking(settings)
    with open_record(settings.record, SystemClock()) as record:
        failures = 0
        for remaining in reversed(range(settings.rounds)):
            try:
                _round(question, settings, record)
                failures = 0
            except SourceError as error:
                failures += 1
                if not remaining or failures == MAX_FAILURES:
                    raise
                typer.echo(f"error: {_printable(str(error))}; {remaining} rounds are left", err=True)
            if remaining:
                pause(settings.pause_seconds)


def undo_changes(settings: RoundSettings) -> None:
    """Take all changes of earlier rounds back.

    Raises:
        InvalidInputError: the operator can't be asked, or the record can't be read.
        NotAppliedError: as in `run_rounds`.
        SourceError: as in `run_rounds`.
    """
    _check_asking(settings)
    with open_record(settings.record, SystemClock()) as record:
        now = asyncio.run(ask_priorities(settings.section))
        reordering = take_back(now, record.read().standing)
        _accept_and_apply(settings, reordering, record, f"nothing to take back in {settings.record}")


def _round(question: AdviceQuestion, settings: RoundSettings, record: ChangeRecord) -> None:
    if record.is_long and not settings.dry_run:
        # Of all partitions and in any state: nothing is forgotten of a job that Slurm still knows.
        record.drop_ended(asyncio.run(ask_priorities(settings.section, any_state=True)))
    advice, reordering = asyncio.run(_look(question, settings, record.read()))
    print_advice(advice)
    _accept_and_apply(settings, reordering, record, "nothing to change: the selected jobs are first already")


async def _look(question: AdviceQuestion, settings: RoundSettings, known: RecordedChanges) -> tuple[Advice, Reordering]:
    """What is advised now, and the changes that it takes."""
    now = await ask_priorities(settings.section, partitions=question.partitions)
    answers = await ask_slurm(settings.section, question.partitions, burst=question.burst_buffer_gb is None)
    advice = advice_of(question, answers, natural_priorities(now, known.standing))
    window = [job.job for job in advice.window]
    chosen = frozenset(window[index] for index in advice.starts[-1].chosen)
    changes = reorder(window, chosen, now, known.standing, known.passes, settings.limits, startable=advice.startable)
    return advice, changes


def _accept_and_apply(settings: RoundSettings, reordering: Reordering, record: ChangeRecord, nothing: str) -> None:
    for note in reordering.notes:
        typer.echo(note)
    if not reordering.changes:
        typer.echo(nothing)
        if reordering.passed_over and not settings.dry_run:
            record.round(reordering.passed_over)
        return
    print_table(_HEADS, _rows(reordering), title="Changes")
    for change in reordering.changes:
        typer.echo(shlex.join(command_of(settings.section, change)))
    if settings.dry_run:
        typer.echo("nothing was changed (--dry-run)")
        return
    if settings.ask and not typer.confirm(f"Run these {len(reordering.changes)} commands?"):
        typer.echo("nothing was changed")
        return
    made = asyncio.run(apply_changes(settings.section, reordering, record))
    for line in outcome_lines(made):
        typer.echo(line)
    typer.echo(f"noted in {settings.record}; malletrain advise --undo takes it back")
    if any(one.refused for one in made):
        raise NotAppliedError(_REFUSED)
    if any(one.unknown for one in made):
        raise SourceError(_UNKNOWN)
    if any(one.unasked for one in made):
        raise SourceError(_UNASKED)


def outcome_lines(made: Sequence[AppliedChange]) -> list[str]:
    """A line for each change: what was made, or why it was not."""
    lines = []
    for one in made:
        change = one.change
        values = f"nice {change.nice_before} -> {change.nice_after}"
        if one.unknown:
            lines.append(f"job {change.job}: {values} may have been made: {_printable(one.skipped)}")
        elif one.skipped:
            lines.append(f"job {change.job}: not changed: {_printable(one.skipped)}")
        elif one.priority is None:
            lines.append(f"job {change.job}: {values}; it waits no longer")
        else:
            lines.append(f"job {change.job}: {values}, priority {change.priority_before} -> {one.priority}")
    return lines


def _check_asking(settings: RoundSettings) -> None:
    if settings.ask and not settings.dry_run and not sys.stdin.isatty():
        raise InvalidInputError("--apply", "--yes or --dry-run where nobody can be asked")


_HEADS = ("job", "what", "priority", "nice", "nice then")
_WORDS = {ChangeKind.RAISE: "put first", ChangeKind.RESTORE: "as before"}


def _rows(reordering: Reordering) -> list[tuple[str, ...]]:
    return [
        (
            change.job,
            _WORDS[change.kind],
            f"{change.priority_before}",
            f"{change.nice_before}",
            f"{change.nice_after}",
        )
        for change in reordering.changes
    ]


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
