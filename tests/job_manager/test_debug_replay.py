"""A defect in a real JobManager process: it ends, what it was given is written down, and the command replays it."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tests.job_manager.manager_process import manager_process, planned, serving
from tests.job_manager.serving import processes_of
from tests.job_manager.stand_in import make_python
from tests.support.debug_replay import debug_replay
from tests.support.waiting import wait_until_async

FAULT = """
from malletrain.job_manager.machine import state_machine
state_machine._with_lost = lambda *_: ()
"""


def nodes_of(state_dir: Path) -> set[str | None]:
    return {found.get("MALLETRAIN_NODE") for found in processes_of(state_dir).values()}


@pytest.mark.processes
async def test_a_defect_ends_the_process_and_can_be_replayed(tmp_path: Path) -> None:
    async with manager_process(tmp_path / "state", make_python(tmp_path), FAULT) as (process, caller, scavenger):
        job_id = await caller.submit("sh", "-c", "exec sleep 60 # hunter2", environment={"TOKEN": "hunter2"})
        await planned(caller, 1, j1="n1 n2")
        await caller.until(job_id, "RUNNING")
        before = processes_of(process.state_dir).keys()
        scavenger.tell(left="n2")
        running = process.process
        assert running is not None
        await wait_until_async(lambda: running.poll() is not None, what="the end of JobManager")
        process.process = None
        (file,) = (process.state_dir / "debug").iterdir()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert "hunter2" not in file.read_text()
        log = (process.state_dir / "job_manager.log").read_text()
        assert "job j000001: n2 left, and are not being released" in log
        assert str(file) in log

        again = debug_replay(file, fault=FAULT)
        assert again.returncode == 0, again.stderr
        assert "the same failure as recorded: StateInvariantError: job j000001: n2 left" in again.stdout
        assert "STARTING -> RUNNING on n1 n2: CONFIRMED" in again.stdout
        found = json.loads(debug_replay(file, "--json", fault=FAULT).stdout)
        assert found["reproduced"]
        assert found["replayed"]["stimulus"] == found["stimuli"]
        assert found["replayed"]["failure"]["job_id"] == job_id

        mended = debug_replay(file)
        assert mended.returncode == 1
        assert "replayed: no failure" in mended.stdout

        assert processes_of(process.state_dir).keys() == before, "a defect of JobManager's is no reason to stop jobs"

        # The state before the defect was stored: without the fault, the next JobManager goes on from there.
        process.fault = ""
        process.start()
        await serving(caller)
        await planned(caller, 2, j1="n1")
        await caller.until(job_id, "RUNNING")
        await wait_until_async(lambda: nodes_of(process.state_dir) == {None, "n1"}, what="the release of n2")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "version": "0", "validated": 1}'])
def test_files_that_hold_no_recording(tmp_path: Path, content: str) -> None:
    file = tmp_path / "stimuli.json"
    file.write_text(content)
    found = debug_replay(file)
    assert found.returncode == 2
    assert found.stderr.startswith(f"error: {file}: expected ")
    assert "Traceback" not in found.stderr
