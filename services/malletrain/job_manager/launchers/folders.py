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

from malletrain.job_manager.launchers.base import LaunchError
from malletrain.job_manager.launchers.processes import ProcessId
from malletrain.job_manager.stimuli import Completion, Outcome

_LONGEST_SOCKET_PATH_BYTES = 99


@dataclass(frozen=True)
class JobFolder:
    """The folder of one job."""

    path: Path

    @property
    def supervisor_log(self) -> Path:
        """What the supervisor itself writes."""
        return self.path / "supervisor.log"

    @property
    def logs(self) -> Path:
        """Folder of the workers' logs, `NODE.LOCAL_RANK.log`."""
        return self.path / "logs"

    @property
    def is_done(self) -> bool:
        """Whether the trainer has said that it is done."""
        return (self.path / "completed.json").exists()

    def prepare(self) -> None:
        """Make the folders, and remove what an earlier supervisor left."""
        self.logs.mkdir(parents=True, exist_ok=True)
        (self.path / "checkpoints").mkdir(exist_ok=True)
        for name in ("supervisor.json", "outcome.json", "launch.json"):
            (self.path / name).unlink(missing_ok=True)

    def write_launch(self, content: dict[str, Any]) -> None:
        """Write `launch.json`, whole or not at all."""
        temporary = self.path / "launch.json.new"
        with temporary.open("w") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path / "launch.json")

    def launched(self) -> dict[str, Any] | None:
        """What is in `launch.json`."""
        return _read(self.path / "launch.json")

    def supervisor(self) -> ProcessId | None:
        """The supervisor that has served last, dead or alive."""
        content = _read(self.path / "supervisor.json")
        return None if content is None else ProcessId(int(content["pid"]), int(content["start_time"]))

    def outcome(self) -> tuple[Outcome, str] | None:
        """How the workers ended, as the supervisor has written at its end."""
        content = _read(self.path / "outcome.json")
        return None if content is None else (Outcome(content["outcome"]), str(content.get("message", "")))

    def completion(self) -> Completion | None:
        """What the trainer said at its end; its file alone means that it is done, whatever is in it."""
        if not self.is_done:
            return None
        content = _read(self.path / "completed.json")
        if content is None:
            return Completion()
        samples, metrics = content.get("samples"), content.get("metrics")
        return Completion(
            samples=samples if isinstance(samples, int) and samples >= 0 else None,
            metrics=_numbers(metrics) if isinstance(metrics, dict) else {},
        )


def socket_path(state_dir: Path, job_id: str, incarnation: int) -> Path:
    """A path for a supervisor's Unix socket, short enough for the kernel; its folder is made.

    Raises:
        LaunchError: the folder in the temporary directory belongs to somebody else.
    """
    name = f"{job_id}.{incarnation}.sock"
    path = state_dir / "run" / name
    if len(os.fsencode(path)) > _LONGEST_SOCKET_PATH_BYTES:
        mark = hashlib.sha256(os.fsencode(state_dir)).hexdigest()[:12]
        path = Path(tempfile.gettempdir()) / f"malletrain-{os.getuid()}-{mark}" / name
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.parent.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise LaunchError(f"{path.parent}: expected a folder of this user")
    path.parent.chmod(0o700)
    return path


def _read(path: Path) -> dict[str, Any] | None:
    """A JSON object from a file that is written whole; None where there is no such file or it is not one."""
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
