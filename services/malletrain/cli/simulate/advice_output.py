"""Prints what `malletrain advise` says."""

from __future__ import annotations

from typing import Any

import typer

from malletrain.cli.shared.output import print_table
from malletrain.cli.simulate.advice import Advice
from malletrain.selection.methods import SelectionMethod
from malletrain.selection.select import FIRST_MISFIT

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
