"""Programs in place of sbatch, qsub and ssh: they note what they are called with, and run nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from malletrain.scavenger.sources.schedulers.commands import NO_INPUT, Input, run_command

_NOTING = """#!{python}
import json, os, sys
text = sys.stdin.read()
with open({path!r}, "a") as file:
    file.write(json.dumps(dict(argv=sys.argv, text=text, environment=dict(os.environ))) + "\\n")
print({says!r})
"""
_STEP = """#!/bin/sh
# In place of srun: the options that begin with two dashes go, and the program runs.
while case "$1" in --*) true;; *) false;; esac; do shift; done
exec "$@"
"""


@dataclass(frozen=True)
class Submission:
    """What a program was called with.

    Attributes:
        argv: Program and arguments, which `ps` shows.
        text: Its standard input.
        environment: Its environment.
    """

    argv: list[str]
    text: str
    environment: Mapping[str, str]


class NotingPrograms:
    """A folder of such programs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self._notes = folder / "notes"
        for name, says in (("sbatch", "7"), ("qsub", "7.head"), ("ssh", "")):
            self._add(name, _NOTING.format(python=sys.executable, path=str(self._notes), says=says))
        self._add("srun", _STEP)
        self._add("scancel", "#!/bin/sh\n")

    def _add(self, name: str, script: str) -> None:
        path = self.folder / name
        path.write_text(script)
        path.chmod(0o755)

    async def run(self, argv: Sequence[str], timeout_seconds: float, command_input: Input = NO_INPUT) -> str:
        """The real way to run a program, with one of these."""
        return await run_command([str(self.folder / argv[0]), *argv[1:]], timeout_seconds, command_input)

    @property
    def submissions(self) -> list[Submission]:
        return [Submission(**json.loads(line)) for line in self._notes.read_text().splitlines()]


def started(program: Sequence[str], text: bytes, environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """A process in a session of its own, that reads this from its standard input."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=output, stderr=output, env=environment, start_new_session=True
        )
    assert process.stdin is not None
    process.stdin.write(text)
    process.stdin.close()
    return process
