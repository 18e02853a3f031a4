"""Asks Slurm what `malletrain advise` needs to know, or reads recorded answers, and makes the advice of them."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from malletrain.cli.simulate.advice import Advice, QueueOrder, advise_on, choose_pool, given_pool
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.sources.schedulers.burst_buffers import parse_burst_buffers
from malletrain.scavenger.sources.schedulers.commands import RunCommand, run_command
from malletrain.scavenger.sources.schedulers.settings import SlurmSettings
from malletrain.scavenger.sources.schedulers.slurm_queue import (
    NODES_FORMAT,
    QUEUE_FORMAT,
    parse_node_counts,
    parse_queue,
)
from malletrain.selection.select import SelectionSettings

QUEUE_FILE, BURST_FILE, NODES_FILE = "squeue.txt", "scontrol-burst.txt", "sinfo.txt"
_MAX_FILE = 256 * 1024 * 1024
_WAITING_STATES, _ALL_STATES = "PD", "PD,CF,R,S,CG,SO"
_PARTITION = re.compile(r"[A-Za-z0-9_.-]+")


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


@dataclass(frozen=True, slots=True)
class AdviceQuestion:
    """What is asked, apart from the state of the queue.

    Attributes:
        selection: The method.
        order: Which jobs come first.
        window: Jobs of the window.
        partitions: Only these; none: all.
        burst_buffer_gb: Its size; None: as Slurm says.
        burst_buffer_name: Which burst buffer; None: the only one.
        skip_unreadable: Whether jobs whose burst-buffer request can't be read are left out.
    """

    selection: SelectionSettings
    order: QueueOrder
    window: int
    partitions: tuple[str, ...]
    burst_buffer_gb: int | None
    burst_buffer_name: str | None
    skip_unreadable: bool


def advice_of(question: AdviceQuestion, answers: SlurmAnswers, priorities: Mapping[str, int] | None = None) -> Advice:
    """The advice for what Slurm answered.

    Args:
        question: What is asked.
        answers: What Slurm said.
        priorities: Of some jobs, in place of those in the answers.

    Raises:
        SourceError: an answer has another form.
        InvalidInputError: a name is not one of Slurm's, or the method does not suit the machine.
    """
    known = priorities or {}
    jobs = tuple(
        replace(job, priority=known.get(job.job, job.priority))
        for job in parse_queue(answers.queue, skip_unreadable=question.skip_unreadable)
        if not question.partitions or not set(question.partitions).isdisjoint(job.partitions)
    )
    pool_gb = question.burst_buffer_gb
    pool = (
        choose_pool(parse_burst_buffers(answers.burst or ""), question.burst_buffer_name)
        if pool_gb is None
        else given_pool(pool_gb, jobs)
    )
    return advise_on(
        jobs,
        parse_node_counts(answers.nodes, question.partitions),
        pool,
        order=question.order,
        window=question.window,
        selection=question.selection,
        now_s=answers.at_s,
        any_pool=pool_gb is not None,
    )


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
        burst: Whether that of the burst buffer is wanted.

    Raises:
        InvalidInputError: a file is missing, too large, or no text.
    """
    queue = folder / QUEUE_FILE
    texts = [_read(queue), _read(folder / NODES_FILE), _read(folder / BURST_FILE) if burst else None]
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


def checked_partitions(names: Sequence[str]) -> tuple[str, ...]:
    """The names, each once.

    Raises:
        InvalidInputError: one can't be a partition's.
    """
    for name in names:
        if not _PARTITION.fullmatch(name):
            raise InvalidInputError("--partition", "the name of a partition", name)
    return tuple(dict.fromkeys(names))
