"""Phases in which a training trains no batches, as its script says: `with phase("evaluate"):`.

They are written to the ring, from which the sidecar tells Monitor. A phase is neither a stall nor part of a step, and
has a limit of its own.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from malletrain.client.ring import Ring, RingPhase, put_phase
from malletrain.client.warn_once import WarnOnce, describe

START, EVALUATE, SAVE, PAUSE = "start", "evaluate", "save", "pause"
NAMES = (START, EVALUATE, SAVE, PAUSE)
"""What limits are known for. A pause is anything else; it may take as long as a step."""

_DEEPEST = 16
SaveEnded = Callable[[BaseException | None], None]
"""Told why a save has failed; None: it has not."""
_P = ParamSpec("_P")
_T = TypeVar("_T")


def _ignore(error: BaseException | None) -> None:
    """Nobody is told."""


class Phases:
    """The phases of this process that have been entered and not left, the innermost one last.

    They are those of one thread: while it is in one, what others enter does not count.
    """

    def __init__(self, ring: Callable[[], Ring | None], clock: Callable[[], int], warnings: WarnOnce) -> None:
        """In none.

        Args:
            ring: The ring to write to; None: this process does not report.
            clock: Nanoseconds since the epoch.
        """
        self._ring = ring
        self._clock = clock
        self._warnings = warnings
        self._open: list[tuple[str, int]] = []
        self._thread = 0
        self._number = 0
        self._written: RingPhase | None = None

    def enter(self, name: str) -> bool:
        """Begin a phase within the present one; whether it has to be left. Never raises."""
        try:
            if self._open and threading.get_ident() != self._thread:
                return False
            if len(self._open) >= _DEEPEST:
                self._warnings.warn("deep phase", f"phase(): {_DEEPEST} phases have been entered and not left")
                return False
            now = self._clock()
            self._open.append((self._known(name), now))
            self._thread = threading.get_ident()
            self._change(now)
        except Exception as error:  # noqa: BLE001 - whatever happens here, the training continues
            self._warnings.warn("phase", f"phase(): {describe(error)}")
            return False
        return True

    def leave(self) -> None:
        """End the innermost phase: the one around it goes on. Never raises."""
        try:
            self._open.pop()
            self._change(self._clock())
        except Exception as error:  # noqa: BLE001 - as above
            self._warnings.warn("phase", f"phase(): {describe(error)}")

    def forget(self) -> None:
        """There is a new ring, or another process: nothing is written of what came before."""
        self._number, self._written = 0, None

    def _known(self, name: str) -> str:
        if name in NAMES:
            return name
        self._warnings.warn("phase name", f"phase(): expected one of {', '.join(NAMES)}, got {name!r:.80}: a pause")
        return PAUSE

    def _change(self, now: int) -> None:
        """Write that the present phase ends, and which one goes on."""
        ring = self._ring()
        if ring is None:
            return
        if self._written is not None:
            put_phase(ring, self._written._replace(end_ns=now))
            self._written = None
        if self._open:
            self._number += 1
            name, since = self._open[-1]
            self._written = RingPhase(self._number, since, 0, name)
            put_phase(ring, self._written)


class DeclaredPhase:
    """A phase of the training, to be entered by `with`, or around a function as a decorator."""

    def __init__(self, phases: Phases, name: str, saved: SaveEnded = _ignore) -> None:
        """Nothing begins yet.

        Args:
            name: start, evaluate, save or pause.
            saved: Told how a save has ended.
        """
        self._phases = phases
        self._name = name
        self._saved = saved
        self._entered: list[bool] = []

    def __call__(self, function: Callable[_P, _T]) -> Callable[_P, _T]:
        """A function that is run in such a phase."""

        @functools.wraps(function)
        def within(*arguments: _P.args, **options: _P.kwargs) -> _T:
            with DeclaredPhase(self._phases, self._name, self._saved):
                return function(*arguments, **options)

        return within

    def __enter__(self) -> None:
        """Begin it."""
        self._entered.append(self._phases.enter(self._name))

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """End it. An error in it goes on."""
        if self._entered and self._entered.pop():
            self._phases.leave()
            if self._name == SAVE:
                self._saved(error)
