"""Goodput against throughput: does the gradient noise scale say what larger batches teach, and do plans gain by it?

    python benchmarks/studies/goodput.py digits
    python benchmarks/studies/goodput.py nas --trace summit.csv.gz

`digits` trains the network of `examples/digits` on this machine with the batches of 1 to 32 workers, measures the noise
scale meanwhile, and compares the samples that it takes to an accuracy with what the efficiency predicts. One process
makes the passes of all workers one after the other: the gradients are the same, but for rounding. `nas` replays the
random networks of MalleTrain's evaluation on a trace of idle nodes, with noise scales that are drawn, not measured, and
counts samples by what they teach. docs/goodput.md has the results.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.arguments import positive

WORKERS = (1, 2, 4, 8, 16, 32)
BATCH, REFERENCE_BATCH, RATE = 32, 64, 0.02
"""As in `examples/digits`: samples of a worker, and the batch that the learning rate fits."""
_LOOK_SAMPLES = 512
_NOISE_RANGES = {"100 to 10,000": (1e2, 1e4), "300 to 30,000": (3e2, 3e4), "3,000 to 300,000": (3e3, 3e5)}
_NODE_BATCH = 192
"""Samples that a node adds to the batch: 32 for each of Summit's six GPUs, as in the published curves."""


@dataclass(frozen=True)
class Reached:
    """One training.

    Attributes:
        samples: Samples that it took to the accuracy; None: it did not reach it.
        noise_scale: Mean of its estimates until then, in samples; None: there were too few steps.
    """

    samples: int | None
    noise_scale: float | None


def train_digits(workers: int, seed: int, accuracy: float, most: int, *, scale_rate: bool) -> Reached:
    """Train the digits with the batch of so many workers until an accuracy on the test images is reached.

    Args:
        workers: Passes of 32 samples in each step.
        seed: Of weights and order.
        accuracy: Wanted.
        most: Samples after which it is given up.
        scale_rate: Whether the learning rate grows with the batch, as `ElasticTraining` has it.
    """
    import torch
    from torch.nn import functional

    from malletrain.client.gradient_noise import NoiseMeter, PassPlan
    from malletrain.client.sampling import EpochOrder

    example = _example()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    train_x, test_x, train_y, test_y = example.digits()
    model, batch = example.network(16), BATCH * workers
    rate = RATE * (batch / REFERENCE_BATCH if scale_rate else BATCH / REFERENCE_BATCH)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    noise, order = NoiseMeter(model, every=2), EpochOrder(len(train_x), seed)
    estimates: list[float] = []
    done = looked = 0
    while done < most:
        noise.begin(PassPlan(BATCH, batch, workers, 1 / workers))
        optimizer.zero_grad()
        for part in range(workers):
            indices = order.span(done + part * BATCH, BATCH)
            (functional.cross_entropy(model(train_x[indices]), train_y[indices]) / workers).backward()
        if noise.end() and (found := noise.noise_scale) is not None:
            estimates.append(found)
        optimizer.step()
        done += batch
        if done - looked >= _LOOK_SAMPLES:
            looked = done
            if example.evaluate(model, test_x, test_y)[0] >= accuracy:
                return Reached(done, statistics.fmean(estimates) if estimates else None)
            model.train()
    return Reached(None, statistics.fmean(estimates) if estimates else None)


def _example() -> Any:
    path = Path(__file__).parents[2] / "examples" / "digits" / "train.py"
    spec = importlib.util.spec_from_file_location("digits_example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def digits_rows(runs: Mapping[int, Sequence[Reached]], noise_scale: float) -> list[dict[str, float | int | None]]:
    """Of each number of workers: samples to the accuracy, and their efficiency as measured and as predicted.

    Args:
        runs: By number of workers, one for each seed.
        noise_scale: phi in samples.
    """
    from malletrain.model.goodput import efficiency

    rows: list[dict[str, float | int | None]] = []
    first = [run.samples for run in runs[1] if run.samples is not None]
    for workers, of_seeds in runs.items():
        reached = [run.samples for run in of_seeds if run.samples is not None]
        samples = statistics.median(reached) if reached else None
        told = [run.noise_scale for run in of_seeds if run.noise_scale is not None]
        rows.append(
            {
                "workers": workers,
                "batch": workers * BATCH,
                "reached": len(reached),
                "samples": samples,
                "least": min(reached, default=None),
                "most": max(reached, default=None),
                "noise_scale": statistics.median(told) if told else None,
                "efficiency": statistics.median(first) / samples if samples and first else None,
                "predicted": efficiency(noise_scale, BATCH, workers * BATCH),
            }
        )
    return rows


def run_digits(options: argparse.Namespace) -> None:
    """Train at all scales with all seeds, print the rows."""
    for scale_rate in (True, False):
        print("learning rate grows with the batch" if scale_rate else "learning rate stays", flush=True)
        runs = {
            workers: [
                train_digits(workers, seed, options.accuracy, options.most, scale_rate=scale_rate)
                for seed in range(options.seeds)
            ]
            for workers in WORKERS
        }
        noise_scale = statistics.median(run.noise_scale for run in runs[1] if run.noise_scale is not None)
        print(f"noise scale with one worker, median: {noise_scale:.0f} samples")
        for row in digits_rows(runs, noise_scale):
            print(json.dumps(row), flush=True)


def efficiency_of(noise_scale: float) -> Any:
    """The statistical efficiency of a network with this noise scale."""
    from malletrain.model.goodput import StatisticalEfficiency

    return StatisticalEfficiency(noise_scale, _NODE_BATCH, _NODE_BATCH)


def taught(job: Any, noise_scale: float) -> Any:
    """A job that makes progress by what its samples teach: its curve is its goodput."""
    from malletrain.model.scaling import ScalingPoint
    from malletrain.simulator.replay.running_job import speeds

    efficiency, rates = efficiency_of(noise_scale), speeds(job, job.max_nodes)
    points = (ScalingPoint(nodes, rates[nodes] * efficiency.at(nodes)) for nodes in range(1, job.max_nodes + 1))
    return replace(job, curve=tuple(points))


class Believer:
    """Decides with the production solver by what is believed of the jobs; their progress is another matter."""

    def __init__(self, believed: Mapping[str, Any], options: Any) -> None:
        """
        Args:
            believed: The demand of each job by its identifier.
            options: Options of the replay.
        """
        self._believed = believed
        self._options = options
        self._ids: list[str] = []
        self._table: Any = None

    def next_look_s(self) -> float:
        """It decides at events only."""
        return inf

    def counts(self, now_s: float, jobs: Sequence[Any], pool: int) -> list[int]:
        """New numbers of nodes."""
        from malletrain.allocator.problem.objective import scale_rates
        from malletrain.allocator.solvers.choice_table import NO_LIMIT, ChoiceTable, ObjectiveParameters

        del now_s
        ids = [run.job.id for run in jobs]
        if ids != self._ids:
            self._ids = ids
            rates = [scale_rates(self._believed[run.job.id], self._options.metric, run.most) for run in jobs]
            self._table = ChoiceTable.of(rates)
        parameters = ObjectiveParameters(self._options.forward_s, self._options.cost_model, NO_LIMIT)
        counts: list[int] = self._table.choose([run.count for run in jobs], pool, parameters).counts.tolist()
        return counts


def nas_progress(
    scenario: Any, seed: int, noise: tuple[float, float], samples: float, *, as_modelled: bool
) -> dict[str, float]:
    """What all jobs learn, in samples that teach as much as those on one node, by what the plans believe.

    Args:
        scenario: The idle nodes.
        seed: Of networks and noise scales.
        noise: Range from which noise scales are drawn, evenly by their logarithm, in samples.
        samples: Such samples that each job needs.
        as_modelled: Whether larger batches teach less, as plans by goodput believe; otherwise all samples teach alike.
    """
    from malletrain.model.job_value import ValueCurve
    from malletrain.reproduce.malletrain.systems import Mix, WorkloadKind
    from malletrain.simulator.replay.fast_engine import run_replay
    from malletrain.simulator.replay.options import ReplayOptions

    options = ReplayOptions(duration_s=scenario.duration_s)
    jobs, rng = Mix(WorkloadKind.NAS, seed, samples).jobs(), random.Random(f"noise {seed}")
    low, high = map(math.log, noise)
    scales = {job.id: math.exp(rng.uniform(low, high)) for job in jobs}
    errors = {job.id: math.exp(rng.uniform(-math.log(4), math.log(4))) for job in jobs}
    true = [taught(job, scales[job.id]) for job in jobs] if as_modelled else jobs
    factors = {
        "goodput": dict.fromkeys(scales, 1.0),
        "goodput, each wrong by up to 4": errors,
        "goodput, all 4 times too small": dict.fromkeys(scales, 0.25),
    }
    beliefs = {"throughput": {job.id: job.demand() for job in jobs}} | {
        name: {
            job.id: replace(job.demand(), value=ValueCurve(efficiency=efficiency_of(scales[job.id] * factor[job.id])))
            for job in jobs
        }
        for name, factor in factors.items()
    }
    return {
        name: sum(
            job.samples
            for job in run_replay(
                scenario.events, scenario.nodes, true, options, advisor=Believer(believed, options)
            ).jobs
        )
        for name, believed in beliefs.items()
    }


def run_nas(options: argparse.Namespace) -> None:
    """Replay with all ranges and seeds, print the means with their standard errors."""
    from malletrain.scavenger.idle_trace import window
    from malletrain.scavenger.trace_files import read_trace
    from malletrain.simulator.replay.evaluation import Scenario

    duration_s = options.hours * 3600.0
    scenario = Scenario.of(window(read_trace(options.trace), 0.0, duration_s, options.nodes), duration_s)
    for (words, noise), as_modelled in product(_NOISE_RANGES.items(), (True, False)):
        scores = [
            nas_progress(scenario, seed, noise, options.job_samples, as_modelled=as_modelled)
            for seed in range(options.seeds)
        ]
        world = "as modelled" if as_modelled else "all samples teach alike"
        for name in scores[0]:
            relative = [100 * score[name] / score["throughput"] for score in scores]
            error = statistics.stdev(relative) / math.sqrt(len(relative)) if len(relative) > 1 else math.nan
            mean = statistics.fmean(relative)
            print(f"noise {words}, {world}: {name}: {mean:.1f} %, standard error {error:.1f}", flush=True)


def main() -> int:
    """Run a part of the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    digits = parts.add_parser("digits", help="train the digits")
    digits.add_argument("--seeds", type=positive, default=5)
    digits.add_argument("--accuracy", type=float, default=0.95, help="wanted on the test images")
    digits.add_argument("--most", type=positive, default=200_000, help="samples after which a training is given up")
    nas = parts.add_parser("nas", help="replay random networks")
    nas.add_argument("--trace", type=Path, required=True, help="idle nodes")
    nas.add_argument("--nodes", type=positive, default=1024)
    nas.add_argument("--hours", type=positive, default=12)
    nas.add_argument("--seeds", type=positive, default=5)
    nas.add_argument("--job-samples", type=float, default=130e6)
    options = parser.parse_args()
    run_digits(options) if options.part == "digits" else run_nas(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
