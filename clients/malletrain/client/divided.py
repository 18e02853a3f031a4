"""Trainings whose state is divided among the workers: each saves its own part, and all go on from parts of any number.

What is common to FSDP2 (`malletrain.client.fsdp`) and ZeRO (`malletrain.client.deepspeed`). All workers are restarted
at every rescale, by the backend `torchrun`, and the next ones divide the state anew.
"""

from __future__ import annotations

import abc
import sys
import time
from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import SavePlanner

from malletrain.client import current_job, done, seconds_to_leave, should_stop
from malletrain.client.checkpoints import CheckpointRetention
from malletrain.client.distributed import DistributedTraining, PlainTrainingState, collective_limit
from malletrain.client.lr_scaling import RateRamp
from malletrain.client.replica import HAND_OVER, SAVE, STOP, Stopped
from malletrain.client.shard_parts import Shards
from malletrain.client.sharded_checkpoints import ShardedCheckpoints, samples_in, say_where
from malletrain.client.snapshots import random_states, tensor_bytes
from malletrain.client.warn_once import describe

_T = TypeVar("_T")
_LOSS_SECONDS = 5.0
_POLL_SECONDS = 0.005


class DividedTraining(DistributedTraining):
    """A training whose workers save their parts, exit and are restarted at a rescale, in any number."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        checkpoint_seconds: float = 30.0,
        checkpoint_folder: Path | None = None,
        checkpoints_kept: int = 2,
        max_checkpoint_bytes: int | None = None,
        **options: Any,
    ) -> None:
        """Load the newest checkpoint, if there is one, divided among the present workers.

        Args:
            checkpoint_seconds: Longest time in seconds between two checkpoints.
            checkpoint_folder: Folder of the checkpoints, which all workers can read. By default the job's folder.
            checkpoints_kept: As for `malletrain.client.training.Training`.
            max_checkpoint_bytes: As for `malletrain.client.training.Training`.
            options: As for `malletrain.client.training.Training`.

        Raises:
            ValueError: an argument is out of its range.
        """
        job = current_job()
        self._folder = checkpoint_folder or (job.checkpoint_directory if job else None)
        retention = CheckpointRetention(checkpoints_kept, max_checkpoint_bytes)
        self._sharded = ShardedCheckpoints(
            self._folder,
            checkpoint_seconds,
            retention=retention,
            seconds_left=lambda: seconds_to_leave(all_workers=True),
            rescales_by_disk=self._rescales_by_disk,
        )
        options |= {"checkpoint_seconds": checkpoint_seconds, "checkpoint_folder": self._folder}
        super().__init__(model, optimizer, **options)

    # -- what a way of dividing implements -------------------------------------------------------------------------

    @abc.abstractmethod
    def _shards(self) -> Shards:
        """This worker's part of what is divided."""

    @abc.abstractmethod
    def _load_shards(self, path: Path, plain: Mapping[str, Any]) -> None:
        """Fill this worker's part from a checkpoint.

        Args:
            path: The checkpoint.
            plain: What it has that is not divided.
        """

    def _save_planner(self) -> SavePlanner | None:
        """Says where this worker's part lies in the whole; None: the tensors say it themselves."""
        return None

    def _before_end(self) -> None:
        """What is left to do before this process ends."""

    # -- what they have in common ----------------------------------------------------------------------------------

    def finish(self, metrics: Mapping[str, float] | None = None) -> None:
        """Save the state and say that the training is complete. Call it at every rank, after `run`.

        Args:
            metrics: Names and numbers, shown with the job.
        """
        with collective_limit.raised():
            self._finish(metrics or {})

    def _finish(self, metrics: Mapping[str, float]) -> None:
        self._say_if_schedules_are_apart()
        if not self._is_saved() and self._agreed(self.rank > 0 or self._may_save(last=True)):
            self._save(last=True)
        self._sharded.wait()
        self._before_end()
        if self.rank == 0:
            self._sharded.remove_old()
            done({**self._costs(), **metrics}, self.samples)
        self._broadcast([0, 0])

    def _costs(self) -> dict[str, float]:
        """What checkpoints have cost, shown with the job."""
        return self._sharded.costs()

    def _go_on(self, state: PlainTrainingState) -> None:
        """Continue from the newest checkpoint, if there is one."""
        path = self._agreed(self._sharded.newest())
        if path is None:
            return
        began = time.monotonic()
        plain = self._sharded.load_plain(path)
        self._load_shards(path, plain)
        self._restore_plain(plain, state)
        if self.rank == 0:
            say_where(state.samples, time.monotonic() - began)

    def _restore_plain(self, plain: Mapping[str, Any], state: PlainTrainingState) -> None:
        state.samples = plain["samples"]
        state.ramp = RateRamp(*plain["ramp"])
        state.random_states = plain["random_states"]
        self._extra_on_disk = plain["extra"]

    def _agreed(self, own: _T) -> _T:
        """Rank 0's choice: a file system may show the newest folder to one worker earlier than to another."""
        choice = [own]
        if self.workers > 1:
            dist.broadcast_object_list(choice)
        return choice[0]

    def _plain(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "samples": self.samples,
            "ramp": astuple(self._state.ramp),
            "random_states": states,
            "extra": self._state.extra.states(),
        }

    def _save(self, *, last: bool = False) -> None:
        states = self._gather(random_states())
        if self.rank == 0:
            self._sharded.remove_old()
        plain = (lambda: self._plain(states)) if self.rank == 0 else None
        self._sharded.save(self.samples, self._shards, plain, self._save_planner(), last=last)

    def _may_save(self, *, last: bool) -> bool:
        """At rank 0: whether there is time and room for a checkpoint."""
        return self._sharded.may_begin(self.samples, self._whole_bytes, last=last)

    def _whole_bytes(self) -> int:
        """Bytes of all parts together. One worker asks, so that it may wait for no other."""
        return tensor_bytes([self._plain_model.state_dict(), self.optimizer.state_dict()])

    def _decide(self) -> list[int]:
        flags, batches = super()._decide()
        if flags & SAVE and not flags & HAND_OVER and not self._may_save(last=bool(flags & STOP)):
            flags &= ~SAVE
        return [flags, batches]

    def _hands_over(self) -> bool:
        return False  # a way of dividing says so if it can

    def _is_saved(self) -> bool:
        return self._sharded.is_saved(self.samples)

    def _is_save_due(self, committing: bool) -> bool:
        return self._sharded.is_due(committing)

    def _stop(self, save: bool) -> None:
        """End the process, once all parts of the present state are on disk."""
        del save
        self._marker.create()
        self._sharded.wait()
        saved = self._is_saved()
        if self.rank == 0:
            self._sharded.remove_old()
        self._leave(saved=saved)

    def _leave(self, *, saved: bool) -> NoReturn:
        self._before_end()
        super()._leave(saved=saved)

    def _save_after_loss(self, error: RuntimeError) -> None:
        """If the launcher says that another worker is lost, end: its part went with it, the last checkpoint counts.

        Raises:
            Stopped: another worker is lost.
        """
        deadline = time.monotonic() + _LOSS_SECONDS
        while not should_stop():
            if time.monotonic() >= deadline:
                return
            time.sleep(_POLL_SECONDS)
        self._marker.create()
        print(f"malletrain: another worker is lost ({describe(error)[:200]})", file=sys.stderr)
        code = self._save_what_is_left()
        saved = max(samples_in(self._sharded.newest()), 0)
        print(f"malletrain: after the loss: {saved} samples are on disk", file=sys.stderr)
        self._marker.remove()
        self._before_end()
        raise Stopped(code)

    def _save_what_is_left(self) -> int:
        """After a loss, without communication: write what this worker has; the exit code of the process."""
        return 0
