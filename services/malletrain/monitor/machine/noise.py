"""What a training tells of its gradients, by training metrics of certain names. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from malletrain.model.goodput import (
    BATCH_PER_NODE_METRIC,
    MAX_BATCH,
    MAX_NOISE_SCALE,
    MIN_NOISE_SCALE,
    NOISE_SCALE_METRIC,
    GradientNoise,
)


@dataclass(frozen=True, slots=True)
class NoiseSeen:
    """What a message tells of a training's gradients (`malletrain.model.goodput.GradientNoise`). None: nothing new."""

    noise_scale: float | None = None
    batch_per_node: float | None = None

    def after(self, earlier: NoiseSeen) -> NoiseSeen:
        """What is known with this one, given what was known before."""
        return NoiseSeen(
            earlier.noise_scale if self.noise_scale is None else self.noise_scale,
            earlier.batch_per_node if self.batch_per_node is None else self.batch_per_node,
        )

    @property
    def noise(self) -> GradientNoise | None:
        """Both figures; None where one of them is not known."""
        if self.noise_scale is None or self.batch_per_node is None:
            return None
        return GradientNoise(self.noise_scale, self.batch_per_node)


NOTHING_SEEN = NoiseSeen()


def noise_among(metrics: Mapping[str, float]) -> NoiseSeen | None:
    """What training metrics tell of the gradients; None: nothing.

    Values that no gradients have are left out: a script may use these names for something else.

    Args:
        metrics: Newest value of each metric, by name.
    """
    noise_scale, per_node = metrics.get(NOISE_SCALE_METRIC), metrics.get(BATCH_PER_NODE_METRIC)
    if noise_scale is not None and not MIN_NOISE_SCALE <= noise_scale <= MAX_NOISE_SCALE:
        noise_scale = None
    if per_node is not None and not 0 <= per_node <= MAX_BATCH:
        per_node = None
    return None if noise_scale is None and per_node is None else NoiseSeen(noise_scale, per_node)
