"""What a change of scale costs a large state: handed over in the memory of nodes, and by way of the disk.

A training of `tests/training/handover_trainer.py` grows from two virtual nodes to three and leaves the first again,
under a real supervisor. The pause is the time from the last batch of the workers before to the moment when the new ones
have the state. Both ways take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.arguments import positive
from tests.supervisor.running import Supervised, supervised

ROOT = Path(__file__).parents[1]
TRAINER = ROOT / "tests" / "training" / "handover_trainer.py"
BYTES_PER_WIDTH = 11 * 3 * 4
"""Of the trainer's network: weights and two moments of eleven parameters, in float32."""
WAYS = {"memory": 0, "disk": 1 << 60}


def pause_after(job: Supervised, since: float) -> float:
    """Seconds from the last batch before a change to the moment when all of the new workers have the state.

    Args:
        job: The training.
        since: Time of the command.
    """
    loaded = [line["time"] for line in job.lines() if line["event"] == "loaded" and line["time"] > since]
    batches = [line["time"] for line in job.lines() if line["event"] == "batch" and line["time"] < min(loaded)]
    return float(max(loaded) - max(batches))


def measure(folder: Path, way: str, width: int, *, divided: bool) -> dict[str, float]:
    """Pauses of a growth and of a shrink, in seconds."""
    arguments = ["--width", str(width), "--handover-bytes", str(WAYS[way]), *(["--divided"] if divided else [])]
    command = [sys.executable, str(TRAINER), *arguments]
    environment = {"PYTHONPATH": str(ROOT)}
    pauses: dict[str, float] = {}
    with supervised(
        folder, "n1", "n2", command=command, backend="torchrun", environment=environment, standby_mib=4096
    ) as job:
        job.wait_confirmed()
        job.wait_batch(2)
        for name, nodes in (("growth, 2 to 3", ("n1", "n2", "n3")), ("without rank 0, 3 to 2", ("n2", "n3"))):
            since = max(line["time"] for line in job.lines())
            job.rescale(*nodes)
            pauses[name] = pause_after(job, since)
    return pauses


def table(results: Sequence[dict[str, Any]]) -> str:
    """Medians as a table in Markdown."""
    by_kind: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        for change, seconds in result["pauses"].items():
            by_kind[result["training"], change][result["way"]].append(seconds)
    lines = ["| median pause in s | memory | disk | ratio |", "| --- | ---: | ---: | ---: |"]
    for (training, change), ways in by_kind.items():
        memory, disk = (statistics.median(ways[way]) for way in ("memory", "disk"))
        lines.append(f"| {training}: {change} | {memory:.1f} | {disk:.1f} | {disk / memory:.1f} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gib", type=float, default=1.0, help="size of the state")
    parser.add_argument("--rounds", type=positive, default=2)
    parser.add_argument("--folder", type=Path, help="where checkpoints are written; default: a temporary one")
    options = parser.parse_args(arguments)
    width = int(options.gib * (1 << 30) / BYTES_PER_WIDTH)
    results = []
    for number in range(options.rounds):
        for divided in (False, True):
            for way in WAYS if number % 2 == 0 else reversed(WAYS):
                with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                    pauses = measure(Path(folder, "job"), way, width, divided=divided)
                training = "ShardedTraining" if divided else "ElasticTraining"
                results.append({"training": training, "way": way, "pauses": pauses})
                print(json.dumps(results[-1]), flush=True)
    print(table(results))


if __name__ == "__main__":
    main()
