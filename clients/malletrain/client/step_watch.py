"""Measures this worker's own part of each step, without a line of the script's: see `own_times`.

It needs a torch optimizer whose gradients are exchanged after they are computed: DistributedDataParallel, Horovod, or
an exchange of the script's own between `backward` and `step`. On a GPU the times are those of the GPU's own stream, by
events that nobody waits for. What shares parameters among workers (FSDP, tensor and pipeline parallel) exchanges
within the passes, too, so that waiting can't be told from computing: nothing is measured there.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch.optim import optimizer as optimizers

_MAX_PENDING = 8
_EXCHANGE_WITHIN_PASSES = ("deepspeed", "megatron.core", "torch.distributed.pipelining", "colossalai")
"""Modules of programs whose passes contain exchanges."""

StepTaken = Callable[[float, float], None]
"""Told of a step: how long its own part took, and the whole of it, in seconds."""


def measurable(parameter: Any) -> bool:
    """Whether the passes over a parameter are this worker's own, as far as can be told."""
    if not isinstance(parameter, torch.Tensor) or not parameter.requires_grad or not parameter.is_leaf:
        return False
    if parameter.device.type not in {"cpu", "cuda"}:
        return False
    # A DTensor lies on several workers; FSDP's first version marks what it has flattened.
    return not (
        hasattr(parameter, "to_local")
        or hasattr(parameter, "_fsdp_flattened")
        or type(parameter).__name__ == "FlatParameter"
    )


class StepWatch:
    """Follows the first optimizer that makes a step. Nothing that it does can be seen by the script."""

    def __init__(self, taken: StepTaken, clock: Callable[[], float] = time.monotonic) -> None:
        """Follow nothing yet.

        Args:
            taken: Called after steps.
            clock: Seconds of a monotonic clock.
        """
        self._taken = taken
        self._clock = clock
        self._timer: _HostTimer | _GpuTimer | None = None
        self._finding: Any = None

    def install(self) -> None:
        """Follow the next optimizer that makes a step."""
        self._finding = optimizers.register_optimizer_step_pre_hook(lambda stepped, *_: self._find(stepped))

    def _find(self, stepped: torch.optim.Optimizer) -> None:
        with suppress(Exception):
            if any(name in sys.modules for name in _EXCHANGE_WITHIN_PASSES):
                self._finding.remove()
                return
            parameters = [parameter for group in stepped.param_groups for parameter in group["params"]]
            trained = [parameter for parameter in parameters if getattr(parameter, "requires_grad", False)]
            # Without a gradient it may be a step that only makes the optimizer's state, as Horovod's.
            if not trained or trained[0].grad is None:
                return
            self._finding.remove()
            if not all(map(measurable, trained)):
                return
            # The gradient of the first layer, which optimizers have first, is the last one in most models. Where
            # another one follows, the time ends a little early, and still before any wait.
            first = trained[0]
            self._timer = (_GpuTimer if first.is_cuda else _HostTimer)(self._taken, self._clock)
            first.register_post_accumulate_grad_hook(self._ready)
            stepped.register_step_post_hook(self._stepped)

    def _ready(self, parameter: torch.Tensor) -> None:
        del parameter
        if self._timer is not None:
            with suppress(Exception):
                self._timer.ready()

    def _stepped(self, *_: object) -> None:
        if self._timer is not None:
            with suppress(Exception):
                self._timer.stepped()


class _HostTimer:
    """Times of passes on the CPU: the host's clock."""

    def __init__(self, taken: StepTaken, clock: Callable[[], float]) -> None:
        self._taken = taken
        self._clock = clock
        self._begun = self._ready_at = 0.0

    def ready(self) -> None:
        """The last gradient of a pass is there."""
        self._ready_at = self._clock()

    def stepped(self) -> None:
        """The optimizer has made its step; an optimizer within another one says so twice."""
        now = self._clock()
        if self._begun and self._ready_at > self._begun:
            self._taken(self._ready_at - self._begun, now - self._begun)
        self._begun = now


class _GpuTimer:
    """Times of passes on a GPU: events in its stream, read some steps later, when they have passed."""

    def __init__(self, taken: StepTaken, clock: Callable[[], float]) -> None:
        del clock
        self._taken = taken
        self._begun: Any = None
        self._ready_event: Any = None
        self._pending: deque[tuple[Any, Any, Any]] = deque()

    def ready(self) -> None:
        """The last gradient of a pass is queued."""
        self._ready_event = _event()

    def stepped(self) -> None:
        """The optimizer's step is queued."""
        ended = _event()
        if self._begun is not None and self._ready_event is not None and ended is not None:
            if len(self._pending) < _MAX_PENDING:
                self._pending.append((self._begun, self._ready_event, ended))
            self._tell()
        self._begun, self._ready_event = ended, None

    def _tell(self) -> None:
        while self._pending and self._pending[0][2].query():
            begun, ready, ended = self._pending.popleft()
            self._taken(begun.elapsed_time(ready) / 1e3, begun.elapsed_time(ended) / 1e3)


def _event() -> Any:
    """An event in the present stream; None while it is recorded for a graph, whose steps can't be timed so."""
    if torch.cuda.is_current_stream_capturing():
        return None
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
