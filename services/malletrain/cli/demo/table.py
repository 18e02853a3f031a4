"""The live view of a run."""

from __future__ import annotations

import time

from rich.console import Group
from rich.table import Table
from rich.text import Text

from malletrain.cli.demo.stage import Stage
from malletrain.cli.demo.watcher import Watcher
from malletrain.cli.output import state_name

_NEWS_LINES = 12


def render(watcher: Watcher, stage: Stage, started: float) -> Group:
    """Nodes, jobs and the last events."""
    now = time.time()
    holders = {node: job.id for job in list(watcher.jobs.values()) for node in job.confirmed_nodes}
    heading = Text(
        f"{now - started:5.0f} s of about {stage.seconds:.0f} s, trace at {stage.speed:g}x: {stage.trace_origin}"
    )
    nodes = Table("idle node", "idle for", "job", expand=True)
    for name, node in sorted(watcher.idle.items()):
        nodes.add_row(name, f"{now - node.idle_since.ToNanoseconds() / 1e9:.0f} s", holders.get(name, "-"))
    jobs = Table("job", "name", "state", "nodes", "samples/s", "samples", "reason", expand=True)
    for job in list(watcher.jobs.values()):
        progress = watcher.progress.get(job.id)
        rate = f"{progress.rate:,.0f}" if progress and progress.rate else "-"
        samples = max(job.samples, progress.samples if progress else 0)
        scale = f"{len(job.confirmed_nodes)}/{len(job.wanted_nodes)}"
        jobs.add_row(job.id, job.spec.name, state_name(job.state), scale, rate, f"{samples:,}", job.reason)
    news = Text("\n".join(f"{when - started:6.1f} s  {what}" for when, what in watcher.news[-_NEWS_LINES:]))
    return Group(heading, jobs, nodes, news)
