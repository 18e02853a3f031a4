"""`python -m tools.docs.papers`: write `docs/papers.md`, what the papers say and where it is, from `papers.toml`."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.docs import pages

DATA = Path(__file__).with_name("papers.toml")
PAGE = pages.ROOT / "docs/papers.md"
STATES = ("done", "differs", "not done")
PAPERS = {
    "bftrainer": "BFTrainer: Low-Cost Training of Neural Networks on Unfillable Supercomputer Nodes (Liu et al.)",
    "malletrain": "MalleTrain: Deep Neural Network Training on Unfillable Supercomputer Nodes (Ma et al.)",
    "fleet": "FLEET: Flexible Efficient Ensemble Training for Heterogeneous Deep Neural Networks (Guan et al.)",
    "bbsched": "Scheduling Beyond CPUs for HPC (Fan et al.)",
}
_HEAD = """<!-- Made by `python -m tools.docs.papers` from tools/docs/papers.toml; change that file. -->

# What the papers say, and where it is

MalleTrain builds on four papers. This page lists their mechanisms, equations, parameters and exhibits: where each is in
the code, how it was checked, and what differs and why. Paths of code are below `services/malletrain`, or begin with
another folder of the repository. A test looks that every file, name, test and command here exists.

*Done* is as the paper says. *Differs* is done in another way, or has another outcome. *Not done* says why.
"""


@dataclass(frozen=True)
class PaperRow:
    """What a paper says, and where it is.

    Attributes:
        paper: Key of `PAPERS`.
        item: The mechanism, equation, parameter or exhibit.
        state: One of `STATES`.
        code: Files, or FILE:NAME.
        checked: Tests and benchmarks (FILE or FILE:NAME), or commands.
        note: What differs, and why.
    """

    paper: str
    item: str
    state: str
    code: tuple[str, ...]
    checked: tuple[str, ...]
    note: str


def read_rows(path: Path = DATA) -> list[PaperRow]:
    """The rows of the file, in its order."""
    return [_row(entry) for entry in tomllib.loads(path.read_text(encoding="utf-8"))["row"]]


def _row(entry: dict[str, Any]) -> PaperRow:
    return PaperRow(
        entry["paper"], entry["item"], entry["state"], tuple(entry["code"]), tuple(entry["checked"]), entry["note"]
    )


def page(rows: Sequence[PaperRow]) -> str:
    """Text of the page."""
    parts = [_HEAD]
    for paper, title in PAPERS.items():
        own = [row for row in rows if row.paper == paper]
        counts = Counter(row.state for row in own)
        told = ", ".join(f"{counts[state]} {state}" for state in STATES)
        heads = "| item | | code | checked by | what differs, and why |\n| --- | --- | --- | --- | --- |"
        lines = [
            f"| {row.item} | {row.state} | {_listed(row.code)} | {_listed(row.checked)} | {row.note} |" for row in own
        ]
        parts.append("\n".join([f"## {title}\n", f"{len(own)} rows: {told}.\n", heads, *lines, ""]))
    return "\n".join(parts)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name.replace('services/malletrain/', '')}`" for name in names) or "–"


if __name__ == "__main__":
    PAGE.write_text(page(read_rows()), encoding="utf-8")
