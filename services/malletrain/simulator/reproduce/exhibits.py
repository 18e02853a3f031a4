"""What the reproduction shows: figures and tables with their numbers, ours beside the published ones."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

Cell = str | float | int | None


@dataclass(frozen=True)
class Exhibit:
    """One figure or table of the paper.

    Attributes:
        name: Stem of its files.
        title: As in the paper.
        columns: Heads of its numbers.
        rows: Its numbers; this is what the CSV holds.
        remark: What the paper says, and where and why ours differs.
        figure: The plot; None for a table.
        measured: Whether it holds wall-clock times, which no two runs share. The page then only refers to its files, so
            that the same command gives the same page.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    remark: str
    figure: Figure | None = None
    measured: bool = False

    def csv(self) -> str:
        """Its numbers as CSV."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([["" if cell is None else cell for cell in row] for row in self.rows])
        return buffer.getvalue()


def rounded(rows: Sequence[Sequence[Cell]], digits: int = 4) -> tuple[tuple[Cell, ...], ...]:
    """Rows whose fractions have so many significant digits at most."""
    return tuple(tuple(_rounded(cell, digits) for cell in row) for row in rows)


def _rounded(cell: Cell, digits: int) -> Cell:
    return float(f"{cell:.{digits}g}") if isinstance(cell, float) else cell
