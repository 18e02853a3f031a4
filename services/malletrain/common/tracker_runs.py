"""How a job's run in W&B, MLflow or TensorBoard stays one run: the variables by which its next process goes on with it.

`worker_bootstrap` loads this file by its path, in interpreters that may not have this package: it imports the standard
library only. Pure, but for reading two small files of the job's folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "MALLETRAIN_TRACKERS"
"""The trackers whose runs go on, separated by commas: `wandb,mlflow,tensorboard`. Its user sets it for a job."""
TRACKERS = ("wandb", "mlflow", "tensorboard")
MLFLOW_RUN_FILE = "trackers/mlflow-run"
"""In the job's folder: identifier of its run in MLflow, which MLflow chooses when the run begins."""
TENSORBOARD_FOLDER = "tensorboard"
"""In the job's folder: where TensorBoard's event files are written."""
_INSTANCE_FILE = "instance-id"  # `job_folder.INSTANCE_FILE`
_RANKS = ("RANK", "HOROVOD_RANK")
_IDENTIFIER = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


def parse_trackers(text: str) -> tuple[str, ...]:
    """The trackers that a text names, each once.

    Raises:
        ValueError: it names another one; the message is for people.
    """
    names = tuple(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))
    for name in names:
        if name not in TRACKERS:
            raise ValueError(f"{', '.join(TRACKERS)}, separated by commas, got {name!r}")
    return names


def is_identifier(text: str) -> bool:
    """Whether this can be the identifier of a run or of a job: 1 to 64 letters, digits, _ and -."""
    return _IDENTIFIER.match(text) is not None


def tracker_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables by which rank 0's process goes on with the runs of its job. What a user has set stays as it is.

    Args:
        environ: Environment of the process. A process without a variable for its rank counts as rank 0.

    Returns:
        Variables to add; empty for other ranks, outside of jobs, and where no tracker is named.

    Raises:
        ValueError: a tracker is named that is not known.
    """
    names = parse_trackers(environ.get(VARIABLE, ""))
    directory = environ.get("MALLETRAIN_JOB_DIR")
    rank = next((environ[name] for name in _RANKS if environ.get(name)), "0")
    if not names or not directory or rank != "0":
        return {}
    folder = Path(directory)
    variables: dict[str, str] = {}
    # Numbers of jobs begin anew with each installation, and W&B takes no identifier of a deleted run again.
    instance = _identifier_in(folder / _INSTANCE_FILE)
    if "wandb" in names and instance and not {"WANDB_RUN_ID", "WANDB_RESUME"} & environ.keys():
        variables |= {"WANDB_RUN_ID": f"malletrain-{instance}", "WANDB_RESUME": "allow"}
    if "mlflow" in names and "MLFLOW_RUN_ID" not in environ and (run := _identifier_in(folder / MLFLOW_RUN_FILE)):
        variables["MLFLOW_RUN_ID"] = run
    if "tensorboard" in names and "TENSORBOARD_LOGGING_DIR" not in environ:
        variables["TENSORBOARD_LOGGING_DIR"] = str(folder / TENSORBOARD_FOLDER)
    return variables


def _identifier_in(path: Path) -> str:
    """The identifier in a file; empty: there is none."""
    try:
        with path.open("rb") as file:
            text = file.read(80).decode("ascii", "replace").strip()
    except OSError:
        return ""
    return text if is_identifier(text) else ""
