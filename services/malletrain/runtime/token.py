"""The secret of this installation. Agents and services prove to each other that they know it."""

from __future__ import annotations

from pathlib import Path

from malletrain.common.token_file import TOKEN_FILE, TokenFileError, make_token
from malletrain.runtime.errors import InvalidInputError


def token_file(state_dir: Path) -> Path:
    """Path of its file."""
    return (state_dir / TOKEN_FILE).resolve()


def installation_token(state_dir: Path) -> bytes:
    """The secret; made if there is none.

    Raises:
        InvalidInputError: it can't be made or read.
    """
    try:
        return make_token(token_file(state_dir))
    except (OSError, TokenFileError) as error:
        raise InvalidInputError("state_dir", f"a folder with a usable token ({error})", str(state_dir)) from error
