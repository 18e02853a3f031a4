"""One run in W&B, MLflow or TensorBoard over restarts and changes of scale: what a script may say by itself.

Most scripts need nothing of it: with `MALLETRAIN_TRACKERS` set, rank 0 finds the variables in its environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from types import ModuleType

from malletrain.client.job_context import read_job, read_rank
from malletrain.client.warn_once import WarnOnce
from malletrain.common.environment import TRACKERS
from malletrain.common.files import write_atomically
from malletrain.common.tracker_runs import MLFLOW_RUN_FILE, VARIABLE, is_identifier, parse_trackers, tracker_variables


def continue_runs(*trackers: str) -> bool:
    """Set the variables by which this process goes on with the runs of its job; only at rank 0, and none that is set.

    Call it where your script begins its run. It is needed under Elastic Horovod, whose workers know their rank only
    after `hvd.init()`, and for a script that does not want to be submitted with `MALLETRAIN_TRACKERS`.

    Args:
        trackers: `wandb`, `mlflow`, `tensorboard`; none: those that `MALLETRAIN_TRACKERS` names.

    Returns:
        Whether this process is rank 0, and so the one that logs. True outside MalleTrain where no launcher tells a
        rank.

    Raises:
        ValueError: a tracker is named that is not known.
    """
    return set_variables(os.environ, sys.modules, trackers)


def set_variables(
    environ: MutableMapping[str, str], modules: Mapping[str, ModuleType], trackers: tuple[str, ...]
) -> bool:
    """`continue_runs` for an environment and loaded modules.

    Raises:
        ValueError: a tracker is named that is not known.
    """
    if trackers:
        environ[VARIABLE] = ",".join(parse_trackers(",".join(trackers)))
    if read_rank(environ, modules).rank != 0:
        return False
    # Horovod's rank of the moment counts, not that of the process's beginning.
    told = {name: value for name, value in environ.items() if name not in ("RANK", "HOROVOD_RANK")}
    environ.update(tracker_variables(told))
    return True


def note_mlflow_run(run_id: str) -> None:
    """Note which run of MLflow is the job's, for its next processes. Only rank 0's first note counts.

    `report` notes the active run by itself where `MALLETRAIN_TRACKERS` names mlflow. A script that uses
    `mlflow.MlflowClient`, or Lightning's `MLFlowLogger`, has no active run, and says it here.

    Raises:
        ValueError: it is no identifier of a run.
        OSError: it can't be written.
    """
    if not is_identifier(run_id):
        raise ValueError(f"run_id: expected 1 to 64 letters, digits, _ and -, got {run_id!r}")
    job = read_job(os.environ)
    if job is not None and read_rank(os.environ, sys.modules).rank == 0:
        write_mlflow_run(job.directory, run_id)


_FOLDER_MODE, _FILE_MODE = 0o700, 0o600


class TrackerNote:
    """Looks for the active run of MLflow, until it has noted one."""

    def __init__(self, environ: Mapping[str, str], modules: Mapping[str, ModuleType], warnings: WarnOnce) -> None:
        """Look at nothing yet.

        Args:
            modules: Loaded modules. MLflow is never imported here.
            warnings: Says once why a run can't be noted.
        """
        self._environ = environ
        self._modules = modules
        self._warnings = warnings
        self._noted = False

    def look(self) -> None:
        """Note the run that MLflow logs to in this thread, if the job asks for that; at rank 0, once a second."""
        if self._noted or "mlflow" not in self._environ.get(TRACKERS, ""):
            return
        run_id = active_mlflow_run(self._modules)
        if not run_id:
            return
        self._noted = True
        try:
            job = read_job(self._environ)
            if job is not None:
                write_mlflow_run(job.directory, run_id)
        except (OSError, ValueError) as error:
            self._warnings.warn("trackers", f"MLflow's run can't be noted, a restart begins another one: {error}")


def active_mlflow_run(modules: Mapping[str, ModuleType]) -> str:
    """Identifier of the run that MLflow logs to in this thread; empty: there is none."""
    active_run = getattr(modules.get("mlflow"), "active_run", None)
    if active_run is None:
        return ""  # not imported, or being imported
    run = active_run()
    run_id = "" if run is None else str(run.info.run_id)
    return run_id if is_identifier(run_id) else ""


def write_mlflow_run(directory: Path, run_id: str) -> None:
    """Write the identifier of the job's run into its folder, unless there is one.

    Raises:
        OSError: it can't be written.
    """
    path = directory / MLFLOW_RUN_FILE
    if path.exists():
        return
    path.parent.mkdir(mode=_FOLDER_MODE, exist_ok=True)
    write_atomically(path, run_id + "\n", mode=_FILE_MODE)
