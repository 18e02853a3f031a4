"""The process that replays may do what it will: a run fails, and nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from malletrain.allocator.auto_tuning.documents import TuningOrder
from malletrain.allocator.auto_tuning.machine import ForwardChoice, TuningAnswer, TuningQuestion
from malletrain.allocator.auto_tuning.replay_process import ReplayProcess, TuningRunError
from malletrain.allocator.problem.forward_time import ForwardPolicy
from malletrain.cli.operate.tuning_replays import DutyCycle
from malletrain.common.processes import identify, read_arguments, read_environment
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes

ORDER = TuningOrder(TuningQuestion(ForwardChoice(ForwardPolicy.CONSTANT, 120.0), ()), 60.0, 2, 30.0, 1.0)
HANGS = (
    "import os, sys, time, pathlib; folder = pathlib.Path(os.environ['TMPDIR']);"
    "child = os.fork(); (folder.parent / ('child' if child == 0 else 'parent')).write_text(str(os.getpid()));"
    "(folder / 'copy').touch(); time.sleep(600)"
)


def process(tmp_path: Path, code: str) -> ReplayProcess:
    return ReplayProcess([sys.executable, "-c", code], tmp_path / "auto_tuning", 10.0, 512)


async def test_an_answer_is_taken_and_the_folder_is_removed(tmp_path: Path) -> None:
    code = 'import sys; sys.stdin.read(); print(\'{"best": null, "back": null, "advice": [], "note": "none"}\')'
    (tmp_path / "auto_tuning" / "left by a run that was killed").mkdir(parents=True)
    assert await process(tmp_path, code).run(ORDER, 60.0) == TuningAnswer(note="none")
    assert not (tmp_path / "auto_tuning").exists()


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import sys; sys.exit('no databases')", "exit status 1: no databases"),
        ("print('hello')", "answered nonsense"),
        ("import os; os.kill(os.getpid(), 9)", "killed by signal 9"),
        ("import os; os.kill(os.getpid(), 24)", "more CPU time than auto_tune_cpu_share permits"),
    ],
)
async def test_whatever_goes_wrong_is_said(tmp_path: Path, code: str, why: str) -> None:
    with pytest.raises(TuningRunError, match=why):
        await process(tmp_path, code).run(ORDER, 60.0)


async def test_a_program_that_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(TuningRunError, match="could not be started"):
        await ReplayProcess([str(tmp_path / "none")], tmp_path / "auto_tuning", 1.0, 512).run(ORDER, 60.0)


async def test_one_that_hangs_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    with pytest.raises(TuningRunError, match="longer than 4 s"):
        await process(tmp_path, HANGS).run(ORDER, 4.0)
    pids = [int((tmp_path / name).read_text()) for name in ("parent", "child")]
    for pid in pids:
        wait_until(lambda pid=pid: identify(pid) is None or not read_arguments(pid), 10, "its end")  # type: ignore[misc]
    assert not (tmp_path / "auto_tuning").exists()


def test_the_program_limits_itself_and_ends_with_its_parent(tmp_path: Path) -> None:
    """A parent starts it as the Allocator does, and is killed while it waits for its order."""
    parent = (
        "import os, subprocess, sys; arguments = ['--cpu-seconds', '33', '--memory-mib', '700', '--parent'];"
        "child = subprocess.Popen([sys.executable, '-m', 'malletrain.cli.operate.tuning_replays', *arguments,"
        " str(os.getpid())], stdin=subprocess.PIPE, start_new_session=True); print(child.pid, flush=True); child.wait()"
    )
    started = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, cwd=tmp_path)
    assert started.stdout is not None
    pid = int(started.stdout.readline())

    def limits() -> str:
        text = Path(f"/proc/{pid}/limits").read_text()
        return text if "Max cpu time              33" in text else ""

    found = wait_until(limits, 30, "its limits")
    assert f"Max data size             {700 * 2**20}" in found
    assert os.getpriority(os.PRIO_PROCESS, pid) == 19
    assert os.getsid(pid) == pid
    assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "1000", "before the Allocator"
    assert read_environment(pid)
    started.send_signal(signal.SIGKILL)
    started.wait()
    wait_until(lambda: not read_arguments(pid), 10, "its end")


def test_work_is_spread_over_time_by_the_share_that_it_may_have() -> None:
    now, used = 100.0, 0.0

    def pause(seconds: float) -> None:
        nonlocal now
        now += seconds

    cycle, turns = DutyCycle(0.05, 600.0, lambda: now, lambda: used, pause), 0
    while cycle.step():
        now, used, turns = now + 0.1, used + 0.1, turns + 1
    assert now - 100.0 == pytest.approx(600.0, abs=1.0)
    assert used == pytest.approx(0.05 * 600.0, abs=0.5)
    assert turns > 100
