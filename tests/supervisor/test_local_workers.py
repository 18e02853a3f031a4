"""Workers that a supervisor has forked on its own machine, in a real training."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from malletrain.supervisor.workers.local_workers import NICENESS
from tests.common.standby.keeping import is_forked
from tests.supervisor.running import supervised
from tests.support.waiting import wait_until


@pytest.mark.horovod
def test_workers_are_forked_from_the_first_one_on_and_end_with_the_supervisor(tmp_path: Path) -> None:
    with supervised(tmp_path / "job", "n1", standby_mib=2048) as job:
        job.wait_confirmed()
        job.wait_batch(1)
        assert is_forked(job.pids()["n1"]), job.said
        assert "new interpreter" not in job.said
        first = psutil.Process(job.pids()["n1"])
        wait_until(lambda: first.nice() == NICENESS, 10, "a low priority, so that the services run")
        if (group := Path(f"/proc/{first.pid}/autogroup")).exists():
            assert group.read_text().split()[-1] == str(NICENESS)
        assert psutil.Process(job.process.pid).nice() < NICENESS
        job.rescale("n1", "n2")
        assert is_forked(job.pids()["n2"]), job.said
        # What a killed worker leaves is collected, and the survivor goes on.
        os.kill(job.pids()["n2"], signal.SIGKILL)
        job.wait_batch(1)
        job.wait_batch(2)
        children = psutil.Process(job.process.pid).children(recursive=True)
        os.kill(job.process.pid, signal.SIGKILL)
        _, alive = psutil.wait_procs(children, timeout=10)
        assert alive == []
        wait_until(lambda: not job.processes(), 10, "no process of the job")
