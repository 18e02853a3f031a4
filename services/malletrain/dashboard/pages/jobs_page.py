"""The page Jobs."""

from __future__ import annotations

from malletrain.dashboard.pages import views
from malletrain.dashboard.pages.markup import STATES, Regions, Section
from malletrain.dashboard.pages.page import Page

_SECTIONS = (
    Section(
        "table",
        "jobs",
        "",
        "Jobs that have not ended first, then those of the last 24 hours. Done in: at the present scale; in "
        "brackets on as many nodes as were idle in the best and the worst tenth of the last hour.",
        (
            *("job", "name", "owner", "state", "why", "nodes", "permitted", "samples/s", "progress", "done in"),
            *("rescales", "preemptions"),
        ),
        (5, 6, 7, 8, 9, 10, 11),
        states=STATES,
    ),
)


_NO_JOBS = "No jobs in the last 24 hours. One is submitted by: malletrain submit -- python train.py"


class JobsPage(Page):
    """All jobs."""

    name = "jobs"
    title = "Jobs"
    sections = _SECTIONS

    def regions(self) -> Regions:
        """The parts that change."""
        rows = views.job_rows(self.history, self.colours, self.selection)
        return Regions({}, {"jobs": rows}, {"jobs": _NO_JOBS})
