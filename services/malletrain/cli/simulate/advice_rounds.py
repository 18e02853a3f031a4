"""Rounds of `malletrain advise --apply`: ask, advise, show the commands, let the operator accept, apply.

Nice values of waiting jobs are changed one after the other, and each job is looked at before and after.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import typer

from malletrain.cli.shared.output import print_table
from malletrain.cli.simulate.advice import Advice
from malletrain.cli.simulate.advice_asking import AdviceQuestion, advice_of, ask_slurm
from malletrain.cli.simulate.advice_output import print_advice
from malletrain.cli.simulate.change_record import ChangeRecord, RecordedChanges, open_record
from malletrain.cli.simulate.reordering import (
    ChangeKind,
    NiceChange,
    Reordering,
    ReorderLimits,
    natural_priorities,
    reorder,
    take_back,
)
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.errors import InvalidInputError, MalleTrainError
from malletrain.scavenger.sources.base import SourceError
from malletrain.scavenger.sources.schedulers.commands import CommandFailedError, RunCommand, run_command
from malletrain.scavenger.sources.schedulers.settings import SlurmSettings
from malletrain.scavenger.sources.schedulers.slurm_priorities import (
    MAX_NICE,
    PRIORITY_FORMAT,
    JobPriority,
    parse_priorities,
)
from malletrain.scavenger.sources.schedulers.slurm_queue import WAITING

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


_DENIED = ("permission denied", "access denied")
_UNKNOWN_JOB = "invalid job id"


@dataclass(frozen=True, slots=True)
class AppliedChange:
    """What became of a change.

    Attributes:
        priority: The job's priority afterwards; None: it waits no longer, or was not changed.
        skipped: Why it was not made, or has no effect; empty: it was made.
        refused: Whether Slurm does not let this account do it, so that no other change will succeed.
        unknown: Whether Slurm has not answered, so that it may have been made.
        unasked: Whether Slurm has not answered before the change, so that it was not tried.
    """

    change: NiceChange
    priority: int | None = None
    skipped: str = ""
    refused: bool = False
    unknown: bool = False
    unasked: bool = False

    @property
    def ends_round(self) -> bool:
        """Whether no other change is tried after it."""
        return self.refused or self.unknown or self.unasked


def command_of(section: SlurmSettings, change: NiceChange) -> list[str]:
    """The command of a change. No shell reads it, and it has numbers only."""
    return [section.scontrol, "update", f"JobId={change.job}", f"Nice={change.nice_after}"]


async def ask_priorities(
    section: SlurmSettings,
    *,
    partitions: Sequence[str] = (),
    job: str = "",
    any_state: bool = False,
    run: RunCommand = run_command,
) -> dict[str, JobPriority]:
    """Ask Slurm for the priorities of jobs that wait, or of one job in any state.

    Args:
        section: Paths of the commands, and how long an answer may take.
        partitions: Only jobs of these; none: all.
        job: Only this job.
        any_state: Whether jobs that do not wait are asked for, too.
        run: Runs a command.

    Raises:
        SourceError: the command can't be run, fails, takes too long, or prints something else.
    """
    only = [*(["-j", job] if job else []), "-t", "all" if job or any_state else WAITING]
    named = ["-p", ",".join(partitions)] if partitions else []
    try:
        text = await run([section.squeue, "-h", "-r", *only, *named, "-O", PRIORITY_FORMAT], section.timeout_seconds)
    except CommandFailedError as error:
        if job and _UNKNOWN_JOB in str(error).lower():
            return {}
        raise
    return parse_priorities(text)


async def apply_changes(
    section: SlurmSettings, reordering: Reordering, record: ChangeRecord, run: RunCommand = run_command
) -> list[AppliedChange]:
    """Make the changes of a round, in order. It ends early where Slurm refuses one, or does not answer.

    Raises:
        OSError: the record can't be written; no further change is made.
    """
    if reordering.passed_over:
        record.round(reordering.passed_over)
    made = []
    for change in reordering.changes:
        done = await _apply(section, change, record, run)
        if not done.skipped and done.priority is not None and done.priority < change.priority_wanted:
            done = await _raise_further(section, done, record, run)
        made.append(done)
        if done.ends_round:
            break
    return made


async def _apply(section: SlurmSettings, change: NiceChange, record: ChangeRecord, run: RunCommand) -> AppliedChange:
    try:
        now = await ask_priorities(section, job=change.job, run=run)
    except SourceError as error:
        return AppliedChange(change, skipped=str(error), unasked=True)
    if why := _why_skip(change, now.get(change.job)):
        return AppliedChange(change, skipped=why)
    argv = command_of(section, change)
    record.change(change, argv)
    try:
        await run(argv, section.timeout_seconds)
    except CommandFailedError as error:
        refused = any(words in str(error).lower() for words in _DENIED)
        record.outcome(change.job, took=False, values={}, refusal=str(error))
        return AppliedChange(change, skipped=str(error), refused=refused)
    except SourceError as error:
        record.outcome(change.job, took=True, values={}, refusal=str(error))
        return AppliedChange(change, skipped=str(error), unknown=True)
    return await _read_back(section, change, record, run)


async def _read_back(
    section: SlurmSettings, change: NiceChange, record: ChangeRecord, run: RunCommand
) -> AppliedChange:
    """What Slurm says of a job after its change. It ignores nice values where an administrator has set a priority."""
    try:
        after = (await ask_priorities(section, job=change.job, run=run)).get(change.job)
    except SourceError as error:  # the command has succeeded: the change counts until a later look says otherwise
        record.outcome(change.job, took=True, values={}, refusal=str(error))
        return AppliedChange(change, skipped=str(error), unknown=True)
    if after is None or after.state != WAITING:
        record.outcome(change.job, took=True, values={})
        return AppliedChange(change)
    took = after.nice == change.nice_after
    record.outcome(change.job, took=took, values={"nice": after.nice, "priority": after.priority})
    ignored = "" if took else "Slurm ignores it: somebody has set the job's priority itself"
    return AppliedChange(change, after.priority, ignored)


async def _raise_further(
    section: SlurmSettings, done: AppliedChange, record: ChangeRecord, run: RunCommand
) -> AppliedChange:
    """Once more, by what is missing: Slurm shows a priority below 1 as 1, and it may have changed since."""
    change = done.change
    assert done.priority is not None
    nice = change.nice_after - (change.priority_wanted - done.priority)
    if nice < -MAX_NICE:
        return done
    further = replace(change, nice_before=change.nice_after, nice_after=nice, priority_before=done.priority)
    again = await _apply(section, further, record, run)
    if again.skipped and not again.unknown:  # the change before it was made
        return replace(done, refused=again.refused, unasked=again.unasked)
    first_change = replace(again.change, nice_before=change.nice_before, priority_before=change.priority_before)
    return replace(again, change=first_change)


def _why_skip(change: NiceChange, now: JobPriority | None) -> str:
    """Why a job is left as it is, by what Slurm says of it right before the change; empty: it is not."""
    if now is None:
        return "it is gone"
    if now.submitted != change.submitted:
        return "its number is another job's now"
    if now.state != WAITING:
        return f"it waits no longer ({now.state})"
    if now.nice != change.nice_before:
        return f"its nice value was changed meanwhile, from {change.nice_before} to {now.nice}"
    return ""
