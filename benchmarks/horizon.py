"""What is the survival horizon worth against a constant T_fwd? Replays of a trace; prints the table of docs/horizon.md.

python benchmarks/horizon.py TRACE [--nodes 1024] [--hours 48]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from malletrain.allocator.horizon import ForwardPolicy
from malletrain.cli.replay import scene_of
from malletrain.simulator.replay.engine import play
from malletrain.simulator.replay.evaluation import Scene
from malletrain.simulator.replay.options import Options
from malletrain.simulator.replay.presets import preset_jobs
from malletrain.simulator.replay.records import Played
from malletrain.simulator.replay.workload import TraceJob
from malletrain.simulator.replay.yardsticks import outcome_of, static_outcome

CONSTANTS = (30.0, 60.0, 120.0, 240.0, 480.0, 960.0)
SHARES = (0.125, 0.25, 0.5, 1.0)
STALLS = (("a quarter", 0.25), ("as published", 1.0), ("four times", 4.0))


def variants(options: Options) -> Iterator[tuple[str, Options]]:
    for seconds in CONSTANTS:
        yield f"constant {seconds:g} s", replace(options, forward_s=seconds)
    for share in SHARES:
        yield (
            f"survival, {share:g} of the mean stay",
            replace(options, forward_policy=ForwardPolicy.SURVIVAL, forward_share=share),
        )
    yield "constant 120 s, nodes in the trace's order", replace(options, rank_by_stay=False)


def replayed(scene: Scene, jobs: Sequence[TraceJob], options: Options) -> Played:
    return play(scene.events, scene.nodes, jobs, options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--nodes", type=int, default=1024)
    parser.add_argument("--hours", type=float, default=48.0)
    arguments = parser.parse_args()
    scene, options = scene_of(arguments.trace, arguments.nodes, arguments.hours, Options(duration_s=1.0))
    for preset in ("hpo", "imagenet"):
        jobs = preset_jobs(preset)
        static = static_outcome(jobs, scene.equivalent_nodes, options)
        print(f"\n{preset}: U at stalls of {', '.join(name for name, _ in STALLS)}; rescales of the second")
        for label, variant in variants(options):
            cells = []
            for _, factor in STALLS:
                slowed = [
                    replace(job, scale_up_s=factor * job.scale_up_s, scale_down_s=factor * job.scale_down_s)
                    for job in jobs
                ]
                played = replayed(scene, slowed, variant)
                cells.append((outcome_of(played) / static, sum(job.rescales for job in played.jobs)))
            shares = " | ".join(f"{share:.2%}" for share, _ in cells)
            print(f"| {label} | {shares} | {cells[1][1]} |", flush=True)


if __name__ == "__main__":
    main()
