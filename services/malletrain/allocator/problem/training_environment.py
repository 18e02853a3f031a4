"""What decides how long a job's workers boot, as far as its spec tells. Pure."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from malletrain.common.python_command import parse_python_command

_MAX_CHARACTERS = 500


def training_environment(
    command: Sequence[str], folder: str, variables: Mapping[str, str], backend: str, *, cold: bool
) -> str:
    """A key of the training environment: equal where workers boot alike on alike nodes.

    Args:
        command: Program and arguments of the job.
        folder: Its working directory.
        variables: What it adds to its workers' environment.
        backend: How its workers are started; empty: the operator's default.
        cold: Whether they are never forked from a standby process.

    Returns:
        The interpreter or program, the backend, and "cold" or "standby", e.g. "/opt/venv/bin/python horovod standby". A
        program that is found by the job's own PATH has a digest of that beside it.
    """
    parsed = parse_python_command(command)
    program = parsed.interpreter[0] if parsed is not None else next(iter(command), "")
    if os.sep in program:
        program = str(PurePath(folder) / program)
    elif path := variables.get("PATH"):
        program += f"@{_digest(path)}"
    key = f"{program} {backend or 'default'} {'cold' if cold else 'standby'}"
    return key if len(key) <= _MAX_CHARACTERS else f"{_digest(key)} {key[-_MAX_CHARACTERS // 2 :]}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
