"""What the services are told: their settings, and the jobs; and where they tell what waits."""

from __future__ import annotations

import sys
import urllib.request
from pathlib import Path

from benchmarks.soaking.scheduler import PARTITION
from benchmarks.soaking.stand_ins import NAME, make_python
from benchmarks.soaking.workload import Arrival
from malletrain.cli.demo.setup import free_ports
from malletrain.cli.shared.settings import AllSettings
from malletrain.runtime.settings_file import SERVICES
from malletrain.v1 import resources_pb2
from tests.support.ports import free_port

_QUEUES = (
    "malletrain_job_manager_jobs",
    "malletrain_job_manager_stalled_jobs",
    "malletrain_job_manager_nodes_in_release",
    "malletrain_monitor_messages_waiting",
)
_RATE_EXPONENT = 0.9


def write_settings(folder: Path, state: Path, schedulers: Path, parallel: int) -> Path:
    """The configuration of the five services."""
    addresses = "\n".join(f'{name} = "127.0.0.1:{port}"' for name, port in zip(SERVICES, free_ports(), strict=True))
    metrics = "\n".join(f'{name} = "127.0.0.1:{free_port()}"' for name in SERVICES)
    often = "interval_seconds = 0.5\ntimeout_seconds = 2\nstale_seconds = 15\nlongest_pause_seconds = 3"
    config = folder / "malletrain.toml"
    config.write_text(
        f"""state_dir = "{state}"
[addresses]
{addresses}
[metrics]
{metrics}
[scavenger]
source = "slurm+pbs"
debounce_seconds = 1
[scavenger.slurm]
partitions = ["{PARTITION}"]
sinfo = "{schedulers}/sinfo"
squeue = "{schedulers}/squeue"
scontrol = "{schedulers}/scontrol"
{often}
[scavenger.pbs]
pbsnodes = "{schedulers}/pbsnodes"
qstat = "{schedulers}/qstat"
pbs_rstat = "{schedulers}/pbs_rstat"
{often}
[scavenger.pbs.hold]
queue = "idle"
agents_address = "127.0.0.1:{free_port()}"
calm_seconds = 2
backoff_seconds = 1
backoff_max_seconds = 5
refusal_seconds = 3
[job_manager]
max_parallel = {parallel}
trainer_python = "{make_python(folder)}"
stop_jobs_on_exit = false
restart_backoff_max_seconds = 3
"""
    )
    return config


def job_spec(arrival: Arrival, folder: Path) -> resources_pb2.JobSpec:
    """What is submitted for an arrival."""
    curve = [
        resources_pb2.ScalingPoint(nodes=nodes, rate=64.0 * nodes**_RATE_EXPONENT)
        for nodes in range(1, arrival.most_nodes + 1)
    ]
    program = Path(__file__).with_name("trainer.py")
    return resources_pb2.JobSpec(
        name=arrival.name,
        command=[sys.executable, str(program), *([] if arrival.real else [NAME]), str(arrival.samples)],
        working_directory=str(folder),
        min_nodes=1,
        max_nodes=arrival.most_nodes,
        curve=curve,
        max_restarts=1000,
        profile=resources_pb2.PROFILE_MODE_NEVER,
        backend=resources_pb2.LauncherBackend.Value(f"LAUNCHER_BACKEND_{arrival.backend.upper()}"),
    )


def queue_gauges(settings: AllSettings) -> dict[str, float]:
    """Metrics of things that wait, with their labels."""
    found = {}
    for service in SERVICES:
        address = getattr(settings.metrics, service)
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            for line in answer.read().decode().splitlines():
                name, _, value = line.rpartition(" ")
                if name.partition("{")[0] in _QUEUES:
                    found[name] = float(value)
    return found
