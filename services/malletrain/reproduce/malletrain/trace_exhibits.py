"""MalleTrain's Fig. 9 and 11: gaps between events of two machines, and fragments of a log beside synthetic ones."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np

from malletrain.reproduce.exhibits import Exhibit, rounded
from malletrain.scavenger.idle_trace import Trace
from malletrain.simulator.report.axes import Axis, Kind
from malletrain.simulator.report.plots import bars, lines
from malletrain.simulator.traces.columns import Seconds, columns_of
from malletrain.simulator.traces.describe import FRAGMENT_LIMITS_S, describe, observed_lengths
from malletrain.simulator.traces.presets import PRESETS, preset_trace
from malletrain.simulator.traces.synthesize import synthesize

SAMPLES = (10_000, 1_000)
"""Fragments of the paper's synthetic traces."""
_POLARIS_HOURS = 168.0


def gaps_exhibit(trace: Trace, rng: random.Random) -> Exhibit | None:
    """Fig. 9: gaps between events of a trace, and of one that is generated with Polaris's traits.

    Returns:
        The exhibit; None where the trace has fewer than two events.
    """
    ours = {share.shorter_than_s: share.gaps for share in describe(trace).event_gap_shares}
    if not ours:
        return None
    drawn = preset_trace(PRESETS["polaris"], rng, duration_s=3600 * _POLARIS_HOURS)
    theirs = {share.shorter_than_s: share.gaps for share in describe(drawn).event_gap_shares}
    middle = [shares[600.0] - shares[60.0] for shares in (ours, theirs)]
    return Exhibit(
        "figure-9",
        "Fig. 9: gaps between events, cumulative",
        ("shorter than, s", "this trace", "generated as Polaris"),
        rounded([(limit, ours[limit], theirs[limit]) for limit in ours]),
        "Published: over 50 % of Polaris's gaps are shorter than 10 s; Polaris has more of up to 60 s, and Summit more "
        f"of 60 to 600 s. Here: {theirs[10.0]:.0%} below 10 s, {theirs[60.0]:.0%} against {ours[60.0]:.0%} below 60 s, "
        f"and {middle[1]:.0%} against {middle[0]:.0%} between. Polaris's log tells of no idle nodes and is "
        "not public: its "
        "trace is generated with what the paper says of it, so that this shows the trace, and no finding.",
        lines(
            "Fig. 9: share of gaps that are shorter",
            Axis("gap", Kind.SECONDS, log=True),
            Axis(kind=Kind.SHARE, zero=True),
            {
                "this trace": (list(ours), list(ours.values())),
                "generated as Polaris": (list(theirs), list(theirs.values())),
            },
        ),
    )


def lengths_exhibit(trace: Trace, rng: np.random.Generator) -> Exhibit:
    """Fig. 11: how long fragments of a trace are, beside those of a synthetic one.

    Args:
        trace: Idle nodes, with at least one complete fragment and gap.
        rng: For the synthetic trace, and for which of its fragments are counted.

    Raises:
        InvalidInputError: the trace can't be imitated.
    """
    real = observed_lengths(trace, columns_of(trace))
    drawn = synthesize(trace, rng)
    every = observed_lengths(drawn, columns_of(drawn))
    counted = {"this trace": real}
    for count in SAMPLES:
        counted[f"synthetic, {count:,}"] = rng.choice(every, min(count, len(every)), replace=False)
    limits = (0.0, *FRAGMENT_LIMITS_S, np.inf)
    shares = {name: (np.histogram(lengths, limits)[0] / len(lengths)).tolist() for name, lengths in counted.items()}
    bins = pairwise(limits)
    names = [f"{low:g} and more" if high == np.inf else f"{low:g} to {high:g}" for low, high in bins]
    apart = {name: largest_difference(real, lengths) for name, lengths in counted.items() if name != "this trace"}
    return Exhibit(
        "figure-11",
        "Fig. 11: lengths of fragments, of the log and of synthetic traces",
        ("seconds", *(f"{name}, share" for name in counted)),
        rounded([(name, *(values[place] for values in shares.values())) for place, name in enumerate(names)]),
        f"Published: synthetic traces keep the distribution of the log. Here {len(real):,} fragments of the log, and "
        "the cumulative shares of synthetic ones differ from theirs by "
        + ", ".join(f"at most {100 * value:.1f} points ({name})" for name, value in apart.items())
        + ".",
        bars("Fig. 11: share of fragments", Axis(kind=Kind.SHARE, zero=True), names, dict(shares)),
    )


def largest_difference(first: Seconds, second: Seconds) -> float:
    """Kolmogorov's distance: by how much two cumulative distributions differ at most, from 0 to 1."""
    places = np.union1d(first, second)
    below = [np.searchsorted(np.sort(values), places, side="right") / len(values) for values in (first, second)]
    return float(np.abs(below[0] - below[1]).max())
