"""Which daemons `deploy/slurm/local-cluster.sh` starts."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "deploy" / "slurm" / "local-cluster.sh"
DAEMONS = ("slurmctld", "slurmd", "slurmstepd")


def program(path: Path, text: str = "exit 1") -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def test_the_first_slurm_in_path_is_taken_and_no_other_by_debians_names(tmp_path: Path) -> None:
    own, debian, folder = tmp_path / "own", tmp_path / "debian", tmp_path / "cluster"
    program(own / "munged")  # it fails: nothing is started
    for name in DAEMONS:
        program(own / name)
        program(debian / f"{name}-wlm")

    def started(*places: Path) -> set[Path]:
        path = os.pathsep.join([*map(str, places), os.environ["PATH"]])
        argv = ["bash", str(SCRIPT), "up", str(folder)]
        done = subprocess.run(argv, env=os.environ | {"PATH": path}, capture_output=True, timeout=30, check=False)
        assert done.returncode != 0
        return {(folder / "bin" / name).readlink().parent for name in DAEMONS}

    assert started(own, debian) == {own}
    assert started(debian, own) == {own}, "its commands have these names, too"
