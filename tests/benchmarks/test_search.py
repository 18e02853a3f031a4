"""Cells that a search chooses, and the figures of `benchmarks/studies/search.py`."""

from __future__ import annotations

import pytest

from benchmarks.studies import search as study
from examples.nasbench.space import Cell
from malletrain.caller.searching.space import SearchChoices, parse_space

pytest.importorskip("optuna", reason="needs malletrain[search]")


def test_values_become_a_cell_or_none() -> None:
    names = parse_space(study.space())
    first = {name: str(entry.values[0]) for name, entry in names.items() if isinstance(entry, SearchChoices)}
    last = study.PAIRS.index((0, 6))
    assert study.cell_of(first) is None  # one edge, which does not lead to the output
    assert study.cell_of(first | {"edge3": str(last)}) == Cell(((0, 1),), ())


def test_a_search_has_as_many_trials_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "accuracy_of", lambda cell, rate, _: len(cell.edges) / 10 + rate / 100)
    best = study.best_by_trial("tpe", 1, 12)
    assert len(best) == 12
    assert best == sorted(best)
    assert best[-1] > 0


def test_the_table_has_means_after_parts_of_the_trials() -> None:
    lines = study.table({"random": [[0.1, 0.2, 0.3]], "tpe": [[0.2, 0.2, 0.4], [0.4, 0.4, 0.4]]}, 3).splitlines()
    assert lines[0] == "| sampler | after 1 trials | after 2 trials | after 3 trials |"
    assert lines[3] == "| tpe | 0.300 ± 0.141 | 0.300 ± 0.141 | 0.400 ± 0.000 |"
