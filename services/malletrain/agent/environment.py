"""The environment of workers that an agent starts. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from malletrain.common import environment as env
from malletrain.common.accounts import Account, AccountError, account_environment, account_of
from malletrain.common.gpus import gpu_number, visible_gpu
from malletrain.tls.names import PeerJob

_BATCH_VARIABLES = ("SLURM_", "PBS_", "PMI_", "PMIX_")
"""Prefixes of the placeholder's variables. Frameworks that see them believe that srun or mpirun started them."""
_GIVEN_CPUS = ("SLURM_CPUS_ON_NODE", "NCPUS")
"""In what Slurm and PBS tell a job how many CPUs it has on this node."""
_THREADS = "OMP_NUM_THREADS"
_PATH = "PATH"


def worker_environment(
    agent: Mapping[str, str],
    job: Mapping[str, str],
    programs: str,
    usable_cpus: int,
    account: Account | None = None,
) -> dict[str, str]:
    """Variables of a worker: the agent's own, without those of its placeholder, and the job's, which win.

    Programs of the agent's interpreter are found first, e.g. `python`: PBS starts jobs without a PATH. Each worker may
    use its share of the CPUs that the scheduler gave, and one of its GPUs if its job is a member of a fleet.

    Args:
        agent: Environment of the agent.
        job: What the supervisor sends.
        programs: Folder of the agent's interpreter.
        usable_cpus: On how many CPUs the agent may run.
        account: As whom the worker runs; None: as the agent, of whose environment it gets only a little otherwise.
    """
    usual = agent if account is None else account_environment(agent, account)
    inherited = {name: value for name, value in usual.items() if not name.startswith(_BATCH_VARIABLES)}
    path = os.pathsep.join((programs, inherited.get(_PATH) or os.defpath))
    own = {_PATH: path, _THREADS: str(_threads(agent, job, usable_cpus))}
    if (gpu := gpu_number(job.get(env.NODE, ""))) is not None:
        own[env.VISIBLE_GPUS] = visible_gpu(gpu, agent.get(env.VISIBLE_GPUS, ""))
    return {**inherited, **own, **job}


def _threads(agent: Mapping[str, str], job: Mapping[str, str], usable_cpus: int) -> int:
    limits = [int(agent[name]) for name in _GIVEN_CPUS if agent.get(name, "").isdigit()]
    workers = job.get(env.NODE_GPUS, "") or job.get(env.SLOTS_PER_NODE, "")
    return max(1, min([usable_cpus, *limits]) // max(1, int(workers) if workers.isdigit() else 1))


# Whether a batch scheduler has told a placeholder which GPU is its own. Pure.

_VARIABLES = (
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
    "ZE_AFFINITY_MASK",
)
"""In what the makers' libraries look for the GPUs that a program may use: NVIDIA's, AMD's, Intel's."""
_SHOWN = 80


def problem_of_one_gpu(environment: Mapping[str, str]) -> str:
    """Why no worker may start in a placeholder of one GPU; empty: it is told which one that is.

    Without that, a worker would see all GPUs of its node, and use one of a main job.

    Args:
        environment: Of the placeholder.
    """
    values = {name: environment.get(name, "") for name in _VARIABLES}
    counts = {name: count for name, value in values.items() if (count := _devices(value))}
    for name, count in counts.items():
        if count > 1:
            return f"the scheduler names more than one GPU: {name}={values[name][:_SHOWN]}"
    if not counts:
        return (
            "the scheduler does not say which GPU is given (CUDA_VISIBLE_DEVICES is not set): "
            "see docs/operators/pbs.md, single GPUs"
        )
    return ""


def _devices(value: str) -> int:
    return sum(1 for device in value.split(",") if device.strip())


@dataclass(frozen=True)
class JobOwner:
    """Whose workers a session is for.

    Attributes:
        job_id: The only job for which the supervisor may speak.
        account: As whom its workers run; None: as the agent.
    """

    job_id: str
    account: Account | None


def owner_of(job: PeerJob | None) -> JobOwner | None:
    """Whose workers a supervisor may start.

    Returns:
        None if its certificate is that of all supervisors, which JobManager gives to none of a user.

    Raises:
        AccountError: this node does not know the user, or the agent may not start anything as that user.
    """
    if job is None:
        return None
    if job.user_id == 0:
        raise AccountError("the certificate names no user")
    if job.user_id == os.geteuid():
        return JobOwner(job.job_id, None)
    if os.geteuid() != 0:
        raise AccountError(f"the agent is not root, and can't run workers as user id {job.user_id}")
    return JobOwner(job.job_id, account_of(job.user_id))
