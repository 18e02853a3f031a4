"""A flotilla when GPUs leave it or join it: the same members go on, on other numbers of GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from malletrain.fleet.flotilla import Flotilla, top_up
from malletrain.fleet.rates import RateTable
from malletrain.fleet.remaining_work import min_gpus
from malletrain.fleet.sharing import Preprocessing


@dataclass(frozen=True, slots=True)
class Shrunk:
    """A flotilla on fewer GPUs.

    Attributes:
        flotilla: Members that train on.
        paused: Members that write a checkpoint and wait for another flotilla.
    """

    flotilla: Flotilla
    paused: tuple[int, ...]


def after_leave(table: RateTable, flotilla: Flotilla, gpus: int) -> Shrunk:
    """Divide the GPUs that are left so that the slowest member is as fast as possible, with the fewest GPUs for that.

    The pace is the largest at which the fewest GPUs that each member needs for it add up to no more than there are.
    Where there are more members than GPUs, those that need most GPUs for the present pace are paused, of equals the
    later ones.

    Args:
        table: Rates.
        flotilla: The flotilla as it was.
        gpus: GPUs that are left, at least 0.
    """
    present = min(flotilla.rates(table))
    needed = [_needed_gpus(table, member, present) for member in flotilla.members]
    keep = sorted(range(len(needed)), key=lambda place: (needed[place], place))[:gpus]
    members = tuple(flotilla.members[place] for place in sorted(keep))
    counts = min_gpus(table, dict.fromkeys(members, 1.0), gpus)
    paused = tuple(member for member in flotilla.members if member not in counts)
    return Shrunk(Flotilla(members, tuple(counts[member] for member in members)), paused)


def after_join(
    table: RateTable, flotilla: Flotilla, gpus: int, preprocessing: Preprocessing, forward_s: float, stall_s: float
) -> Flotilla:
    """Give GPUs that have joined to the slowest members, if that gains more samples than the stalls cost.

    At one pace all members wait for those whose GPUs change; at their own, those alone stop.

    Args:
        table: Rates.
        flotilla: The flotilla as it is.
        gpus: All GPUs that there are now.
        preprocessing: What preprocessing makes of their rates.
        forward_s: How long the GPUs are expected to stay, in seconds.
        stall_s: Seconds for which a member whose GPUs change does not train.

    Returns:
        The flotilla on more GPUs, or as it was: then the GPUs wait for the next one.
    """
    larger = top_up(table, flotilla, gpus)
    changed = [before != after for before, after in zip(flotilla.gpus, larger.gpus, strict=True)]
    old, new = _advance(table, flotilla, preprocessing), _advance(table, larger, preprocessing)
    stopped = [rate for rate, other in zip(new, changed, strict=True) if other or preprocessing.in_lockstep]
    gained = (sum(new) - sum(old)) * forward_s
    return larger if any(changed) and gained > sum(stopped) * stall_s else flotilla


def _advance(table: RateTable, flotilla: Flotilla, preprocessing: Preprocessing) -> list[float]:
    return list(preprocessing.paces(dict(zip(flotilla.members, flotilla.rates(table), strict=True))).values())


def _needed_gpus(table: RateTable, member: int, pace: float) -> int:
    """Fewest GPUs on which a member is at least so fast; it is so on some number."""
    return next(count for count, rate in enumerate(table.rows[member], 1) if rate >= pace)
