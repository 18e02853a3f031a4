"""`malletrain advise`: which jobs of the main queue BBSched would start now. It changes nothing without `--apply`."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from malletrain.cli.shared.configured import ConfigOption
from malletrain.cli.shared.output import JsonOption, print_json
from malletrain.cli.shared.settings import load
from malletrain.cli.simulate.advice import QueueOrder
from malletrain.cli.simulate.advice_asking import (
    BURST_FILE,
    NODES_FILE,
    QUEUE_FILE,
    AdviceQuestion,
    advice_of,
    ask_slurm,
    checked_partitions,
    read_answers,
)
from malletrain.cli.simulate.advice_output import advice_dict, print_advice
from malletrain.cli.simulate.advice_rounds import RoundSettings, run_rounds, undo_changes
from malletrain.cli.simulate.batch_selection import trade_off_of
from malletrain.cli.simulate.reordering import ReorderLimits
from malletrain.runtime.errors import InvalidInputError
from malletrain.selection.methods import SelectionMethod
from malletrain.selection.problem import MAX_JOBS
from malletrain.selection.select import SelectionSettings

_MAX_GB = 10**9
_MAX_ROUNDS = 100_000
_MAX_PASSES = 1_000_000
_MAX_PAUSE = 86_400.0
_RECORD = "advise-changes.jsonl"
_APPLYING = "Changing Slurm's queue"


class AdviceSource(StrEnum):
    """Schedulers that can be asked."""

    SLURM = "slurm"


def advise(
    source: Annotated[AdviceSource, typer.Option(help="Which batch scheduler is asked.")],
    method: Annotated[SelectionMethod, typer.Option(help="How jobs are selected.")] = SelectionMethod.BBSCHED,
    selection_window: Annotated[int, typer.Option(min=1, max=MAX_JOBS, help="Jobs of the window.")] = 20,
    trade_off: Annotated[
        str | None, typer.Option(help="bbsched: gain in burst buffer that outweighs a loss of nodes; default: 2.")
    ] = None,
    policy: Annotated[
        QueueOrder, typer.Option(help="Order of the queue: Slurm's own priority, first come first served, or WFP.")
    ] = QueueOrder.PRIORITY,
    partition: Annotated[
        list[str] | None,
        typer.Option(help="Only this partition, repeatable; default: scavenger.slurm.partitions, else all."),
    ] = None,
    burst_buffer: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=_MAX_GB,
            help="All burst buffer in GB (2^30 bytes), where scontrol tells nothing; what other jobs ask for is taken.",
        ),
    ] = None,
    burst_buffer_name: Annotated[
        str | None, typer.Option(help="Which burst buffer, where Slurm has several: NAME, POOL or NAME/POOL.")
    ] = None,
    skip_unreadable: Annotated[
        bool, typer.Option("--skip-unreadable", help="Leave out jobs whose burst-buffer request can't be read.")
    ] = False,
    recorded: Annotated[
        Path | None,
        typer.Option("--from", help=f"Folder with {QUEUE_FILE}, {NODES_FILE}, {BURST_FILE}: read, ask nothing."),
    ] = None,
    as_json: Annotated[bool, JsonOption] = False,
    config: ConfigOption = None,
    apply: Annotated[
        bool,
        typer.Option(
            "--apply",
            help="Put the selected jobs before those passed over, by their nice values; asks before. For operators of "
            "Slurm.",
            rich_help_panel=_APPLYING,
        ),
    ] = False,
    undo: Annotated[
        bool,
        typer.Option("--undo", help="Give jobs back the nice values from before.", rich_help_panel=_APPLYING),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the commands, and run none.", rich_help_panel=_APPLYING),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before.", rich_help_panel=_APPLYING)] = False,
    rounds: Annotated[
        int, typer.Option(min=1, max=_MAX_ROUNDS, help="How often to advise and apply.", rich_help_panel=_APPLYING)
    ] = 1,
    every: Annotated[
        float,
        typer.Option(min=1, max=_MAX_PAUSE, help="Seconds between two rounds.", rich_help_panel=_APPLYING),
    ] = 60.0,
    most_changes: Annotated[
        int, typer.Option(min=1, max=MAX_JOBS, help="Most changes of a round.", rich_help_panel=_APPLYING)
    ] = 10,
    starvation_bound: Annotated[
        int,
        typer.Option(
            min=1,
            max=_MAX_PASSES,
            help="In how many rounds a job may be passed over; then no job is put before it.",
            rich_help_panel=_APPLYING,
        ),
    ] = 50,
    record: Annotated[
        Path | None,
        typer.Option(
            help=f"File that notes each change, with what was before; default: {_RECORD} in the state folder.",
            rich_help_panel=_APPLYING,
        ),
    ] = None,
) -> None:
    """Say which jobs of the present queue BBSched would start now, and what that gains. --apply puts them first."""
    del source
    if method is SelectionMethod.CONSTRAINED_SSD:
        raise InvalidInputError("--method", "a method for nodes and burst buffer", method.value)
    if burst_buffer is not None and burst_buffer_name is not None:
        raise InvalidInputError("--burst-buffer-name", "nothing beside --burst-buffer", burst_buffer_name)
    changing = apply or undo
    _check_applying(apply=apply, undo=undo, dry_run=dry_run, yes=yes, as_json=as_json, recorded=recorded)
    partitions = checked_partitions(partition or [])
    settings = load(config) if recorded is None else None
    if settings is not None:
        partitions = partitions or settings.scavenger.slurm.partitions
    question = AdviceQuestion(
        SelectionSettings(method, trade_off=trade_off_of(trade_off)),
        policy,
        selection_window,
        partitions,
        burst_buffer,
        burst_buffer_name,
        skip_unreadable,
    )
    if settings is not None and changing:
        chosen = RoundSettings(
            settings.scavenger.slurm,
            record or settings.state_dir / _RECORD,
            ReorderLimits(most_changes, starvation_bound),
            rounds=rounds,
            pause_seconds=every,
            dry_run=dry_run,
            ask=not yes,
        )
        if undo:
            undo_changes(chosen)
        else:
            run_rounds(question, chosen)
        return
    if settings is None:
        answers = read_answers(recorded or Path(), burst=burst_buffer is None)
    else:
        answers = asyncio.run(ask_slurm(settings.scavenger.slurm, partitions, burst=burst_buffer is None))
    advice = advice_of(question, answers)
    if as_json:
        print_json(advice_dict(advice))
    else:
        print_advice(advice)


def _check_applying(*, apply: bool, undo: bool, dry_run: bool, yes: bool, as_json: bool, recorded: Path | None) -> None:
    if not (apply or undo):
        for name, present in (("--dry-run", dry_run), ("--yes", yes)):
            if present:
                raise InvalidInputError(name, "--apply or --undo beside it")
        return
    if apply and undo:
        raise InvalidInputError("--undo", "nothing beside --apply")
    if recorded is not None:
        raise InvalidInputError("--from", "nothing beside --apply and --undo: they change the present queue")
    if as_json:
        raise InvalidInputError("--json", "nothing beside --apply and --undo: the record of changes is JSON")
