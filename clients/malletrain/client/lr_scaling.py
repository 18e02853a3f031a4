"""Learning rates when the number of workers, and with it the global batch, changes.

Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour" (2017, arXiv:1706.02677): with a k times
larger global batch, use a k times larger learning rate (section 2.1), and reach it gradually (section 2.2). That is for
SGD. With Adam and RMSprop, the square root of k keeps the course of the training (Malladi et al., "On the SDEs and
Scaling Rules for Adaptive Gradient Algorithms", 2022, arXiv:2205.10287). The alternative is to keep the global batch
constant by gradient accumulation; then no rate changes (`malletrain.client.sampling`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

ScalingRule = Literal["linear", "sqrt"]
ScalingRuleChoice = Literal["auto", "linear", "sqrt"]
_ADAPTIVE = frozenset(("Adagrad", "Adadelta", "Adafactor", "RMSprop"))


def scaling_rule(optimizer: torch.optim.Optimizer, choice: ScalingRuleChoice) -> ScalingRule:
    """The rule for an optimizer; "auto" is "sqrt" for those that divide by the size of gradients, as Adam does.

    They are known by the names of their classes and of those above, so that those of other libraries are, too.
    """
    if choice != "auto":
        return choice
    names = [kind.__name__ for kind in type(optimizer).__mro__]
    return "sqrt" if any(name in _ADAPTIVE or "Adam" in name for name in names) else "linear"


def scaled_rate(reference_rate: float, reference_batch: int, batch: int, rule: ScalingRule = "linear") -> float:
    """The learning rate for a global batch.

    Args:
        reference_rate: The learning rate for the reference batch.
        reference_batch: Global batch in samples, at least 1.
        batch: The present global batch in samples, at least 1.
        rule: "linear": proportional to the batch. "sqrt": proportional to its square root.

    Raises:
        ValueError: an argument is out of its range.
    """
    if reference_batch < 1:
        raise ValueError(f"reference_batch: expected at least 1 sample, got {reference_batch}")
    if batch < 1:
        raise ValueError(f"batch: expected at least 1 sample, got {batch}")
    if rule == "linear":
        return reference_rate * batch / reference_batch
    if rule == "sqrt":
        return reference_rate * math.sqrt(batch / reference_batch)
    raise ValueError(f"rule: expected 'linear' or 'sqrt', got {rule!r}")


@dataclass(frozen=True, slots=True)
class RateRamp:
    """A factor for the learning rates as a function of the sample counter: a linear ramp, then constant.

    Attributes:
        since: Sample counter at which the ramp begins.
        length: Length of the ramp in samples; 0: the factor changes at once.
        start: Factor at the beginning of the ramp.
        end: Factor at its end and after it.
    """

    since: int = 0
    length: int = 0
    start: float = 1.0
    end: float = 1.0

    def factor(self, samples: int) -> float:
        """The factor at a sample counter."""
        if samples >= self.since + self.length:
            return self.end
        return self.start + (self.end - self.start) * max(0, samples - self.since) / self.length

    def towards(self, factor: float, samples: int, warmup_samples: int) -> RateRamp:
        """The ramp after a rescale: up gradually from the present factor, down at once; unchanged if nothing changes.

        Args:
            factor: The factor for the new global batch.
            samples: Sample counter at the rescale.
            warmup_samples: Length of an upward ramp in samples.
        """
        if factor == self.end and samples >= self.since:
            return self
        return RateRamp(samples, warmup_samples, min(self.factor(samples), factor), factor)


class LearningRates:
    """Scales an optimizer's learning rates with the global batch.

    Between rescales they belong to the user. Where a scheduler sets them (`leave_to_schedule`), they are scaled during
    the optimizer's steps only: a scheduler may compute them from the rates before, or from its own counter.
    """

    def __init__(
        self, groups: list[dict[str, Any]], reference_batch: int | None, rule: ScalingRule, warmup_samples: int
    ) -> None:
        """Take the present rates as those for the reference batch.

        Args:
            groups: The optimizer's parameter groups.
            reference_batch: Global batch in samples that the present rates fit; None: the rates are never changed.
            rule: How the rates follow the global batch.
            warmup_samples: Length of an upward ramp in samples.
        """
        self._reference_rates = [group["lr"] for group in groups]
        self._reference_batch = reference_batch
        self._rule = rule
        self._warmup_samples = warmup_samples
        self._factor = 0.0
        self._scheduled = False

    def leave_to_schedule(self) -> None:
        """From now on a scheduler sets the rates: those for the reference batch."""
        self._scheduled = True

    @contextlib.contextmanager
    def scaled(self, groups: list[dict[str, Any]]) -> Iterator[None]:
        """Scale rates that a scheduler sets, for the time of a step.

        Args:
            groups: The optimizer's parameter groups.
        """
        if not self._scheduled or self._reference_batch is None:
            yield
            return
        plain = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] = group["lr"] * self._factor
        try:
            yield
        finally:
            for group, rate in zip(groups, plain, strict=True):
                group["lr"] = rate

    def ramp_to(self, ramp: RateRamp, global_batch: int, samples: int) -> RateRamp:
        """The ramp after a rescale.

        Args:
            ramp: The ramp before.
            global_batch: The new global batch in samples.
            samples: Sample counter at the rescale.
        """
        if self._reference_batch is None:
            return ramp
        factor = scaled_rate(1.0, self._reference_batch, global_batch, self._rule)
        return ramp.towards(factor, samples, self._warmup_samples)

    def apply(self, groups: list[dict[str, Any]], factor: float, force: bool = False) -> None:
        """Set the rates if the factor has changed.

        Args:
            groups: The optimizer's parameter groups.
            factor: What the reference rates are multiplied by.
            force: Set them even if it has not.
        """
        if self._reference_batch is None or not (force or factor != self._factor):
            return
        self._factor = factor
        if self._scheduled:
            return
        for group, rate in zip(groups, self._reference_rates, strict=True):
            group["lr"] = rate * factor


class SteppedRates(LearningRates):
    """Scales the learning rates during the optimizer's steps only.

    Between steps the groups have the unscaled rates, so that any scheduler may set them, whether it computes them from
    the number of steps or from the rates before.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, reference_batch: int | None, rule: ScalingRule, warmup_samples: int
    ) -> None:
        """Register hooks of the optimizer; for the other arguments see `LearningRates`."""
        super().__init__(optimizer.param_groups, reference_batch, rule, warmup_samples)
        self._optimizer = optimizer
        self._unscaled: list[Any] = []
        if reference_batch is not None:
            optimizer.register_step_pre_hook(lambda *_: self._scale())
            optimizer.register_step_post_hook(lambda *_: self.unscale())

    def apply(self, groups: list[dict[str, Any]], factor: float, force: bool = False) -> None:
        """Set what the rates are multiplied by in the next steps."""
        del groups, force
        self._factor = factor

    def unscale(self) -> None:
        """Put the unscaled rates back, also after a step that has failed."""
        for group, rate in zip(self._optimizer.param_groups, self._unscaled, strict=False):
            group["lr"] = rate
        self._unscaled = []

    def _scale(self) -> None:
        self._unscaled = [group["lr"] for group in self._optimizer.param_groups]
        for group in self._optimizer.param_groups:
            group["lr"] = group["lr"] * self._factor
