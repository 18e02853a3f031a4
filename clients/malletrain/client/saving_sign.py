"""The sign that this process saves its state: a file in the job's folder, for the supervisor to wait for."""

from __future__ import annotations

import os
import sys
from pathlib import Path

FOLDER = "saving"


class SavingSign:
    """`saving/PID` in the job's folder, there as long as its process is busy with the last checkpoint."""

    def __init__(self, job_directory: Path | None) -> None:
        """Show nothing yet.

        Args:
            job_directory: The job's folder; None: nobody waits.
        """
        self._folder = job_directory / FOLDER if job_directory else None

    def show(self) -> None:
        """Create the file; if that fails it is said on stderr, and there may be less time to save."""
        if self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / str(os.getpid())).touch()
        except OSError as error:
            print(f"malletrain: nobody can be told that this process saves: {error}", file=sys.stderr)

    def remove(self) -> None:
        """Remove the file if there is one."""
        if self._folder is not None and self._folder.is_dir():
            (self._folder / str(os.getpid())).unlink(missing_ok=True)
