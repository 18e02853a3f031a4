"""What it costs to measure the gradient noise scale: `python benchmarks/noise_cost.py [--width 1024] [--steps 400]`.

Two workers train a perceptron with DistributedDataParallel over Gloo on this machine, and measure every second step.
Prints the median time of steps with and without a measurement, in ms, and what measuring one step of ten adds to a
step, in per cent. On a crowded machine both medians scatter by several per cent: repeat it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.arguments import positive

_EVERY, _USUAL = 2, 10


def train(width: int, batch: int, steps: int) -> None:
    """Train as one of the workers; rank 0 prints a JSON object."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from malletrain.client.gradient_noise import NoiseMeter, PassPlan

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    layers = [part for _ in range(4) for part in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*layers)
    wrapped, noise = DistributedDataParallel(model), NoiseMeter(model, every=_EVERY)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    inputs = torch.randn(batch, width)
    times: dict[int, list[float]] = {0: [], 1: []}
    for step in range(steps):
        began = time.perf_counter()
        noise.begin(PassPlan(batch, batch * dist.get_world_size()))
        optimizer.zero_grad()
        wrapped(inputs).square().mean().backward()
        noise.end()
        optimizer.step()
        if step >= steps // 10:
            times[step % _EVERY].append(time.perf_counter() - began)
    with_it, without = (1e3 * statistics.median(times[part]) for part in (0, 1))
    if dist.get_rank() == 0:
        found = {
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "measured_ms": round(with_it, 3),
            "other_ms": round(without, 3),
            "percent_of_a_step": round(100 * (with_it - without) / without / _USUAL, 2),
        }
        print(json.dumps(found), flush=True)
    dist.barrier()
    os._exit(0)  # now and then DistributedDataParallel hangs while it is taken down


def main() -> int:
    """Start the workers, or be one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=positive, default=1024, help="of each of four layers")
    parser.add_argument("--batch", type=positive, default=64, help="samples of a worker")
    parser.add_argument("--steps", type=positive, default=400)
    options = parser.parse_args()
    if "RANK" in os.environ:
        train(options.width, options.batch, options.steps)
        return 0
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__]
    arguments = [*("--width", str(options.width)), *("--batch", str(options.batch)), *("--steps", str(options.steps))]
    return subprocess.run([*launch, *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
