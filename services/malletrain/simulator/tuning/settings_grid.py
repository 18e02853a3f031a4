"""The settings that are tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from malletrain.allocator.auto_tuning.machine import FORWARD_S
from malletrain.allocator.problem.forward_time import ForwardPolicy
from malletrain.simulator.replay.options import ReplayOptions

PLACES = (5, 10, 15, 20, 30)
COALESCE_S = (0.05, 0.25, 1.0)


@dataclass(frozen=True, slots=True)
class TunedSettings:
    """Settings that tuning may change, with the names and units that they have in the configuration.

    Attributes:
        forward_policy: `allocator.forward_policy`.
        forward_seconds: `allocator.forward_seconds`.
        max_parallel: `job_manager.max_parallel`.
        coalesce_seconds: `allocator.coalesce_seconds`.
    """

    forward_policy: ForwardPolicy
    forward_seconds: float
    max_parallel: int
    coalesce_seconds: float

    def changes(self, present: TunedSettings) -> dict[tuple[str, str], str | float | int]:
        """What differs from the present settings: values by section and name."""
        found: dict[tuple[str, str], str | float | int] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value != getattr(present, field.name):
                section = "job_manager" if field.name == "max_parallel" else "allocator"
                found[section, field.name] = value.value if isinstance(value, ForwardPolicy) else value
        return found

    def options(self, options: ReplayOptions) -> ReplayOptions:
        """Options of a replay with these settings. The fast engine does not know `coalesce_seconds`."""
        return replace(
            options,
            forward_policy=self.forward_policy,
            forward_s=self.forward_seconds,
            max_parallel=self.max_parallel,
        )


def settings_grid(present: TunedSettings, jobs: int, max_places: int) -> list[TunedSettings]:
    """The settings to try, the present ones first.

    Args:
        present: The settings in force.
        jobs: Number of jobs: more places than that make no difference.
        max_places: The largest `max_parallel` that is permitted.
    """
    forwards = [(ForwardPolicy.CONSTANT, seconds) for seconds in FORWARD_S]
    forwards += [(policy, present.forward_seconds) for policy in (ForwardPolicy.SURVIVAL, ForwardPolicy.EXPECTED)]
    forwards.append((present.forward_policy, present.forward_seconds))
    enough = next((count for count in PLACES if count >= jobs), PLACES[-1])
    places = [count for count in PLACES if count <= min(enough, max_places)]
    found = [present]
    for policy, seconds in forwards:
        for count in dict.fromkeys((present.max_parallel, *places)):
            variant = replace(present, forward_policy=policy, forward_seconds=seconds, max_parallel=count)
            if variant not in found:
                found.append(variant)
    return found


def coalescing_grid(best: TunedSettings) -> list[TunedSettings]:
    """The same settings with other times of coalescing; those given first."""
    others = [replace(best, coalesce_seconds=seconds) for seconds in COALESCE_S if seconds != best.coalesce_seconds]
    return [best, *others]


def distance(settings: TunedSettings, present: TunedSettings) -> int:
    """Number of settings that differ."""
    return len(settings.changes(present))


def nearest(candidates: Sequence[TunedSettings], present: TunedSettings) -> TunedSettings:
    """Of several settings the one that differs least from the present ones; the first of those."""
    return min(candidates, key=lambda settings: distance(settings, present))
