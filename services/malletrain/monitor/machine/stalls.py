"""What a rescale costs: the gap between the records around it, less a usual step, and what is trained again. Pure.

MalleTrain section 3.1: Monitor computes the cost of each rescale from the trainers' records. Which pause of a training
is the cost of which change of its scale, JobManager's commands say: a pause between two batches at different scales is
the stall of a rescale where exactly that change was commanded, and nothing else has happened to the job meanwhile.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import InitVar, dataclass, field, replace

from malletrain.model.scaling import RescaleStall, ScaleCommand
from malletrain.monitor.machine.options import MonitorOptions
from malletrain.monitor.machine.progress import TrainingStep, UsualStep

RESCALES_KEPT = 64
"""Newest rescales of a job that are remembered."""

COMMANDS_KEPT = 8
"""Newest commands of a job that are remembered. Records arrive within a second or so, commands at once."""

CLOCK_SECONDS = 2.0
"""How far the clocks of a node and of JobManager's machine may be apart."""

_USUAL_STEPS_BEFORE = 3.0
_STEPS_AFTER = 5


@dataclass(frozen=True, slots=True)
class MeasuredRescale(RescaleStall):
    """One measured rescale. The stall is the gap between the records around it, less a usual step at the new scale.

    A script that saves once per epoch goes on from there: the time that the samples since then have taken, at the scale
    before, is part of its stall, since the job is as far as before only when they are done again.

    Attributes:
        unix_seconds: When training continued, in seconds since the epoch.
        number: Number of the rescale within the job, from 1.
    """

    unix_seconds: float
    number: int

    @property
    def growth(self) -> bool:
        """Whether the scale increased."""
        return self.to_nodes > self.from_nodes


def seems_a_rescale(step: TrainingStep, cold_gap_seconds: float) -> bool:
    """Whether a step seems to contain a rescale of a running job, where JobManager's commands are not known.

    It does not in these cases:
    - The job was started from a checkpoint: the gap is longer than `cold_gap_seconds` (the job waited without nodes,
      or failed and was restarted later), or there is a new reporter and the scale did not decrease: all processes were
      replaced, be it by a growth of a backend that restarts them or after a failure.
    - The length of the gap is not known: records are missing in it, or the clocks of two reporters disagree.

    A new reporter after a decrease means that the node of rank 0 was taken. If that node was lost without notice, the
    time-out and the rollback lie in the gap as well, and count as part of the stall.
    """
    if step.to_nodes == step.from_nodes or not 0 <= step.seconds <= cold_gap_seconds:
        return False
    if step.new_reporter:
        return step.to_nodes < step.from_nodes
    return step.contiguous


@dataclass(frozen=True, slots=True)
class Pause:
    """The time between two successive batches at different scales.

    Attributes:
        from_nodes: Scale before.
        to_nodes: Scale after.
        begin: When the last batch before it ended, in seconds since the epoch.
        end: When the first batch after it ended.
        redone_seconds: How long the job took, at the scale before, for the samples that the change has lost.
    """

    from_nodes: int
    to_nodes: int
    begin: float
    end: float
    redone_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Length of the stall in seconds."""
        return self.end - self.begin


@dataclass
class ScaleCommands:
    """The newest commands of one job. None are known at first: JobManager is away, or of a version that tells none."""

    _commands: list[ScaleCommand] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._commands)

    def take_command(self, command: ScaleCommand) -> bool:
        """Take over the newest command; returns whether that is news. It may come again, and be disturbed by then."""
        if self._commands and command.number < self._commands[-1].number:
            return False
        if self._commands and command.number == self._commands[-1].number:
            known, self._commands[-1] = self._commands[-1], command
            return known != command
        self._commands.append(command)
        del self._commands[:-COMMANDS_KEPT]
        return True

    @property
    def newest(self) -> ScaleCommand | None:
        """The newest one; None: none is known."""
        return self._commands[-1] if self._commands else None

    def numbers(self) -> tuple[int, ...]:
        """Their numbers, oldest first."""
        return tuple(command.number for command in self._commands)

    def explaining(self, pause: Pause, usual_seconds: float) -> ScaleCommand | None:
        """The command whose change, and nothing else, made a pause; None where there is none.

        There is none in these cases:
        - The newest command by the end of the pause is that of another change, or of a start.
        - Something else has happened after it.
        - The job had not trained for some steps when it came: it evaluated, or saved, or hung.

        Args:
            usual_seconds: Usual duration of a step; 0: not known.
        """
        commands = [command for command in self._commands if command.unix_seconds <= pause.end + CLOCK_SECONDS]
        while commands and commands[-1].unix_seconds > pause.end and not _changes(commands[-1], pause):
            commands.pop()
        if not commands or 0 < commands[-1].disturbed_unix_seconds <= pause.end or not _changes(commands[-1], pause):
            return None
        idle = commands[-1].unix_seconds - pause.begin
        trained = usual_seconds <= 0 or idle <= CLOCK_SECONDS + _USUAL_STEPS_BEFORE * usual_seconds
        return commands[-1] if trained else None


def _changes(command: ScaleCommand, pause: Pause) -> bool:
    return (command.from_nodes, command.to_nodes) == (pause.from_nodes, pause.to_nodes)


@dataclass
class StallMeter:
    """The stalls of one job's rescales.

    Attributes:
        options: Limits.
        earlier: Rescales that were measured before.
        commands: The newest commands of the job.

    A stall is measured from the last batch at the old scale to the first one at the new scale, less a usual step: that
    is the time in which nothing is trained. The time in which it had trained what is trained again is added. The
    command may come much earlier, and the job trains on meanwhile. Which pause is the stall of a change is known from
    JobManager's commands.
    """

    options: MonitorOptions
    earlier: InitVar[Iterable[MeasuredRescale]] = ()
    commands: ScaleCommands = field(default_factory=ScaleCommands)
    _rescales: list[MeasuredRescale] = field(init=False)
    _explained: int = field(init=False, default=0)
    _pause: Pause | None = field(init=False, default=None)
    _usual_seconds: float = field(init=False, default=0.0)
    _after: list[float] = field(init=False, default_factory=list)
    _counted: bool = field(init=False, default=False)

    def __post_init__(self, earlier: Iterable[MeasuredRescale]) -> None:
        self._rescales = sorted(earlier, key=lambda rescale: rescale.number)[-RESCALES_KEPT:]

    def add(self, step: TrainingStep, usual: UsualStep, redone_seconds: float = 0.0) -> None:
        """Take the next step of the job into account.

        Args:
            usual: The job's usual step so far. It is subtracted from the gap until steps at the new scale are known.
            redone_seconds: How long the job took, at the scale before, for the samples that it does again.
        """
        if step.to_nodes != step.from_nodes:
            self._begin(step, usual.seconds, redone_seconds)
        elif step.steady:
            self.extend((step.seconds,))
        else:
            self._pause = None

    def extend(self, seconds: Sequence[float]) -> None:
        """Take the durations of the next steps into account, which are all steady."""
        if self._pause is None or len(self._after) >= _STEPS_AFTER:
            return
        self._after.extend(seconds[: _STEPS_AFTER - len(self._after)])
        if self._counted:
            self._rescales[-1] = replace(self._rescales[-1], seconds=self._stall(self._pause))

    def add_late(self, unix_seconds: float) -> None:
        """Take into account when a batch ended that an earlier reporter delivers late: the pause begins after it."""
        if self._pause is None or not self._pause.begin < unix_seconds < self._pause.end:
            return
        self._pause = replace(self._pause, begin=unix_seconds)
        if self._counted:
            self._rescales[-1] = replace(self._rescales[-1], seconds=self._stall(self._pause))

    def note_command(self, command: ScaleCommand) -> bool:
        """Take over the newest command, which may arrive after its change; returns whether that shows a rescale."""
        if self.commands.take_command(command) and not self._counted:
            self._count_if_explained()
            return self._counted
        return False

    def rescales(self) -> tuple[MeasuredRescale, ...]:
        """The newest rescales, oldest first."""
        return tuple(self._rescales)

    @property
    def last_number(self) -> int:
        """Number of the newest rescale; 0 before the first."""
        return self._rescales[-1].number if self._rescales else 0

    def after(self, number: int) -> tuple[MeasuredRescale, ...]:
        """Rescales since the one with a number, as far as they are remembered, oldest first."""
        return tuple(rescale for rescale in self._rescales if rescale.number > number)

    def scale_up_seconds(self) -> float | None:
        """Median stall of the newest growths in seconds; None before the first."""
        return self._median(growth=True)

    def scale_down_seconds(self) -> float | None:
        """Median stall of the newest shrinks in seconds; None before the first."""
        return self._median(growth=False)

    def _begin(self, step: TrainingStep, usual_seconds: float, redone_seconds: float) -> None:
        self._pause, self._after, self._counted = None, [], False
        if step.seconds < 0 or not (step.contiguous or step.new_reporter):
            return
        begin = step.unix_seconds - step.seconds
        self._pause = Pause(step.from_nodes, step.to_nodes, begin, step.unix_seconds, redone_seconds)
        self._usual_seconds = usual_seconds
        if not self.commands:
            if seems_a_rescale(step, self.options.cold_gap_seconds):
                self._count(self._pause)
            return
        self._count_if_explained()

    def _count_if_explained(self) -> None:
        if self._pause is None or self._counted:
            return
        command = self.commands.explaining(self._pause, self._usual_seconds)
        if command is None or command.number == self._explained:
            return
        # Of the commands before Monitor's own start it is not known which it has used.
        if not self._explained and self._rescales and command.unix_seconds < self._rescales[-1].unix_seconds:
            return
        self._explained = command.number
        self._count(self._pause)

    def _count(self, pause: Pause) -> None:
        number = self.last_number + 1
        stall = self._stall(pause)
        self._rescales.append(MeasuredRescale(pause.from_nodes, pause.to_nodes, stall, pause.end, number))
        del self._rescales[:-RESCALES_KEPT]
        self._counted = True

    def _stall(self, pause: Pause) -> float:
        """The pause less the median of the first steps at the new scale, or less the old usual step before these.

        The time in which lost samples had been trained is added.
        """
        step = statistics.median(self._after) if self._after else self._usual_seconds
        return max(0.0, pause.seconds - step) + pause.redone_seconds

    def _median(self, *, growth: bool) -> float | None:
        stalls = [rescale.seconds for rescale in self._rescales if rescale.growth == growth]
        return statistics.median(stalls[-self.options.stall_median_count :]) if stalls else None
