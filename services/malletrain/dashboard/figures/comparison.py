"""The figure in which several jobs are compared: a line for each, in the colour that the job has everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bokeh.models import ColumnDataSource, HoverTool

from malletrain.dashboard.figures import plots
from malletrain.dashboard.figures.colours import Colours
from malletrain.dashboard.figures.columns import Columns


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
    plot = plots.plain("compare", 420, "step", metric)
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
