"""Share of a core that the replays of auto-tuning use: `python benchmarks/studies/tuning_share.py`.

The program that the Allocator starts replays a made past of 28 parts, in which nodes leave and join every seven
seconds, as long as it may. Its CPU time is read from outside, with psutil: all of it, and that of its start, in which
it loads its libraries and can't pause.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.arguments import positive
from malletrain.allocator.auto_tuning.documents import TuningOrder
from malletrain.allocator.auto_tuning.machine import ForwardChoice, TuningQuestion, one_step_from
from malletrain.allocator.auto_tuning.replay_process import ReplayProcess
from malletrain.allocator.history.idle_history import IdleRow, IdleRowKind
from malletrain.allocator.history.idle_store import IdleStore
from malletrain.allocator.problem.forward_time import ForwardPolicy
from malletrain.runtime.config import Settings
from malletrain.runtime.database.migrating import open_database
from tests.cli.test_journal import BEGIN, DAY, make_state

_EVERY_S = 7
_ROWS = 90_000
_LOOK_S = 0.5
_START_S = 10.0
_MEMORY_MIB = 1024


def make_past(folder: Path) -> None:
    """A past of a week that takes more than a minute of CPU time to replay."""
    make_state(folder, 7)
    begin = BEGIN + 7 * DAY
    rows = []
    for turn in range(1, _ROWS):
        now, names = begin + _EVERY_S * turn, ("n3", "n4", "n5")
        joined, left = (dict.fromkeys(names, now), ()) if turn % 2 == 0 else ({}, names)
        rows.append(IdleRow(now, IdleRowKind.CHANGE, joined, left))
    IdleStore(open_database(Settings(state_dir=folder / "state").database("allocator")), 100_000).add(rows)


async def watch(folder: Path, seconds: float, share: float) -> list[tuple[float, float]]:
    """Seconds since the start, and seconds of CPU time, while the program runs."""
    command = [
        sys.executable,
        "-m",
        "malletrain.cli.operate.tuning_replays",
        "--config",
        str(folder / "malletrain.toml"),
    ]
    program = ReplayProcess(command, folder / "state" / "auto_tuning", 3600, _MEMORY_MIB)
    present = ForwardChoice(ForwardPolicy.CONSTANT, 120.0)
    question = TuningQuestion(present, tuple(one_step_from(present)))
    order = TuningOrder(question, 6 * 3600.0, 28, seconds, share)
    run = asyncio.create_task(program.run(order, 10 * seconds))
    began, found = time.monotonic(), []
    while not run.done():
        await asyncio.sleep(_LOOK_S)
        try:
            if program.pid is not None:
                times = psutil.Process(program.pid).cpu_times()
                found.append((time.monotonic() - began, times.user + times.system))
        except psutil.NoSuchProcess:
            break
    await run
    return found


def main() -> None:
    """Run, watch, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=positive, default=60)
    parser.add_argument("--share", type=float, default=0.05)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tuning-share-") as name:
        make_past(Path(name))
        found = asyncio.run(watch(Path(name), options.seconds, options.share))
    passed, used = found[-1]
    later = [(when, cpu) for when, cpu in found if when >= _START_S]
    figures = {
        "seconds": round(passed, 1),
        "cpu_seconds": round(used, 2),
        "share": round(used / passed, 4),
        "cpu_seconds_of_the_start": round(later[0][1], 2) if later else None,
        "permitted": options.share,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
