"""`python -m tools.docs.drawing`: draws `docs/architecture.svg` from what stands here.

Fonts and colours are plain, so that it can be read on paper, on GitHub, and on a light or dark page.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

PATH = Path(__file__).parents[2] / "docs/architecture.svg"

_WIDTH, _HEIGHT = 960, 560
_STYLE = """
  text { font: 14px sans-serif; fill: #1a1a2e; text-anchor: middle }
  .name { font-weight: bold }
  .note { font-size: 12px; fill: #44445a }
  .label { font-size: 12px; fill: #30307a }
  rect { stroke: #44445a; stroke-width: 1.2; rx: 6 }
  .outside { fill: #f1f1f4; stroke-dasharray: 5 3 }
  .service { fill: #dfe8fb }
  .node { fill: #e3f4e3 }
  path { stroke: #30307a; stroke-width: 1.4; fill: none; marker-end: url(#head) }
"""


@dataclass(frozen=True)
class Box:
    """A process or a system.

    Attributes:
        kind: `service`, `node` (on a node of a job) or `outside`.
        name: What it is called.
        notes: What it does, in lines.
        x, y, width, height: Where it is, in pixels from the upper left corner.
    """

    kind: str
    name: str
    notes: tuple[str, ...]
    x: int
    y: int
    width: int = 190
    height: int = 64

    def svg(self) -> str:
        """The box as an element."""
        middle = self.x + self.width // 2
        first = self.y + self.height // 2 + 5 - 8 * len(self.notes)
        lines = [f'<text class="name" x="{middle}" y="{first}">{escape(self.name)}</text>']
        lines += [
            f'<text class="note" x="{middle}" y="{first + 16 * number}">{escape(note)}</text>'
            for number, note in enumerate(self.notes, 1)
        ]
        size = f'x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}"'
        return "\n".join([f'<rect class="{self.kind}" {size}/>', *lines])


@dataclass(frozen=True)
class Arrow:
    """What one tells another.

    Attributes:
        points: Corners of the line, the head last.
        label: What is told, in lines.
        at: Where the middle of the first line of the label stands.
    """

    points: tuple[tuple[int, int], ...]
    label: tuple[str, ...]
    at: tuple[int, int]

    def svg(self) -> str:
        """The arrow as elements."""
        line = " L".join(f"{x},{y}" for x, y in self.points)
        texts = [
            f'<text class="label" x="{self.at[0]}" y="{self.at[1] + 15 * number}">{escape(text)}</text>'
            for number, text in enumerate(self.label)
        ]
        return "\n".join([f'<path d="M{line}"/>', *texts])


BOXES = (
    Box("outside", "Slurm or PBS", ("the main queue",), 20, 40),
    Box("service", "Scavenger", ("which nodes are idle,", "and holds them"), 270, 40),
    Box("service", "Allocator", ("which job gets which nodes",), 520, 40),
    Box("service", "Profiler", ("one scaling curve per job",), 755, 40, 185),
    Box("outside", "command, dashboard", ("of users and operators",), 20, 215),
    Box("service", "JobManager", ("queue, states, journal;", "releases nodes"), 395, 215),
    Box("service", "Monitor", ("progress, rates, stalls",), 755, 215, 185),
    Box("node", "agent", ("one per held node:", "starts and ends workers"), 20, 425, 190, 76),
    Box("node", "supervisor", ("one per job: launcher,", "membership, rendezvous"), 395, 425, 190, 76),
    Box("node", "workers", ("the training; on rank 0 the", "client and its sidecar"), 745, 425, 195, 76),
)

ARROWS = (
    Arrow(((210, 72), (270, 72)), ("idle",), (240, 64)),
    Arrow(((20 + 95, 104), (20 + 95, 150), (320, 150), (320, 104)), ("wants a node back",), (218, 143)),
    Arrow(((460, 72), (520, 72)), ("joins,", "leaves"), (490, 50)),
    Arrow(((755, 72), (710, 72)), ("curves",), (732, 62)),
    Arrow(((430, 104), (430, 215)), ("leaves,", "at once"), (403, 158)),
    Arrow(((560, 104), (560, 215)), ("plan",), (580, 165)),
    Arrow(((755, 247), (585, 247)), ("progress",), (670, 239)),
    Arrow(((847, 215), (847, 104)), ("measured points,", "stalls"), (903, 158)),
    Arrow(((210, 247), (395, 247)), ("submit, cancel, watch",), (278, 239)),
    Arrow(((490, 279), (490, 425)), ("commands, by a Unix socket",), (585, 350)),
    Arrow(((395, 463), (210, 463)), ("starts workers of other nodes",), (302, 455)),
    Arrow(((585, 463), (745, 463)), ("rank, world size",), (665, 455)),
    Arrow(((845, 425), (845, 279)), ("records,", "acknowledged"), (893, 350)),
    Arrow(((115, 425), (115, 330), (350, 330), (350, 104)), ("connected, wanted back",), (232, 322)),
)


def draw() -> str:
    """The drawing as SVG."""
    head = (
        '<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0,0 L10,5 L0,10 z" style="fill:#30307a;stroke:none;marker-end:none"/></marker>'
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
            "<title>Five services, one supervisor per job, one agent per node</title>",
            f"<style>{_STYLE}</style>",
            f"<defs>{head}</defs>",
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" style="fill:#fff;stroke:none"/>',
            *(arrow.svg() for arrow in ARROWS),
            *(box.svg() for box in BOXES),
            '<text class="note" x="480" y="545">'
            "blue: services, on the head node · green: in the training environment · dashed: others and clients</text>",
            "</svg>",
            "",
        ]
    )


if __name__ == "__main__":
    PATH.write_text(draw(), encoding="utf-8")
