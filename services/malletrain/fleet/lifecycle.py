"""FLEET-G: flotilla after flotilla on all GPUs (Guan et al., MLSys 2020, main loop and global paradigm)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from malletrain.fleet.assignment import assign_gpus
from malletrain.fleet.flotilla import Flotilla, create_flotilla
from malletrain.fleet.problem import FleetProblem
from malletrain.fleet.rates import RateTable, rate_table
from malletrain.fleet.sharing import of_flotillas

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class FlotillaRun:
    """A flotilla that trained.

    Attributes:
        members: Positions of its members in the ensemble, in the order in which they were chosen.
        gpus: Numbers of each member's GPUs.
        score: Sum of nodes over GPUs of all members.
        start_s: When it began, in seconds since the ensemble did.
        end_s: When it stopped; checkpoints are written after that.
        completed: Its members that were done, in the same order.
    """

    members: tuple[int, ...]
    gpus: tuple[tuple[int, ...], ...]
    score: float
    start_s: float
    end_s: float
    completed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FleetRun:
    """An ensemble that trained.

    Attributes:
        seconds: Until everything was done, the last checkpoint included.
        ends_s: When each member was done, in the order of the ensemble.
        flotillas: The flotillas; none where members did not train in any.
        waiting_gpu_seconds: GPU-seconds of members that were done and waited for the end of their flotilla.
        unassigned_gpu_seconds: GPU-seconds of GPUs that no member had, while flotillas trained.
    """

    seconds: float
    ends_s: tuple[float, ...]
    flotillas: tuple[FlotillaRun, ...] = ()
    waiting_gpu_seconds: float = 0.0
    unassigned_gpu_seconds: float = 0.0


def fleet_global(problem: FleetProblem, actual: RateTable | None = None) -> FleetRun:
    """Train an ensemble in flotillas on all GPUs.

    Args:
        problem: The ensemble; flotillas are made by its rates.
        actual: Rates at which members really train; None: those of the problem.
    """
    ends, runs, now, waiting, unassigned = [0.0] * len(problem.models), [], 0.0, 0.0, 0.0
    for flotilla, seconds, done in _flotillas(problem, actual):
        assignment = assign_gpus(flotilla.gpus, problem.gpus_per_node)
        held = dict(zip(flotilla.members, flotilla.gpus, strict=True))
        for member, after in done.items():
            ends[member] = now + after
            waiting += (seconds - after) * held[member]
        unassigned += seconds * (problem.gpus - sum(flotilla.gpus))
        completed = tuple(member for member in flotilla.members if member in done)
        runs.append(FlotillaRun(flotilla.members, assignment.gpus, assignment.score, now, now + seconds, completed))
        now += seconds + problem.checkpoint_seconds
    return FleetRun(now, tuple(ends), tuple(runs), waiting, unassigned)


def fleet_global_seconds(problem: FleetProblem, stall_s: float = 0.0) -> float:
    """How long `fleet_global` takes, without which GPUs members have.

    Args:
        problem: The ensemble.
        stall_s: Seconds from the end of a flotilla's training to the first batch of the next one, beside the time for
            writing checkpoints.
    """
    trained = [seconds for _, seconds, _ in _flotillas(problem, None)]
    return sum(trained) + len(trained) * problem.checkpoint_seconds + max(0, len(trained) - 1) * stall_s


def _flotillas(problem: FleetProblem, actual: RateTable | None) -> Iterator[tuple[Flotilla, float, dict[int, float]]]:
    """The flotillas, for how long each trains, and after how many seconds of that its members are done."""
    table = rate_table(problem)
    remaining_samples = dict(enumerate(problem.samples()))
    while remaining_samples:
        flotilla = create_flotilla(table, tuple(remaining_samples), problem.gpus, problem.tolerance)
        seconds, done = train_flotilla(problem, actual or table, flotilla, remaining_samples, problem.active_share)
        for member in done:
            del remaining_samples[member]
        yield flotilla, seconds, done


def train_flotilla(
    problem: FleetProblem,
    table: RateTable,
    flotilla: Flotilla,
    remaining_samples: dict[int, float],
    active_share: float,
) -> tuple[float, dict[int, float]]:
    """Train a flotilla until its active members have less than a share of its GPUs.

    Members end at ends of epochs. All begin one together, so that at one pace all are at the end of one when some stop.

    Args:
        problem: The ensemble.
        table: Rates at which members train.
        flotilla: Members and their GPUs.
        remaining_samples: Samples that each member still needs; reduced.
        active_share: The share.

    Returns:
        Seconds that it trained, and after how many of them each member was done.
    """
    held = dict(zip(flotilla.members, flotilla.gpus, strict=True))
    stop_below = active_share * sum(flotilla.gpus) - _ROUNDING
    rates = dict(zip(flotilla.members, flotilla.rates(table), strict=True))
    preprocessing, total = of_flotillas(problem), problem.samples()
    now, done = 0.0, dict[int, float]()
    while rates and sum(held[member] for member in rates) >= stop_below:
        speeds = preprocessing.paces(rates, {member: total[member] - remaining_samples[member] for member in rates})
        seconds, ended = train_to_next_end(remaining_samples, speeds, problem.samples_per_epoch)
        now += seconds
        for member in ended:
            done[member] = now
            del rates[member]
    return now, done


_NOTHING_LEFT = 1e-9
"""Share of an epoch that is rounding error, not work."""


def train_to_next_end(
    remaining_samples: dict[int, float],
    speeds: Mapping[int, float],
    samples_per_epoch: float,
    max_s: float = float("inf"),
) -> tuple[float, list[int]]:
    """Train until the first member is done.

    Args:
        remaining_samples: Samples that each member still needs; those of members in `speeds` are reduced.
        speeds: Samples/s of the members that train; at least one above 0 unless `max_s` is finite.
        samples_per_epoch: Samples of an epoch.
        max_s: Stop after so many seconds at the latest.

    Returns:
        Seconds until then, and the members that are done, in the order of `speeds`.
    """
    seconds = min((remaining_samples[member] / speed for member, speed in speeds.items() if speed > 0), default=max_s)
    seconds = min(seconds, max_s)
    for member, speed in speeds.items():
        remaining_samples[member] -= speed * seconds
    return seconds, [member for member in speeds if remaining_samples[member] <= _NOTHING_LEFT * samples_per_epoch]
