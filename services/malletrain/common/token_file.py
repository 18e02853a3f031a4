"""The file with the secret of an installation. Agents and services prove to each other that they know it."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

TOKEN_FILE = "agent-token"
"""Name of the file in the state folder."""

_LEAST_BYTES = 16
_GROUP_AND_OTHERS = 0o077


class TokenFileError(Exception):
    """The file is missing, too short, or readable by others."""


def read_token(path: Path) -> bytes:
    """Read the secret.

    Raises:
        TokenFileError: there is no such file, it is too short, or users other than its owner can read it.
    """
    try:
        mode = path.stat().st_mode
        token = path.read_bytes().strip()
    except OSError as error:
        raise TokenFileError(
            f"{path}: expected a file with the token of this installation ({error.strerror})"
        ) from error
    if mode & _GROUP_AND_OTHERS:
        raise TokenFileError(f"{path}: expected a file that only its owner can read, got mode {mode & 0o777:o}")
    if len(token) < _LEAST_BYTES:
        raise TokenFileError(f"{path}: expected at least {_LEAST_BYTES} bytes")
    return token


def make_token(path: Path) -> bytes:
    """Read the secret, after creating it if there is none. If two processes create it at once, both get the same.

    Raises:
        TokenFileError: the file can't be used.
        OSError: it can't be written.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        temporary.touch(mode=0o600)
        temporary.write_text(secrets.token_hex(32) + "\n")
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
        temporary.unlink()
    return read_token(path)
