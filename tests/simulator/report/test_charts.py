"""Charts: labels that are read, nothing hidden, and the same bytes each time."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from malletrain.simulator.replay.records import DAY_S, HOUR_S
from malletrain.simulator.report.axes import Axis, Kind, TimeAxis
from malletrain.simulator.report.plots import (
    NARROW_INCHES,
    WIDE_INCHES,
    Chart,
    Mark,
    bars,
    lines,
    stack_layers,
    time_bars,
)

YEAR_S = 365.25 * DAY_S
LENGTHS = {
    "a minute": 60.0,
    "an hour": HOUR_S,
    "two hours and a bit": 2.2 * HOUR_S,
    "a day": DAY_S,
    "three days": 3 * DAY_S,
    "a week": 7 * DAY_S,
    "ten days": 10 * DAY_S,
    "a month": 31 * DAY_S,
    "a month less two seconds": 30 * DAY_S - 2,
    "a quarter": 90 * DAY_S,
    "a year": YEAR_S,
    "two years and a half": 2.5 * YEAR_S,
    "three years": 3 * YEAR_S,
    "twenty years": 20 * YEAR_S,
    "56 years": 56 * YEAR_S,
}
ORIGINS = ("2021-02-10T20:21:15", "2026-01-01T00:00:31", "2026-03-29T00:30:00+01:00", None)


def drawn(chart: Chart, width: float) -> tuple[Any, Any]:
    """The axes of a drawn chart, and what measures its texts."""
    figure = chart.figure(width, titled=False)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return figure.axes[0], canvas.get_renderer()


def labels(axis: Any) -> list[Any]:
    """The labels of an axis that are seen."""
    low, high = sorted(axis.get_view_interval())
    pairs = zip(axis.get_majorticklocs(), axis.get_ticklabels(), strict=True)
    return [label for place, label in pairs if low <= place <= high and label.get_text()]


def over_time(duration_s: float, origin: str | None) -> Chart:
    edges = np.linspace(0.0, duration_s, 41)
    values = [float(place % 7) * 3e8 for place in range(40)]
    return time_bars("bars", TimeAxis.of(origin, duration_s), Axis("samples", zero=True), edges, {"a": values})


@pytest.mark.parametrize("width", [WIDE_INCHES, NARROW_INCHES])
@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("length", LENGTHS)
def test_labels_of_time_are_read_from_an_hour_to_years(length: str, origin: str | None, width: float) -> None:
    axes, renderer = drawn(over_time(LENGTHS[length], origin), width)
    found = labels(axes.xaxis)
    assert 2 <= len(found) <= 16, [label.get_text() for label in found]
    boxes = sorted((label.get_window_extent(renderer) for label in found), key=lambda box: box.x0)
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes)), [label.get_text() for label in found]
    texts = [label.get_text() for label in found]
    assert all(before != after for before, after in itertools.pairwise(texts))
    if origin is None:
        assert axes.get_xlabel().endswith("since the trace begins")
    else:
        assert origin[:4] in axes.get_xlabel()


@pytest.mark.parametrize("most", [0.003, 1.0, 12.0, 4_000.0, 250_000.0, 3.1e6, 9.122e12, 4e20])
@pytest.mark.parametrize("log", [False, True])
def test_numbers_have_no_offset_and_no_power_of_ten(most: float, log: bool) -> None:
    series = {"a": ([1.0, 2.0, 3.0], [most / 900, most / 3, most])}
    axes, _ = drawn(lines("x", "nodes", Axis("samples", log=log), series), WIDE_INCHES)
    texts = [label.get_text() for label in labels(axes.yaxis)]
    assert texts
    assert axes.yaxis.get_offset_text().get_text() == ""
    if most < 1e18:
        assert not any("e" in text.replace("trillion", "").replace("million", "") for text in texts), texts
        assert not any("mathdefault" in text for text in texts), texts


def test_large_numbers_are_counted_in_words() -> None:
    axes, _ = drawn(lines("x", "nodes", "samples", {"a": ([1.0, 2.0], [0.0, 9.1e9])}), WIDE_INCHES)
    assert axes.get_ylabel() == "samples, billions"
    assert "8" in [label.get_text() for label in labels(axes.yaxis)]


def test_shares_and_lengths_of_time_are_written_as_such() -> None:
    axis = Axis("length", Kind.SECONDS, log=True)
    axes, _ = drawn(
        lines("x", axis, Axis(kind=Kind.SHARE, zero=True), {"a": ([10.0, 90_000.0], [0.0, 1.0])}), WIDE_INCHES
    )
    assert [label.get_text() for label in labels(axes.xaxis)] == ["10 s", "1 min", "10 min", "1 h", "6 h", "1 d"]
    assert [label.get_text() for label in labels(axes.yaxis)][:2] == ["0 %", "20 %"]


def test_one_bar_is_no_chart() -> None:
    assert bars("x", "hours", ["ShuffleNet"], {"hours": [1.9]}) is None
    assert bars("x", "hours", ["a", "b"], {"hours": [1.9, None]}) is not None
    assert bars("x", "hours", ["a"], {"ours": [1.9], "theirs": [2.0]}) is not None


def test_no_layer_lies_behind_another_and_none_is_too_thin_to_be_seen() -> None:
    x, edges = TimeAxis.of(None, 100.0), [0.0, 50.0, 100.0]
    axes, _ = drawn(stack_layers("x", x, "nodes", edges, {"used": [10.0, 20.0], "free": [5.0, 0.0]}), WIDE_INCHES)
    used, free = (patch.get_data() for patch in axes.patches)
    assert used.values.tolist() == [10.0, 20.0]
    assert free.baseline.tolist() == [10.0, 20.0]
    assert free.values.tolist() == [15.0, 20.0]
    axes, _ = drawn(stack_layers("x", x, "nodes", edges, {"used": [10.0, 20.0], "free": [0.1, 0.0]}), WIDE_INCHES)
    assert len(axes.patches) == 1


def test_what_is_published_is_drawn_hollow_in_the_colour_of_ours() -> None:
    chart = lines("x", "T", "U", {"milp": ([1.0, 2.0], [0.8, 0.9])}, published={"milp": ([1.0], [0.75])})
    axes, _ = drawn(chart, WIDE_INCHES)
    ours, theirs, _ = axes.lines
    assert theirs.get_ydata().tolist() == [0.75]
    assert theirs.get_color() == ours.get_color()
    assert theirs.get_markerfacecolor() != theirs.get_color()
    assert [text.get_text() for text in axes.get_figure().legends[0].texts] == ["milp", "published"]


def test_published_marks_of_bars_stand_at_our_bars() -> None:
    chart = bars("x", "U", ["a", "b"], {"U": [0.7, 0.8]}, published={"U": [0.75, None]})
    assert chart is not None
    axes, _ = drawn(chart, WIDE_INCHES)
    places, values = axes.lines[0].get_data()
    assert values[0] == 0.75
    assert np.isnan(values[1])
    assert places[0] == pytest.approx(axes.patches[0].get_x() + axes.patches[0].get_width() / 2)


@pytest.mark.parametrize("width", [WIDE_INCHES, NARROW_INCHES])
def test_legends_fit_in_the_chart(width: float) -> None:
    many = {f"a system with a long name, number {place}": ([1.0, 2.0], [1.0, float(place)]) for place in range(9)}
    axes, renderer = drawn(lines("x", "nodes", "samples", many), width)
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    box = figure.legends[0].get_window_extent(renderer)
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1


@pytest.mark.parametrize("name", ["$", "$x^{", r"\frac", "a\x00b", "<script>", "\u202e", "x" * 300])
def test_any_name_can_be_drawn(name: str) -> None:
    chart = bars(name, "hours", [name, "b"], {name: [1.0, 2.0]}, published={name: [1.5, None]})
    assert chart is not None
    assert chart.png().startswith(b"\x89PNG")


def test_the_same_chart_gives_the_same_bytes() -> None:
    mark = Mark("mean", 1.0, 0.5, 1.5)
    first, second = (
        time_bars("x", TimeAxis.of(ORIGINS[0], DAY_S), "n", [0.0, 1.0, DAY_S], {"a": [1.0, 2.0]}, marks=[mark])
        for _ in range(2)
    )
    assert first.png() == second.png()


def test_a_time_that_no_calendar_has_is_counted_from_the_beginning() -> None:
    assert TimeAxis.of("9999-12-31T00:00:00", YEAR_S).begin is None
    assert TimeAxis.of("no time", YEAR_S).begin is None
    assert TimeAxis.of(None, 50 * DAY_S).label == "days since the trace begins"
