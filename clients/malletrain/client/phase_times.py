"""What the phases in the ring mean for its records: how much of each step was none of the training. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from malletrain.client.ring import RingPhase, RingRecord

TOLD_NS = 500_000_000
"""Shorter phases are not told while they last, in nanoseconds."""


class PhaseTimes:
    """Phases and records of one ring, in the order in which they were written.

    Attributes:
        in_steps: How long the training was in phases in the step that a record ends, in nanoseconds, by the record's
            sequence number; records without phases are left out.
    """

    def __init__(self) -> None:
        self.in_steps: dict[int, int] = {}
        self._ended: list[tuple[int, int]] = []
        self._covered_ns = 0
        self._record_ns = 0
        self._batch_ns = 0
        self._open: RingPhase | None = None

    def see(self, phases: Iterable[RingPhase]) -> None:
        """Take in phases that have begun or ended, in the order of their numbers.

        They must be read after the records that `take` is then called with.
        """
        for phase in phases:
            if not phase.end_ns:
                self._open = phase
                continue
            # The phase around another one goes on after it, from the same beginning: no time counts twice.
            begin = max(phase.begin_ns, self._covered_ns)
            if phase.end_ns > begin:
                self._ended.append((begin, phase.end_ns))
                self._covered_ns = phase.end_ns
            if self._open is not None and self._open.number <= phase.number:
                self._open = None

    def take(self, records: Iterable[RingRecord], floor: int) -> None:
        """Take in records, in order. The first ends no step, and so has no phase in it.

        Args:
            records: What was read before the phases that `see` was last called with.
            floor: Records up to this sequence number are not asked for any more.
        """
        for record in records:
            if inside := self._inside_step(record):
                self.in_steps[record.sequence] = inside
        if self.in_steps:
            self.in_steps = {sequence: inside for sequence, inside in self.in_steps.items() if sequence > floor}

    def _inside_step(self, record: RingRecord) -> int:
        before, self._record_ns = self._record_ns, record.unix_ns
        if record.samples > 0:
            self._batch_ns = record.unix_ns
        if not self._ended:
            return 0
        ended = self._ended
        self._ended = [(begin, end) for begin, end in ended if end > record.unix_ns]
        if not before:
            return 0
        return sum(max(0, min(end, record.unix_ns) - max(begin, before)) for begin, end in ended)

    def present(self, now_ns: int) -> tuple[str, float] | None:
        """Name of the phase that lasts, and for how long in seconds; None: there is none.

        One in which a batch has ended has not been left by mistake.
        """
        phase = self._open
        if phase is None or phase.begin_ns < self._batch_ns or now_ns - phase.begin_ns < TOLD_NS:
            return None
        return phase.name, (now_ns - phase.begin_ns) / 1e9
