"""A convolutional network like that of the digits, compiled: each worker notes how long its first steps took, and what
the compiler found of what others had made.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional

from malletrain.client.distributed import ElasticTraining, init

SIZE, BATCH, WIDTH = 512, 16, 16
STEPS = 3
"""The first step compiles; the next ones must not."""
HELD, MOST = 22, 8
"""A held batch, and the most samples in a pass of it: passes of 6 and 5 samples on 2 workers, of 8 and 7 on 3."""


def network() -> nn.Sequential:
    """Two convolutions and a linear layer."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, WIDTH, 3, padding=1), nn.ReLU(), nn.Conv2d(WIDTH, 2 * WIDTH, 3, padding=1), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2 * WIDTH * 16, 10)),
    )


def cpu_seconds() -> float:
    """What this process and the compilers that it has run have used: it depends less on what else the machine does."""
    own, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


def cache() -> dict[str, int]:
    """What the compiler has looked for in its caches in this process, and what of it was there."""
    found = {f"{part} {name}": count for part in ("inductor", "aot_autograd") for name, count in counters[part].items()}
    wanted = ("cache_hit", "cache_miss", "cache_bypass")
    return {name: count for name, count in found.items() if name.endswith(wanted)}


def main() -> None:
    """Train until this worker is asked to leave, or to the end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=10**9)
    parser.add_argument("--plain", action="store_true", help="do not compile")
    parser.add_argument("--hold", action="store_true", help="hold the batch, whose passes differ in size")
    options = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(SIZE, 1, 8, 8, generator=generator)
    labels = torch.randint(10, (SIZE,), generator=generator)
    init()
    # From here on the others wait, too.
    started, used = time.monotonic(), cpu_seconds()
    model = network() if options.plain else torch.compile(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    most, reference = (MOST, HELD) if options.hold else (BATCH, BATCH)
    training = ElasticTraining(
        model,
        optimizer,
        dataset_size=SIZE,
        batch_per_worker=most,
        reference_batch=reference,
        hold_batch=options.hold,
    )
    notes = Path(os.environ["MALLETRAIN_JOB_DIR"], f"notes-{os.getpid()}.jsonl")
    seconds: list[float] = []
    cpu: list[float] = []

    def note(event: str, **found: Any) -> None:
        place = {"event": event, "pid": os.getpid(), "rank": training.rank, "size": training.workers}
        with notes.open("a") as file:
            file.write(json.dumps({**place, "samples": training.samples, "time": time.time(), **found}) + "\n")

    @training.run
    def train() -> None:
        while training.samples < options.samples:
            training.optimizer.zero_grad()
            for indices, weight in training.micro_batches():
                (functional.cross_entropy(training.model(images[indices]), labels[indices]) * weight).backward()
            training.step()
            seconds.append(time.monotonic() - started)
            cpu.append(cpu_seconds() - used)
            if len(seconds) == STEPS:
                graphs = counters["stats"]["unique_graphs"]
                note("compiled", first=seconds[0], cpu=cpu[0], cache=cache(), graphs=graphs)
            time.sleep(0.02)

    training.finish({"workers": dist.get_world_size()})


if __name__ == "__main__":
    main()
