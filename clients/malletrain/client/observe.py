"""`python -m malletrain.client.observe script|module TARGET [ARGUMENT...]`: runs a training script and notes its steps.

`malletrain check` starts workers by it. The script is run as it is. For each optimizer step a line is written to
`observed/PID.jsonl` in the job's folder: what the model was fed, loss, learning rates and a fingerprint of the weights.
"""

from __future__ import annotations

import functools
import json
import os
import runpy
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import torch
from torch.optim import optimizer as optimizers

from malletrain.client.job_context import read_rank
from malletrain.common.environment import JOB_DIR
from malletrain.common.job_folder import OBSERVED_FOLDER

_MOST_ROWS = 512
_MOST_STEPS = 20_000


class StepObserver:
    """Notes the optimizer steps of this process. It changes nothing that the script can see."""

    def __init__(self, folder: Path) -> None:
        """Nothing is written before the first step.

        Args:
            folder: Where the notes go.
        """
        self._folder = folder
        self._file: TextIO | None = None
        self._steps = self._model_depth = self._step_depth = 0
        self._fed = False
        self._rows: list[int] = []
        self._size = 0
        self._loss: float | None = None
        self._rates: list[float] = []
        self._before = 0.0

    def install(self) -> None:
        """Follow the models, losses and optimizers of this process from now on."""
        self._follow_models()
        self._follow_losses()
        optimizers.register_optimizer_step_pre_hook(lambda stepped, *_: self._before_step(stepped))
        optimizers.register_optimizer_step_post_hook(lambda stepped, *_: self._after_step(stepped))

    def _follow_models(self) -> None:
        original = torch.nn.Module.__call__

        @functools.wraps(original)
        def call(module: torch.nn.Module, *arguments: Any, **options: Any) -> Any:
            if self._model_depth == 0 and not self._fed:
                self._note_input(module, (arguments, options))
            self._model_depth += 1
            try:
                return original(module, *arguments, **options)
            finally:
                self._model_depth -= 1

        setattr(torch.nn.Module, "__call__", call)  # noqa: B010 - mypy allows no assignment to a method

    def _follow_losses(self) -> None:
        original = torch.Tensor.backward

        @functools.wraps(original)
        def backward(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
            if tensor.numel() == 1:
                self._loss = (self._loss or 0.0) + float(tensor.detach())
            self._fed = False
            return original(tensor, *arguments, **options)

        setattr(torch.Tensor, "backward", backward)  # noqa: B010 - as above

    def _note_input(self, module: torch.nn.Module, given: object) -> None:
        """The first model of a pass gets the samples; a loss, which is a module as well, has no parameters."""
        trained = module.training and torch.is_grad_enabled()
        if not trained or not any(parameter.requires_grad for parameter in module.parameters()):
            return
        tensor = next(_tensors(given), None)
        if tensor is None or tensor.ndim == 0:
            return
        self._fed = True
        self._size += len(tensor)
        self._rows += [_fingerprint(row) for row in tensor.detach()[: _MOST_ROWS - len(self._rows)]]

    def _before_step(self, stepped: torch.optim.Optimizer) -> None:
        # An optimizer may call another one's step, as Horovod's does.
        self._step_depth += 1
        if self._step_depth > 1:
            return
        self._before = _weights(stepped)
        note_rates = "_malletrain_observed"
        if not hasattr(stepped, note_rates):
            setattr(stepped, note_rates, True)
            # After the hooks that are there: one may scale the rates for the time of the step.
            stepped.register_step_pre_hook(lambda within, *_: self._note_rates(within))

    def _note_rates(self, stepped: torch.optim.Optimizer) -> None:
        self._rates = [float(group["lr"]) for group in stepped.param_groups]

    def _after_step(self, stepped: torch.optim.Optimizer) -> None:
        self._step_depth -= 1
        if self._step_depth == 0 and self._steps < _MOST_STEPS:
            after = _weights(stepped)
            # Horovod makes a step without gradients for the optimizer to have a state, which it then broadcasts.
            if self._size or self._loss is not None or after != self._before:
                self._steps += 1
                self._write(stepped, after)
        if self._step_depth == 0:
            self._rows, self._size, self._loss, self._fed = [], 0, None, False

    def _write(self, stepped: torch.optim.Optimizer, after: float) -> None:
        rank, workers = read_rank(os.environ, sys.modules)
        note = {
            "pid": os.getpid(),
            "rank": rank,
            "workers": workers,
            "seconds": time.time(),
            "size": self._size,
            "rows": self._rows,
            "loss": self._loss,
            "rates": self._rates,
            "before": self._before,
            "after": after,
            "sharded": any(hasattr(parameter, "to_local") for parameter in _parameters(stepped)),
        }
        if self._file is None:
            self._folder.mkdir(exist_ok=True)
            self._file = (self._folder / f"{os.getpid()}.jsonl").open("a", buffering=1, encoding="ascii")
        self._file.write(json.dumps(note) + "\n")


def _tensors(given: object) -> Iterator[torch.Tensor]:
    """The tensors among arguments, in order."""
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, dict):
        for value in given.values():
            yield from _tensors(value)
    elif isinstance(given, list | tuple):
        for value in given:
            yield from _tensors(value)


def _fingerprint(row: torch.Tensor) -> int:
    return zlib.crc32(row.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def _parameters(stepped: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return (parameter for group in stepped.param_groups for parameter in group["params"])


def _weights(stepped: torch.optim.Optimizer) -> float:
    """Sum of the squares of the weights; of a sharded model, of those that lie here."""
    total = 0.0
    for parameter in _parameters(stepped):
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        total += float(local.detach().double().pow(2).sum())
    return total


def main() -> None:
    """Run the script."""
    kind, target, *arguments = sys.argv[1:]
    folder = os.environ.get(JOB_DIR)
    if folder:
        StepObserver(Path(folder, OBSERVED_FOLDER)).install()
    sys.argv = [target, *arguments]
    if kind == "module":
        runpy.run_module(target, run_name="__main__", alter_sys=True)
        return
    sys.path[0] = str(Path(target).resolve().parent)
    runpy.run_path(target, run_name="__main__")


if __name__ == "__main__":
    main()
