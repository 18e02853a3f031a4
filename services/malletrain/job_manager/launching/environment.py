"""The environment of supervisors and workers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from malletrain.common import environment as env
from malletrain.job_manager.machine.jobs import JobSpec


class MonitorAddress(NamedTuple):
    """Where trainers report.

    Attributes:
        address: HOST:PORT of Monitor on this machine.
        for_nodes: HOST:PORT by which agents on other nodes reach it; empty if they can't.
        authorities: Files with the CA certificates by which it is known; none: it is not served with TLS, as by a test.
        name: Name in its certificate; empty: the host of its address.
    """

    address: str
    for_nodes: str = ""
    authorities: tuple[Path, ...] = ()
    name: str = ""


def search_path(own: Mapping[str, str], trainer_python: str) -> str:
    """PATH of the workers: programs of the training environment first, so that `python` is its interpreter."""
    folder = str(Path(trainer_python).parent) if os.sep in trainer_python else ""
    return os.pathsep.join(part for part in (folder, own.get("PATH", os.defpath)) if part)


def worker_environment(
    job_id: str, folder: Path, spec: JobSpec, slots: int, monitor: MonitorAddress, node_gpus: int = 0
) -> dict[str, str]:
    """What is added to the workers' environment: the job's own variables, and those that the client library reads."""
    known = {
        env.NODE_GPUS: str(node_gpus or ""),
        env.MONITOR_FOR_NODES: monitor.for_nodes,
        env.MONITOR_AUTHORITY: str(monitor.authorities[0]) if monitor.authorities else "",
        env.MONITOR_WITH_TLS: monitor.address if monitor.authorities else "",
        env.MONITOR_NAME: monitor.name,
        env.BURST_BUFFER_GB: str(spec.burst_buffer_gb or ""),
        env.NODES_PER_REPLICA: str(spec.nodes_per_replica) if spec.nodes_per_replica > 1 else "",
    }
    return {
        **spec.environment,
        env.JOB_ID: job_id,
        env.JOB_DIR: str(folder),
        env.MONITOR: monitor.address,
        **{name: value for name, value in known.items() if value},
        env.SLOTS_PER_NODE: str(slots),
        env.TARGET_SAMPLES: str(spec.target_samples),
    }


def supervisor_environment(
    own: Mapping[str, str], worker: Mapping[str, str], incarnation: int, trainer_python: str
) -> dict[str, str]:
    """The supervisor's environment: JobManager's own without its settings, then the workers'."""
    inherited = {name: value for name, value in own.items() if not name.startswith(env.PREFIX)}
    return {
        **inherited,
        "PATH": search_path(own, trainer_python),
        **worker,
        env.INCARNATION: str(incarnation),
    }
