"""Changes nice values of Slurm's waiting jobs, one after the other, and looks at each job before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from malletrain.cli.simulate.change_record import ChangeRecord
from malletrain.cli.simulate.reordering import NiceChange, Reordering
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

_REFUSED = ("permission denied", "access denied")
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
        refused = any(words in str(error).lower() for words in _REFUSED)
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
