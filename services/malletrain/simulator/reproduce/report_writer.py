"""Writes the reproduction: PNG and CSV of every exhibit, and one HTML page with all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.report.page import render
from malletrain.simulator.report.plots import as_source, png
from malletrain.simulator.reproduce.exhibits import Exhibit

PAGE = "report.html"
_MOST_ROWS = 40


@dataclass(frozen=True)
class PageExhibit:
    """An exhibit on the page; `rows` is empty if there are too many for the page."""

    exhibit: Exhibit
    source: str | None
    rows: tuple[tuple[object, ...], ...]


def write_report(
    exhibits: Sequence[Exhibit],
    options: ReplayOptions,
    sources: Sequence[str],
    folder: Path,
    template: str = "reproduce.html",
) -> list[Path]:
    """Write all files into an existing folder.

    Args:
        exhibits: Exhibits in the order of the paper.
        options: Options that all replays share.
        sources: Names of trace and job sets, for the page.
        folder: The folder.
        template: Template of the page.

    Raises:
        OSError: a file can't be written.
    """
    written, shown = [folder / PAGE], []
    for exhibit in exhibits:
        table = folder / f"{exhibit.name}.csv"
        table.write_text(exhibit.csv(), encoding="utf-8")
        written.append(table)
        source = None
        if exhibit.figure is not None:
            content = png(exhibit.figure)
            (folder / f"{exhibit.name}.png").write_bytes(content)
            written.append(folder / f"{exhibit.name}.png")
            source = f"{exhibit.name}.png" if exhibit.measured else as_source(content)
        short = len(exhibit.rows) <= _MOST_ROWS and not exhibit.measured
        shown.append(PageExhibit(exhibit, source, exhibit.rows if short else ()))
    page = render(template, shown=shown, options=options, sources=sources)
    (folder / PAGE).write_text(page, encoding="utf-8")
    return written
