"""Statistics of a trace of idle nodes: Table 1 and Fig. 1 of BFTrainer for any trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from malletrain.scavenger.idle_trace import Trace
from malletrain.simulator.traces.columns import Columns, Seconds, columns_of

FRAGMENT_LIMITS_S = (10.0, 60.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 21600.0, 86400.0)
EVENT_GAP_LIMITS_S = (10.0, 30.0, 60.0, 300.0, 600.0, 3600.0)
HAZARD_AGES_S = (0.0, 60.0, 300.0, 600.0, 1800.0, 3600.0)
HAZARD_WINDOW_S = 120.0
SHORT_S = 600.0
_HOUR_S = 3600.0


@dataclass(frozen=True)
class FragmentShare:
    """A point of the distribution of fragment lengths.

    Attributes:
        shorter_than_s: Length in seconds, itself not included.
        fragments: Share of all fragments that are shorter, 0 to 1.
        node_time: Share of all idle node-time in these fragments, 0 to 1.
    """

    shorter_than_s: float
    fragments: float
    node_time: float


@dataclass(frozen=True)
class GapShare:
    """A point of the distribution of gaps between events.

    Attributes:
        shorter_than_s: Gap in seconds, itself not included.
        gaps: Share of the gaps that are shorter, 0 to 1.
    """

    shorter_than_s: float
    gaps: float


@dataclass(frozen=True)
class Hazard:
    """Probability that a node of some idle age leaves soon.

    Attributes:
        age_s: Idle age in seconds.
        fragments: Number of fragments observed from this age for `HAZARD_WINDOW_S` (120) seconds, or to their end.
        gone: Share of them that ended within these seconds, 0 to 1; None if there are none.
    """

    age_s: float
    fragments: int
    gone: float | None


@dataclass(frozen=True)
class Description:
    """Statistics of idle nodes (BFTrainer, section 2.1, Table 1, Fig. 1).

    Attributes:
        duration_s: Length of the trace in seconds.
        origin: Second 0 on the calendar; None if it is not known.
        nodes: Number of nodes.
        fragments: Number of idle fragments.
        events: Number of instants after second 0 and before the end at which the set of idle nodes changes.
        join_events: Number of events in which at least one node joins.
        leave_events: Number of events in which at least one node leaves.
        inc_per_hour: join_events per hour, INC/h in Table 1.
        dec_per_hour: leave_events per hour, DEC/h in Table 1.
        idle_ratio: Idle node-hours over all node-hours, ratio in Table 1. A node counts while it is part of the system.
        resource_integral_node_hours: Idle nodes integrated over the duration (Eq. 17), in node-hours.
        equivalent_nodes: Resource integral over the duration (Eq. 18), eq-Nodes in Table 1.
        mean_fragment_s: Mean length of the fragments in seconds.
        median_fragment_s: Median length in seconds.
        short_fragments: Share of fragments under 600 s.
        short_node_time: Share of the idle node-time in fragments under 600 s.
        fragment_shares: Distribution of fragment lengths (Fig. 1), by number and by node-time.
        event_gap_shares: Distribution of gaps between events (MalleTrain, Fig. 9); empty with fewer than two events.
        hazards: Hazards by idle age.
    """

    duration_s: float
    origin: str | None
    nodes: int
    fragments: int
    events: int
    join_events: int
    leave_events: int
    inc_per_hour: float
    dec_per_hour: float
    idle_ratio: float
    resource_integral_node_hours: float
    equivalent_nodes: float
    mean_fragment_s: float
    median_fragment_s: float
    short_fragments: float
    short_node_time: float
    fragment_shares: tuple[FragmentShare, ...]
    event_gap_shares: tuple[GapShare, ...]
    hazards: tuple[Hazard, ...]


def describe(trace: Trace) -> Description:
    """Describe the seconds from 0 to the trace's duration.

    Fragments are cut to the duration, except that the age of a fragment counts from its true begin. The hazards omit
    fragments that begin with the trace, which may be older than the trace says, and ages reached less than 120 s before
    the end. A trace without fragments has shares of 0.
    """
    columns = columns_of(trace)
    hours = trace.duration_s / _HOUR_S
    lengths = observed_lengths(trace, columns)
    joins = _within(columns.begin, trace.duration_s)
    leaves = _within(columns.end, trace.duration_s)
    events = np.union1d(joins, leaves)
    idle_s = float(lengths.sum())
    shares = {limit: _share(lengths, limit) for limit in (*FRAGMENT_LIMITS_S, SHORT_S)}
    gaps = np.diff(events)
    return Description(
        duration_s=float(trace.duration_s),
        origin=trace.origin,
        nodes=len(trace.nodes),
        fragments=lengths.size,
        events=events.size,
        join_events=joins.size,
        leave_events=leaves.size,
        inc_per_hour=joins.size / hours,
        dec_per_hour=leaves.size / hours,
        idle_ratio=idle_s / trace.node_s if trace.node_s else 0.0,
        resource_integral_node_hours=idle_s / _HOUR_S,
        equivalent_nodes=idle_s / trace.duration_s,
        mean_fragment_s=float(lengths.mean()) if lengths.size else 0.0,
        median_fragment_s=float(np.median(lengths)) if lengths.size else 0.0,
        short_fragments=shares[SHORT_S].fragments,
        short_node_time=shares[SHORT_S].node_time,
        fragment_shares=tuple(shares[limit] for limit in FRAGMENT_LIMITS_S),
        event_gap_shares=tuple(GapShare(limit, float(np.mean(gaps < limit))) for limit in EVENT_GAP_LIMITS_S)
        if gaps.size
        else (),
        hazards=tuple(_hazard(trace, columns, age) for age in HAZARD_AGES_S),
    )


def observed_lengths(trace: Trace, columns: Columns) -> Seconds:
    """Seconds of each fragment within the trace's duration."""
    return np.minimum(columns.end, trace.duration_s) - np.maximum(columns.begin, 0.0)


def _within(times: Seconds, duration_s: float) -> Seconds:
    return np.unique(times[(times > 0) & (times < duration_s)])


def _share(lengths: Seconds, limit_s: float) -> FragmentShare:
    shorter = lengths < limit_s
    whole = float(lengths.sum())
    return FragmentShare(
        limit_s,
        float(shorter.mean()) if lengths.size else 0.0,
        float(lengths[shorter].sum()) / whole if whole else 0.0,
    )


def _hazard(trace: Trace, columns: Columns, age_s: float) -> Hazard:
    at = columns.begin + age_s
    later = at + HAZARD_WINDOW_S
    seen = (columns.begin > min(trace.earliest_s, 0.0)) & (at >= 0) & (columns.end > at) & (later <= trace.duration_s)
    gone = (columns.end <= later) & (columns.end < trace.duration_s)
    count = int(seen.sum())
    return Hazard(age_s, count, float(gone[seen].mean()) if count else None)
