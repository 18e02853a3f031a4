"""How soon a preempted placeholder has gone from its node: `python benchmarks/placeholder_end.py [--rounds 50]`.

Run from the repository's root; needs Debian's Slurm. Placeholders hold the nodes of a real Slurm on this machine, with
a stand-in for the agent that leaves at once when it gets SIGTERM. In each round a main job preempts all of them.
Measured is, for each node, the time from that SIGTERM until none of the placeholder's processes is left, as seen from
outside, and the time from the main job's submission to its start. No training runs: what is measured is Slurm, and the
placeholder's script.

Exits with 1 if a node had a process of ours left for more than a second. `docs/zero-impact.md` has figures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.arguments import positive
from benchmarks.impact.watch import Watcher
from benchmarks.rescaling.processes import interrupt_once
from malletrain.scavenger.acquisition.batch_client import AgentCommand
from malletrain.scavenger.acquisition.slurm_batch_client import SlurmBatchClient
from malletrain.scavenger.sources.schedulers.commands import run_command
from tests.slurm.cluster import Cluster, cluster, missing
from tests.support.waiting import wait_until

NAME = "malletrain"
LIMIT_SECONDS = 1.0
_PLACEHOLDER_SECONDS = 600.0
_LEFT_SECONDS = 8.0
_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class StandInAgent(AgentCommand):
    """Notes when it is there and when it gets SIGTERM, and ends then.

    Attributes:
        notes: Folder for the notes, NODE.up and NODE.term.
    """

    notes: str = ""

    def on(self, node: str, source: str, limit_seconds: float = 0.0) -> list[str]:
        """The command for a node."""
        del source, limit_seconds
        note = f"{shlex.quote(self.notes)}/{node}"
        script = f"trap 'echo $EPOCHREALTIME >{note}.term; exit 0' TERM; touch {note}.up; while :; do sleep 0.05; done"
        return ["env", "LC_ALL=C", "bash", "-c", script]


def measure(slurm: Cluster, notes: Path, watcher: Watcher) -> tuple[list[float], float]:
    """Seconds until each node was free of us, and until the main job began, in one round."""
    notes.mkdir()
    agent = StandInAgent("", "", lambda node: node, "", 0.0, "placeholder-end", notes=str(notes))
    client = SlurmBatchClient(run_command, agent, partition="scavenge", name=NAME)
    for node in slurm.nodes:
        asyncio.run(client.submit(node, _PLACEHOLDER_SECONDS))
    wait_until(lambda: len([*notes.glob("*.up")]) == len(slurm.nodes), _PATIENCE_SECONDS, "all placeholders")
    submitted, began = time.time(), notes / "began"
    slurm.submit(len(slurm.nodes), f"LC_ALL=C\necho $EPOCHREALTIME >{began}", "--job-name=main")
    wait_until(lambda: began.exists() and began.read_text(), _PATIENCE_SECONDS, "the main job")
    told = {node: float((notes / f"{node}.term").read_text()) for node in slurm.nodes}

    def seconds(node: str) -> float:
        return max(watcher.empty.get(node, [0.0])) - told[node]

    wait_until(
        lambda: all(seconds(node) >= 0 for node in told), _LEFT_SECONDS, "the end of all placeholders' processes"
    )
    wait_until(lambda: not slurm.jobs(), _PATIENCE_SECONDS, "the end of all jobs")
    return [seconds(node) for node in told], float(began.read_text()) - submitted


def summary(name: str, seconds: Sequence[float]) -> dict[str, float]:
    """Number, median and maximum of a series."""
    return {
        f"{name}s": len(seconds),
        f"{name}_median_s": round(statistics.median(seconds), 2),
        f"{name}_worst_s": round(max(seconds), 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=positive, default=4, help="slurmd on this machine (4)")
    parser.add_argument("--rounds", type=positive, default=50, help="main jobs (50)")
    options = parser.parse_args()
    if reason := missing():
        print(reason, file=sys.stderr)
        return 2
    interrupt_once()
    reclaims: list[float] = []
    starts: list[float] = []
    with tempfile.TemporaryDirectory(prefix="placeholder-end-") as name:
        folder = Path(name)
        with cluster(folder / "slurm", options.nodes) as slurm:
            os.environ.update(slurm.environment)
            watcher = Watcher(NAME, slurm.environment["SLURM_CONF"], folder)
            try:
                for number in range(options.rounds):
                    found, start = measure(slurm, folder / str(number), watcher)
                    reclaims += found
                    starts.append(start)
            finally:
                watcher.close()
    late = sum(seconds > LIMIT_SECONDS for seconds in reclaims)
    print(json.dumps({**summary("reclaim", reclaims), "late": late, **summary("start", starts)}, indent=2))
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
