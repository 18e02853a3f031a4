"""The environment of supervisors and workers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from malletrain.agent.relay import GATE, MONITOR
from malletrain.job_manager.jobs import Spec

JOB_DIR = "MALLETRAIN_JOB_DIR"
NODE = "MALLETRAIN_NODE"
INCARNATION = "MALLETRAIN_INCARNATION"
_OURS = "MALLETRAIN_"


class Monitor(NamedTuple):
    """Where trainers report.

    Attributes:
        address: HOST:PORT of Monitor on this machine.
        gate: HOST:PORT by which agents on other nodes reach it; empty where there is none.
    """

    address: str
    gate: str = ""


def search_path(own: Mapping[str, str], trainer_python: str) -> str:
    """PATH of the workers: the training environment's programs come first, so that `python` is its interpreter."""
    folder = str(Path(trainer_python).parent) if os.sep in trainer_python else ""
    return os.pathsep.join(part for part in (folder, own.get("PATH", os.defpath)) if part)


def worker_environment(job_id: str, folder: Path, spec: Spec, slots: int, monitor: Monitor) -> dict[str, str]:
    """What is added to the workers' environment: the job's own variables and those that the client library reads."""
    gate = {GATE: monitor.gate} if monitor.gate else {}
    return {
        **spec.environment,
        "MALLETRAIN_JOB_ID": job_id,
        JOB_DIR: str(folder),
        MONITOR: monitor.address,
        **gate,
        "MALLETRAIN_SLOTS_PER_NODE": str(slots),
        "MALLETRAIN_TARGET_SAMPLES": str(spec.target_samples),
    }


def supervisor_environment(
    own: Mapping[str, str], worker: Mapping[str, str], incarnation: int, trainer_python: str
) -> dict[str, str]:
    """The supervisor's environment: JobManager's own without its settings, then the workers'."""
    inherited = {name: value for name, value in own.items() if not name.startswith(_OURS)}
    return {
        **inherited,
        "PATH": search_path(own, trainer_python),
        **worker,
        INCARNATION: str(incarnation),
    }
