"""Small replays for the tests of their page."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from malletrain.scavenger.generate import generate
from malletrain.scavenger.idle_trace import Trace
from malletrain.simulator.replay.evaluation import Scenario, evaluate
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.replay.records import DAY_S
from malletrain.simulator.report.answers import Answers, HourlyRates, Replayed, answers_of, usable_nodes
from malletrain.simulator.report.delays import MeasuredDelay
from malletrain.simulator.report.replay_page import PageInput, Titles, write_page
from tests.simulator.replay.builders import idle, trainer


def half_idle(days: float, nodes: int = 4, origin: str | None = "2026-01-05T00:00:00+00:00") -> Trace:
    """Of these nodes all are idle in the first half of each day, and none in the second."""
    spans = [(day * DAY_S, (day + 0.5) * DAY_S) for day in range(int(-(-days // 1)))]
    trace = idle({f"n{number}": spans for number in range(nodes)}, days * DAY_S)
    return replace(trace, origin=origin)


def uneven(days: float, nodes: int = 24) -> Trace:
    """Nodes that come and go at random."""
    trace = generate(nodes, days * DAY_S, 0.2, random.Random(3))
    return replace(trace, origin="2026-01-05T00:00:00")


def replayed(trace: Trace, *, all_nodes: bool = True, **options: object) -> tuple[Replayed, ReplayOptions]:
    """Replay endless jobs without costs on a trace."""
    given = ReplayOptions(duration_s=trace.duration_s, repeat_jobs=True, **options)  # type: ignore[arg-type]
    jobs = [trainer("a", up_s=0.0, down_s=0.0, samples=1e9), trainer("b", up_s=0.0, down_s=0.0, samples=1e9)]
    scenario = Scenario.of(trace, trace.duration_s)
    found = evaluate(scenario, jobs, given)
    return Replayed(trace, scenario, found, usable_nodes(jobs, given), all_nodes), given


def answered(trace: Trace, rates: HourlyRates | None = None, *, all_nodes: bool = True, seed: int = 0) -> Answers:
    """The answers of such a replay."""
    found, _ = replayed(trace, all_nodes=all_nodes)
    return answers_of(found, rates or HourlyRates(), np.random.default_rng(seed))


def written(
    trace: Trace,
    folder: Path,
    *,
    metadata: Mapping[str, object] | None = None,
    rates: HourlyRates | None = None,
    delay: MeasuredDelay | None = None,
    remarks: Sequence[str] = (),
    title: str = "site.csv.gz",
) -> str:
    """The page of such a replay."""
    found, options = replayed(trace)
    rates = rates or HourlyRates()
    answers = answers_of(found, rates, np.random.default_rng(0))
    titles = Titles(title, "two jobs")
    page = PageInput(found, options, titles, answers, rates, metadata or {}, remarks, delay)
    folder.mkdir(parents=True, exist_ok=True)
    return write_page(page, folder)[0].read_text(encoding="utf-8")
