from __future__ import annotations

from dataclasses import replace

from malletrain.job_manager.machine.progress_buffer import ProgressBuffer
from malletrain.job_manager.machine.stimuli import Progressed, ProgressNoted
from tests.job_manager.harness import MachineHarness, running
from tests.support.builders import job_spec

ONE = "j000001"


def noted(machine: MachineHarness, samples: int, stalled: bool = False) -> tuple[ProgressBuffer, Progressed | None]:
    buffer = ProgressBuffer()
    return buffer, buffer.note_progress(machine.job(), Progressed(ONE, samples, stalled))


def test_progress_that_decides_nothing_waits_and_is_shown() -> None:
    machine = running("a b", job_spec(target_samples=100))
    buffer, step = noted(machine, 99)
    assert step is None
    assert (buffer.with_newest_samples(machine.job()).samples, machine.job().samples) == (99, 0)
    stimulus = buffer.take_newer(machine.state.jobs)
    assert stimulus == ProgressNoted(((ONE, 99),))
    before = machine.job()
    result = machine(stimulus)
    assert result.state.jobs[ONE] == replace(before, samples=99, update_time=machine.now)
    assert not result.events
    assert not result.effects
    assert buffer.take_newer(machine.state.jobs) is None


def test_a_target_and_a_stall_call_for_a_step_at_once() -> None:
    machine = running("a b", job_spec(target_samples=100))
    assert noted(machine, 100)[1] == Progressed(ONE, 100, stalled=False)
    assert noted(machine, 5, stalled=True)[1] == Progressed(ONE, 5, stalled=True)
    machine(Progressed(ONE, 5, stalled=True))
    assert noted(machine, 5, stalled=True)[1] is None, "it is known already"
    assert noted(machine, 6)[1] == Progressed(ONE, 6, stalled=False), "it trains again"


def test_a_step_contains_what_waited_before() -> None:
    machine = running("a b", job_spec(target_samples=100))
    buffer, _ = noted(machine, 99)
    assert buffer.note_progress(machine.job(), Progressed(ONE, 101, stalled=False)) is not None
    assert buffer.take_newer(machine.state.jobs) is None


def test_samples_may_go_back_after_a_rollback() -> None:
    machine = running("a b")
    buffer, _ = noted(machine, 99)
    buffer.note_progress(machine.job(), Progressed(ONE, 0, stalled=False))
    assert buffer.take_newer(machine.state.jobs) is None
    assert buffer.with_newest_samples(machine.job()).samples == 0


def test_only_some_are_taken_and_jobs_that_have_ended_are_dropped() -> None:
    machine = running("a b", job_spec(), job_spec())
    buffer = ProgressBuffer()
    for job_id in (ONE, "j000002"):
        buffer.note_progress(machine.job(job_id), Progressed(job_id, 7, stalled=False))
    assert buffer.take_newer(machine.state.jobs, [ONE]) == ProgressNoted(((ONE, 7),))
    assert buffer.take_newer({}) is None
    machine(ProgressNoted((("j000009", 3),)))
    assert "j000009" not in machine.state.jobs
