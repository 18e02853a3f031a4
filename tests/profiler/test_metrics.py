from __future__ import annotations

from malletrain.profiler.machine.profile_scheduler import ProfilingState
from malletrain.profiler.machine.runs import ProfileRun, ProfileRunState
from malletrain.profiler.metrics import ProfilerMetrics, ProfilerSnapshot
from malletrain.profiler.settings import ProfilerSettings
from malletrain.runtime.metrics.service_metrics import ServiceMetrics
from tests.profiler.peers import NOWHERE, running_profiler
from tests.support.builders import job_message
from tests.support.metrics import read
from tests.support.stand_ins import StandInJobManager, serve

PREFIX = "malletrain_profiler_"


def runs(**states: ProfileRunState) -> ProfilingState:
    return ProfilingState({name: ProfileRun(name, state, "") for name, state in states.items()})


async def test_runs_by_state_and_those_that_complete() -> None:
    service, metrics = ServiceMetrics(), ProfilerMetrics()
    before = runs(a=ProfileRunState.MEASURING, b=ProfileRunState.QUEUED)
    after = runs(a=ProfileRunState.DONE, b=ProfileRunState.CLIMBING)
    metrics.register(service, lambda: ProfilerSnapshot.of((), after))
    metrics.note_step(before, after)
    metrics.note_step(after, after)
    found = await read(service)
    assert found[f"{PREFIX}runs_completed_total",] == 1
    assert {key[1]: value for key, value in found.items() if key[0] == f"{PREFIX}runs"} == {
        "queued": 0,
        "climbing": 1,
        "measuring": 0,
        "done": 1,
    }


async def test_curves_and_publications_of_a_profiler_that_serves() -> None:
    metrics, peer = ServiceMetrics(), StandInJobManager()
    async with (
        serve(peer) as jobs,
        running_profiler(jobs, NOWHERE, ProfilerSettings(snapshot_seconds=0.05), metrics=metrics) as profiler,
    ):
        with profiler.watch() as watch:
            await watch.next()
            peer.put(job_message("j1"))
            points = (await watch.next_of("j1")).points
        found = await read(metrics)
    assert found[f"{PREFIX}curves",] == 1
    assert found[f"{PREFIX}curve_points", "prior"] == len(points)
    assert found[f"{PREFIX}publications_total",] == 2
    assert found[f"{PREFIX}profiles_published_total",] == 1
