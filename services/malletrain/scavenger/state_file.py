"""Small JSON files that outlive the process."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import structlog


def read_state(path: Path) -> dict[str, Any]:
    """The content of a state file; empty where there is none or it can't be used, which is logged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        structlog.get_logger(__name__).warning("state file ignored", path=str(path), error=str(error))
        return {}
    return found if isinstance(found, dict) else {}


def write_state(path: Path, content: dict[str, Any]) -> None:
    """Replace a state file in one step: a kill leaves the old content or the new.

    Raises:
        OSError: the file can't be written.
    """
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    draft.write_text(json.dumps(content), encoding="utf-8")
    draft.replace(path)
