"""The program that replays the past for `allocator.auto_tune`: an order on its input, an answer on its output.

It limits itself before it does anything else: lowest priority, CPU time and memory. Then it works in short turns with
pauses between them, so that it uses the share of a core that it may use, and no more at any time.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from malletrain.allocator.auto_tuning.documents import TuningOrder
    from malletrain.allocator.auto_tuning.machine import TuningAnswer
    from malletrain.cli.shared.settings import AllSettings

_PR_SET_PDEATHSIG = 1
_LOWEST = 19
_FIRST_TO_GO = 1000
_MIB = 2**20
_TURN_S = 0.2
"""It pauses when it is so many seconds ahead of its share."""


class DutyCycle:
    """Pauses so often that a process uses a share of a core, and says when its time is over."""

    def __init__(
        self,
        share: float,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.process_time,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """
        Args:
            share: Share of a core, above 0 and at most 1.
            seconds: Wall-clock time in seconds after which it is over.
            clock: Wall-clock time in seconds.
            used: CPU time in seconds.
            pause: Waits for some seconds.
        """
        self._share = share
        self._seconds = seconds
        self._clock = clock
        self._used = used
        self._pause = pause
        self._began = clock()

    def step(self) -> bool:
        """Pause if it is time for that; whether there is time left."""
        passed = self._clock() - self._began
        ahead = self._used() / self._share - passed
        if ahead > _TURN_S:
            self._pause(max(0.0, min(ahead, self._seconds - passed)))
        return self._clock() - self._began < self._seconds


def main() -> None:
    """Read, replay, answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--cpu-seconds", type=int, required=True)
    parser.add_argument("--memory-mib", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    arguments = parser.parse_args()
    _limit(arguments.cpu_seconds, arguments.memory_mib, arguments.parent)
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    from malletrain.allocator.auto_tuning.documents import TuningOrder, from_json, to_json
    from malletrain.cli.shared.settings import load
    from malletrain.runtime.errors import MalleTrainError

    try:
        answer = _answer(from_json(TuningOrder, sys.stdin.read()), load(arguments.config))
        print(to_json(answer), file=output, flush=True)
    except MalleTrainError as error:
        sys.exit(str(error))


def _limit(cpu_seconds: int, memory_mib: int, parent: int) -> None:
    """Lowest priority, also where sessions share the CPU first (sched_autogroup); limits; the end with the parent."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the Allocator has ended")
    os.setpriority(os.PRIO_PROCESS, 0, _LOWEST)
    with suppress(OSError):  # where there is none, niceness counts by itself
        Path("/proc/self/autogroup").write_text(str(_LOWEST))
    with suppress(OSError):  # where memory is short, the kernel ends this process before a service
        Path("/proc/self/oom_score_adj").write_text(str(_FIRST_TO_GO))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    resource.setrlimit(resource.RLIMIT_DATA, (memory_mib * _MIB, memory_mib * _MIB))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _answer(order: TuningOrder, settings: AllSettings) -> TuningAnswer:
    from malletrain.cli.journal.reading import read_journal
    from malletrain.cli.journal.replay_options import options_in_force
    from malletrain.simulator.tuning.next_step import OutOfTimeError, answer_order
    from malletrain.simulator.tuning.trials import DayOutcome, TunedSettings, TuningDay, replay_day

    cycle = DutyCycle(order.cpu_share, order.seconds)
    options, now = options_in_force(settings), order.question.in_force
    present = TunedSettings(
        now.policy, now.seconds, settings.job_manager.max_parallel, settings.allocator.coalesce_seconds
    )

    def go_on(_: float) -> None:
        if not cycle.step():
            raise OutOfTimeError

    def replay(day: TuningDay, tried: TunedSettings) -> DayOutcome:
        go_on(0.0)
        return replay_day(day, tried, options, go_on)

    return answer_order(order, read_journal(str(settings.state_dir), settings), present, replay)


if __name__ == "__main__":
    main()
