"""Synthetic traces with the statistics of a real machine."""

from __future__ import annotations

import math
import random

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Fragment, Trace

_Mixture = tuple[tuple[float, float, float], ...]
"""Log-normal parts: share, median in seconds, standard deviation of the logarithm."""

# Maximum-likelihood fits to the idle fragments of one week on Summit (February 2021, the log that BFTrainer's authors
# published). Drawn fragments: 57 % under 600 s, with 12 % of the idle time; BFTrainer's section 2.1 has 58 % and 10 %.
_FRAGMENT_PARTS: _Mixture = ((0.27, 111.0, 0.30), (0.73, 779.0, 1.10))
_GAP_PARTS: _Mixture = ((0.55, 429.0, 1.41), (0.45, 15039.0, 0.97))

_MAX_FRAGMENT_S = 3 * 86400.0
_WARM_UP_CYCLES = 10


def generate(nodes: int, duration_s: float, idle_fraction: float, rng: random.Random) -> Trace:
    """Draw a trace. Each node is idle and busy in turn, independently of the others.

    Lengths of fragments and of the gaps between them are drawn from mixtures of two log-normal distributions fitted to
    Summit. Gaps are scaled to the idle fraction. As in a log, fragments are cut at both ends of the trace.

    Args:
        nodes: Number of nodes, at least 1.
        duration_s: Length of the trace in seconds, above 0.
        idle_fraction: Expected share of idle time, above 0 and below 1; about 0.08 on Summit.
        rng: Source of randomness.

    Raises:
        InvalidInputError: an argument is out of its range.
    """
    if nodes < 1:
        raise InvalidInputError("nodes", "at least 1", nodes)
    if not 0 < duration_s < math.inf:
        raise InvalidInputError("duration_s", "above 0", duration_s)
    if not 0 < idle_fraction < 1:
        raise InvalidInputError("idle_fraction", "above 0 and below 1", idle_fraction)
    gap_mean = _mean(_FRAGMENT_PARTS) * (1 - idle_fraction) / idle_fraction
    gap_scale = gap_mean / _mean(_GAP_PARTS)
    width = len(str(nodes))
    names = tuple(f"n{number:0{width}d}" for number in range(1, nodes + 1))
    fragments = [fragment for name in names for fragment in _node(name, duration_s, gap_mean, gap_scale, rng)]
    # A stable sort: nodes keep their order at one instant.
    fragments.sort(key=lambda fragment: fragment.idle_from_s)
    return Trace(tuple(fragments), names, float(duration_s))


def _node(name: str, duration_s: float, gap_mean: float, gap_scale: float, rng: random.Random) -> list[Fragment]:
    """The fragments of one node. It begins long before second 0, so that its state at second 0 is a typical one."""
    cycle = gap_mean + _mean(_FRAGMENT_PARTS)
    time = -_WARM_UP_CYCLES * cycle - rng.random() * cycle
    fragments: list[Fragment] = []
    while True:
        begin = round(time + max(1.0, gap_scale * _draw(_GAP_PARTS, rng)))
        end = begin + max(1, round(min(_draw(_FRAGMENT_PARTS, rng), _MAX_FRAGMENT_S)))
        if begin >= duration_s:
            return fragments
        if end > 0:
            fragments.append(Fragment(name, float(max(begin, 0)), float(min(end, duration_s))))
        # At least half a second of gap, so that rounding never makes two fragments touch.
        time = end + 0.5


def _draw(parts: _Mixture, rng: random.Random) -> float:
    threshold = rng.random()
    for share, median, sigma in parts[:-1]:
        if threshold < share:
            return rng.lognormvariate(math.log(median), sigma)
        threshold -= share
    _, median, sigma = parts[-1]
    return rng.lognormvariate(math.log(median), sigma)


def _mean(parts: _Mixture) -> float:
    return sum(share * median * math.exp(sigma**2 / 2) for share, median, sigma in parts)
