"""The largest number that a job has ever been given, kept apart from the database.

A restored database does not know of jobs that were submitted after its backup. Their numbers must not be given out
again: folders, logs, processes and tokens of these jobs are still there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from malletrain.common.files import write_atomically
from malletrain.runtime.errors import InvalidInputError, UnavailableError

_FILE = "last-job-number"
_NAME = re.compile(r"j([0-9]{6,15})(?:\.json)?\Z")
"""Of a job's folder, and of the record of what was launched for it. Longer numbers are no jobs of ours."""
_MAX_DIGITS = 15


class JobNumbers:
    """Keeps the largest number in a file of the state folder, which neither backup nor restore touches."""

    def __init__(self, state_dir: Path, jobs_dir: Path) -> None:
        """Read nothing yet.

        Args:
            state_dir: State folder of the installation.
            jobs_dir: Folder of the jobs' folders.
        """
        self._file = state_dir / _FILE
        self._folders = (jobs_dir, state_dir / "launched")

    def largest(self) -> int:
        """The largest number that was noted, or of which a job's folder or launch record is there; 0: there is none.

        Raises:
            InvalidInputError: the file or a folder can't be read.
        """
        try:
            noted = self._file.read_text(encoding="ascii").strip() if self._file.exists() else "0"
            present = max_number(path.name for folder in self._folders if folder.is_dir() for path in folder.iterdir())
        except (OSError, ValueError) as error:
            raise InvalidInputError("state_dir", f"a readable {self._file} and folders of jobs ({error})") from error
        if not noted.isdecimal() or len(noted) > _MAX_DIGITS:
            raise InvalidInputError(str(self._file), "the largest number of a job", noted)
        return max(int(noted), present)

    def note(self, number: int) -> None:
        """Keep a number, before a job is given it. A kill of this process does not undo that.

        Raises:
            UnavailableError: it can't be written.
        """
        try:
            write_atomically(self._file, f"{number}\n", mode=0o600, sync=False)
        except OSError as error:
            raise UnavailableError(f"{self._file} can't be written: {error.strerror}") from error


def max_number(names: Iterable[str]) -> int:
    """The largest number among names of jobs' folders and records; 0: there is none. Pure."""
    return max((int(found[1]) for name in names if (found := _NAME.match(name))), default=0)
