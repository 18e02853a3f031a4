from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.generate import generate
from malletrain.scavenger.idle_trace import Fragment, Trace
from malletrain.scavenger.trace_files import read_trace
from malletrain.simulator.traces.describe import describe
from malletrain.simulator.traces.presets import PRESETS, preset_trace
from malletrain.simulator.traces.synthesize import histogram, ks_distance, learn, renewals_of, synthesize
from tests.support.shared import shared_path


def distances(original: Trace, synthetic: Trace) -> tuple[float, float]:
    one, other = renewals_of(original), renewals_of(synthetic)
    return (
        ks_distance(one.fragments.ended(), other.fragments.ended()),
        ks_distance(one.gaps.ended(), other.gaps.ended()),
    )


def check_proper(trace: Trace) -> None:
    assert all(0 <= entry.idle_from_s < entry.idle_until_s <= trace.duration_s for entry in trace.fragments)
    starts = [entry.idle_from_s for entry in trace.fragments]
    assert starts == sorted(starts)
    for _, own in itertools.groupby(sorted(trace.fragments, key=lambda e: e.node), key=lambda e: e.node):
        assert all(before.idle_until_s < after.idle_from_s for before, after in itertools.pairwise(own))


def test_a_synthetic_week_is_like_summit() -> None:
    original = read_trace(shared_path("traces/summit-2021-02-week1.csv.gz"))
    synthetic = synthesize(original, np.random.default_rng(0))
    assert max(distances(original, synthetic)) < 0.01
    ours, theirs = describe(synthetic), describe(original)
    assert ours.idle_ratio == pytest.approx(theirs.idle_ratio, rel=0.05)
    assert ours.short_fragments == pytest.approx(theirs.short_fragments, abs=0.01)
    assert len(synthetic.nodes) == len(original.nodes)
    check_proper(synthetic)


def test_nodes_keep_their_differences() -> None:
    calm = generate(60, 100 * 3600.0, 0.05, random.Random(1))
    wild = generate(60, 100 * 3600.0, 0.5, random.Random(2))
    both = [*calm.fragments, *(Fragment(f"w{e.node}", e.idle_from_s, e.idle_until_s) for e in wild.fragments)]
    both.append(Fragment("always", 0.0, calm.duration_s))
    names = (*calm.nodes, *(f"w{name}" for name in wild.nodes), "always", "never")
    both.sort(key=lambda entry: entry.idle_from_s)
    original = Trace(tuple(both), names, calm.duration_s)
    synthetic = synthesize(original, np.random.default_rng(3))
    check_proper(synthetic)
    assert max(distances(original, synthetic)) < 0.06
    ratios = [np.sort(renewals_of(trace).idle_s) / trace.duration_s for trace in (original, synthetic)]
    assert ratios[1][0] == 0
    assert ratios[1][-1] == 1
    assert ratios[1][:60].mean() == pytest.approx(ratios[0][:60].mean(), abs=0.02)
    assert ratios[1][61:].mean() == pytest.approx(ratios[0][61:].mean(), abs=0.06)


def test_size_and_length_are_free_and_the_seed_decides() -> None:
    original = generate(50, 48 * 3600.0, 0.2, random.Random(1))
    drawn = [synthesize(original, np.random.default_rng(seed), 17, 5000.5) for seed in (4, 4, 5)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert (len(drawn[0].nodes), drawn[0].duration_s) == (17, 5000.5)
    check_proper(drawn[0])


def test_traces_that_teach_nothing_are_refused() -> None:
    once = Trace((Fragment("a", 5, 9), Fragment("b", 6, 9)), ("a", "b"), 20.0)
    with pytest.raises(InvalidInputError, match="at least one whole idle fragment and one whole gap"):
        synthesize(once, np.random.default_rng(0))
    with pytest.raises(InvalidInputError, match="nodes: expected at least 1, got 0"):
        synthesize(once, np.random.default_rng(0), 0)
    with pytest.raises(InvalidInputError, match="duration_s: expected above 0"):
        synthesize(once, np.random.default_rng(0), 1, 0)


def test_what_the_edges_cut_is_kept_as_not_complete() -> None:
    found = renewals_of(
        Trace(
            (Fragment("a", 0, 5), Fragment("a", 8, 12), Fragment("a", 15, 40), Fragment("b", 3, 4)), ("a", "b", "c"), 20
        )
    )
    assert sorted(zip(found.fragments.seconds.tolist(), found.fragments.complete.tolist(), strict=True)) == [
        (1, True),
        (4, True),
        (5, False),
    ]
    assert sorted(zip(found.gaps.seconds.tolist(), found.gaps.complete.tolist(), strict=True)) == [
        (3, True),
        (3, True),
        (16, False),
    ]
    assert found.idle_s.tolist() == [14, 1, 0]
    kinds = learn(found)
    assert [kind.weight for kind in kinds] == [2, 1]
    # Kaplan-Meier by hand: 3 spans, deaths at 1 and 4, what is left lies on the longest.
    assert kinds[0].idle is not None
    assert kinds[0].idle.seconds.tolist() == [1, 4, 5]
    assert kinds[0].idle.shares.tolist() == pytest.approx([1 / 3] * 3)


@given(
    one=st.lists(st.integers(0, 20), min_size=1, max_size=20),
    other=st.lists(st.integers(0, 20), min_size=1, max_size=20),
)
def test_the_distance_is_the_largest_difference_of_the_shares(one: list[int], other: list[int]) -> None:
    def share(values: list[int], most: int) -> float:
        return sum(value <= most for value in values) / len(values)

    expected = max(abs(share(one, most) - share(other, most)) for most in range(21))
    found = ks_distance(np.array(one, dtype=float), np.array(other, dtype=float))
    assert found == pytest.approx(expected)
    assert sum(histogram(np.array(one, dtype=float), (3.0, 9.0))) == pytest.approx(1)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["summit", "theta", "mira"])
def test_presets_come_near_table_1(name: str, seed: int) -> None:
    published = {
        "summit": (41.7, 28.6, 0.111, 524),
        "theta": (6.3, 6.2, 0.125, 547),
        "mira": (2.8, 2.4, 0.103, 5071),
    }[name]
    trace = preset_trace(PRESETS[name], random.Random(seed))
    found = describe(trace)
    figures = (found.inc_per_hour, found.dec_per_hour, found.idle_ratio, found.equivalent_nodes)
    assert figures == pytest.approx(published, rel=0.15)
    if name == "summit":
        assert found.short_fragments == pytest.approx(0.58, rel=0.15)


def test_polaris_has_mostly_short_gaps() -> None:
    trace = preset_trace(PRESETS["polaris"], random.Random(0))
    found = describe(trace)
    assert found.event_gap_shares[0].shorter_than_s == 10
    assert 0.5 < found.event_gap_shares[0].gaps < 0.65
    assert found.idle_ratio == pytest.approx(0.10, rel=0.15)
    check_proper(trace)


def test_nodes_of_a_block_machine_move_together() -> None:
    trace = preset_trace(PRESETS["mira"], random.Random(1), duration_s=48 * 3600.0)
    by_times: dict[tuple[float, float], list[int]] = {}
    for entry in trace.fragments:
        by_times.setdefault((entry.idle_from_s, entry.idle_until_s), []).append(int(entry.node[1:]))
    assert by_times
    assert all(len(nodes) % 512 == 0 for nodes in by_times.values())


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_of_any_size(name: str) -> None:
    for nodes, hours in ((1, 200), (64, 12), (1000, 3)):
        trace = preset_trace(PRESETS[name], random.Random(2), nodes, hours * 3600.0)
        assert (len(trace.nodes), trace.duration_s) == (nodes, hours * 3600)
        assert trace == preset_trace(PRESETS[name], random.Random(2), nodes, hours * 3600.0)
        check_proper(trace)
