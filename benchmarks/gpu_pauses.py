"""What a rescale costs on this machine's GPU, beside its CPU: `python benchmarks/gpu_pauses.py [--json] [--repeats 2]`.

Real trainings under MalleTrain's supervisor, backend "torchrun", all on the first GPU, whose workers exchange gradients
by Gloo as NCCL allows one worker a GPU; see `benchmarks/rescale.py` for what is measured. Rows:

    cpu            a small network on the CPU, workers forked from a standby process
    cuda           the same on the GPU
    cuda, cold     the same on the GPU, each worker a new interpreter
    resnet18       ResNet-18 on the GPU, forked workers

Beside the pauses: what a worker's start on the device consists of. Steps of ResNet-18 with one worker are timed as
they are, and with a wait for the GPU before each step of the optimizer. Exits with 1 if a change never came to pass,
and with 2 where torch can use no GPU; `--rows cpu` needs none.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from torch.nn import functional

from benchmarks.arguments import positive
from benchmarks.rescaling.launching import LauncherError, last_words
from benchmarks.rescaling.processes import interrupt_once
from benchmarks.rescaling.results import missing, result, table
from benchmarks.rescaling.rounds import Sample, measure_round
from benchmarks.rescaling.supervisor import Supervisor
from tests.gpu.networks import NETWORKS, images

_STANDBY_MIB = 4096
_REST, _REST_BEFORE_KILL = (1.0, 1.5), (4.0, 5.0)
_NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
_PARTS = ("script", "device", "group", "load", "batch")
_TRAINER = "on_device.py"
_WARM_STEPS, _STEPS, _BATCH = 20, 100, 32


def launchers() -> dict[str, Supervisor]:
    """By row."""
    small, large = {"RESCALE_NETWORK": "small"}, {"RESCALE_NETWORK": "resnet18"}
    rows = {
        "cpu": (_STANDBY_MIB, {**small, **_NO_GPU}),
        "cuda": (_STANDBY_MIB, small),
        "cuda, cold": (0, small),
        "resnet18": (_STANDBY_MIB, large),
    }
    return {name: Supervisor(name, "torchrun", _TRAINER, mib, variables) for name, (mib, variables) in rows.items()}


def measure(
    rows: Iterable[Supervisor], repeats: int, rng: random.Random
) -> tuple[list[Sample], dict[str, list[dict[str, float]]]]:
    """Samples of all rounds, and the starts of all workers by row."""
    samples: list[Sample] = []
    starts: dict[str, list[dict[str, float]]] = {}
    for launcher in rows:
        for number in range(1, repeats + 1):
            print(f"round {number} of {repeats}: {launcher.name}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(prefix="rescale-") as name:
                folder = Path(name)
                try:
                    samples.extend(measure_round(launcher, folder, rng, _REST, _REST_BEFORE_KILL))
                except LauncherError as error:
                    print(f"{last_words(folder)}\n{launcher.name}: {error}", file=sys.stderr, flush=True)
                starts.setdefault(launcher.name, []).extend(parts(path) for path in folder.glob("start-*.json"))
    return samples, starts


def parts(path: Path) -> dict[str, float]:
    """How long each part of a worker's start took, in seconds: `script` is until its code begins, the wait included."""
    _, moments = json.loads(path.read_text())
    order = ("process", *_PARTS)
    return {later: moments[later] - moments[earlier] for earlier, later in itertools.pairwise(order)}


def medians(starts: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Median of each part in seconds, by row; the wait for a place is left out."""
    return {
        row: {part: round(statistics.median(start[part] for start in found), 3) for part in _PARTS[1:]}
        for row, found in starts.items()
        if found
    }


def starts_table(found: Mapping[str, Mapping[str, float]]) -> str:
    """The table, in Markdown."""
    lines = [
        f"| {row} | " + " | ".join(f"{part[name]:.2f}" for name in _PARTS[1:]) + " |" for row, part in found.items()
    ]
    head = "| s | CUDA's context | process group | model and checkpoint | first batch |"
    return "\n".join([head, "| --- | ---: | ---: | ---: | ---: |", *lines])


def step_seconds(waits: bool) -> float:
    """Median time of a step of ResNet-18 on the GPU in seconds."""
    device = torch.device("cuda")
    make, side = NETWORKS["resnet18"]
    model, (inputs, labels) = make().to(device), images(256, side, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    found = []
    for number in range(_WARM_STEPS + _STEPS):
        if number % _STEPS // 10 * 10 == number % _STEPS:  # every ten steps
            torch.cuda.synchronize()
            found.append(time.perf_counter())
        optimizer.zero_grad()
        start = number * _BATCH % 224
        functional.cross_entropy(model(inputs[start : start + _BATCH]), labels[start : start + _BATCH]).backward()
        if waits:
            torch.cuda.current_stream().synchronize()
        optimizer.step()
    return statistics.median(later - earlier for earlier, later in itertools.pairwise(found[2:])) / 10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--repeats", type=positive, default=2, help="rounds of each row (2)")
    parser.add_argument("--rows", nargs="+", choices=launchers(), metavar="ROW", help="these alone")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments of the changes (0)")
    options = parser.parse_args()
    rows = [launcher for name, launcher in launchers().items() if name in (options.rows or launchers())]
    has_gpu = torch.cuda.is_available()
    if not has_gpu and any(launcher.name != "cpu" for launcher in rows):
        print("needs an NVIDIA GPU that torch can use, or --rows cpu", file=sys.stderr)
        return 2
    interrupt_once()
    try:
        samples, starts = measure(rows, options.repeats, random.Random(options.seed))
    except KeyboardInterrupt:
        return 130
    names = [launcher.name for launcher in rows]
    found = {
        "device": torch.cuda.get_device_name() if has_gpu else "cpu",
        "torch": torch.__version__,
        **result(samples),
        "start_s": medians(starts),
    }
    if has_gpu:
        found["resnet18_step_s"] = {"as it is": step_seconds(False), "with a wait": step_seconds(True)}
    if options.json:
        print(json.dumps(found))
    else:
        print(
            f"{found['device']}, torch {found['torch']}\n\n{table(samples, names)}\n\n{starts_table(medians(starts))}"
        )
    never = [f"{name} never did a {kind}" for name, kind in missing(samples, names)]
    for line in never:
        print(line, file=sys.stderr)
    return 1 if never else 0


if __name__ == "__main__":
    sys.exit(main())
