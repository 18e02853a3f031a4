"""Measures the gradient noise scale of a training in every so many steps: see `noise_estimate`.

Where a step has several passes, of one worker or of several, the gradient of each worker's first pass is that of the
small batch, and that of the whole step, averaged over passes and workers, that of the big one. The first is measured as
it is accumulated, and so before DistributedDataParallel or FSDP2 exchange it. Where a step is one pass of one worker,
two successive steps are compared instead, which takes a copy of the gradients until the second one. In the other steps
nothing is measured, and nothing runs.

```python
noise = NoiseMeter(model)

for images, labels in batches:
    noise.begin(PassPlan(first=len(images), total=len(images) * workers))
    loss_of(ddp_model(images), labels).backward()
    noise.end()  # before gradients are clipped
    optimizer.step()
```
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from malletrain.client import current_job, log_metrics
from malletrain.client.noise_estimate import NoiseEstimate, SquareNorms, between_steps
from malletrain.client.sampling import WorkerShare
from malletrain.common import environment as env

EVERY = 10
"""Steps of which one is measured."""


@dataclass(frozen=True, slots=True)
class PassPlan:
    """What this worker's next step is made of.

    Attributes:
        first: Samples of its first pass.
        total: Samples of the step, over all passes and workers.
        passes: Backward passes of this worker.
        weight: Factor with which the mean loss of the first pass counts: the sum over the passes, averaged over the
            workers, is the mean loss of the step.
    """

    first: int
    total: int
    passes: int = 1
    weight: float = 1.0


class NoiseMeter:
    """The gradient noise scale of a training, in samples.

    All workers call `begin` and `end` in the same steps. It has `state_dict` and `load_state_dict`.
    """

    def __init__(self, model: torch.nn.Module, *, every: int = EVERY, replicas: int | None = None) -> None:
        """Measure nothing yet.

        Args:
            model: The model without DistributedDataParallel, or after `fully_shard`.
            every: One of so many steps is measured.
            replicas: How many copies of the model there are; None: one for each worker, or with FSDP2 one.

        Raises:
            ValueError: `every` is below 2: a step may have to be compared with the next one.
        """
        if every < 2:
            raise ValueError(f"every: expected at least 2 steps, got {every}")
        self._model = model
        self._every = every
        self._workers = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        self._sharded = any(hasattr(parameter, "to_local") for parameter in model.parameters())
        self._replicas = replicas or (1 if self._sharded else self._workers)
        self._estimate = NoiseEstimate()
        self._steps = 0
        self._plan: PassPlan | None = None
        self._watch: _PassWatch | None = None
        self._before: list[torch.Tensor] | None = None
        self._reading: _Reading | None = None

    @property
    def noise_scale(self) -> float | None:
        """The present estimate in samples; None: not known yet."""
        return self._estimate.noise_scale

    def state_dict(self) -> dict[str, float]:
        """What the estimate rests on."""
        return self._estimate.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from an estimate."""
        self._estimate = NoiseEstimate(**state)

    def begin(self, plan: PassPlan) -> None:
        """Prepare for the next step, before its first pass. A step without `end` does not count."""
        self._forget()
        due = self._steps % self._every == 0 or self._before is not None
        self._steps += 1
        if not due:
            return
        self._plan = plan
        if not self._compares_steps(plan):
            self._watch = _PassWatch(self._model, plan.passes, sharded=self._sharded)

    def end(self) -> bool:
        """Take the gradients of a step, after its last pass. All workers measure the same steps.

        Returns:
            Whether the estimate has changed.

        Raises:
            RuntimeError: another worker is lost.
        """
        changed = self._take_reading()
        plan, watch = self._plan, self._watch
        self._forget()
        if plan is None:
            return changed
        if watch is None:
            self._compare_steps(plan)
        else:
            self._begin_reading(plan, watch)
        return self._take_reading() or changed

    def _compares_steps(self, plan: PassPlan) -> bool:
        parts = self._workers * plan.passes
        # Hooks in a compiled model would have it compiled anew.
        return parts == 1 or (self._sharded and _is_compiled(self._model))

    def _forget(self) -> None:
        self._plan = None
        if self._watch is not None:
            self._watch.remove()
            self._watch = None

    def _begin_reading(self, plan: PassPlan, watch: _PassWatch) -> None:
        """Have the workers add up their squares. Nobody waits for it on a GPU."""
        device = next(self._model.parameters()).device
        small = watch.first_square(device) / plan.weight**2
        own = torch.stack([small, small.new_tensor(1 / plan.first), watch.step_square(device) / self._replicas])
        own = torch.cat([own, own.new_tensor([1.0 if watch.complete else 0.0])])
        self._reading = _Reading(self._added(own), lambda sums: self._norms(sums, plan.total))

    def _norms(self, sums: list[float], total: int) -> SquareNorms | None:
        small, inverse_batch, big, complete = sums
        if complete != self._workers:
            return None  # a worker has made another number of passes than it was said
        return SquareNorms(small / self._workers, self._workers / inverse_batch, big, total)

    def _compare_steps(self, plan: PassPlan) -> None:
        gradients = _gradients(self._model)
        before, self._before = self._before, None
        if before is None or len(before) != len(gradients):
            self._before = [gradient.clone() for gradient in gradients]
            return
        pairs = ((before, before), (gradients, gradients), (before, gradients))
        own = torch.stack([_product(one, other) for one, other in pairs]) / self._replicas
        sums = self._added(own) if self._sharded else own * self._replicas
        self._reading = _Reading(sums, lambda three: between_steps(three[0], three[1], three[2], plan.total))

    def _added(self, own: torch.Tensor) -> torch.Tensor:
        if self._workers > 1:
            dist.all_reduce(own)
        return own

    def _take_reading(self) -> bool:
        if self._reading is None or not self._reading.ready:
            return False
        norms, self._reading = self._reading.norms(), None
        before = self._estimate
        if norms is not None:
            self._estimate = before.after(norms)
        return self._estimate is not before


class _Reading:
    """Figures that a GPU may still be computing."""

    def __init__(self, sums: torch.Tensor, norms: Callable[[list[float]], SquareNorms | None]) -> None:
        self._norms = norms
        self._event: torch.cuda.Event | None = None
        self._sums = sums
        if sums.is_cuda:
            self._sums = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=True)
            self._sums.copy_(sums, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    @property
    def ready(self) -> bool:
        """Whether they are there."""
        return self._event is None or self._event.query()

    def norms(self) -> SquareNorms | None:
        """What they come to; None: they do not belong together."""
        return self._norms(self._sums.tolist())


class _PassWatch:
    """Follows the passes of one step: squares of the first pass's own gradients, and of those of the whole step."""

    def __init__(self, model: torch.nn.Module, passes: int, *, sharded: bool) -> None:
        self._model = model
        self._passes = passes
        self._ended = 0
        self._queued = False
        self._seen: set[int] = set()
        self._norms: list[torch.Tensor] = []
        self._step_norms: list[torch.Tensor] = []
        self._hooks: list[Any] = []
        if sharded:
            for module in model.modules():
                if any(one.requires_grad for one in module.parameters(recurse=False)):
                    self._hooks.append(module.register_forward_pre_hook(self._gathered))
        else:
            self._follow(model.parameters())

    @property
    def complete(self) -> bool:
        """Whether there were as many passes as was said, and gradients in them."""
        return self._ended == self._passes and bool(self._norms)

    def first_square(self, device: torch.device) -> torch.Tensor:
        """Square of the norm of this worker's gradient of the first pass, in double precision."""
        return _square_sum(self._norms, device)

    def step_square(self, device: torch.device) -> torch.Tensor:
        """Square of the norm of the gradient of the step, or of this worker's part of it, in double precision."""
        return _square_sum(self._step_norms, device)

    def remove(self) -> None:
        """Follow nothing any more."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _gathered(self, module: torch.nn.Module, inputs: object) -> None:
        """FSDP2 has put whole parameters in place of the module's parts: their gradients are this worker's own."""
        del inputs
        if torch.is_grad_enabled():
            self._follow(module.parameters(recurse=False))

    def _follow(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        for parameter in parameters:
            if parameter.requires_grad and id(parameter) not in self._seen:
                self._seen.add(id(parameter))
                self._hooks.append(parameter.register_post_accumulate_grad_hook(self._accumulated))

    def _accumulated(self, parameter: torch.Tensor) -> None:
        if not self._queued:
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._pass_ended)
        if self._ended == 0 and parameter.grad is not None:
            self._norms.append(_norm(parameter.grad))

    def _pass_ended(self) -> None:
        self._queued = False
        self._ended += 1
        if self._ended == self._passes:
            # What exchanges gradients does so in a callback, too, which has been queued before this one.
            torch.autograd.Variable._execution_engine.queue_callback(self._step_ended)

    def _step_ended(self) -> None:
        self._step_norms = [_norm(gradient) for gradient in _gradients(self._model)]


def _gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    """The gradients of a model, or this worker's parts of them."""
    gradients = (one.grad for one in model.parameters() if one.grad is not None)
    return [gradient.to_local() if hasattr(gradient, "to_local") else gradient for gradient in gradients]


def _norm(gradient: torch.Tensor) -> torch.Tensor:
    """In single precision, which is exact enough, and twice as fast as in double precision."""
    return torch.linalg.vector_norm(gradient, dtype=torch.float32)


def _square_sum(norms: list[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Sum of the squares of norms, in double precision."""
    if not norms:
        return torch.zeros((), dtype=torch.float64, device=device)
    return torch.stack(norms).double().square().sum()


def _product(ones: list[torch.Tensor], others: list[torch.Tensor]) -> torch.Tensor:
    products = [
        torch.dot(one.flatten().float(), other.flatten().float()) for one, other in zip(ones, others, strict=True)
    ]
    return torch.stack(products).double().sum()


def _is_compiled(model: torch.nn.Module) -> bool:
    return any(
        hasattr(one, "_orig_mod") or getattr(one, "_compiled_call_impl", None) is not None for one in model.modules()
    )


NOISE_SCALE, BATCH_PER_NODE = "gradient_noise_scale", "batch_per_node"
"""Names of the training metrics; Monitor knows both (`malletrain.model.goodput`)."""
_LOG_SECONDS = 1.0


def measured_every(environ: Mapping[str, str], by_script: bool) -> int:
    """Of how many steps one is measured, by the job's environment, or else by the script; 0: none.

    Raises:
        ValueError: the variable is not a whole number.
    """
    told = environ.get(env.GRADIENT_NOISE, "")
    if not told:
        return EVERY if by_script else 0
    if not told.isdecimal():
        raise ValueError(f"{env.GRADIENT_NOISE}: expected a whole number, got {told!r}")
    return EVERY if told == "1" else int(told)


class NoiseReports:
    """The gradient noise scale of one training."""

    def __init__(self, noise: NoiseMeter, *, batch_grows: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """Log nothing yet.

        Args:
            noise: What measures it.
            batch_grows: Whether the batch grows with the workers.
            clock: Seconds of a monotonic clock.
        """
        self.noise = noise
        self._batch_grows = batch_grows
        self._clock = clock
        self._logged = -_LOG_SECONDS

    def begin(self, share: WorkerShare) -> None:
        """Prepare for the next step of a worker with this share."""
        partition = share.partition
        first = partition.micro_batches(share.rank)[0]
        self.noise.begin(PassPlan(first, partition.global_batch, partition.micro_steps, partition.weight(first)))

    def end(self, batch: int, workers: int) -> None:
        """Take the gradients of a step.

        Args:
            batch: Its samples, over all workers.
            workers: Number of workers.

        Raises:
            RuntimeError: another worker is lost.
        """
        if not self.noise.end() or self._clock() - self._logged < _LOG_SECONDS:
            return
        if (noise_scale := self.noise.noise_scale) is not None:
            self._logged = self._clock()
            job = current_job()
            slots = job.slots_per_node if job is not None else 1
            per_node = batch * slots / workers if self._batch_grows else 0.0
            log_metrics({BATCH_PER_NODE: per_node, NOISE_SCALE: noise_scale})
