"""The learning rates of an optimizer while the global batch changes."""

from __future__ import annotations

from typing import Any

from malletrain.client.learning_rate import Ramp, Rule, scaled_rate


class Rates:
    """Multiplies an optimizer's own rates by what fits the global batch. Between rescales they are the user's."""

    def __init__(self, groups: list[dict[str, Any]], reference_batch: int | None, rule: Rule, warmup: int) -> None:
        """Take the present rates as those that fit the reference batch.

        Args:
            groups: The optimizer's parameter groups.
            reference_batch: Global batch in samples that they fit; None leaves them alone.
            rule: How they follow the global batch.
            warmup: Samples over which they rise.
        """
        self._own = [group["lr"] for group in groups]
        self._reference = reference_batch
        self._rule = rule
        self._warmup = warmup
        self._factor = 0.0

    def towards(self, ramp: Ramp, global_batch: int, samples: int) -> Ramp:
        """The ramp after a rescale to a global batch, at a sample counter."""
        if self._reference is None:
            return ramp
        return ramp.towards(scaled_rate(1.0, self._reference, global_batch, self._rule), samples, self._warmup)

    def set(self, groups: list[dict[str, Any]], factor: float, anew: bool = False) -> None:
        """Set the rates if the factor has changed.

        Args:
            groups: The optimizer's parameter groups.
            factor: What to multiply by.
            anew: Set them in any case.
        """
        if self._reference is None or not (anew or factor != self._factor):
            return
        self._factor = factor
        for group, rate in zip(groups, self._own, strict=True):
            group["lr"] = rate * factor
