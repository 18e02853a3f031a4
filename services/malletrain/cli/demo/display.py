"""What the demo shows: a live table or messages while it runs, a summary at the end."""

from __future__ import annotations

import time

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from malletrain.cli.demo.recorder import RunRecorder
from malletrain.cli.demo.setup import DemoSetup
from malletrain.cli.demo.summary import DemoSummary
from malletrain.cli.shared.layout import first_line
from malletrain.cli.shared.output import print_table, state_name
from malletrain.runtime.messages import unix_seconds

_MESSAGE_LINES = 12


def render_live(recorder: RunRecorder, setup: DemoSetup, started: float) -> Group:
    """A table of nodes and jobs with the last messages.

    Args:
        recorder: What has happened so far.
        setup: The demo's setup.
        started: Start of the demo in seconds since the epoch.
    """
    now = time.time()
    holders = {node: job.id for job in list(recorder.jobs.values()) for node in job.confirmed_nodes}
    heading = Text(
        f"{now - started:5.0f} s of about {setup.seconds:.0f} s, trace at {setup.speed:g}x: {setup.trace_origin}"
    )
    nodes = Table("idle node", "idle for", "job", expand=True)
    for name, node in sorted(recorder.idle.items()):
        nodes.add_row(name, f"{now - unix_seconds(node.idle_since):.0f} s", holders.get(name, "-"))
    jobs = Table("job", "name", "state", "nodes", "samples/s", "samples", "reason", expand=True)
    for job in list(recorder.jobs.values()):
        progress = recorder.progress.get(job.id)
        rate = f"{progress.rate:,.0f}" if progress and progress.rate else "-"
        samples = max(job.samples, progress.samples if progress else 0)
        scale = f"{len(job.confirmed_nodes)}/{len(job.wanted_nodes)}"
        jobs.add_row(job.id, job.spec.name, state_name(job.state), scale, rate, f"{samples:,}", first_line(job.reason))
    messages = Text("\n".join(f"{when - started:6.1f} s  {what}" for when, what in recorder.messages[-_MESSAGE_LINES:]))
    return Group(heading, jobs, nodes, messages)


def print_messages(recorder: RunRecorder, started: float) -> None:
    """Print new messages on standard error, if there is no terminal for a live table.

    Args:
        recorder: What has happened so far. Its messages are removed.
        started: Start of the demo in seconds since the epoch.
    """
    while recorder.messages:
        when, what = recorder.messages.pop(0)
        typer.echo(f"{when - started:6.1f} s  {what}", err=True)


def print_summary(summary: DemoSummary) -> None:
    """Print the results of a demo as tables."""
    share = summary.node_seconds_used / summary.node_seconds_offered if summary.node_seconds_offered else 0.0
    facts = (
        ("trace", summary.trace),
        ("events", str(summary.events)),
        ("plans", str(summary.plans)),
        ("rescales", str(summary.rescales)),
        ("preemptions", str(summary.preemptions)),
        ("samples", f"{summary.samples:,} ({summary.samples_lost:,} more were lost by rollbacks)"),
        (
            "node-seconds",
            f"{summary.node_seconds_offered:,.0f} offered, {summary.node_seconds_used:,.0f} used ({share:.0%})",
        ),
        ("node-seconds lost", f"{summary.node_seconds_lost:,.0f}: {_losses(summary.node_seconds_lost_to)}"),
        ("reclaim, longest", f"{summary.reclaim_seconds_max:.2f} s"),
        ("stall of a growth", _seconds(summary.scale_up_seconds_median)),
        ("stall of a shrink", _seconds(summary.scale_down_seconds_median)),
        ("left processes", "; ".join(summary.stray_processes) or "none"),
        ("timeline", summary.timeline),
    )
    print_table(("", ""), facts, title=f"Demo: {summary.seconds:.0f} s")
    rows = [
        (
            job.id,
            job.name,
            job.state,
            f"{job.samples:,}",
            str(job.rescales),
            str(job.preemptions),
            str(job.restarts),
            f"{job.accuracy:.3f}" if job.accuracy is not None else "-",
        )
        for job in summary.jobs
    ]
    print_table(("job", "name", "state", "samples", "rescales", "preemptions", "restarts", "accuracy"), rows)


def _losses(seconds: dict[str, float]) -> str:
    """What node-seconds were lost to, most first."""
    return ", ".join(
        f"{name.replace('_', ' ')} {lost:,.0f}" for name, lost in sorted(seconds.items(), key=lambda e: -e[1]) if lost
    )


def _seconds(value: float | None) -> str:
    return "none measured" if value is None else f"{value:.2f} s (median)"
