from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from malletrain.runtime.clock import WatchedClock
from malletrain.runtime.database.errors import CommitUnknownError, DatabaseUnavailableError
from malletrain.runtime.errors import NotFoundError
from malletrain.runtime.kernel.flight_recorder import FlightRecorder
from malletrain.runtime.kernel.machine_loop import AfterReleases, MachineLoop, MachineStep
from malletrain.runtime.kernel.recording import Moment, RecordedMachine
from tests.support.clocks import SetClock


def test_without_a_release_things_are_done_at_once() -> None:
    done: list[str] = []
    AfterReleases().do(lambda: done.append("a"), releasing=False)
    assert done == ["a"]


def test_beside_a_release_they_are_done_after_it_and_in_order() -> None:
    async def run() -> None:
        done: list[str] = []

        async def release() -> None:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            done.append("released")

        after, releasing = AfterReleases(), asyncio.create_task(release())
        after.do(lambda: done.append("a"), releasing=True)
        after.do(lambda: done.append("b"), releasing=False)
        assert not done
        await after.done()
        await releasing
        assert done == ["released", "a", "b"]
        after.do(lambda: done.append("c"), releasing=False)
        assert done[-1] == "c"

    asyncio.run(run())


def test_one_that_fails_does_not_keep_the_others() -> None:
    async def run() -> None:
        done: list[str] = []
        failures: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))

        def fail() -> None:
            raise ValueError("by intention")

        after = AfterReleases()
        after.do(fail, releasing=True)
        after.do(lambda: done.append("b"), releasing=False)
        await after.done()
        assert done == ["b"]
        assert [str(failure) for failure in failures] == ["by intention"]

    asyncio.run(run())


@dataclass(frozen=True)
class Sum:
    """A state: what was added."""

    added: int = 0


@dataclass(frozen=True)
class Added:
    number: int


class RecordedSum(RecordedMachine[Sum, Added, Sum]):
    service = "sum"
    file_prefix = "sum"
    state_type = Sum
    stimulus_types = (Added,)
    refusals = (NotFoundError,)

    def advance(self, state: Sum, stimulus: Added, now: Moment) -> Sum:
        if stimulus.number < 0:
            raise NotFoundError("refused")
        return Sum(state.added + stimulus.number)

    def check(self, before: Sum, result: Sum) -> None:
        pass

    def state_after(self, before: Sum, result: Sum) -> Sum:
        return result


Detail = Literal["release"]
SumStep = MachineStep[Sum, Added, Sum, Detail]


@dataclass
class Service:
    """Notes what its loop has it do, and in which order; `error` is what its database answers."""

    folder: Path
    error: Exception | None = None
    done: list[str] = field(default_factory=list)
    clock: SetClock = field(default_factory=SetClock)

    def __post_init__(self) -> None:
        self.watched = WatchedClock(self.clock)
        recorder = FlightRecorder(self.folder, RecordedSum(), validate=True)
        self.loop = MachineLoop[Sum, Added, Sum, Detail](
            Sum(), recorder, self.watched, self.perform, store=self.store, publish=self.publish
        )

    def store(self, step: SumStep) -> None:
        assert self.loop.state is step.before
        self.done.append(f"store {step.result.added}")
        if self.error is not None:
            raise self.error

    def perform(self, step: SumStep) -> bool:
        assert self.loop.state is step.result
        self.done.append(f"perform {step.result.added}")
        return step.detail == "release"

    def publish(self, step: SumStep) -> None:
        self.done.append(f"publish {step.result.added}")


def test_a_step_is_stored_then_performed_then_published(tmp_path: Path) -> None:
    service = Service(tmp_path)
    assert service.loop.apply(Added(2)) == service.loop.state == Sum(2)
    assert service.done == ["store 2", "perform 2", "publish 2"]


def test_a_release_comes_before_what_is_published(tmp_path: Path) -> None:
    async def run() -> None:
        service = Service(tmp_path)
        service.loop.apply(Added(1), "release")
        service.loop.apply(Added(1))
        assert service.done == ["store 1", "perform 1", "store 2", "perform 2"]
        await service.loop.published()
        assert service.done[4:] == ["publish 1", "publish 2"]

    asyncio.run(run())


def test_what_can_not_be_stored_has_not_happened(tmp_path: Path) -> None:
    service = Service(tmp_path)
    service.loop.apply(Added(1))
    service.error = DatabaseUnavailableError("sum")
    with pytest.raises(DatabaseUnavailableError):
        service.loop.apply(Added(5))
    assert service.loop.state == Sum(1)
    assert service.done == ["store 1", "perform 1", "publish 1", "store 6"]
    service.error = None
    service.loop.apply(Added(2))
    assert service.loop.state == Sum(3)


def test_what_may_have_been_stored_has_happened_once_and_the_caller_is_told(tmp_path: Path) -> None:
    service = Service(tmp_path)
    service.error = CommitUnknownError("sum")
    with pytest.raises(CommitUnknownError):
        service.loop.apply(Added(5))
    assert service.loop.state == Sum(5)
    assert service.done == ["store 5", "perform 5", "publish 5"]


def test_what_the_machine_refuses_changes_nothing(tmp_path: Path) -> None:
    service = Service(tmp_path)
    with pytest.raises(NotFoundError):
        service.loop.apply(Added(-1))
    assert (service.loop.state, service.done) == (Sum(), [])


def test_that_the_clock_was_set_comes_first(tmp_path: Path) -> None:
    service = Service(tmp_path)
    steps: list[Sum] = []
    service.watched.follow(lambda seconds: steps.append(service.loop.apply(Added(int(seconds)))))
    service.clock.offset += 100
    service.loop.apply(Added(1))
    assert steps == [Sum(100)]
    assert service.loop.state == Sum(101)


def test_what_is_due_is_told_and_questions_are_answered(tmp_path: Path) -> None:
    async def run() -> None:
        service, finished = Service(tmp_path), asyncio.Event()

        async def answer(result: Sum) -> Added | None:
            return Added(100) if result.added < 100 else None

        def due_at(state: Sum) -> float:
            if state.added > 100:
                finished.set()
            return 0.0 if state.added == 11 else math.inf

        following = asyncio.create_task(service.loop.follow_time(Added(1), due_at, answer))
        await asyncio.sleep(0)
        assert service.loop.state == Sum()
        service.loop.apply(Added(11))
        await asyncio.wait_for(finished.wait(), 10)
        assert service.loop.state == Sum(112)
        following.cancel()

    asyncio.run(run())


def test_a_machine_that_is_always_due_leaves_others_their_turns(tmp_path: Path) -> None:
    async def run() -> None:
        service, turn = Service(tmp_path), asyncio.Event()
        following = asyncio.create_task(service.loop.follow_time(Added(1), lambda _: 0.0))
        asyncio.get_running_loop().call_soon(turn.set)
        await asyncio.wait_for(turn.wait(), 10)
        following.cancel()

    asyncio.run(run())
