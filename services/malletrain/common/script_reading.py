"""Reads the files of a job's command, to recognise its kind. What a user has put there may be no file at all."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from malletrain.common.script_kind import ProgramFiles, Script, recognise

_MAX_FOLDERS = 16
_MAX_LINES = 64
_MAX_PATH_FILE_BYTES = 1 << 16


def package_folders(interpreter: Path) -> tuple[Path, ...]:
    """The folders of packages of a virtual environment, of Conda's, or of Debian's Python.

    Folders that `.pth` files name are among them: packages that are installed editable.

    Args:
        interpreter: Path of the interpreter; a virtual environment's is a link, which is not followed.
    """
    return tuple(dict.fromkeys(islice(_folders(interpreter.parent.parent), _MAX_FOLDERS)))


def _folders(prefix: Path) -> Iterator[Path]:
    for pattern in ("lib/python3*/site-packages", "local/lib/python3*/dist-packages", "lib/python3/dist-packages"):
        for folder in sorted(prefix.glob(pattern)):
            yield folder
            yield from _linked_folders(folder)


def _linked_folders(folder: Path) -> Iterator[Path]:
    for file in islice(sorted(folder.glob("*.pth")), _MAX_FOLDERS):
        try:
            with file.open(errors="replace") as lines:
                entries = [line.strip() for line in islice(lines.read(_MAX_PATH_FILE_BYTES).splitlines(), _MAX_LINES)]
        except OSError:
            continue
        yield from (folder / line for line in entries if line and not line.startswith(("#", "import ", "import\t")))


_MAX_FILE_BYTES = 1 << 20
_MAX_BYTES = 2 << 20


class ScriptReader:
    """Reads regular files of up to 1 MiB, and 2 MiB of one program, which take a second to look through.

    It never waits, as on a pipe.
    """

    def __init__(self) -> None:
        self._left = _MAX_BYTES

    def __call__(self, path: Path) -> bytes | None:
        """The content of a file; None if there is none, it can't be read, or it is too long."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except (OSError, ValueError):
            return None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > min(_MAX_FILE_BYTES, self._left):
                return None
            content = os.pread(descriptor, _MAX_FILE_BYTES, 0)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        self._left -= len(content)
        return content


def read_script(
    command: Sequence[str], directory: Path, search_path: str | None = None, python_path: str = ""
) -> Script:
    """Which kind of program a command is, as this process can see it.

    Args:
        command: Program and arguments.
        directory: Working directory.
        search_path: Where programs are looked for; None: as PATH says.
        python_path: PYTHONPATH of the program.
    """

    def find(program: str) -> Path | None:
        path = shutil.which(program, path=search_path)
        return Path(path) if path else None

    own = tuple(Path(directory, folder) for folder in python_path.split(os.pathsep) if folder)
    return recognise(command, directory, ProgramFiles(ScriptReader(), find, package_folders, own))
