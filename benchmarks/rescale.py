"""What a rescale costs: `python benchmarks/rescale.py [--json] [--repeats 10] [--peers]`, from the repository's root.

Real trainings of a small model (20 ms a batch) on this machine, round by round under each launcher in turn, so that
whatever else the machine does hits all alike:

    horovodrun  stock `horovodrun --host-discovery-script`
    horovod     MalleTrain's supervisor, backend "horovod": the very same script as above
    torchrun    MalleTrain's supervisor, backend "torchrun"

and with --peers stock torchrun, as it is and with its time-outs cut down. `--only "horovod, standby"` measures the
second with workers that are forked from a standby process, once that is ready. Every change is measured in the log of
the batches that rank 0 has done. latency: from the command, or the kill, to the end of the first batch of the new
world. pause: from the end of the old world's last batch to that moment. `docs/performance.md` has the figures.

Exits with 1 if a launcher never did what it was to do. Goals that are missed are said on stderr.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.arguments import positive
from benchmarks.rescaling.horovodrun import Horovodrun
from benchmarks.rescaling.launching import Launcher, LauncherError, last_words
from benchmarks.rescaling.processes import interrupt_once
from benchmarks.rescaling.results import missed, missing, result, table
from benchmarks.rescaling.rounds import Sample, measure_round
from benchmarks.rescaling.supervisor import Supervisor
from benchmarks.rescaling.torchrun import Torchrun

LAUNCHERS: tuple[Launcher, ...] = (
    Horovodrun(),
    Supervisor("horovod", "horovod", "elastic_horovod.py"),
    Supervisor("torchrun", "torchrun", "distributed.py"),
)
ON_DEMAND: tuple[Launcher, ...] = (Supervisor("horovod, standby", "horovod", "elastic_horovod.py", standby_mib=2048),)
PEERS: tuple[Launcher, ...] = (Torchrun("torchrun stock", quick=False), Torchrun("torchrun stock, quick", quick=True))
# A launcher that can't be started here is not tried again and again.
_MAX_FAILURES = 2


def measure(launchers: Sequence[Launcher], repeats: int, rng: random.Random) -> list[Sample]:
    """All rounds of all launchers; what goes wrong in one is said, and costs that round the rest of its samples."""
    found: list[Sample] = []
    failures: Counter[str] = Counter()
    for number in range(1, repeats + 1):
        for launcher in launchers:
            measured = any(sample.launcher == launcher.name for sample in found)
            if not measured and failures[launcher.name] >= _MAX_FAILURES:
                continue
            print(f"round {number} of {repeats}: {launcher.name}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(prefix="rescale-") as folder:
                try:
                    for sample in measure_round(launcher, Path(folder), rng):
                        found.append(sample)
                except LauncherError as error:
                    failures[launcher.name] += 1
                    print(f"{last_words(Path(folder))}\n{launcher.name}: {error}", file=sys.stderr, flush=True)
    return found


def chosen(names: Sequence[str] | None, peers: bool) -> list[Launcher]:
    """The launchers to measure."""
    if names is None:
        return [*LAUNCHERS, *(PEERS if peers else ())]
    return [launcher for launcher in (*LAUNCHERS, *PEERS, *ON_DEMAND) if launcher.name in names]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the medians as one JSON object")
    parser.add_argument("--repeats", type=positive, default=10, help="rounds (10)")
    parser.add_argument("--peers", action="store_true", help="measure stock torchrun, too")
    parser.add_argument("--only", action="append", metavar="NAME", help="measure this launcher alone; may be repeated")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments of the changes (0)")
    options = parser.parse_args()
    launchers = chosen(options.only, options.peers)
    if not launchers:
        parser.error(f"--only: expected one of {[launcher.name for launcher in (*LAUNCHERS, *PEERS, *ON_DEMAND)]}")
    interrupt_once()
    try:
        samples = measure(launchers, options.repeats, random.Random(options.seed))
    except KeyboardInterrupt:
        return 130
    names = [launcher.name for launcher in launchers]
    print(json.dumps(result(samples)) if options.json else table(samples, names))
    never = [f"{name} never did a {kind}" for name, kind in missing(samples, names)]
    for line in never + missed(samples):
        print(line, file=sys.stderr)
    return 1 if never else 0


if __name__ == "__main__":
    sys.exit(main())
