"""What a pool may kill."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from malletrain.common.launch_file import Launch
from malletrain.common.standby.manager import StandbyManager
from malletrain.supervisor.workers.agent_links import AgentLinks
from malletrain.supervisor.workers.local_workers import LocalWorkers
from malletrain.supervisor.workers.worker_pool import WorkerPool


def test_a_job_of_the_same_name_in_another_installation_is_spared(tmp_path: Path) -> None:
    def stray(folder: str) -> subprocess.Popen[bytes]:
        marks = {"MALLETRAIN_JOB_ID": "j1", "MALLETRAIN_NODE": "n1", "MALLETRAIN_JOB_DIR": folder}
        return subprocess.Popen(["sleep", "60"], env={"PATH": os.defpath, **marks})

    launch = Launch(
        job_id="j1",
        backend="horovod",
        command=("true",),
        working_directory="/",
        environment={"MALLETRAIN_JOB_ID": "j1", "MALLETRAIN_JOB_DIR": "/mine/jobs/j1"},
        slots_per_node=1,
        socket="",
        sequence=1,
    )
    mine, theirs = stray("/mine/jobs/j1"), stray("/theirs/jobs/j1")
    try:
        pool = WorkerPool(
            launch, tmp_path, {}, "mark", AgentLinks(None), LocalWorkers(StandbyManager(print, memory_bytes=0))
        )
        pool.sweep(frozenset({"n2"}))
        assert mine.poll() is None
        pool.sweep(frozenset({"n1"}))
        assert mine.wait(10) == -signal.SIGKILL
        assert theirs.poll() is None
    finally:
        for process in (mine, theirs):
            process.kill()
            process.wait()
