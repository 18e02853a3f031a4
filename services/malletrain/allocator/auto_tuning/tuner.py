"""Auto-tuning beside the control loop: asks for replays every interval, and does what `machine` decides.

Whatever goes wrong here, plans are made as before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import structlog

from malletrain.allocator.auto_tuning.documents import TuningOrder
from malletrain.allocator.auto_tuning.machine import (
    AutoTune,
    Decided,
    ForwardChoice,
    TuningAnswer,
    TuningBounds,
    TuningEvent,
    TuningState,
    after_failure,
    decide,
    question,
    resume,
    seconds_until_due,
)
from malletrain.allocator.auto_tuning.replay_process import TuningRunError
from malletrain.allocator.auto_tuning.store import TuningStore
from malletrain.allocator.problem.forward_time import ForwardTime
from malletrain.allocator.telemetry.metrics import AllocatorMetrics
from malletrain.runtime.clock import Clock
from malletrain.runtime.database.errors import DatabaseUnavailableError

_MAX_SLEEP_S = 60.0
"""The wall clock may step: what is due is looked up again after so many seconds."""
_PARTS = 28
"""Most parts: a week, if they are of six hours."""
_OWN_SHARE = 0.8
_PATIENCE_SHARE = 0.9
"""Shares of the interval after which the process answers with what it has, and after which it is killed."""

Replays = Callable[[TuningOrder, float], Awaitable[TuningAnswer]]
"""Answers an order within so many seconds, or raises TuningRunError."""


@dataclass(frozen=True, slots=True)
class TunerOptions:
    """The operator's choices.

    Attributes:
        mode: What tuning may do.
        configured: T_fwd as it is configured.
        bounds: Within what steps stay.
        interval_s: Seconds between two runs.
        cpu_share: Share of a core that replays may use on average.
        part_s: Length of a part of the past in seconds.
    """

    mode: AutoTune
    configured: ForwardTime
    bounds: TuningBounds
    interval_s: float
    cpu_share: float
    part_s: float

    @property
    def choice(self) -> ForwardChoice:
        """What is configured."""
        return ForwardChoice(self.configured.policy, self.configured.seconds)


class AutoTuner:
    """Adjusts T_fwd, one step at a time, by replays of the installation's own past."""

    def __init__(
        self,
        options: TunerOptions,
        store: TuningStore,
        clock: Clock,
        replays: Replays,
        use: Callable[[ForwardTime], None],
        metrics: AllocatorMetrics,
    ) -> None:
        """Put in force what was in force before, as far as the settings let it be."""
        self._options = options
        self._store = store
        self._clock = clock
        self._replays = replays
        self._use = use
        self._metrics = metrics
        self._log = structlog.get_logger(__name__)
        stored = store.state()
        self.state, why = resume(stored, options.choice, options.mode, options.bounds)
        if why:
            self._adopt(Decided(self.state, TuningEvent.RESET, why))
        else:
            self._put_in_force(self.state)

    async def run(self) -> None:
        """Run every interval, until cancelled; at once done where tuning is off."""
        if self._options.mode is AutoTune.OFF:
            return
        started = self._clock.monotonic()
        while True:
            due = seconds_until_due(self.state, self._clock.time(), self._options.interval_s)
            if not self.state.ran_unix:
                due -= self._clock.monotonic() - started
            if due > 0:
                await asyncio.sleep(min(due, _MAX_SLEEP_S))
                continue
            await self._run_once()

    async def _run_once(self) -> None:
        """One run. Any fault of it is told and counted, and ends nothing else."""
        interval = self._options.interval_s
        try:
            self._adopt(await self._replay_and_decide())
        except TuningRunError as error:
            self._adopt(after_failure(self.state, str(error), self._clock.time(), interval))
        except Exception as error:  # noqa: BLE001  # a defect here must not end the making of plans
            self._log.exception("auto-tuning has failed")
            self._adopt(after_failure(self.state, repr(error), self._clock.time(), interval))

    async def _replay_and_decide(self) -> Decided:
        options = self._options
        request = question(self.state, options.bounds, self._clock.time())
        order = TuningOrder(request, options.part_s, _PARTS, _OWN_SHARE * options.interval_s, options.cpu_share)
        answer = await self._replays(order, _PATIENCE_SHARE * options.interval_s)
        decided = decide(self.state, request, answer, options.mode, self._clock.time(), options.interval_s)
        return replace(decided, reason="; ".join((decided.reason, *answer.advice)))

    def _adopt(self, decided: Decided) -> None:
        self.state = decided.state
        self._put_in_force(decided.state)
        self._metrics.note_tuning(decided.event)
        self._log.info(
            "auto-tuning", event_kind=decided.event.value, in_force=str(decided.state.in_force), reason=decided.reason
        )
        try:
            self._store.add(self._clock.time(), decided)
        except DatabaseUnavailableError as error:
            # The next run stores what is remembered then.
            self._log.error("auto-tuning could not be stored", error=str(error))

    def _put_in_force(self, state: TuningState) -> None:
        chosen = replace(self._options.configured, policy=state.in_force.policy, seconds=state.in_force.seconds)
        self._use(chosen)
        self._metrics.forward(chosen)
