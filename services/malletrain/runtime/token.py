"""The secret of this installation, which agents on the nodes show and ask for."""

from __future__ import annotations

from pathlib import Path

from malletrain.agent.wire import TOKEN_FILE, WireError, make_token
from malletrain.runtime.errors import InvalidInputError


def token_file(state_dir: Path) -> Path:
    """Where it is."""
    return (state_dir / TOKEN_FILE).resolve()


def installation_token(state_dir: Path) -> bytes:
    """Read it, or make it where there is none.

    Raises:
        InvalidInputError: it can't be made, or used.
    """
    try:
        return make_token(token_file(state_dir))
    except (OSError, WireError) as error:
        raise InvalidInputError("state_dir", f"a folder with a usable token ({error})", str(state_dir)) from error
