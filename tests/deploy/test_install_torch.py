"""Where the image `trainer` gets torch from: a wheel that is given, else an index that is named."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "deploy/docker/install-torch.sh"
VERSION = "2.13.0"


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An environment whose pip is that of the tests, and installs into it."""
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    pip = folder / "bin/pip"
    pip.write_text(f'#!/bin/sh\nexec {sys.executable} -m pip --isolated --python {folder}/bin/python "$@"\n')
    pip.chmod(0o755)
    return folder


def wheel(folder: Path, version: str) -> None:
    """A wheel of a package of that name, with nothing in it."""
    folder.mkdir(parents=True, exist_ok=True)
    about = f"torch-{version}.dist-info"
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")


def index(folder: Path, version: str) -> str:
    """The URL of a package index with that wheel."""
    wheel(folder / "torch", version)
    (name,) = (path.name for path in (folder / "torch").glob("*.whl"))
    (folder / "torch/index.html").write_text(f'<a href="{name.replace("+", "%2B")}">{name}</a>')
    return folder.as_uri()


def install(environment: Path, where: str, wheels: Path) -> str:
    """The version that is installed."""
    done = subprocess.run(
        [SCRIPT, environment, VERSION, where, wheels], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    (found,) = environment.glob("lib/python3*/site-packages/torch-*.dist-info")
    return found.name.removeprefix("torch-").removesuffix(".dist-info")


def test_a_wheel_that_is_given_is_taken(environment: Path, tmp_path: Path) -> None:
    wheel(tmp_path / "wheels", f"{VERSION}+given")
    assert install(environment, "file:///nowhere", tmp_path / "wheels") == f"{VERSION}+given"


def test_without_one_the_index_is_asked(environment: Path, tmp_path: Path) -> None:
    wheel(tmp_path / "wheels", "2.12.0")
    where = index(tmp_path / "index", f"{VERSION}+cpu")
    assert install(environment, where, tmp_path / "wheels") == f"{VERSION}+cpu"


def test_no_folder_is_needed(environment: Path, tmp_path: Path) -> None:
    where = index(tmp_path / "index", f"{VERSION}+cpu")
    assert install(environment, where, tmp_path / "none") == f"{VERSION}+cpu"
