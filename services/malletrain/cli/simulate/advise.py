"""`malletrain advise`: which jobs of the main queue BBSched would start now. It only asks, and changes nothing."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from malletrain.cli.shared.output import JsonOption, print_json, print_table
from malletrain.cli.shared.settings import load
from malletrain.cli.simulate.advice import Advice, QueueOrder, advise_on, choose_pool, given_pool
from malletrain.cli.simulate.batch_selection import trade_off_of
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.sources.schedulers.burst_buffers import parse_burst_buffers
from malletrain.scavenger.sources.schedulers.commands import RunCommand, run_command
from malletrain.scavenger.sources.schedulers.settings import SlurmSettings
from malletrain.scavenger.sources.schedulers.slurm_queue import (
    NODES_FORMAT,
    QUEUE_FORMAT,
    QueuedJob,
    parse_node_counts,
    parse_queue,
)
from malletrain.selection.comparison import FIRST_MISFIT
from malletrain.selection.methods import SelectionMethod
from malletrain.selection.problem import MAX_JOBS
from malletrain.selection.select import SelectionSettings

_QUEUE_FILE, _BURST_FILE, _NODES_FILE = "squeue.txt", "scontrol-burst.txt", "sinfo.txt"
_MAX_FILE = 256 * 1024 * 1024
_MAX_GB = 10**9
_WAITING_STATES, _ALL_STATES = "PD", "PD,CF,R,S,CG,SO"
_PARTITION = re.compile(r"[A-Za-z0-9_.-]+")


class AdviceSource(StrEnum):
    """Schedulers that can be asked."""

    SLURM = "slurm"


@dataclass(frozen=True, slots=True)
class SlurmAnswers:
    """What Slurm's commands printed.

    Attributes:
        queue: `squeue`.
        nodes: `sinfo`.
        burst: `scontrol show burst`; None: it was not asked.
        at_s: When, in seconds since the epoch.
    """

    queue: str
    nodes: str
    burst: str | None
    at_s: float


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
        typer.Option("--from", help=f"Folder with {_QUEUE_FILE}, {_NODES_FILE}, {_BURST_FILE}: read, ask nothing."),
    ] = None,
    as_json: Annotated[bool, JsonOption] = False,
    config: Annotated[
        Path | None, typer.Option(help="TOML file; by default ./malletrain.toml where it exists.")
    ] = None,
) -> None:
    """Say which jobs of the present queue BBSched would start now, and what that gains. Nothing is changed."""
    del source
    selection = SelectionSettings(method, trade_off=trade_off_of(trade_off))
    if method is SelectionMethod.CONSTRAINED_SSD:
        raise InvalidInputError("--method", "a method for nodes and burst buffer", method.value)
    if burst_buffer is not None and burst_buffer_name is not None:
        raise InvalidInputError("--burst-buffer-name", "nothing beside --burst-buffer", burst_buffer_name)
    partitions = _partitions(partition or [])
    if recorded is not None:
        answers = read_answers(recorded, burst=burst_buffer is None)
    else:
        section = load(config).scavenger.slurm
        partitions = partitions or section.partitions
        answers = asyncio.run(ask_slurm(section, partitions, burst=burst_buffer is None))
    jobs = _in_partitions(parse_queue(answers.queue, skip_unreadable=skip_unreadable), partitions)
    nodes = parse_node_counts(answers.nodes, partitions)
    pool = (
        choose_pool(parse_burst_buffers(answers.burst or ""), burst_buffer_name)
        if burst_buffer is None
        else given_pool(burst_buffer, jobs)
    )
    advice = advise_on(
        jobs,
        nodes,
        pool,
        order=policy,
        window=selection_window,
        selection=selection,
        now_s=answers.at_s,
        any_pool=burst_buffer is not None,
    )
    if as_json:
        print_json(advice_dict(advice))
    else:
        print_advice(advice)


async def ask_slurm(
    section: SlurmSettings, partitions: Sequence[str], *, burst: bool, run: RunCommand = run_command
) -> SlurmAnswers:
    """Ask Slurm for its queue, nodes and burst buffer.

    Args:
        section: Paths of the commands, and how long an answer may take.
        partitions: Only jobs and nodes of these; none: all.
        burst: Whether to ask for the burst buffer. Else running jobs are asked for, too: they have some of it.
        run: Runs a command.

    Raises:
        SourceError: a command can't be run, fails, or takes too long.
    """
    only = ("-p", ",".join(partitions)) if partitions else ()
    states = _WAITING_STATES if burst else _ALL_STATES
    timeout = section.timeout_seconds
    queue = [section.squeue, "-h", "-r", "--noconvert", "-t", states, *only, "-O", QUEUE_FORMAT]
    return SlurmAnswers(
        await run(queue, timeout),
        await run([section.sinfo, "-h", *only, "-o", NODES_FORMAT], timeout),
        await run([section.scontrol, "show", "burst"], timeout) if burst else None,
        time.time(),
    )


def read_answers(folder: Path, *, burst: bool) -> SlurmAnswers:
    """Read recorded answers. The time is that at which the queue's file was written.

    Args:
        folder: The folder.
        burst: Whether that of the burst buffer is wanted.

    Raises:
        InvalidInputError: a file is missing, too large, or no text.
    """
    queue = folder / _QUEUE_FILE
    texts = [_read(queue), _read(folder / _NODES_FILE), _read(folder / _BURST_FILE) if burst else None]
    return SlurmAnswers(texts[0] or "", texts[1] or "", texts[2], queue.stat().st_mtime)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE + 1)
        if len(content) > _MAX_FILE:
            raise InvalidInputError("--from", f"files of at most {_MAX_FILE} bytes", str(path))
        return content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError("--from", f"a text file that can be read ({error})", str(path)) from error


def _partitions(names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if not _PARTITION.fullmatch(name):
            raise InvalidInputError("--partition", "the name of a partition", name)
    return tuple(dict.fromkeys(names))


def _in_partitions(jobs: tuple[QueuedJob, ...], partitions: Sequence[str]) -> tuple[QueuedJob, ...]:
    return tuple(job for job in jobs if not partitions or not set(partitions).isdisjoint(job.partitions))


_WAYS = {
    FIRST_MISFIT: "in order until the first does not fit",
    SelectionMethod.IN_ORDER.value: "in order, each that fits",
}
_CAVEATS = (
    "This is a snapshot: nodes count as whole and alike, nothing is known of when jobs end, and backfilling (EASY), "
    "which may start further jobs, is not simulated."
)


def advice_dict(advice: Advice) -> dict[str, Any]:
    """The advice for JSON. Gains are of the method over the other ways, in points of the machine."""
    ways = []
    for start in advice.starts:
        nodes, buffer = advice.gain(start)
        ways.append(
            {
                "name": start.name,
                "jobs": [advice.window[index].job for index in start.chosen],
                "nodes": start.uses.nodes,
                "burstBufferGb": start.uses.burst_buffer_gb,
                "genetic": start.genetic,
                "gainNodesPoints": nodes,
                "gainBurstBufferPoints": buffer,
            }
        )
    return {
        "nodes": advice.machine.nodes,
        "freeNodes": advice.free.nodes,
        "burstBuffer": advice.buffer,
        "burstBufferGb": advice.machine.burst_buffer_gb,
        "freeBurstBufferGb": advice.free.burst_buffer_gb,
        "waiting": advice.waiting,
        "leftOut": dict(advice.left_out),
        "window": [
            {
                "job": job.job,
                "nodes": job.request.nodes,
                "burstBufferGb": job.request.burst_buffer_gb,
                "heldGb": job.held_gb,
            }
            for job in advice.window
        ],
        "method": advice.starts[-1].name,
        "starts": ways,
    }


def print_advice(advice: Advice) -> None:
    """Print the advice for people."""
    machine, free = advice.machine, advice.free
    typer.echo(f"free: {free.nodes:,} of {machine.nodes:,} nodes, {_buffer(advice)}")
    typer.echo(f"waiting: {advice.waiting:,} jobs, of which {len(advice.window)} are in the window{_left_out(advice)}")
    if not advice.window:
        typer.echo("no waiting job can be started by more nodes or burst buffer")
        return
    heads = ("job", "nodes", "burst buffer GB", *(_WAYS.get(start.name, start.name) for start in advice.starts))
    rows = []
    for index, job in enumerate(advice.window):
        has = f" (has {job.held_gb:,} already)" if job.held_gb else ""
        marks = ("starts" if index in start.chosen else "" for start in advice.starts)
        rows.append((job.job, f"{job.request.nodes:,}", f"{job.request.burst_buffer_gb:,}{has}", *marks))
    print_table(heads, rows, title="The window, first job first")
    print_table(("way", "jobs", "nodes", "burst buffer GB", *_gain_heads(advice)), _way_rows(advice))
    for line in caveats(advice):
        typer.echo(line)


def caveats(advice: Advice) -> tuple[str, ...]:
    """What to keep in mind, in a few sentences."""
    head = advice.window[0].job
    starts = 0 in advice.starts[-1].chosen
    method = advice.starts[-1].name
    first = f"{method} {'starts' if starts else 'passes over'} job {head}, the first of the queue"
    promise = (
        f"{first}. In the window the first job has no reservation, and most of the gain in waits comes from that: read "
        "docs/bbsched.md before you change a scheduler."
    )
    genetic = "The search was too long: the genetic algorithm answered, and there may be better selections."
    return (_CAVEATS, promise, *((genetic,) if advice.starts[-1].genetic else ()))


def _buffer(advice: Advice) -> str:
    if not advice.buffer:
        return "no burst buffer that Slurm tells of (--burst-buffer GB gives its size)"
    free, total = advice.free.burst_buffer_gb, advice.machine.burst_buffer_gb
    return f"{free:,} of {total:,} GB of burst buffer ({advice.buffer})"


def _left_out(advice: Advice) -> str:
    if not advice.left_out:
        return ""
    ordered = sorted(advice.left_out.items(), key=lambda item: (-item[1], item[0]))
    return "; left out: " + ", ".join(f"{count} {reason}" for reason, count in ordered)


def _gain_heads(advice: Advice) -> tuple[str, str]:
    method = advice.starts[-1].name
    return f"{method} gains: points of nodes", "points of burst buffer"


def _way_rows(advice: Advice) -> list[tuple[str, ...]]:
    rows = []
    for start in advice.starts:
        gains = ("-", "-") if start is advice.starts[-1] else tuple(f"{gain:+.1f}" for gain in advice.gain(start))
        used = (f"{start.uses.nodes:,}", f"{start.uses.burst_buffer_gb:,}")
        rows.append((_WAYS.get(start.name, start.name), f"{len(start.chosen)}", *used, *gains))
    return rows
