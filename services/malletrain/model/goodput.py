"""Goodput: throughput times statistical efficiency, after AdaptDL (Qiao et al., "Pollux", OSDI 2021, section 3). Pure.

A larger batch makes more samples per second, and learns less from each: its gradient is less noisy than the progress of
a step can use. How much less is said by the *gradient noise scale* phi (McCandlish et al., "An Empirical Model of
Large-Batch Training", arXiv:1812.06162): the batch, in samples, at which noise and gradient are equally large.

    goodput(n) = throughput(n) * efficiency(M(n))
    efficiency(M) = (phi + M0) / (phi + M)

M(n) is the batch on n nodes and M0 the one to which it is compared, both in samples. Where the batch grows with the
nodes, M(n) = n * (samples of a node). Where it does not, every scale learns as much from a sample: the efficiency is 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MAX_BATCH = 2.0**40
"""Of a batch that is declared or reported, in samples."""
MIN_NOISE_SCALE, MAX_NOISE_SCALE = 1e-9, 1e15
"""Of noise scales that are declared or reported, in samples."""
NOISE_SCALE_METRIC = "gradient_noise_scale"
BATCH_PER_NODE_METRIC = "batch_per_node"
"""Names of the training metrics by which the client tells both."""


def efficiency(noise_scale: float, initial_batch: float, batch: float) -> float:
    """How much is learned from a sample of a batch, relative to one of the initial batch: above 0 and at most 1.

    (phi + M0) / (phi + M), and 1 for batches that are smaller than the initial one: Pollux uses none of these.

    Args:
        noise_scale: phi in samples, at least 0; infinity: all samples teach as much.
        initial_batch: M0 in samples, above 0.
        batch: M in samples, at least 0.
    """
    if math.isinf(noise_scale):
        return 1.0
    return (noise_scale + initial_batch) / (noise_scale + max(initial_batch, batch))


@dataclass(frozen=True, slots=True)
class GradientNoise:
    """What a training tells of its gradients.

    Attributes:
        noise_scale: phi in samples, above 0.
        batch_per_node: Samples that each node adds to the batch; 0: the batch is the same at every scale.
    """

    noise_scale: float
    batch_per_node: float


@dataclass(frozen=True, slots=True)
class StatisticalEfficiency:
    """The efficiency of each scale of a job.

    Attributes:
        noise_scale: phi in samples, above 0.
        batch_per_node: Samples that each node adds to the batch, above 0.
        initial_batch: M0 in samples, above 0.
    """

    noise_scale: float
    batch_per_node: float
    initial_batch: float

    def at(self, nodes: int) -> float:
        """On so many nodes, above 0 and at most 1."""
        return efficiency(self.noise_scale, self.initial_batch, nodes * self.batch_per_node)


@dataclass(frozen=True, slots=True)
class GoodputTerms:
    """What a user declares with the value `goodput`. 0 stands for what is not declared.

    Attributes:
        initial_batch: M0 in samples; 0: the batch on the job's least scale.
        batch_per_node: Samples that each node adds to the batch; 0: as the training tells.
        noise_scale: phi in samples until the training tells it; 0: until then speeds count for themselves.
    """

    initial_batch: float = 0.0
    batch_per_node: float = 0.0
    noise_scale: float = 0.0

    def efficiency(self, told: GradientNoise | None, min_nodes: int) -> StatisticalEfficiency | None:
        """The efficiency of the job's scales; None: it is 1 at all of them, or not known.

        What is declared of the batch counts, whatever the training tells. Of the noise scale what it tells counts.

        Args:
            told: What the training tells; None: nothing yet.
            min_nodes: The job's least scale in nodes.
        """
        noise_scale = told.noise_scale if told is not None else self.noise_scale
        per_node = self.batch_per_node or (told.batch_per_node if told is not None else 0.0)
        if not (noise_scale and per_node):
            return None
        initial = self.initial_batch or min(MAX_BATCH, min_nodes * per_node)
        return StatisticalEfficiency(noise_scale, per_node, initial)
