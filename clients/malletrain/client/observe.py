"""Notes what a training does in its processes: for `malletrain check`, which has them import `observing`, beside this.

The script is run as it is. For each optimizer step a line is written to `observed/PID.jsonl` in the job's folder: what
the model was fed, loss, learning rates and a fingerprint of the weights. Other lines tell of files that a save has
overwritten, and of evaluations.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import sys
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import torch
from torch.optim import lr_scheduler
from torch.optim import optimizer as optimizers

from malletrain import client
from malletrain.client.job_context import horovod_rank, read_rank
from malletrain.common.environment import JOB_DIR
from malletrain.common.job_folder import OBSERVED_FOLDER

_MAX_ROWS = 512
_MAX_STEPS = 20_000
_MAX_EVENTS = 2_000
_EVALUATION_SECONDS = 0.5
"""An evaluation is told so often while it makes passes."""
_STATE_FILES = frozenset(
    {
        ".bin",
        ".ckpt",
        ".distcp",
        ".h5",
        ".msgpack",
        ".npy",
        ".npz",
        ".pickle",
        ".pkl",
        ".pt",
        ".pth",
        ".safetensors",
        ".tar",
    }
)


def _quietly(method: Callable[..., None]) -> Callable[..., None]:
    """What can't be noted must not be noticed by the script."""

    @functools.wraps(method)
    def noting(*arguments: Any) -> None:
        with contextlib.suppress(Exception):
            method(*arguments)

    return noting


_STAGES = "torch.distributed.pipelining.stage"
"""The module of a pipeline's stages, which is followed once a script has imported it."""


class StepObserver:
    """Notes the optimizer steps of this process. It changes nothing that the script can see."""

    def __init__(self) -> None:
        """Write nothing yet. The folder will be that of the job that this process belongs to then."""
        self._file: TextIO | None = None
        self._pid = 0
        self._steps = self._events = self._model_depth = self._step_depth = self._reported = 0
        self._evaluated_at = 0.0
        self._says_evaluations = False
        self._fed = self._follows_stages = False
        self._rows: list[int] = []
        self._size = 0
        self._loss: float | None = None
        self._rates: list[float] = []
        self._base_rates: list[float] = []
        self._before = 0.0
        self._schedulers: list[weakref.ref[lr_scheduler.LRScheduler]] = []

    def install(self) -> None:
        """Follow the models, losses and optimizers of this process from now on."""
        self._follow_models()
        self._follow_losses()
        self._follow_schedulers()
        self._follow_saves()
        self._follow_reports()
        self._follow_phases()
        optimizers.register_optimizer_step_pre_hook(lambda stepped, *_: self._before_step(stepped))
        optimizers.register_optimizer_step_post_hook(lambda stepped, *_: self._after_step(stepped))

    def _follow_models(self) -> None:
        original = torch.nn.Module.__call__

        @functools.wraps(original)
        def call(module: torch.nn.Module, *arguments: Any, **options: Any) -> Any:
            if not self._follows_stages and _STAGES in sys.modules:
                self._follow_stages()
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
            self._note_loss(tensor)
            self._fed = False
            return original(tensor, *arguments, **options)

        setattr(torch.Tensor, "backward", backward)  # noqa: B010 - as above

    @_quietly
    def _follow_stages(self) -> None:
        """Follow the passes of a pipeline, each of which is a part of a batch. A stage tries its model once before."""
        self._follows_stages = True
        stage: Any = sys.modules[_STAGES]
        base, tried = stage._PipelineStageBase, stage.PipelineStage
        forward, backward, attempt = base.forward_one_chunk, base.backward_one_chunk, tried._forward_metadata_inference

        @functools.wraps(forward)
        def forward_one_chunk(*arguments: Any, **options: Any) -> Any:
            self._fed = False
            return forward(*arguments, **options)

        @functools.wraps(backward)
        def backward_one_chunk(stage: Any, chunk: int, loss: Any = None, *arguments: Any, **options: Any) -> Any:
            if isinstance(loss, torch.Tensor):
                self._note_loss(loss)
            return backward(stage, chunk, loss, *arguments, **options)

        @functools.wraps(attempt)
        def attempted(*arguments: Any, **options: Any) -> Any:
            self._model_depth += 1
            try:
                return attempt(*arguments, **options)
            finally:
                self._model_depth -= 1

        base.forward_one_chunk, base.backward_one_chunk = forward_one_chunk, backward_one_chunk
        tried._forward_metadata_inference = attempted
        # What calls a model for the first time may be such a try: nothing is noted until a pass begins.
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            self._fed = self._fed or frame.f_code is attempt.__code__
            frame = frame.f_back

    @_quietly
    def _note_loss(self, tensor: torch.Tensor) -> None:
        if tensor.numel() == 1:
            self._loss = (self._loss or 0.0) + float(tensor.detach())

    def _follow_schedulers(self) -> None:
        original = lr_scheduler.LRScheduler.__init__

        @functools.wraps(original)
        def made(scheduler: lr_scheduler.LRScheduler, *arguments: Any, **options: Any) -> None:
            original(scheduler, *arguments, **options)
            self._schedulers.append(weakref.ref(scheduler))

        setattr(lr_scheduler.LRScheduler, "__init__", made)  # noqa: B010 - as above

    def _follow_reports(self) -> None:
        """Count reports here, too: the first ones may take long to arrive on a busy machine."""
        original = client.report

        @functools.wraps(original)
        def report(*arguments: Any, **options: Any) -> None:
            self._reported += 1
            original(*arguments, **options)

        client.report = report

    def _follow_phases(self) -> None:
        """Notice whether the script says when it evaluates."""
        original = getattr(client, "phase", None)
        if original is None:
            return

        @functools.wraps(original)
        def phase(name: str) -> Any:
            self._says_evaluations = self._says_evaluations or name == "evaluate"
            return original(name)

        setattr(client, "phase", phase)  # noqa: B010 - as above

    def _follow_saves(self) -> None:
        """Notice a state that is written over the one before: a kill at that moment leaves neither."""
        original = torch.save

        @functools.wraps(original)
        def save(thing: object, target: Any, *arguments: Any, **options: Any) -> Any:
            if isinstance(target, str | os.PathLike):
                self._note_overwritten(os.fspath(target))
                self._note_saved(os.fspath(target))
            return original(thing, target, *arguments, **options)

        torch.save = save
        sys.addaudithook(self._heed)

    def _heed(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(arguments[0], str) or not isinstance(arguments[2], int):
            return
        path, _, flags = arguments
        if flags & os.O_TRUNC and Path(path).suffix in _STATE_FILES:
            self._note_overwritten(path)
            self._note_saved(path)

    @_quietly
    def _note_overwritten(self, path: str) -> None:
        # What is heeded at each opening of a file has to be quick.
        if os.path.getsize(path):  # noqa: PTH202
            self._note({"event": "overwritten", "path": os.path.abspath(path)})  # noqa: PTH100

    @_quietly
    def _note_saved(self, path: str) -> None:
        self._note({"event": "saved", "path": os.path.abspath(path)})  # noqa: PTH100

    @_quietly
    def _note_input(self, module: torch.nn.Module, given: object) -> None:
        """The first model of a pass gets the samples; a loss, which is a module as well, has no parameters."""
        trained = module.training and torch.is_grad_enabled()
        if not module.training and self._steps and time.monotonic() - self._evaluated_at > _EVALUATION_SECONDS:
            self._evaluated_at = time.monotonic()
            self._note({"event": "evaluates", "said": self._says_evaluations})
        if not trained or not any(parameter.requires_grad for parameter in module.parameters()):
            return
        tensor = next(_tensors(given), None)
        if tensor is None or tensor.ndim == 0:
            return
        self._fed = True
        self._size += len(tensor)
        self._rows += [_fingerprint(row) for row in tensor.detach()[: _MAX_ROWS - len(self._rows)]]

    def _before_step(self, stepped: torch.optim.Optimizer) -> None:
        # An optimizer may call another one's step, as Horovod's does.
        self._step_depth += 1
        if self._step_depth == 1:
            self._note_beginning(stepped)

    @_quietly
    def _note_beginning(self, stepped: torch.optim.Optimizer) -> None:
        self._before = _weights(stepped)
        note_rates = "_malletrain_observed"
        if not hasattr(stepped, note_rates):
            setattr(stepped, note_rates, True)
            # After the hooks that are there: one may scale the rates for the time of the step.
            stepped.register_step_pre_hook(lambda within, *_: self._note_rates(within))

    @_quietly
    def _note_rates(self, stepped: torch.optim.Optimizer) -> None:
        self._rates = [float(group["lr"]) for group in stepped.param_groups]
        self._base_rates = [float(group["initial_lr"]) for group in stepped.param_groups if "initial_lr" in group]

    def _after_step(self, stepped: torch.optim.Optimizer) -> None:
        self._step_depth -= 1
        if self._step_depth == 0:
            self._note_step(stepped)
            self._rows, self._size, self._loss, self._fed = [], 0, None, False

    @_quietly
    def _note_step(self, stepped: torch.optim.Optimizer) -> None:
        if self._steps >= _MAX_STEPS:
            return
        after = _weights(stepped)
        # Horovod makes a step without gradients for the optimizer to have a state, which it then broadcasts. ZeRO makes
        # one for each group of parameters; the first of them has the samples.
        if self._size or self._loss is not None or (after != self._before and not _is_part(stepped)):
            self._steps += 1
            self._write(stepped, after)

    def _write(self, stepped: torch.optim.Optimizer, after: float) -> None:
        rank, workers, together = _place()
        note = {
            "rank": rank,
            "workers": workers,
            "together": together,
            "size": self._size,
            "rows": self._rows,
            "loss": self._loss,
            "rates": self._rates,
            "base_rates": self._base_rates,
            "before": self._before,
            "after": after,
            "sharded": any(hasattr(parameter, "to_local") for parameter in _parameters(stepped)) or _is_part(stepped),
            "schedule": self._schedule_of(stepped),
            "heeds_stop": signal.getsignal(signal.SIGTERM) not in {signal.SIG_DFL, signal.SIG_IGN},
            "reported": self._reported,
        }
        self._write_line(note)

    def _schedule_of(self, stepped: torch.optim.Optimizer) -> list[int] | None:
        """Length and present step of a schedule of a fixed length; None where there is none."""
        self._schedulers = [reference for reference in self._schedulers if reference() is not None]
        for scheduler in (reference() for reference in reversed(self._schedulers)):
            if scheduler is None or next(_parameters(scheduler.optimizer)) is not next(_parameters(stepped)):
                continue
            length = getattr(scheduler, "total_steps", None) or getattr(scheduler, "T_max", None)
            if isinstance(length, int):
                return [length, int(scheduler.last_epoch)]
        return None

    def _note(self, note: dict[str, Any]) -> None:
        if self._events < _MAX_EVENTS:
            self._events += 1
            self._write_line(note)

    def _write_line(self, note: dict[str, Any]) -> None:
        if self._pid != os.getpid():  # also after a fork
            folder = os.environ.get(JOB_DIR)
            if not folder:
                return
            self._pid = os.getpid()
            place = Path(folder, OBSERVED_FOLDER)
            place.mkdir(exist_ok=True)
            self._file = (place / f"{self._pid}.jsonl").open("a", buffering=1, encoding="ascii")
        if self._file is not None:
            self._file.write(json.dumps({"pid": self._pid, "seconds": time.time(), **note}) + "\n")


def _place() -> tuple[int, int, int]:
    """Rank and number of workers, and how many of them are in one group with this one."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size(), distributed.get_world_size()
    rank, workers = read_rank(os.environ, sys.modules)
    return rank, workers, workers if horovod_rank(sys.modules) is not None else 1


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


def _is_part(stepped: torch.optim.Optimizer) -> bool:
    """Whether an optimizer has flat parts of parameters, as ZeRO of DeepSpeed gives it, and not those of a model."""
    if "deepspeed" not in sys.modules:
        return False
    return any(not isinstance(parameter, torch.nn.Parameter) for parameter in _parameters(stepped))


def _weights(stepped: torch.optim.Optimizer) -> float:
    """Sum of the squares of the weights; of a sharded model, of those that lie here."""
    total = 0.0
    for parameter in _parameters(stepped):
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        total += float(local.detach().double().pow(2).sum())
    return total
