"""`malletrain check -- python train.py`: runs a script on this machine and says what it can be used for."""

from __future__ import annotations

import dataclasses
import logging
import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import structlog
import typer

from malletrain.cli.check.finding import BackendVerdict
from malletrain.cli.check.findings import best_of
from malletrain.cli.check.job_run import CheckError
from malletrain.cli.check.running import CheckRequest, run_check
from malletrain.cli.check.trying import Limits
from malletrain.cli.jobs.job_environment import EnvFileOption, EnvOption, job_environment
from malletrain.cli.shared.output import JsonOption, print_json, print_table
from malletrain.common.python_command import parse_python_command
from malletrain.runtime.errors import InvalidInputError

_BACKENDS = ("horovod", "torchrun", "command")


def check(
    command: Annotated[list[str] | None, typer.Argument(help="Program and arguments, after `--`.")] = None,
    backend: Annotated[
        str, typer.Option(help="Try this backend alone: horovod, torchrun or command. By default those that may fit.")
    ] = "",
    batches: Annotated[int, typer.Option(min=3, max=1000, help="Batches in each part of the check, at least.")] = 10,
    boot_limit: Annotated[
        float, typer.Option(min=1, max=3600, help="Longest wait for the first batch of a part, in seconds.")
    ] = 60.0,
    grace: Annotated[
        float, typer.Option(min=1, max=600, help="How long the script may take to save and end, in seconds.")
    ] = 30.0,
    time_limit: Annotated[
        float, typer.Option(min=10, max=86400, help="Longest time of the whole check, in seconds.")
    ] = 600.0,
    env: EnvOption = None,
    env_file: EnvFileOption = None,
    cold: Annotated[
        bool,
        typer.Option("--cold", help="Start each worker as a new interpreter, never forked from a standby process."),
    ] = False,
    keep: Annotated[
        Path | None, typer.Option(help="Folder for logs and checkpoints; by default they are removed.")
    ] = None,
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """Run a script on 1 and 2 local workers, and say what it can be used for: `malletrain check -- python train.py`.

    Exit status: 0 it can be used as it is; 1 something should be changed; 2 it could not be run.
    """
    request = CheckRequest(
        command=_checked_command(command),
        working_directory=Path.cwd(),
        limits=Limits(batches, boot_limit, grace),
        backend=_checked_backend(backend),
        time_limit_seconds=time_limit,
        environment=job_environment(env, env_file, os.environ),
        keep=keep,
        cold=cold,
    )
    # What the launcher logs is for a service; --keep keeps what the supervisors say.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.disable(logging.CRITICAL)
    try:
        verdicts = run_check(request, lambda text: typer.echo(text, err=True))
    except CheckError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    best = best_of(verdicts)
    if as_json:
        print_json(_as_dict(verdicts, best))
    else:
        _print(verdicts, best)
    if best is None or best.findings:
        raise typer.Exit(1)


def _checked_command(command: list[str] | None) -> tuple[str, ...]:
    if not command:
        raise InvalidInputError("command", "a command after `--`")
    parsed = parse_python_command(command)
    if parsed is not None and parsed.kind == "script" and not Path(parsed.target).is_file():
        raise InvalidInputError("command", "a script that exists", parsed.target)
    # The workers' PATH begins with the programs of the training environment.
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    if shutil.which(command[0], path=os.pathsep.join(folders)) is None:
        as_script = f", or `python {command[0]}`" if command[0].endswith(".py") else ""
        raise InvalidInputError("command", f"a program that is on PATH, or an executable file{as_script}", command[0])
    return tuple(command)


def _checked_backend(backend: str) -> str:
    if backend and backend not in _BACKENDS:
        raise InvalidInputError("--backend", f"one of {', '.join(_BACKENDS)}", backend)
    return backend


def _as_dict(verdicts: list[BackendVerdict], best: BackendVerdict | None) -> dict[str, object]:
    return {
        "usable": best is not None and not best.findings,
        "backend": best.backend if best is not None and best.fits else None,
        "findings": [dataclasses.asdict(finding) for finding in best.findings] if best else [],
        "backends": [{**dataclasses.asdict(verdict), "fits": verdict.fits} for verdict in verdicts],
    }


def _print(verdicts: list[BackendVerdict], best: BackendVerdict | None) -> None:
    for verdict in verdicts:
        rows = list(verdict.answers.items())
        rows += [(name.replace("_", " "), f"{seconds:.3g} s") for name, seconds in verdict.seconds.items()]
        print_table(("question", "answer"), rows, title=f"backend {verdict.backend}")
    for finding in best.findings if best else ():
        typer.echo(f"{finding.code}: {finding.what}\n    change: {finding.change}")
    if best and best.unsure:
        typer.echo(best.unsure)
    fitting = [verdict.backend for verdict in verdicts if verdict.fits]
    typer.echo(f"backends that fit: {', '.join(fitting) or 'none'}")
