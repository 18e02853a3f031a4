"""Marks of this process for its supervisor: files in the job's folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from malletrain.common.job_folder import SAVING_FOLDER


class SavingMarker:
    """The file `saving/PID` in the job's folder. It exists while this process writes its last checkpoint.

    `sharded/PID` exists while this process holds a part of the state that others do not have. PID is that of the
    worker, which leads a session: the supervisor knows no other, and this process may have been started by a wrapper.
    """

    def __init__(self, job_directory: Path | None, folder: str = SAVING_FOLDER) -> None:
        """The file is not created yet.

        Args:
            job_directory: The job's folder; None outside MalleTrain, where there is no marker.
            folder: Name of the folder in it, which says what the mark means.
        """
        self._folder = job_directory / folder if job_directory else None

    def create(self) -> None:
        """Create the file. A failure is printed: the supervisor may not wait for this process then."""
        if self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / str(os.getsid(0))).touch()
        except OSError as error:
            mark = f"{self._folder.name}/{os.getsid(0)}"
            print(f"malletrain: can't tell the supervisor by {mark}: {error}", file=sys.stderr)

    def remove(self) -> None:
        """Remove the file if it exists."""
        if self._folder is not None and self._folder.is_dir():
            (self._folder / str(os.getsid(0))).unlink(missing_ok=True)
