"""The systems of `benchmarks/studies/nas.py` get the same input, except for the declared curves."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.studies.nas import machine_in_words, table
from benchmarks.studies.nas_trial.trial import SYSTEMS, NasTrial
from benchmarks.studies.nas_trial.workload import BATCH_PER_WORKER, NODES, TRACE_SECONDS, idle_trace, trainings
from malletrain.reproduce.malletrain.systems import System
from malletrain.v1 import resources_pb2


def test_the_same_seed_gives_the_same_workload_and_trace() -> None:
    assert trainings(4, 1) == trainings(4, 1)
    assert trainings(4, 1) == trainings(6, 1)[:4]
    assert {one.name for one in trainings(4, 1)}.isdisjoint(one.name for one in trainings(4, 2))
    assert idle_trace(1) == idle_trace(1)
    assert (len(idle_trace(1).nodes), idle_trace(1).duration_s) == (NODES, TRACE_SECONDS)


def test_systems_differ_by_the_declared_curves() -> None:
    work = trainings(1, 0)
    trials = [NasTrial(system, 0, tuple(work), 100, 90.0, 2) for system in SYSTEMS]
    specs = [trial.spec(work[0]) for trial in trials]
    assert len({tuple(spec.command) for spec in specs}) == 1
    linear, profiled, plain = specs
    single = work[0].pace.rate(1, BATCH_PER_WORKER)
    assert [(point.nodes, point.rate) for point in linear.curve] == [
        (1, single),
        (NODES, pytest.approx(NODES * single)),
    ]
    assert not profiled.curve
    assert not plain.curve
    modes = [spec.profile for spec in specs]
    never, auto = resources_pb2.PROFILE_MODE_NEVER, resources_pb2.PROFILE_MODE_AUTO
    assert modes == [never, auto, never]
    settings = [trial.settings(Path("/trace.csv")) for trial in trials]
    assert settings[1] == settings[2]
    # Declared curves are never corrected.
    assert settings[0] == settings[1] + "[monitor]\nmin_steps = 1_000_000\n"
    assert [trial.system for trial in trials] == [System.LINEAR, System.PROFILED, System.PRIOR]


def test_tables() -> None:
    assert table(("a", "b"), [("x", 1.5), ("y", None)]) == "| a | b |\n| --- | ---: |\n| x | 1.5 |\n| y |  |"
    assert " cores of " in machine_in_words()
