"""Prepares the demo: ports, configuration, trace and jobs."""

from __future__ import annotations

import json
import os
import random
import sys
from dataclasses import dataclass
from pathlib import Path

from malletrain.common.addresses import free_loopback_ports
from malletrain.common.environment import PREFIX
from malletrain.common.trusted_files import reason_for_distrust
from malletrain.runtime.errors import InvalidInputError, MalleTrainError
from malletrain.runtime.settings_file import SERVICES
from malletrain.scavenger.excerpt import busy_excerpt
from malletrain.scavenger.generate import generate
from malletrain.scavenger.idle_trace import Trace
from malletrain.scavenger.trace_files import read_trace, write_trace
from malletrain.v1 import resources_pb2

NODES = 8
TRACE_SECONDS = 900.0
_GENERATED_NODES = 256
_GENERATED_SECONDS = 4 * 3600.0
_IDLE_FRACTION = 0.1


@dataclass(frozen=True)
class DemoSetup:
    """What a demo run uses.

    Attributes:
        folder: Folder with all state of the run.
        config: TOML file with the settings of the services.
        trace: The idle-node trace that is replayed.
        trace_origin: Origin of the trace, for people.
        speed: Trace seconds per second.
    """

    folder: Path
    config: Path
    trace: Trace
    trace_origin: str
    speed: float

    @property
    def seconds(self) -> float:
        """Duration of the replay in seconds."""
        return TRACE_SECONDS / self.speed


def prepare_demo(folder: Path, speed: float, seed: int, source: Path | None) -> DemoSetup:
    """Write the trace and the configuration of a demo run.

    Args:
        folder: Empty folder for all state.
        speed: Trace seconds per second, above 0.
        seed: Seed of the generated trace.
        source: A trace to take an excerpt from; None: one is generated.

    Raises:
        InvalidInputError: the source can't be read as a trace, or others can write the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if reason := reason_for_distrust(folder):  # its settings name programs, and others could change them
        raise InvalidInputError("--folder", f"a folder that nobody else can write: {reason}", str(folder))
    if source is not None:
        whole, origin = read_trace(source), f"excerpt of {source.name}"
    else:
        rng = random.Random(seed)
        whole = generate(_GENERATED_NODES, _GENERATED_SECONDS, _IDLE_FRACTION, rng)
        origin = f"generated with Summit's fragment statistics, seed {seed}"
    excerpt = busy_excerpt(whole, TRACE_SECONDS, NODES)
    path = folder / "trace.csv"
    write_trace(excerpt, path)
    config = folder / "malletrain.toml"
    config.write_text(_configuration(folder, path, speed), encoding="utf-8")
    return DemoSetup(folder, config, excerpt, origin, speed)


def _configuration(folder: Path, trace: Path, speed: float) -> str:
    addresses = "\n".join(f'{name} = "127.0.0.1:{port}"' for name, port in zip(SERVICES, free_ports(), strict=True))
    return f"""\
state_dir = {json.dumps(str(folder))}
validate_state = true

[addresses]
{addresses}

[scavenger]
source = "trace"
trace = {json.dumps(str(trace))}
speed = {speed}
duration_s = {TRACE_SECONDS}
debounce_seconds = {10 / speed}

[allocator]
forward_seconds = {120 / speed}

[job_manager]
trainer_python = {json.dumps(sys.executable)}
"""


def free_ports() -> list[int]:
    """A free loopback port for each service."""
    return free_loopback_ports(len(SERVICES))


def trainer_script() -> Path:
    """Path of the example trainer, in a checkout or in an installed package.

    Raises:
        MalleTrainError: it does not exist.
    """
    candidates = (Path(__file__).parents[4] / "examples/digits/train.py", Path(__file__).parent / "train.py")
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise MalleTrainError(f"the demo's trainer is missing: looked for {' and '.join(map(str, candidates))}")


def demo_jobs() -> list[resources_pb2.JobSpec]:
    """Three trainings of different sizes and scales. None declares a scaling curve."""
    shapes = (
        # name, width of the network, samples, smallest and largest scale, permitted scales
        ("digits-small", 8, 90_000, 1, 4, ()),
        ("digits-medium", 16, 90_000, 1, 6, ()),
        ("digits-powers", 24, 60_000, 2, 4, (2, 4)),
    )
    script = trainer_script()
    return [
        resources_pb2.JobSpec(
            name=name,
            command=[
                sys.executable,
                str(script),
                *("--samples", str(samples)),
                *("--width", str(width)),
                *("--batch-per-worker", "32"),
                *("--step-seconds", "0.06"),
                *("--seed", str(seed)),
            ],
            working_directory=str(script.parent),
            environment={"OMP_NUM_THREADS": "1"},
            min_nodes=smallest,
            max_nodes=largest,
            permitted_nodes=permitted,
        )
        for seed, (name, width, samples, smallest, largest, permitted) in enumerate(shapes)
    ]


def services_environment() -> dict[str, str]:
    """The present environment without settings, which would override those of the demo."""
    return {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
