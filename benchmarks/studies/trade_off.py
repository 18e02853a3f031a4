"""BBSched's decision rule: the published factor against one learned from other workloads and one that adapts.

The paper leaves a rule that adapts for later (§3.2.4). Here a factor is chosen on generated workloads of some seeds, by
the mean wait, and compared with the published 2 and with `malletrain.selection.rule` on workloads of other seeds,
which none of them has seen. docs/bbsched.md has the results. Run:
`python benchmarks/studies/trade_off.py [--jobs 1000] [--seeds 8]`
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from fractions import Fraction

from malletrain.reproduce.bbsched.trials import LOADS
from malletrain.selection.select import SelectionSettings
from malletrain.simulator.batch.generated import PROFILES, WorkloadRecipe, derive, generate, original_requests
from malletrain.simulator.batch.policies import WindowSettings, policy_named
from malletrain.simulator.batch.running import method_run
from malletrain.simulator.batch.workload import BatchWorkload

FACTORS = tuple(Fraction(text) for text in ("0", "1/2", "1", "2", "4", "8"))
PUBLISHED = Fraction(2)
RECIPES = ("s2", "s4")


def workload_of(machine: str, recipe: str, jobs: int, seed: int) -> BatchWorkload:
    """A generated workload with one of the paper's mixes of requests."""
    profile = PROFILES[machine]
    plain = generate(profile, jobs, LOADS[machine], seed)
    return derive(plain, WorkloadRecipe(recipe), seed, original_requests(profile, seed))


def wait_hours(workload: BatchWorkload, machine: str, factor: Fraction | None) -> float:
    """Mean wait of the measured jobs in hours; None: the factor that adapts."""
    settings = WindowSettings(SelectionSettings(trade_off=factor), adaptive=factor is None)
    return method_run(workload, policy_named(PROFILES[machine].policy), settings).metrics.mean_wait_s / 3600.0


def compare(machine: str, recipe: str, jobs: int, seeds: int) -> None:
    """Learn on the first half of the seeds, and print how the second half does."""
    half = seeds // 2
    known = [workload_of(machine, recipe, jobs, seed) for seed in range(half)]
    means = {factor: statistics.fmean(wait_hours(each, machine, factor) for each in known) for factor in FACTORS}
    learned = min(FACTORS, key=lambda factor: (means[factor], abs(factor - PUBLISHED)))
    listed = ", ".join(f"{float(factor):g}: {mean:.2f}" for factor, mean in means.items())
    print(f"{machine} {recipe}: mean wait in hours by factor on {half} seeds: {listed}; learned {float(learned):g}")
    held_out = [workload_of(machine, recipe, jobs, seed) for seed in range(half, seeds)]
    published = [wait_hours(each, machine, PUBLISHED) for each in held_out]
    for name, factor in (("learned", learned), ("adaptive", None)):
        print(f"  {name}: {in_words(published, [wait_hours(each, machine, factor) for each in held_out])}", flush=True)


def in_words(published: Sequence[float], other: Sequence[float]) -> str:
    """Mean waits, and by how much the other differs, with the standard error over the seeds."""
    changes = [after / before - 1.0 if before else 0.0 for before, after in zip(published, other, strict=True)]
    error = statistics.stdev(changes) / len(changes) ** 0.5 if len(changes) > 1 else float("nan")
    mean = statistics.fmean(changes)
    hours = f"{statistics.fmean(other):.2f} h against {statistics.fmean(published):.2f} h"
    return f"{hours}, {mean:+.1%} ± {error:.1%} over {len(changes)} seeds"


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000, help="jobs of each workload")
    parser.add_argument("--seeds", type=int, default=8, help="workloads of each kind; half of them to learn from")
    arguments = parser.parse_args()
    for machine in ("cori", "theta"):
        for recipe in RECIPES:
            compare(machine, recipe, arguments.jobs, arguments.seeds)


if __name__ == "__main__":
    main()
