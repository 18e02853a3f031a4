"""Jobs of many kinds side by side, none of which has a fault: `python benchmarks/mixed_jobs.py [--minutes 60]`.

Run from the repository's root. Evaluations, saves, starts and pauses of minutes, scripts with and without the client's
helpers, wrappers, plain Horovod; nodes are drained and given back every few minutes. Nothing of that is a fault: no job
may be restarted, none fail, no node be suspected. Exits with 1 if that happens, or if a process is left.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from malletrain.common.environment import JOB_DIR
from malletrain.common.processes import find_processes
from tests.system.deployment import Deployment, deployed

FOLDER = Path(__file__).parent.resolve() / "mixing"
PYTHON = sys.executable
NODES = [f"n{number}" for number in range(1, 13)]
SETTINGS = f"""
[scavenger]
source = "static"
nodes = {json.dumps(NODES)}
debounce_seconds = 0
[job_manager]
trainer_python = "{PYTHON}"
standby_memory_mib = 2048
max_parallel = 16
max_parallel_per_owner = 16
"""
_LOOK_SECONDS = 5.0


@dataclass(frozen=True)
class Kind:
    """A job.

    Attributes:
        name: Its name.
        options: Of `malletrain submit`.
        command: What it runs.
    """

    name: str
    options: tuple[str, ...]
    command: tuple[str, ...]


def _silent(mode: str, seconds: int, *options: str) -> Kind:
    variables = ("--env", f"MODE={mode}", "--env", f"SECONDS_SILENT={seconds}")
    return Kind(f"silent-{mode}", ("--backend", "command", *variables, *options), (PYTHON, "silent.py"))


KINDS = (
    _silent("silence", 240),
    _silent("phase", 300),
    _silent("save", 150),
    _silent("start", 200),
    _silent("computes", 400),
    Kind("replicas-torchrun", ("--backend", "torchrun", "--max", "3"), (PYTHON, "replicas.py")),
    Kind("replicas-horovod", ("--backend", "horovod", "--max", "3"), (PYTHON, "replicas.py")),
    Kind("plain-torchrun", ("--backend", "torchrun", "--max", "2"), (PYTHON, "plain.py")),
    Kind("plain-horovod", ("--env", "WITH=horovod", "--backend", "horovod", "--max", "2"), (PYTHON, "plain.py")),
    Kind(
        "wrapper",
        ("--backend", "command", "--env", "MODE=silence", "--env", "SECONDS_SILENT=90"),
        (str(FOLDER / "run.sh"), PYTHON),
    ),
)


@dataclass(frozen=True)
class Outcome:
    """What has become of a job."""

    name: str
    state: str
    restarts: int
    rescales: int
    preemptions: int
    samples: int
    last_failure: str

    @property
    def good(self) -> bool:
        """Whether nothing has happened to it that its script has not caused."""
        return self.restarts == 0 and not self.last_failure and self.state not in ("FAILED", "JOB_STATE_FAILED")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long they train (60)")
    parser.add_argument("--seed", type=int, default=1, help="seed of which node is drained and when (1)")
    parser.add_argument("--out", type=Path, default=Path("build/mixed-jobs"), help="state folder (build/mixed-jobs)")
    parser.add_argument("--only", action="append", metavar="KIND", help="part of a kind's name; may be repeated")
    options = parser.parse_args()
    out = options.out.resolve()
    if out.exists():
        parser.error(f"--out: {out} exists")
    kinds = [kind for kind in KINDS if not options.only or any(part in kind.name for part in options.only)]
    with deployed(out, SETTINGS, seconds=300) as system:
        jobs = {kind.name: _submit(system, kind) for kind in kinds}
        drains = _disturb(system, random.Random(options.seed), time.monotonic() + 60 * options.minutes)
        for text in drains:
            print(text, file=sys.stderr, flush=True)
        outcomes = [_outcome(name, system.json("job", job_id)) for name, job_id in jobs.items()]
        nodes = system.json("nodes")
        for job_id in jobs.values():
            system.command("cancel", job_id)
    left = [process.id.pid for process in find_processes(lambda found: found.get(JOB_DIR, "").startswith(str(out)))]
    suspected = [node for node in nodes if isinstance(node, dict) and node.get("quarantine")]
    result = {"jobs": [asdict(outcome) for outcome in outcomes], "suspected": suspected, "processes_left": len(left)}
    print(json.dumps(result, indent=2))
    return 0 if all(outcome.good for outcome in outcomes) and not suspected and not left else 1


def _submit(system: Deployment, kind: Kind) -> str:
    options = ("--name", kind.name, "--workdir", str(FOLDER), "--profile", "never", *kind.options)
    done = system.command("submit", *options, "--", *kind.command, timeout=120)
    if done.returncode:
        sys.exit(f"{kind.name}: {done.stderr}")
    print(f"{done.stdout.strip()} {kind.name} {done.stderr.strip()}", file=sys.stderr)
    return done.stdout.strip()


def _disturb(system: Deployment, chance: random.Random, until: float) -> Iterator[str]:
    """Drain a node every two to five minutes, and give it back after a while; says what it does."""
    while time.monotonic() < until:
        _wait(min(until, time.monotonic() + chance.uniform(120, 300)))
        if time.monotonic() >= until:
            return
        node = chance.choice(NODES)
        yield f"drain {node}: {system.command('drain', node, timeout=120).returncode}"
        _wait(min(until, time.monotonic() + chance.uniform(20, 90)))
        yield f"resume {node}: {system.command('resume', node, timeout=120).returncode}"


def _wait(until: float) -> None:
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _LOOK_SECONDS))


def _outcome(name: str, job: dict[str, Any]) -> Outcome:
    def number(field: str) -> int:
        return int(job.get(field, 0))

    return Outcome(
        name,
        str(job.get("state", "")),
        number("restarts"),
        number("rescales"),
        number("preemptions"),
        number("samples"),
        str(job.get("lastFailure", "")),
    )


if __name__ == "__main__":
    sys.exit(main())
