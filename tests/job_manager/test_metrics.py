"""What Prometheus reads of a JobManager."""

from __future__ import annotations

import pytest

from malletrain.job_manager.machine.stimuli import Outcome, SupervisorSeen
from malletrain.job_manager.telemetry.metrics import JobManagerMetrics
from malletrain.runtime.metrics.service_metrics import ServiceMetrics
from tests.job_manager.harness import MachineHarness
from tests.support.builders import job_spec
from tests.support.clocks import ManualClock
from tests.support.metrics import Values, read

PREFIX = "malletrain_job_manager_"


class Measured:
    """A state machine whose metrics are told of each step, as the engine does."""

    def __init__(self, max_jobs: int = 100) -> None:
        self.machine = MachineHarness()
        self.service = ServiceMetrics(max_jobs=max_jobs)
        self._clock = ManualClock(self.machine.now)
        metrics = JobManagerMetrics(self._clock)
        metrics.register(self.service, lambda: self.machine.state)
        self.machine.observe = lambda stimulus, before, result: metrics.note_applied(stimulus, before, result, 0.002)

    def pass_time(self, seconds: float) -> None:
        self.machine.now += seconds
        self._clock.advance(seconds)

    async def read(self) -> Values:
        return await read(self.service)


async def test_a_job_from_its_submission_to_a_preemption() -> None:
    measured = Measured()
    machine = measured.machine
    machine.idle("a", "b", "c")
    machine.submit(job_spec(target_samples=1000), owner="ada")
    measured.pass_time(4)
    machine.plan(j1="a b")
    measured.pass_time(2)
    machine.confirm()
    measured.pass_time(10)
    machine.leave("b")
    measured.pass_time(1.2)
    found = await measured.read()
    assert found[f"{PREFIX}jobs_submitted_total",] == 1
    assert found[f"{PREFIX}queue_wait_seconds_sum",] == 4
    assert found[f"{PREFIX}scale_change_seconds_sum", "start"] == 2
    assert found[f"{PREFIX}preemptions_total",] == 1
    assert found[f"{PREFIX}rescales_total", "preemption"] == 1
    assert found[f"{PREFIX}jobs", "rescaling"] == 1
    assert found[f"{PREFIX}nodes_in_release",] == 1
    assert found[f"{PREFIX}oldest_release_age_seconds",] == pytest.approx(1.2)
    assert found[f"{PREFIX}job_nodes", "j000001", "occupied", "ada"] == 2
    assert found[f"{PREFIX}job_nodes", "j000001", "commanded", "ada"] == 1
    assert found[f"{PREFIX}job_target_samples", "j000001", "ada"] == 1000
    uses = {key[1]: value for key, value in found.items() if key[0] == f"{PREFIX}node_seconds_total"}
    assert uses == pytest.approx(
        {"training": 20 + 1.2, "booting": 4, "stalled": 0, "stopping": 0, "unassigned": 12 + 2 + 10 + 1.2}
    )
    machine.released("b")
    found = await measured.read()
    assert found[f"{PREFIX}node_release_seconds_sum",] == pytest.approx(1.2)
    assert found[f"{PREFIX}nodes_in_release",] == 0


async def test_a_job_that_has_ended_is_gone_but_for_the_counters() -> None:
    measured = Measured()
    machine = measured.machine
    machine.idle("a")
    machine.submit(job_spec())
    machine.plan(j1="a")
    machine.confirm()
    assert any(key[0] == f"{PREFIX}job_nodes" for key in await measured.read())
    machine.end(outcome=Outcome.EXITED)
    found = await measured.read()
    assert found[f"{PREFIX}jobs_ended_total", "completed"] == 1
    assert not [key for key in found if key[0].startswith(f"{PREFIX}job_")]


async def test_workers_that_fail_by_themselves_count_once() -> None:
    measured = Measured()
    machine = measured.machine
    machine.idle("a")
    machine.submit(job_spec())
    machine.plan(j1="a")
    for failures in (1, 1, 3):
        nodes = frozenset({"a"})
        machine(SupervisorSeen("j000001", 1, 1, 1, nodes, nodes, (("a", failures),)))
    assert (await measured.read())[f"{PREFIX}worker_failures_total",] == 3


async def test_jobs_beyond_the_limit_count_as_one() -> None:
    measured = Measured(max_jobs=1)
    machine = measured.machine
    machine.idle("a", "b", "c", "d")
    machine.submit(job_spec(), job_spec(), job_spec(), owner="ada")
    machine.plan(j1="a", j2="b c", j3="d")
    found = await measured.read()
    nodes = {key[1:]: value for key, value in found.items() if key[0] == f"{PREFIX}job_nodes" and key[2] == "commanded"}
    assert nodes == {("j000002", "commanded", "ada"): 2, ("other", "commanded", ""): 2}


async def test_jobs_in_the_queue_have_no_rows() -> None:
    measured = Measured()
    machine = measured.machine
    machine.submit(*[job_spec()] * 50)
    found = await measured.read()
    assert found[f"{PREFIX}jobs", "queued"] == 40
    assert len([key for key in found if key[0] == f"{PREFIX}job_samples"]) == machine.policy.max_parallel == 10
