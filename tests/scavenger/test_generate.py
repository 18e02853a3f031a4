from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from malletrain.cli.trace import trace_app
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.excerpt import busy_excerpt
from malletrain.scavenger.generate import generate
from malletrain.scavenger.idle_trace import Trace
from malletrain.scavenger.trace_files import read_trace

HOUR_S = 3600.0


def test_a_drawn_trace_has_the_statistics_of_summit() -> None:
    trace = generate(512, 168 * HOUR_S, 0.083, random.Random(3))
    lengths = [fragment.length_s for fragment in trace.fragments]
    short = [length for length in lengths if length < 600]
    assert len(short) / len(lengths) == pytest.approx(0.57, abs=0.02)
    assert sum(short) / sum(lengths) == pytest.approx(0.115, abs=0.015)
    assert sum(lengths) / (512 * 168 * HOUR_S) == pytest.approx(0.083, rel=0.07)
    # Idle nodes are as many at the start as later on.
    at_start = sum(fragment.idle_from_s == 0 for fragment in trace.fragments)
    assert at_start / 512 == pytest.approx(0.083, abs=0.04)


@pytest.mark.parametrize("idle_fraction", [0.02, 0.5, 0.9])
def test_the_idle_share_is_what_was_asked_for(idle_fraction: float) -> None:
    trace = generate(200, 168 * HOUR_S, idle_fraction, random.Random(5))
    idle_s = sum(fragment.length_s for fragment in trace.fragments)
    assert idle_s / (200 * 168 * HOUR_S) == pytest.approx(idle_fraction, rel=0.1)


def test_a_drawn_trace_is_a_proper_trace() -> None:
    trace = generate(20, 100 * HOUR_S, 0.6, random.Random(1))
    assert trace == generate(20, 100 * HOUR_S, 0.6, random.Random(1))
    assert trace != generate(20, 100 * HOUR_S, 0.6, random.Random(2))
    assert trace.nodes[0] == "n01"
    assert trace.nodes[-1] == "n20"
    for name in trace.nodes:
        own = [fragment for fragment in trace.fragments if fragment.node == name]
        assert all(before.idle_until_s < after.idle_from_s for before, after in itertools.pairwise(own))
    assert all(0 <= entry.idle_from_s < entry.idle_until_s <= 100 * HOUR_S for entry in trace.fragments)


@pytest.mark.parametrize(
    ("arguments", "field"), [((0, 9.0, 0.1), "nodes"), ((1, 0.0, 0.1), "duration_s"), ((1, 9.0, 1.0), "idle_fraction")]
)
def test_senseless_arguments_are_named(arguments: tuple[int, float, float], field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        generate(*arguments, random.Random(0))
    assert caught.value.field == field


def check_busy(excerpt: Trace) -> None:
    """Many joins and leaves in turn, mostly 2 to 8 nodes idle, some that stay, none for long without any."""
    assert (len(excerpt.nodes), excerpt.duration_s) == (8, 900)
    joins = [(entry.idle_from_s, 1) for entry in excerpt.fragments if 0 < entry.idle_from_s < 900]
    leaves = [(entry.idle_until_s, -1) for entry in excerpt.fragments if entry.idle_until_s < 900]
    idle = sum(entry.idle_from_s <= 0 for entry in excerpt.fragments)
    last = few = turns = direction = 0.0
    for time, change in sorted(joins + leaves):
        few += (time - last) * (idle < 2)
        turns += change == -direction
        idle, last, direction = idle + change, time, change
    assert min(len(joins), len(leaves)) >= 8
    assert turns >= 8
    assert few < 90
    shares = [
        sum(
            min(entry.idle_until_s, 900) - max(entry.idle_from_s, 0)
            for entry in excerpt.fragments
            if entry.node == name
        )
        / 900
        for name in excerpt.nodes
    ]
    assert max(shares) >= 0.8
    assert min(shares) > 0


@pytest.mark.parametrize("seed", range(4))
def test_a_busy_excerpt_of_a_drawn_trace(seed: int) -> None:
    trace = generate(256, 4 * HOUR_S, 0.1, random.Random(seed))
    excerpt = busy_excerpt(trace, 900, 8)
    check_busy(excerpt)
    assert excerpt == busy_excerpt(trace, 900, 8)


def test_a_busy_excerpt_of_summit(summit: Trace) -> None:
    excerpt = busy_excerpt(summit, 900, 8)
    check_busy(excerpt)
    assert set(excerpt.nodes) <= set(summit.nodes)


def test_an_excerpt_of_a_dull_trace_has_all_its_nodes() -> None:
    trace = generate(8, 2 * HOUR_S, 0.05, random.Random(2))
    excerpt = busy_excerpt(trace, 900, 8)
    assert excerpt.nodes == trace.nodes


def test_an_excerpt_that_the_trace_does_not_hold() -> None:
    trace = generate(8, HOUR_S, 0.3, random.Random(2))
    with pytest.raises(InvalidInputError, match="nodes: expected 1 to 8"):
        busy_excerpt(trace, 900, 9)
    with pytest.raises(InvalidInputError, match="duration_s: expected above 0 and at most the trace's 3600"):
        busy_excerpt(trace, 3601, 8)


def test_the_command_writes_a_trace(tmp_path: Path) -> None:
    out = tmp_path / "t.csv.gz"
    arguments = ["generate", "--nodes", "16", "--hours", "12", "--idle-fraction", "0.2", "--seed", "7"]
    done = CliRunner().invoke(trace_app, [*arguments, "--out", str(out)])
    assert done.exit_code == 0
    assert f"{out}: " in done.output
    assert read_trace(out) == generate(16, 12 * HOUR_S, 0.2, random.Random(7))


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["--out", "t.txt"], "t.txt"),
        (["--out", "no/such/folder/t.csv"], "--out"),
        (["--out", "t.csv", "--hours", "-1"], "--hours"),
        (["--out", "t.csv", "--idle-fraction", "2"], "--idle-fraction"),
    ],
)
def test_the_command_names_what_is_wrong(
    arguments: list[str], field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(trace_app, ["generate", "--nodes", "4", *arguments])
    assert isinstance(done.exception, InvalidInputError)
    assert done.exception.field == field
    assert list(tmp_path.iterdir()) == []
