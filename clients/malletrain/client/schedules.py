"""Schedules of the learning rate that follow the sample counter, whatever the number of workers.

A step of a scheduler stands for a number of samples, its batch. Where the global batch is another one, the scheduler is
stepped more rarely or several times, so that a schedule of a fixed length ends with the sample for which it was made.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

_PROBES = tuple(2**power for power in range(25))
"""Steps at which functions of two starts are compared."""
_SAME = 0.02
"""Relative difference of rates up to which functions count as the same: lengths are rounded to whole steps."""


def is_schedule(thing: object) -> bool:
    """Whether an object is a scheduler whose steps can stand for samples; one that follows a metric is not."""
    return isinstance(thing, LRScheduler) and not isinstance(thing, ReduceLROnPlateau)


class SampleSchedule:
    """Steps a scheduler by samples.

    Its own state, beside that of the scheduler, says what a step stands for and what is left of it.

    Attributes:
        scheduler: The scheduler.
        batch: Samples of one of its steps.
        say: Tells a person something.
        rates_by_step: The rates of the scheduler's functions at some steps; empty where it has none.
    """

    def __init__(self, scheduler: LRScheduler, batch: int, say: Callable[[str], None] | None = None) -> None:
        """Take a scheduler as it was made.

        Args:
            scheduler: The scheduler.
            batch: Samples of one of its steps.
            say: Called with what a person should know; by default it is printed on stderr.
        """
        self.scheduler = scheduler
        self.batch = batch
        self._pending = 0
        self._beyond = 0
        self.say = say or _print
        self.rates_by_step = _rates_by_step(scheduler)

    def step(self, global_batch: int) -> None:
        """Count a batch, and make the steps that are due.

        Args:
            global_batch: Its samples.
        """
        self._pending += global_batch
        while self._pending >= self.batch:
            self._pending -= self.batch
            if self._is_over():
                self._beyond += 1
            else:
                self.scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """What a step stands for, the samples since the last one, and the rates by which a later start knows it."""
        return {"batch": self.batch, "pending": self._pending, "beyond": self._beyond, "rates": self.rates_by_step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.batch, self._pending, self._beyond = state["batch"], state["pending"], state["beyond"]
        self.rates_by_step = state["rates"]

    def go_on(self, made: Sequence[Sequence[float]], global_batch: int) -> None:
        """After a checkpoint: follow functions that the script has made anew, perhaps for the present scale.

        Functions are in no checkpoint. One whose length is a number of steps at the present scale is stepped so.

        Args:
            made: What the functions of this start are, as `rates_by_step` gives it.
            global_batch: Samples of a batch at the present scale.
        """
        if not made or alike(made, self.rates_by_step):
            return
        stretched = _rates_by_step(self.scheduler, self.batch / global_batch)
        if alike(stretched, self.rates_by_step):
            samples = self.scheduler.last_epoch * self.batch + self._pending
            self.scheduler.last_epoch, self._pending = divmod(samples, global_batch)
            self.batch, self.rates_by_step = global_batch, [list(one) for one in made]
            return
        self.say(
            "the function of the learning rate is another one than at the start before: make it with"
            " total steps = total samples // training.schedule_batch, which is the same at every scale"
        )

    @property
    def total_steps(self) -> int | None:
        """Number of steps after which the scheduler refuses another one; None where it never does."""
        total = getattr(self.scheduler, "total_steps", None)
        return total if isinstance(total, int) else None

    def in_words(self) -> str:
        """What a step stands for."""
        total = self.total_steps
        end = "" if total is None else f", so that its {total} steps end at {total * self.batch} samples"
        return f"a step of {type(self.scheduler).__name__} stands for {self.batch} samples at every scale{end}"

    def say_if_apart(self, samples: int) -> None:
        """At the end of a training: say if the schedule was much longer or shorter than that.

        Args:
            samples: Samples of the training.
        """
        total, steps = self.total_steps, self.scheduler.last_epoch + self._beyond
        if total is not None and abs(total - steps) > max(1, 0.05 * total):
            self.say(
                f"the schedule has {total} steps of {self.batch} samples, but the training took {samples} samples:"
                " make it with total steps = total samples // training.schedule_batch"
            )

    def _is_over(self) -> bool:
        total = self.total_steps
        return total is not None and self.scheduler.last_epoch >= total


def alike(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> bool:
    """Whether functions have the same rates at the same steps, but for the rounding of lengths."""
    if len(one) != len(other):
        return False
    return all(_alike(mine, theirs) for mine, theirs in zip(one, other, strict=True))


def _alike(one: Sequence[float], other: Sequence[float]) -> bool:
    # At other scales a function may be meant for one probe more or fewer.
    pairs = list(zip(one, other, strict=False))
    largest = max((abs(rate) for pair in pairs for rate in pair), default=0.0)
    return abs(len(one) - len(other)) < len(_PROBES) // 2 and all(abs(a - b) <= _SAME * largest for a, b in pairs)


def move_to(scheduler: LRScheduler, optimizer: torch.optim.Optimizer) -> None:
    """Have a scheduler that was made for the script's plain optimizer set the rates of the one that steps.

    Horovod's has the same weights, and from a new start on parameter groups of its own: workers that joined had other
    rates than those that were there.

    Args:
        scheduler: The scheduler.
        optimizer: The optimizer that steps.
    """
    made_for = scheduler.optimizer
    if made_for is optimizer or made_for.param_groups[0]["params"][0] is not optimizer.param_groups[0]["params"][0]:
        return
    for plain, group in zip(made_for.param_groups, optimizer.param_groups, strict=True):
        for name, value in plain.items():
            group.setdefault(name, value)  # such as the first rate, which the scheduler has put there
    scheduler.optimizer = optimizer


def _rates_by_step(scheduler: LRScheduler, stretch: float = 1.0) -> list[list[float]]:
    """Factors of a scheduler's functions at some steps, each of `stretch` steps; empty where it has none."""
    if not isinstance(scheduler, LambdaLR):
        return []
    return [_rates_of(function, stretch) for function in scheduler.lr_lambdas]


def _rates_of(function: Callable[[int], float], stretch: float) -> list[float]:
    """Factors up to the first step for which the function was not meant."""
    rates: list[float] = []
    for at in _PROBES:
        try:
            rate = float(function(round(at * stretch)))
        except Exception:  # noqa: BLE001  # it may raise anything
            break
        if not math.isfinite(rate):
            break
        rates.append(rate)
    return rates


def _print(text: str) -> None:
    print(f"malletrain: {text}", file=sys.stderr)
