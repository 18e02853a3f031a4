"""No placeholders: nodes of a real Slurm are watched, agents come by a real ssh, a Prolog has them leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.impact.harvest import PLACEHOLDER, harvest, write_prolog
from tests.scavenger.acquisition.secure_shell import SSHD, ssh_command
from tests.slurm.cluster import cluster, missing
from tests.slurm.test_harvest import confirmed
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.timeout(600),
    pytest.mark.skipif(SSHD is None, reason="needs sshd: apt install openssh-server"),
]

PATIENCE = 180.0
NODES = 3
SCALE = 2
SEEN_LATER = 0.5
"""The watcher looks every 0.04 s, when it gets a core; the main job starts within a tenth of its Prolog's end."""


def test_a_main_job_finds_its_nodes_empty_and_slurm_knows_nothing_of_us(tmp_path: Path) -> None:
    pytest.importorskip("horovod.torch", reason="needs Horovod: run deploy/install-horovod.sh")
    if reason := missing():
        pytest.skip(reason)
    prolog = write_prolog(tmp_path / "slurm")
    with ssh_command(tmp_path / "ssh") as ssh, cluster(tmp_path / "slurm", NODES, prolog) as slurm:
        with harvest(tmp_path / "harvest", slurm, ssh) as running:
            running.submit(SCALE)
            wait_until(lambda: confirmed(running) == SCALE, PATIENCE, "a training on two nodes")
            assert not slurm.jobs(), "Slurm has no job of ours"
            occupied = set(running.watcher.look())
            assert len(occupied) >= SCALE
            stamp = tmp_path / "main"
            slurm.submit(NODES, f"LC_ALL=C\necho $EPOCHREALTIME >{stamp}.part\nmv {stamp}.part {stamp}\nsleep 4")
            wait_until(stamp.exists, PATIENCE, "the main job")
            assert not any(running.watcher.look().values()), "no worker of ours is where the main job is"
            wait_until(lambda: not running.watcher.look(), 3, "the end of an agent that was on its way")
            start = float(stamp.read_text())
            empty = running.watcher.empty
            assert all(any(moment < start + SEEN_LATER for moment in empty.get(node, ())) for node in occupied)
            assert set(running.signals()) >= occupied, "the agents were asked by the Prolog"
            before = running.samples()
            wait_until(lambda: running.samples() > before, PATIENCE, "more samples after it")
        assert not running.watcher.look(), "no process of ours is left on any node"
        assert not slurm.jobs(PLACEHOLDER)
