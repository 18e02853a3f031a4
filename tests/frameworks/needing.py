"""What the tests of a framework do where it is absent."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

FRAMEWORKS = ("lightning", "transformers", "accelerate", "deepspeed")


def need(name: str) -> None:
    """Skip where no framework is installed; where others are, this one was left out by mistake.

    Raises:
        ModuleNotFoundError: other frameworks are there, and this one is not.
    """
    found = [one for one in FRAMEWORKS if find_spec(one) is not None]
    if not found:
        pytest.skip(f"needs {name}: make test-frameworks", allow_module_level=True)
    if name not in found:
        raise ModuleNotFoundError(f"expected {name} beside {', '.join(found)}: make test-frameworks", name=name)
