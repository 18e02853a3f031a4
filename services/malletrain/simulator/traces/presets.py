"""Synthetic traces of machines with published statistics: BFTrainer's Table 1, MalleTrain's Fig. 9."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Trace
from malletrain.simulator.traces.columns import Columns, fragments_of

_HOUR_S = 3600.0
_WARM_UP_S = 48 * _HOUR_S
_CALIBRATIONS = 8
_CLOSE_ENOUGH = 0.02

_LENGTH_SHAPE = ((0.27, 111.0, 0.30), (0.73, 779.0, 1.10))
"""Two log-normal parts (share, median in seconds, sigma), fitted to the fragments of one week on Summit. 57 % of them
are under 600 s; BFTrainer reports 58 % (section 2.1). Lengths of other machines are not public: the shape is scaled."""

_LENGTH_MEAN_S = sum(share * median * math.exp(sigma**2 / 2) for share, median, sigma in _LENGTH_SHAPE)


@dataclass(frozen=True)
class Preset:
    """Published statistics of a machine, and assumptions where there are none.

    Attributes:
        name: Name for users.
        nodes: Nodes of the machine.
        idle_ratio: Share of node-time that is idle.
        inc_per_hour: Events per hour in which nodes join.
        dec_per_hour: Events per hour in which nodes leave.
        unit: Number of nodes that always join and leave together.
        batch_units: Mean number of units that join in one event; None: computed from the fragment lengths of Summit.
        tick_s: All times are multiples of this.
        short_gaps: Share and mean in seconds of short gaps between events (bursts); None: events are a Poisson process.
        source: Source of the figures.
    """

    name: str
    nodes: int
    idle_ratio: float
    inc_per_hour: float
    dec_per_hour: float
    unit: int
    batch_units: float | None
    tick_s: float
    short_gaps: tuple[float, float] | None
    source: str


PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            "summit", 4608, 0.111, 41.7, 28.6, 1, None, 10.0, None,
            "BFTrainer, Table 1 (41.7 INC/h, 28.6 DEC/h, 11.1 %, 524 eq-nodes); fragment lengths: its section 2.1",
        ),
        Preset(
            "theta", 4392, 0.125, 6.3, 6.2, 128, 2.0, 1.0, None,
            "BFTrainer, Table 1 (6.3 INC/h, 6.2 DEC/h, 12.5 %, 547 eq-nodes) and its section 2.1 (jobs of 128 nodes "
            "and more); 256 nodes an event and the shape of the lengths are assumptions",
        ),
        Preset(
            "mira", 49152, 0.103, 2.8, 2.4, 512, 1.5, 1.0, None,
            "BFTrainer, Table 1 (2.8 INC/h, 2.4 DEC/h, 10.3 %, 5071 eq-nodes) and its section 2.1 (jobs of 512 nodes "
            "and more); 768 nodes an event and the shape of the lengths are assumptions",
        ),
        Preset(
            "polaris", 560, 0.10, 24.0, 24.0, 1, None, 1.0, (0.6, 4.0),
            "MalleTrain, section 4.1 and Fig. 9 (over 50 % of the gaps between events under 10 s); 10 % idle is "
            "BFTrainer's Observation 1; 24 INC/h and DEC/h and Summit's fragment lengths are assumptions",
        ),
    )
}  # fmt: skip

_Event = tuple[float, bool, bool]
"""Time, whether nodes join, whether nodes leave."""

_Stay = tuple[int, float, float]
"""Index of a unit, begin and end of an idle stay."""


def preset_trace(
    preset: Preset, rng: random.Random, nodes: int | None = None, duration_s: float = 168 * _HOUR_S
) -> Trace:
    """Draw a trace whose statistics are close to a preset's.

    Join and leave events occur at the preset's rates. At a join event a geometrically distributed number of busy units
    joins; each gets a length of stay. At a leave event the units leave whose stay is over, to within half the mean time
    between leave events, and at least the next one. A leave event without idle units is postponed. Stays are scaled
    until the idle ratio fits, so that a short trace varies less than a real machine.

    Args:
        preset: The machine.
        rng: Random number generator.
        nodes: Number of nodes, at least 1; None: the machine's. With fewer nodes, events become smaller, and rarer once
            they have one unit each.
        duration_s: Length in seconds, above 0.

    Raises:
        InvalidInputError: an argument is out of its range.
    """
    count = preset.nodes if nodes is None else nodes
    if count < 1:
        raise InvalidInputError("nodes", "at least 1", count)
    if not 0 < duration_s < math.inf:
        raise InvalidInputError("duration_s", "above 0", duration_s)
    units = math.ceil(count / preset.unit)
    mean_batch = _mean_batch(preset, units)
    thinned = preset
    if mean_batch < 1:
        scaled = (preset.inc_per_hour * mean_batch, preset.dec_per_hour * mean_batch)
        thinned = replace(preset, inc_per_hour=scaled[0], dec_per_hour=scaled[1])
    events = list(_events(thinned, duration_s, rng))
    target_s = preset.idle_ratio * units * duration_s
    stay_s = preset.idle_ratio * units * _HOUR_S / (thinned.inc_per_hour * max(1.0, mean_batch))
    seed = rng.random()
    best: tuple[float, list[_Stay]] = (math.inf, [])
    for _ in range(_CALIBRATIONS):
        stays = list(_stays(events, thinned, units, max(1.0, mean_batch), stay_s, duration_s, random.Random(seed)))
        idle_s = sum(end - begin for _, begin, end in stays)
        best = min(best, (abs(idle_s - target_s), stays), key=lambda candidate: candidate[0])
        if best[0] <= _CLOSE_ENOUGH * target_s or not idle_s:
            break
        stay_s *= target_s / idle_s
    width = len(str(count))
    names = tuple(f"n{number:0{width}d}" for number in range(1, count + 1))
    return Trace(fragments_of(_nodes_of(best[1], preset.unit, count), names), names, float(duration_s))


def _mean_batch(preset: Preset, units: int) -> float:
    """Mean number of units in a join event; by Little's law if only the lengths are known."""
    if preset.batch_units is not None:
        return preset.batch_units * units * preset.unit / preset.nodes
    return preset.idle_ratio * units * _HOUR_S / (preset.inc_per_hour * _LENGTH_MEAN_S)


def _events(preset: Preset, duration_s: float, rng: random.Random) -> Iterator[_Event]:
    """Events from long before second 0 on, so that the process is stationary by then."""
    if preset.short_gaps is not None:
        yield from _bursts(preset, preset.short_gaps, duration_s, rng)
        return
    joins, leaves = (
        set(_ticks(_HOUR_S / rate, preset.tick_s, duration_s, rng))
        for rate in (preset.inc_per_hour, preset.dec_per_hour)
    )
    for tick in sorted(joins | leaves):
        yield tick * preset.tick_s, tick in joins, tick in leaves


def _ticks(mean_s: float, tick_s: float, duration_s: float, rng: random.Random) -> Iterator[int]:
    tick = -math.ceil(_WARM_UP_S / tick_s)
    while True:
        tick += _geometric(mean_s / tick_s, rng)
        if tick * tick_s >= duration_s:
            return
        yield tick


def _bursts(preset: Preset, short: tuple[float, float], duration_s: float, rng: random.Random) -> Iterator[_Event]:
    """Events in bursts; each is a join or a leave."""
    share, short_mean_s = short
    rate = preset.inc_per_hour + preset.dec_per_hour
    long_mean_s = (_HOUR_S / rate - share * short_mean_s) / (1 - share)
    tick = -math.ceil(_WARM_UP_S / preset.tick_s)
    while True:
        mean_s = short_mean_s if rng.random() < share else long_mean_s
        tick += _geometric(mean_s / preset.tick_s, rng)
        if tick * preset.tick_s >= duration_s:
            return
        joins = rng.random() < preset.inc_per_hour / rate
        yield tick * preset.tick_s, joins, not joins


def _stays(
    events: list[_Event],
    preset: Preset,
    units: int,
    mean_batch: float,
    stay_s: float,
    duration_s: float,
    rng: random.Random,
) -> Iterator[_Stay]:
    """Idle stays within the trace, given events and mean length of a stay."""
    busy = list(range(units))
    idle: list[tuple[float, int, float]] = []
    early_s = _HOUR_S / preset.dec_per_hour / 2
    stretch = stay_s / _LENGTH_MEAN_S
    owed = 0
    for time, joins, on_time in events:
        leaving_units: list[int] = []
        # A leave event without idle units is postponed until there is one.
        leaves = on_time or owed > 0
        # One unit stays unless it is the only one: the next leave event needs one, too.
        while leaves and idle and (not leaving_units or (len(idle) > 1 and idle[0][0] <= time + early_s)):
            _, unit, begin = heapq.heappop(idle)
            leaving_units.append(unit)
            if time > 0:
                yield unit, max(begin, 0.0), time
        owed += on_time - bool(leaving_units)
        # Units that have just left can't join at the same instant.
        for _ in range(min(_geometric(mean_batch, rng), len(busy)) if joins else 0):
            position = rng.randrange(len(busy))
            busy[position], busy[-1] = busy[-1], busy[position]
            heapq.heappush(idle, (time + stretch * _length(rng), busy.pop(), time))
        busy.extend(leaving_units)
    yield from ((unit, max(begin, 0.0), duration_s) for _, unit, begin in idle)


def _nodes_of(stays: list[_Stay], unit: int, count: int) -> Columns:
    """Fragments of the nodes; the last unit may have fewer nodes than the others."""
    rows = np.array(stays, dtype=np.float64).reshape(-1, 3)
    node = (rows[:, :1].astype(np.int64) * unit + np.arange(unit)).ravel()
    begin, end = (np.repeat(rows[:, index], unit) for index in (1, 2))
    real = node < count
    return Columns(node[real], begin[real], end[real])


def _length(rng: random.Random) -> float:
    share, median_s, sigma = _LENGTH_SHAPE[0]
    if rng.random() >= share:
        _, median_s, sigma = _LENGTH_SHAPE[1]
    return rng.lognormvariate(math.log(median_s), sigma)


def _geometric(mean: float, rng: random.Random) -> int:
    """A geometrically distributed number of at least 1 with a mean above 1."""
    if mean <= 1:
        return 1
    return 1 + int(math.log(1.0 - rng.random()) / math.log1p(-1.0 / mean))
