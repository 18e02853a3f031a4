"""Is a main job slower beside ours on the same node? `python benchmarks/shared_node.py [--rounds 20] [--only memory]`.

Run from the repository's root, on a machine with at least two cores. A stand-in for a main job, bound to the first
core, runs in turn alone, beside a training as a placeholder of single GPUs confines it (the other cores only, as many
threads, `nice`), and beside the same training unconfined (all cores, as many threads, no `nice`). Nothing is started
anew in between: what does not take part is stopped. Prints a table and writes `build/shared-node.json`;
`docs/zero-impact.md` says what the figures mean.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.arguments import positive
from benchmarks.impact.neighbours import Sample, slowdowns

ROOT = Path(__file__).parent.parent
FILE = ROOT / "build" / "shared-node.json"
ALONE, CONFINED, UNCONFINED = "alone", "beside a confined training", "beside an unconfined training"
KINDS = ("compute", "memory")
NICE = 10
_SETTLE_SECONDS = 0.3
_TIMES: dict[str, Callable[[Sample], float]] = {
    "wall-clock": lambda one: one.wall_seconds,
    "CPU": lambda one: one.cpu_seconds,
}


class Program:
    """A program of `benchmarks.impact.neighbours`, stopped unless it is its turn."""

    def __init__(self, kind: str, cores: set[int], nice: int = 0) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": str(len(cores)), "OPENBLAS_NUM_THREADS": str(len(cores))}
        bound = ["taskset", "-c", ",".join(map(str, sorted(cores))), "nice", "-n", str(nice)]
        argv = [*bound, sys.executable, "-m", "benchmarks.impact.neighbours", kind]
        self.process = subprocess.Popen(argv, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        if self._line() != "ready":
            raise RuntimeError(f"{kind} did not start")
        self.pause()

    def pause(self) -> None:
        """Have it do nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Have it go on."""
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()

    def measure(self, seconds: float) -> Sample:
        """What it does in so many seconds, after a while to settle."""
        begin = time.monotonic() + _SETTLE_SECONDS
        first = self._told_after(begin)
        last = self._told_after(begin + seconds)
        return Sample(last[0] - first[0], last[1] - first[1], last[2] - first[2])

    def _told_after(self, moment: float) -> tuple[float, float, float]:
        while True:
            done, told, cpu = map(float, self._line().split())
            if told >= moment:
                return done, told, cpu

    def _line(self) -> str:
        assert self.process.stdout is not None
        if not (line := self.process.stdout.readline()):
            raise RuntimeError("a program has ended")
        return line.strip()


@contextmanager
def running(kind: str, cores: set[int], nice: int = 0) -> Iterator[Program]:
    """A program, ended at the end."""
    program = Program(kind, cores, nice)
    try:
        yield program
    finally:
        program.end()


def measured(kind: str, rounds: int, seconds: float, chance: random.Random) -> list[dict[str, Sample]]:
    """Rounds in which a main job runs once in each company, in an order drawn anew."""
    first, *others = sorted(os.sched_getaffinity(0))
    found = []
    with (
        running(kind, {first}) as main,
        running("training", set(others), NICE) as confined,
        running("training", {first, *others}) as unconfined,
    ):
        company = {ALONE: None, CONFINED: confined, UNCONFINED: unconfined}
        for _ in range(rounds):
            turns: dict[str, Sample] = {}
            for name in chance.sample(list(company), len(company)):
                if (other := company[name]) is not None:
                    other.go_on()
                main.go_on()
                turns[name] = main.measure(seconds)
                main.pause()
                if other is not None:
                    other.pause()
            found.append(turns)
    return found


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=positive, default=20, help="of each stand-in (20)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each stretch (2)")
    parser.add_argument("--only", choices=KINDS, help="one of the stand-ins")
    parser.add_argument("--seed", type=int, default=1, help="of the order (1)")
    parser.add_argument("--file", type=Path, default=FILE, help="build/shared-node.json")
    options = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2 or options.rounds < 3:
        parser.error("needs two cores and three rounds")
    chance = random.Random(options.seed)
    figures = {}
    print("| main job | company | time | slower, median | quartiles |\n| --- | --- | --- | ---: | ---: |")
    for kind in KINDS if options.only is None else (options.only,):
        rounds = measured(kind, options.rounds, options.seconds, chance)
        figures[kind] = [{name: one._asdict() for name, one in turns.items()} for turns in rounds]
        for label, seconds in _TIMES.items():
            found = slowdowns(rounds, ALONE, seconds)
            for name in (ALONE, CONFINED, UNCONFINED):
                one = found[name]
                quartiles = f"{100 * one.low:+.1f} to {100 * one.high:+.1f} %"
                print(f"| {kind} | {name} | {label} | {100 * one.median:+.1f} % | {quartiles} |", flush=True)
    options.file.parent.mkdir(exist_ok=True)
    options.file.write_text(json.dumps({"load": os.getloadavg(), "rounds": figures}, indent=1) + "\n")
    print(f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
