"""FSDP2 (`fully_shard`) with few lines: each worker has a part of weights and optimizer, and saves its own part.

```python
init()
for block in model.blocks:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
training = ShardedTraining(model, optimizer, dataset_size=len(texts), batch_per_worker=8, reference_batch=16)

@training.run
def train() -> None:
    while training.samples < wanted:
        indices = training.next_indices()
        training.optimizer.zero_grad()
        loss_of(training.model, indices).backward()
        training.step()

training.finish({"loss": ...})
```

All workers are restarted at every rescale, by the backend `torchrun`, and the next ones divide the state anew.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from malletrain.client import current_job
from malletrain.client.devices import AppliedSteps
from malletrain.client.distributed import PlainTrainingState, collective_limit, init
from malletrain.client.divided import DividedTraining
from malletrain.client.gradient_noise import NoiseMeter
from malletrain.client.neighbour_copies import NeighbourCopies
from malletrain.client.part_files import parts_folder
from malletrain.client.peer_shards import PeerShards, find_peer_shards, leave_parts
from malletrain.client.replicas import replica_place
from malletrain.client.saving_marker import SavingMarker
from malletrain.client.shard_parts import Shards, part_of, prepared_part, write_part
from malletrain.client.sharded_checkpoints import samples_in, say_where
from malletrain.client.snapshots import random_states, tensor_bytes
from malletrain.client.staged_parts import stage_parts
from malletrain.common.job_folder import SHARDED_FOLDER
from malletrain.common.stage_out import StageOutTerms

__all__ = ["ShardedTraining", "init"]

_COPY = 8
_EXCHANGE_SECONDS = 60.0


class ShardedTraining(DividedTraining):
    """A training with FSDP2 whose workers save their parts, exit and are restarted at a rescale, in any number.

    The arguments and methods are those of `malletrain.client.training.Training`. The model has been given to
    `fully_shard`, after `init` and before the optimizer was made. With `hold_batch` gradients are exchanged in each
    pass, so that no worker ever holds them whole.

    A worker that is lost takes its part of the state with it. A copy of that part is in the memory of a worker on the
    next node, so the training goes on from the last copy; if that worker is lost as well, from the last checkpoint.
    With several replicas (`malletrain.client.replicas`) each of them has the whole state: the workers of one that has
    lost nobody write it as it is after the last complete step.

    Attributes:
        model: The model as it was given.
        optimizer: The optimizer as it was given.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        mesh: DeviceMesh | None = None,
        checkpoint_seconds: float = 30.0,
        checkpoint_folder: Path | None = None,
        copy_seconds: float | None = 1.0,
        grad_scaler: torch.amp.GradScaler | None = None,
        **options: Any,
    ) -> None:
        """Load the newest checkpoint, if there is one, divided among the present workers.

        Args:
            model: The model, after `fully_shard`; of a pipeline, this worker's stage, whose parameters have the names
                that they have in the whole model.
            optimizer: The optimizer of its parameters.
            mesh: What `replica_mesh` has returned, where it has the dimensions `pipeline` and `tensor`. Workers that
                share samples count as one for `batch_per_worker` then.
            checkpoint_seconds: Longest time in seconds between two checkpoints.
            checkpoint_folder: Folder of the checkpoints, which all workers can read. By default the job's folder.
            copy_seconds: Shortest time in seconds from one copy of the workers' parts on their neighbours to the next.
                It grows with their cost: they take at most 5 % of the loop's time, and are sent in the background for
                at most a quarter of the time. None: no copies, which take the memory of two parts, and of four while
                they are exchanged.
            grad_scaler: As for `malletrain.client.training.Training`, but not with a pipeline: its stages would not
                leave out the same steps.
            options: As for `malletrain.client.training.Training`.

        Raises:
            ValueError: the model has not been given to `fully_shard`, or not with this mesh; or an argument is out of
                its range.
        """
        if copy_seconds is not None and copy_seconds < 0:
            raise ValueError(f"copy_seconds: expected at least 0, or None, got {copy_seconds}")
        if not isinstance(model, FSDPModule):
            raise ValueError(f"model: expected one that was given to fully_shard, got {type(model).__name__}")
        self._place = replica_place(model, mesh)
        if self._place.staged and grad_scaler is not None:
            raise ValueError("grad_scaler: expected none with a pipeline (bfloat16 needs none), got one")
        # Stages have different parameters: by name, not in one list, what they save is not in each other's way.
        by_name = mesh is not None and mesh.ndim > 2
        self._state_options = StateDictOptions(flatten_optimizer_state_dict=by_name)
        job = current_job()
        folder = checkpoint_folder or (job.checkpoint_directory if job else None)
        self._copies = NeighbourCopies(folder, copy_seconds)
        self._holder = SavingMarker(job.directory if job else None, SHARDED_FOLDER)
        options |= {"checkpoint_seconds": checkpoint_seconds, "checkpoint_folder": folder, "grad_scaler": grad_scaler}
        super().__init__(model, optimizer, **options)

    def step(self, *also: Callable[[], object]) -> None:
        """As `Training.step`."""
        if self._place.apart and self._place.replicas > 1:
            # Stages are done with their gradients one after the other. None applies them before all have theirs, so
            # that the workers of a replica have made the same steps when another one loses a worker.
            dist.all_reduce(torch.zeros(1, device=self._device))
        super().step(*also)

    def _join(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> PlainTrainingState:
        self._plain_model = self.model = model
        self.optimizer = optimizer
        self._device = next(model.parameters()).device
        self._applied = AppliedSteps(model)
        self._token = str(self._agreed(secrets.token_hex(4)))
        if self._place.replicas > 1:
            # What this worker has of the state, only one worker of each other replica has.
            self._holder.create()
        state = PlainTrainingState()
        newest = samples_in(self._sharded.newest()) if self.rank == 0 else -1
        handed_over = find_peer_shards(self._memory, newest)
        if handed_over is not None:
            self._take_over_parts(handed_over, state)
        else:
            self._go_on(state)
        self._sampler.set_scale(*self._batch_part)
        return state

    def _make_noise(self, every: int) -> NoiseMeter | None:
        if self._place.apart:
            return None  # workers of a replica have different parameters, or parts of products of them
        return NoiseMeter(self._plain_model, every=every, replicas=self._place.replicas)

    @property
    def _batch_part(self) -> tuple[int, int]:
        return self._place.batch_part, self._place.batch_parts

    def _load_shards(self, path: Path, plain: Mapping[str, Any]) -> None:
        del plain
        self._fill(lambda shards: self._sharded.load_shards(path, shards))

    def _fill(self, load: Callable[[Shards], None]) -> None:
        """Have something load this worker's part of the state."""
        shards = self._shards()
        with collective_limit.raised():
            load(shards)
        state_dicts = {"model_state_dict": shards["model"], "optim_state_dict": shards["optimizer"]}
        set_state_dict(self._plain_model, self.optimizer, **state_dicts, options=self._state_options)

    def _take_over_parts(self, handed_over: PeerShards, state: PlainTrainingState) -> None:
        """Go on with what the workers before have left in memory."""
        began = time.monotonic()
        self._fill(handed_over.load)
        self._restore_plain(handed_over.plain, state)
        handed_over.close()
        self._sharded.hasten()
        if self.rank == 0:
            say_where(state.samples, time.monotonic() - began)

    def _hands_over(self) -> bool:
        if self._memory is None:
            return False
        return (bool(self._memory.notice().staying) and self._is_large()) or self._is_better_staged_out()

    def _is_better_staged_out(self) -> bool:
        terms = self._stage_out_terms()
        return terms is not None and self._sharded.is_better_staged_out(self._whole_bytes, terms)

    def _stage_out_terms(self) -> StageOutTerms | None:
        return None if self._memory is None else self._memory.terms_for(self._folder)

    def _hand_over(self) -> bool:
        place = {"samples": self.samples, "rank": self._place.shard, "workers": self._place.shards}
        # A checkpoint that is being written is not waited for: it may take longer than the node stays.
        own = prepared_part(self._shards(), self._plain([]), random_states(), **place)
        if leave_parts(self._memory, own):
            return True
        wanted = self.rank == 0 and self._is_better_staged_out()
        if stage_parts(self._memory, own, self._token, self._stage_out_terms(), wanted=wanted):
            return True
        if not self._agreed(self.rank > 0 or self._may_save(last=True)):
            self._stop(save=False)
        return False

    def _state_bytes(self) -> int:
        return tensor_bytes(self._shards(), own=True)

    def _shards(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._plain_model, self.optimizer, options=self._state_options)
        return {"model": model, "optimizer": optimizer}

    def _decide(self) -> list[int]:
        flags, batches = super()._decide()
        return [flags | _COPY if self.workers > 1 and self._copies.is_due() else flags, batches]

    def _act(self, flags: int) -> None:
        if flags & _COPY:
            # From now on this worker holds what others do not.
            self._holder.create()
            self._copies.begin(self.samples, self._place, self._shards, lambda: self._plain([]), random_states())
        super()._act(flags)

    def _before_end(self) -> None:
        self._holder.remove()

    def _finish(self, metrics: Mapping[str, float]) -> None:
        # Nothing may be on its way when the interpreter ends.
        self._copies.wait(_EXCHANGE_SECONDS)
        super()._finish(metrics)

    def _costs(self) -> dict[str, float]:
        return {**super()._costs(), **self._copies.costs()}

    def _save_what_is_left(self) -> int:
        """After a loss, write the copies that this worker holds, and its replica's state as it is now."""
        try:
            self._save_replica()
            self._copies.save(samples_in(self._sharded.newest()))
        except OSError as failure:
            print(f"malletrain: copies can't be written: {failure}", file=sys.stderr)
            return 1
        return 0

    def _save_replica(self) -> None:
        """After a loss: write this worker's part as it is now. It counts once its replica's other workers have, too.

        They have done as many steps: no step is complete before its gradients have been exchanged among all. A step
        that only some of them have completed leaves folders that are not complete, and the copies count.

        Raises:
            OSError: it can't be written.
        """
        if self._folder is None or self._place.replicas < 2 or not self._consistent:
            return
        if not self._applied.wait():
            return  # a step hangs on the GPU
        if samples_in(self._sharded.newest()) >= self.samples:
            return
        own = {"samples": self.samples, "rank": self._place.shard, "workers": self._place.shards}
        part = part_of(self._shards(), self._plain([]), random_states(), **own)
        write_part(parts_folder(self._folder, self.samples), self._token, part)

    def _set_passes(self, passes: int) -> None:
        """Do nothing: gradients are exchanged in each pass."""
