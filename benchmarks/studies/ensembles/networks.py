"""The ensemble: small CNNs whose accelerators are emulated, and the file that submits them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from malletrain.fleet.problem import EnsembleModel, FleetProblem, RateTolerance

NODES, GPUS_PER_NODE = 2, 2
GPUS = NODES * GPUS_PER_NODE
SIZE = 384
"""Samples of an epoch: a multiple of what TensorSocket sends at a time (8 batches), which drops the rest."""
BATCH = 16
"""Samples of a step, on all GPUs of a member together: all ways of training it then make the same steps."""
KEPT = SIZE // 2
"""Samples that a feed keeps. The default, 2,048, is little of an epoch of most data sets, and five of this one."""
SIDE = 160
"""Of the pictures before they are cropped, in pixels: some 4 ms of CPU for each."""
SCARCE_MEMBERS, SCARCE_SIDE = 4, 320
"""Where preparing is the bottleneck: the first members, one on each GPU, and pictures that cost four times as much."""
FEED = "benchmarks.feeding.pictures:costly"
TRAINER = Path(__file__).with_name("trainer.py")


@dataclass(frozen=True)
class Network:
    """A member.

    Attributes:
        name: Its name.
        width: Channels of its layers.
        depth: Number of its layers.
        epochs: It has converged after so many.
        step_seconds: How long a step takes on one GPU.
    """

    name: str
    width: int
    depth: int
    epochs: int
    step_seconds: float

    @property
    def rates(self) -> tuple[float, ...]:
        """Samples per second on 1, 2… GPUs."""
        return tuple(BATCH / accelerator_seconds(self.step_seconds, -(-BATCH // gpus), gpus) for gpus in _COUNTS)

    @property
    def command(self) -> list[str]:
        """What a worker runs."""
        words = {"width": self.width, "depth": self.depth, "epochs": self.epochs, "step-seconds": self.step_seconds}
        return ["python", str(TRAINER), *(word for name, value in words.items() for word in (f"--{name}", str(value)))]


_COUNTS = range(1, GPUS + 1)
_FIXED_SECONDS = 0.02
_EXCHANGE_SECONDS = 0.01
NETWORKS = (
    Network("small", 8, 2, 5, 0.145),
    Network("medium", 12, 2, 6, 0.15),
    Network("wide", 20, 2, 4, 0.16),
    Network("deep", 12, 3, 3, 0.29),
    Network("large", 24, 3, 3, 0.31),
    Network("narrow", 6, 3, 4, 0.155),
)


def accelerator_seconds(step_seconds: float, share: int, gpus: int) -> float:
    """How long the emulated accelerator takes for a worker's share of a step.

    Args:
        step_seconds: Of a step on one GPU.
        share: Samples that this worker has.
        gpus: Workers of the member.
    """
    exchange = _EXCHANGE_SECONDS if gpus > 1 else 0.0
    return _FIXED_SECONDS + (step_seconds - _FIXED_SECONDS) * share / BATCH + exchange


def problem(networks: tuple[Network, ...], preprocess_rate: float) -> FleetProblem:
    """The ensemble as planners see it, with declared rates."""
    return FleetProblem(
        models=tuple(EnsembleModel(one.name, one.rates, one.epochs) for one in networks),
        gpus=GPUS,
        gpus_per_node=GPUS_PER_NODE,
        samples_per_epoch=SIZE,
        tolerance=RateTolerance(share=0.11),
        preprocess_rate=preprocess_rate,
    )


def ensemble_file(
    networks: tuple[Network, ...], planner: str, preprocess_rate: float, environment: dict[str, str]
) -> str:
    """The file for `malletrain fleet submit`.

    Args:
        networks: The members.
        planner: Who divides the GPUs.
        preprocess_rate: Samples per second that all CPUs together prepare.
        environment: Variables of the workers.
    """
    lines = ["[fleet]", 'name = "ensemble"', f'planner = "{planner}"', f"max_nodes = {NODES}"]
    lines += [f"gpus_per_node = {GPUS_PER_NODE}", f"samples_per_epoch = {SIZE}", f"preprocess_rate = {preprocess_rate}"]
    lines += ['backend = "torchrun"', f'feed = "{FEED}"', "[fleet.environment]"]
    lines += [f'{name} = "{value}"' for name, value in environment.items()]
    for one in networks:
        lines += ["[[model]]", f'name = "{one.name}"', f"command = {one.command}", f"max_epochs = {one.epochs}"]
        lines += [f"rates = {[round(rate, 2) for rate in one.rates]}"]
    return "\n".join(lines) + "\n"
