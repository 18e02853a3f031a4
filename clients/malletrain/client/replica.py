"""What the workers of an elastic training do together between batches, independent of the communication library.

A model's state has the names that it has without `torch.compile`, so that either form reads the other's:
`torch.compile(module)` is a module of its own, which has the original as `_orig_mod`, and the names of weights say so.
"""

from __future__ import annotations

import abc
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import astuple
from typing import Any, NoReturn, Protocol

import torch

from malletrain.client import refresh, should_commit, should_stop
from malletrain.client.checkpoint_manager import CheckpointManager
from malletrain.client.extra_state import ExtraState, States
from malletrain.client.lr_scaling import LearningRates, RateRamp
from malletrain.client.sampling import WorkerSampler
from malletrain.client.saving_marker import SavingMarker
from malletrain.client.snapshots import random_states, restore_random_states

_COMPILED = "_orig_mod."


def plain_state(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """A state with the names of the plain model.

    Args:
        state: What `state_dict` returns, of a model that is compiled whole, in parts or not at all.
    """
    if not any(_COMPILED in name for name in state):
        return state
    return {_plain(name): value for name, value in state.items()}


def state_for(state: Mapping[str, Any], own: Mapping[str, Any]) -> Mapping[str, Any]:
    """A state with the names of a model, to be given to its `load_state_dict`.

    Args:
        state: The state of the same model, compiled or not.
        own: What the model's `state_dict` returns. A name that is not in it stays, so that the model can refuse it.
    """
    if state.keys() == own.keys():
        return state
    names = {_plain(name): name for name in own}
    return {names.get(_plain(name), name): value for name, value in state.items()}


def _plain(name: str) -> str:
    return name.replace(_COMPILED, "")


_SECONDS = 0.1
"""Time between two checks. Each costs a small broadcast."""
_MAX_BATCHES = 1000


class CheckInterval:
    """Counts batches until the next check. Rank 0 measures how many fit into the interval."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with a check after the next batch.

        Args:
            clock: Monotonic clock in seconds.
        """
        self._clock = clock
        self.restart()

    def restart(self) -> None:
        """Check after the next batch: the time of a batch is not known."""
        self._left = 1
        self._checked_at, self._batches = self._clock(), 0
        self._batch_seconds = _SECONDS

    def count(self) -> bool:
        """Count one batch; returns whether a check is due."""
        self._left -= 1
        return self.due

    @property
    def due(self) -> bool:
        """Whether so many batches have been counted that a check is due."""
        return self._left <= 0

    def measure(self) -> int:
        """Batches until the next check, from the time that batches took since the last one.

        Call it once per check, at rank 0.
        """
        now = self._clock()
        if self._batches:
            self._batch_seconds = (now - self._checked_at) / self._batches
        self._checked_at = now
        self._batches = max(1, min(_MAX_BATCHES, round(_SECONDS / max(self._batch_seconds, 1e-6))))
        return self._batches

    def set_batches(self, batches: int) -> None:
        """Set the number of batches until the next check; all workers have the same number."""
        self._left = batches


COMMIT, SAVE, STOP, HAND_OVER = 1, 2, 4, 16
"""What rank 0 decides that all workers do, as bits of one number."""


class Stopped(SystemExit):
    """The process has to end. Its code is 0 if the state is on disk or there are no checkpoints, else 1."""


class TrainingState(Protocol):
    """The state of a training besides model and optimizer.

    Attributes:
        samples: Samples processed so far by all workers together.
        ramp: How the learning rates follow the global batch.
        random_states: States of the random number generators by rank, until they are restored.
        extra: Objects that the user has registered.
    """

    samples: int
    ramp: RateRamp
    random_states: list[dict[str, Any]]
    extra: ExtraState


class Replica(abc.ABC):
    """One worker's copy of a training; all workers have the same state.

    Attributes:
        model: The model to call in training.
        optimizer: The optimizer. `step` calls it.
        checkpoints: Saves the state; `wait` returns once what was begun is on disk.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    _state: TrainingState

    def __init__(
        self,
        model: torch.nn.Module,
        sampler: WorkerSampler,
        rates: LearningRates,
        checkpoints: CheckpointManager,
        marker: SavingMarker,
        commit_seconds: float,
    ) -> None:
        """Combine the parts. It is usable after `_join`.

        Args:
            marker: Shows the supervisor that this process is saving.
            commit_seconds: Longest time between two commits.
        """
        self._plain_model = model
        self._sampler = sampler
        self._rates = rates
        self.checkpoints = checkpoints
        self._marker = marker
        self._commit_seconds = commit_seconds
        self._check_interval = CheckInterval()
        self._extra_on_disk: States = {}
        # Whether model, optimizer and sample counter are consistent. They are not during a step.
        self._consistent = True

    # -- what a backend implements ---------------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def rank(self) -> int:
        """This worker's rank."""

    @property
    @abc.abstractmethod
    def workers(self) -> int:
        """Number of workers at the present scale."""

    @abc.abstractmethod
    def _join(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> TrainingState:
        """Set `model` and `optimizer` for training with the other workers, and load the newest checkpoint."""

    @abc.abstractmethod
    def _run(self, train: Callable[[], None]) -> None:
        """Call `_begin` and the training function, and again after each rescale that this process survives."""

    @abc.abstractmethod
    def _broadcast(self, values: list[int]) -> list[int]:
        """Return rank 0's two integers at every rank."""

    @abc.abstractmethod
    def _gather(self, states: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the states of all ranks, by rank, at rank 0; anything at other ranks."""

    @abc.abstractmethod
    def _set_passes(self, passes: int) -> None:
        """Set the number of backward passes in a step."""

    @abc.abstractmethod
    def _commit_in_memory(self) -> None:
        """Keep the state in memory for a rollback, if the backend has rollbacks."""

    def _commit_requested(self) -> tuple[bool, bool]:
        """At rank 0: whether a commit is requested, and whether it has to be saved on disk."""
        return should_commit(every=None), False

    @abc.abstractmethod
    def _committed(self) -> None:
        """Called when all workers have committed the same state: a rescale may interrupt here."""

    @property
    def samples(self) -> int:
        """Samples processed so far by all workers together, net of rollbacks."""
        return int(self._state.samples)

    @property
    def global_batch(self) -> int:
        """Samples of one step at the present scale."""
        return self._sampler.partition.global_batch

    @property
    def micro_steps(self) -> int:
        """Passes of a worker in one step: 1 unless the global batch is kept constant."""
        return self._sampler.partition.micro_steps

    def _begin(self) -> None:
        """Set passes and learning rates for the present scale. All workers, new ones too, have the same state here."""
        self._set_scale()
        self._set_passes(self.micro_steps)
        self._state.ramp = self._rates.ramp_to(self._state.ramp, self.global_batch, self.samples)
        self._rates.apply(self.optimizer.param_groups, self._state.ramp.factor(self.samples), force=True)
        if self.rank < len(self._state.random_states):
            restore_random_states(self._state.random_states[self.rank])
        self._state.random_states = []
        self._check_interval.restart()
        self._commit()

    def _set_scale(self) -> None:
        refresh()
        self._sampler.set_scale(*self._batch_part)

    @property
    def _batch_part(self) -> tuple[int, int]:
        """Which part of each global batch this worker trains with, and into how many it is divided."""
        return self.rank, self.workers

    def _check(self) -> None:
        """Rank 0 decides what to do, and all workers do it at the same batch."""
        flags, batches = self._broadcast(self._decide() if self.rank == 0 else [0, 0])
        self._check_interval.set_batches(batches)
        self._act(flags)

    def _act(self, flags: int) -> None:
        """Do what rank 0 has decided."""
        if flags & HAND_OVER and self._hand_over():
            self._leave(saved=True)
        if flags & SAVE:
            self._save(last=bool(flags & STOP))
        if flags & STOP:
            self._stop(save=self.rank == 0)
        if flags & COMMIT:
            self._commit()
            self._committed()

    def _save(self, *, last: bool = False) -> None:
        """Save the state; all workers call it at the same batch.

        Args:
            last: Nothing is trained after it.
        """
        states = self._gather(random_states())
        if self.rank == 0:
            self.checkpoints.save(self.samples, lambda: self._content(states), last=last)

    def _is_saved(self) -> bool:
        """Whether the present state is on disk, or there are no checkpoints."""
        return self.checkpoints.is_saved(self.samples)

    def _is_save_due(self, committing: bool) -> bool:
        """Whether to save now."""
        return self.checkpoints.is_due(committing)

    def _decide(self) -> list[int]:
        batches = self._check_interval.measure()
        if should_stop():
            self._marker.create()
            if self._is_saved():
                return [STOP, batches]
            return [STOP | SAVE | (HAND_OVER if self._hands_over() else 0), batches]
        requested, on_disk = self._commit_requested()
        commit = requested or time.monotonic() - self._committed_at >= self._commit_seconds
        save = on_disk or self._is_save_due(committing=commit)
        return [(COMMIT if commit else 0) | (SAVE if save else 0), batches]

    def _stop(self, save: bool) -> None:
        """End the process.

        Args:
            save: Whether this worker saves the state first.

        Raises:
            Stopped: always.
        """
        saved = not save or self.checkpoints.save_and_wait(self.samples, lambda: self._content([random_states()]))
        self._leave(saved=saved)

    def _leave(self, *, saved: bool) -> NoReturn:
        """End the process.

        Args:
            saved: Whether the state is safe, so that the next workers go on from it.

        Raises:
            Stopped: always.
        """
        self._marker.remove()
        print(f"malletrain: stopping at {self.samples} samples", file=sys.stderr)
        raise Stopped(0 if saved else 1)

    def _hands_over(self) -> bool:
        """At rank 0: whether the state had better be left in memory to the next workers."""
        return False

    def _hand_over(self) -> bool:
        """Leave the state in memory; whether that has been done. All workers call it, and get the same answer."""
        return False

    def _commit(self) -> None:
        self._commit_in_memory()
        self._committed_at = time.monotonic()

    def _content(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "model": plain_state(self._plain_model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "samples": self.samples,
            "ramp": astuple(self._state.ramp),
            "random_states": states,
            "extra": self._state.extra.states(),
        }

    def _restore(self, content: Mapping[str, Any], state: TrainingState, *, on_disk: bool = True) -> None:
        """Continue from a checkpoint, or from what was handed over in memory and is not on disk yet."""
        self._plain_model.load_state_dict(state_for(content["model"], self._plain_model.state_dict()))
        self.optimizer.load_state_dict(content["optimizer"])
        state.samples = content["samples"]
        state.ramp = RateRamp(*content["ramp"]) if "ramp" in content else RateRamp()
        # Early checkpoints have only rank 0's "torch_rng".
        state.random_states = content.get("random_states") or [{"torch": content["torch_rng"]}]
        self._extra_on_disk = content.get("extra", {})
        state.extra.load(self._extra_on_disk)
        if on_disk:
            self.checkpoints.resumed(state.samples)
        else:
            self.checkpoints.hasten()
        print(f"malletrain: resumed at {state.samples} samples", file=sys.stderr)
