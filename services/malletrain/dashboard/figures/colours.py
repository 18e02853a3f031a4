"""Colours that people with colour-blindness tell apart, in light and dark. Pure.

Those of uses and lines are after Okabe and Ito (2008). Those of jobs are ten that are as far apart as was found,
for all kinds of eyes (Machado, Oliveira and Fernandes 2009), and stand out from the background.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from malletrain.model.node_use import NodeUse

LIGHT, DARK = "light", "dark"
_DASHES = ("solid", "dashed", "dotted", "dotdash")


@dataclass(frozen=True)
class Colours:
    """The colours of a theme.

    Attributes:
        background: Behind everything.
        text: Of text, at least 7:1 against the background.
        faint: Of axes and lesser text, at least 4.5:1.
        grid: Of grid lines.
        uses: Of node-seconds by use.
        jobs: Of jobs, in turn. A job has about the same hue in all themes, as far as ten can be told apart.
        first: Of the first line of a figure.
        second: Of the second.
    """

    background: str
    text: str
    faint: str
    grid: str
    uses: Mapping[NodeUse, str]
    jobs: tuple[str, ...]
    first: str
    second: str

    @property
    def palette(self) -> tuple[str, ...]:
        """The colours of nodes without a job and of jobs, by `place_of_job`; then the same ones faded."""
        whole = (self.uses[NodeUse.UNASSIGNED], *self.jobs)
        return (*whole, *(f"{colour}40" for colour in whole))

    def place_of_job(self, job_id: str) -> int:
        """Place of a job's colour in the palette; 0, that of unassigned nodes, without one."""
        digits = job_id.lstrip("j")
        return 1 + int(digits) % len(self.jobs) if digits.isdecimal() else 0

    def dash_of_job(self, job_id: str) -> str:
        """How a job's line is drawn: those of jobs that have the same colour differ, as far as there are ways."""
        digits = job_id.lstrip("j")
        return _DASHES[int(digits) // len(self.jobs) % len(_DASHES)] if digits.isdecimal() else _DASHES[0]

    def of_job(self, job_id: str) -> str:
        """Colour of a job; that of unassigned nodes without one."""
        return self.palette[self.place_of_job(job_id)]


THEMES = {
    LIGHT: Colours(
        "#ffffff",
        "#1c1f24",
        "#565d68",
        "#e3e6ea",
        {
            NodeUse.TRAINING: "#0072b2",
            NodeUse.BOOTING: "#e69f00",
            NodeUse.STALLED: "#c04a00",
            NodeUse.STOPPING: "#b5599a",
            NodeUse.UNASSIGNED: "#c4c9d0",
        },
        ("#0072b2", "#f0503c", "#28c878", "#a028f0", "#f0a000", "#14148c", "#a05078", "#640028", "#8c0000", "#502864"),
        "#0072b2",
        "#c04a00",
    ),
    DARK: Colours(
        "#15181d",
        "#eceff3",
        "#aab2bd",
        "#2c323a",
        {
            NodeUse.TRAINING: "#4aa8e0",
            NodeUse.BOOTING: "#f0b429",
            NodeUse.STALLED: "#f0763a",
            NodeUse.STOPPING: "#d98cc3",
            NodeUse.UNASSIGNED: "#5b636e",
        },
        ("#4aa8e0", "#f06464", "#b4f0b4", "#8c14f0", "#f0b450", "#00f0f0", "#f0f000", "#a01428", "#dc0000", "#8c00a0"),
        "#4aa8e0",
        "#f0763a",
    ),
}
