"""The figures, by Bokeh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from bokeh.models import (
    AdaptiveTicker,
    ColumnDataSource,
    CompositeTicker,
    CustomJS,
    CustomJSHover,
    CustomJSTickFormatter,
    FactorRange,
    FixedTicker,
    HoverTool,
    NoOverlap,
    NumeralTickFormatter,
    Range1d,
    Whisker,
)
from bokeh.plotting import figure
from bokeh.themes import Theme
from bokeh.transform import linear_cmap, stack

from malletrain.dashboard.figures.colours import THEMES, Colours
from malletrain.dashboard.figures.columns import Columns
from malletrain.model.node_use import NodeUse
from malletrain.observer.history import USES

_HOUR_S, _DAY_S = 3600.0, 86_400.0
_NUMBER = """
for (const [size, unit] of [[1e15, "quadrillion"], [1e12, "trillion"], [1e9, "billion"], [1e6, "million"]]) {
  if (Math.abs(tick) >= size) return `${+(tick / size).toFixed(3)} ${unit}`;
}
return tick.toLocaleString("en-US", {maximumFractionDigits: 6});
"""
_TIME = """
const two = (number) => String(number).padStart(2, "0");
const at = new Date(tick), before = index > 0 ? new Date(ticks[index - 1]) : null;
const step = ticks.length > 1 ? ticks[1] - ticks[0] : 60000;
const month = at.toLocaleString("en-GB", {month: "short"}), year = at.getFullYear();
const otherYear = before === null || before.getFullYear() !== year;
if (step >= 28 * 86400000) return step >= 365 * 86400000 ? String(year) : `${month} ${year}`;
const day = `${two(at.getDate())} ${month}`;
if (step >= 86400000) return otherYear ? `${day}\\n${year}` : day;
const seconds = step < 60000 ? `:${two(at.getSeconds())}` : "";
const time = `${two(at.getHours())}:${two(at.getMinutes())}${seconds}`;
return before === null || before.toDateString() !== at.toDateString() ? `${time}\\n${day}` : time;
"""
_HOVER_TIME = """
const at = new Date(value), two = (number) => String(number).padStart(2, "0");
return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} `
  + `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
"""
_DURATION = """
const [by, unit] = tick < 60 ? [1, "s"] : tick < 3600 ? [60, "min"] : tick < 172800 ? [3600, "h"] : [86400, "d"];
return tick === 0 ? "0" : `${(+(tick / by).toFixed(2)).toLocaleString("en-US")} ${unit}`;
"""


def label_times(axis: Any) -> None:
    """Label times from seconds to years, as the browser's clock shows them.

    Below times of day stands the date, at the first tick and where it changes.
    """
    axis.major_label_policy = NoOverlap(min_distance=8)
    axis.formatter = CustomJSTickFormatter(code=_TIME)


def hover_time() -> CustomJSHover:
    """Has a tooltip show a time as the browser's clock does; its format is `custom`."""
    return CustomJSHover(code=_HOVER_TIME)


def label_numbers(*axes: Any) -> None:
    """Write numbers with separators of thousands, and large ones in words."""
    for axis in axes:
        axis.formatter = CustomJSTickFormatter(code=_NUMBER)
        axis.major_label_policy = NoOverlap(min_distance=8)


def label_durations(*axes: Any) -> None:
    """Write seconds as people say them, with ticks at whole seconds, minutes, hours and days."""
    for axis in axes:
        axis.ticker = CompositeTicker(
            tickers=[
                AdaptiveTicker(base=60, mantissas=[1, 2, 5, 10, 20, 30], max_interval=_HOUR_S / 2),
                AdaptiveTicker(base=24, mantissas=[1, 2, 3, 6, 12], min_interval=_HOUR_S, max_interval=_DAY_S / 2),
                AdaptiveTicker(base=10, mantissas=[1, 2, 5], min_interval=_DAY_S),
            ]
        )
        axis.formatter = CustomJSTickFormatter(code=_DURATION)
        axis.major_label_policy = NoOverlap(min_distance=8)


_TOOLS = "xpan,xwheel_zoom,xbox_zoom,reset"
_MAX_LABELS = 24
_NARROW_PX = 450
"""Plots that are less wide have no room for a legend in one line."""
_MAX_GAPS = 100
"""Rows up to which bars have gaps between them; gaps between narrower ones would only make them pale."""
_HATCHES = {NodeUse.BOOTING: "/", NodeUse.STALLED: "x", NodeUse.STOPPING: "."}


@cache
def theme_named(name: str) -> Theme:
    """How figures look in a theme."""
    return theme_of(THEMES[name])


def theme_of(colours: Colours) -> Theme:
    """How figures look in these colours."""
    font = "system-ui, 'DejaVu Sans', sans-serif"
    axis = {
        "axis_label_text_color": colours.text,
        "axis_label_text_font": font,
        "axis_label_text_font_style": "normal",
        "axis_label_text_font_size": "14px",
        "major_label_text_color": colours.text,
        "major_label_text_font": font,
        "major_label_text_font_size": "13px",
        "axis_line_color": colours.faint,
        "major_tick_line_color": colours.faint,
        "minor_tick_line_color": None,
    }
    legend = {
        "background_fill_color": colours.background,
        "background_fill_alpha": 0.85,
        "border_line_color": None,
        "label_text_color": colours.text,
        "label_text_font": font,
        "label_text_font_size": "13px",
    }
    plain = {
        "background_fill_color": colours.background,
        "border_fill_color": colours.background,
        "outline_line_color": None,
        "min_border_right": 24,
    }
    return Theme(
        json={"attrs": {"Plot": plain, "Axis": axis, "Grid": {"grid_line_color": colours.grid}, "Legend": legend}}
    )


def time_range(since: float, until: float) -> Range1d:
    """The times that the figures of a page share, from seconds since the epoch."""
    return Range1d(start=1000.0 * since, end=1000.0 * until, name="times")


def _bare(name: str, height: int, tools: str, **options: Any) -> Any:
    plot = figure(name=name, height=height, tools=tools, sizing_mode="stretch_width", **options)
    plot.toolbar.logo = None
    plot.toolbar.autohide = True
    return plot


def empty(name: str, x_range: Any, height: int, y_label: str, **options: Any) -> Any:
    """A figure over time."""
    time = {"x_range": x_range, "x_axis_type": "datetime", "active_drag": "xpan", "output_backend": "canvas"}
    plot = _bare(name, height, _TOOLS, y_axis_label=y_label, toolbar_location="right", **time, **options)
    label_times(plot.xaxis)
    label_numbers(plot.yaxis)
    plot.ygrid.grid_line_alpha = 1.0
    plot.xgrid.visible = False
    return plot


def from_zero(plot: Any, *ranges: Any) -> None:
    """Let ranges begin at 0, and give them an end where there are no data: without one no axes are drawn."""
    for axis_range in ranges:
        axis_range.start = 0
    # Not seen, but counted by ranges that follow their data.
    plot.scatter(x=[0], y=[0], visible=False)


def nodes_figure(x_range: Any, source: ColumnDataSource, names: Sequence[str], texts: Texts, colours: Colours) -> Any:
    """Node × time, coloured by job."""
    height = int(min(560, max(180, 60 + 22 * len(names))))
    plot = empty("nodes", x_range, height, "", y_range=Range1d(len(names) - 0.5 if names else 0.5, -0.5))
    palette = colours.palette
    bars = plot.hbar(
        source=source,
        y="row",
        height=0.92 if len(names) <= _MAX_GAPS else 1.0,
        left="left",
        right="right",
        fill_color=linear_cmap("colour", palette, -0.5, len(palette) - 0.5),
        line_color=None,
    )
    plot.add_tools(
        HoverTool(
            renderers=[bars],
            tooltips=[("node", "@row{custom}"), ("job", "@label{custom}"), ("from", "@left{custom}")],
            formatters={"@left": hover_time(), "@row": texts.nodes, "@label": texts.jobs},
        )
    )
    plot.ygrid.visible = False
    label_rows(plot, names)
    return plot


class Texts:
    """What the numbers of rows and labels of `nodes_figure` stand for, in the browser."""

    def __init__(self, texts: Mapping[str, Sequence[str]]) -> None:
        """Begin with these texts of `node` and `job`."""
        code = "return texts[value];"
        self.nodes = CustomJSHover(args={"texts": list(texts["node"])}, code=code)
        self.jobs = CustomJSHover(args={"texts": list(texts["job"])}, code=code)

    @property
    def jobs_known(self) -> int:
        """How many texts of `job` it has."""
        return len(self.jobs.args["texts"])

    def update(self, texts: Mapping[str, Sequence[str]]) -> None:
        """Take over texts that were not there before."""
        for formatter, known in ((self.nodes, texts["node"]), (self.jobs, texts["job"])):
            if len(known) != len(formatter.args["texts"]):
                formatter.args = {"texts": list(known)}


def _line(plot: Any, source: ColumnDataSource, x: str, y: str, color: str, **points: Any) -> Any:
    """A line with its points, so that a single one is seen. Returns the points."""
    plot.line(source=source, x=x, y=y, color=color, line_width=2.5)
    return plot.scatter(source=source, x=x, y=y, color=color, **points)


def _tell_points(plot: Any, points: Any, *tooltips: tuple[str, str]) -> None:
    """Have points over time say these things where they are pointed at."""
    plot.add_tools(HoverTool(renderers=[points], tooltips=list(tooltips), formatters={"@time": hover_time()}))


def legend_above(plot: Any, narrow_columns: int = 2) -> None:
    """Put the legend above the plot, in one line where there is room.

    Args:
        plot: The figure.
        narrow_columns: In how many columns it is on a narrow screen.
    """
    plot.legend.orientation = "horizontal"
    plot.legend.spacing = 18
    plot.add_layout(plot.legend[0], "above")
    fold = CustomJS(
        args={"legend": plot.legend[0], "columns": narrow_columns},
        code=f"legend.ncols = cb_obj.inner_width < {_NARROW_PX} ? columns : 'auto'",
    )
    plot.js_on_change("inner_width", fold)


def label_rows(plot: Any, names: Sequence[str]) -> None:
    """Write names of nodes at the rows of a figure: all, or as many as there is room for."""
    step = -(-len(names) // _MAX_LABELS) or 1
    places = list(range(0, len(names), step))
    plot.yaxis.ticker = FixedTicker(ticks=places)
    plot.yaxis.major_label_overrides = {place: names[place] for place in places}
    plot.y_range.start = len(names) - 0.5 if names else 0.5


def use_figure(x_range: Any, source: ColumnDataSource, colours: Colours) -> Any:
    """Idle nodes by use, stacked. The source has a row at least: Bokeh's areas of steps never end without one."""
    plot = empty("use", x_range, 240, "idle nodes")
    from_zero(plot, plot.y_range)
    names = [use.value for use in USES]
    for place, use in enumerate(USES):
        plot.varea_step(
            source=source,
            x="time",
            y1=stack(*names[:place]) if place else 0,
            y2=stack(*names[: place + 1]),
            step_mode="after",
            fill_color=colours.uses[use],
            hatch_pattern=_HATCHES.get(use),
            hatch_color=colours.background,
            hatch_alpha=0.55,
            hatch_scale=8,
        )
    # Areas are pointed at by what lies at the same time on their upper edge.
    edge = plot.line(source=source, x="time", y=stack(*names), line_alpha=0.0)
    tooltips = [("from", "@time{custom}"), *((name, f"@{name}{{0.0}} nodes") for name in names)]
    hover = {"formatters": {"@time": hover_time()}, "mode": "vline", "line_policy": "prev"}
    plot.add_tools(HoverTool(renderers=[edge], tooltips=tooltips, **hover))
    return plot


def samples_figure(x_range: Any, source: ColumnDataSource, colours: Colours) -> Any:
    """Samples per second, trained and if rescaling were free."""
    plot = empty("samples", x_range, 220, "samples/s")
    from_zero(plot, plot.y_range)
    common = {"source": source, "x": "time", "line_width": 2.5, "mode": "after"}
    plot.step(y="trained", color=colours.first, legend_label="trained", **common)
    plot.step(y="free", color=colours.second, line_dash="dashed", legend_label="if rescaling were free", **common)
    legend_above(plot)
    return plot


def course_figure(x_range: Any, source: ColumnDataSource, colours: Colours) -> Any:
    """Samples over the past: as it was, as it would have been, and if rescaling were free."""
    plot = empty("course", x_range, 300, "samples so far")
    from_zero(plot, plot.y_range)
    lines = (
        ("really", "really", colours.text, "solid"),
        ("replay", "this what-if", colours.first, "solid"),
        ("free", "if rescaling were free", colours.second, "dashed"),
    )
    for column, label, colour, dash in lines:
        plot.line(source=source, x="time", y=column, color=colour, line_width=2.5, line_dash=dash, legend_label=label)
    tooltips = [("at", "@time{custom}"), *((label, f"@{column}{{0,0}}") for column, label, _, _ in lines)]
    hover = {"formatters": {"@time": hover_time()}, "mode": "vline"}
    plot.add_tools(HoverTool(renderers=plot.renderers[-1:], tooltips=tooltips, **hover))
    legend_above(plot)
    return plot


def releases_figure(x_range: Any, source: ColumnDataSource, colours: Colours) -> Any:
    """How long nodes that were taken back were not free yet."""
    plot = empty("releases", x_range, 220, "seconds until free")
    from_zero(plot, plot.y_range)
    dots = plot.scatter(source=source, x="time", y="seconds", color=colours.first, size=9, marker="diamond")
    _tell_points(plot, dots, ("job", "@job"), ("at", "@time{custom}"), ("free after", "@seconds{0.00} s"))
    return plot


def scale_figure(x_range: Any, source: ColumnDataSource, marks: ColumnDataSource, colours: Colours) -> Any:
    """Nodes of a job over time, with rescales and preemptions."""
    plot = empty("scale", x_range, 240, "nodes")
    from_zero(plot, plot.y_range)
    line = {"source": source, "x": "time", "y": "nodes", "color": colours.first, "line_width": 2.5}
    plot.step(mode="after", legend_label="commanded nodes", **line)
    look = {"size": 12, "marker": "marker", "color": "colour", "line_color": colours.text}
    dots = plot.scatter(source=marks, x="time", y="nodes", legend_field="kind", **look)
    _tell_points(plot, dots, ("what", "@kind"), ("nodes", "@nodes"), ("at", "@time{custom}"))
    legend_above(plot)
    return plot


def rate_figure(x_range: Any, source: ColumnDataSource, colours: Colours) -> Any:
    """Samples per second of a job over time."""
    plot = empty("rate", x_range, 220, "samples/s")
    from_zero(plot, plot.y_range)
    dots = _line(plot, source, "time", "rate", color=colours.first, size=5)
    _tell_points(plot, dots, ("at", "@time{custom}"), ("rate", "@rate{0,0.0} samples/s"), ("nodes", "@nodes"))
    return plot


def metric_figure(
    number: int, metric: str, x_range: Any, source: ColumnDataSource, marks: ColumnDataSource, colours: Colours
) -> Any:
    """What a script has logged of one metric over time, with vertical lines where its scale changed."""
    plot = empty(f"metric-{number}", x_range, 220, metric)
    plot.vspan(x="time", source=marks, line_color="colour", line_dash="dashed", line_width=1.5)
    plot.varea(x="time", y1="least", y2="most", source=source, fill_color=colours.first, fill_alpha=0.2)
    dots = _line(plot, source, "time", "value", color=colours.first, size=4)
    _tell_points(
        plot, dots, ("step", "@step{0,0}"), ("value", "@value"), ("at", "@time{custom}"), ("values", "@values")
    )
    return plot


def plain(name: str, height: int, x_label: str, y_label: str, **options: Any) -> Any:
    """A figure that is not over time."""
    plot = _bare(name, height, "pan,wheel_zoom,reset", x_axis_label=x_label, y_axis_label=y_label, **options)
    label_numbers(plot.xaxis, plot.yaxis)
    return plot


def curve_figure(source: ColumnDataSource, line: ColumnDataSource, colours: Colours) -> Any:
    """A job's scaling curve with the intervals of its points, and the shape that was fitted to those measured."""
    plot = plain("curve", 280, "nodes", "samples/s")
    from_zero(plot, plot.x_range, plot.y_range)
    shape = {"color": colours.second, "line_width": 2.5, "line_dash": "dashed"}
    plot.line(source=line, x="nodes", y="rate", legend_label="fit", **shape)
    dots = _line(plot, source, "nodes", "rate", color=colours.first, size=10, marker="marker", legend_field="source")
    whisker = Whisker(base="nodes", lower="low", upper="high", source=source, line_color=colours.faint)
    whisker.upper_head.line_color = whisker.lower_head.line_color = colours.faint
    plot.add_layout(whisker)
    # Not seen: ranges follow glyphs, not whiskers.
    plot.scatter(source=source, x="nodes", y="high", visible=False)
    tooltips = [("nodes", "@nodes"), ("rate", "@rate{0,0.0} samples/s"), ("from", "@source, @steps steps")]
    plot.add_tools(HoverTool(renderers=[dots], tooltips=tooltips))
    legend_above(plot)
    return plot


def stalls_figure(x_range: Any, source: ColumnDataSource) -> Any:
    """How long a job stood still for its rescales."""
    plot = empty("stalls", x_range, 220, "stall in seconds")
    from_zero(plot, plot.y_range)
    dots = plot.scatter(
        source=source, x="time", y="seconds", size=10, marker="marker", color="colour", legend_field="kind"
    )
    _tell_points(plot, dots, ("rescale", "@change nodes"), ("stall", "@seconds{0.00} s"), ("at", "@time{custom}"))
    legend_above(plot)
    return plot


def worth_figure(source: ColumnDataSource, jobs: Sequence[str], colours: Colours) -> Any:
    """What one node more and one fewer is worth to each job of a plan."""
    axes = {"y_range": FactorRange(*worth_rows(jobs)), "x_axis_label": "objective per node"}
    plot = _bare("worth", worth_height(len(jobs)), "xpan,xwheel_zoom,reset", **axes)
    label_numbers(plot.xaxis)
    plot.scatter(x=[0], y=[""], visible=False)
    plot.ygrid.visible = False
    for row, worth, colour, label in (
        ("fewer_row", "one_fewer", colours.first, "lost with one node fewer"),
        ("more_row", "one_more", colours.second, "gained with one node more"),
    ):
        plot.hbar(source=source, y=row, right=worth, height=0.34, color=colour, legend_label=label)
    legend_above(plot, narrow_columns=1)
    return plot


def worth_rows(jobs: Sequence[str]) -> list[str]:
    """Rows of `worth_figure`, from below; an empty one without jobs, so that there are axes."""
    return list(reversed(jobs)) or [""]


def worth_height(jobs: int) -> int:
    """Height of `worth_figure` in pixels."""
    return min(900, 130 + 28 * jobs)


def _mark_age(plot: Any, mark: ColumnDataSource | None, y: str, node: str, colours: Colours) -> None:
    """Mark how long the chosen node has been idle by now."""
    if mark is not None:
        point = {"size": 13, "marker": "diamond", "color": colours.text, "legend_label": f"{node} now"}
        plot.scatter(source=mark, x="seconds", y=y, **point)
        legend_above(plot)


def survival_figure(
    source: ColumnDataSource, colours: Colours, mark: ColumnDataSource | None = None, node: str = ""
) -> Any:
    """How long nodes stay idle, and how long the chosen node has been."""
    plot = plain("survival", 260, "idle for", "share that lasts longer")
    label_durations(plot.xaxis)
    plot.y_range.end = 1.02
    from_zero(plot, plot.x_range, plot.y_range)
    plot.yaxis.formatter = NumeralTickFormatter(format="0 %")
    plot.line(source=source, x="seconds", y="share", color=colours.first, line_width=2.5)
    _mark_age(plot, mark, "share", node, colours)
    return plot


def stay_figure(
    source: ColumnDataSource, colours: Colours, mark: ColumnDataSource | None = None, node: str = ""
) -> Any:
    """How much longer a node stays that has been idle for a time, and how long the chosen node has been."""
    plot = plain("stay", 260, "idle for so far", "expected further stay")
    label_durations(plot.xaxis, plot.yaxis)
    from_zero(plot, plot.x_range, plot.y_range)
    plot.line(source=source, x="seconds", y="stay", color=colours.second, line_width=2.5)
    _mark_age(plot, mark, "stay", node, colours)
    return plot


@dataclass(frozen=True)
class Course:
    """What a job has logged of a metric.

    Attributes:
        job_id: The job.
        label: What it is called beside its identifier: its parameters, or its name.
        steps: Step of each point.
        values: Its value.
    """

    job_id: str
    label: str
    steps: Sequence[int]
    values: Sequence[float]


def course_lines(courses: Sequence[Course], colours: Colours) -> Columns:
    """A line for each job."""
    return {
        "job": [course.job_id for course in courses],
        "label": [course.label for course in courses],
        "steps": [list(course.steps) for course in courses],
        "values": [list(course.values) for course in courses],
        "colour": [colours.of_job(course.job_id) for course in courses],
        "dash": [colours.dash_of_job(course.job_id) for course in courses],
    }


def comparison_figure(source: ColumnDataSource, metric: str) -> Any:
    """The figure; see `course_lines`."""
    plot = plain("compare", 420, "step", metric)
    lines = plot.multi_line(
        xs="steps",
        ys="values",
        source=source,
        line_color="colour",
        line_dash="dash",
        line_width=2,
        hover_line_width=4,
        hover_line_color="colour",
    )
    tips = [("job", "@job @label"), ("step", "$data_x{0,0}"), ("value", "$data_y")]
    plot.add_tools(HoverTool(renderers=[lines], tooltips=tips, line_policy="nearest"))
    return plot
