"""What changes of scale do to what replicas of two workers learn (HSDP): `python benchmarks/replicas.py [--seeds 5]`.

Run from the repository's root. The example of FSDP2 trains with the mesh of `replica_mesh`: undisturbed with 2
replicas, and over 2, 3, 3, 2 and 1 of them. A replica comes, a worker is killed with SIGKILL, a replica is taken, and
one more. The workers are real processes with Gloo, started and told to leave as the supervisor does it, without the
services.
Prints the loss on the test set with and without disturbance, how far their curves are apart, and what each kind of
change costs. A row for each training is kept in `--out`, and what is there is not made again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.arguments import positive
from benchmarks.learning.comparing import interval
from tests.support.generations import Launcher
from tests.support.waiting import wait_until
from tests.training.accounts import lines_in

ROOT = Path(__file__).parents[1]
PATIENCE = 900.0
SAMPLES, EACH, LOST = 1653, 2, 3
"""Samples of an epoch, workers of a replica, and the rank that is killed."""
CHANGES = (("growth", 4), ("kill -9", 6), ("reclaim of a replica", 6), ("shrink", 4))
"""What happens, in this order, and to how many workers; the last ones are 2."""
LINES = {
    "import ShardedTraining\n": "import ShardedTraining\nfrom malletrain.client.replicas import replica_mesh\n",
    "    for part in (*model": "    mesh = replica_mesh(device_type=device.type)\n    for part in (*model",
    "fully_shard(part)": "fully_shard(part, mesh=mesh)",
    "BATCH = 8\n": "BATCH = 12\n",
    "reference_batch=16": "reference_batch=24, hold_batch=True",
    "from __future__ import annotations\n": "from __future__ import annotations\nimport noting\n",
}
"""What the example gets: replicas, 24 samples in each step at each scale, and notes of what it does."""


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        seed: Its seed.
        disturbed: Whether its scale changed, and a worker was killed.
        loss: Loss on the test set.
        curve: Mean loss of each step, in order; of one that was made twice, the last time. None where a worker was
            killed before it could note its own.
        pauses: By change, seconds between the last step before it and the first after it, less a usual step.
        repeated: By change, samples that were trained with again.
    """

    seed: int
    disturbed: bool
    loss: float
    curve: tuple[float | None, ...]
    pauses: dict[str, float]
    repeated: dict[str, int]


def script_in(folder: Path) -> Path:
    """The example with replicas and notes, in a folder.

    Raises:
        ValueError: the example has no longer the lines that are replaced.
    """
    text = (ROOT / "examples" / "fsdp2" / "elastic.py").read_text()
    for line, other in LINES.items():
        if line not in text:
            raise ValueError(f"examples/fsdp2/elastic.py: expected the line {line!r}, got none")
        text = text.replace(line, other, 1)
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "training" / "noting.py", folder)
    script = folder / "train.py"
    script.write_text(text)
    return script


def train(seed: int, disturbed: bool, epochs: int, folder: Path) -> Run:
    """One training in a new folder.

    Raises:
        RuntimeError: a worker has failed.
    """
    script = script_in(folder)
    variables = {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "replicas", "LOCAL_WORLD_SIZE": "1"}
    variables |= {"MALLETRAIN_NODES_PER_REPLICA": str(EACH)}
    modules = ("malletrain.client.fsdp", "malletrain.client.replicas", "torch.utils.data")
    launcher = Launcher(script, folder, variables, modules)
    arguments = ("--epochs", str(epochs), "--seed", str(seed))
    changes = CHANGES if disturbed else ()
    last_steps: list[float] = []
    for number, (what, workers) in enumerate(changes, start=1):
        wanted = SAMPLES * epochs * number // (len(changes) + 1)
        with launcher.generation(workers, *arguments) as running:
            wait_until(lambda wanted=wanted: _reached(folder) >= wanted, PATIENCE, f"{wanted} samples")
            codes = running.lose(LOST) if what == "kill -9" else running.stop()
        expected = [-9 if what == "kill -9" and rank == LOST else 0 for rank in range(workers)]
        if codes != expected:
            raise RuntimeError(f"{what}: workers ended with {codes}: {(folder / '0.log').read_text()[-2000:]}")
        last_steps.append(max(line["time"] for line in lines_in(folder)))
    with launcher.generation(EACH if disturbed else 2 * EACH, *arguments) as running:
        codes = running.join(PATIENCE)
    if set(codes) != {0}:
        raise RuntimeError(f"the last workers ended with {codes}: {(folder / '0.log').read_text()[-2000:]}")
    metrics = json.loads((folder / "completed.json").read_text())["metrics"]
    lines = lines_in(folder)
    pauses, repeated = costs_of(lines, last_steps)
    return Run(seed, disturbed, metrics["loss"], curve_of(lines), pauses, repeated)


def _reached(folder: Path) -> int:
    return max((line["before"] for line in lines_in(folder)), default=0)


def curve_of(lines: Sequence[dict[str, Any]]) -> tuple[float | None, ...]:
    """The mean over the workers of each step's loss."""
    newest: dict[int, dict[int, dict[str, Any]]] = defaultdict(dict)
    for line in lines:
        newest[line["before"]][line["first"]] = line
    found: list[float | None] = []
    for _, by_first in sorted(newest.items()):
        size = max(by_first.values(), key=lambda line: line["time"])["size"]
        losses = [line["loss"] for line in by_first.values() if line["size"] == size]
        found.append(statistics.fmean(losses) if len(losses) == size else None)
    return tuple(found)


def _differences(one: Run, other: Run) -> list[float]:
    """How far two curves are apart at each step of which both know the loss."""
    pairs = zip(one.curve, other.curve, strict=True)
    return [abs(a - b) for a, b in pairs if a is not None and b is not None]


def costs_of(lines: Sequence[dict[str, Any]], last_steps: Sequence[float]) -> tuple[dict[str, float], dict[str, int]]:
    """Pause and repeated samples of each change, by rank 0's steps."""
    own = [line for line in lines if line["rank"] == 0]
    gaps = [later["time"] - earlier["time"] for earlier, later in itertools.pairwise(own)]
    usual = statistics.median(gaps)
    pauses, repeated = {}, {}
    for (what, _), when in zip(CHANGES, last_steps, strict=False):
        last = max((line for line in own if line["time"] <= when), key=lambda line: line["time"])
        first = min((line for line in own if line["time"] > when), key=lambda line: line["time"])
        pauses[what] = round(first["time"] - last["time"] - usual, 2)
        repeated[what] = last["before"] + 24 - first["before"]
    return pauses, repeated


def table(runs: Sequence[Run]) -> str:
    """Losses, their difference seed by seed, distance of the curves, and what the changes cost."""
    by_seed: dict[int, dict[bool, Run]] = defaultdict(dict)
    for run in runs:
        by_seed[run.seed][run.disturbed] = run
    pairs = [(found[False], found[True]) for found in by_seed.values() if len(found) == 2]
    if len(pairs) < 2:
        return "fewer than two seeds with both trainings"
    lines = [f"{len(pairs)} seeds, test loss: mean, standard deviation over the seeds"]
    for number, name in enumerate(("undisturbed", "disturbed")):
        losses = [pair[number].loss for pair in pairs]
        lines.append(f"  {name:12}{statistics.fmean(losses):8.4f}{statistics.stdev(losses):8.4f}")
    differences = [other.loss - one.loss for one, other in pairs]
    low, high = interval(differences)
    lines.append(f"  difference  {statistics.fmean(differences):+8.5f}, 95 % interval {low:+.5f} to {high:+.5f}")
    apart = [max(_differences(one, other)) for one, other in pairs]
    between = [statistics.fmean(_differences(one, other)) for (one, _), (other, _) in itertools.combinations(pairs, 2)]
    lines.append(f"curves, largest difference at one of {len(pairs[0][0].curve)} steps: {max(apart):.2g}")
    lines.append(f"  mean difference of undisturbed ones of two seeds: {statistics.fmean(between):.5f}")
    for what, _ in CHANGES:
        pauses = [other.pauses[what] for _, other in pairs]
        again = [other.repeated[what] for _, other in pairs]
        figures = f"{statistics.fmean(pauses):6.2f} s ({min(pauses):.2f} to {max(pauses):.2f})"
        lines.append(f"  {what:22}{figures}, trained again: {', '.join(map(str, again))}")
    return "\n".join(lines)


def read_rows(path: Path) -> list[Run]:
    """The trainings that have been made."""
    if not path.exists():
        return []
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [Run(**{**row, "curve": tuple(row["curve"])}) for row in found]


def main() -> int:
    """Train what has not been trained, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=positive, default=5, help="pairs of trainings (5)")
    parser.add_argument("--epochs", type=positive, default=1, help="epochs of 1653 samples (1)")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "replicas.jsonl", help="file of the rows")
    options = parser.parse_args()
    runs = read_rows(options.out)
    for seed in range(options.seeds):
        for disturbed in (False, True):
            if any((run.seed, run.disturbed) == (seed, disturbed) for run in runs):
                continue
            with tempfile.TemporaryDirectory(prefix="replicas-") as folder:
                runs.append(train(seed, disturbed, options.epochs, Path(folder) / "job"))
            options.out.parent.mkdir(parents=True, exist_ok=True)
            with options.out.open("a") as file:
                file.write(json.dumps(asdict(runs[-1])) + "\n")
            print(seed, disturbed, runs[-1].loss, runs[-1].pauses, runs[-1].repeated, flush=True)
    print(table(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
