"""DeepSpeed with few lines: ZeRO 1, 2 and 3, saved by any number of workers and gone on with by any other.

```python
init()
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
training = DeepSpeedTraining(engine, dataset_size=len(texts), batch_per_worker=8, reference_batch=16)

@training.run
def train() -> None:
    while training.samples < wanted:
        indices = training.next_indices()
        engine.backward(loss_of(engine, indices))
        training.step()

training.finish({"loss": ...})
```

All workers are restarted at every rescale, by the backend `torchrun`, and the next ones divide the state anew.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import deepspeed.ops
import torch
import torch.distributed as dist
from torch.distributed.checkpoint import SavePlanner

from malletrain.client import distributed
from malletrain.client.devices import AppliedSteps
from malletrain.client.distributed import PlainTrainingState, collective_limit
from malletrain.client.divided import DividedTraining
from malletrain.client.flat_ranges import FlatLoadPlanner, FlatSavePlanner
from malletrain.client.object_transfer import control_device
from malletrain.client.shard_parts import Shards
from malletrain.client.snapshots import tensor_bytes
from malletrain.client.zero_state import ZeroState

__all__ = ["DeepSpeedTraining", "init", "without_shared_memory"]

_SHARED_MEMORY = "deepspeed_shm_comm"


def init(backend: str | None = None) -> None:
    """Initialise the process group before `deepspeed.initialize`, which takes it as it is.

    As `malletrain.client.elastic.init`. On CPUs DeepSpeed would exchange gradients through memory that workers of a
    machine share. A worker waits there for a lost one without end, so this leaves it out.

    Args:
        backend: As for `torch.distributed.init_process_group`; None: its default.

    Raises:
        ValueError: MALLETRAIN_COLLECTIVE_SECONDS is no time.
    """
    without_shared_memory()
    os.environ.setdefault("LOCAL_RANK", "0")  # DeepSpeed asks for it, also of the only process
    distributed.init(backend)


def without_shared_memory() -> None:
    """Have DeepSpeed exchange gradients on CPUs by the process group; see `init`."""
    deepspeed.ops.__compatible_ops__[_SHARED_MEMORY] = False


class DeepSpeedTraining(DividedTraining):
    """A training with ZeRO whose workers save their parts, exit and are restarted at a rescale, in any number.

    The arguments and methods are those of `malletrain.client.training.Training`; `step` is in place of the engine's.
    With `hold_batch` it sets the engine's boundary of accumulation for each pass: leave it alone, and give
    `engine.backward` the mean loss of a pass times its factor.

    A worker that is lost takes its part of the state with it: the training goes on from the last checkpoint.

    Attributes:
        engine: The engine as it was given.
        model: The same.
        optimizer: The optimizer that the engine makes use of, for schedulers.
    """

    def __init__(
        self,
        engine: Any,
        *,
        checkpoint_seconds: float = 30.0,
        checkpoint_folder: Path | None = None,
        **options: Any,
    ) -> None:
        """Load the newest checkpoint, if there is one, divided among the present workers.

        Args:
            engine: What `deepspeed.initialize` has returned first. In its configuration the stage is 1, 2 or 3, and
                there is no accumulation, no scheduler and no offloading.
            checkpoint_seconds: Longest time in seconds between two checkpoints.
            checkpoint_folder: Folder of the checkpoints, which all workers can read. By default the job's folder.
            options: As for `malletrain.client.training.Training`, but without `grad_scaler`: with `fp16` the engine
                has one, whose state is saved.

        Raises:
            ValueError: the engine has what can't be restored with another number of workers, or an argument is out of
                its range.
        """
        if options.get("grad_scaler") is not None:
            raise ValueError("grad_scaler: expected none (DeepSpeed's own, by fp16 in its configuration), got one")
        self._zero = ZeroState(engine)
        self.engine = engine
        self._passes_done, self._passes = 0, 1
        options |= {"checkpoint_seconds": checkpoint_seconds, "checkpoint_folder": checkpoint_folder}
        super().__init__(engine.module, self._zero.optimizer, **options)
        engine.register_forward_pre_hook(self._before_pass)

    def _join(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> PlainTrainingState:
        self._plain_model = model
        self.model = self.engine
        self.optimizer = optimizer
        self._device = control_device() if dist.is_initialized() else torch.device("cpu")
        self._applied = AppliedSteps(model)
        state = PlainTrainingState()
        self._go_on(state)
        self._sampler.set_scale(*self._batch_part)
        return state

    def _apply_gradients(self) -> None:
        self._passes_done = 0
        self.engine.step()

    def _shards(self) -> Shards:
        return self._zero.parts().tensors

    def _rescales_by_disk(self, size: int) -> bool:
        del size
        return True

    def _whole_bytes(self) -> int:
        # The optimizer within has no whole state: its parameters are flat parts, which it does not know by itself.
        return tensor_bytes(self._shards()) * self.workers

    def _save_planner(self) -> SavePlanner:
        return FlatSavePlanner(self._zero.parts().ranges)

    def _plain(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        return {**super()._plain(states), "zero": self._zero.plain()}

    def _load_shards(self, path: Path, plain: Mapping[str, Any]) -> None:
        if "zero" not in plain:
            raise ValueError(f"checkpoint {path.name}: expected one of a training with DeepSpeed, got another one")
        self._zero.restore_plain(plain["zero"])
        parts = self._zero.parts()
        with collective_limit.raised():
            self._sharded.load_shards(path, parts.tensors, FlatLoadPlanner(parts.ranges))
            self._zero.refresh()

    def _set_passes(self, passes: int) -> None:
        self._passes, self._passes_done = passes, 0

    def _before_pass(self, module: torch.nn.Module, inputs: object) -> None:
        """The engine accumulates in all passes of a step but the last."""
        del module, inputs
        if torch.is_grad_enabled():
            self._passes_done += 1
            self.engine.set_gradient_accumulation_boundary(self._passes_done >= self._passes)
