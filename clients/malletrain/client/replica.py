"""What the workers of an elastic training do together between batches, whoever carries their words."""

from __future__ import annotations

import abc
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import astuple
from typing import Any, Protocol

import torch

from malletrain.client import refresh, should_commit, should_stop
from malletrain.client.durable import DurableTraining
from malletrain.client.learning_rate import Ramp
from malletrain.client.pace import Pace
from malletrain.client.rates import Rates
from malletrain.client.registered import Registered, States
from malletrain.client.saving_sign import SavingSign
from malletrain.client.shares import Shares
from malletrain.client.snapshots import random_states, restore_random_states

_COMMIT, _SAVE, _STOP = 1, 2, 4


class Stopped(SystemExit):
    """The job is to stop. Its code is 0 if its state is on disk (or has nowhere to go)."""


class State(Protocol):
    """What a checkpoint has besides model and optimizer.

    Attributes:
        samples: Samples processed so far by all workers together.
        ramp: How the learning rates come to fit the scale.
        random_states: States of the random number generators by rank, until they are restored.
        registered: Objects of the user's.
    """

    samples: int
    ramp: Ramp
    random_states: list[dict[str, Any]]
    registered: Registered


class Replica(abc.ABC):
    """One of the identical copies of a training, at one worker.

    Attributes:
        model: What to call forward on in training.
        optimizer: The optimizer; `step` calls it.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    _state: State

    def __init__(
        self,
        model: torch.nn.Module,
        shares: Shares,
        rates: Rates,
        durable: DurableTraining,
        sign: SavingSign,
        commit_seconds: float,
    ) -> None:
        """Put its parts together. It is of use once a backend has joined it with the others."""
        self._plain = model
        self._shares = shares
        self._rates = rates
        self._durable = durable
        self._sign = sign
        self._commit_seconds = commit_seconds
        self._pace = Pace()
        self._extra_on_disk: States = {}
        # Whether model, optimizer and counter belong together: not within a step.
        self._whole = True

    # -- what a backend supplies -----------------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def rank(self) -> int:
        """This worker's rank."""

    @property
    @abc.abstractmethod
    def workers(self) -> int:
        """Number of workers at the present scale."""

    @abc.abstractmethod
    def _join(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> State:
        """Set `model` and `optimizer` up among the workers, with the state of the newest checkpoint."""

    @abc.abstractmethod
    def _run(self, train: Callable[[], None]) -> None:
        """Call `_begin` and the training function, again after each rescale that this process lives through."""

    @abc.abstractmethod
    def _agree(self, word: list[int]) -> list[int]:
        """Rank 0's two numbers, at every rank."""

    @abc.abstractmethod
    def _gather(self, states: dict[str, Any]) -> list[dict[str, Any]]:
        """What all ranks give, by rank, at rank 0; anything elsewhere."""

    @abc.abstractmethod
    def _set_passes(self, passes: int) -> None:
        """From now on a step has so many backward passes."""

    @abc.abstractmethod
    def _commit_in_memory(self) -> None:
        """Keep the state for a rollback, where there is one."""

    def _asked_to_commit(self) -> tuple[bool, bool]:
        """At rank 0: whether a commit is asked for, and whether it has to be on disk."""
        return should_commit(), False

    @abc.abstractmethod
    def _committed(self) -> None:
        """All workers have the same committed state here: a rescale may interrupt."""

    @property
    def samples(self) -> int:
        """Samples processed so far by all workers together, net of rollbacks."""
        return int(self._state.samples)

    @property
    def global_batch(self) -> int:
        """Samples of one step at the present scale."""
        return self._shares.division.global_batch

    @property
    def micro_steps(self) -> int:
        """Passes of a worker in one step: 1 unless the batch is held."""
        return self._shares.division.micro_steps

    def _begin(self) -> None:
        """Fit passes and rates to the present scale. All workers have the same state here, newcomers too."""
        self._move()
        self._set_passes(self.micro_steps)
        self._state.ramp = self._rates.towards(self._state.ramp, self.global_batch, self.samples)
        self._rates.set(self.optimizer.param_groups, self._state.ramp.factor(self.samples), anew=True)
        if self.rank < len(self._state.random_states):
            restore_random_states(self._state.random_states[self.rank])
        self._state.random_states = []
        self._pace.restart()
        self._commit()

    def _move(self) -> None:
        refresh()
        self._shares.move(self.rank, self.workers)

    def _check(self) -> None:
        """Rank 0 decides; all act on it at the same batch."""
        flags, batches = self._agree(self._decide() if self.rank == 0 else [0, 0])
        self._pace.wait_for(batches)
        if flags & _SAVE:
            states = self._gather(random_states())
            if self.rank == 0:
                self._durable.save(self.samples, lambda: self._content(states))
        if flags & _STOP:
            self._stop(save=self.rank == 0)
        if flags & _COMMIT:
            self._commit()
            self._committed()

    def _decide(self) -> list[int]:
        batches = self._pace.measured()
        if should_stop():
            self._sign.show()
            return [_STOP if self._durable.holds(self.samples) else _STOP | _SAVE, batches]
        asked, on_disk = self._asked_to_commit()
        commit = asked or time.monotonic() - self._committed_at >= self._commit_seconds
        save = on_disk or self._durable.is_due(committing=commit)
        return [(_COMMIT if commit else 0) | (_SAVE if save else 0), batches]

    def _stop(self, save: bool) -> None:
        """Leave; the one that saves has the state on disk then.

        Raises:
            Stopped: always.
        """
        saved = not save or self._durable.secure(self.samples, lambda: self._content([random_states()]))
        self._sign.remove()
        print(f"malletrain: stopping at {self.samples} samples", file=sys.stderr)
        raise Stopped(0 if saved else 1)

    def _commit(self) -> None:
        self._commit_in_memory()
        self._committed_at = time.monotonic()

    def _content(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "model": self._plain.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "samples": self.samples,
            "ramp": astuple(self._state.ramp),
            "random_states": states,
            "extra": self._state.registered.states(),
        }

    def _take(self, content: Mapping[str, Any], state: State) -> None:
        """Go on from a checkpoint."""
        self._plain.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])
        state.samples = content["samples"]
        state.ramp = Ramp(*content["ramp"]) if "ramp" in content else Ramp()
        # Checkpoints of version 0.1 have rank 0's "torch_rng" alone.
        state.random_states = content.get("random_states") or [{"torch": content["torch_rng"]}]
        self._extra_on_disk = content.get("extra", {})
        state.registered.load(self._extra_on_disk)
        self._durable.resumed(state.samples)
        print(f"malletrain: resumed at {state.samples} samples", file=sys.stderr)
