"""Public data that lies beside the project on some machines: tests that need it skip elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("MALLETRAIN_SHARED", Path(__file__).parents[3] / "shared"))


def shared_path(relative: str) -> Path:
    """Path of a shared file; skips the calling test where it does not exist."""
    path = SHARED / relative
    if not path.exists():
        pytest.skip(f"needs {relative}, which is not beside this checkout (set MALLETRAIN_SHARED to its folder)")
    return path
