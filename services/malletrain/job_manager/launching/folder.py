"""The files that JobManager, a supervisor and its trainer share."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from malletrain.common import job_folder
from malletrain.common.files import make_private_folder, write_atomically
from malletrain.common.processes import ProcessId
from malletrain.job_manager.stimuli import Completion, Outcome

_LONGEST_SOCKET_PATH_BYTES = 99


class SupervisorStartError(Exception):
    """A job's supervisor can't be started; the message is for people."""


@dataclass(frozen=True)
class JobFolder:
    """The folder of one job."""

    path: Path

    @property
    def supervisor_log(self) -> Path:
        """Output of the supervisor."""
        return self.path / job_folder.SUPERVISOR_LOG

    @property
    def logs(self) -> Path:
        """Folder of the workers' logs, `NODE.LOCAL_RANK.log`."""
        return self.path / job_folder.LOGS_FOLDER

    @property
    def is_done(self) -> bool:
        """Whether the trainer has said that it is done."""
        return (self.path / job_folder.COMPLETION_FILE).exists()

    def prepare(self) -> None:
        """Make the folders, which others can't enter, and remove the files of an earlier supervisor."""
        make_private_folder(self.path.parent)
        make_private_folder(self.path)
        self.logs.mkdir(exist_ok=True)
        (self.path / job_folder.CHECKPOINTS_FOLDER).mkdir(exist_ok=True)
        for name in (job_folder.SUPERVISOR_FILE, job_folder.OUTCOME_FILE, job_folder.LAUNCH_FILE):
            (self.path / name).unlink(missing_ok=True)

    def write_launch(self, content: dict[str, Any]) -> None:
        """Write `launch.json`, completely or not at all."""
        write_atomically(self.path / job_folder.LAUNCH_FILE, json.dumps(content, indent=1))

    def launched(self) -> dict[str, Any] | None:
        """Content of `launch.json`; None if there is none."""
        return _read(self.path / job_folder.LAUNCH_FILE)

    def supervisor(self) -> ProcessId | None:
        """The newest supervisor that has served, alive or not; None if there was none."""
        content = _read(self.path / job_folder.SUPERVISOR_FILE)
        return None if content is None else ProcessId(int(content["pid"]), int(content["start_time"]))

    def outcome(self) -> tuple[Outcome, str] | None:
        """How the workers ended, and why, as the supervisor wrote when it ended; None if it did not."""
        content = _read(self.path / job_folder.OUTCOME_FILE)
        return None if content is None else (Outcome(content["outcome"]), str(content.get("message", "")))

    def completion(self) -> Completion | None:
        """What the trainer said when it was done; None if it was not.

        The existence of the file means that it is done, whatever the file contains.
        """
        if not self.is_done:
            return None
        content = _read(self.path / job_folder.COMPLETION_FILE)
        if content is None:
            return Completion()
        samples, metrics = content.get("samples"), content.get("metrics")
        return Completion(
            samples=samples if isinstance(samples, int) and samples >= 0 else None,
            metrics=_numbers(metrics) if isinstance(metrics, dict) else {},
        )


def socket_path(state_dir: Path, job_id: str, incarnation: int) -> Path:
    """A path for a supervisor's Unix socket that is short enough for the kernel. Its folder is made.

    Raises:
        SupervisorStartError: the folder in the temporary directory belongs to another user.
    """
    name = f"{job_id}.{incarnation}.sock"
    path = state_dir / "run" / name
    if len(os.fsencode(path)) > _LONGEST_SOCKET_PATH_BYTES:
        mark = hashlib.sha256(os.fsencode(state_dir)).hexdigest()[:12]
        path = Path(tempfile.gettempdir()) / f"malletrain-{os.getuid()}-{mark}" / name
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.parent.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise SupervisorStartError(f"{path.parent}: expected a folder of this user")
    path.parent.chmod(0o700)
    return path


def _read(path: Path) -> dict[str, Any] | None:
    """A JSON object from a file; None if there is no such file or it contains something else."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        structlog.get_logger(__name__).warning("unreadable file", path=str(path), error=str(error))
        return None
    return content if isinstance(content, dict) else None


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    numbers = {name: value for name, value in metrics.items() if isinstance(value, (int, float))}
    return {name: float(value) for name, value in numbers.items()}
