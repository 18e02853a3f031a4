"""What sharing costs and brings: `python benchmarks/sharing.py [--json] [--quick] [--engine services]`.

Replays workloads of several owners on the first 1024 nodes of the Summit log: first come, first served, with limits,
and with fair share. If the log is not beside the checkout (or in MALLETRAIN_SHARED), a trace is drawn instead.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path

from malletrain.scavenger.generate import generate
from malletrain.scavenger.idle_trace import Trace, window
from malletrain.scavenger.trace_files import read_trace
from malletrain.simulator.replay.evaluation import Evaluation, Scenario, evaluate
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.options import ReplayEngine, ReplayOptions
from malletrain.simulator.replay.presets import preset_jobs

_SHARED = Path(os.environ.get("MALLETRAIN_SHARED", Path(__file__).parents[2] / "shared"))
_LOG = _SHARED / "traces" / "summit-2021-02-week1.csv.gz"
_NODES, _IDLE_SHARE, _SEED = 1024, 0.083, 2021
_HOUR_S = 3600.0
_EVERY_S = 36.0


@dataclass(frozen=True)
class Workload:
    """Jobs of several owners, and how many hours of the trace are replayed."""

    title: str
    hours: float
    jobs: tuple[ReplayJob, ...]


@dataclass(frozen=True)
class Variant:
    """One way to share."""

    title: str
    options: ReplayOptions


def jobs_of(owner: str, model: str, count: int, from_hour: float = 0.0) -> list[ReplayJob]:
    """Jobs of one owner, submitted one after the other."""
    like = next(job for job in preset_jobs("imagenet", 7) if job.model == model)
    return [
        replace(like, id=f"{owner}{index:04d}", owner=owner, submit_s=from_hour * _HOUR_S + index * _EVERY_S)
        for index in range(count)
    ]


def workloads(quick: bool) -> list[Workload]:
    """The workloads; jobs in the order of their submission."""
    scale = 0.25 if quick else 1.0
    sets = [
        ("100 jobs and 1", 48.0, [jobs_of("ada", "ShuffleNet", 100), jobs_of("bob", "ShuffleNet", 1, 6.0)]),
        (
            "1000, 300 and 30 jobs",
            168.0,
            [
                jobs_of("ada", "ShuffleNet", 1000),
                jobs_of("bob", "ShuffleNet", 300, 24.0 * scale),
                jobs_of("eve", "ShuffleNet", 30, 48.0 * scale),
            ],
        ),
        ("fast and slow samples", 168.0, [jobs_of("ada", "AlexNet", 500), jobs_of("bob", "DenseNet", 500)]),
    ]
    return [
        Workload(title, hours * scale, tuple(sorted(chain.from_iterable(parts), key=lambda job: job.submit_s)))
        for title, hours, parts in sets
    ]


def variants(engine: ReplayEngine) -> list[Variant]:
    """The ways to share."""
    off = ReplayOptions(duration_s=1.0, engine=engine, fair_share_half_life_s=0.0)
    fair = replace(off, fair_share_half_life_s=7 * 24 * _HOUR_S)
    return [
        Variant("first come, first served", off),
        Variant("5 places per owner", replace(off, max_parallel_per_owner=5)),
        Variant("5 places, 100 nodes per owner", replace(off, max_parallel_per_owner=5, max_nodes_per_owner=100)),
        Variant("fair share, half-life 7 d", fair),
        Variant("fair share, half-life 1 d", replace(fair, fair_share_half_life_s=24 * _HOUR_S)),
        Variant("fair share 7 d, 5 places", replace(fair, max_parallel_per_owner=5)),
    ]


def the_trace() -> tuple[Trace, str]:
    """The log, or a trace like it."""
    if _LOG.exists():
        return read_trace(_LOG), _LOG.name
    return generate(_NODES, 168 * _HOUR_S, _IDLE_SHARE, random.Random(_SEED)), f"drawn with seed {_SEED}"


def as_dict(workload: Workload, variant: Variant, found: Evaluation) -> dict[str, object]:
    """The figures of one replay."""
    return {
        "workload": workload.title,
        "sharing": variant.title,
        "samples": found.metrics.samples,
        "rescales": found.metrics.rescales,
        "jobs_completed": found.metrics.jobs_completed,
        "jain_index": found.jain_index,
        "owners": [asdict(owner) for owner in found.owners],
        "wall_seconds": found.wall_seconds,
    }


def row(workload: Workload, variant: Variant, found: Evaluation) -> str:
    """One row of the Markdown table."""
    waits = " / ".join(f"{owner.mean_wait_hours:.1f}" for owner in found.owners)
    nodes = " / ".join(f"{owner.nodes_while_present:.1f}" for owner in found.owners)
    samples, rescales = found.metrics.samples / 1e9, found.metrics.rescales
    return (
        f"| {workload.title} | {variant.title} | {samples:.2f} | {rescales:,} | {waits} | {nodes} "
        f"| {found.jain_index:.3f} |"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quick", action="store_true", help="a quarter of the time")
    parser.add_argument("--engine", type=ReplayEngine, default=ReplayEngine.FAST, help="fast or services")
    arguments = parser.parse_args()
    trace, source = the_trace()
    found = []
    for workload in workloads(arguments.quick):
        duration_s = workload.hours * _HOUR_S
        scenario = Scenario.of(window(trace, 0.0, duration_s, _NODES), duration_s)
        for variant in variants(arguments.engine):
            options = replace(variant.options, duration_s=duration_s)
            found.append((workload, variant, evaluate(scenario, workload.jobs, options, bound=False)))
    if arguments.json:
        print(json.dumps({"trace": source, "rows": [as_dict(*entry) for entry in found]}, indent=2))
        return
    print(f"{source}, first {_NODES} nodes, engine {arguments.engine.value}\n")
    print("| jobs | sharing | samples, 10⁹ | rescales | mean wait, h | nodes while present | Jain's index |")
    print("| --- | --- | ---: | ---: | --- | --- | ---: |")
    for entry in found:
        print(row(*entry))


if __name__ == "__main__":
    main()
