"""Phases: what a script declares, what of it is in the ring, and what that means for the records."""

from __future__ import annotations

import threading

import pytest

from malletrain.client.phases import DeclaredPhase, Phases
from malletrain.client.ring import (
    PHASE,
    PHASE_SLOTS,
    PhaseReader,
    Ring,
    RingPhase,
    RingRecord,
    create_ring,
    put_phase,
)
from malletrain.client.sidecar import TOLD_NS, PhaseTimes
from malletrain.client.warn_once import WarnOnce
from tests.client.conftest import StartTrainer
from tests.client.peers import RecordingMonitor
from tests.support.waiting import wait_until

SECOND = 1_000_000_000


class Desk:
    """Phases of a process with a ring, on a clock that the test moves."""

    def __init__(self, ring: Ring | None = None) -> None:
        self.ring = ring or create_ring(8)
        self.now = 100 * SECOND
        self.phases = Phases(lambda: self.ring, lambda: self.now, WarnOnce())
        self.reader = PhaseReader(self.ring)

    def phase(self, name: str) -> DeclaredPhase:
        return DeclaredPhase(self.phases, name)

    def wait(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)


def record(sequence: int, seconds: float, samples: int = 32) -> RingRecord:
    return RingRecord(sequence, int(seconds * SECOND), samples, -1, 1)


def test_a_phase_is_in_the_ring_when_it_begins_and_when_it_ends() -> None:
    desk = Desk()
    with desk.phase("evaluate"):
        begun = RingPhase(1, 100 * SECOND, 0, "evaluate")
        assert desk.reader.read() == [begun]
        assert desk.reader.read() == [begun]
        desk.wait(5)
    assert desk.reader.read() == [begun._replace(end_ns=105 * SECOND)]
    assert desk.reader.read() == []


def test_a_phase_within_another_one_takes_its_place_for_a_while() -> None:
    desk = Desk()
    with desk.phase("evaluate"):
        desk.wait(5)
        with desk.phase("save"):
            desk.wait(1)
        desk.wait(2)
    found = [(phase.name, phase.begin_ns // SECOND, phase.end_ns // SECOND) for phase in desk.reader.read()]
    assert found == [("evaluate", 100, 105), ("save", 105, 106), ("evaluate", 100, 108)]
    times = PhaseTimes()
    times.take([record(1, 99)], 0)
    times.see(PhaseReader(desk.ring).read())
    times.take([record(2, 110), record(3, 111)], 0)
    assert times.in_steps == {2: 8 * SECOND}, "no time counts twice"


def test_an_error_in_a_phase_goes_on_and_a_function_may_be_a_phase() -> None:
    desk = Desk()
    with pytest.raises(KeyError), desk.phase("save"):
        raise KeyError

    @desk.phase("evaluate")
    def evaluate(depth: int) -> int:
        return evaluate(depth - 1) if depth else 7

    assert evaluate(2) == 7
    assert all(phase.end_ns for phase in desk.reader.read())


def test_phases_are_those_of_one_thread() -> None:
    desk = Desk()
    with desk.phase("evaluate"):
        other = threading.Thread(target=lambda: desk.phase("save").__enter__())
        other.start()
        other.join()
    assert [phase.name for phase in desk.reader.read()] == ["evaluate"]


def test_an_unknown_name_is_a_pause_with_one_warning(capsys: pytest.CaptureFixture[str]) -> None:
    desk = Desk()
    for name in ("validate", "x" * 500, None, 7, [], "\n"):
        with desk.phase(name):  # type: ignore[arg-type]
            assert desk.reader.read()[-1].name == "pause"
    said = capsys.readouterr().err
    assert said == "malletrain: phase(): expected one of start, evaluate, save, pause, got 'validate': a pause\n"


def test_phases_that_are_never_left_are_said_once_and_do_no_harm(capsys: pytest.CaptureFixture[str]) -> None:
    desk = Desk()
    for _ in range(1000):
        desk.phase("save").__enter__()
    assert "16 phases have been entered and not left" in capsys.readouterr().err
    desk.phase("save").__exit__(None, None, None)
    assert len(desk.reader.read()) <= PHASE_SLOTS


def test_what_fails_in_a_phase_of_ours_is_said_and_not_raised(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> Ring | None:
        raise OSError("no memory")

    phase = DeclaredPhase(Phases(broken, lambda: 0, WarnOnce()), "save")
    for _ in range(3):
        with phase:
            pass
    assert capsys.readouterr().err == "malletrain: phase(): OSError: no memory\n"


def test_of_very_many_phases_the_newest_are_read() -> None:
    desk = Desk()
    for _ in range(3 * PHASE_SLOTS):
        with desk.phase("save"):
            desk.wait(1)
    numbers = [phase.number for phase in desk.reader.read()]
    assert numbers == list(range(2 * PHASE_SLOTS + 1, 3 * PHASE_SLOTS + 1))


def test_a_phase_that_is_being_written_is_not_read() -> None:
    desk = Desk()
    put_phase(desk.ring, RingPhase(1, 5, 0, "save"))
    place = desk.ring.end_of_records + PHASE.size
    desk.ring.buffer[place + 8 : place + 16] = (6).to_bytes(8, "little")
    assert desk.reader.read() == []


def test_the_ring_of_an_earlier_version_has_no_phases() -> None:
    ring = create_ring(8)
    put_phase(ring, RingPhase(1, 5, 0, "save"))
    end = ring.end_of_records
    ring.words.release()
    ring.buffer.resize(end)
    ring.words = memoryview(ring.buffer).cast("q")
    assert PhaseReader(ring).read() == []


def test_only_the_step_around_a_phase_is_shorter() -> None:
    times = PhaseTimes()
    times.take([record(1, 10.0), record(2, 10.1)], 0)
    times.see([RingPhase(1, 10 * SECOND + SECOND // 5, 160 * SECOND, "evaluate")])
    times.take([record(3, 160.1), record(4, 160.2)], 0)
    assert times.in_steps == {3: 160 * SECOND - 10 * SECOND - SECOND // 5}
    times.take([], 3)
    assert times.in_steps == {}


def test_a_start_before_the_first_record_ends_no_step() -> None:
    times = PhaseTimes()
    times.see([RingPhase(1, SECOND, 9 * SECOND, "start")])
    times.take([record(1, 10.0), record(2, 11.0)], 0)
    assert times.in_steps == {}


def test_the_present_phase_is_told_once_it_lasts_and_until_a_batch_ends() -> None:
    times = PhaseTimes()
    times.take([record(1, 10.0)], 0)
    times.see([RingPhase(1, 11 * SECOND, 0, "save")])
    assert times.present(11 * SECOND + TOLD_NS - 1) is None
    assert times.present(21 * SECOND) == ("save", 10.0)
    times.take([record(2, 12.0, samples=0)], 0)
    assert times.present(21 * SECOND) == ("save", 10.0), "no batch: a sign of life"
    times.take([record(3, 22.0)], 0)
    assert times.present(23 * SECOND) is None
    times.see([RingPhase(2, 24 * SECOND, 0, "evaluate"), RingPhase(2, 24 * SECOND, 25 * SECOND, "evaluate")])
    assert times.present(40 * SECOND) is None


@pytest.mark.processes
def test_monitor_is_told_of_phases_also_before_the_first_batch(
    monitor: RecordingMonitor, start_trainer: StartTrainer
) -> None:
    trainer = start_trainer()

    def told() -> str:
        return monitor.requests[-1].phase.name if monitor.requests else "nothing"

    trainer.do("started = phase('start'); started.__enter__()")
    wait_until(lambda: told() == "start")
    trainer.do("started.__exit__(None, None, None); report(1)")
    wait_until(lambda: monitor.delivered == 1 and not told())
    trainer.do("import time")
    trainer.do("with phase('evaluate'): time.sleep(0.2)")
    trainer.do("report(1); report(1)")
    wait_until(lambda: monitor.delivered == 3)
    inside = [seconds for request in monitor.requests for seconds in request.batch.phase_seconds]
    assert len([seconds for seconds in inside if seconds > 0.19]) == 1
    trainer.do("phase('save').__enter__()")
    wait_until(lambda: told() == "save")
