"""What drives a machine that says itself when time alone changes something."""

from __future__ import annotations

import asyncio
from math import isfinite
from typing import Generic, Protocol, TypeVar

from malletrain.runtime.clock import Clock
from malletrain.runtime.kernel.flight_recorder import FlightRecorder
from malletrain.runtime.kernel.recording import Moment, ResultT, StimulusT


class TimedMachine(Protocol):
    """A machine, as far as its host knows it."""

    @property
    def due_at(self) -> float:
        """When it wants to be told the time, on the monotonic clock in seconds; infinity: not before a stimulus."""


MachineT = TypeVar("MachineT", bound=TimedMachine)


class MachineHost(Generic[MachineT, StimulusT, ResultT]):
    """Tells a machine what happens, at the time that it is, and waits for what is due. Use from one event loop.

    Attributes:
        machine: The machine.
    """

    def __init__(self, machine: MachineT, recorder: FlightRecorder[MachineT, StimulusT, ResultT], clock: Clock) -> None:
        self.machine = machine
        self._recorder = recorder
        self._clock = clock
        self._news = asyncio.Event()

    def advance(self, stimulus: StimulusT) -> ResultT:
        """Tell the machine; what it wants done is for the caller.

        Raises:
            Exception: a defect of the machine; see `FlightRecorder.advance`.
        """
        now = Moment(self._clock.time(), self._clock.monotonic())
        self._news.set()
        return self._recorder.advance(self.machine, stimulus, now)

    async def wait_until_due(self) -> None:
        """Wait until the machine wants to be told the time, however often that moves meanwhile."""
        while (seconds := self.machine.due_at - self._clock.monotonic()) > 0:
            self._news.clear()
            try:
                # Not `wait_for`, which loses a cancellation that comes just as there is news.
                async with asyncio.timeout(seconds if isfinite(seconds) else None):
                    await self._news.wait()
            except TimeoutError:
                continue
