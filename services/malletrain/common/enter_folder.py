"""The program by which a service starts another one in a folder: it enters the folder, then becomes the other program.

    python -I -S enter_folder.py FOLDER PROGRAM ARGUMENT...

It is run by its path, with the environment of the other program. Wherever folder and program lie, whoever has started
it does not wait for them.
"""

from __future__ import annotations

import os
import signal
import sys

_NOT_STARTED = 127
"""Exit status of a program that could not be started, as of a shell."""


def main() -> None:
    """Enter the folder, and become the program."""
    folder, *command = sys.argv[1:]
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and programs would inherit that
        signal.signal(number, signal.SIG_DFL)
    try:
        os.chdir(folder)
        os.execvp(command[0], command)
    except OSError as error:
        print(f"can't start {command[0]} in {folder}: {error}", file=sys.stderr)
        sys.exit(_NOT_STARTED)


if __name__ == "__main__":
    main()
