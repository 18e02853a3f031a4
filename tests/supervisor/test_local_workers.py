"""Workers that a supervisor has forked on its own machine, in a real training."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import psutil
import pytest

from tests.common.standby.keeping import is_forked
from tests.supervisor.running import supervised
from tests.support.waiting import wait_until

PATIENCE = 120.0


@pytest.mark.horovod
def test_later_workers_are_forked_and_end_with_the_supervisor(tmp_path: Path) -> None:
    with supervised(tmp_path / "job", "n1", standby_mib=2048) as job:
        job.wait_confirmed()
        job.wait_batch(1)
        assert not is_forked(job.pids()["n1"])
        wait_until(lambda: re.search(r"standby process \d+ is ready", job.said), PATIENCE, "the standby process")
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
