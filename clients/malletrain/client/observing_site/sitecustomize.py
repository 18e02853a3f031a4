"""Python runs it first where this folder is in PYTHONPATH: once a program has imported torch, its steps are noted.

`malletrain check` puts the folder there for commands that start Python themselves: wrappers, launchers.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType


class _UntilTorch:
    """Finds torch as ever, and has it observed after its import."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Called for each import until that of torch, and by those that only ask whether there is a torch."""
        if name != "torch":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            with contextlib.suppress(ValueError):
                sys.meta_path.remove(self)
            load(module)
            # This interpreter may be one without MalleTrain.
            with contextlib.suppress(ImportError):
                importlib.import_module("malletrain.client.observing")

        setattr(spec.loader, "exec_module", exec_module)  # noqa: B010 - mypy allows no assignment to a method
        return spec


def _run_hidden() -> None:
    """Run the file of this name that would have been found without this folder."""
    own = Path(__file__).resolve().parent
    spec = PathFinder.find_spec("sitecustomize", [folder for folder in sys.path if Path(folder).resolve() != own])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


sys.meta_path.insert(0, _UntilTorch())
_run_hidden()
