"""The loop that owns the machine of a service: each stimulus is one step, and all services take it in the same order.

The clock, the machine with its invariants and its recorder, what is stored behind the state, the effects, the watchers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any, Generic, Protocol

from typing_extensions import TypeVar

from malletrain.runtime.clock import Clock
from malletrain.runtime.database.errors import CommitUnknownError, DatabaseUnavailableError
from malletrain.runtime.kernel.recording import Moment, ResultT, StateT, StimulusT

DetailT = TypeVar("DetailT", default=None)
StimulusContraT = TypeVar("StimulusContraT", contravariant=True)


class StepRecorder(Protocol[StateT, StimulusContraT, ResultT]):
    """Runs a machine and records what it is given; see `FlightRecorder`."""

    def advance(self, state: StateT, stimulus: StimulusContraT, now: Moment) -> ResultT:
        """Have the machine handle a stimulus, and check its invariants if told to."""

    def state_after(self, before: StateT, result: ResultT) -> StateT:
        """The state after a stimulus; a machine that changes in place is the same."""

    def forget_last(self) -> None:
        """The last stimulus was not applied after all."""


@dataclass(frozen=True, slots=True)
class MachineStep(Generic[StateT, StimulusT, ResultT, DetailT]):
    """A stimulus that a machine has handled.

    Attributes:
        stimulus: What happened.
        now: When it was handled.
        before: The state before; a machine that changes in place is as it is now.
        result: What the machine has returned.
        detail: What the service needs to know beside that; the machine does not.
    """

    stimulus: StimulusT
    now: Moment
    before: StateT
    result: ResultT
    detail: DetailT | None


def _leave(_: MachineStep[Any, Any, Any, Any]) -> None:
    """Do nothing: the machine has effects for it."""


async def _ask_nothing(_: Any) -> None:
    """The machine has no effects that somebody answers."""


class MachineLoop(Generic[StateT, StimulusT, ResultT, DetailT]):
    """Owns a machine: tells it what happens, one thing at a time, and has done what follows. Use from one event loop.

    Attributes:
        state: The machine's state as it is now.
    """

    def __init__(
        self,
        state: StateT,
        recorder: StepRecorder[StateT, StimulusT, ResultT],
        clock: Clock,
        perform: Callable[[MachineStep[StateT, StimulusT, ResultT, DetailT]], bool | None],
        *,
        store: Callable[[MachineStep[StateT, StimulusT, ResultT, DetailT]], object] = _leave,
        publish: Callable[[MachineStep[StateT, StimulusT, ResultT, DetailT]], object] = _leave,
    ) -> None:
        """
        Args:
            recorder: Runs the machine.
            clock: Asked before each step. A `WatchedClock` has steps of the wall clock handled first.
            perform: Begins the effects of a step; true: nodes are being released by them.
            store: Has a step stored. What has happened goes to a `WriteBehind`. What is only done if it is stored is
                written at once; DatabaseUnavailableError is raised where that fails. Only a machine whose states never
                change may refuse so.
            publish: Tells watchers of a step, after releases of nodes.
        """
        self.state = state
        self._recorder = recorder
        self._clock = clock
        self._perform = perform
        self._store = store
        self._publish = publish
        self._after = AfterReleases()
        self._news = asyncio.Event()
        self.published = self._after.done

    def apply(self, stimulus: StimulusT, detail: DetailT | None = None) -> ResultT:
        """Take a step.

        Args:
            stimulus: What happened.
            detail: What `store`, `perform` and `publish` need to know beside it.

        Raises:
            DatabaseUnavailableError: it was refused; the state stays as it was.
            CommitUnknownError: the step was taken; its record is stored or will be, unless this process is killed.
            Exception: it is refused by the machine, or a defect; see `FlightRecorder.advance`. The same holds.
        """
        now = Moment(self._clock.time(), self._clock.monotonic())  # may apply that the clock was set
        before, unknown = self.state, None
        result = self._recorder.advance(before, stimulus, now)
        step = MachineStep(stimulus, now, before, result, detail)
        try:
            self._store(step)
        except CommitUnknownError as error:
            unknown = error
        except DatabaseUnavailableError:
            self._recorder.forget_last()  # the step was not taken, and must not be part of a replay
            raise
        self.state = self._recorder.state_after(before, result)
        self._news.set()
        releasing = bool(self._perform(step))
        self._after.do(lambda: self._publish(step), releasing=releasing)
        if unknown is not None:
            raise unknown
        return result

    async def follow_time(
        self,
        due: StimulusT,
        due_at: Callable[[StateT], float],
        answer: Callable[[ResultT], Awaitable[StimulusT | None]] = _ask_nothing,
    ) -> None:
        """Tell the machine whenever something is due, until cancelled.

        Args:
            due: What it is told.
            due_at: When a state wants that, on the monotonic clock in seconds; infinity: not before a stimulus.
            answer: Answers what the machine asks for in a result, by the next stimulus; None: it asks for nothing.
        """
        while True:
            await self._wait_until_due(due_at)
            result = self.apply(due)
            while (answered := await answer(result)) is not None:
                result = self.apply(answered)
            await asyncio.sleep(0)  # a machine that is always due must not keep the loop from all others

    async def _wait_until_due(self, due_at: Callable[[StateT], float]) -> None:
        """Wait, however often that moves meanwhile."""
        while (seconds := due_at(self.state) - self._clock.monotonic()) > 0:
            self._news.clear()
            try:
                # Not `wait_for`, which loses a cancellation that comes just as there is news.
                async with asyncio.timeout(seconds if isfinite(seconds) else None):
                    await self._news.wait()
            except TimeoutError:
                continue


_TURNS = 4
"""Turns of the event loop until a command that was begun in this one has been handed to gRPC."""


async def calls_sent() -> None:
    """Wait until calls that were begun in this turn of the event loop have been handed to gRPC."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


class AfterReleases:
    """Does things in order: at once, or some turns of the event loop later if nodes are being released.

    The main scheduler waits for such nodes: commands that release them go out before watchers are told of the step,
    which takes longer the more watchers there are.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()
        self._done = asyncio.Event()
        self._done.set()

    def do(self, work: Callable[[], object], *, releasing: bool) -> None:
        """Do something, after all that waits already.

        Args:
            work: What is done.
            releasing: Whether commands that release nodes have just been begun.
        """
        if not releasing and not self._waiting:
            work()
            return
        self._waiting.append(work)
        if len(self._waiting) == 1:
            self._done.clear()
            self._turn(_TURNS)

    async def done(self) -> None:
        """Wait until all work that was put off has been done."""
        await self._done.wait()

    def _turn(self, left: int) -> None:
        if left:
            asyncio.get_running_loop().call_soon(self._turn, left - 1)
            return
        try:
            while self._waiting:
                self._waiting.popleft()()
        finally:
            if self._waiting:  # one has failed
                self._turn(1)
            else:
                self._done.set()
