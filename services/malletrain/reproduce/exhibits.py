"""Exhibits: the reproduced figures and tables beside the published numbers, and the files in which they are written."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from malletrain.common.files import write_atomically
from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.report.page import as_markup, render
from malletrain.simulator.report.plots import Chart
from malletrain.simulator.report.wording import NONE

Cell = str | float | int | None


@dataclass(frozen=True)
class Exhibit:
    """One figure or table of the paper.

    Attributes:
        name: Stem of its files.
        title: As in the paper.
        columns: Column heads of its numbers.
        rows: Its numbers, as in the CSV file.
        remark: What the paper reports, and where and why ours differs.
        figure: The chart; None for a table.
        measured: Whether it contains wall-clock times, which differ from run to run. The page then has neither its
            chart nor its numbers and only links to the files, so that the same command gives the same page.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    remark: str
    figure: Chart | None = None
    measured: bool = False

    def csv(self) -> str:
        """The numbers as CSV."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([["" if cell is None else cell for cell in row] for row in self.rows])
        return buffer.getvalue()


def round_cells(rows: Sequence[Sequence[Cell]], digits: int = 4) -> tuple[tuple[Cell, ...], ...]:
    """Rows with fractions rounded to so many significant digits."""
    return tuple(tuple(_round_cell(cell, digits) for cell in row) for row in rows)


def _round_cell(cell: Cell, digits: int) -> Cell:
    return float(f"{cell:.{digits}g}") if isinstance(cell, float) else cell


PAGE = "report.html"
_MAX_ROWS = 40


@dataclass(frozen=True)
class PageExhibit:
    """An exhibit on the page.

    Attributes:
        drawing: Its chart; None: the page links to the file, if there is one.
        rows: Its numbers in words; empty if there are too many for the page.
    """

    exhibit: Exhibit
    drawing: Markup | None
    rows: tuple[tuple[str, ...], ...]


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
        template: Template of the page.

    Raises:
        InvalidInputError: a file can't be written; the option is `--out`.
    """
    written, page_exhibits = [folder / PAGE], []
    try:
        for exhibit in exhibits:
            table = folder / f"{exhibit.name}.csv"
            table.write_text(exhibit.csv(), encoding="utf-8")
            written.append(table)
            drawing = None
            if exhibit.figure is not None:
                (folder / f"{exhibit.name}.png").write_bytes(exhibit.figure.png())
                written.append(folder / f"{exhibit.name}.png")
                drawing = None if exhibit.measured else as_markup(exhibit.figure)
            short = len(exhibit.rows) <= _MAX_ROWS and not exhibit.measured
            rows = tuple(tuple(cell_text(cell) for cell in row) for row in exhibit.rows) if short else ()
            page_exhibits.append(PageExhibit(exhibit, drawing, rows))
        page = render(template, shown=page_exhibits, options=options, sources=sources)
        write_atomically(folder / PAGE, page)
    except OSError as error:
        raise InvalidInputError("--out", f"a folder that can be written ({error})", str(folder)) from error
    return written


def cell_text(cell: Cell) -> str:
    """A number of a table for people: with separators of thousands, and no more digits than count."""
    if isinstance(cell, str):
        return cell
    if cell is None or not math.isfinite(cell):
        return NONE
    if isinstance(cell, int) or abs(cell) >= 1000 or cell == round(cell):
        return f"{cell:,.0f}"
    return "< 0.0001" if 0 < abs(cell) < 1e-4 else f"{cell:.4g}"
