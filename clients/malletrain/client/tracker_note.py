"""Notes in the job's folder which run of MLflow is the job's: MLflow chooses the identifier when a run begins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from malletrain.client.job_context import read_job
from malletrain.client.warn_once import WarnOnce
from malletrain.common.environment import TRACKERS
from malletrain.common.files import write_atomically
from malletrain.common.tracker_runs import MLFLOW_RUN_FILE, is_identifier

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
    found = "" if run is None else str(run.info.run_id)
    return found if is_identifier(found) else ""


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
