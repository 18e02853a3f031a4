"""Where an agent gets its certificate when it starts. The key is in no command line, no environment and on no share."""

from __future__ import annotations

import base64
import binascii
import os
import select
from collections.abc import Mapping
from pathlib import Path

from malletrain.common.placeholder_script import CERTIFICATE_MARK
from malletrain.tls.files import CertificateFileError

_SECONDS = 30.0
"""How long whoever starts the agent may take to write the certificate."""
_MAX_BYTES = 256 * 1024
_STANDARD_INPUT = 0
_MARK = CERTIFICATE_MARK.encode("ascii")


def read_from_standard_input(timeout_seconds: float = _SECONDS) -> bytes:
    """What the first line of the standard input encodes in base64. Nothing can be read from it afterwards.

    Raises:
        CertificateFileError: no such line comes in time.
    """
    line = b""
    while not line.endswith(b"\n"):
        if not select.select([_STANDARD_INPUT], [], [], timeout_seconds)[0]:
            raise CertificateFileError("expected a line on the standard input, and none has come in time")
        part = os.read(_STANDARD_INPUT, _MAX_BYTES)
        line += part
        if not part or len(line) > _MAX_BYTES:
            break
    # Workers inherit the standard input.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, _STANDARD_INPUT)
    os.close(nothing)
    return _decode(line.strip(), "the standard input")


def take_from_pbs_script(environment: Mapping[str, str]) -> bytes:
    """What the script of this PBS job has in it. The script is emptied: other processes of the account may read it.

    A placeholder's program is not its script, so PBS only keeps that, beside the file with the job's nodes.

    Args:
        environment: Of a job of PBS.

    Raises:
        CertificateFileError: there is no such script.
    """
    nodes, job = environment.get("PBS_NODEFILE", ""), environment.get("PBS_JOBID", "")
    if not nodes or not job:
        raise CertificateFileError("expected to run in a job of PBS (PBS_NODEFILE, PBS_JOBID)")
    path = Path(nodes).parent.parent / "mom_priv" / "jobs" / f"{job}.SC"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            content = os.read(descriptor, _MAX_BYTES)
            os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise CertificateFileError(f"{path}: expected the job's script ({error.strerror})") from error
    line = next((line for line in content.splitlines() if line.startswith(_MARK)), b"")
    return _decode(line.removeprefix(_MARK).strip(), str(path))


def _decode(line: bytes, where: str) -> bytes:
    try:
        return base64.b64decode(line, validate=True)
    except binascii.Error:
        raise CertificateFileError(f"{where}: expected a certificate in base64") from None
