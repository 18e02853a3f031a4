"""Exhibits: the reproduced figures and tables, with our numbers beside the published ones."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from malletrain.simulator.report.plots import Chart

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


def rounded(rows: Sequence[Sequence[Cell]], digits: int = 4) -> tuple[tuple[Cell, ...], ...]:
    """Rows with fractions rounded to so many significant digits."""
    return tuple(tuple(_rounded(cell, digits) for cell in row) for row in rows)


def _rounded(cell: Cell, digits: int) -> Cell:
    return float(f"{cell:.{digits}g}") if isinstance(cell, float) else cell
