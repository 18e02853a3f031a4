"""The script that runs a command with a container engine: where there is none, and where it or the command fails."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "deploy/docker/with-engine.sh"
NO_ENGINE = 77
PROGRAMS = ("bash", "env", "nice", "realpath")


def with_engine(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run it where the only programs are those of a folder, and the recipe is in the folder, if anywhere."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for name in PROGRAMS:
        (programs / name).symlink_to(str(shutil.which(name)))
    environment = {"PATH": str(programs), "CONTAINERS_RECIPE": str(folder / "recipe")}
    return subprocess.run([SCRIPT, *command], env=environment, capture_output=True, text=True, check=False, timeout=30)


def script(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def test_no_engine_and_no_recipe_has_a_status_of_its_own(tmp_path: Path) -> None:
    done = with_engine(tmp_path, "bash", "-c", "exit 0")
    assert done.returncode == NO_ENGINE
    assert "no container engine" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="others are told that they are not root")
def test_a_recipe_that_fails_is_a_failure(tmp_path: Path) -> None:
    script(tmp_path / "recipe/setup.sh", "exit 3")
    done = with_engine(tmp_path, "bash", "-c", "exit 0")
    assert done.returncode == 1
    assert "can't set up a container engine" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="others are told that they are not root")
def test_the_engine_is_stopped_and_the_status_is_that_of_the_command(tmp_path: Path) -> None:
    script(tmp_path / "recipe/setup.sh", "exit 0")
    script(tmp_path / "recipe/env.sh", "export ENGINE=here")
    script(tmp_path / "recipe/engine.sh", f'echo "$1" >{tmp_path}/engine')
    assert with_engine(tmp_path, "bash", "-c", "[[ $ENGINE == here ]] && exit 3").returncode == 3
    assert (tmp_path / "engine").read_text() == "stop\n"


def test_where_an_engine_answers_the_command_runs_as_it_is(tmp_path: Path) -> None:
    script(tmp_path / "bin/docker", "exit 0")
    assert with_engine(tmp_path, "bash", "-c", "exit 3").returncode == 3
