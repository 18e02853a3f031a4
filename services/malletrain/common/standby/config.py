"""How a standby process is started, and which commands it can run. Pure, but for looking for programs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from malletrain.common import environment as env
from malletrain.common.python_command import PythonCommand, parse_python_command
from malletrain.common.standby.preload import RefusedError

_UNBUFFERED = "PYTHONUNBUFFERED"
_MODULES = ("torch", "torch._dynamo", "horovod.torch", "torch.distributed", "torch.nn.parallel")
_MAX_BARRED = 64


@dataclass(frozen=True)
class StandbyConfig:
    """How a standby process is started.

    Attributes:
        interpreter: Path of its interpreter.
        environment: Its environment, without the variables of any job.
        modules: What it imports first.
        barred: What it does not import.
    """

    interpreter: str
    environment: Mapping[str, str]
    modules: tuple[str, ...] = _MODULES
    barred: tuple[str, ...] = ()

    def without(self, module: str) -> StandbyConfig:
        """The configuration without a module that can't be imported ahead."""
        modules = tuple(name for name in self.modules if name != module)
        return replace(self, modules=modules, barred=(*self.barred, module)[-_MAX_BARRED:])

    def like(self, environment: Mapping[str, str], names: Sequence[str]) -> StandbyConfig:
        """The configuration with some variables as in the environment of a job."""
        own = {name: value for name, value in self.environment.items() if name not in names}
        of_job = {name: environment[name] for name in names if name in environment}
        return replace(self, environment={**own, **of_job})


def standby_config_for(interpreter: str, environment: Mapping[str, str]) -> StandbyConfig:
    """How to start a standby process for workers with such an environment."""
    return StandbyConfig(
        interpreter, {name: value for name, value in environment.items() if not name.startswith(env.PREFIX)}
    )


def parse_forkable(command: Sequence[str], folder: str, environment: Mapping[str, str]) -> tuple[PythonCommand, str]:
    """Take apart a command that a standby process can run.

    Returns:
        Its parts, and the path of its interpreter.

    Raises:
        RefusedError: it is another program, or has options that only a new interpreter can take.
    """
    parsed = parse_python_command(command)
    if parsed is None or parsed.skips_first_line:
        raise RefusedError("the command is not `python SCRIPT` or `python -m MODULE`")
    options = parsed.interpreter[1:]
    if options not in ((), ("-u",)):
        raise RefusedError(f"the interpreter has options: {' '.join(options)}")
    if options and not environment.get(_UNBUFFERED):
        raise RefusedError(f"python -u without {_UNBUFFERED}")
    program = parsed.interpreter[0]
    if os.sep in program:
        return parsed, str(Path(folder) / program)
    path = shutil.which(program, path=environment.get("PATH", os.defpath))
    if path is None:
        raise RefusedError(f"{program} is not found")
    return parsed, str(Path(folder) / path)


def same_interpreter(one: str, other: str) -> bool:
    """Whether two paths are the same interpreter with the same packages: virtual environments share programs."""
    first, second = Path(one), Path(other)
    try:
        return first.parent.resolve() == second.parent.resolve() and first.samefile(second)
    except OSError:
        return False
