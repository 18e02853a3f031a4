"""Real trainings under several systems: the file that `benchmarks/studies/nas.py` writes, and its exhibit."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, TypeAdapter
from pydantic import ValidationError as Invalid

from malletrain.reproduce.exhibits import Cell, Exhibit, round_cells
from malletrain.reproduce.malletrain.exhibits import PUBLISHED_GAIN, interval, published_rates
from malletrain.reproduce.malletrain.systems import System
from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.report.axes import Axis
from malletrain.simulator.report.plots import bars

_RULES = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True)
class RealJob:
    """One training of a run.

    Attributes:
        name: Name for people.
        cell: Its architecture.
        state: Its state at the end.
        samples: Samples processed, net of rollbacks.
        rescales: Changes of its scale.
        preemptions: Events at which it lost nodes.
        step_seconds: Time of a step on one node in seconds.
        exchange_seconds: Time that communication adds to a step on very many nodes, in seconds.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _RULES
    name: str
    cell: str
    state: str
    samples: NonNegativeInt
    rescales: NonNegativeInt
    preemptions: NonNegativeInt
    step_seconds: NonNegativeFloat
    exchange_seconds: NonNegativeFloat


@dataclass(frozen=True)
class RealRun:
    """One system on one trace and workload.

    Attributes:
        system: The scheduling system.
        seed: Seed of trace and workload; runs of the same seed are compared.
        samples: Samples processed by all jobs, net of rollbacks.
        samples_lost: Samples that were processed and lost.
        rescales: Changes of the jobs' scales.
        preemptions: Events at which jobs lost nodes.
        profiles: Profile runs that began.
        profiles_done: Profile runs that were completed.
        profile_node_seconds: Node-seconds held by jobs while they were profiled.
        profile_stalled_node_seconds: Those of them in which the job stalled for a rescale.
        node_seconds_offered: Idle node-seconds.
        node_seconds_used: Idle node-seconds that jobs held.
        jobs: The trainings that began.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _RULES
    system: System
    seed: int
    samples: NonNegativeInt
    samples_lost: NonNegativeInt
    rescales: NonNegativeInt
    preemptions: NonNegativeInt
    profiles: NonNegativeInt
    profiles_done: NonNegativeInt
    profile_node_seconds: NonNegativeFloat
    profile_stalled_node_seconds: NonNegativeFloat
    node_seconds_offered: NonNegativeFloat
    node_seconds_used: NonNegativeFloat
    jobs: tuple[RealJob, ...]


@dataclass(frozen=True)
class RealEvaluation:
    """All runs of a measurement.

    Attributes:
        machine: Description of the machine.
        pace: How steps were slowed down; empty if they were not.
        nodes: Virtual nodes.
        seconds: Wall time of each run.
        trace_seconds: Seconds of the trace that each run replayed.
        max_parallel: Most jobs at once.
        job_samples: Samples that each job had to process.
        runs: Runs in the order of time.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _RULES
    machine: str
    pace: str
    nodes: PositiveInt
    seconds: PositiveFloat
    trace_seconds: PositiveFloat
    max_parallel: PositiveInt
    job_samples: PositiveInt
    runs: tuple[RealRun, ...]

    def of(self, system: System) -> list[RealRun]:
        """Runs of a system by seed."""
        return sorted((run for run in self.runs if run.system is system), key=lambda run: run.seed)

    def systems(self) -> list[System]:
        """The systems that were measured, in the order of their definition."""
        return [system for system in System if self.of(system)]


_ADAPTER = TypeAdapter(RealEvaluation)


def evaluation_of(text: str | bytes, source: str) -> RealEvaluation:
    """Read an evaluation.

    Args:
        text: Output of `text_of`.
        source: Where the text comes from, for errors.

    Raises:
        InvalidInputError: the text is not an evaluation; the error names the field.
    """
    try:
        evaluation = _ADAPTER.validate_json(text, strict=True)
    except Invalid as error:
        first = error.errors()[0]
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
        place = f"{source}: {path}" if path else source
        raise InvalidInputError(place, f"what benchmarks/studies/nas.py writes ({first['msg'].lower()})") from None
    _check_pairs(evaluation, source)
    return evaluation


def text_of(evaluation: RealEvaluation) -> str:
    """The evaluation as JSON."""
    return _ADAPTER.dump_json(evaluation, indent=2).decode() + "\n"


def _check_pairs(evaluation: RealEvaluation, source: str) -> None:
    seeds = {system: [run.seed for run in evaluation.of(system)] for system in evaluation.systems()}
    wanted = seeds.get(System.LINEAR, [])
    if not wanted or len(seeds) < 2:
        expected = f"{System.LINEAR.value!r} and another system at least"
        raise InvalidInputError(f"{source}: runs", expected, [system.value for system in seeds])
    for system, present in seeds.items():
        if present != wanted or len(set(present)) < len(present):
            expected = f"each of the seeds {sorted(set(wanted))} once for {system.value!r}"
            raise InvalidInputError(f"{source}: runs", expected, present)
    for index, run in enumerate(evaluation.runs):
        if run.system is System.LINEAR and run.samples == 0:
            raise InvalidInputError(f"{source}: runs[{index}].samples", "above 0 to compare others with it", 0)


def gains(evaluation: RealEvaluation, system: System) -> list[float]:
    """Relative gain in samples over FreeTrain with linear guesses, one per seed."""
    pairs = zip(evaluation.of(system), evaluation.of(System.LINEAR), strict=True)
    return [ours.samples / guess.samples - 1 for ours, guess in pairs]


HEADS = (
    "system",
    "samples/s",
    "gain, %",
    "± (95 %)",
    "rescales",
    "profiles begun",
    "ended",
    "node-seconds in profiles",
    "of them stalled",
    "idle node-seconds",
    "used, %",
)


def rows_of(evaluation: RealEvaluation) -> tuple[tuple[Cell, ...], ...]:
    """One row per system with means over seeds."""
    rows: list[tuple[Cell, ...]] = []
    for system in evaluation.systems():
        runs = evaluation.of(system)
        gain, half = interval(gains(evaluation, system))
        offered = statistics.fmean(run.node_seconds_offered for run in runs)
        used = statistics.fmean(run.node_seconds_used for run in runs)
        several = len(runs) > 1 and system is not System.LINEAR
        rows.append(
            (
                system.value,
                _rate(evaluation, runs),
                100 * gain if system is not System.LINEAR else None,
                100 * half if several else None,
                statistics.fmean(run.rescales for run in runs),
                statistics.fmean(run.profiles for run in runs),
                statistics.fmean(run.profiles_done for run in runs),
                statistics.fmean(run.profile_node_seconds for run in runs),
                statistics.fmean(run.profile_stalled_node_seconds for run in runs),
                offered,
                100 * used / offered if offered else None,
            )
        )
    return round_cells(rows)


def real_exhibit(evaluation: RealEvaluation) -> Exhibit:
    """Fig. 12 with real trainings: ours on virtual nodes of one machine, the paper's on a cluster."""
    systems = evaluation.systems()
    names = [system.value.replace("FreeTrain, ", "F: ").replace("MalleTrain", "M") for system in systems]
    ours = [_rate(evaluation, evaluation.of(system)) for system in systems]
    return Exhibit(
        "figure-12-real",
        "Fig. 12, for real: NAS on virtual nodes",
        HEADS,
        rows_of(evaluation),
        _remark(evaluation),
        bars(
            "Fig. 12, for real: throughput",
            Axis("samples/s", zero=True),
            names,
            {"nas": ours},
            published={"nas": published_rates(systems, dict(zip(systems, ours, strict=True)))},
        ),
    )


def _remark(evaluation: RealEvaluation) -> str:
    seeds = ", ".join(str(run.seed) for run in evaluation.of(System.LINEAR))
    return (
        f"Published: MalleTrain processes up to {100 * PUBLISHED_GAIN:.1f} % more than FreeTrain, on architectures of "
        "NAS-Bench-101 at 224 x 224, for 12 hours on a cluster with GPUs. Ours: architectures of the same space on "
        f"{evaluation.nodes} virtual nodes of one machine ({evaluation.machine}), which share its cores. "
        "Services, PyTorch trainings and rescales are real, but each system gets "
        f"{evaluation.seconds:g} s of wall time, in which {evaluation.trace_seconds:g} s of a synthetic trace pass. "
        f"At most {evaluation.max_parallel} jobs at once, {evaluation.job_samples} samples each; seeds: {seeds}. "
        f"{evaluation.pace} Gains are "
        "over FreeTrain, paired by seed."
    )


def _rate(evaluation: RealEvaluation, runs: Sequence[RealRun]) -> float:
    return statistics.fmean(run.samples for run in runs) / evaluation.seconds
