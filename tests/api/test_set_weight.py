"""A job's weight is changed on live services, from Python and from the command line, and nodes follow it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import malletrain
from malletrain.runtime.errors import InvalidInputError, PreconditionError
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.timeout(400)]

SETTINGS = {"job_manager.standby_memory_mib": "0", "allocator.replan_seconds": "1", "scavenger.debounce_seconds": "0"}
PATIENCE = 120.0
PROGRAM = """\
import time
from malletrain.client import install_signal_handler, report, should_stop
install_signal_handler()
samples = 0
while not should_stop():
    samples += 1
    report(1, position=samples)
    time.sleep(0.1)
"""


def test_nodes_follow_a_weight_that_is_changed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    with malletrain.local(nodes=4, settings=SETTINGS) as cluster:
        first, second = (
            cluster.submit(
                [sys.executable, "train.py"],
                name=name,
                workdir=tmp_path,
                backend="command",
                max_nodes=3,
                curve={1: 100.0, 2: 190.0, 3: 270.0},
                scale_up=0.5,
                scale_down=0.5,
                profile="never",
            )
            for name in ("first", "second")
        )

        def held() -> tuple[int, int]:
            return len(cluster.job(first.id).nodes), len(cluster.job(second.id).nodes)

        wait_until(lambda: held() == (2, 2), PATIENCE, "two nodes each")
        first.set_weight(8)
        wait_until(lambda: held() == (3, 1), PATIENCE, "three nodes of the one with the larger weight")
        command = [sys.executable, "-m", "malletrain.cli.main", "set", "--config", f"{cluster.folder}/malletrain.toml"]
        done = subprocess.run(
            [*command, "second", "--weight", "64"], env=dict(os.environ), capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stdout) == (0, f"{second.id} weight 64\n"), done.stderr
        wait_until(lambda: held() == (1, 3), PATIENCE, "three nodes of the other one")
        with pytest.raises(InvalidInputError, match="weight"):
            first.set_weight(0)
        first.cancel()
        first.wait(PATIENCE)
        with pytest.raises(PreconditionError, match="has ended"):
            first.set_weight(2)
