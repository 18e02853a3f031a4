"""The page of a replay: what it says, and what it does not claim."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from malletrain.simulator.replay.evaluation import Scenario, evaluate
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.report.answer_cards import cost_card, gain_card, warnings_of
from malletrain.simulator.report.answers import HourlyRates, Replayed, answers_of
from malletrain.simulator.report.delays import MeasuredDelay
from malletrain.simulator.report.replay_page import PageInput, Titles, write_page
from malletrain.simulator.report.trace_notes import TraceNotes
from tests.simulator.replay.builders import trainer
from tests.simulator.report.replayed import answered, half_idle, replayed, uneven, written

pytestmark = pytest.mark.long

NO_NOTES = TraceNotes()


def plain(page: str) -> str:
    """The texts of a page in a line."""
    page = re.sub(r"<style>.*?</style>|<svg.*?</svg>", " ", page, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


def outside_the_fold(page: str) -> str:
    """The texts that are seen at once."""
    return plain(page[: page.index("<details>")])


def test_three_answers_come_first_and_jargon_is_behind_the_fold(tmp_path: Path) -> None:
    page = written(uneven(9), tmp_path)
    seen = outside_the_fold(page)
    places = [seen.index(text) for text in ("What would you gain?", "What would it cost your users?", "How sure is")]
    assert places == sorted(places)
    assert places[0] < 200
    for jargon in ("Return on investment", "T_fwd", "milp", "Samples", "resource integral", "Equivalent nodes"):
        assert jargon.lower() not in seen.lower(), jargon
        assert jargon.lower() in plain(page).lower(), jargon


def test_it_is_one_file_with_the_charts_inside(tmp_path: Path) -> None:
    page = written(uneven(9), tmp_path)
    assert page.count("<svg") == 2 * len(list(tmp_path.glob("*.png")))
    assert not re.search(r"""(?:src|href)=["'](?!#)""", page)
    assert "url(" not in page.replace("url(#", "")
    assert "<script" not in page


def test_figures_are_those_of_the_replay(tmp_path: Path) -> None:
    rates = HourlyRates(node_hour=2.5, gpu_hour=0.125, gpus_per_node=4, currency="EUR")
    page = written(half_idle(14), tmp_path, rates=rates)
    gain = answered(half_idle(14), rates).gain
    assert gain.yearly is not None
    seen = outside_the_fold(page)
    assert "50.0 % of all node-hours were idle" in seen
    assert "672 of 1,344 node-hours" in seen
    assert f"{round(gain.yearly.node_hours.value, -2):,.0f} node-hours a year" in seen
    assert f"{round(4 * gain.yearly.node_hours.value, -2):,.0f} GPU-hours a year" in seen
    assert f"EUR {round(3 * gain.yearly.node_hours.value, -2):,.0f} a year, at EUR 2.50 a node-hour and" in seen
    assert "EUR 0.125 a GPU-hour" in seen
    assert "5 January 2026 to 18 January 2026 (UTC)" in seen


def test_u_stands_beside_its_bound() -> None:
    ours, bound = gain_card(answered(uneven(9)), HourlyRates()).bars
    assert ours.ours
    assert not bound.ours
    assert 0 < ours.percent <= bound.percent <= 100.0
    found, options = replayed(half_idle(1))
    without = evaluate(found.scenario, [trainer("a")], options, bound=False)
    answers = answers_of(replace(found, evaluation=without), HourlyRates(), np.random.default_rng(0))
    assert len(gain_card(answers, HourlyRates()).bars) == 1


def test_no_delay_is_stated_that_was_not_measured(tmp_path: Path) -> None:
    answers = answered(half_idle(2))
    unmeasured = cost_card(answers, None)
    assert [tile.value for tile in unmeasured.tiles][1] == "not measured"
    assert any("docs/zero-impact.md" in text for text in unmeasured.sentences)
    delay = MeasuredDelay(1.021, "later, at most, 99 of 100 main jobs started", "62 main jobs, zero-impact.json")
    measured = cost_card(answers, delay)
    assert measured.tiles[1].value == "1.02 s"
    assert measured.tiles[1].detail == "Measured: 62 main jobs, zero-impact.json"
    assert not any("docs/zero-impact.md" in text for text in measured.sentences)
    assert "not measured" not in outside_the_fold(written(half_idle(2), tmp_path, delay=delay))


def test_a_short_log_says_nothing_of_a_year(tmp_path: Path) -> None:
    seen = outside_the_fold(written(half_idle(1), tmp_path))
    assert "too short to say anything about a year" in seen
    assert "hours a year" not in seen
    assert "in 24 hours of log" in seen
    assert "too little to conclude from" in seen
    assert "likely" not in seen


def test_what_was_skipped_and_assumed_is_told(tmp_path: Path) -> None:
    metadata = {
        "nodes": ["n0"],
        "source": "malletrain trace convert --from sacct",
        "conversion": {
            "rows_used": 997,
            "skipped": [
                {"reason": "an end before its start", "rows": 2, "node_hours": 12.5, "first": "/home/ada/log:3"},
                {"reason": "a line that is cut off", "rows": 1, "node_hours": None},
            ],
            "skipped_row_share": 0.003,
            "skipped_node_hour_share": 0.02,
            "notes": ["window: as given", "skipped 2 rows: (first: /home/ada/log:3)", "1 node came later"],
        },
    }
    page = written(half_idle(8), tmp_path, metadata=metadata, remarks=["two jobs could not be taken over"])
    seen = outside_the_fold(page)
    assert "0.30 % of the log was skipped" in seen
    assert "an end before its start 2 12.5" in seen
    assert "a line that is cut off 1 not known" in seen
    for text in ("window: as given", "1 node came later", "two jobs could not be taken over"):
        assert text in seen
    assert "2.0 % of the log was skipped: what was idle may be quite different" in seen
    assert "ada" not in page


def test_what_was_not_recorded_is_not_called_nothing() -> None:
    assert "not recorded" in str(_sure(NO_NOTES))
    assert "nothing" in str(_sure(TraceNotes(counted=True, rows_used=10)))


def _sure(notes: TraceNotes) -> list[str]:
    from malletrain.simulator.report.answer_cards import certainty_card

    return [tile.value for tile in certainty_card(answered(half_idle(8)), None, notes, "jobs", 2).tiles]


def test_it_says_where_work_ran_out(tmp_path: Path) -> None:
    trace = half_idle(2)
    options = ReplayOptions(duration_s=trace.duration_s)
    scenario = Scenario.of(trace, trace.duration_s)
    evaluation = evaluate(scenario, [trainer("a", samples=1000.0)], options)
    found = Replayed(trace, scenario, evaluation, 4, all_nodes=True)
    answers = answers_of(found, HourlyRates(), np.random.default_rng(0))
    work = evaluation.metrics.work_in_words(trace.duration_s)
    assert "No work left from hour" in work
    assert work in warnings_of(answers, NO_NOTES, work)
    page = write_page(PageInput(found, options, Titles("x", "y"), answers), tmp_path)[0].read_text()
    assert work in plain(page)


def test_a_drawn_trace_is_no_log(tmp_path: Path) -> None:
    drawn = written(half_idle(8), tmp_path / "a", metadata={"source": "generated like polaris, seed 0"})
    assert "drawn at random" in outside_the_fold(drawn)
    assert "drawn at random" not in outside_the_fold(written(half_idle(8), tmp_path / "b"))


def test_names_of_files_are_text(tmp_path: Path) -> None:
    page = written(half_idle(1), tmp_path, title="<img src=x onerror=alert(1)>.csv", metadata={"source": "<b>x</b>"})
    assert "<img" not in page
    assert "<b>x</b>" not in page


@pytest.mark.parametrize("days", [1 / 24, 1.0, 31.0])
def test_the_same_replay_gives_the_same_page(tmp_path: Path, days: float) -> None:
    assert written(half_idle(days, nodes=1), tmp_path / "a") == written(half_idle(days, nodes=1), tmp_path / "b")
